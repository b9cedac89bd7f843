"""What a user should know of a captured network before anything is made of it."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..names import some
from ..values import Ranges
from .operators import is_tensor, origins
from .program import Program


def remarks(program: Program) -> Iterator[str]:
    """Sentences about a fixed batch, about numbers that are not float32, and about what capture changed."""
    if program.fixed_batch is not None:
        yield (
            f"the network holds its batch fixed at {program.fixed_batch}, as int(x.shape[0]) in forward "
            "makes it; smaller batches are padded"
        )
    if program.given_in:
        yield f"the network's weights are in {program.given_in}: it is judged and written in float32"
    if changed := sorted(program.exported.graph_signature.buffers_to_mutate.values()):
        yield (
            f"forward changes the buffers {some(changed)}: they are frozen, every call starts from what they "
            "were when it was captured"
        )
    dtypes = {multiply.node.meta["val"].dtype: multiply.layer for multiply in reversed(program.multiplies)}
    for dtype in sorted(dtypes.keys() - {torch.float32}, key=str):
        name = str(dtype).removeprefix("torch.")
        yield (
            f"layer '{dtypes[dtype]}' computes in {name}, and is exported from float32 only: "
            f"{float32_instead(program, dtypes[dtype])}"
        )
    if program.comparison is not None and not program.comparison.is_noise:
        yield str(program.comparison)


def unseen_layers(program: Program, ranges: Ranges) -> Iterator[str]:
    """A sentence about layers that no sample reaches, such as experts that are never chosen."""
    layers = {
        m.layer: None for m in program.multiplies if any(o.tensor in ranges.unseen for o in m.activations)
    }
    if layers:
        some = ", ".join(f"'{name}'" for name in list(layers)[:3]) + (" …" if len(layers) > 3 else "")
        yield (
            f"no sample reaches {some} ({len(layers)} of {len(program.layers)} layers): their ranges are "
            "those of layers like them, and what rounding does there is not known; give more samples"
        )


def float32_instead(program: Program, layer: str) -> str:
    """How to make `layer` compute in float32: its weight may be so already, under autocast."""
    weights = [multiply.weight for multiply in program.multiplies if multiply.layer == layer]
    made_of = [source for weight in weights if weight is not None for source in origins(weight.node)]
    if any(is_tensor(source) and source.meta["val"].dtype == torch.float32 for source in made_of):
        return "leave out torch.autocast, which makes it so, and capture it again"
    return "call model.float() before it is captured"
