"""Options that several commands share: a dataclass for each group, declared once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import typer

from .app import MACHINE, DeviceOption, EmbeddingsOption, InputShapeOption, TrustOption, app

DATA = "FILE.npz, FILE.safetensors, a folder of images (one sub-folder per class) or zoo:NAME"
METRICS = "aughessian, hessian, interlayer, single, sqnr, fisher, hawq, random or package.module:function"


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Make `function` a command, whose parameters that are dataclasses become an option for each field."""
    signature = inspect.signature(function, eval_str=True)
    groups: dict[str, Any] = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if is_dataclass(parameter.annotation)
    }

    def call(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        function(**given)

    parameters = []
    for parameter in signature.parameters.values():
        if parameter.name in groups:
            group = groups[parameter.name]
            hints = get_type_hints(group, include_extras=True)
            parameters += [(field.name, hints[field.name], field.default) for field in fields(group)]
        else:
            parameters.append((parameter.name, parameter.annotation, parameter.default))
    call.__name__, call.__doc__ = function.__name__, function.__doc__
    call.__annotations__ = {name: annotation for name, annotation, _ in parameters}
    vars(call)["__signature__"] = inspect.Signature(
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
            for name, annotation, default in parameters
        ]
    )
    app.command()(call)
    return function


def _option(panel: str, help: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


SAMPLES, ROUNDING, GOAL, SENSITIVITY, RUN = "Samples", "Rounding", "Goal", "Sensitivity", "Run"

TestDataOption = Annotated[str | None, _option(SAMPLES, "Samples the search does not see.")]
SeedOption = Annotated[int, _option(SENSITIVITY, "Seed of the random metric.")]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The folder of a run.")]
OutOption = Annotated[str | None, _option(RUN, "The run folder; the same one is continued.", "--out", "-o")]
FreshOption = Annotated[bool, _option(RUN, "Start anew: remove the run in the folder.", "--fresh")]
TaskOption = Annotated[
    str | None,
    _option(SAMPLES, "classification (default), classification-top5, binary or package.module:function."),
]


@dataclass(frozen=True)
class Opening:
    """What a run is of, besides its network."""

    data: Annotated[str | None, _option(SAMPLES, f"{DATA}.")] = None
    samples: Annotated[int | None, _option(SAMPLES, "Draw so many samples; default: all.")] = None
    seed: Annotated[
        int | None,
        _option(SAMPLES, "Seed of the samples' order and draw, and of the random metric; default: 0."),
    ] = None
    mean: Annotated[
        list[float] | None, _option(SAMPLES, "Pixels become (x·scale − mean)/std; repeat for each channel.")
    ] = None
    std: Annotated[list[float] | None, _option(SAMPLES, "See --mean.")] = None
    scale: Annotated[float | None, _option(SAMPLES, "See --mean; default: 1/255.")] = None
    task: TaskOption = None
    output: Annotated[
        str | None, _option(SAMPLES, "The output that is judged, where the network gives several.")
    ] = None
    placement: Annotated[
        str | None, _option(ROUNDING, "Where values are rounded: paper (default) or onnxruntime.")
    ] = None
    rounding: Annotated[
        str | None, _option(ROUNDING, "How weights round: squant (default), nearest or gptq.")
    ] = None
    refit: Annotated[
        bool | None,
        _option(ROUNDING, "With gptq: fit weights to the rounded inputs; default.", "--refit/--no-refit"),
    ] = None
    bias_correction: Annotated[
        bool | None,
        _option(
            ROUNDING,
            "With gptq: correct the mean error of each channel by a bias; default.",
            "--bias-correction/--no-bias-correction",
        ),
    ] = None
    range: Annotated[
        str | None, _option(ROUNDING, "How ranges are set: percentile (default), mse or max.")
    ] = None
    percentile: Annotated[
        float | None, _option(ROUNDING, "Of |x|, for --range percentile; default: 99.999.")
    ] = None
    sign: Annotated[
        str | None,
        _option(
            ROUNDING,
            "signed, or auto: unsigned codes where nothing is negative; default: as the placement has it.",
        ),
    ] = None
    batch_size: Annotated[
        int | None, _option(MACHINE, "Fixed for a run, as bits depend on it; default: 64.")
    ] = None
    threads: Annotated[
        int | None,
        _option(MACHINE, "Fixed for a run, as bits depend on it; default: as many as torch takes."),
    ] = None
    embeddings: EmbeddingsOption = False
    input_shape: InputShapeOption = None
    trust: TrustOption = False
    device: DeviceOption = None

    def arguments(self) -> dict[str, Any]:
        """As `open_run` takes them, the samples themselves left out."""
        chosen = (
            "placement",
            "rounding",
            "refit",
            "bias_correction",
            "range",
            "percentile",
            "sign",
            "batch_size",
            "threads",
        )
        pixels = {"mean": _per_channel(self.mean), "std": _per_channel(self.std), "scale": self.scale}
        return {
            "draw": self.samples,
            "seed": self.seed,
            "data_options": {name: value for name, value in pixels.items() if value is not None},
            "task": self.task,
            "output": self.output,
            "settings": {
                **{name: getattr(self, name) for name in chosen if getattr(self, name) is not None},
                **({"embeddings": True} if self.embeddings else {}),
            },
            "input_shape": self.input_shape,
            "trust": self.trust,
            "device": self.device,
        }


@dataclass(frozen=True)
class Measuring:
    """How layers are scored."""

    metric: Annotated[str, _option(SENSITIVITY, f"What orders the layers: {METRICS}.")] = "aughessian"
    pairs: Annotated[str, _option(SENSITIVITY, "exact, or linear: one part-pass per layer.")] = "exact"
    loss: Annotated[str, _option(SENSITIVITY, "What pairs are judged by: task or kl.")] = "task"
    clip: Annotated[str, _option(SENSITIVITY, "Clip excess loss at zero by pair or by sum.")] = "pair"
    trace: Annotated[str, _option(SENSITIVITY, "mean_trace (per weight) or trace.")] = "mean_trace"
    size_penalty: Annotated[float, _option(SENSITIVITY, "λ of the penalty on a layer's weights.")] = 0.0
    estimator: Annotated[
        str, _option(SENSITIVITY, "How Hessian traces are found: gauss-newton or hutchinson.")
    ] = "gauss-newton"
    probes: Annotated[
        int,
        _option(
            SENSITIVITY, "Hessian probes at most, each through all samples; fewer if 5 % is reached.", min=1
        ),
    ] = 64

    def arguments(self, seed: int | None = None) -> dict[str, Any]:
        from ..solve.metrics import Options

        return {
            "metric": self.metric,
            "measuring": {
                "pairs": self.pairs,
                "loss": self.loss,
                "estimator": self.estimator,
                "probes": self.probes,
            },
            "options": Options(self.clip, self.trace, self.size_penalty, seed or 0),
        }


@dataclass(frozen=True)
class Goal:
    """What a plan must keep, and what it may be made of."""

    target: Annotated[str | None, _option(GOAL, "Share of the float accuracy to keep, as 99.9%.")] = None
    max_drop: Annotated[float | None, _option(GOAL, "Or: percentage points that may be lost.")] = None
    latency: Annotated[str | None, _option(GOAL, "Latency table: a100 or FILE.json.")] = None
    budget: Annotated[str | None, _option(GOAL, "Latency at most: 0.8x of 16 bit, or 3ms.")] = None
    max_size: Annotated[str | None, _option(GOAL, "Size at most: 12MB, or 0.5x of 16 bit.")] = None
    objective: Annotated[
        str, _option(GOAL, "With a table: latency (no layer takes a format that is not faster) or size.")
    ] = "latency"
    formats: Annotated[str, _option(GOAL, "Formats to choose from, besides float.")] = "int8,int4"
    keep: Annotated[
        list[str] | None,
        _option(
            GOAL,
            "PATTERN=FORMAT[,FORMAT…] limits layers to formats; PATTERN is a name, a glob, first, last "
            "or kind:depthwise.",
        ),
    ] = None
    search: Annotated[
        str, _option(GOAL, "bisection, frontier, literal, progressive or package.module:function.")
    ] = "bisection"
    score_format: Annotated[
        str | None,
        _option(GOAL, "Format the layers are scored in; each: every step in its own; default: the highest."),
    ] = None

    def arguments(self) -> dict[str, Any]:
        from ..values import Target

        if self.target is not None and self.max_drop is not None:
            raise typer.BadParameter("pass --target or --max-drop, not both")
        return {
            "target": self.target if self.max_drop is None else Target.drop(self.max_drop),
            "latency": self.latency,
            "budget": self.budget,
            "max_size": self.max_size,
            "objective": self.objective,
            "formats": [name.strip() for name in self.formats.split(",") if name.strip()],
            "keep": self.keep or (),
            "search": self.search,
            "score_format": self.score_format,
        }


def run_folder(run: str) -> None:
    """Refuse what is not the folder of a run."""
    from ..errors import RunError
    from ..runs.opening import is_folder

    if not is_folder(run):
        raise RunError(f"{run} is not the folder of a run: `bitsect quantize MODEL --out {run}` makes one")


def run_of(model: str, out: str | None = None) -> str | None:
    """The folder that keeps what a command finds, if one does."""
    from ..runs.opening import is_folder

    return model if is_folder(model) else out


def zoo_data(model: str, data: str | None, name: str = "calibration") -> str | None:
    """The samples that a network of the zoo brings along."""
    return f"zoo:fashion-{name}" if data is None and model.startswith("zoo:") else data


def _per_channel(values: list[float] | None) -> float | list[float] | None:
    """A single value serves every channel."""
    return values[0] if values and len(values) == 1 else values or None
