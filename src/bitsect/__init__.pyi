"""Made by tools/stubs.py from the signatures and the option fields: do not edit."""

from .errors import BitsectError as BitsectError
from .errors import CaptureError as CaptureError
from .errors import DataError as DataError
from .errors import ExportError as ExportError
from .errors import MissingExtraError as MissingExtraError
from .errors import OptionError as OptionError
from .errors import PlanError as PlanError
from .errors import RunError as RunError
from .errors import TargetError as TargetError
from .exporters.deliver import Delivery as Delivery
from .exporters.proof import Proof as Proof
from .latency.cutlass import import_cutlass as import_cutlass
from .network.capture import capture as capture
from .network.program import Program as Program
from .pipeline.evaluate import Judgement as Judgement
from .pipeline.export import export as export
from .pipeline.layers import layers as layers
from .pipeline.load import load as load
from .pipeline.report import report as report
from .pipeline.result import Result as Result
from .pipeline.rows import Row as Row
from .pipeline.rows import Tested as Tested
from .runs.progress import Progress as Progress
from .solve.metrics import Array as Array
from .solve.metrics import Means as Means
from .solve.metrics import Metric as Metric
from .solve.metrics import metric as metric
from .solve.search.problem import Found as Found
from .solve.search.problem import Problem as Problem
from .solve.search.problem import Trials as Trials
from .sources.data.load import load_samples as load_samples
from .sources.data.samples import Samples as Samples
from .sources.tasks.task import Outcome as Outcome
from .sources.tasks.task import Task as Task
from .values import Evaluation as Evaluation
from .values import Format as Format
from .values import Goal as Goal
from .values import LatencyTable as LatencyTable
from .values import Layer as Layer
from .values import Plan as Plan
from .values import Resources as Resources
from .values import Scores as Scores
from .values import Scoring as Scoring
from .values import Settings as Settings
from .values import Target as Target
from .values.blame import Blame as Blame
from .values.curve import Curve as Curve
from .values.trial import Compared as Compared
from .values.verdict import Verdict as Verdict
from .exporters.runtimes.onnxruntime import Ran
from .pipeline.compare import Names
from .pipeline.judge import Evaluate
from collections.abc import Callable
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from typing import TypedDict
from typing import Unpack

__version__: str
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
    "Verdict",
    "__version__",
    "blame",
    "capture",
    "compare",
    "evaluate",
    "evaluate_file",
    "export",
    "frontier",
    "import_cutlass",
    "judge",
    "layers",
    "load",
    "load_samples",
    "metric",
    "quantize",
    "report",
    "run_recipe",
    "sensitivity",
]

class _Resources(TypedDict, total=False):
    workers: int | None
    ray: str | None
    memory: str | int | None

class _Scoring(TypedDict, total=False):
    metric: str
    score_format: str | None
    pairs: str
    loss: str
    clip: str
    trace: str
    estimator: str
    probes: int
    tolerance: float
    size_penalty: float
    until_stable: float | None
    probe_seed: int

class _Goal(TypedDict, total=False):
    target: Target | str | float | None
    max_drop: float | None
    max_perplexity: str | None
    destination: str | Path | None
    latency: LatencyTable | str | Path | None
    runtime_threads: int
    budget: str | None
    max_size: str | None
    objective: str
    formats: str | Format | Sequence[str | Format]
    keep: Sequence[str]
    search: str
    evaluations: int
    guide: str
    confidence: str | float | None

class _Settings(TypedDict, total=False):
    draw: int | None
    seed: int
    hold_out: bool
    mean: float | Sequence[float] | None
    std: float | Sequence[float] | None
    scale: float | None
    columns: Sequence[str]
    max_length: int | None
    stride: int | None
    group_by: str | None
    processor: Any
    task: str | Task | Callable[..., Any]
    output: str | None
    placement: str
    rounding: str
    refit: bool
    bias_correction: bool
    range: str
    percentile: float
    sign: str | None
    batch_size: int | None
    threads: int | None
    embeddings: bool
    device: str | None

class _Blame(_Resources): ...

