"""Noise: squared errors of weights, and Fisher terms of weights and activations.

    FIT_i = Σ_θ (∂L/∂θ)² · E[δθ²],   θ the weights and the operands of layer i

with the gradient of one sample's loss and the mean squared rounding error of the tensor.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from torch import Tensor

from ..values import Format
from .context import Context
from .work import Work, shared

FISHER_SAMPLES = 256  # a backward pass each


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


@shared
def fisher_terms(context: Context, format: Format, samples: int = FISHER_SAMPLES) -> Work:
    """The FIT terms of every layer: a piece for each sample."""
    noise = cache(lambda: weight_errors(context, format))
    names = tuple(map(str, range(min(samples, context.count))))
    return Work(names, lambda name: {"fisher": _terms(context, format, noise(), int(name))})


def _terms(
    context: Context, format: Format, weight_noise: np.ndarray[tuple[int], np.dtype[np.float64]], sample: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    evaluator, program = context.evaluator, context.program
    inputs, labels = evaluator.part(slice(sample, sample + 1))
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
