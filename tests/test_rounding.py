"""Rounding: the promises of SQuant as properties, and its steps once more, slowly and in exact fractions."""

from fractions import Fraction
from itertools import product

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from bitsect.rounding import squant as rounding
from bitsect.rounding.squant import nearest, squant

BITS = range(2, 9)
SEEDS = st.integers(0, 2**32)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def largest(bits: int) -> int:
    return (1 << bits - 1) - 1


def scaled(w: Tensor, qmax: int) -> Tensor:
    """Weights over a scale per channel, from its largest magnitude."""
    amax = w.abs().amax((1, 2), keepdim=True)
    return w / torch.where(amax > 0, amax / qmax, 1.0)


@st.composite
def layers(draw: st.DrawFn, most_kernels: int = 6) -> tuple[Tensor, int]:
    """(y, qmax), y on a binary grid: sums are exact. Coarse grids are full of ties."""
    qmax = largest(draw(st.sampled_from(BITS)))
    grid = 2 ** draw(st.sampled_from([1, 2, 4, 16]))
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, most_kernels)), draw(st.sampled_from([1, 2, 4, 9])))
    size = shape[0] * shape[1] * shape[2]
    values = draw(st.lists(st.integers(-qmax * grid, qmax * grid), min_size=size, max_size=size))
    return torch.tensor(values, dtype=torch.float32).reshape(shape) / grid, qmax


def errors(y: Tensor, qmax: int) -> Tensor:
    return squant(y, qmax).double() - y.double()


# The promises


@given(layers())
def test_a_code_is_a_neighbour_of_its_weight(layer: tuple[Tensor, int]) -> None:
    y, qmax = layer
    q = squant(y, qmax)
    assert ((q == y.floor()) | (q == y.ceil())).all()
    assert (errors(y, qmax).abs() < 1).all()


@given(layers())
def test_codes_stay_in_range(layer: tuple[Tensor, int]) -> None:
    y, qmax = layer
    for round_ in (squant, nearest):
        assert (round_(y, qmax).abs() <= qmax).all()


@given(layers(most_kernels=1))
def test_a_kernel_alone_cancels_to_a_half(layer: tuple[Tensor, int]) -> None:
    assert (errors(*layer).sum(-1).abs() <= 0.5).all()


@given(layers())
def test_channels_cancel_to_a_half_and_kernels_to_one(layer: tuple[Tensor, int]) -> None:
    e = errors(*layer)
    assert (e.sum((1, 2)).abs() <= 0.5).all()
    assert (e.sum(2).abs() <= 1).all()


@given(layers())
def test_odd_even_with_ties(layer: tuple[Tensor, int]) -> None:
    y, qmax = layer
    for round_ in (squant, nearest):
        assert torch.equal(round_(-y, qmax), -round_(y, qmax))


@given(layers(), SEEDS)
def test_equivariant_to_permuting_channels(layer: tuple[Tensor, int], seed: int) -> None:
    y, qmax = layer
    order = torch.randperm(len(y), generator=seeded(seed))
    assert torch.equal(squant(y[order], qmax), squant(y, qmax)[order])


@given(SEEDS, st.sampled_from([(3, 7, 9), (3, 30, 1), (3, 2, 2)]), st.sampled_from(BITS))
def test_equivariant_to_permuting_inputs_without_ties(
    seed: int, shape: tuple[int, int, int], bits: int
) -> None:
    y, qmax = scaled(torch.randn(shape, generator=seeded(seed)), largest(bits)), largest(bits)
    for channel in (nearest(y, qmax) - y).abs().flatten(1):
        assume(len(channel.unique()) == len(channel))
    order = torch.randperm(shape[1], generator=seeded(seed))
    assert torch.equal(squant(y[:, order], qmax), squant(y, qmax)[:, order])


def test_equal_errors_flip_in_memory_order() -> None:
    """So permuting cannot be free of conditions: of two equal weights the first goes up, whichever it is."""
    assert squant(torch.tensor([[[0.5], [0.5]]]), 7).flatten().tolist() == [1, 0]


