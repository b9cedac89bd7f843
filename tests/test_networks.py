"""Networks as users write them, with the default metric, from end to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal, weight_norm

import bitsect
from bitsect import Settings
from bitsect.errors import BitsectError, CaptureError, RunError
from bitsect.network.capture import capture
from bitsect.pipeline.result import Result
from odd_models import Block, Experts, double
from odd_models import one_thread as one_thread
from tiny import refill, seeded

FOR_RUNTIME = Settings(placement="onnxruntime", batch_size=8, threads=1)


def quantize(model: nn.Module, samples: Any, **options: Any) -> Result:
    options = {"target": "60%", "settings": FOR_RUNTIME, "destination": "bits", "probes": 8} | options
    return bitsect.quantize(model, samples, **options)


class MobileNet(nn.Module):
    """A block of MobileNetV3: Hardswish, depthwise, squeeze and excitation with Hardsigmoid, shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1, bias=False), nn.BatchNorm2d(4), nn.Hardswish())
        self.expand = nn.Sequential(nn.Conv2d(4, 8, 1, bias=False), nn.BatchNorm2d(8), nn.Hardswish())
        self.depthwise = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1, groups=8, bias=False), nn.BatchNorm2d(8))
        self.squeeze, self.excite = nn.Conv2d(8, 4, 1), nn.Sequential(nn.Conv2d(4, 8, 1), nn.Hardsigmoid())
        self.project = nn.Sequential(nn.Conv2d(8, 4, 1, bias=False), nn.BatchNorm2d(4))
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = F.hardswish(self.depthwise(self.expand(x)))
        gate = self.excite(torch.relu(self.squeeze(F.adaptive_avg_pool2d(y, 1))))
        return self.head((x + self.project(y * gate)).mean((2, 3)))


