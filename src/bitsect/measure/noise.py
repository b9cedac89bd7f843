"""Noise: squared errors of weights, and Fisher terms of weights and activations.

    FIT_i = Σ_θ (∂L/∂θ)² · E[δθ²],   θ the weights and the operands of layer i

with the gradient of one sample's loss and the mean squared rounding error of the tensor.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from ..values import Format
from .context import Context, Progress, silent
from .evaluator import Done


def weight_errors(context: Context, format: Format) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """‖Q(W) − W‖² of every layer; 0 for a matmul of two activations."""
    errors = dict.fromkeys(context.layers, 0.0)
    for multiply in context.program.multiplies:
        weight = multiply.weight
        if weight is not None and not errors[multiply.layer]:
            rounded = context.evaluator.rounder.weight(multiply.layer, weight, format)
            errors[multiply.layer] = float(
                (rounded - context.program.constant(weight.node)).double().square().sum()
            )
    return np.array(list(errors.values()))


def fisher_terms(
    context: Context, format: Format, done: Done, *, samples: int = 256, progress: Progress = silent
) -> int:
    """Fill `done` with the FIT terms of single samples, a piece for each; returns how many."""
    count = min(samples, context.count)
    names = [str(sample) for sample in range(count) if str(sample) not in done]
    progress(count - len(names))
    if not names:
        return count
    weight_noise = weight_errors(context, format)
    for name in names:
        done[name] = {"fisher": _terms(context, format, weight_noise, int(name))}
        progress(1)
    return count


def _terms(
    context: Context, format: Format, weight_noise: np.ndarray[tuple[int], np.dtype[np.float64]], sample: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    evaluator, program = context.evaluator, context.program
    inputs, labels = evaluator.part(sample, sample + 1)
    noise: dict[tuple[str, int], float] = {}  # mean squared rounding error of each rounded operand
    rounding = context.rounding(format, *context.layers)

    def look(key: tuple[str, int], value: Tensor) -> None:
        grid = rounding.inputs.get(key)
        if grid is None or not value.numel():  # an expert may get no rows
            noise[key] = 0.0
        else:
            noise[key] = float((grid.round(value) - value).double().square().mean())

    gradients = program.gradients(
        inputs, lambda outputs: evaluator.task.loss(outputs, labels).sum(), context.layers, look
    )
    terms = np.zeros(len(context.layers))
    for index, layer in enumerate(program.layers):
        weights, operands = gradients[layer.name]
        size = max(1, layer.weights)
        terms[index] += sum(_square(gradient) for gradient in weights) * weight_noise[index] / size
        terms[index] += sum(_square(gradient) * noise[key] for key, gradient in operands.items())
    return terms


def _square(gradient: Tensor) -> float:
    return float(gradient.double().square().sum())
