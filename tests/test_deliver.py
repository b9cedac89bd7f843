"""From a finished run to a file: judged again where it will run, proven, and kept or refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

import bitsect
from bitsect.errors import DataError, ExportError, OptionError, RunError
from bitsect.exporters import EXPORTERS
from bitsect.exporters.deliver import Delivery, _put_in_place
from bitsect.exporters.onnx.exporter import ONNX
from bitsect.exporters.onnx.write import Written
from bitsect.exporters.proof import Proof
from bitsect.pipeline.evaluate import evaluate_file
from bitsect.pipeline.export import export
from bitsect.pipeline.result import Result
from bitsect.values import INT4, INT8, Format, Plan, Target
from tiny import Residual, images, refill

SAMPLES = 48


@cache
def network() -> nn.Module:
    """Answers that differ from image to image: no bias decides them."""
    model = refill(Residual())
    with torch.no_grad():
        model.head.bias -= model(images(64)[0]).mean(0)
    return model


def labelled(count: int = SAMPLES, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Images with the float network's own answers: it gets everything right."""
    x, _ = images(count, seed)
    with torch.no_grad():
        return x, network()(x).argmax(1)


def quantize(**options: Any) -> Result:
    """A run that is cheap: only int8, one pass for the scores."""
    options = {"target": 0.8, "formats": ["int8"], "metric": "sqnr", "destination": "bits"} | options
    return bitsect.quantize(network(), labelled(), **options)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A finished run under the paper's placement."""
    return quantize(out=tmp_path_factory.mktemp("made") / "run")


@pytest.fixture(scope="module")
def delivered(made: Result) -> Delivery:
    return made.export(made.run.folder.path.parent / "model.onnx", data=labelled(80, seed=2))


@pytest.fixture
def run(made: Result, delivered: Delivery, tmp_path: Path) -> Path:
    """A copy of the run, in which nothing has to be judged again."""
    return Path(shutil.copytree(made.run.folder.path, tmp_path / "run"))


