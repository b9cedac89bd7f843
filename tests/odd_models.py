"""A zoo of odd small networks: each does one thing that a capture can get wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from bitsect.network.binding import call_arguments
from bitsect.network.capture import capture
from bitsect.network.program import Program

BATCH = 2  # of every example


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """For a module that imports it: threads that wait for each other at every small step take most of the
    time on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


Made = tuple[nn.Module, Any]
MODELS: dict[str, Callable[[], Made]] = {}


def odd(make: Callable[[], Made]) -> Callable[[], Made]:
    """Enter a network into the zoo, seeded, in evaluation mode unless it is about training."""

    def seeded() -> Made:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(sum(make.__name__.encode()))
            model, example = make()
        return (model if make.__name__.startswith("training") else model.eval()), example

    MODELS[make.__name__] = seeded
    return seeded


@cache
def model_of(name: str) -> Made:
    return MODELS[name]()


@cache
def program_of(name: str) -> Program:
    return capture(*model_of(name))


def batch_of(example: Any, rows: int) -> Any:
    """Other inputs of the same structure with `rows` samples; what has no batch axis stays as it is."""
    generator = torch.Generator().manual_seed(rows)

    def vary(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.ndim or leaf.shape[0] != BATCH:
            return leaf
        repeated = leaf[torch.arange(rows) % BATCH]
        if not leaf.is_floating_point():
            return repeated
        return repeated + torch.randn(repeated.shape, generator=generator).to(leaf.dtype)

    return pytree.tree_map(vary, example)


def reference(model: nn.Module, inputs: Any) -> Any:
    """What the network answers when torch splits attention and recurrences as capture does."""
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    is_recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    try:
        with (
            sdpa_kernel(SDPBackend.MATH),
            torch.backends.mkldnn.flags(enabled=torch.backends.mkldnn.enabled and not is_recurrent),
        ):
            return eager(model, inputs)
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def eager(model: nn.Module, inputs: Any) -> Any:
    """What the network itself answers, with its buffers left alone."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    training = [module for module in model.modules() if module.training]
    args, kwargs = call_arguments(inputs)
    try:
        with torch.no_grad():
            return model.eval()(*pytree.tree_map(lambda x: x, args), **kwargs)
    finally:
        for module in training:
            module.training = True
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])


def same(one: Any, other: Any) -> bool:
    """Whether two outputs have one structure and the same bits."""
    (left, left_spec), (right, right_spec) = pytree.tree_flatten(one), pytree.tree_flatten(other)
    return left_spec == right_spec and all(
        (a.dtype == b.dtype and a.shape == b.shape and torch.equal(_bits(a), _bits(b)))
        if isinstance(a, Tensor)
        else a == b
        for a, b in zip(left, right, strict=True)
    )


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def close(one: Any, other: Any, tolerance: float = 1e-5) -> bool:
    pairs = zip(pytree.tree_leaves(one), pytree.tree_leaves(other), strict=True)
    return all(
        torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
        for a, b in pairs
        if isinstance(a, Tensor)
    )


class Block(nn.Module):
    """A network written as a function of itself and its inputs."""

    def __init__(self, run: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)
        self.run = run

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self, *args, **kwargs)


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) / shape[-1] ** 0.5)


def image(channels: int = 3, size: int = 8) -> Tensor:
    return torch.randn(BATCH, channels, size, size)


def rows(width: int = 8, length: int = 5) -> Tensor:
    return torch.randn(BATCH, length, width)


# Weights in several places


class Chain(nn.Module):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = torch.relu(part(x))
        return x


@odd
def shared_weight() -> Made:
    model = Chain(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    model.parts[2].weight = model.parts[0].weight
    return model, rows()


@odd
def shared_memory() -> Made:
    """Two parameters over the same memory, as `.data` makes them."""
    model = Chain(nn.Linear(8, 8), nn.Linear(8, 8))
    model.parts[1].weight = nn.Parameter(model.parts[0].weight.data)
    return model, rows()


@odd
def module_used_twice() -> Made:
    layer = nn.Linear(8, 8)
    return Chain(layer, nn.LayerNorm(8), layer), rows()


@odd
def block_used_twice() -> Made:
    """A module with a matmul of two activations, called twice: two layers."""

    class Gram(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(5, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.mix(x @ x.transpose(1, 2)) @ x

    block = Gram()
    return nn.Sequential(block, nn.Tanh(), block), rows()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.body = nn.Linear(8, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.body(self.embedding(tokens))), self.embedding.weight)


@odd
def tied_embedding() -> Made:
    return Tied(), torch.randint(11, (BATCH, 6))


@odd
def tied_decoder() -> Made:
    """The same as two modules that share a parameter."""
    model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 8), nn.Linear(8, 11, bias=False))
    model[2].weight = model[0].weight
    return model, torch.randint(11, (BATCH, 6))


@odd
def autoencoder() -> Made:
    """A weight and its transpose."""

    def run(self: Any, x: Tensor) -> Tensor:
        return F.linear(torch.relu(F.linear(x, self.table)), self.table.t())

    return Block(run, table=weight(3, 8)), torch.randn(BATCH, 8)


# Residuals and in-place operations


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.norm.running_mean = torch.randn(4)
        self.norm.running_var = torch.rand(4) + 0.5

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm(self.a(x)), inplace=True)
        y = self.b(y)
        y += x
        return y.relu_()


@odd
def residual_in_place() -> Made:
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(inplace=True), Residual(), Residual()), image()


@odd
def slices_in_place() -> Made:
    def run(self: Any, x: Tensor) -> Tensor:
        y = self.a(x)
        y[:, 0] = 1.0
        y[:, 1:3] *= 2
        y[..., -1].add_(x[..., 0])
        y[:, 3].zero_()
        z = self.b(y)
        y.mul_(3)  # after the layer that read it
        return z + y

    return Block(run, a=nn.Linear(8, 8), b=nn.Linear(8, 8)), rows()


@odd
def slices_assigned() -> Made:
    def run(self: Any, x: Tensor) -> Tensor:
        y = self.a(x)
        y[:, :2] = x[:, 2:4]
        y[:, 3] = x[:, 0, :1]
        return self.b(y)

    return Block(run, a=nn.Linear(8, 8), b=nn.Linear(8, 8)), rows()


@odd
def input_in_place() -> Made:
    def run(self: Any, x: Tensor) -> Tensor:
        x = x.clone()
        return self.b(self.a(x.mul_(2)).clamp_(min=0).add_(x))

    return Block(run, a=nn.Linear(8, 8), b=nn.Linear(8, 8)), rows()


@odd
def buffer_counted() -> Made:
    """A buffer that forward changes: every run starts from the captured value."""

    def run(self: Any, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(x) * self.calls

    return Block(run, layer=nn.Linear(8, 8), calls=torch.zeros(1)), rows()


# Multiplies without a module


@odd
def functional_matmul() -> Made:
    return Block(lambda self, x: torch.softmax(x @ x.transpose(1, 2), -1) @ x), rows()


@odd
def matmul_weights() -> Made:
    """Weights on the right, on the left, one-dimensional and batched."""

    def run(self: Any, x: Tensor) -> Tensor:
        y = x @ self.right
        y = torch.matmul(self.left, y)
        y = torch.matmul(y.unsqueeze(1), self.heads).sum(1)
        return torch.matmul(y, self.vector)

    return Block(run, right=weight(8, 6), left=weight(4, 5), heads=weight(3, 6, 6), vector=weight(6)), rows()


@odd
def bmm_mm_baddbmm() -> Made:
    def run(self: Any, x: Tensor) -> Tensor:
        y = torch.bmm(x, x.transpose(1, 2))
        y = torch.baddbmm(y, x, x.transpose(1, 2), beta=0.5, alpha=2)
        y = torch.mm(y.flatten(1), self.mix)
        y = torch.addmm(self.bias, y, self.last, beta=1.5)
        return torch.mv(y, self.vector)

    parts = {"mix": weight(25, 8), "bias": weight(4), "last": weight(8, 4), "vector": weight(4)}
    return Block(run, **parts), rows()


@odd
def products_in_disguise() -> Made:
    """inner, tensordot, linalg.matmul and keywords: all are matmuls."""

    def run(self: Any, x: Tensor) -> Tensor:
        y = torch.inner(x, self.a)
        y = torch.tensordot(y, self.b, dims=1)
        y = F.linear(weight=self.c, input=y)
        y = torch.linalg.matmul(y, self.d)
        return torch.addmm(input=self.bias, mat1=y.flatten(0, 1), mat2=self.e)

    return Block(run, bias=weight(8), **{name: weight(8, 8) for name in "abcde"}), rows()


@odd
def product_chains() -> Made:
    """multi_dot and chain_matmul choose their order by the sizes, the batch among them."""

    def run(self: Any, x: Tensor) -> Tensor:
        y = torch.linalg.multi_dot([x.flatten(1), self.a, self.b])
        return torch.chain_matmul(y, self.c)

    return Block(run, a=weight(40, 6), b=weight(6, 7), c=weight(7, 4)), rows()


@odd
def products_of_vectors() -> Made:
    """addbmm, addmv, dot, vdot: listed, not layers."""

    def run(self: Any, x: Tensor) -> Any:
        y = torch.addbmm(self.a, x.transpose(1, 2), x)
        v = torch.addmv(self.v, self.a, y[0])
        return torch.dot(v, y[1]), torch.vdot(v, y[2]), torch.linalg.vecdot(x, x)

    return Block(run, a=weight(8, 8), v=weight(8)), rows()


@odd
def einsum() -> Made:
    def run(self: Any, x: Tensor) -> Tensor:
        y = torch.einsum("btd,de->bte", x, self.right)
        y = torch.einsum("st,bte->bse", self.left, y)
        scores = torch.einsum("bte,bse->bts", y, y)
        y = torch.einsum("bts,bse->bte", scores.softmax(-1), y)
        y = torch.einsum("bte->bte", y)  # one factor: no product
        return torch.einsum("bte,hef->bhtf", y, self.heads)

    return Block(run, right=weight(8, 6), left=weight(5, 5), heads=weight(2, 6, 3)), rows()


@odd
def einsum_shorthand() -> Made:
    """Ellipsis, the arrow left out, and a label on its own."""

    def run(self: Any, x: Tensor) -> Tensor:
        y = torch.einsum("...d,ed->...e", x, self.a)
        y = torch.einsum("b t e , e f", y, self.b)
        return torch.einsum("hf,...ft->...ht", self.c, y)

    return Block(run, a=weight(6, 8), b=weight(6, 4), c=weight(3, 4)), rows()


@odd
def outer_products() -> Made:
    """Rotary angles: a product that sums nothing is no layer."""

    def run(self: Any, x: Tensor) -> Tensor:
        steps = x[..., :1]
        angles = (self.frequencies[:, None] @ steps.transpose(1, 2)).transpose(1, 2)
        return self.layer(x) * angles.cos() * torch.einsum("bt,d->btd", steps.squeeze(-1), self.frequencies)

    return Block(run, layer=nn.Linear(8, 8), frequencies=torch.rand(8)), rows()


class Conv1D(nn.Module):
    """GPT-2's: a linear layer whose weight is transposed."""

    def __init__(self, out: int, width: int) -> None:
        super().__init__()
        self.weight, self.bias = weight(width, out), nn.Parameter(torch.randn(out))

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:-1], self.weight.shape[1])
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(shape)


