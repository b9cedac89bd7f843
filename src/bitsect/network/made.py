"""Constants that a network makes out of nothing, which are computed when it is captured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch.utils._pytree as pytree
from torch import Tensor
from torch.fx import Node

from ..errors import CaptureError

MOST_MADE = 2**30  # bytes, and four times its weights more


def check_made(nodes: Iterable[Node], given: Mapping[Node, Any]) -> None:
    """Refuse constants that would fill the memory: a small file may ask for any number of zeros."""
    storages = {}
    for node in nodes:
        for value in pytree.tree_leaves(node.meta.get("val")) if node not in given else ():
            if isinstance(value, Tensor) and isinstance(size := value.untyped_storage().nbytes(), int):
                storages[value.untyped_storage()._cdata] = size
    held = sum(value.nbytes for value in given.values() if isinstance(value, Tensor))
    if (made := sum(storages.values())) > MOST_MADE + 4 * held:
        raise CaptureError(
            f"the network makes constants of {made / 2**30:.3g} GB out of nothing: make them from its inputs"
        )
