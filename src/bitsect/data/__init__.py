"""Where samples come from: one spec, or any Python iterable, becomes `Samples`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .load import load_samples
    from .samples import Batch, Inputs, Samples

__all__ = ["Batch", "Inputs", "Samples", "load_samples"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: the processes that decode images pass through here and need no torch.
    if name == "load_samples":
        from .load import load_samples

        return load_samples
    if name in __all__:
        from . import samples

        return getattr(samples, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