@odd
def gpt2_conv1d() -> Made:
    return nn.Sequential(Conv1D(12, 8), nn.GELU(), Conv1D(8, 12)), rows()


@odd
def expanded_weight() -> Made:
    """A weight repeated along the batch for bmm."""

    def run(self: Any, x: Tensor) -> Tensor:
        return torch.bmm(x, self.w.unsqueeze(0).expand(x.shape[0], -1, -1))

    return Block(run, w=weight(8, 4)), rows()


# Convolutions


@odd
def convolutions() -> Made:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, groups=8),
        nn.Conv2d(8, 16, 3, groups=2, dilation=2, padding=2, bias=False),
        nn.ConvTranspose2d(16, 6, 3, stride=2, padding=1, output_padding=1),
        nn.ConvTranspose2d(6, 4, (2, 3), groups=2, dilation=(1, 2)),
    ), image()


@odd
def convolutions_1d() -> Made:
    return nn.Sequential(
        nn.Conv1d(4, 8, 3, padding=1),
        nn.Conv1d(8, 8, 4, padding="same", groups=4),
        nn.Conv1d(8, 8, 3, padding="valid", dilation=2),
        nn.ConvTranspose1d(8, 2, 4, stride=3),
    ), torch.randn(BATCH, 4, 12)


@odd
def convolutions_3d() -> Made:
    return nn.Sequential(
        nn.Conv3d(2, 4, (3, 1, 3), padding=(1, 0, 1)),
        nn.ConvTranspose3d(4, 4, 2, groups=2),
    ), torch.randn(BATCH, 2, 4, 5, 4)