@pytest.fixture
def tampered(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the exporter write another model than it should, or the proof find something else."""

    def tamper(model: Callable[[Any], None] = lambda model: None, **found: Any) -> None:
        def write_other(*args: Any, **options: Any) -> Written:
            exported = ONNX.write(*args, **options)
            changed = onnx.load(exported.path)
            model(changed)
            onnx.save(changed, exported.path)
            return exported

        def prove_other(*args: Any, **options: Any) -> Proof:
            return replace(ONNX.prove(*args, **options), **found)

        monkeypatch.setitem(EXPORTERS, ".onnx", replace(ONNX, write=write_other, prove=prove_other))

    return tamper


def negate_head(model: onnx.ModelProto) -> None:
    """The last layer answers the contrary."""
    (weight,) = [each for each in model.graph.initializer if each.name == "head.weight.codes"]
    weight.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(weight), weight.name))


# ---- what is delivered ---------------------------------------------------------------------------


def test_a_run_under_another_placement_is_judged_again_and_both_figures_are_said(
    made: Result, delivered: Delivery
) -> None:
    assert list(delivered.judged) == ["paper", "onnxruntime"]
    assert delivered.judged["paper"].accuracy == made.accuracy
    assert delivered.float.accuracy == 1
    assert delivered.target == made.target
    assert delivered.target_kept
    assert (made.run.folder.path / "under-onnxruntime" / "ranges.json").exists()


def test_the_proof_is_on_the_samples_that_were_given(delivered: Delivery) -> None:
    proof = delivered.proof
    assert (proof.samples, proof.differing, proof.identical) == (80, (), 80)
    assert proof.judged_accuracy == proof.runtime_accuracy
    assert proof.float_kernels == ()
    assert proof.kernels is not None
    assert proof.kernels["QLinearConv"] == 7
    assert proof.kernels["QLinearAdd"] >= 2
    assert proof.latency_ms is not None
    assert proof.size_bytes == delivered.path.stat().st_size
    assert not delivered.failures


def test_the_file_says_what_it_is(made: Result, delivered: Delivery) -> None:
    about = {each.key: each.value for each in onnx.load(delivered.path).metadata_props}
    assert Plan.from_json(json.loads(about["bitsect.plan"]), made.run.program.layers) == made.plan
    assert about["bitsect.program"] == made.run.program.fingerprint
    assert about["bitsect.data"] == made.run.samples.fingerprint()
    assert Target.parse(about["bitsect.target"]) == made.target
    assert about["bitsect.version"] == bitsect.__version__
    assert str(Path.home()).encode() not in delivered.path.read_bytes()


def test_a_delivery_as_json(delivered: Delivery) -> None:
    data = json.loads(json.dumps(delivered.to_json(), allow_nan=False))
    assert data["file"] == str(delivered.path)
    assert data["proven"] is True
    assert data["judged"].keys() == {"paper", "onnxruntime"}
    assert data["failures"] == []
    assert data["proof"]["latency_ratio"] > 0


def test_a_file_is_judged_alone(delivered: Delivery) -> None:
    ran = evaluate_file(delivered.path, labelled(80, seed=2))
    assert ran.accuracy == delivered.proof.runtime_accuracy
    assert ran.samples == 80
    assert ran.latency_ms is not None
    assert ran.runtime.startswith("onnxruntime")
    few = evaluate_file(delivered.path, labelled(80, seed=2), draw=5, runtime="reference")
    assert (few.samples, few.latency_ms) == (5, None)


def test_a_run_for_the_runtime_is_not_judged_again(tmp_path: Path) -> None:
    asked = {"method": "paper", "formats": ["int8", "int4"], "target": 0.7}
    result = quantize(settings={"placement": "onnxruntime"}, **asked)
    delivery = result.export(tmp_path / "model.onnx")
    assert delivery.judged == {"onnxruntime": result.rows[-1].evaluation}
    assert delivery.proof.samples == SAMPLES
    assert not (result.run.folder.path / "under-onnxruntime").exists()
    assert any("8-bit tensors" in line for line in delivery.notes) is (INT4 in result.plan.values())


def test_a_portable_file_is_judged_as_the_paper_has_it(run: Path, tmp_path: Path) -> None:
    delivery = export(run, tmp_path / "model.onnx", destination="portable", format="int4", force=True)
    assert list(delivery.judged) == ["paper"]
    assert delivery.proof.runtime.endswith("reference evaluator")
    assert delivery.proof.latency_ratio is None
    assert delivery.proof.holds


def test_a_run_works_alone(run: Path, tmp_path: Path) -> None:
    """The network was a Python object: the folder is all there is."""
    delivery = export(run, tmp_path / "model.onnx", draw=20)
    assert delivery.proof.samples == 20
    assert delivery.kept


def test_the_users_own_judge_does_not_bind_the_file(tmp_path: Path) -> None:
    result = quantize(evaluate=lambda network: 0.5, out=tmp_path / "run")
    assert set(result.plan.values()) == {INT8}
    assert export(tmp_path / "run", tmp_path / "model.onnx").target is None


class Answers(nn.Module):
    """Outputs by name, one of them of whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.inner(x)
        return {"logits": logits, "best": logits.argmax(1)}


def test_outputs_by_name_are_compared_by_name(tmp_path: Path) -> None:
    result = bitsect.quantize(
        Answers(), labelled(), method="paper", target=0.8, formats=["int8"], metric="sqnr"
    )
    delivery = result.export(tmp_path / "model.onnx")
    assert delivery.proof.identical == SAMPLES
    assert [each.name for each in onnx.load(delivery.path).graph.output] == ["logits", "best"]


def test_weight_only_layers_are_proven_with_their_inputs_as_they_are(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 5)).eval()
    x = torch.randn(96, 32)
    with torch.no_grad():
        samples = x, model(x).argmax(1)
    result = bitsect.quantize(
        model, samples, target=0.5, formats=["w4a16", "int8"], metric="sqnr", destination="bits"
    )
    formats = [Format.parse("w4a16"), INT8, Format.parse("w4a16")]
    plan = Plan(dict(zip(result.plan, formats, strict=True)))
    delivery = replace(result, found=replace(result.found, plan=plan)).export(tmp_path / "model.onnx")
    assert delivery.proof.kernels is not None
    assert delivery.proof.kernels["MatMulNBits"] == 2
    assert delivery.proof.ties.explain
    assert any("rounds the inputs of weight-only layers" in line for line in delivery.notes)


