"""Where networks come from: `hf:NAME`, `zoo:NAME`, `paper:NAME`, `FILE.pt2` or `package.module:function`."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from ...errors import BitsectError
from ...names import calling, resolve
from ..preparation import NOTHING, Preparation

KINDS = "hf:FOLDER, zoo:NAME, paper:NAME, FILE.pt2 or package.module:function"
LONGEST = 4096  # characters of a spec, as of a path


@dataclass(frozen=True)
class Network:
    """A network and, where its source knows one, an example input."""

    model: nn.Module | ExportedProgram
    example: Any = None
    any_example: bool = False  # whether samples, where there are some, are the better example


def load_model(spec: object, *, trust: bool = False) -> Network:
    """The network that `spec` names, a text or a path.

    `trust` lets a .pt2 file run code that its author pickled into it.
    """
    if not isinstance(spec, str | Path) or len(str(spec)) > LONGEST:
        raise BitsectError(
            f"a network is expected, not a {type(spec).__name__}: give a torch.nn.Module, or use {KINDS}"
        )
    with redirect_stdout(sys.stderr):  # whatever a user's code prints, stdout is for results
        return _load(str(spec), trust)


def _load(spec: str, trust: bool) -> Network:
    source, _, name = spec.partition(":")
    if source == "zoo":
        from .zoo import example_input, load_network

        return Network(load_network(name), example_input())
    if source == "paper":
        from .paper import paper_network

        return Network(*paper_network(name))
    if source == "hf":
        from .hf import load_hf

        return Network(*load_hf(spec, trust=trust), any_example=True)
    if spec.endswith(".pt2"):
        from .pt2 import load_pt2

        return Network(load_pt2(Path(spec), trust=trust))
    if ":" in spec:
        return _from_function(spec)
    if Path(spec).exists():
        raise BitsectError(
            f"model '{spec}' is not a .pt2 file; save it with torch.export.save, or name a function"
        )
    raise BitsectError(f"unknown model '{spec}': use {KINDS}")


def is_read(spec: str) -> bool:
    """Whether `spec` names files, not a function."""
    return spec.startswith(("zoo:", "paper:", "hf:")) or spec.endswith(".pt2")


def full_spec(spec: str) -> str:
    """`spec` as it can be found again from another folder."""
    if not spec.startswith("hf:"):
        return spec
    from .hf import ModelPlace

    place = ModelPlace.of(spec)
    return f"hf:{place.path}" + (f"@{place.revision}" if place.revision else "")


def preparation_for(model: Any, processor: Any = None, *, trust: bool = False) -> Preparation:
    """What makes inputs of texts and images for `model`: its own processor, or the one that is named."""
    named = isinstance(processor, str)
    known: Preparation | None = None
    if isinstance(model, str) and model.startswith("hf:"):
        from .hf import preparation_of

        known = preparation_of(model, trust=trust)
    elif isinstance(model, nn.Module) or (processor is not None and not named):
        from .hf import preparation_of_object

        known = preparation_of_object(model, None if named else processor)
    if named:
        from .hf import preparation_of

        other = preparation_of(processor if processor.startswith("hf:") else f"hf:{processor}", trust=trust)
        return other if known is None else replace(known, processor=other.processor, longest=other.longest)
    if processor is not None and known is not None:
        return replace(known, processor=processor)
    return known or NOTHING


def _from_function(spec: str) -> Network:
    function = resolve(spec, "model")
    if isinstance(function, nn.Module):
        return Network(function)
    if not callable(function):
        raise BitsectError(f"model '{spec}' is not a function that returns a network")
    with calling("model", spec):
        made = function()
    model, example = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module | ExportedProgram):
        raise BitsectError(
            f"model '{spec}' returned {type(made).__name__}; expected a torch.nn.Module, "
            "or a pair of module and example input"
        )
    return Network(model, example)


def parse_example(shape: str) -> torch.Tensor:
    """Zeros of the shape written as `3x224x224` (one sample), doubled to a batch of two."""
    try:
        sizes = [int(size) for size in shape.lower().replace("×", "x").split("x")]
        if min(sizes) < 1:
            raise ValueError(shape)
    except ValueError:
        raise BitsectError(f"input shape '{shape}' is not of the form 3x224x224 (one sample)") from None
    return torch.zeros(2, *sizes)