@odd
def padding_same() -> Made:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding="same", dilation=2),
        nn.Conv2d(4, 4, (3, 4), padding="same"),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
    ), image()


@odd
def channels_last() -> Made:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(64, 3))
    return model.to(memory_format=torch.channels_last), image().to(memory_format=torch.channels_last)


@odd
def hard_gates() -> Made:
    """MobileNetV3's activations around a squeeze and excitation."""

    def run(self: Any, x: Tensor) -> Tensor:
        y = F.hardswish(self.a(x))
        return self.c(y * F.hardsigmoid(self.b(y.mean((2, 3), keepdim=True))))

    return Block(run, a=nn.Conv2d(3, 4, 3), b=nn.Conv2d(4, 4, 1), c=nn.Conv2d(4, 2, 1)), image()


@odd
def dynamic_filter() -> Made:
    """A convolution whose kernel is an activation."""

    def run(self: Any, x: Tensor) -> Tensor:
        kernel = self.make(x).mean((0, 2, 3)).view(4, 3, 1, 1)
        return F.conv2d(x, kernel)

    return Block(run, make=nn.Conv2d(3, 12, 1)), image()


# Attention


def attend(**options: Any) -> Callable[[], Made]:
    def run(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).view(x.shape[0], -1, 3, 4, 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **options)
        return self.out(y.transpose(1, 2).flatten(2))

    return lambda: (Block(run, qkv=nn.Linear(16, 48), out=nn.Linear(16, 16)), rows(16))


