"""Rounding: from weights divided by their scale to whole codes.

Weights come as y = w / s, laid out (channels, kernels, taps): a channel has one scale (an output channel,
or a group of it), its kernels are the input channels it reads, its taps the elements of a kernel (1 in
linear layers and 1×1 convolutions). Codes go back in the same layout and dtype, whole numbers in [−qmax,
qmax]. Values out of range are clipped before they are rounded: Q(w) = round(clip(w / s)) · s. The caller
sees to it that y is finite.
"""

import torch
from torch import Tensor

# SQuant works on some ten float64 copies of its input: channels go in parts of about this many weights.
_PART = 1 << 20


def nearest(y: Tensor, qmax: int) -> Tensor:
    """q = round(clip(y, −qmax, qmax)), half to even: the least error of each weight by itself."""
    return y.clamp(-qmax, qmax).round()


def squant(y: Tensor, qmax: int) -> Tensor:
    """SQuant: each weight goes up or down such that the errors cancel in every kernel and channel.

    From q = round(y) and e = q − y, a *flip* takes a code to the other neighbour of y: q ← q − sign(e), and
    |e| ← 1 − |e|. A group with S = Σe flips the k = round(|S|) largest errors of the sign of S. That leaves
    |Σe| ≤ ½, at the least Σe² that this many flips can have.

    1. Every kernel is a group; skipped where kernels have one tap.
    2. Every channel is a group, to which each kernel offers one weight: the last it flipped, to go back, if
       k ≥ |S|; the next in line if k < |S|; none if S = 0. A kernel of one tap offers that tap.

    In the end every code is a neighbour of its y, and |Σe| ≤ ½ in channels and ≤ 1 in kernels. Candidates
    never run out: parts of at most ½ (errors in a kernel, kernels in a channel) add up to S only if 2|S| ≥
    k of them have its sign, and the weight a kernel offers has the sign of its sum. Nor do flips leave the
    range: the neighbours of a y within ±qmax are within it too. Equal errors flip in memory order.
    """
    codes = torch.empty_like(y, requires_grad=False)
    _, kernels, taps = y.shape
    part = max(1, _PART // max(1, kernels * taps))
    for start in range(0, len(y), part):
        piece = _double(y.detach()[start : start + part])
        codes[start : start + part] = _squant(piece.clamp(-qmax, qmax))
    return codes


def _double(y: Tensor) -> Tensor:
    """In float64 the errors of float32 weights are exact, and their sums too but for bits below 2⁻⁴⁰."""
    # Apple's GPUs have no float64.
    return y.to("cpu" if y.device.type == "mps" else y.device, torch.float64)


def _squant(y: Tensor) -> Tensor:
    q = y.round()
    e = q - y
    offered = torch.ones_like(e, dtype=torch.bool)
    if y.shape[2] > 1:
        flips, offered = _flip_in_kernels(e)
        q, e = q - flips, e - flips
    # A lone kernel is its channel, with nothing left to do.
    if y.shape[1] > 1:
        q = q - _flip_in_channels(e, offered)
    return q


def _flip_in_kernels(e: Tensor) -> tuple[Tensor, Tensor]:
    """What every q and e loses (−1, 0 or 1), and the weight that each kernel offers to its channel."""
    total = e.sum(-1, keepdim=True)
    k, rank = total.abs().round(), _rank(e, total)
    edge = torch.where(k < total.abs(), k, k - 1)
    return total.sign() * (rank < k), rank == edge


def _flip_in_channels(e: Tensor, offered: Tensor) -> Tensor:
    """What every q loses (−1, 0 or 1), given at most one weight on offer in each kernel."""
    total = e.sum((1, 2)).unsqueeze(-1)
    rank = _rank((e * offered).sum(-1), total)
    flips = total.sign() * (rank < total.abs().round())
    return flips.unsqueeze(-1) * offered


def _rank(e: Tensor, total: Tensor) -> Tensor:
    """Place of each error, largest first from 0, among those of the sign of their total; ∞ for the rest.

    A total of 0 has no sign, so that none has a place.
    """
    size = e * total.sign()
    order = size.argsort(dim=-1, descending=True, stable=True)
    places = torch.arange(e.shape[-1], dtype=e.dtype, device=e.device).expand_as(e)
    return torch.empty_like(e).scatter_(-1, order, places).masked_fill_(size <= 0, torch.inf)
