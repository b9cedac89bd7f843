"""load: a quantised network from a file that export wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from ..errors import BitsectError, OptionError
from ..sources.models import load_model


def load(path: str | Path, model: Any = None, *, trust: bool = False) -> nn.Module:
    """The quantised network in a file or folder that `export` wrote; it computes the same bits.

    Arguments:
        path: FILE.safetensors, FILE.pt2, or the folder of a network of transformers.
        model: for FILE.safetensors the architecture that goes with it: an nn.Module, or a spec as for
            `quantize`; its own weights are not looked at.
        trust: load a .pt2 file, or a model, that runs code of its author.
    """
    path = Path(path)
    if path.suffix == ".pt2":
        from ..sources.models.pt2 import SavedProgram, load_pt2

        _unneeded(model, path)
        saved = load_pt2(path, trust=trust)
        return saved.network() if isinstance(saved, SavedProgram) else saved.module()
    if path.suffix == ".onnx":
        raise OptionError(f"{path}: an ONNX file runs in a runtime: `bitsect evaluate FILE` judges it")
    from ..exporters.packed.exporter import file_of
    from ..exporters.packed.read import Packed

    packed = Packed.read(file_of(path))
    if path.is_dir():
        from ..sources.models.hf import bare_network

        _unneeded(model, path)
        with torch.random.fork_rng(devices=[]):  # the weights that it begins with are random
            return packed.model(bare_network(path))
    if model is None:
        raise OptionError(
            f"{path} holds weights, not the architecture: pass the network as well, load(path, model)"
        )
    network = load_model(str(model), trust=trust).model if isinstance(model, str | Path) else model
    if not isinstance(network, nn.Module | ExportedProgram):
        raise BitsectError(f"a network is expected beside {path}, not a {type(model).__name__}")
    return packed.model(network)


def _unneeded(model: Any, path: Path) -> None:
    if model is not None:
        raise OptionError(f"{path} holds its architecture: leave [model=] out")