def _causal_mask() -> Tensor:
    return torch.zeros(5, 5).masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), float("-inf"))


@odd
def attention() -> Made:
    return attend()()


@odd
def attention_causal() -> Made:
    return attend(is_causal=True)()


@odd
def attention_scaled() -> Made:
    return attend(scale=-0.3)()


@odd
def attention_float_mask() -> Made:
    model, x = attend()()
    return model, (x, _causal_mask())


@odd
def attention_bool_mask() -> Made:
    model, x = attend()()
    return model, {"mask": torch.rand(BATCH, 1, 1, 5) > 0.3, "x": x}


@odd
def attention_all_masked() -> Made:
    """The last sample attends to nothing."""
    model, x = attend()()
    mask = torch.rand(BATCH, 1, 5, 5) > 0.3
    mask[-1] = False
    return model, (x, mask)


@odd
def attention_grouped_queries() -> Made:
    def run(self: Any, x: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (6, 4)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (2, 2, 4)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return y.transpose(1, 2).flatten(2)

    return Block(run, q=nn.Linear(8, 24), kv=nn.Linear(8, 16)), rows()


@odd
def attention_odd_width() -> Made:
    """Heads whose √scale is not the same through two roundings; values of another width."""

    def run(self: Any, x: Tensor) -> Tensor:
        y = self.qkv(x)
        q, k, v = y[..., :7], y[..., 7:14], y[..., 14:]
        return F.scaled_dot_product_attention(q, k, v)

    return Block(run, qkv=nn.Linear(8, 17)), rows()


@odd
def attention_half() -> Made:
    model, x = attend(is_causal=True)()
    return model.half(), x.half()


@odd
def multihead_attention() -> Made:
    def run(self: Any, x: Tensor) -> Any:
        return self.attend(x, x, x, need_weights=True)

    return Block(run, attend=nn.MultiheadAttention(8, 2, batch_first=True)), rows()


@odd
def multihead_attention_masked() -> Made:
    """Boolean masks, which become −∞ and are added to the scores."""

    def run(self: Any, x: Tensor) -> Tensor:
        later = torch.ones(5, 5, dtype=torch.bool, device=x.device).triu(1)
        padding = (torch.arange(5, device=x.device) > 3).expand(x.shape[0], 5)
        return self.attend(x, x, x, attn_mask=later, key_padding_mask=padding)[0]

    return Block(run, attend=nn.MultiheadAttention(8, 2, batch_first=True)), rows()


@odd
def cross_attention() -> Made:
    def run(self: Any, x: Tensor, memory: Tensor) -> Tensor:
        return self.attend(x, memory, memory, need_weights=False)[0]

    attend = nn.MultiheadAttention(8, 2, kdim=6, vdim=6, batch_first=True)
    return Block(run, attend=attend), (rows(), rows(6, 4))


@odd
def sequence_first() -> Made:
    """The batch is the second axis of everything inside."""

    def run(self: Any, x: Tensor) -> Tensor:
        y = x.transpose(0, 1)
        return self.attend(y, y, y, need_weights=False)[0].transpose(0, 1)

    return Block(run, attend=nn.MultiheadAttention(8, 2)), rows()


@odd
def encoder_layer() -> Made:
    mask = torch.zeros(BATCH, 5, dtype=torch.bool)
    mask[1, 3:] = True
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), {
        "src": rows(),
        "src_key_padding_mask": mask,
    }


