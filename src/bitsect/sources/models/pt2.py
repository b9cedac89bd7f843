"""Saved torch.export programs, built anew from what their files say: see `graph` for what may be in one."""

from __future__ import annotations

import logging
import zipfile
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch._export.verifier import TrainingIRVerifier
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    OutputKind,
    OutputSpec,
)
from torch.fx import Graph

from ...errors import BitsectError, DataError
from ...files import first_line, reading
from .archive import (
    DAMAGED,
    NOT_AN_ARCHIVE,
    SAVE,
    DamagedError,
    Members,
    UnsafeError,
    json_of,
    read_archive,
    read_examples,
    read_weights,
    shown,
)
from .graph import SavedGraph


def load_pt2(path: Path, *, trust: bool = False) -> ExportedProgram:
    """The program in `path`; what is not known to be harmless is refused, or left to torch with `trust`."""
    if not path.is_file():
        raise BitsectError(f"{path}: no such file")
    try:
        with reading(path, what="saved program", way_out=SAVE):
            return SavedProgram(read_archive(path))
    except BitsectError as error:
        if trust:
            return _by_torch(path)
        if isinstance(error, UnsafeError):
            error = BitsectError(
                f"{error}; loading it can run its author's code: pass [trust=True] if you know them"
            )
        known = isinstance(error.__cause__, Exception) or str(error).startswith(str(path))
        raise error if known else BitsectError(f"{path}: {error}") from None


def _by_torch(path: Path) -> ExportedProgram:
    """What torch's own loader makes of a file whose author the user knows: it runs what the file says."""
    with reading(path, what="saved program", way_out=SAVE), zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise BitsectError(f"{path}: {damaged}: {DAMAGED}")
    log = logging.getLogger("torch.export")
    level, log.level = log.level, logging.CRITICAL
    try:
        return torch.export.load(path)
    except Exception as error:
        raise BitsectError(
            f"{path}: torch.export cannot load it: {first_line(error)}; save it again with this torch"
        ) from error
    finally:
        log.level = level


