"""Weights fitted to what their layers read: gathered, kept, applied under both placements."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bitsect
from bitsect import Settings
from bitsect.errors import BitsectError, PlanError, RunError
from bitsect.network.capture import capture
from bitsect.network.parts import Multiply
from bitsect.network.program import Program
from bitsect.rounding import fitting
from bitsect.rounding.fitting import Fitter, left_to_squant, uses_of
from bitsect.rounding.gptq import InputMeans, Moments, fit
from bitsect.rounding.rounder import Rounder
from bitsect.runs.opening import open_run
from bitsect.sources.data import load_samples
from bitsect.values import INT4, INT8, ONNXRUNTIME, PAPER, Format, Placement, Plan
from bitsect.values.grid import Grid
from bitsect.values.pieces import Piece
from odd_models import Block, program_of, weight
from odd_models import one_thread as one_thread
from short import calibrate, named
from tiny import images, refill, residual, seeded

W4A16 = Format.parse("w4a16")
W4A8G2 = Format.parse("w4a8g2")


def fitted(
    program: Program,
    data: Any,
    formats: tuple[Format, ...],
    placement: Placement = PAPER,
    done: dict[str, Piece] | None = None,
    **options: Any,
) -> Rounder:
    samples = load_samples(data)
    bits = {8, *(format.activation_bits for format in formats if format.activation_bits)}
    ranges = calibrate(program, samples, method="max", sign=placement.sign, bits=bits)
    rounder = Rounder(program, ranges, placement, "gptq")
    Fitter(rounder, samples, {} if done is None else done, batch_size=8, **options)(formats)
    return rounder


@cache
def residual_fitted(placement: Placement = PAPER) -> Rounder:
    return fitted(residual()[1], images(40), (INT4, W4A16), placement)


def columns_by_unfold(value: Tensor, multiply: Multiply) -> Tensor:
    """The columns of a convolution at all its positions: (groups, positions, columns)."""
    signature = multiply.place.signature
    if not signature.is_convolution:
        return value.reshape(1, -1, value.shape[-1])
    kernel = signature.operand[2:]
    unfolded = nn.functional.unfold(
        value, kernel, signature.dilation, signature.padding, signature.stride
    )  # samples, columns, positions
    return unfolded.unflatten(1, (signature.groups, -1)).permute(1, 0, 3, 2).flatten(1, 2)


def expected_fit(program: Program, multiply: Multiply, x: Tensor, grid: Grid | None, **options: Any) -> Any:
    """GPTQ on moments computed from all columns at once."""
    weight = program.constant(multiply.weight.node).double()
    groups = multiply.place.signature.groups
    matrix = weight.reshape(groups, len(weight) // groups, -1)
    x = columns_by_unfold(x, multiply).double()
    z = x if grid is None else grid.round(x.float()).double()
    centred = z - z.mean(1, keepdim=True)
    drift = ((x - z) @ matrix.mT).mT @ centred / x.shape[1]
    means = [InputMeans(x.mean(1), z.mean(1))]
    return fit(matrix, Moments(centred.mT @ centred / x.shape[1], drift, means), 7, **options)


@pytest.mark.parametrize("format", [INT4, W4A16])
def test_weights_are_fitted_to_all_that_a_layer_reads_where_that_is_little(format: Format) -> None:
    program, rounder = residual()[1], residual_fitted()
    seen: dict[str, list[Tensor]] = {}
    see = {
        (multiply.node.name, 0): seen.setdefault(multiply.node.name, []).append
        for multiply in program.multiplies
    }
    program.observe_operands(images(40)[0], see)
    for multiply in program.multiplies:
        (x,) = seen[multiply.node.name]
        bits = format.activation_bits
        grid = None if bits is None else rounder.grid(multiply.operands[0].tensor, bits)
        expected = expected_fit(program, multiply, x, grid)
        made = rounder.codes(multiply.layer, multiply.weight, format)
        assert (made.codes.flatten() == expected.codes.flatten()).double().mean() > 0.98, multiply.layer
        bias = rounder.fitted.biases[multiply.node, format]
        spread = float(expected.biases[0].abs().max())
        assert (bias.double() - expected.biases[0].flatten()).abs().median() < 1e-4 * spread + 1e-6


@pytest.mark.parametrize("format", [INT4, W4A16])
def test_the_mean_output_of_a_fitted_layer_is_that_of_the_float_layer(format: Format) -> None:
    program, rounder = residual()[1], residual_fitted()
    x = images(40)[0]
    for multiply in program.multiplies[:1] + program.multiplies[-1:]:
        plan = Plan.uniform(program.layers).replace([multiply.layer], format)
        made: list[Tensor] = []
        for rounding in (rounder(Plan.uniform(program.layers)), rounder(plan)):
            with named(program, {"made": multiply.node}):
                program.observe(x, {"made": made.append}, rounding)
            if rounding.biases:  # what is observed is before the next step, so with the bias
                assert rounding.biases.keys() == {multiply.node.name}
        axes = [axis for axis in range(made[0].ndim) if axis != 1]
        gap = (made[0] - made[1]).mean(axes).abs().max()
        assert gap < 1e-5 * made[0].abs().max()
        assert (made[0] - made[1]).abs().max() > 1e-3


def test_runs_from_a_kept_state_add_the_biases_too() -> None:
    program, rounder = residual()[1], residual_fitted()
    rounding = rounder(Plan.uniform(program.layers, INT4))
    x, layer = images(3)[0], program.layers[4].name
    whole, states = program.run_keeping(x, [layer], rounding)
    assert torch.equal(program.run_from(layer, states[layer], rounding)[0], whole)
    assert rounding.biases.keys() == {multiply.node.name for multiply in program.multiplies}


def test_integer_kernels_take_the_bias_into_theirs() -> None:
    program, rounder = residual()[1], residual_fitted(ONNXRUNTIME)
    plan = Plan.uniform(program.layers, INT4)
    rounding = rounder(plan)
    kernels = {multiply.node.name for multiply in program.multiplies}
    assert kernels <= rounding.kernels.keys()
    x = images(40)[0]
    judged = program.run(x, rounding)
    plain = Rounder(program, rounder.ranges, PAPER, "gptq", rounder.fitted)(plan)
    by_float = program.run(x, plain)
    # The same but for the rounding of outputs to 8 bits, and for biases in integers.
    assert (judged - by_float).abs().median() < 0.1 * by_float.std()
    without = Rounder(program, rounder.ranges, ONNXRUNTIME, "gptq")
    without.fitted.codes = rounder.fitted.codes
    assert (program.run(x, without(plan)) - judged).abs().median() > (judged - by_float).abs().median() / 10


def test_what_is_found_depends_neither_on_memory_nor_on_what_was_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = residual()[1]
    whole: dict[str, Piece] = {}
    fitted(program, images(40), (INT4,), done=whole)
    passes = []
    observe = program.observe_operands
    monkeypatch.setattr(program, "observe_operands", lambda *a: (passes.append(1), observe(*a)))
    monkeypatch.setattr(fitting, "MEMORY_BYTES", 1)
    monkeypatch.setattr(fitting, "CHUNK", 1 << 10)
    parts: dict[str, Piece] = {}
    fitted(program, images(40), (INT4,), done=parts)
    assert len(passes) == 5 * len(program.layers)
    assert list(parts) == list(whole)
    for key in whole:
        assert (parts[key]["codes"] == whole[key]["codes"]).mean() > 0.98  # sums in another order
    some = dict(list(whole.items())[:3])
    monkeypatch.undo()
    fitted(program, images(40), (INT4,), done=some)
    assert list(some) == list(whole)
    assert all(np.array_equal(some[key][name], whole[key][name]) for key in whole for name in whole[key])


def test_only_some_positions_of_some_samples_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "SAMPLES", 16)
    monkeypatch.setattr(fitting, "POSITIONS", 5)
    counted: list[int] = []
    add = fitting._Sums._add
    monkeypatch.setattr(
        fitting._Sums, "_add", lambda self, place, x: (counted.append(x.shape[1]), add(self, place, x))
    )
    program = residual()[1]
    fitted(program, images(40), (W4A16,))
    # Of the last layers, which have four, three and one position, all are taken.
    assert sorted(set(counted)) == [8, 32, 40]


def test_a_weight_in_several_places_has_one_set_of_codes_and_a_bias_for_each() -> None:
    program = program_of("shared_weight")
    rounder = fitted(program, (seeded(40, 5, 8), torch.zeros(40)), (INT4,))
    first, _, third = program.multiplies
    assert first.layer == third.layer
    assert [len(use.multiplies) for use in uses_of(program)] == [2, 1]
    biases = [rounder.fitted.biases[multiply.node, INT4] for multiply in (first, third)]
    assert not torch.allclose(*biases)
    rounding = rounder(Plan.uniform(program.layers, INT4))
    assert torch.equal(*(rounding.weights[multiply.node.name, 1] for multiply in (first, third)))


def test_a_weight_that_is_read_both_ways_round_has_codes_for_each() -> None:
    torch.manual_seed(0)
    model = Block(
        lambda self, x: torch.relu(x @ self.w) @ self.w.t() + torch.relu(x @ self.w), w=weight(6, 6)
    )
    program = capture(model.eval(), seeded(2, 6))
    assert len(program.layers) == 1
    assert sorted(len(use.multiplies) for use in uses_of(program)) == [1, 2]
    rounder = fitted(program, (seeded(40, 6), torch.zeros(40)), (INT4,))
    rounding = rounder(Plan.uniform(program.layers, INT4))
    assert torch.isfinite(program.run(seeded(3, 6), rounding)).all()


@pytest.mark.parametrize("rounding", ["squant", "gptq"])
def test_one_value_read_in_two_layouts_is_rounded_in_each(rounding: str) -> None:
    torch.manual_seed(0)
    model = Block(
        lambda self, x: torch.nn.functional.linear(torch.relu(x @ self.w), self.w),
        w=nn.Parameter(torch.randn(6, 6) * torch.arange(1, 7)),
    ).eval()
    program = capture(model, seeded(2, 6))
    rounder = fitted(program, (seeded(40, 6), torch.zeros(40)), (INT4,))
    if rounding == "squant":
        rounder = Rounder(program, rounder.ranges)
    weights = rounder(Plan.uniform(program.layers, INT4)).weights
    for multiply in program.multiplies:
        assert multiply.weight is not None
        made = rounder.codes(multiply.layer, multiply.weight, INT4).weight
        assert torch.equal(weights[multiply.node.name, 1], made)
    first, second = weights.values()
    assert not torch.equal(first, second)


def test_layers_that_are_not_known_round_by_squant_and_are_named() -> None:
    model = Block(
        lambda self, x: torch.einsum("bij,jk->bik", x @ self.v, self.w), w=weight(6, 6), v=weight(6, 6)
    )
    program = capture(model.eval(), seeded(2, 5, 6))
    assert left_to_squant(program) == ("w",)
    rounder = fitted(program, (seeded(20, 5, 6), torch.zeros(20)), (INT4,))
    known, unknown = program.multiplies
    squant = Rounder(program, rounder.ranges)
    assert torch.equal(
        *(each.codes("w", unknown.weight, INT4).codes for each in (rounder, squant))  # type: ignore[arg-type]
    )
    assert (known.node, INT4) in rounder.fitted.biases
    assert (unknown.node, INT4) not in rounder.fitted.biases


def test_scales_are_per_group_of_inputs_where_the_format_says_so() -> None:
    program = residual()[1]
    rounder = fitted(program, images(16), (W4A8G2,))
    multiply = program.multiplies[1]
    made = rounder.codes(multiply.layer, multiply.weight, W4A8G2)
    with pytest.raises(PlanError, match="layer 'stem': format w4a8g2: groups of 2 do not divide 3 inputs"):
        rounder.codes("stem", program.multiplies[0].weight, W4A8G2)
    scales = multiply.weight.layout.to_kernels(made.scales)  # type: ignore[union-attr]
    assert torch.equal(scales[:, 0], scales[:, 1])
    assert not torch.equal(scales[:, 1], scales[:, 2])


def test_eight_bits_round_by_squant_and_what_was_not_fitted_is_refused() -> None:
    program, rounder = residual()[1], residual_fitted()
    multiply = program.multiplies[0]
    squant = Rounder(program, rounder.ranges)
    codes = [each.codes("stem", multiply.weight, INT8).codes for each in (rounder, squant)]
    assert torch.equal(*codes)
    with pytest.raises(PlanError, match="layer 'stem' was not fitted in w3a16: fit it to samples first"):
        rounder(Plan.uniform(program.layers, Format.parse("w3a16")))


# In a run

SETTINGS = Settings(rounding="gptq", batch_size=8, threads=1)


def test_a_run_keeps_what_was_fitted_and_goes_on_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = refill(nn.Sequential(*(nn.Linear(6, 6) for _ in range(5))))
    data = (seeded(24, 6), torch.zeros(24))

    def opened(name: str) -> Any:
        return open_run(model, data, out=tmp_path / name, settings=SETTINGS)

    with opened("whole") as run:
        run.calibrate([INT4])
        whole = run.folder.journal("gptq").path.read_bytes()
        recorded = run.folder.read_json("run.json")
        assert (recorded["rounding"], recorded["refit"], recorded["bias_correction"]) == ("gptq", True, True)
    real, done = fitting.fit, []

    def killed(*args: Any, **options: Any) -> Any:
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(1)
        return real(*args, **options)

    with monkeypatch.context() as patch, opened("killed") as run:
        patch.setattr(fitting, "fit", killed)
        with pytest.raises(KeyboardInterrupt):
            run.calibrate([INT4])
    monkeypatch.setattr(fitting, "fit", lambda *args, **options: (done.append(1), real(*args, **options))[1])
    with opened("killed") as run:
        run.calibrate([INT4])
        assert run.folder.journal("gptq").path.read_bytes() == whole
    assert len(done) == 5  # nothing is done twice
    with pytest.raises(RunError, match="was made with rounding gptq, not squant"):
        open_run(tmp_path / "killed", settings=Settings(rounding="squant"))
    with pytest.raises(RunError, match="was made with refit true, not false"):
        open_run(tmp_path / "killed", settings=Settings(refit=False))


def test_quantize_with_gptq_names_what_is_left_to_squant(tmp_path: Path) -> None:
    model = Block(
        lambda self, x: torch.einsum("bij,jk->bik", x @ self.v, self.w).mean(1),
        w=weight(6, 4),
        v=weight(6, 6),
    ).eval()
    data = (seeded(16, 5, 6), torch.arange(16) % 4)
    result = bitsect.quantize(
        model,
        data,
        method="paper",
        target=0.1,
        metric="single",
        formats=["int4"],
        settings=SETTINGS,
        out=tmp_path / "run",
    )
    assert any("gptq does not know what the weights of w are multiplied by" in note for note in result.notes)
    outputs = result.model()(data[0])  # the run is closed by now
    assert torch.isfinite(outputs).all()


def test_inputs_whose_products_overflow_are_refused_by_the_name_of_their_layer() -> None:
    model = refill(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)))
    x = 1e25 * seeded(6, 8)
    with pytest.raises(
        BitsectError, match=r"inputs of '0' are so large .*\[rounding=squant\]|rounding='squant'"
    ):
        fitted(capture(model, x[:2]), (x, torch.zeros(6, dtype=torch.int64)), (INT4,))