@odd
def encoder_causal() -> Made:
    """As tutorials call it: torch asks whether the values of the mask are causal."""

    def run(self: Any, x: Tensor) -> Tensor:
        return self.encoder(x, nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device))

    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    return Block(run, encoder=nn.TransformerEncoder(layer, 1)), rows()


@odd
def decoder_layer() -> Made:
    def run(self: Any, x: Tensor, memory: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return self.layer(x, memory, tgt_mask=mask, tgt_is_causal=True)

    return Block(run, layer=nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)), (rows(), rows(8, 4))


# Inputs and outputs


@odd
def dictionary_input() -> Made:
    def run(self: Any, first: Tensor, second: Tensor, scale: float = 1.0) -> Tensor:
        return self.a(first) * scale + self.b(second)

    inputs = {"second": torch.randn(BATCH, 6), "first": torch.randn(BATCH, 8)}
    return Block(run, a=nn.Linear(8, 4), b=nn.Linear(6, 4)), inputs


@odd
def dictionary_argument() -> Made:
    """A dictionary inside a tuple: one positional argument."""

    def run(self: Any, batch: dict[str, Tensor]) -> Tensor:
        return self.a(batch["x"]) + batch["pair"][0] * batch["pair"][1]

    x, y, z = torch.randn(BATCH, 8), torch.randn(BATCH, 4), torch.randn(BATCH, 4)
    return Block(run, a=nn.Linear(8, 4)), ({"x": x, "pair": [y, z]},)


