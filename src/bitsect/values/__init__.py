"""The nouns of bitsect: frozen values with their JSON, free of torch."""

from .comparison import Comparison
from .cost import Cost, megabytes
from .costs import Costs
from .damage import Damage
from .evaluation import Evaluation
from .format import FLOAT, INT4, INT8, Format
from .latency_table import LatencyTable
from .layer import Layer, Place, Signature, Skipped, matching
from .measured import Losses, Measured, Noise
from .placement import ONNXRUNTIME, PAPER, PLACEMENTS, Placement, placement_named
from .plan import Plan
from .ranges import Range, Ranges
from .scores import Scores
from .target import Target

__all__ = [
    "FLOAT",
    "INT4",
    "INT8",
    "ONNXRUNTIME",
    "PAPER",
    "PLACEMENTS",
    "Comparison",
    "Cost",
    "Costs",
    "Damage",
    "Evaluation",
    "Format",
    "LatencyTable",
    "Layer",
    "Losses",
    "Measured",
    "Noise",
    "Place",
    "Placement",
    "Plan",
    "Range",
    "Ranges",
    "Scores",
    "Signature",
    "Skipped",
    "Target",
    "matching",
    "megabytes",
    "placement_named",
]