def test_what_a_killed_export_left_is_swept(run: Path, tmp_path: Path) -> None:
    left = tmp_path / ".model.onnx.bitsect-999999999"
    left.mkdir()
    (left / "model.onnx").write_text("half")
    assert export(run, tmp_path / "model.onnx", draw=8).kept
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "run"]


# ---- what is refused -----------------------------------------------------------------------------


def test_nothing_is_overwritten_without_being_asked(run: Path, tmp_path: Path) -> None:
    place = tmp_path / "model.onnx"
    place.write_text("mine")
    with pytest.raises(ExportError, match="exists: pass force=True to overwrite it"):
        export(run, place)
    with pytest.raises(ExportError, match="is a folder: name a file in it"):
        export(run, tmp_path)
    assert place.read_text() == "mine"
    assert export(run, place, force=True).kept
    onnx.checker.check_model(str(place), full_check=True)


def test_another_model_than_the_judged_one_is_refused(
    run: Path, tmp_path: Path, tampered: Callable[..., None]
) -> None:
    tampered(negate_head)
    delivery = export(run, tmp_path / "model.onnx")
    assert not delivery.kept
    assert "predictions differ in onnxruntime" in delivery.complaint
    assert f"samples {delivery.proof.differing[0]}, " in delivery.complaint
    assert "not written; [force=True] keeps it" in delivery.complaint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
    kept = export(run, tmp_path / "model.onnx", force=True)
    assert kept.failures == delivery.failures
    assert (tmp_path / "model.onnx").exists()


def triple(model: onnx.ModelProto) -> None:
    """All outputs times three: the same predictions."""
    graph, name = model.graph, model.graph.output[0].name
    for node in graph.node:
        node.output[:] = ["before" if output == name else output for output in node.output]
    graph.initializer.append(numpy_helper.from_array(np.array(3, np.float32), "three"))
    graph.node.append(onnx.helper.make_node("Mul", ["before", "three"], [name]))


@pytest.mark.parametrize("destination", ["onnxruntime", "portable"])
def test_the_same_predictions_by_other_outputs_are_refused(
    destination: str, run: Path, tmp_path: Path, tampered: Callable[..., None]
) -> None:
    tampered(triple)
    delivery = export(run, tmp_path / "model.onnx", destination=destination)
    assert delivery.proof.differing == ()
    assert any("outputs differ by up to 200" in failure for failure in delivery.failures)
    assert not delivery.kept


