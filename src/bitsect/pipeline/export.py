"""export: a run's plan as a file that runs, proven to be the model that was judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import RunError
from ..exporters.deliver import Delivery, Request, deliver
from ..runs.opening import OrElse, open_run
from ..runs.progress import Progress
from ..runs.run import Run
from ..solve.looks import ONLY_EXPECTED
from ..values import Format, Plan, Settings, Target
from ..values.destination import DESTINATIONS
from .methods import noted_in
from .perplexity import in_tokens
from .plans import is_name, parse_format, plan_for
from .promise import is_vouched_by_others, judged_before
from .rows import tested_on


def export(
    run: str | Path,
    path: str | Path,
    *,
    plan: str | Path | Plan | None = None,
    format: str | Format | None = None,
    destination: str | None = None,
    data: Any = None,
    draw: int | None = None,
    force: bool = False,
    require_speedup: bool = False,
    task: Any = None,
    trust: bool = False,
    progress: Progress | None = None,
) -> Delivery:
    """The run's plan (or another) written to `path`, and what came of proving it.

    Arguments:
        run: the folder of a run.
        path: the file to write: .onnx for runtimes, .pt2 for torch.export.load, .safetensors, codes and
            scales, for bitsect.load, or without an ending, a folder as of transformers.
        plan: another plan than the run's own: a file, or what the run calls it.
        format: or one format for all layers.
        destination: for .onnx: onnxruntime or openvino, for their integer kernels, or portable, plain ONNX
            with 4-bit tensors packed; default: what the run was made for, else onnxruntime.
        data: samples to prove the file on, as for quantize; default: the run's test samples, else its own.
        draw: take so many of them, at random; default: all.
        force: overwrite a file, and keep what is written where a check fails. In Python `.failures` say
            which.
        require_speedup: count a model that is slower than the float one as failed.
        task: the run's own task again, if that is a function of yours.
        trust, progress: as for `quantize`.
    """
    wanted, made_for = parse_format(plan, format), noted_in(run, "destination")
    made_for = made_for if made_for in DESTINATIONS else None
    request = Request(Path(path), destination, force, require_speedup, made_for)
    request.check()
    settings = Settings() if task is None else Settings(task=task)
    with open_run(run, OrElse(None, data), settings, trust=trust, progress=progress) as opened:
        own = plan is None and wanted is None
        chosen, known = plan_for(opened, plan, wanted), _answered(opened, plan) if wanted is None else None
        if own and not (opened.folder.path / "plan.json").exists():
            raise RunError(f"{run} holds no plan yet: `bitsect search {run} --target 99%` finds one")
        if own and known is None:
            raise RunError(
                f"{run} holds no result.json, so that its target is not known: `bitsect search {run} "
                f"--target 99%` makes it again; [plan={run}/plan.json] exports without a target"
            )
        known = known or {}
        target = known.get("target") if known.get("judge") is None else None
        edited = bool(known) and known.get("plan_key") != chosen.key
        verdict = None if edited else (known.get("promise") or {}).get("verdict")
        vouched = is_vouched_by_others(verdict, opened)
        samples = tested_on(opened) if data is None else None
        samples = opened.load(samples or (opened.samples if data is None else data), draw=draw)
        held_to = None if target is None else in_tokens(Target.parse(target), opened)
        before = None if edited else judged_before(known.get("promise"))
        delivery = deliver(opened, chosen, request, held_to, samples, vouched=vouched, before=before)
    remarks = []
    if edited:
        named = "plan.json" if own else f"plans/{plan}.json"
        remarks.append(f"{named} of {run} is not the plan that its search found: it was edited")
    if vouched and str(verdict).startswith(ONLY_EXPECTED):
        remarks.append(f"the target of {target} is expected to be kept, but its samples cannot prove it")
    elif vouched:
        remarks.append(f"the target of {target} was judged on other samples: {verdict}")
    if known.get("judge") is not None and known.get("target") is not None:
        remarks.append(
            f"the target of {known['target']} was judged by your own function '{known['judge']}', which is "
            "not called here"
        )
    return replace(delivery, remarks=(*delivery.remarks, *remarks))


def _answered(run: Run, plan: Any) -> dict[str, Any] | None:
    """What the search wrote down that answered with `plan`: the last one, or the one of that name.

    A plan that answered no search, as one read off a frontier, has no target to be held to.
    """
    if plan is None:
        return run.folder.read_json("result.json")
    return run.folder.read_json(f"results/{plan}.json") if is_name(plan) else None
