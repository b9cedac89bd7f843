"""Three small trained networks and two samples of Fashion-MNIST: all a first search needs, offline."""

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from bitsect.errors import BitsectError
from bitsect.sources.models.zoo.architectures import FashionMobileNet, FashionResNet, FashionTransformer

FOLDER = Path(__file__).parent

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "fashion-resnet": FashionResNet,
    "fashion-mobilenet": FashionMobileNet,
    "fashion-transformer": FashionTransformer,
}

SAMPLES = ("fashion-calibration", "fashion-test")


def load_network(name: str) -> nn.Module:
    """The trained network of this name, in float32, ready for inference."""
    if name not in NETWORKS:
        raise BitsectError(f"the zoo has no network {name!r}; it has {', '.join(NETWORKS)}")
    network = NETWORKS[name]()
    network.load_state_dict(load_file(FOLDER / f"{name}.safetensors"))
    return network.eval()


def example_input() -> torch.Tensor:
    """A batch of the shape that every network of the zoo takes."""
    return torch.zeros(2, 1, 28, 28)


def data_path(name: str) -> Path:
    """The file of a sample: `x` uint8 N×28×28×1, `y` int64, and the `mean` and `std` of the input.

    A network's input is (x/255 − mean)/std, channels first.
    """
    if name not in SAMPLES:
        raise BitsectError(f"the zoo has no sample {name!r}; it has {', '.join(SAMPLES)}")
    return FOLDER / f"{name}.safetensors"
