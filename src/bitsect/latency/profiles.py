"""A latency table from profiles that runtimes wrote: ONNX Runtime's, and `trtexec --exportProfile`.

Such files tell the time of each node of one model, so they are read beside the network, one file for each
format that all its layers had. Nodes of models that bitsect exported have the names of their layers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from ..errors import BitsectError
from ..files import read_json
from ..values import Format, LatencyTable, Layer, Place, high_to_low
from ..values.latency_table import place_key

KERNEL_TIME = "_kernel_time"
CONVOLUTIONS = ("Conv", "FusedConv", "ConvTranspose")
BLOCK = 16  # channels at most
LEAST_MS = 0.0005  # half of the unit that ONNX Runtime counts in


def import_profiles(
    files: Mapping[Format, Path | str], layers: Sequence[Layer], device: str | None = None
) -> LatencyTable:
    """The time of every layer in the formats of `files`: the median of the runs that were profiled.

    Layers that multiply alike share a row, which is the mean of theirs. A layer that no node can be found
    for is an error: the file is of another network.
    """
    if not files:
        raise BitsectError("no profiles given: pass FORMAT=FILE.json, such as int8=profile.json")
    rows: dict[str, dict[Format, float | None]] = {}
    kinds = set()
    for format, name in files.items():
        path = Path(name)
        kind, nodes = _nodes(path)
        kinds.add(kind)
        times: dict[str, list[float]] = {}
        for place, ms in _matched(nodes, layers, path):
            times.setdefault(place_key(place), []).append(ms)
        for key, found in times.items():
            rows.setdefault(key, {})[format] = sum(found) / len(found)
    named = ", ".join(f"{format}={Path(path).name}" for format, path in files.items())
    source = f"profile of {' and '.join(sorted(kinds))}: {named}"
    return LatencyTable(device or " and ".join(sorted(kinds)), source, high_to_low(files), rows)


Node = tuple[str, float, Mapping[str, Any]]  # its name, milliseconds, and what else is known of it


def _nodes(path: Path) -> tuple[str, list[Node]]:
    """Whose profile it is, and its nodes in the order in which they ran."""
    data = read_json(path, what="profile")
    if not isinstance(data, list) or not all(isinstance(each, dict) for each in data):
        raise BitsectError(f"{path}: not a profile: expected a list of objects")
    if any("cat" in each for each in data):
        return "ONNX Runtime", _of_onnxruntime(data, path)
    if data and isinstance(data[0].get("count"), int):
        return "TensorRT", [_of_tensorrt(each, path) for each in data[1:]]
    raise BitsectError(
        f"{path}: neither a profile of ONNX Runtime (events with a `cat`) nor of `trtexec --exportProfile` "
        "(first an object with `count`)"
    )


def _of_onnxruntime(events: Sequence[Mapping[str, Any]], path: Path) -> list[Node]:
    taken: dict[tuple[str, str], list[float]] = {}
    about: dict[tuple[str, str], Mapping[str, Any]] = {}
    for event in events:
        name, args = event.get("name"), event.get("args")
        if event.get("cat") != "Node" or not isinstance(name, str) or not name.endswith(KERNEL_TIME):
            continue
        if not isinstance(args, dict):
            raise BitsectError(f"{path}: node '{name}' has no args")
        key = (name.removesuffix(KERNEL_TIME), str(args.get("node_index")))
        taken.setdefault(key, []).append(_milliseconds(event.get("dur"), 1000.0, path, name))
        about[key] = args
    if not taken:
        raise BitsectError(f"{path}: it holds no node: was the model run while it was profiled?")
    return [(key[0], max(median(times), LEAST_MS), about[key]) for key, times in taken.items()]


def _of_tensorrt(row: Mapping[str, Any], path: Path) -> Node:
    name = row.get("name")
    if not isinstance(name, str):
        raise BitsectError(f"{path}: a layer has no name: was it written by `trtexec --exportProfile`?")
    value = row.get("medianMs", row.get("averageMs"))
    return name, max(_milliseconds(value, 1.0, path, name), 1e-6), row


def _milliseconds(value: Any, per_ms: float, path: Path, name: str) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value < math.inf:
        raise BitsectError(f"{path}: node '{name}': {value!r} is no time")
    return float(value) / per_ms


def _matched(nodes: Sequence[Node], layers: Sequence[Layer], path: Path) -> list[tuple[Place, float]]:
    """Every place with its time: by its name; else a convolution by its shapes, in order."""
    found, left = list[tuple[Place, float]](), list(nodes)
    places = [(layer, place) for layer in layers for place in layer.places]
    unnamed = []
    for layer, place in places:
        mine = [node for node in left if _is_named(node[0], place.name)]
        if mine:
            found.append((place, sum(ms for _, ms, _ in mine)))
            left = [node for node in left if node not in mine]
        else:
            unnamed.append((layer, place))
    for layer, place in unnamed:
        node = next((node for node in left if _has_shapes(node[2], place)), None)
        if node is None:
            raise BitsectError(
                f"{path}: no node does the work of layer '{layer.name}': profile the file that "
                "`bitsect export` writes of this network with all layers in one format"
            )
        left.remove(node)
        found.append((place, node[1]))
    return found


def _is_named(node: str, place: str) -> bool:
    """Whether a node does the work of a place: fusions append to a name, or join several with +."""
    return any(
        re.fullmatch(rf"(?:.*/)?{re.escape(place)}(?:(?:_token_|/).*)?", part.strip())
        for part in re.split(r"\s\+\s|,|\|\|", node)
    )


def _has_shapes(about: Mapping[str, Any], place: Place) -> bool:
    """Whether a node of ONNX Runtime is a convolution with the weight and the output of a place."""
    if about.get("op_name") not in CONVOLUTIONS or not place.signature.is_convolution:
        return False
    try:
        (weight,) = about["input_type_shape"][1].values()
        (output,) = about["output_type_shape"][0].values()
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        return False
    wanted, made = place.signature.operand, place.signature.output
    return (
        len(weight) == len(wanted)
        and len(output) == len(made)
        and (*weight[2:], *output[2:]) == (*wanted[2:], *made[2:])
        # Its kernels fill channels up to whole blocks.
        and all(0 <= w - c < BLOCK for w, c in zip(weight[:2], wanted[:2], strict=True))
    )