class SavedProgram(ExportedProgram):
    """A program whose values and weights have names of ours, and whose inputs and outputs have no structure.

    What torch makes of it gets the names and structures of the file once torch is done, so that no text of
    the file is in the code that torch generates and executes to trace it.
    """

    def __init__(self, members: Members) -> None:
        programs = [name for name in members if name.startswith("models/")]
        if len(programs) != 1:
            raise DamagedError(f"it holds {len(programs)} programs, not one" if programs else NOT_AN_ARCHIVE)
        name = programs[0].removeprefix("models/").removesuffix(".json")
        self.saved = saved = SavedGraph(json_of(members, programs[0]))
        weights = read_weights(members, "data/weights/", f"{name}_weights_config.json")
        constants = read_weights(members, "data/constants/", f"{name}_constants_config.json")
        self.example = read_examples(members[f"data/sample_inputs/{name}.pt"])
        lacking = [path for path in saved.paths.values() if path not in weights.keys() | constants.keys()]
        if lacking:
            raise DamagedError(f"{shown(lacking[0])} is missing: {SAVE}")
        args = [spec.arg for spec in saved.inputs if spec.kind == InputKind.USER_INPUT]
        outputs = [spec.arg for spec in saved.outputs if spec.kind == OutputKind.USER_OUTPUT]
        in_spec = pytree.TreeSpec(tuple, None, [_flat(len(args)), pytree.TreeSpec(dict, [], [])])
        leaves, given = pytree.tree_flatten(self.example)
        if len(leaves) != len(saved.users):
            raise DamagedError(f"its example holds {len(leaves)} inputs, not {len(saved.users)}: {SAVE}")
        if [each.type for each in (given, *given.children())] != [tuple, tuple, dict]:
            raise DamagedError(f"its example is not given by place and by name: {SAVE}")
        flat = [
            None if name in saved.constants else leaf for name, leaf in zip(saved.users, leaves, strict=True)
        ]
        names = [arg.name for arg in args]
        call = ModuleCallSignature([], [], in_spec, _flat(len(outputs)), names)
        super().__init__(
            saved.root,
            saved.graph,
            ExportGraphSignature(saved.inputs, saved.outputs),
            {ours: weights[path] for ours, path in saved.paths.items() if path in weights},
            saved.sizes.constraints,
            [ModuleCallEntry("", call)],
            (tuple(flat), {}),
            {ours: constants[path] for ours, path in saved.paths.items() if path in constants},
            verifiers=[TrainingIRVerifier],
        )

    def validate(self) -> None:
        """Torch's checks ask what each node makes; that is found out when the program is captured."""

    def run_decompositions(self, *args: Any, **kwargs: Any) -> ExportedProgram:
        """The decomposed program, under the names of the file."""
        saved = self.saved
        made: ExportedProgram = super().run_decompositions(*args, **kwargs)
        named = dict(zip((spec.arg.name for spec in saved.inputs), saved.names, strict=True))
        signature, renamed = made.graph_signature, dict[str, str]()
        users = iter(saved.users)
        for spec in signature.input_specs:
            if spec.kind == InputKind.USER_INPUT:
                renamed[spec.arg.name] = next(users)
            elif spec.target in saved.paths:
                renamed[spec.arg.name] = named[spec.target]
                spec.target = saved.paths[spec.target]
        _rename(made.graph, renamed)
        for spec in (*signature.input_specs, *signature.output_specs):
            spec.arg.name = renamed.get(spec.arg.name, spec.arg.name)
            if isinstance(spec, OutputSpec) and spec.target is not None:
                spec.target = saved.paths.get(spec.target, renamed.get(spec.target, spec.target))
        for held in ("_state_dict", "_constants"):
            values = vars(made)[held].items()
            vars(made)[held] = {saved.paths.get(name, name): value for name, value in values}
        placeholders = made.graph.find_nodes(op="placeholder")
        for node, spec in zip(placeholders, signature.input_specs, strict=True):
            if isinstance(spec.arg, ConstantArgument):
                spec.arg.value = node.meta["val"] = saved.constants[node.name]
        call = ModuleCallSignature([], [], saved.in_spec, saved.out_spec, saved.arguments or None)
        vars(made)["_module_call_graph"] = [ModuleCallEntry("", call)]
        vars(made)["_example_inputs"] = self.example
        return made

    def network(self) -> nn.Module:
        """What can be called as the network was."""
        return SavedNetwork(self)


class SavedNetwork(nn.Module):
    """A saved program that takes inputs in the structure of the file, and gives outputs in it."""

    def __init__(self, program: SavedProgram) -> None:
        super().__init__()
        self.inner, self.saved = program.module(), program.saved

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs for inputs as the network takes them."""
        spec = self.saved.in_spec
        names = spec.children()[1].context
        if set(kwargs) != set(names):
            raise DataError(f"the network takes the named inputs {names}, not {sorted(kwargs)}")
        leaves, given = pytree.tree_flatten((args, {name: kwargs[name] for name in names}))
        if given.num_leaves != spec.num_leaves:
            raise DataError(f"the network takes {spec.num_leaves} inputs, not {given.num_leaves}")
        users = [
            name for name, one in zip(self.saved.names, self.saved.inputs, strict=True) if one.target is None
        ]
        for index, name in enumerate(users):
            if name in self.saved.constants:
                if leaves[index] != self.saved.constants[name]:
                    raise DataError(f"input '{name}' was saved as {self.saved.constants[name]!r}")
                leaves[index] = None
        return pytree.tree_unflatten(self.inner(*leaves), self.saved.out_spec)


def _rename(graph: Graph, renamed: dict[str, str]) -> None:
    """Give the nodes their new names; others that have one of these already are counted on."""
    taken = {*renamed.values(), *(node.name for node in graph.nodes)}
    for node in graph.nodes:
        if node.name not in renamed and node.name in renamed.values():
            fresh = (f"{node.name}_{number}" for number in count(1))
            renamed[node.name] = next(name for name in fresh if name not in taken)
            taken.add(renamed[node.name])
    for node in graph.nodes:
        node.name = renamed.get(node.name, node.name)
        if node.op == "placeholder":
            node.target = node.name


def _flat(leaves: int) -> pytree.TreeSpec:
    return pytree.TreeSpec(tuple, None, [pytree.TreeSpec(None, None, [])] * leaves)
