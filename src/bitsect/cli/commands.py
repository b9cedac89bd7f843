"""The commands: for each its verb, what everyday help shows, and what is said of what was found."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..errors import DataError, ExportError
from ..reports.terminal import answer, curve, files, network
from ..reports.terminal.blame import blame_lines
from ..reports.terminal.compare import compared_lines
from ..reports.terminal.screen import screen
from ..reports.text import as_json
from ..values.verdict import EXIT_CODES, MISSED, UNPROVEN
from .making import Asked, Said, made_of
from .output import stdout

if TYPE_CHECKING:
    from ..exporters.deliver import Delivery
    from ..exporters.runtimes.onnxruntime import Ran
    from ..network.program import Program
    from ..pipeline.evaluate import Judgement
    from ..pipeline.latency import Latencies
    from ..pipeline.result import Result
    from ..reports.story import Story
    from ..values import LatencyTable, Scores
    from ..values.blame import Blame
    from ..values.curve import Curve
    from ..values.trial import Compared
    from ..values.verdict import Verdict


# ---- choose --------------------------------------------------------------------------------------


def _quantize(asked: Asked) -> str:
    if "recipe" in asked:
        return "recipe:run_recipe"
    if "model" not in asked:
        raise typer.BadParameter("which network? Name one, or pass --recipe NAME", param_hint="MODEL")
    return "quantize:quantize"


@made_of(
    "quantize:quantize",
    "Choose",
    "data target destination out export test_data draw task",
    also={"recipe": "recipe:run_recipe"},
    choose=_quantize,
)
def quantize(found: Result | tuple[Result, ...], asked: Asked) -> Said:
    """Find the format of each layer that keeps a target; write it.

    bitsect quantize zoo:fashion-resnet --target 99% --out runs/first
    bitsect quantize mylab.models:net --data train.npz --target 99% -o runs/net
    bitsect quantize runs/net --target 99.5% --for openvino --export net.onnx
    """
    if not isinstance(found, tuple):
        return answered([found], found.to_json)
    return answered(found, lambda: {"results": [each.to_json() for each in found]})


@made_of(
    "search:search", "Choose", "target max_drop destination budget max_size formats keep export test_data"
)
def search(found: Result, asked: Asked) -> Said:
    """Solve a run again for another target, metric or budget.

    Nothing is measured twice.

    bitsect search runs/first --target 99.9%
    bitsect search runs/first --target 99% --keep first=float --keep last=int8
    bitsect search runs/first --max-size 0.4x
    """
    return answered([found], found.to_json)


def answered(results: Sequence[Result], json: Callable[[], Any]) -> Said:
    """Everything is kept and shown; but a script must not go on with a plan that may miss its target."""
    lines = (line for each in results for line in answer.result_lines(each))
    wanted = [each for each in results if each.target is not None]
    for met, outcome, words in ((False, MISSED, "not kept"), (None, UNPROVEN, "not proven to be kept")):
        targets = ", ".join(f"{each.target}" for each in wanted if each.target_met is met)
        if targets:
            code = EXIT_CODES[outcome]
            notes = [f"Target {targets} is {words}, so the exit code is {code}"]
            return Said(json, lines, notes=notes, code=code)
    return Said(json, lines)


@made_of("frontier:frontier", "Choose", "targets destination formats keep test_data csv", own="csv")
def frontier(found: Curve, asked: Asked) -> Said:
    """Show accuracy against cost, and the plan for each target.

    bitsect frontier runs/first
    bitsect frontier runs/first --targets 97%,98%,99%,99.5%
    bitsect frontier runs/first --csv curve.csv
    """
    rows = {"": found.points, **({"-targets": found.read_off} if found.read_off else {})}
    return Said(found.to_json, curve.curve_lines(found, shlex.quote(asked["run"])), csv=rows)


# ---- look ----------------------------------------------------------------------------------------


@made_of("show:show", "Look", "width", own="width")
def show(found: Story, asked: Asked) -> Said:
    """Show a run on one screen: the verdict, and every layer.

    bitsect show runs/first
    """
    width = asked.get("width") or min(stdout.width, 200)
    return Said(lambda: as_json(found), screen(found, width))


@made_of("report:report", "Look", "out open blame task", own="open")
def report(found: Path, asked: Asked) -> Said:
    """Show a run as one HTML page that explains itself.

    bitsect report runs/first --open
    bitsect report runs/first --blame -o report.html
    """
    if asked.get("open"):
        typer.launch(found.resolve().as_uri())
    size = found.stat().st_size
    return Said(lambda: {"report": str(found), "bytes": size}, [f"Report written to {found}"])


@made_of("layers:layers", "Look", "input_shape embeddings")
def layers(found: Program, asked: Asked) -> Said:
    """List the layers of a network, and what stays in float.

    bitsect layers zoo:fashion-resnet
    bitsect layers mylab.models:net --input-shape 3x224x224
    """
    from ..pipeline.layers import described

    told = described(asked["model"], found)
    return Said(lambda: told, network.layers_lines(told, stdout.width))


@made_of("latency:latency", "Look", "table formats threads input_shape")
def latency(found: Latencies, asked: Asked) -> Said:
    """Show what each layer takes by format, where it will run.

    bitsect latency zoo:fashion-resnet --for onnxruntime
    bitsect latency paper:resnet50 --for a100 --formats int8,int4
    """
    return Said(found.to_json, network.latency_lines(found))


# ---- why -----------------------------------------------------------------------------------------


@made_of("blame:blame", "Why", "plan format layer samples destination csv", own="csv")
def blame(found: Blame, asked: Asked) -> Said:
    """Say which layers a plan loses most by, why, and what helps.

    bitsect blame runs/first
    bitsect blame runs/first --format int4 --layer 'blocks.*'
    bitsect blame runs/first --plan plans/99-percent.json --csv blame.csv
    """
    return Said(found.to_json, blame_lines(found), csv={"": found.layers})


@made_of("sensitivity:sensitivity", "Why", "data metric score_format draw out")
def sensitivity(found: Scores, asked: Asked) -> Said:
    """Score the layers by how much rounding them hurts.

    bitsect sensitivity runs/first
    bitsect sensitivity zoo:fashion-mobilenet --metric hessian --draw 512
    """
    listed = {"layers": network.scored(found)}
    return Said(lambda: found.to_json() | listed, network.scores_lines(found, asked.get("until_stable")))


# ---- deliver -------------------------------------------------------------------------------------


@made_of("export:export", "Deliver", "path destination plan format data force require_speedup")
def export(found: Delivery, asked: Asked) -> Said:
    """Write a run's model to a file, and prove it by running it.

    bitsect export runs/first --out first.onnx
    bitsect export runs/first -o first.safetensors --plan frontier-99-percent
    bitsect export runs/first -o first.onnx --data test.npz --require-speedup
    """
    error = ExportError(found.complaint) if found.failures else None
    return Said(found.to_json, files.delivery_lines(found), error=error)


def _evaluate(asked: Asked) -> str:
    if not asked["model"].endswith(".onnx"):
        if "runtime" in asked:
            raise typer.BadParameter("is for an ONNX file", param_hint="--runtime")
        return "evaluate:evaluate"
    for name in ("plan", "format", "calibration", "method"):
        if name in asked:
            raise typer.BadParameter(
                "does not apply to an ONNX file, whose formats and ranges are fixed", param_hint=f"--{name}"
            )
    if "data" not in asked:
        raise DataError("samples are needed: pass [data=FILE], a folder of images, or zoo:fashion-test")
    asked["path"] = asked["model"]
    return "evaluate:evaluate_file"


@made_of(
    "evaluate:evaluate",
    "Deliver",
    "data plan format runtime draw task",
    also={"runtime": "evaluate:evaluate_file"},
    choose=_evaluate,
)
def evaluate(found: Judgement | Ran, asked: Asked) -> Said:
    """Judge a network under a plan, or an ONNX file as it is.

    bitsect evaluate runs/first --data test.npz
    bitsect evaluate zoo:fashion-resnet --format int4
    bitsect evaluate first.onnx --data test.npz --runtime openvino
    """
    lines: Any = files.ran_lines if "path" in asked else answer.judgement_lines
    return Said(found.to_json, lines(found))


# ---- compare -------------------------------------------------------------------------------------


@made_of("referee:judge", "Compare", "data target max_drop confidence runtime timed page")
def judge(found: Verdict, asked: Asked) -> Said:
    """Judge quantised files of any tool beside the float one.

    The exit code is 0 where all files are proven to keep the target, 3 where some are not proven,
    and 1 where some miss it or do not run.

    bitsect judge float.onnx int8.onnx --data test.npz --target 99%
    bitsect judge float.onnx theirs.onnx ours.onnx --data test.npz --page v.html
    """
    notes = [f"Page written to {asked['page']}"] if "page" in asked else []
    return Said(found.to_json, files.verdict_lines(found), notes=notes, code=found.exit_code)


@made_of("compare:compare", "Compare", "metrics searches methods targets draws test_data csv", own="csv")
def compare(found: Compared, asked: Asked) -> Said:
    """Try metrics, searches and methods side by side.

    bitsect compare runs/first --metrics all
    bitsect compare runs/first --metrics sqnr,damage --targets 98%,99% --draws 5
    """
    rows = {"": found.standings, "-draws": found.trials}
    return Said(found.to_json, compared_lines(found), csv=rows)


@made_of("import_latency:import_latency", "Besides", "out model device")
def import_latency(found: LatencyTable, asked: Asked) -> Said:
    """Make a latency table of what other profilers measured.

    bitsect import-latency a.gemm.csv a.conv2d.csv --device A100 --out table.json
    bitsect import-latency float=a.json int8=b.json --model net.pt2 -o table.json
    """
    out, formats = asked["out"], [format.name for format in found.formats]
    told = {"table": out, "rows": len(found.rows), "formats": formats, "device": found.device}
    return Said(lambda: told, [f"{out}: {len(found.rows)} shapes in {', '.join(formats)}"])
