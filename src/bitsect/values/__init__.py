"""The nouns of bitsect: frozen values with their JSON, free of torch."""

from .budget import Budget
from .comparison import Comparison
from .cost import Cost, megabytes
from .costs import Costs
from .damage import Damage
from .evaluation import Evaluation
from .format import FLOAT, INT4, INT8, Format, high_to_low
from .goal import Goal
from .grid import Grid
from .latency_table import LatencyTable
from .layer import Layer, Place, Signature, Skipped, matching
from .measured import Losses, Measured, Noise
from .placement import ONNXRUNTIME, PAPER, PLACEMENTS, Placement, placement_named
from .plan import Plan
from .ranges import Range, Ranges
from .resources import Resources
from .scores import Scores
from .scoring import Scoring
from .settings import Settings
from .target import Target

__all__ = [
    "FLOAT",
    "INT4",
    "INT8",
    "ONNXRUNTIME",
    "PAPER",
    "PLACEMENTS",
    "Budget",
    "Comparison",
    "Cost",
    "Costs",
    "Damage",
    "Evaluation",
    "Format",
    "Goal",
    "Grid",
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
    "Resources",
    "Scores",
    "Scoring",
    "Settings",
    "Signature",
    "Skipped",
    "Target",
    "high_to_low",
    "matching",
    "megabytes",
    "placement_named",
]
