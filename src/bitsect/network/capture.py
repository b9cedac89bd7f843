"""Any PyTorch network as a program whose layers are its multiplies."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, ShapesCollection
from torch.nn.modules import transformer
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from ..errors import CaptureError
from ..names import user_folders
from ..sources.models.pt2 import SavedProgram
from .binding import Inputs, call_arguments
from .comparison import answer_of, compare
from .exported_program import batch_size, copied, copy_constants, merge_aliases
from .grouped import grouped_products
from .operators import DECOMPOSITIONS
from .program import Program
from .quiet import quiet
from .reader import read_graph
from .structures import register_outputs


@user_folders()
def capture(
    model: nn.Module | ExportedProgram,
    example: Inputs = None,
    *,
    embeddings: bool = False,
    sequences: bool = False,
    device: str | torch.device | None = None,
    shared: bool = False,
) -> Program:
    """The program of `model`, with a batch of any size where the network allows it.

    It is a snapshot: its weights are a copy, so that training the network on does not change it. They are
    `shared` where nobody else holds the network.

    With `sequences`, the second axis of whole-number inputs is one of tokens: it may be of any length too.

    `example` is one batch of inputs: a tensor, a tuple of positional arguments or a dictionary of
    keyword arguments. The model is captured in evaluation mode and left as it was.

    >>> program = capture(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()), torch.zeros(2, 1, 8, 8))
    >>> [(layer.name, layer.kind, layer.macs) for layer in program.layers]
    [('0', 'conv2d', 1296)]
    """
    if device is not None:
        device = _usable(device)
    if isinstance(model, ExportedProgram):
        example = example if example is not None else _stored_example(model)
        return _read(model, model, example, embeddings, device, shared)
    _check(model, example)
    model = _unwrapped(model)
    with _as_captured(model), _by_name(model, example):
        exported, inputs = _export(model, _beside(model, example), sequences)
        program = _read(model, exported, example, embeddings, device, shared)
        program.comparison = compare(program, model, inputs)
    return program


def _read(
    model: nn.Module | ExportedProgram,
    exported: ExportedProgram,
    example: Inputs,
    embeddings: bool,
    device: torch.device | None,
    shared: bool,
) -> Program:
    """The program of an exported graph, which is left as it is."""
    try:
        with quiet():
            functional = exported.run_decompositions({**DECOMPOSITIONS, **grouped_products()})
    except Exception as error:
        raise CaptureError(_explain(error, type(model).__name__)) from error
    merge_aliases(functional)
    if not shared:
        copy_constants(functional)
        example = pytree.tree_map_only(Tensor, copied, example)
    if device is not None:
        functional = _on_device(functional, device)
    return read_graph(functional, example, embeddings=embeddings)


def _check(model: object, example: Inputs) -> None:
    """Refuse what is no network, and a network without an example."""
    if isinstance(model, torch.jit.ScriptModule):
        raise CaptureError(
            "a TorchScript module (torch.jit.script or trace) cannot be captured: "
            "give the nn.Module that it was made of"
        )
    if not isinstance(model, nn.Module):
        kind, way_out = type(model).__name__, "give a torch.nn.Module"
        if isinstance(model, type) and issubclass(model, nn.Module):
            kind, way_out = f"class {model.__name__}", f"give an instance of it, {model.__name__}(…)"
        elif isinstance(model, Mapping):
            way_out = "weights alone are no network: build the nn.Module and call its load_state_dict"
        elif callable(model):
            way_out = "call it in the forward of an nn.Module, and give that"
        raise CaptureError(f"a network is expected, not a {kind}: {way_out}")
    if example is None:
        raise CaptureError("a network needs an example input to be captured: capture(model, example)")


def _export(model: nn.Module, example: Inputs, sequences: bool) -> tuple[ExportedProgram, Inputs]:
    """The exported program, and the inputs it was exported with."""
    # Three attempts: dynamic batch size; fixed batch size, for networks that cannot be traced otherwise;
    # the example unchanged, since a leading 1 is not always a batch. If all fail we report the last
    # error, because it concerns the example that the user passed.
    two = _at_least_two(example)
    attempts = [(two, True, False), (two, False, False)]
    attempts += [(example, False, False)] if two is not example else []
    if sequences:  # before all others, and given up first
        attempts = [(two, True, True), *attempts]
    for inputs, is_open, any_length in attempts:
        args, kwargs = call_arguments(inputs)
        for _ in range(2):
            try:
                with quiet(), torch.no_grad(), _naming(model, kwargs):
                    shapes = _any_batch(model, args, kwargs, any_length) if is_open else None
                    return torch.export.export(model, args, kwargs, dynamic_shapes=shapes), inputs
            except Exception as error:
                refusal = error
                if "not a known type" not in str(error) or not _knows_outputs(model, inputs):
                    break
    raise CaptureError(_explain(refusal, type(model).__name__)) from refusal


def _knows_outputs(model: nn.Module, inputs: Inputs) -> bool:
    """Whether classes of the outputs were not known to torch.export, and are now."""
    with suppress(Exception):  # that the network does not run is said where it is captured
        return register_outputs(answer_of(model, inputs))
    return False


@contextmanager
def _as_captured(model: nn.Module) -> Iterator[None]:
    """`model` in evaluation mode, without modules that only wrap others, while it is traced."""
    _register_caches(model)
    training = [module for module in model.modules() if module.training]
    wrapped = [
        (parent._modules, name, child)
        for parent in model.modules()
        for name, child in parent._modules.items()
        if child is not None and _unwrapped(child) is not child
    ]
    detect = transformer._detect_is_causal_mask
    # torch asks the values of a mask whether it is causal, which only chooses a kernel.
    transformer._detect_is_causal_mask = _given_as_causal
    model.eval()
    try:
        for children, name, child in wrapped:
            children[name] = _unwrapped(child)
        yield
    finally:
        transformer._detect_is_causal_mask = detect
        for children, name, child in wrapped:
            children[name] = child
        for module in training:
            module.training = True


def _given_as_causal(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    return bool(is_causal)


def _unwrapped(module: nn.Module) -> nn.Module:
    """The network inside torch.compile, DataParallel and DistributedDataParallel."""
    inner = getattr(module, "_orig_mod", None)
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        inner = module.module
    return _unwrapped(inner) if isinstance(inner, nn.Module) else module


def _register_caches(model: nn.Module) -> None:
    """Make structures of the key-value caches that transformers' models return."""
    if "transformers" in sys.modules:
        with suppress(ImportError):
            from transformers.exporters.exporter_dynamo import register_cache_pytrees_for_model

            register_cache_pytrees_for_model(model)