@given(layers())
def test_idempotent(layer: tuple[Tensor, int]) -> None:
    y, qmax = layer
    q = squant(y, qmax)
    assert torch.equal(squant(q, qmax), q)


@given(SEEDS, st.sampled_from(BITS), st.integers(-60, 60))
def test_scaling_by_a_power_of_two_changes_no_code(seed: int, bits: int, power: int) -> None:
    w = torch.randn(3, 4, 9, generator=seeded(seed))
    qmax = largest(bits)
    assert torch.equal(squant(scaled(w * 2.0**power, qmax), qmax), squant(scaled(w, qmax), qmax))


@given(st.lists(st.integers(-48, 48), min_size=2, max_size=7))
def test_a_kernel_has_the_least_squares_of_its_sum(values: list[int]) -> None:
    """Among all ways up and down that give the codes the same sum, so also among all choices of k flips."""
    y = torch.tensor(values, dtype=torch.float64) / 16
    q = squant(y.reshape(1, 1, -1), 3).flatten()
    ways = torch.tensor(list(product(*zip(y.floor().tolist(), y.ceil().tolist(), strict=True)))).double()
    rivals = ways[ways.sum(1) == q.sum()]
    assert (q - y).square().sum() == (rivals - y).square().sum(1).min()


# The steps once more


def reference(y: Tensor, qmax: int) -> Tensor:
    return torch.tensor(
        [slowly([[Fraction(v) for v in k] for k in c], qmax) for c in y.tolist()], dtype=y.dtype
    )


def slowly(weights: list[list[Fraction]], qmax: int) -> list[list[int]]:
    """The codes of one channel, flip by flip, every condition spelt out; fails if candidates run out."""
    codes = [[round(weight) for weight in kernel] for kernel in weights]

    def error(place: tuple[int, int]) -> Fraction:
        return codes[place[0]][place[1]] - weights[place[0]][place[1]]

    def line(places: list[tuple[int, int]], total: Fraction) -> list[tuple[int, int]]:
        up = [(n, t) for n, t in places if error((n, t)) < 0 and codes[n][t] < qmax]
        down = [(n, t) for n, t in places if error((n, t)) > 0 and codes[n][t] > -qmax]
        return sorted(down if total > 0 else up, key=lambda place: -abs(error(place)))

    def flip(place: tuple[int, int]) -> None:
        codes[place[0]][place[1]] += 1 if error(place) < 0 else -1

    offered = []
    for n, kernel in enumerate(weights):
        places = [(n, t) for t in range(len(kernel))]
        if len(places) == 1:
            offered.extend(places)
            continue
        total = sum(map(error, places), Fraction(0))
        if total == 0:
            continue
        waiting, k = line(places, total), round(abs(total))
        for i in range(k):
            flip(waiting[i])
        offered.append(waiting[k - 1] if k >= abs(total) else waiting[k])

    total = sum((error((n, t)) for n, kernel in enumerate(weights) for t in range(len(kernel))), Fraction(0))
    waiting = line(offered, total)
    for i in range(round(abs(total))):
        flip(waiting[i])
    return codes


@given(layers())
def test_as_the_reference_on_a_grid(layer: tuple[Tensor, int]) -> None:
    assert torch.equal(squant(*layer), reference(*layer))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("shape", [(8, 48, 9), (8, 200, 1), (32, 1, 9), (4, 3, 49), (1, 1, 1)])
def test_as_the_reference_on_weights(bits: int, shape: tuple[int, int, int]) -> None:
    w = torch.randn(shape, generator=seeded(bits))
    y = scaled(w, largest(bits)).clamp(-largest(bits), largest(bits))
    assert torch.equal(squant(y, largest(bits)), reference(y, largest(bits)))


