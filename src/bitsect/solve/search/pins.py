"""Pins: which formats each layer may take, from what the user wrote."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from ...errors import PlanError
from ...values import FLOAT, Format, Layer, high_to_low, matching


def pinned(
    layers: tuple[Layer, ...], formats: Iterable[Format], keep: Sequence[str] = ()
) -> dict[str, tuple[Format, ...]]:
    """The formats that each layer may take, from high to low: `Problem.allowed`.

    Without a pin these are float and `formats`. Each of `keep` reads PATTERN=FORMAT[,FORMAT…] and
    leaves the layers that the pattern means with exactly these formats: float only where it is named,
    others than `formats` too. A later pin replaces an earlier one, so that the general comes first:
    `*=int8`, then `last=float`.

    A format that rounds nothing in a layer (w4a16 in a matmul of two activations) is left out there.
    """
    allowed = dict.fromkeys((layer.name for layer in layers), high_to_low([FLOAT, *formats]))
    for pin in keep:
        pattern, chosen = _parse(pin)
        chosen_layers = matching(pattern, layers)
        if not chosen_layers:
            raise PlanError(f"pin '{pin}': no layer matches '{pattern}'{_hint(pattern, layers)}")
        allowed |= dict.fromkeys((layer.name for layer in chosen_layers), chosen)
    useful = {
        layer.name: tuple(f for f in allowed[layer.name] if f.is_float or f.rounds(layer)) for layer in layers
    }
    for name, left in useful.items():
        if not left:
            raise PlanError(
                f"layer '{name}' multiplies two activations, of which {allowed[name][0]} rounds none: "
                f"pin it to float with '{name}=float'"
            )
    return useful


def _parse(pin: str) -> tuple[str, tuple[Format, ...]]:
    pattern, equals, names = (part.strip() for part in pin.rpartition("="))
    if not (pattern and equals and names):
        raise PlanError(f"pin '{pin}': expected PATTERN=FORMAT[,FORMAT…] such as 'first=float,int8'")
    try:
        return pattern, high_to_low(Format.parse(name.strip()) for name in names.split(","))
    except PlanError as error:
        raise PlanError(f"pin '{pin}': {error}") from None


def _hint(pattern: str, layers: tuple[Layer, ...]) -> str:
    kinds = sorted({f"kind:{layer.kind}" for layer in layers})
    close = get_close_matches(pattern, [*(layer.name for layer in layers), "first", "last", *kinds], n=3)
    if not close:
        return "; `bitsect layers` lists them"
    return "; did you mean " + " or ".join(f"'{name}'" for name in close) + "?"
