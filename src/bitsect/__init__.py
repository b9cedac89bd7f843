"""bitsect: the bit-width each layer of a trained network can bear.

result = bitsect.quantize(model, samples, target=0.999, out="runs/mine")
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .errors import BitsectError
    from .network.capture import capture
    from .pipeline.quantize import evaluate, quantize, sensitivity
    from .runs.run import Settings
    from .values import Format, Plan, Target

__all__ = [
    "BitsectError",
    "Format",
    "Plan",
    "Settings",
    "Target",
    "__version__",
    "capture",
    "evaluate",
    "quantize",
    "sensitivity",
]

_HOMES = {
    "BitsectError": "errors",
    "Format": "values",
    "Plan": "values",
    "Settings": "run",
    "Target": "values",
    "capture": "capture",
    "evaluate": "pipeline",
    "quantize": "pipeline",
    "sensitivity": "pipeline",
}


def __getattr__(name: str) -> Any:
    # Loaded on first use, so that `bitsect --help` and the rooms without torch start at once.
    if name not in _HOMES:
        raise AttributeError(f"module 'bitsect' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__


class _Package(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        # `bitsect.capture` stays the function when the module of that name is imported.
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
