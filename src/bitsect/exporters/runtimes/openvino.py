"""Running a written ONNX model in OpenVINO, in a process of its own: see `apart`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...errors import BitsectError, DataError, ExportError, MissingExtraError
from ...files import first_line
from ...sources.data import Inputs
from .apart import Apart, RuntimeDiedError
from .onnxruntime import Array, OnnxModel, read_about


class OpenVinoModel(OnnxModel):
    """A model in OpenVINO that takes and returns what the network did."""

    def __init__(self, path: str | Path, *, threads: int | None = None, fixed: Inputs | None = None) -> None:
        """With `fixed`, the inputs have the shapes of these for good."""
        if find_spec("openvino") is None:
            raise MissingExtraError("openvino", "openvino", "running a model in OpenVINO")
        self.path = Path(path)
        self.inputs, self.outputs, self.metadata = read_about(path)
        self._apart, self._folder = Apart("openvino"), tempfile.TemporaryDirectory()
        count = torch.get_num_threads() if threads is None else threads
        request: dict[str, Any] = {"do": "load", "path": str(self.path.resolve()), "threads": count}
        if fixed is not None:
            shapes = {name: list(value.shape) for name, value in self._named(fixed).items()}
            request.update({"do": "load fixed", "shapes": shapes})
        with self._told(f"{path}: OpenVINO cannot load it", ExportError):
            list(self._apart.ask(request))
        self.runtime = f"openvino {self._apart.version}"

    def operators(self) -> list[tuple[str, str]]:
        """(names, precision) of every operator that runs; names of all that went into it."""
        (answer,) = self._apart.ask({"do": "operators"})
        return [(names, precision) for names, precision in answer["operators"]]

    def close(self) -> None:
        self._apart.close()
        self._folder.cleanup()

    def _run(self, feed: dict[str, Array]) -> list[Array]:
        given, made = Path(self._folder.name) / "in.npz", Path(self._folder.name) / "out.npz"
        np.savez(given, **feed)  # type: ignore[arg-type]
        with self._told("OpenVINO cannot run these samples", DataError):
            list(self._apart.ask({"do": "run", "feed": str(given), "out": str(made)}))
        with np.load(made, allow_pickle=False) as file:
            return [file[name] for name in file.files]

    @contextmanager
    def _told(self, what: str, kind: type[BitsectError]) -> Iterator[None]:
        try:
            yield
        except RuntimeDiedError as error:
            raise ExportError(f"{self.path} does not run in OpenVINO here: {error}") from None
        except BitsectError as error:
            raise kind(f"{what}: {first_line(error)}") from None