def blame(
    run: str | Path,
    *,
    resources: Resources = ...,
    plan: str | Path | Plan | None = ...,
    format: str | Format | None = ...,
    layer: str | None = ...,
    samples: int = ...,
    latency: Any = ...,
    destination: Any = ...,
    task: Any = ...,
    trust: bool = ...,
    progress: Progress | None = ...,
    **options: Unpack[_Blame],
) -> Blame: ...

class _Compare(_Scoring, _Goal, _Resources): ...

def compare(
    run: str | Path,
    *,
    metrics: Names = ...,
    searches: Names = ...,
    methods: Names = ...,
    targets: Any = ...,
    draws: int = ...,
    scoring: Scoring = ...,
    goal: Goal = ...,
    resources: Resources = ...,
    test_data: Any = ...,
    test_draw: int | None = ...,
    task: Any = ...,
    trust: bool = ...,
    progress: Progress | None = ...,
    **options: Unpack[_Compare],
) -> Compared: ...

class _Evaluate(_Settings, _Resources): ...

def evaluate(
    model: Any,
    data: Any = ...,
    *,
    settings: Settings = ...,
    resources: Resources = ...,
    method: str | None = ...,
    calibration: Any = ...,
    plan: str | Path | Plan | None = ...,
    format: str | Format | None = ...,
    trust: bool = ...,
    progress: Progress | None = ...,
    **options: Unpack[_Evaluate],
) -> Judgement: ...

class _EvaluateFile(_Settings): ...

def evaluate_file(
    path: str | Path,
    data: Any,
    *,
    settings: Settings = ...,
    runtime: str = ...,
    progress: Progress | None = ...,
    **options: Unpack[_EvaluateFile],
) -> Ran: ...

class _Frontier(_Goal, _Resources): ...

def frontier(
    run: str | Path,
    *,
    targets: Any = ...,
    goal: Goal = ...,
    resources: Resources = ...,
    test_data: Any = ...,
    task: Any = ...,
    trust: bool = ...,
    progress: Progress | None = ...,
    **options: Unpack[_Frontier],
) -> Curve: ...

class _Quantize(_Settings, _Scoring, _Goal, _Resources): ...

def quantize(
    model: Any,
    data: Any = ...,
    *,
    method: str | None = ...,
    settings: Settings = ...,
    scoring: Scoring = ...,
    goal: Goal = ...,
    resources: Resources = ...,
    test_data: Any = ...,
    validation_data: Any = ...,
    evaluate: Evaluate | None = ...,
    out: str | Path | None = ...,
    export: str | Path | None = ...,
    fresh: bool = ...,
    trust: bool = ...,
    progress: Progress | None = ...,
    **options: Unpack[_Quantize],
) -> Result: ...

class _RunRecipe(_Settings, _Scoring, _Goal, _Resources): ...

def run_recipe(
    recipe: str | Path,
    data: Any = ...,
    *,
    model: Any = ...,
    method: str | None = ...,
    settings: Settings = ...,
    scoring: Scoring = ...,
    goal: Goal = ...,
    resources: Resources = ...,
    test_data: Any = ...,
    validation_data: Any = ...,
    out: str | Path | None = ...,
    export: str | Path | None = ...,
    fresh: bool = ...,
    trust: bool = ...,
    progress: Progress | None = ...,
    **options: Unpack[_RunRecipe],
) -> tuple[Result, ...]: ...

class _Judge(_Settings): ...

def judge(
    float_file: Any,
    files: Sequence[str | Path] | str | Path,
    data: Any = ...,
    *,
    settings: Settings = ...,
    target: Target | str | float | None = ...,
    max_drop: float | None = ...,
    confidence: Any = ...,
    runtime: str = ...,
    timed: bool = ...,
    page: str | Path | None = ...,
    trust: bool = ...,
    progress: Progress | None = ...,
    **options: Unpack[_Judge],
) -> Verdict: ...

class _Sensitivity(_Settings, _Scoring, _Resources): ...

def sensitivity(
    model: Any,
    data: Any = ...,
    *,
    settings: Settings = ...,
    scoring: Scoring = ...,
    resources: Resources = ...,
    method: str | None = ...,
    out: str | Path | None = ...,
    fresh: bool = ...,
    trust: bool = ...,
    progress: Progress | None = ...,
    **options: Unpack[_Sensitivity],
) -> Scores: ...
