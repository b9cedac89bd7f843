"""bitsect: the bit-width each layer of a trained network can bear.

    result = bitsect.quantize(model, samples, target=0.999, out="runs/mine")

Everything that a user meets is here; names are loaded on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .errors import (
        BitsectError,
        CaptureError,
        DataError,
        ExportError,
        MissingExtraError,
        OptionError,
        PlanError,
        RunError,
        TargetError,
    )
    from .exporters.deliver import Delivery
    from .exporters.proof import Proof
    from .latency.cutlass import import_cutlass
    from .network.capture import capture
    from .network.program import Program
    from .pipeline.blame import blame
    from .pipeline.compare import compare
    from .pipeline.evaluate import Judgement, evaluate, evaluate_file
    from .pipeline.export import export
    from .pipeline.frontier import frontier
    from .pipeline.layers import layers
    from .pipeline.load import load
    from .pipeline.paper import Paper, paper
    from .pipeline.quantize import quantize
    from .pipeline.recipe import run_recipe
    from .pipeline.report import report
    from .pipeline.result import Result
    from .pipeline.rows import Row, Tested
    from .pipeline.sensitivity import sensitivity
    from .runs.progress import Progress
    from .solve.metrics import Array, Means, Metric, metric
    from .solve.search.problem import Found, Problem, Trials
    from .sources.data.load import load_samples
    from .sources.data.samples import Samples
    from .sources.tasks.task import Outcome, Task
    from .values import (
        Evaluation,
        Format,
        Goal,
        LatencyTable,
        Layer,
        Plan,
        Resources,
        Scores,
        Scoring,
        Settings,
        Target,
    )
    from .values.blame import Blame
    from .values.curve import Curve
    from .values.trial import Compared

# Where each public name lives. Loaded on first use, so that `bitsect --help` and the rooms without
# torch start at once.
_HOMES = {
    "errors": (
        "BitsectError",
        "CaptureError",
        "DataError",
        "ExportError",
        "MissingExtraError",
        "OptionError",
        "PlanError",
        "RunError",
        "TargetError",
    ),
    "exporters.deliver": ("Delivery",),
    "exporters.proof": ("Proof",),
    "latency.cutlass": ("import_cutlass",),
    "network.capture": ("capture",),
    "network.program": ("Program",),
    "pipeline.blame": ("blame",),
    "pipeline.compare": ("compare",),
    "pipeline.evaluate": ("Judgement", "evaluate", "evaluate_file"),
    "pipeline.export": ("export",),
    "pipeline.frontier": ("frontier",),
    "pipeline.layers": ("layers",),
    "pipeline.load": ("load",),
    "pipeline.paper": ("Paper", "paper"),
    "pipeline.quantize": ("quantize",),
    "pipeline.recipe": ("run_recipe",),
    "pipeline.report": ("report",),
    "pipeline.result": ("Result",),
    "pipeline.rows": ("Row", "Tested"),
    "pipeline.sensitivity": ("sensitivity",),
    "runs.progress": ("Progress",),
    "solve.metrics": ("Array", "Means", "Metric", "metric"),
    "solve.search.problem": ("Found", "Problem", "Trials"),
    "sources.data.load": ("load_samples",),
    "sources.data.samples": ("Samples",),
    "sources.tasks.task": ("Outcome", "Task"),
    "values": (
        "Evaluation",
        "Format",
        "Goal",
        "LatencyTable",
        "Layer",
        "Plan",
        "Resources",
        "Scores",
        "Scoring",
        "Settings",
        "Target",
    ),
    "values.blame": ("Blame",),
    "values.curve": ("Curve",),
    "values.trial": ("Compared",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Array",
    "BitsectError",
    "Blame",
    "CaptureError",
    "Compared",
    "Curve",
    "DataError",
    "Delivery",
    "Evaluation",
    "ExportError",
    "Format",
    "Found",
    "Goal",
    "Judgement",
    "LatencyTable",
    "Layer",
    "Means",
    "Metric",
    "MissingExtraError",
    "OptionError",
    "Outcome",
    "Paper",
    "Plan",
    "PlanError",
    "Problem",
    "Program",
    "Progress",
    "Proof",
    "Resources",
    "Result",
    "Row",
    "RunError",
    "Samples",
    "Scores",
    "Scoring",
    "Settings",
    "Target",
    "TargetError",
    "Task",
    "Tested",
    "Trials",
    "__version__",
    "blame",
    "capture",
    "compare",
    "evaluate",
    "evaluate_file",
    "export",
    "frontier",
    "import_cutlass",
    "layers",
    "load",
    "load_samples",
    "metric",
    "paper",
    "quantize",
    "report",
    "run_recipe",
    "sensitivity",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'bitsect' has no attribute '{name}'")
    return getattr(import_module(f".{_HOME_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
