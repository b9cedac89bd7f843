"""Where values are rounded, and in whose arithmetic: the rules of each placement.

Rules are made with the rounder whose plans they complete. `results(chosen)` are the grids of step results
that are rounded too, `input(operand, bits, results)` is the grid of a layer's operand, and
`kernels(chosen, inputs, results)` the steps that are computed in another arithmetic, and those they include.
"""

RULES = {
    "paper": "bitsect.rounding.placements.paper:Paper",
    "onnxruntime": "bitsect.rounding.placements.onnxruntime:OnnxRuntime",
}
