"""What a run folder knows of what it was made of, and the objects that it keeps."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from io import BytesIO
from pathlib import Path

import torch
from safetensors.torch import load_file, save

from ..errors import RunError
from ..network.program import Program
from ..sources.data import Samples, load_samples
from ..sources.data.load import MEMORY
from ..sources.data.sequences import Sequences
from ..values import Settings
from ..values.options import names_of
from .disk import START_ANEW, fingerprint_file, reading, write_bytes
from .folder import MODEL_FILE, SAMPLES_FILE, RunFolder

AGAIN = "call quantize with the Python objects once more"


@dataclass(frozen=True)
class Recorded:
    """What run.json says."""

    model: str  # where the network was last found, or MODEL_FILE
    data: str  # the same of the samples, or MEMORY
    task: str  # its name: a function of a user's own is not kept
    settings: Settings  # all but the task
    model_fingerprint: str
    data_fingerprint: str
    files: dict[str, str]  # the fingerprints of the objects that are kept

    @classmethod
    def read(cls, folder: RunFolder) -> Recorded | None:
        """What the run in `folder` is of; None where there is none yet."""
        known = folder.read_json("run.json")
        if known is None:
            return None
        with reading(folder.path / "run.json", START_ANEW):
            settings = Settings(**{name: known[name] for name in names_of(Settings) if name != "task"})
            others = {field.name: known[field.name] for field in fields(cls) if field.name != "settings"}
            for name, value in others.items():
                if not isinstance(value, dict if name == "files" else str):
                    raise TypeError(f"its {name} is a {type(value).__name__}")
            return cls(settings=settings, **others)

    @property
    def keeps_model(self) -> bool:
        return is_kept(self.model)

    @property
    def keeps_samples(self) -> bool:
        return self.data == MEMORY

    def stored(self, folder: RunFolder, name: str) -> Path:
        """The path of the object that the run keeps as `name`, unchanged since it was written."""
        path = folder.inside(name)
        if not path.exists():
            raise RunError(f"{path} is not there: {AGAIN}")
        if fingerprint_file(path) != self.files.get(name):
            raise RunError(f"{path} is damaged, or another than the run was made with: {AGAIN}")
        return path


def is_kept(spec: str) -> bool:
    """Whether a run keeps its network: it was given as an object, or made by a user's function."""
    found_again = spec.startswith(("zoo:", "hf:")) or spec.endswith(".pt2")
    return spec == MODEL_FILE or (":" in spec and not found_again)


def keep_objects(
    folder: RunFolder, known: Recorded | None, program: Program | None, samples: Samples | None
) -> dict[str, str]:
    """Write down the objects that came out of Python, so that the run works alone; returns fingerprints.

    What is there already and unchanged is left alone.
    """
    files = dict(known.files) if known is not None else {}

    def keep(name: str, as_bytes: Callable[[], bytes]) -> None:
        path = folder.inside(name)
        if not (path.exists() and fingerprint_file(path) == files.get(name)):
            data = as_bytes()
            write_bytes(path, data)
            files[name] = hashlib.sha256(data).hexdigest()

    if program is not None:
        keep(MODEL_FILE, partial(_program_bytes, program))
    if samples is not None:
        keep(SAMPLES_FILE, partial(_sample_bytes, samples))
    return files


def _program_bytes(program: Program) -> bytes:
    for node in program.exported.graph.nodes:
        for name in ("stack_trace", "from_node"):  # paths and addresses, which differ between callers
            node.meta.pop(name, None)
    buffer = BytesIO()
    torch.export.save(program.exported, buffer)
    return buffer.getvalue()


def _sample_bytes(samples: Samples) -> bytes:
    source, labels = samples.source, samples.labels
    if isinstance(source, Sequences):
        stored = save({name: array.contiguous() for name, array in source.arrays().items()})
        return bytes(stored)
    inputs = samples.inputs(slice(None))
    # The names say how the network takes its inputs: alone, in a row or by name.
    arrays = {"labels": labels} if labels is not None else {}
    if isinstance(inputs, dict):
        arrays |= {f"named.{name}": value for name, value in inputs.items()}
    elif isinstance(inputs, tuple):
        arrays |= {f"row.{number}": value for number, value in enumerate(inputs)}
    else:
        arrays["inputs"] = inputs
    stored = save({name: array.contiguous() for name, array in arrays.items()})
    return bytes(stored)


def read_samples(path: Path) -> Samples:
    """The samples that a run keeps."""
    with reading(path, AGAIN):
        arrays = load_file(path)
        if "sizes" in arrays:
            return Samples(Sequences.of(arrays, "data"), MEMORY)
        labels, inputs = arrays.pop("labels", None), arrays.get("inputs")
        if inputs is None:
            parts = {name.partition(".")[2]: value for name, value in arrays.items()}
            named = all(name.startswith("named.") for name in arrays)
            inputs = parts if named else tuple(parts[str(number)] for number in range(len(parts)))
        return load_samples([(inputs,) if labels is None else (inputs, labels)])
