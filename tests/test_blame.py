"""Blame: planted faults are named first, with their cause and a remedy that was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bitsect
from bitsect.errors import OptionError, PlanError
from bitsect.measure.blame import ACTIVATIONS, WEIGHTS, without
from bitsect.runs.opening import open_run
from bitsect.solve import causes as kinds
from bitsect.solve.causes import causes
from bitsect.values import FLOAT, INT4, INT8, Plan
from bitsect.values.blame import Blame, Facts, Gain

COUNT = 48


class Plain(nn.Module):
    """Four layers in a row, the second reading a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, bias=False)
        self.side = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.body = nn.Conv2d(16, 16, 3, bias=False)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = torch.relu(x + self.side(x))
        return self.head(torch.relu(self.body(x)).mean((2, 3)))


def plain() -> Plain:
    """Every channel is alive: no filter is negative on the whole."""
    torch.manual_seed(0)
    network = Plain().eval()
    with torch.no_grad():
        for layer in (network.stem, network.side, network.body):
            layer.weight -= layer.weight.mean((1, 2, 3), keepdim=True)
    return network


def images(count: int = COUNT) -> Tensor:
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def run_of(network: nn.Module, path: Path, samples: Tensor | None = None, **options: Any) -> Path:
    """A run of `network` in which nothing was searched yet."""
    given = images() if samples is None else samples
    options = {"method": "paper", "threads": 1} | options
    bitsect.sensitivity(network, given, metric="random", out=path, **options)
    return path


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(plain(), tmp_path_factory.mktemp("healthy") / "run")


def test_an_outlier_channel_is_named_first(tmp_path: Path) -> None:
    network = plain()
    with torch.no_grad():  # the same function, but channel 3 of what `body` reads is 40 times the others
        network.stem.weight[3] *= 40
        network.side.weight[:, 3] /= 40
        network.side.weight[3] *= 40
        network.body.weight[:, 3] /= 40
    found = bitsect.blame(run_of(network, tmp_path / "run"), plan=_plan(network, "body", INT4))
    worst = found.layers[0]
    assert worst.name == "body"
    assert worst.causes[0].kind == kinds.OUTLIER_CHANNEL
    assert worst.causes[0].words.startswith("channel 3 of its input reaches")
    assert worst.activations is not None
    assert worst.weights is not None
    assert worst.activations.mean > 3 * worst.weights.mean  # it is its inputs that are to blame
    remedy = worst.remedy
    assert remedy is not None
    assert remedy.recovers >= 0.7
    assert remedy.format is not None
    assert remedy.format.activation_bits != 4  # finer weights alone would not help


def test_a_dead_channel_is_named_first(tmp_path: Path) -> None:
    network = plain()
    with torch.no_grad():
        network.body.weight[7] = 0
    found = bitsect.blame(run_of(network, tmp_path / "run"), plan=_plan(network, "body", INT4))
    assert found.layers[0].name == "body"
    assert found.layers[0].causes[0].kind == kinds.DEAD_CHANNEL
    assert found.layers[0].causes[0].words.startswith("channel 7 of its output is dead")
    (head,) = (each for each in found.layers if each.name == "head")
    assert any(cause.words.startswith("channel 7 of its input is dead") for cause in head.causes)


def test_a_layer_whose_range_was_doubled_is_named_first(tmp_path: Path) -> None:
    network, path = plain(), run_of(plain(), tmp_path / "run", range="max")
    with open_run(path) as run:
        ranges = run.ranges().to_json()
        (tensor,) = (
            operand.tensor
            for multiply in run.program.multiplies
            if multiply.layer == "body"
            for operand in multiply.activations
        )
        for bits in ranges["tensors"][tensor]:
            ranges["tensors"][tensor][bits][0] *= 2
        run.folder.write_json("ranges.json", ranges)
    found = bitsect.blame(path, plan=Plan({name: INT4 for name, _ in _layers(network)}))
    worst = found.layers[0]
    assert worst.name == "body"
    assert worst.causes[0].kind == kinds.WIDE_RANGE
    assert "2.0 times the largest input" in worst.causes[0].words
    free = next(remedy for remedy in worst.remedies if remedy.words.startswith("a range of"))
    assert free.gain.mean > 2 * free.gain.error
    assert free.size_ratio == 0
    others = [cause.kind for each in found.layers[1:] for cause in each.causes]
    assert kinds.WIDE_RANGE not in others


