"""Products whose input is quantised as the file runs, written as ONNX Runtime has kernels for them."""

from __future__ import annotations

from ...errors import ExportError
from ..ties import CodesOf
from .fusions import MICROSOFT, bias_after
from .nodes import Nodes, Value, replace
from .sites import Site


def quantise_input(nodes: Nodes, site: Site, known: dict[Value, Value]) -> CodesOf:
    """Let the product of a site find the range of its input; `known` are the codes of values that have some.

    Layers that read one value share its codes. A bias that follows is added by the kernel.
    """
    weight = None if site.op_type != "MatMul" else site.kernel.inputs[1].producer()
    shape = () if weight is None else tuple(weight.inputs[0].shape)
    if weight is None or len(shape) != 2:
        raise ExportError(
            f"layer '{site.multiply.layer}': ONNX Runtime has no kernel that finds the range of its input at "
            "run time: choose int8 or float for it"
        )
    value, product = site.kernel.inputs[0], site.kernel.outputs[0]
    if value not in known:
        known[value] = nodes.add("DynamicQuantizeLinear", [value], f"{value.name}.dynamic", outputs=3)
    x, x_scale, x_zero = known[value].producer().outputs
    w, w_scale = weight.inputs[:2]
    inputs = [x, w, x_scale, w_scale, x_zero]
    found = bias_after(nodes, product)
    if found is not None and found[1].shape == shape[1:]:
        product, bias = found
        inputs += [None, nodes.add_constant(f"{site.name}.bias", bias)]  # zero points of 0 cost time
    result = nodes.add("MatMulIntegerToFloat", inputs, site.name, domain=MICROSOFT)
    site.kernel = result.producer()
    replace(product, result)
    return CodesOf(x.name)
