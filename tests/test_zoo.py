"""The zoo is what it says: trained, small, and judged on images that no network has seen."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from bitsect.errors import BitsectError
from bitsect.sources.models import zoo

MEGABYTE = 10**6
# The least share of the test images that the float network has right.
ACCURACY = {"fashion-resnet": 0.90, "fashion-mobilenet": 0.90, "fashion-transformer": 0.88}


def sample(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    tensors = load_file(zoo.data_path(name))
    x = (tensors["x"].float() / 255 - tensors["mean"]) / tensors["std"]
    return x.permute(0, 3, 1, 2).contiguous(), tensors["y"]


@pytest.mark.parametrize("name", zoo.NETWORKS)
@torch.inference_mode()
def test_network_is_trained(name: str) -> None:
    network = zoo.load_network(name)
    x, y = sample("fashion-test")
    predicted = torch.cat([network(batch).argmax(1) for batch in x.split(128)])
    assert (predicted == y).float().mean() >= ACCURACY[name]


@pytest.mark.parametrize("name", zoo.NETWORKS)
def test_network_is_ready_and_small(name: str) -> None:
    network = zoo.load_network(name)
    assert not any(module.training for module in network.modules())
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}
    assert network(zoo.example_input()).shape == (2, 10)
    assert (zoo.FOLDER / f"{name}.safetensors").stat().st_size < MEGABYTE
    layers = [module for module in network.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    assert len(layers) >= 20


def test_transformer_attends_in_at_least_four_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    attention = nn.functional.scaled_dot_product_attention

    def counted(*arguments: torch.Tensor) -> torch.Tensor:
        calls.append(arguments)
        return attention(*arguments)

    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", counted)
    zoo.load_network("fashion-transformer")(zoo.example_input())
    assert len(calls) >= 4


@pytest.mark.parametrize("name", zoo.SAMPLES)
def test_sample_is_complete(name: str) -> None:
    tensors = load_file(zoo.data_path(name))
    assert tensors["x"].shape == (2048, 28, 28, 1)
    assert tensors["x"].dtype == torch.uint8
    assert tensors["y"].shape == (2048,)
    assert tensors["y"].dtype == torch.int64
    assert torch.equal(tensors["y"].unique(), torch.arange(10))
    for key in ("mean", "std"):
        assert tensors[key].shape == (1,)
        assert tensors[key].dtype == torch.float32
    assert zoo.data_path(name).stat().st_size < 2 * MEGABYTE


def test_samples_are_disjoint() -> None:
    calibration, test = (
        {image.numpy().tobytes() for image in load_file(zoo.data_path(name))["x"]} for name in zoo.SAMPLES
    )
    assert not calibration & test


def test_images_carry_their_licence() -> None:
    text = (Path(zoo.FOLDER) / "LICENSE-fashion-mnist.txt").read_text(encoding="utf-8")
    assert "Copyright © 2017 Zalando SE, https://tech.zalando.com" in text


def test_unknown_names_are_answered_with_the_known_ones() -> None:
    with pytest.raises(BitsectError, match="fashion-mobilenet"):
        zoo.load_network("fashion-lenet")
    with pytest.raises(BitsectError, match="fashion-calibration"):
        zoo.data_path("fashion-train")