@odd
def tuple_input() -> Made:
    return nn.Bilinear(6, 7, 4), (torch.randn(BATCH, 6), torch.randn(BATCH, 7))


@odd
def unbatched_input() -> Made:
    """One of the inputs has no batch axis."""

    def run(self: Any, x: Tensor, positions: Tensor, shift: Tensor) -> Tensor:
        return self.a(x + positions) * shift

    return Block(run, a=nn.Linear(8, 4)), (rows(), torch.randn(5, 8), torch.randn(1, 1, 4))


@odd
def constant_arguments() -> Made:
    """None, a flag and a number among the inputs."""

    def run(self: Any, x: Tensor, mask: Tensor | None, double: bool, power: int) -> Tensor:
        y = self.a(x) if mask is None else x
        return (y * 2 if double else y) ** power

    return Block(run, a=nn.Linear(8, 4)), {"x": rows(), "mask": None, "double": True, "power": 2}


@odd
def integer_input() -> Made:
    return nn.Sequential(nn.Embedding(9, 8), nn.Flatten(), nn.Linear(32, 3)), torch.randint(9, (BATCH, 4))


@odd
def two_outputs() -> Made:
    def run(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.a(x)
        return y, self.b(torch.relu(y))

    return Block(run, a=nn.Linear(8, 4), b=nn.Linear(4, 4)), torch.randn(BATCH, 8)


@odd
def nested_outputs() -> Made:
    def run(self: Any, x: Tensor) -> dict[str, Any]:
        y = self.a(x)
        return {"deep": [y, (self.b(y), {"x": x})], "none": None, "number": 3, "table": self.a.weight, "y": y}

    return Block(run, a=nn.Linear(8, 4), b=nn.Linear(4, 4)), torch.randn(BATCH, 8)


@odd
def scalar_output() -> Made:
    def run(self: Any, x: Tensor) -> Tensor:
        return self.a(x).square().mean()

    return Block(run, a=nn.Linear(8, 4)), torch.randn(BATCH, 8)


# Weights that are made


@odd
def weight_norm() -> Made:
    norm = nn.utils.parametrizations.weight_norm
    return nn.Sequential(norm(nn.Conv2d(3, 4, 3)), nn.Flatten(), norm(nn.Linear(144, 3))), image()


@odd
def old_weight_norm() -> Made:
    def run(self: Any, x: Tensor) -> Tensor:
        return F.linear(x, self.v * (self.g / self.v.norm(dim=1, keepdim=True)))

    return Block(run, v=weight(4, 8), g=weight(4, 1)), torch.randn(BATCH, 8)


class StandardConv2d(nn.Conv2d):
    """A convolution that standardises its weight whenever it is called."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        weight = weight / weight.std((1, 2, 3), keepdim=True)
        return F.conv2d(x, weight, self.bias)


@odd
def standardised_weight() -> Made:
    return nn.Sequential(StandardConv2d(3, 4, 3), nn.ReLU(), StandardConv2d(4, 2, 3)), image()


@odd
def constant_subgraph() -> Made:
    """A product of constants alone is computed once and is no layer."""

    def run(self: Any, x: Tensor) -> Tensor:
        table = torch.arange(5.0, device=x.device)[:, None] @ self.table
        return self.a(x) + table.sin() + torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)

    return Block(run, a=nn.Linear(8, 4), table=torch.randn(1, 4)), rows()


@odd
def unused_parameters() -> Made:
    def run(self: Any, x: Tensor) -> Tensor:
        return self.a(x)

    return Block(run, a=nn.Linear(8, 4), b=nn.Linear(3, 3), spare=weight(7), buffer=torch.zeros(3)), rows()


@odd
def plain_batch_norm() -> Made:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False), nn.ReLU6(), nn.Conv2d(4, 2, 1))
    model[1].running_var.uniform_(0.5, 2)
    return model, image()


@odd
def training_mode() -> Made:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.ReLU(), nn.Conv2d(4, 2, 1)
    )
    model[1].eval()
    return model, image()


# What stays in float


@odd
def lstm() -> Made:
    def run(self: Any, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])

    return Block(run, cell=nn.LSTM(8, 6, batch_first=True), head=nn.Linear(6, 3)), rows()


@odd
def gru() -> Made:
    def run(self: Any, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0])

    return Block(run, cell=nn.GRU(8, 6, batch_first=True, bidirectional=True), head=nn.Linear(12, 3)), rows()


@torch.library.custom_op("bitsect_tests::double", mutates_args=())
def double(x: Tensor) -> Tensor:
    return x * 2


double.register_fake(torch.empty_like)


@odd
def custom_operator() -> Made:
    return Block(lambda self, x: self.a(double(x)), a=nn.Linear(8, 4)), rows()


@odd
def control_flow() -> Made:
    def run(self: Any, x: Tensor) -> Tensor:
        y = torch.cond(x.sum() > 0, lambda x: self.a(x), lambda x: x.sin(), (x,))
        return self.b(y)

    return Block(run, a=nn.Linear(8, 8), b=nn.Linear(8, 4)), rows()


@odd
def whole_numbers() -> Made:
    """A matmul of integers, and one of complex numbers."""

    def run(self: Any, x: Tensor) -> Tensor:
        counts = (x > 0).long()
        spectrum = torch.fft.fft(x)
        total = (spectrum @ spectrum.transpose(1, 2)).real
        return self.a(x) + (counts @ counts.transpose(1, 2)).sum((1, 2)).view(-1, 1, 1) + total.mean()

    return Block(run, a=nn.Linear(8, 4)), rows()


@odd
def masked_rows() -> Made:
    """How many rows a layer sees is known at run time only."""

    def run(self: Any, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x[x[..., 0] > 0]))).sum(0)

    return Block(run, a=nn.Linear(8, 4), b=nn.Linear(4, 3)), rows()


class Experts(nn.Module):
    """Each row goes to one of several experts; some get none. `never` lists those that no row is sent to."""

    def __init__(self, count: int = 4, never: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.gate = nn.Linear(8, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 8)) for _ in range(count)
        )
        self.head = nn.Linear(8, 5)
        with torch.no_grad():
            self.gate.bias[list(never)] = -100

    def forward(self, x: Tensor) -> Tensor:
        chosen, y = self.gate(x).argmax(-1), x
        for number, expert in enumerate(self.experts):
            (own,) = torch.where(chosen == number)
            y = y.index_add(0, own, expert(x[own]))
        return self.head(y)


@odd
def experts() -> Made:
    return Experts(), torch.randn(BATCH, 8)


# Batches that a network fixes


@odd
def fixed_view() -> Made:
    def run(self: Any, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x).view(2, -1)))

    return Block(run, a=nn.Linear(8, 4), b=nn.Linear(20, 3)), rows()


@odd
def fixed_loop() -> Made:
    def run(self: Any, x: Tensor) -> Tensor:
        return torch.stack([self.a(x[i]) for i in range(int(x.shape[0]))])

    return Block(run, a=nn.Linear(8, 4)), rows()


@odd
def fixed_branch() -> Made:
    """Another path for large batches: what was captured holds for the example's only."""

    def run(self: Any, x: Tensor) -> Tensor:
        return self.a(x) if x.shape[0] < 4 else -self.a(x)

    return Block(run, a=nn.Linear(8, 4)), rows()


# Precisions


@odd
def half() -> Made:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    return model.half(), image().half()


@odd
def double_precision() -> Made:
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4)).double(), rows().double()


@odd
def autocast_inside() -> Made:
    """Llama's rotary tables: a part that is kept out of autocast and of autograd."""

    def run(self: Any, x: Tensor) -> Tensor:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            scale = torch.softmax(self.a(x), -1)
        return self.b(x * scale)

    return Block(run, a=nn.Linear(8, 8), b=nn.Linear(8, 4)), rows()
