"""Finished pieces of work by name: a journal of a run folder, or a dictionary."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import numpy as np

Piece = dict[str, np.ndarray[Any, Any]]  # what one piece of work found, as named arrays
Done = MutableMapping[str, Piece]