def _any_batch(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], sequences: bool) -> Any:
    """The leading axis left open wherever it is as long as the batch, and that of tokens too."""
    leaves = _with_rows((args, kwargs))
    batch, shapes = Dim("batch", min=1), ShapesCollection()  # type: ignore[no-untyped-call]
    for leaf in leaves:
        if len(leaf) == batch_size(leaves):
            tokens = sequences and leaf.ndim > 1 and not leaf.is_floating_point()
            shapes[leaf] = {0: batch, 1: Dim.AUTO} if tokens else {0: batch}
    return shapes.dynamic_shapes(model, args, kwargs)  # type: ignore[no-untyped-call]


@contextmanager
def _by_name(model: nn.Module, example: Inputs) -> Iterator[None]:
    """`model` with a forward that takes the names of a dictionary, if its own takes the dictionary itself."""
    known = inspect.signature(model.forward).parameters.values()
    needed = [each for each in known if each.default is each.empty and each.kind != each.VAR_KEYWORD]
    takes_one = len(needed) == 1 and needed[0].annotation not in (Tensor, "Tensor", "torch.Tensor")
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [str(name) for name in example] if isinstance(example, Mapping) else []
    own = {each.name for each in known} & {*names}
    if names and all(map(str.isidentifier, names)) and takes_one and needed[0].kind in by_place and not own:
        with _forward(model, lambda original, args, kwargs: original(kwargs), names):
            yield
    else:
        yield


@contextmanager
def _naming(model: nn.Module, kwargs: dict[str, Any]) -> Iterator[None]:
    """`model` with a forward that names `kwargs`: torch.export opens no batch behind `**kwargs`."""
    known = inspect.signature(model.forward).parameters
    if all(name in known for name in kwargs):
        yield
    else:
        with _forward(model, lambda original, args, kwargs: original(*args, **kwargs), kwargs):
            yield