class Translator(nn.Module):
    """nn.Transformer with a causal mask, and a nn.MultiheadAttention with boolean masks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.both = nn.Transformer(8, 2, 1, 1, 8, batch_first=True)
        self.pool = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, source: Tensor, wanted: Tensor) -> Tensor:
        later = self.both.generate_square_subsequent_mask(wanted.size(1))
        x = self.both(self.embed(source), self.embed(wanted), tgt_mask=later)
        x = self.pool(x, x, x, attn_mask=later < 0, key_padding_mask=wanted == 0)[0]
        return self.head(x[:, -1])


class Routed(nn.Module):
    """Experts, of which one never gets a row, between weights that are parametrised."""

    def __init__(self) -> None:
        super().__init__()
        self.turn, self.scale = orthogonal(nn.Linear(8, 8)), weight_norm(nn.Linear(5, 5))
        self.experts = Experts(3, never=(1,))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale(self.experts(torch.tanh(self.turn(x))))


def tokens(*shape: int) -> Tensor:
    return torch.randint(1, 20, shape, generator=torch.Generator().manual_seed(0))


def translations() -> list[tuple[tuple[Tensor, Tensor]]]:
    wanted = tokens(16, 4)
    wanted[::3, 3:] = 0
    return [((tokens(16, 5), wanted),)]


def test_mobilenet_is_quantised_and_exported(tmp_path: Path) -> None:
    result = quantize(refill(MobileNet()), seeded(16, 3, 8, 8))
    assert result.target_met
    assert not result.export(tmp_path / "model.onnx").failures


def test_a_transformer_with_masks_is_quantised_and_exported(tmp_path: Path) -> None:
    torch.manual_seed(0)
    result = quantize(Translator().eval(), translations())
    assert {"both.decoder.layers.0.multihead_attn.kv", "pool.qk"} <= {*result.plan}
    assert not result.export(tmp_path / "model.onnx").failures


def test_an_expert_without_rows_has_a_range_a_note_and_a_place_in_the_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    result = quantize(Routed().eval(), seeded(24, 8), metric="fisher")
    (note,) = (note for note in result.notes if "no sample reaches" in note)
    assert "'experts.experts.1.0', 'experts.experts.1.2' (2 of 10 layers)" in note
    assert not result.export(tmp_path / "model.onnx").failures
    assert all(score == score for score in result.scores.values)


def test_the_hessian_of_experts_is_measured() -> None:
    torch.manual_seed(0)
    scores = bitsect.sensitivity(
        Experts(3, never=(1,)).eval(), seeded(12, 8), settings={"batch_size": 4}, probes=8
    )
    assert all(score == score for score in scores.values)


# Networks of no known kind


class Speller(nn.Module):
    """Letters at every time, time × batch × letters as the loss of CTC wants them, and how many there are."""

    def __init__(self) -> None:
        super().__init__()
        self.hear, self.spell, self.count = nn.Conv1d(4, 8, 3, padding=1), nn.Linear(8, 11), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Any:
        heard = torch.relu(self.hear(x)).permute(2, 0, 1)
        letters = self.spell(heard)
        return letters, letters.argmax(-1), self.count(heard.mean(0))[:, 0], x, heard.mean()


def test_outputs_of_any_shape_are_judged_by_themselves(tmp_path: Path) -> None:
    samples, model = seeded(24, 4, 6), refill(Speller())
    for data in (samples, (samples, tokens(24, 3))):  # labels of whatever kind are left aside
        result = quantize(model, data, out=tmp_path / "run", target="90%")
        assert [name for name, _ in result.run.task.axes] == ["0", "1", "2"]
        assert any("not judged: '3', '4'" in note for note in result.notes)
        assert not any("depends on the others in its batch" in note for note in result.notes)
    run = result.run
    inputs = run.samples.inputs(slice(None))
    with torch.no_grad():
        (letters, best, count, *_), (letters_q, best_q, count_q, *_) = model(inputs), result.model()(inputs)
    size = letters.square().sum((0, 2))
    kept = 1 - (letters_q - letters).square().sum((0, 2)) / size
    kept += 1 - (best_q != best).float().mean(0)
    least = torch.stack([part.square().mean() / 10 for part in count.split(run.batch_size)])
    least = least.repeat_interleave(run.batch_size)[: len(count)]
    kept += 1 - ((count_q - count).square() / torch.maximum(count.square(), least)).clamp(max=1)
    assert result.rows[-1].evaluation.accuracy == pytest.approx(float(kept.mean()) / 3, abs=1e-4)
    assert result.export(tmp_path / "model.pt2").failures == ()
    again = bitsect.quantize(tmp_path / "run", target="80%")
    assert again.run.task.name == "outputs"
    assert bitsect.evaluate(tmp_path / "run", (samples, tokens(24))).plan.evaluation.accuracy > 0.9
    with pytest.raises(BitsectError, match="not the output '3' of the network is made by layers"):
        quantize(model, samples, output="3")
    with pytest.raises(BitsectError, match="the float network, which the file does not hold"):
        bitsect.evaluate_file(again.export(tmp_path / "model.onnx").path, (samples, tokens(24)))


def test_a_fixed_batch_that_is_not_the_first_axis_is_cut() -> None:
    def run(self: Any, x: Tensor) -> Tensor:
        return self.a(x).reshape(int(x.shape[0]), 5, 3).transpose(0, 1)

    model = Block(run, a=nn.Linear(4, 15))
    result = quantize(refill(model), seeded(21, 4))
    assert result.run.program.fixed_batch == 8
    assert result.run.task.axes == (("", (1, 1)),)
    torch.testing.assert_close(result.run.program.run(seeded(3, 4)), model(seeded(3, 4)))


# What is said


def test_a_fixed_batch_is_that_of_the_run_and_is_said() -> None:
    model = Block(lambda self, x: self.b(torch.relu(self.a(x)).view(int(x.shape[0]), -1)))
    model.a, model.b = nn.Linear(8, 4), nn.Linear(12, 5)
    result = quantize(refill(model), seeded(20, 3, 8), metric="sqnr")
    assert result.run.program.fixed_batch == 8
    assert any("batch fixed at 8" in note for note in result.notes)


def test_a_loop_over_the_batch_is_not_unrolled_further(tmp_path: Path) -> None:
    model = Block(lambda self, x: torch.stack([self.a(x[i]) for i in range(int(x.shape[0]))]))
    model.a = nn.Linear(8, 5)
    result = quantize(refill(model), seeded(12, 8), metric="sqnr")
    assert result.run.program.fixed_batch == 2
    assert result.export(tmp_path / "model.onnx").failures == ()  # whose proof takes two at a time as well


def test_a_difference_from_the_network_is_said_by_a_run_that_works_alone_too(tmp_path: Path) -> None:
    def run(self: Any, x: Tensor) -> Tensor:
        return self.a(x) * (1.0 if torch.compiler.is_exporting() else 1.01)

    first = quantize(refill(Block(run, a=nn.Linear(8, 5))), seeded(12, 8), metric="sqnr", out=tmp_path)
    again = bitsect.quantize(tmp_path, target="60%", metric="sqnr")
    assert any("differs from the network" in note for note in first.notes)
    assert again.notes == first.notes
    (tmp_path / "capture.json").write_text("{}", encoding="utf-8")
    with pytest.raises(RunError, match=r"capture\.json is damaged, or was edited: remove it"):
        bitsect.quantize(tmp_path, target="60%", metric="sqnr")


@pytest.mark.parametrize(
    ("dtype", "data"), [(torch.bfloat16, torch.float32), (torch.float16, torch.float16), (torch.float64,) * 2]
)
def test_networks_in_other_precisions_are_captured_in_float32(
    dtype: torch.dtype, data: torch.dtype, tmp_path: Path
) -> None:
    model = refill(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 5))).to(dtype)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    result = quantize(model, seeded(12, 8).to(data), metric="sqnr")
    said = [note for note in result.notes if "float32" in note]
    assert said == [f"the network's weights are in {str(dtype)[6:]}: it is judged and written in float32"]
    assert all(value.dtype == before[name].dtype for name, value in model.state_dict().items())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert result.model()(seeded(2, 8)).dtype == torch.float32
    assert result.export(tmp_path / "model.onnx").failures == ()


def test_what_cannot_be_taken_in_float32_is_taken_as_it_is() -> None:
    model = Block(lambda self, x: self.a(x.half()), a=nn.Linear(8, 5)).half()
    notes = quantize(model, seeded(12, 8).half(), metric="sqnr").notes
    assert any("'a' computes in float16" in note for note in notes)


def test_buffers_that_forward_changes_are_frozen_and_named() -> None:
    def run(self: Any, x: Tensor) -> Tensor:
        self.seen.mul_(0.9).add_(0.1)
        return self.b(self.a(x) - self.seen)

    model = Block(run, a=nn.Linear(4, 4), b=nn.Linear(4, 3), seen=torch.zeros(4))
    result = quantize(refill(model), seeded(12, 4), metric="sqnr")
    assert any("forward changes the buffers 'seen': they are frozen" in note for note in result.notes)
    quantised = result.model()
    assert torch.equal(quantised(seeded(2, 4)), quantised(seeded(2, 4)))
    assert not model.seen.any()


def test_a_forward_that_takes_one_dictionary(tmp_path: Path) -> None:
    class OfDictionary(Block):
        def forward(self, batch: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
            return self.b(torch.relu(self.a(batch["image"])) + batch["shift"][:, None])

    model = refill(OfDictionary(print, a=nn.Linear(4, 6), b=nn.Linear(6, 3)))
    batch = {"image": seeded(12, 4), "shift": seeded(12, seed=1)}
    result = quantize(model, [(batch, torch.arange(12) % 3)], metric="sqnr")
    assert torch.equal(result.model()(batch), result.model()(**batch))
    torch.testing.assert_close(result.run.program.run(batch), model(batch))
    assert result.export(tmp_path / "model.onnx").failures == ()


def test_what_cannot_be_differentiated_is_named_with_metrics_that_need_not() -> None:
    model = refill(Block(lambda self, x: self.b(double(self.a(x))), a=nn.Linear(8, 8), b=nn.Linear(8, 5)))
    with pytest.raises(
        BitsectError, match=r"operator 'double' cannot be differentiated.*single or sqnr"
    ) as caught:
        quantize(model, seeded(12, 8), method="paper")
    assert "\n" not in str(caught.value)
    assert quantize(model, seeded(12, 8), metric="single").target_met is not False


class OutOfNothing(nn.Module):
    """It adds the sum of zeros that it makes."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count, self.head = count, nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        zeros = torch.zeros(1).expand(2**40)[:3]  # which takes no memory
        return self.head(x) + torch.zeros(self.count).sum() + zeros


def test_constants_that_would_fill_the_memory_are_refused_unmade() -> None:
    assert capture(OutOfNothing(2**20), torch.ones(2, 4)).layers
    exported = torch.export.export(OutOfNothing(3), (torch.ones(2, 4),))
    (node,) = (each for each in exported.graph.nodes if each.args[:1] == ([3],))
    node.args = ([2**31], *node.args[1:])
    with pytest.raises(CaptureError, match=r"makes constants of 8 GB out of nothing"):
        capture(exported)
