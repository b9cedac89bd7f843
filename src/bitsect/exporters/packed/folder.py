"""Folders as transformers has them: configuration, tokenizer, and the packed weights of a network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ...errors import ExportError
from ...network.program import Program
from ...sources.models.hf import PREFIX, save_beside
from ...values import Plan
from ..exporter import Exporter, Written
from ..subject import Subject
from .exporter import file_of, prove_packed
from .write import write_packed

METHOD = "bitsect"
README = """# A quantised network

`quantized.safetensors` holds integer codes and scales, `config.json` says so under `quantization_config`.

```python
import bitsect
model = bitsect.load("{name}")  # takes and returns what the network of transformers does
```

The tokenizer or image processor beside it loads with transformers. transformers itself does not know the
quantisation method `bitsect`, and finds no weights under a name of its own.
"""


def check(program: Program, plan: Plan, source: str) -> None:
    """Refuse networks that are none of transformers."""
    if not source.startswith(PREFIX):
        raise ExportError(
            "a folder is written for networks that were given as hf:FOLDER or hf:NAME: end the file name in "
            ".onnx, .pt2 or .safetensors"
        )


def write_folder(
    subject: Subject, path: Path, destination: str | None = None, metadata: Mapping[str, str] | None = None
) -> Written:
    """The folder at `path`: what was there of the float network, with packed weights."""
    path.mkdir()
    write_packed(subject, path / "quantized.safetensors", destination, metadata)
    plan = subject.plan.to_json()
    save_beside(
        subject.source,
        path,
        {
            "quant_method": METHOD,
            "weights": "quantized.safetensors: integer codes and scales, see its metadata",
            "placement": subject.rounder.placement.name,
            "plan": plan["layers"],
        },
    )
    (path / "plan.json").write_text(json.dumps(plan, indent=1) + "\n", encoding="utf-8")
    (path / "README.md").write_text(README.format(name=path.name), encoding="utf-8")
    return Written(path, None, file_of(path).stat().st_size)


FOLDER = Exporter(
    "a folder as of transformers, which bitsect.load reads",
    "hf",
    ("transformers",),
    check=check,
    write=write_folder,
    prove=prove_packed,
)
