"""Ways out: files that run elsewhere, the runtimes that run them, and the proof by running.

The table says by the ending of a file where its exporter is.
"""

EXPORTERS = {".onnx": "bitsect.exporters.onnx.exporter:ONNX"}
