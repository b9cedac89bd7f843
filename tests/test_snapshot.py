"""A result is a snapshot: what becomes of the user's network and samples afterwards does not change it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bitsect
from bitsect.network.capture import capture
from tiny import Residual, images, refill, seeded

ASK: dict[str, Any] = {
    "target": "50%",
    "method": "paper",
    "metric": "random",
    "formats": "int8",
    "destination": "bits",
}


def trained(network: nn.Module) -> None:
    optimizer = torch.optim.SGD(network.train().parameters(), lr=0.5)
    x, y = images(8)
    nn.functional.cross_entropy(network(x), y).backward()
    optimizer.step()


def seen_in_train_mode(network: nn.Module) -> None:
    network.train()(10 * images(8)[0])  # which moves the statistics of its batch norms


def loaded(network: nn.Module) -> None:
    network.load_state_dict({name: value + 1 for name, value in network.state_dict().items()})


def wiped(network: nn.Module) -> None:
    for value in [*network.parameters(), *network.buffers()]:
        value.data.zero_()


@pytest.mark.parametrize("change", [trained, seen_in_train_mode, loaded, wiped])
def test_what_becomes_of_the_network_does_not_change_the_result(
    change: Callable[[nn.Module], None], tmp_path: Path
) -> None:
    network, x = refill(Residual()), seeded(5, 3, 8, 8, seed=4)
    result = bitsect.quantize(network, images(24), **ASK)
    before = result.model()(x)
    result.export(tmp_path / "before.pt2")
    change(network)
    assert torch.equal(result.model()(x), before)
    delivery = result.export(tmp_path / "after.pt2")
    assert delivery.proof.holds
    for name in ("before", "after"):
        assert torch.equal(torch.export.load(tmp_path / f"{name}.pt2").module()(x), before)
    assert result.frontier(targets="60%").float_accuracy == result.float_accuracy


def test_the_network_is_left_as_it_was_and_trains_on() -> None:
    network = refill(Residual()).train()
    held = {name: value.data_ptr() for name, value in network.named_parameters()}
    bitsect.quantize(network, images(24), **ASK)
    assert {name: value.data_ptr() for name, value in network.named_parameters()} == held
    assert network.training
    trained(network)


def test_a_program_keeps_one_copy_of_a_tied_weight_and_of_an_exported_one() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
            self.b.weight = self.a.weight
            self.register_buffer("shift", torch.ones(6), persistent=False)
            self.plain = torch.full((6,), 2.0)  # which is neither parameter nor buffer

        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.relu(self.a(x))) + self.shift * self.plain

    network, x = Tied().eval(), seeded(2, 6)
    exported = torch.export.export(network, (x,))
    for program in (capture(network, x), capture(exported, x)):
        before = program.run(x)
        state = program.exported.state_dict
        assert state["a.weight"] is state["b.weight"]
        assert [each.name for each in program.layers] == ["a"]
        with torch.no_grad():
            for value in (*network.parameters(), network.shift, network.plain):
                value.add_(1)
        assert torch.equal(program.run(x), before)
    assert exported.state_dict["a.weight"].data_ptr() == network.a.weight.data_ptr()


def test_a_network_that_a_function_keeps_is_copied_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "from tiny import Residual, refill\nkept = refill(Residual())\ndef mine():\n    return kept\n"
    (tmp_path / "keeper.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    result = bitsect.quantize("keeper:mine", images(24), **ASK)
    before = result.model()(images(5)[0])
    import keeper  # type: ignore[import-not-found]

    wiped(keeper.kept)
    assert torch.equal(result.model()(images(5)[0]), before)


@pytest.mark.parametrize("kept", [False, True])
def test_samples_that_change_afterwards_are_not_taken_for_those_of_the_run(
    kept: bool, tmp_path: Path
) -> None:
    x, y = images(24)
    result = bitsect.quantize(refill(Residual()), (x, y), out=tmp_path / "run" if kept else None, **ASK)
    before = result.run.samples.fingerprint()
    x.mul_(100)
    y.zero_()
    assert result.run.samples.fingerprint() == before
