"""Written models whose weights were fitted: their codes and biases are in the file, and they are proven."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor, nn

from bitsect.exporters.onnx.form import FORMS
from bitsect.network.capture import capture
from bitsect.network.program import Program
from bitsect.rounding.fitting import Fitter
from bitsect.rounding.rounder import Rounder
from bitsect.sources.data import load_samples
from bitsect.sources.tasks.task import task_named
from bitsect.values import FLOAT, INT4, INT8, Format, Plan
from odd_models import Block, weight
from odd_models import one_thread as one_thread
from short import calibrate, export_onnx, prove
from test_export import Case, differing, group, initializers
from tiny import CLASSES, refill, seeded

W4A16 = Format.parse("w4a16")


class Parts(nn.Module):
    """Convolutions with and without batch norm and bias, depthwise, linear layers, a shared weight."""

    def __init__(self) -> None:
        super().__init__()
        self.normed = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.biased = nn.Conv2d(8, 8, 1)
        self.linear = nn.Linear(8, 8, bias=False)
        self.shared = nn.Linear(8, 8, bias=False)
        self.head = nn.Linear(8, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.normed(x)).relu()
        x = self.biased(self.depthwise(x).relu()).relu()
        x = x.flatten(2).transpose(1, 2)
        x = self.linear(x).relu()
        x = self.shared(self.shared(x).relu())
        return self.head(x.mean(1))


@cache
def parts() -> tuple[Program, Any]:
    model = refill(Parts())
    with torch.no_grad():
        model.norm.weight[0].neg_()
        model.norm.weight[1] = 0
    labels = torch.arange(32) % CLASSES
    return capture(model, seeded(2, 3, 6, 6)), load_samples((seeded(32, 3, 6, 6, seed=1), labels))


def fitted(program: Program, samples: Any, target: str, formats: set[Format]) -> Rounder:
    placement = FORMS[target].placement
    ranges = calibrate(program, samples, sign=placement.sign)
    rounder = Rounder(program, ranges, placement, "gptq")
    Fitter(rounder, samples, {})(formats)
    return rounder


@pytest.mark.parametrize("target", FORMS)
@pytest.mark.parametrize("format", [INT4, W4A16])
def test_fitted_layers_of_every_kind_are_written_and_proven(
    target: str, format: Format, tmp_path: Path
) -> None:
    if target == "openvino":
        pytest.importorskip("openvino")
    program, samples = parts()
    rounder = fitted(program, samples, target, {format})
    plan = Plan.uniform(program.layers, format)
    exported = export_onnx(program, rounder, plan, tmp_path / "model.onnx", target=target)
    proof = prove(exported, program, rounder, plan, samples, task_named("classification"))
    assert proof.holds, proof.failures
    assert proof.outputs_off < 0.02
    written = Case(program, rounder, plan, exported)
    assert differing(written, seeded(5, 3, 6, 6, seed=2), flips=0.1) == []
    if target == "onnxruntime" and format == INT4:
        assert not proof.float_kernels  # biases cost no layer its integer kernel
    stored = initializers(written.graph)
    multiply = program.multiplies[2]
    codes = rounder.codes("biased", multiply.weight, format).codes
    assert torch.equal(torch.from_numpy(stored["biased.weight.codes"].astype("float32")), codes)
    unfitted = Rounder(program, rounder.ranges, rounder.placement)
    x = seeded(5, 3, 6, 6, seed=2)
    assert (program.run(x, unfitted(plan)) - program.run(x, rounder(plan))).abs().max() > 1e-2


@pytest.mark.parametrize("target", FORMS)
@pytest.mark.parametrize("name", ["convolutions", "products", "structures"])
def test_odd_networks_in_mixed_formats_compute_what_was_judged(
    name: str, target: str, tmp_path: Path
) -> None:
    program, inputs = group(name)
    samples = load_samples([(inputs, torch.zeros(2))])
    rounder = fitted(program, samples, target, {INT4, W4A16})
    formats = (INT4, W4A16, INT8, FLOAT, INT4)
    plan = Plan({layer.name: formats[i % 5] for i, layer in enumerate(program.layers)})
    exported = export_onnx(program, rounder, plan, tmp_path / "model.onnx", target=target)
    assert rounder(plan).biases
    assert differing(Case(program, rounder, plan, exported), inputs, flips=0.1) == []


def test_a_sum_that_follows_takes_the_bias_of_a_product(tmp_path: Path) -> None:
    """With another constant, not with a shortcut."""
    torch.manual_seed(0)
    model = Block(
        lambda self, x: (x @ self.w + self.b) @ self.v + x, w=weight(6, 6), v=weight(6, 6), b=torch.randn(6)
    ).eval()
    program = capture(model, seeded(2, 5, 6))
    samples = load_samples((seeded(16, 5, 6, seed=1), torch.zeros(16)))
    rounder = fitted(program, samples, "onnxruntime", {INT4})
    plan = Plan.uniform(program.layers, INT4)
    exported = export_onnx(program, rounder, plan, tmp_path / "model.onnx")
    nodes = [node.op_type for node in onnx.load(exported.path).graph.node]
    assert (nodes.count("Add"), nodes.count("MatMulIntegerToFloat")) == (1, 2)  # kernels with their biases
    outside = export_onnx(program, rounder, plan, tmp_path / "outside.onnx", target="openvino")
    nodes = [node.op_type for node in onnx.load(outside.path).graph.node]
    assert (nodes.count("Add"), nodes.count("Sub")) == (2, 1)
    assert differing(Case(program, rounder, plan, exported), seeded(3, 5, 6), flips=0.1) == []
