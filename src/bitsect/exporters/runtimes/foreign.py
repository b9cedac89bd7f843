"""Model files of any maker, each run by its runtime in a process of its own: see `apart`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...errors import BitsectError, DataError, ExportError, MissingExtraError, OptionError
from ...files import first_line
from ...sources.data.samples import Inputs
from .apart import Apart, RuntimeDiedError
from .onnxruntime import Array, OnnxModel, read_about
from .vetting import check_onnx

# The runtime of each kind of file, the package that holds it, and the extra or package to install.
KINDS = {
    ".onnx": ("onnxruntime", "onnxruntime", ""),
    ".xml": ("openvino", "openvino", "openvino"),
    ".pt2": ("torch", "torch", ""),
    ".tflite": ("litert", "ai_edge_litert", ""),
    ".pte": ("executorch", "executorch", ""),
}
TYPES = {"float": "float32", "double": "float64"}  # as ONNX Runtime calls them


def runtime_of(path: str | Path, onnx_in: str = "onnxruntime") -> str:
    """The runtime that runs `path`; a clear error where none does, or where it is not installed."""
    suffix = Path(path).suffix.lower()
    if suffix not in KINDS:
        raise OptionError(f"{path}: expected a file that ends in {', '.join(KINDS)}")
    runtime, package, extra = KINDS[".xml"] if (suffix, onnx_in) == (".onnx", "openvino") else KINDS[suffix]
    if find_spec(package) is None:
        if extra:
            raise MissingExtraError(package, extra, f"running {path}")
        raise BitsectError(f"running {path} needs {package}: pip install {package.replace('_', '-')}")
    return runtime


class ForeignModel(OnnxModel):
    """A model file of any maker that takes and returns what the network did."""

    def __init__(self, path: str | Path, *, runtime: str, threads: int, rows: int | None = None) -> None:
        """`rows` of the samples run at once, all by default; a file that fixes its batch has its own way."""
        self.path, self.engine, self.rows = Path(path), runtime, rows
        if not self.path.is_file():
            raise BitsectError(f"{path}: no such file")
        if self.path.suffix.lower() == ".onnx":
            check_onnx(self.path)
        self._folder, self.apart = tempfile.TemporaryDirectory(), Apart(runtime)
        self._request = {"path": str(self.path.resolve()), "threads": threads}
        with self.told(f"{path}: {runtime} cannot load it", ExportError):
            (answer,) = self.apart.ask({"do": "about", **self._request})
            list(self.apart.ask({"do": "load", **self._request}))
        about = answer["about"]
        self.inputs = {name: shape for name, _, shape in about["inputs"]}
        self.types = {name: _type(kind) for name, kind, _ in about["inputs"]}
        self.outputs, self.metadata = about["outputs"], about["metadata"]
        if runtime == "openvino" and self.path.suffix.lower() == ".onnx":
            self.metadata = read_about(path)[2]
        self.runtime = f"{runtime} {self.apart.version}"

    def close(self) -> None:
        self.apart.close()
        self._folder.cleanup()

    def _named(self, inputs: Inputs) -> dict[str, Tensor]:
        """The inputs by the names of the file: by name, by a name that holds theirs, or in order."""
        if isinstance(inputs, dict) and len(inputs) > 1:
            matched = {own: [name for name in inputs if name in own] for own in self.inputs}
            names = {
                own: own if own in inputs else max(found, key=len) for own, found in matched.items() if found
            }
            if len(names) < len(self.inputs) or len(set(names.values())) < len(names):
                raise DataError(
                    f"the model takes {', '.join(self.inputs)}, the samples have {', '.join(inputs)}"
                )
            inputs = {own: inputs[name] for own, name in names.items()}
        return {name: self._fitted(name, value) for name, value in super()._named(inputs).items()}

    def _fitted(self, name: str, value: Tensor) -> Tensor:
        """The value in the file's own type, images with their channels last where it has them there."""
        wanted = self.inputs[name]
        if value.ndim == len(wanted) == 4 and wanted[1:] == [*value.shape[2:], value.shape[1]]:
            value = value.permute(0, 2, 3, 1).contiguous()
        return value.to(self.types[name])

    def _run_in_batches(self, feed: dict[str, Array]) -> list[Array]:
        given, made = Path(self._folder.name) / "in.npz", Path(self._folder.name) / "out.npz"
        np.savez(given, **feed)  # type: ignore[arg-type]
        rows = self._fixed_batch or self.rows
        with self.told(f"{self.engine} cannot run these samples", DataError):
            list(self.apart.ask({"do": "run", "feed": str(given), "out": str(made), "rows": rows}))
        with np.load(made, allow_pickle=False) as file:
            return [file[name] for name in file.files]

    def feed(self, inputs: Inputs, path: Path) -> Path:
        """The inputs of one sample, in a file as the runtime takes them."""
        np.savez(path, **self.feed_of(inputs))  # type: ignore[arg-type]
        return path

    def feed_of(self, inputs: Inputs) -> Mapping[str, Array]:
        rows = self._fixed_batch or 1
        return {
            name: value[:1].expand(rows, *value.shape[1:]).numpy()
            for name, value in self._named(inputs).items()
        }

    @contextmanager
    def told(self, what: str, kind: type[BitsectError]) -> Iterator[None]:
        try:
            yield
        except RuntimeDiedError as error:
            raise ExportError(f"{self.path} does not run in {self.engine} here: {error}") from None
        except BitsectError as error:
            raise kind(f"{what}: {first_line(error)}") from None


def _type(kind: str) -> torch.dtype:
    name = kind.removeprefix("tensor(").removesuffix(")")
    found = getattr(torch, TYPES.get(name, name), None)
    if not isinstance(found, torch.dtype):
        raise ExportError(f"an input is of type {kind}, which no sample has")
    return found


def size_on_disk(path: Path) -> int:
    """Bytes of the file and of those beside it that hold its weights."""
    beside = [path.with_suffix(".bin")] if path.suffix == ".xml" else []
    if path.suffix == ".onnx":
        import onnx
        from onnx.external_data_helper import ExternalDataInfo, uses_external_data

        tensors = onnx.load(path, load_external_data=False).graph.initializer
        named = {ExternalDataInfo(each).location for each in tensors if uses_external_data(each)}
        beside = [path.parent / name for name in sorted(named)]
    return sum(each.stat().st_size for each in [path, *beside] if each.is_file())
