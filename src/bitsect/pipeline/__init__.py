"""The story: one file per verb."""

from .quantize import *  # noqa: F403
