"""Ways out: files that run elsewhere, the runtimes that run them, and the proof by running.

The table says by the ending of a file where its exporter is; a name without one is that of a folder.
"""

EXPORTERS = {
    ".onnx": "bitsect.exporters.onnx.exporter:ONNX",
    ".pt2": "bitsect.exporters.pt2:PT2",
    ".safetensors": "bitsect.exporters.packed.exporter:PACKED",
    "": "bitsect.exporters.packed.folder:FOLDER",
}
