"""Where samples come from: one spec, or any Python iterable, becomes `Samples`."""

from .load import load_samples
from .samples import Batch, Inputs, Samples

__all__ = ["Batch", "Inputs", "Samples", "load_samples"]