@contextmanager
def _forward(model: nn.Module, call: Callable[..., Any], names: Iterable[str]) -> Iterator[None]:
    """`model` with a forward of these `names`, which does `call` with its own."""
    original, overridden = model.forward, "forward" in vars(model)

    def forward(*args: Any, **kwargs: Any) -> Any:
        return call(original, args, kwargs)

    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    vars(forward)["__signature__"] = inspect.Signature(parameters)
    vars(model)["forward"] = forward
    try:
        yield
    finally:
        if overridden:
            vars(model)["forward"] = original
        else:
            del vars(model)["forward"]


def _beside(model: nn.Module, example: Inputs) -> Inputs:
    """The example on the device of the network."""
    first = next(chain(model.parameters(), model.buffers()), None)
    if first is None:
        return example
    return pytree.tree_map_only(Tensor, lambda leaf: leaf.to(first.device), example)


def _at_least_two(example: Inputs) -> Inputs:
    """The example with its single sample doubled: torch.export takes a batch of one for a constant."""
    if batch_size(_with_rows(example)) != 1:
        return example

    def double(leaf: Any) -> Any:
        return torch.cat([leaf, leaf]) if isinstance(leaf, Tensor) and leaf.shape[:1] == (1,) else leaf

    return pytree.tree_map(double, example)


def _with_rows(inputs: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.ndim]


def _stored_example(exported: ExportedProgram) -> Inputs:
    stored = exported.example if isinstance(exported, SavedProgram) else exported.example_inputs
    if stored is None:
        raise CaptureError(
            "the exported program holds no example input: pass one, or export it again with one"
        )
    args, kwargs = stored
    if args and kwargs:
        raise CaptureError(
            "the exported program takes both positional and named inputs: export it again with one kind"
        )
    return kwargs if kwargs else args


def _usable(device: str | torch.device) -> torch.device:
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        raise CaptureError(f"device '{device}' cannot be used here: {str(error).splitlines()[0]}") from None


def _on_device(exported: ExportedProgram, device: torch.device) -> ExportedProgram:
    from torch.export.passes import move_to_device_pass

    values = (*exported.state_dict.values(), *exported.constants.values())
    if device.type != "meta" and any(isinstance(value, Tensor) and value.is_meta for value in values):
        raise CaptureError(f"the network is on the meta device: it has no weights to move to '{device}'")
    return move_to_device_pass(exported, device)


def _explain(error: BaseException, model: str) -> str:
    """One line: which line of the user's code, why, what to change."""
    foreign = {"torch", "sympy", "bitsect", *sys.stdlib_module_names}
    frames = [
        traceback.FrameSummary(frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "torch").partition(".")[0] not in foreign
    ]
    kind, text = type(error).__name__, str(error).strip()
    where = f" at {frames[-1].filename}:{frames[-1].lineno} `{frames[-1].line}`" if frames else ""
    why = f"{text.splitlines()[0] if text else 'no message'} ({kind})"
    way_out = "check that model(example) runs" + (", then mend this line" if frames else "")
    line = (frames[-1].line or "") if frames else ""
    if _holds_packed_sequence(error):
        why = "packed sequences have sizes that depend on the values of a tensor"
        way_out = "give the padded batch as it is, and take each row's last output by its length"
    elif "DataDependent" in kind or "data-dependent" in text:
        why = "what happens here depends on the values of a tensor, which a captured graph cannot know"
        way_out = "keep to tensor operations: torch.where or torch.cond in place of a branch"
        if line.startswith("assert"):
            way_out = "leave this assert out of forward"
        elif "numel()" in line:
            way_out = "leave the question out: layers take tensors without rows as well"
    elif "not a known type" in text:
        why = text.partition(". ")[0]
        way_out = (
            "let forward return tensors, or register the type with torch.utils._pytree.register_pytree_node"
        )
    elif "unexpected keyword argument" in text and not frames:
        way_out = "inputs that have names are passed by them: call a single one x, or as forward calls it"
    elif "already exists" in text:
        way_out = "torch.fx needs this name for itself: rename that parameter or module"
    elif "support" in text.lower() or "Unsupported" in kind:
        way_out = "move this call out of forward, or replace it by a tensor operation"
    return f"{model} cannot be captured{where}: {why}; {way_out}"


def _holds_packed_sequence(error: BaseException) -> bool:
    """Whether a function that `error` came through packs sequences or works on packed ones."""
    return any(
        frame.f_code is pack_padded_sequence.__code__
        or any(isinstance(value, PackedSequence) for value in frame.f_locals.values())
        for frame, _ in traceback.walk_tb(error.__traceback__)
    )
