"""bitsect layers: what a network is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .app import DeviceOption, EmbeddingsOption, InputShapeOption, JsonOption, ModelArgument, TrustOption, app

if TYPE_CHECKING:
    from ..network.program import Program

ROOMY = 90  # columns of a terminal in which the shape of weights is shown too; --json always has it


@app.command()
def layers(
    model: ModelArgument,
    json: JsonOption = False,
    embeddings: EmbeddingsOption = False,
    input_shape: InputShapeOption = None,
    trust: TrustOption = False,
    device: DeviceOption = None,
) -> None:
    """List the layers of MODEL: name, kind, weights, multiply-adds; totals; what stays in float and why."""
    from ..pipeline.layers import layers as read_layers
    from .output import print_json

    program = read_layers(model, input_shape=input_shape, trust=trust, embeddings=embeddings, device=device)
    print_json(_as_json(model, program)) if json else _show(model, program)


def _is_unrolled(program: Program) -> bool:
    from ..network.naming import is_recurrent

    return any(is_recurrent(multiply.node) for multiply in program.multiplies)


def _sizes(program: Program) -> dict[int, float]:
    """The bytes of all weights at 16, 8 and 4 bits."""
    weights = sum(layer.weights for layer in program.layers)
    return {bits: weights * bits / 8 for bits in (16, 8, 4)}


def _as_json(model: str, program: Program) -> dict[str, Any]:
    from ..network.remarks import remarks

    compared = program.comparison
    return {
        "model": model,
        "layers": [
            {
                "name": layer.name,
                "kind": layer.kind,
                "weight_shape": layer.weight_shape,
                "weights": layer.weights,
                "macs": layer.macs,
                "places": [place.name for place in layer.places],
            }
            for layer in program.layers
        ],
        "totals": {
            "layers": len(program.layers),
            "weights": sum(layer.weights for layer in program.layers),
            "macs": sum(layer.macs for layer in program.layers),
            "size_mb": {str(bits): size / 1e6 for bits, size in _sizes(program).items()},
        },
        "batch": program.fixed_batch or "any",
        "unrolled": _is_unrolled(program),
        "skipped": [vars(item) for item in program.skipped],
        "difference": None if compared is None else compared.to_json(),
        "notes": list(remarks(program)),
    }


def _show(model: str, program: Program) -> None:
    from rich.markup import escape

    from ..network.remarks import remarks
    from ..values import megabytes
    from .output import count, stdout
    from .tables import table_of

    roomy = stdout.width >= ROOMY
    heads = ["weight", "weights", "multiply-adds", "places"] if roomy else ["weights", "multiply-adds"]
    table = table_of("layer", "kind", *heads, title=escape(model))
    for layer in program.layers:
        shape = "×".join(map(str, layer.weight_shape)) if layer.weight_shape is not None else "–"
        numbers = [count(layer.weights), count(layer.macs)]
        if roomy:
            numbers = [shape, *numbers, str(len(layer.places))]
        table.add_row(escape(layer.name), layer.kind, *numbers)
    stdout.print(table)
    total, compared = len(program.layers), program.comparison
    weights = sum(layer.weights for layer in program.layers)
    macs = sum(layer.macs for layer in program.layers)
    stdout.print(
        f"\n{total} layer{'' if total == 1 else 's'}, {weights:,} weights, "
        f"{count(macs)} multiply-adds per sample; "
        + ", ".join(f"{megabytes(size)} at {bits} bits" for bits, size in _sizes(program).items())
    )
    if compared is not None and compared.is_noise:
        stdout.print(
            f"Largest difference from the network on its example: {compared.difference:.2g}, rounding noise."
        )
    for remark in remarks(program):
        stdout.print(f"Note: {remark}.", markup=False, soft_wrap=True)
    if _is_unrolled(program):
        stdout.print("Recurrent layers are unrolled: sequences are as long as the example's.", soft_wrap=True)
    if program.skipped:
        stdout.print("\nStays in float:")
        for item in program.skipped:
            stdout.print(f"  {item.name}: {item.reason}", markup=False, soft_wrap=True)
