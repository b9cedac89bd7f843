"""Embeddings in ONNX: rows are looked up in codes and then scaled: the table is large, the rows are few."""

from __future__ import annotations

import numpy as np

from .nodes import Nodes, replace
from .sites import Site
from .weights import CodedWeight


def write_look_up(nodes: Nodes, site: Site, weight: CodedWeight) -> None:
    """Let the look-up of a site read codes, and multiply each row by its scale."""
    gather, name = site.kernel, site.name
    scales = np.take(weight.scales, [0], axis=1).astype(np.float32)
    table = nodes.add_weight(f"{name}.weight.codes", weight.codes.astype(np.int8))
    row_scales = nodes.add_constant(f"{name}.weight.scale", scales)
    indices, kind = gather.inputs[1], int(nodes.ir.DataType.FLOAT)
    rows = nodes.add("Gather", [table, indices], name, axis=0)
    site.kernel = rows.producer()
    factors = nodes.add("Gather", [row_scales, indices], f"{name}/scales", axis=0)
    values = nodes.add("Cast", [rows], f"{name}/cast", to=kind)
    replace(gather.outputs[0], nodes.add("Mul", [values, factors], f"{name}/scaled"))
