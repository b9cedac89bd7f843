"""A quantised network as an nn.Module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ..errors import DataError
from ..network.parts import Rounding
from ..network.program import Program


class QuantizedModel(nn.Module):
    """A network that computes what the plan says; it takes and returns what the original does."""

    def __init__(self, program: Program, rounding: Rounding) -> None:
        super().__init__()
        self.eval()  # it was captured so, and cannot be trained
        self.program, self.rounding = program, rounding
        # Evaluation loops ask the first parameter where and in what type a network computes.
        self.nothing = nn.Parameter(torch.empty(0, device=program.device), requires_grad=False)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and isinstance(args[0], Mapping) and not kwargs:
            return self(**args[0])
        exported = self.program.exported
        assert exported.call_spec.in_spec is not None
        by_name = exported.call_spec.in_spec.children()[1].context or []  # of a network captured with names
        missing = exported.graph_signature.user_inputs[len(args) :]
        if args and not kwargs and len(by_name) == 1:
            args, kwargs = (), dict(zip(by_name, args, strict=True))
        elif kwargs and not by_name and set(missing) == set(kwargs):
            args, kwargs = (*args, *(kwargs[str(name)] for name in missing)), {}
        if args and kwargs:
            raise DataError(
                f"this network was captured with the inputs {', '.join(map(str, by_name))} by name"
            )
        return self.program.run(kwargs or args, self.rounding)