@pytest.mark.parametrize(
    ("y", "codes"),
    [
        pytest.param([[-0.5], [-(2**-26)]], [[-1], [0]], id="a sum that float32 would take for a half"),
        pytest.param([[0.4], [0.4], [0.4]], [[1], [0], [0]], id="one tap: all are candidates"),
        pytest.param([[0.3, 0.3], [0.3, 0.3]], [[0, 0], [1, 0]], id="overshot: flipped back"),
        pytest.param([[0.2, 0.2], [0.2, 0.2]], [[1, 0], [0, 0]], id="fell short: the next in line"),
        pytest.param([[0.25, -0.25], [0.25, 0.25], [0.25, 0.25]], [[0, 0], [1, 0], [0, 0]], id="S = 0: none"),
        pytest.param(
            [[0.5, 0.5], [0.25, 0.25], [0.25, 0.25]], [[1, 0], [1, 0], [0, 0]], id="k = |S|: not upwards"
        ),
        pytest.param(
            [[0.5, 0.5], [-0.25, -0.25], [-0.25, -0.25]], [[0, 0], [0, 0], [0, 0]], id="k = |S|: back"
        ),
    ],
)
def test_by_hand(y: list[list[float]], codes: list[list[int]]) -> None:
    assert squant(torch.tensor([y]), 7).tolist() == [codes]


# What the caller may pass


@given(
    st.lists(st.floats(-300, 300, width=32), min_size=36, max_size=36),
    st.sampled_from([(1, 4, 9), (2, 18, 1), (4, 1, 9)]),
    st.sampled_from(BITS),
)
def test_any_finite_weight_is_clipped_then_rounded(
    values: list[float], shape: tuple[int, int, int], bits: int
) -> None:
    """Off the grid a sum can miss a tie by the last bit of float64, and no more."""
    qmax = largest(bits)
    y = torch.tensor(values).reshape(shape)
    clipped = y.clamp(-qmax, qmax)
    for round_ in (squant, nearest):
        q = round_(y, qmax)
        assert torch.equal(q, round_(clipped, qmax))
        assert ((q == clipped.floor()) | (q == clipped.ceil())).all()
    e = squant(y, qmax).double() - clipped.double()
    assert (e.sum((1, 2)).abs() <= 0.5 + 1e-12).all()
    assert (e.sum(2).abs() <= 1 + 1e-12).all()


@pytest.mark.parametrize("bits", BITS)
def test_a_largest_weight_that_division_puts_out_of_range(bits: int) -> None:
    qmax = largest(bits)
    w = torch.linspace(0.5, 1.0, 4096).reshape(-1, 1, 1) * torch.tensor([1.0, -1.0, 0.3, 0.3]).reshape(
        1, 4, 1
    )
    y = scaled(w, qmax)
    assert (y.abs() > qmax).any() or qmax <= 3
    for round_ in (squant, nearest):
        assert (round_(y, qmax).abs() <= qmax).all()


def test_nearest_is_half_to_even() -> None:
    y = torch.tensor([[[-1.5, -0.5, 0.5, 1.5, 2.5, 9.0]]])
    assert nearest(y, 7).flatten().tolist() == [-2, 0, 0, 2, 2, 7]


@pytest.mark.parametrize("shape", [(7, 5, 9), (7, 45, 1)])
def test_parts_change_nothing(shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    y = torch.randn(shape, generator=seeded(0))
    whole = squant(y, 7)
    for size in (1, 100):
        monkeypatch.setattr(rounding, "_PART", size)
        assert torch.equal(squant(y, 7), whole)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_keeps_dtype_and_asks_nothing_of_its_input(dtype: torch.dtype) -> None:
    y = torch.randn(6, 9, 4, generator=seeded(0)).to(dtype).transpose(1, 2)
    before = y.clone()
    q = squant(y.requires_grad_(), 7)
    assert q.dtype == dtype
    assert not q.requires_grad
    assert torch.equal(q, squant(before.contiguous(), 7))
    assert torch.equal(y, before)


@pytest.mark.parametrize("shape", [(0, 3, 9), (3, 4, 9), (3, 4, 1)])
def test_nothing_and_zeros(shape: tuple[int, int, int]) -> None:
    for round_ in (squant, nearest):
        assert torch.equal(round_(torch.zeros(shape), 7), torch.zeros(shape))