def test_a_model_below_the_target_is_refused(made: Result, tmp_path: Path) -> None:
    coarse = Plan.uniform(made.run.program.layers, INT4)
    goal = replace(made.goal, target="100%")
    result = replace(made, goal=goal, found=replace(made.found, plan=coarse))
    with pytest.raises(ExportError, match=r"misses the target of 100% with \d+\.\d+% .float 100.00%."):
        result.export(tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_plan_is_held_to_the_target_of_the_search_that_found_it(run: Path, tmp_path: Path) -> None:
    first = json.loads((run / "result.json").read_text())["target"]
    (name,) = (path.stem for path in (run / "plans").glob("*.json"))
    bitsect.quantize(run, max_size="0.5x", metric="single")  # the last search has no target
    assert str(export(run, tmp_path / "first.pt2", plan=name).target) == first
    assert export(run, tmp_path / "last.pt2").target is None
    assert export(run, tmp_path / "file.pt2", plan=run / "plan.json").target is None
    assert export(run, tmp_path / "int8.pt2", format="int8").target is None


def test_slower_than_float_is_said_first_and_refused_on_request(
    run: Path, tmp_path: Path, tampered: Callable[..., None]
) -> None:
    tampered(latency_ms=2.0, float_latency_ms=1.0)
    delivery = export(run, tmp_path / "slow.onnx")
    assert str(delivery.proof).startswith("SLOWER than float: 2 ms against 1 ms")
    assert delivery.kept
    delivery = export(run, tmp_path / "model.onnx", require_speedup=True)
    assert delivery.failures == ("slower than float",)
    assert not (tmp_path / "model.onnx").exists()


def test_what_cannot_be_asked_for(run: Path, tmp_path: Path) -> None:
    place = tmp_path / "model.onnx"
    with pytest.raises(ExportError, match=r"the file name must end in one of \.onnx, .*model\.tflite"):
        export(run, tmp_path / "model.tflite")
    with pytest.raises(OptionError, match="unknown destination 'gpu': use onnxruntime, openvino or portable"):
        export(run, place, destination="gpu")
    with pytest.raises(ExportError, match="a portable file is not timed"):
        export(run, place, destination="portable", require_speedup=True)
    with pytest.raises(bitsect.BitsectError, match="pass either plan='FILE' or format='int8', not both"):
        export(run, place, plan="plan.json", format="int8")
    with pytest.raises(ExportError, match="a folder is written for networks that were given as hf:FOLDER"):
        export(run, tmp_path / "model")
    with pytest.raises(DataError, match="the network takes batch × 3 × 8 × 8"):
        export(run, place, data=torch.zeros(2, 3, 9, 9))
    (run / "plan.json").unlink()
    with pytest.raises(RunError, match="holds no plan yet: `bitsect search"):
        export(run, place)


# ---- files -------------------------------------------------------------------------------------------


def test_a_kill_between_weights_and_model_leaves_the_old_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, folder = tmp_path / "model.onnx", tmp_path / "draft"
    folder.mkdir()
    old, new = (f"model.onnx.{digit * 16}.data" for digit in "01")
    for path, text in ((place, "old"), (tmp_path / old, "old"), (tmp_path / "model.onnx.mine.data", "mine")):
        path.write_text(text)
    for name in ("model.onnx", new):
        (folder / name).write_text("new")
    move = Path.replace

    def killed(path: Path, target: Path) -> Path:
        if target == place:
            raise KeyboardInterrupt
        return move(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            _put_in_place(folder, place)
    assert (place.read_text(), (tmp_path / old).read_text()) == ("old", "old")
    (folder / new).write_text("new")
    _put_in_place(folder, place)
    assert (place.read_text(), (tmp_path / new).read_text()) == ("new", "new")
    left = {item.name for item in tmp_path.iterdir() if item.is_file()}
    assert left == {"model.onnx", new, "model.onnx.mine.data"}


def test_large_weights_are_replaced_with_their_model(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bitsect.exporters.onnx.write.LARGEST_FILE_BYTES", 100)
    place = tmp_path / "model.onnx"
    sizes = set()
    for format in ("int8", "float"):
        delivery = export(run, place, format=format, draw=4, force=True)
        (weights,) = tmp_path.glob("*.data")
        assert delivery.proof.size_bytes == place.stat().st_size + weights.stat().st_size
        sizes.add(weights.name)
    assert len(sizes) == 2
    assert evaluate_file(place, labelled(8)).accuracy == 1


def test_without_its_result_a_run_exports_no_plan_unchecked(run: Path, tmp_path: Path) -> None:
    (run / "result.json").unlink()
    with pytest.raises(RunError, match=r"no result\.json, so that its target is not known: `bitsect search"):
        export(run, tmp_path / "model.onnx")
    assert export(run, tmp_path / "model.onnx", plan=run / "plan.json", draw=4).target is None


def test_a_plan_that_was_edited_is_said(run: Path, tmp_path: Path, made: Result) -> None:
    plan = json.loads((run / "plan.json").read_text())
    plan["layers"] = dict.fromkeys(made.plan, "float")
    (run / "plan.json").write_text(json.dumps(plan))
    delivery = export(run, tmp_path / "model.onnx", draw=4)
    assert "is not the plan that its search found: it was edited" in delivery.notes[0]