class Together(nn.Module):
    """Rounded to 4 bits, `one` and `two` each lose 0.4 where x is 1: the hinge opens at 0.5 only."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(3, 2, bias=False)
        self.two = nn.Linear(3, 2, bias=False)
        self.calm = nn.Linear(3, 4)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        lost = 6.8 * x[:, :1] - (self.one(x) + self.two(x))
        return self.head(torch.cat([torch.relu(lost - 0.5), torch.relu(self.calm(x))], 1))


def test_two_layers_that_hurt_only_together_are_named_first(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = Together().eval()
    with torch.no_grad():
        for layer in (network.one, network.two):
            layer.weight.copy_(torch.tensor([[3.4, 0.0, 7.0], [3.4, 0.0, 7.0]]))
        network.head.weight[:, :2] *= 20
    x = torch.zeros(COUNT, 3)
    x[:, 0] = 1.0
    x[:, 1] = torch.rand(COUNT, generator=torch.Generator().manual_seed(2))
    path = run_of(network, tmp_path / "run", x, rounding="nearest")
    found = bitsect.blame(path, format="w4a16")
    pair = found.pairs[0]
    assert {pair.first, pair.second} == {"one", "two"}
    assert max(pair.alone) < 0.01 * pair.together
    assert pair.excess.mean > 0.9 * pair.together > 0
    # Either of them back in float takes nearly all of the damage away.
    assert {each.name for each in found.layers[:2]} == {"one", "two"}
    assert all(each.share > 0.9 for each in found.layers[:2])


def test_gains_are_those_of_whole_passes(healthy: Path) -> None:
    """The slow, obvious way: every change as a plan of its own, from the first step on."""
    found = bitsect.blame(healthy, format="int4", samples=COUNT)
    with open_run(healthy) as run:
        rounder = run.calibrate({INT4})
        whole, inputs = rounder(found.plan), run.samples.inputs(slice(None))
        program, floats = run.program, run.program.run(run.samples.inputs(slice(None)))

        def damage(rounding: Any) -> np.ndarray[Any, Any]:
            move = program.run(inputs, rounding) - floats
            centred = move - move.mean(1, keepdim=True)
            return np.asarray((centred.double() ** 2).sum(1) / (2 * move.shape[1]))

        for each in found.layers:
            changed = {
                "gain": rounder(found.plan.replace([each.name], FLOAT)),
                "weights": without(whole, program, each.name, WEIGHTS),
                "activations": without(whole, program, each.name, ACTIVATIONS),
            }
            for name, rounding in changed.items():
                expected = Gain.of(damage(whole) - damage(rounding))
                known = getattr(each, name)
                assert expected is not None
                assert known.mean == pytest.approx(expected.mean, rel=1e-3, abs=1e-7)
                assert known.error == pytest.approx(expected.error, rel=1e-3, abs=1e-7)


def test_blame_is_kept_and_is_the_same_again(healthy: Path) -> None:
    first = bitsect.blame(healthy, format="int4")
    size = (healthy / "journals" / "blame.journal").stat().st_size
    again = bitsect.blame(healthy, format="int4")
    assert first.to_json() == again.to_json()
    assert (healthy / "journals" / "blame.journal").stat().st_size == size
    assert not (healthy / "plan.json").exists()  # nothing of the run's answers is made or changed
    json.dumps(first.to_json(), allow_nan=False)


def test_one_layer_alone(healthy: Path) -> None:
    found = bitsect.blame(healthy, format="int8", layer="bo*", samples=7)
    assert [each.name for each in found.layers] == ["body"]
    assert found.samples == 7 or found.samples == COUNT  # to the end of a batch
    assert found.pairs == ()


def test_under_onnxruntime_parts_cannot_be_told_apart(tmp_path: Path) -> None:
    found = bitsect.blame(run_of(plain(), tmp_path / "run", placement="onnxruntime"), format="int8")
    parts = {each.name: each.weights for each in found.layers}
    assert parts["body"] is None
    assert any("cannot be told apart" in note for note in found.notes)
    json.dumps(found.to_json(), allow_nan=False)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"format": "float"}, PlanError, "nobody to blame"),
        ({"format": "int8", "layer": "nobody"}, PlanError, "no layer is called 'nobody'"),
        ({"format": "int8", "samples": 0}, OptionError, "at least 1"),
        ({"plan": "nowhere"}, PlanError, "no such plan"),
    ],
)
def test_what_cannot_be_blamed(healthy: Path, options: dict[str, Any], error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        bitsect.blame(healthy, **options)


def test_causes_of_made_up_facts() -> None:
    ordinary = Facts("a", 1000, 2000, 1.0, 0.9, 1.0, np.array([0.9, 1.0, 0.8]), np.ones(3), np.ones(3))
    assert causes(ordinary) == ()
    tail = Facts("a", 1000, 2000, 10.0, 2.0, 10.0, np.array([9.0, 10.0, 8.0]))
    assert [cause.kind for cause in causes(tail)] == [kinds.OUTLIER_VALUES]
    assert "use 80% of its range" in causes(tail)[0].words
    cut = Facts("a", 1000, 2000, 4.0, 2.0, 1.0, np.array([4.0, 3.0, 3.0]))
    assert [cause.kind for cause in causes(cut)] == [kinds.CLIPPED]
    unequal = Facts("a", 1000, 2000, addends=(0.5, 10.0))
    assert [cause.kind for cause in causes(unequal)] == [kinds.UNEQUAL_SUM]
    huge = Facts("a", 1000, 2000, weight_channels=np.array([1.0, 1.0, 1.0, 20.0]))
    assert [cause.kind for cause in causes(huge)] == [kinds.HUGE_CHANNEL]
    few = Facts("a", 10, 2000)
    assert [cause.kind for cause in causes(few)] == [kinds.FEW_WEIGHTS]


def _layers(network: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(n, m) for n, m in network.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]


def _plan(network: nn.Module, name: str, format: Any) -> Plan:
    """Every layer at 8 bits but one."""
    return Plan({each: INT8 for each, _ in _layers(network)}).replace([name], format)


def test_a_blame_is_plain(healthy: Path) -> None:
    found: Blame = bitsect.blame(healthy, format="int4")
    assert [row["layer"] for row in (each.row() for each in found.layers)] == [e.name for e in found.layers]
    assert found.layers[0].gain.mean >= found.layers[-1].gain.mean
