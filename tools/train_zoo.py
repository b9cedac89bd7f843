"""Train the networks of the zoo again, and write them and their two samples into the package.

    python tools/train_zoo.py --data fashion-mnist.npz [--only fashion-resnet]

The archive holds all of Fashion-MNIST, shuffled: `x` uint8 N×28×28 and `y`. Its last 4,096 images
are held out: half to calibrate, half to test. The last epoch's weights are the ones kept, so that
the test sample chooses nothing.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch import nn
from torch.nn import functional as F

from bitsect.sources.models.zoo import FOLDER, NETWORKS, data_path, load_network

SAMPLE = 2048
BATCH = 128


@dataclass(frozen=True)
class Recipe:
    """How one network is trained."""

    epochs: int
    rate: float
    decay: float


RECIPES = {
    "fashion-resnet": Recipe(epochs=9, rate=6e-3, decay=0.05),
    "fashion-mobilenet": Recipe(epochs=10, rate=8e-3, decay=0.05),
    "fashion-transformer": Recipe(epochs=14, rate=2e-3, decay=0.05),
}


@dataclass(frozen=True)
class Images:
    """Raw images, their labels, and the statistics that make an input of them."""

    x: torch.Tensor
    y: torch.Tensor
    mean: torch.Tensor
    std: torch.Tensor

    def inputs(self, x: torch.Tensor) -> torch.Tensor:
        scaled = (x.float() / 255 - self.mean) / self.std
        return scaled.permute(0, 3, 1, 2)


def read(path: Path) -> tuple[Images, Images, Images]:
    """The images to train on, to calibrate with and to test on."""
    with np.load(path) as archive:
        x = torch.from_numpy(archive["x"]).unsqueeze(-1)
        y = torch.from_numpy(archive["y"].astype(np.int64))
    # A few images occur twice: a copy of a held-out one is not trained on.
    held_out = {image.numpy().tobytes() for image in x[-2 * SAMPLE :]}
    kept = torch.tensor([image.numpy().tobytes() not in held_out for image in x])
    seen = x[kept].double() / 255
    mean, std = seen.mean((0, 1, 2)).float(), seen.std((0, 1, 2)).float()
    return (
        Images(x[kept], y[kept], mean, std),
        Images(x[-2 * SAMPLE : -SAMPLE], y[-2 * SAMPLE : -SAMPLE], mean, std),
        Images(x[-SAMPLE:], y[-SAMPLE:], mean, std),
    )


def augment(x: torch.Tensor, shift: int = 2) -> torch.Tensor:
    """Flip half of the images left to right, and move each by up to `shift` pixels over black."""
    count, size = x.shape[:2]
    flip = (torch.rand(count) < 0.5)[:, None, None, None]
    x = torch.where(flip, x.flip(2), x)
    x = F.pad(x, (0, 0, shift, shift, shift, shift))
    rows, columns = torch.randint(0, 2 * shift + 1, (2, count, 1)) + torch.arange(size)
    return x[torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]


@torch.inference_mode()
def accuracy(network: nn.Module, images: Images) -> float:
    network.eval()
    right = sum(
        int((network(images.inputs(x)).argmax(1) == y).sum())
        for x, y in zip(images.x.split(256), images.y.split(256), strict=True)
    )
    return right / len(images.y)


def train(name: str, images: Images, held_out: Images) -> nn.Module:
    torch.manual_seed(0)
    recipe = RECIPES[name]
    network = NETWORKS[name]().to(memory_format=torch.channels_last)  # faster by a third on a CPU
    steps = len(images.x) // BATCH
    optimiser = torch.optim.AdamW(network.parameters(), lr=recipe.rate, weight_decay=recipe.decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, recipe.rate, epochs=recipe.epochs, steps_per_epoch=steps, pct_start=0.2
    )
    for epoch in range(recipe.epochs):
        started, total = time.perf_counter(), 0.0
        network.train()
        for chosen in torch.randperm(len(images.x))[: steps * BATCH].split(BATCH):
            logits = network(images.inputs(augment(images.x[chosen])))
            loss = F.cross_entropy(logits, images.y[chosen], label_smoothing=0.05)
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            total += loss.item()
        print(
            f"{name} epoch {epoch + 1}/{recipe.epochs}: loss {total / steps:.4f}, "
            f"calibration {accuracy(network, held_out):.4f}, {time.perf_counter() - started:.0f} s",
            flush=True,
        )
    return network


def write(tensors: dict[str, torch.Tensor], path: Path) -> None:
    # save_file would make a file that only its owner can read.
    path.write_bytes(save({key: value.contiguous() for key, value in tensors.items()}))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the networks of the zoo again.")
    parser.add_argument("--data", type=Path, required=True, help="archive of all 70,000 images (.npz)")
    parser.add_argument("--only", choices=list(NETWORKS), help="train this one alone")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the order of additions, and with it the result, depends on the threads

    images, calibration, test = read(arguments.data)
    for name, sample in (("fashion-calibration", calibration), ("fashion-test", test)):
        tensors = {"x": sample.x, "y": sample.y, "mean": sample.mean, "std": sample.std}
        write(tensors, data_path(name))
    for name in [arguments.only] if arguments.only else NETWORKS:
        network = train(name, images, calibration)
        write(network.state_dict(), FOLDER / f"{name}.safetensors")
        print(f"{name}: test {accuracy(load_network(name), test):.4f}", flush=True)


if __name__ == "__main__":
    main()
