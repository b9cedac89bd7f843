"""Run folders written by hand: in any state, of any network, with whatever names a stranger chose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bitsect.runs.folder import VERSION, RunFolder
from bitsect.values import INT4, INT8, Format, Plan, Scores, Settings
from bitsect.values.options import to_json
from bitsect.values.shown import Choices, Histogram, Interaction, LayerFacts, LayerValues, Structure

HOSTILE = (
    "<script>window.hacked = 1</script>",
    "</script><script>window.hacked = 2</script>",
    '"><img src=x onerror="window.hacked = 3">',
    "a & b <b>bold</b>",
    "{{ 7 * 7 }}\u2028%{y} ${window.hacked = 4}",
    "--><!-- 'quoted'",
    "@text",
)


def row(accuracy: float, size: float, **more: Any) -> dict[str, Any]:
    return {"accuracy": accuracy, "loss": 0.5, "samples": 512, "size_mb": size, "size_ratio": size, **more}


def plan_of(names: list[str]) -> dict[str, str]:
    return {name: ("int8", "int4")[place % 2] for place, name in enumerate(names)}


def key_of(names: list[str]) -> str:
    return Plan({name: Format.parse(format) for name, format in plan_of(names).items()}).key


def facts(names: list[str], **changes: Any) -> dict[str, Any]:
    """What result.json holds of a finished run; `changes` replace entries."""
    count = len(names)
    return {
        "target": "99%",
        "target_met": True,
        "float": row(0.92, 1.0),
        "plan": row(0.915, 0.3),
        "uniform": {
            "int8": row(0.92, 0.5, name="all int8"),
            "int4": row(0.7, 0.25, name="all int4"),
        },
        "test": None,
        "formats": {"float": 0, "int8": count // 2, "int4": count - count // 2},
        "plan_key": key_of(names),
        "reason": "int4: half of the layers",
        "promise": None,
        "method": "bitsect",
        "agreement": False,
        "judge": None,
        "goal": {"target": "99%", "formats": ["int8", "int4"], "search": "frontier", "confidence": 0.95},
        "scoring": {"metric": "damage", "probes": 64},
        "settings": {},
        "latency_source": None,
        "measured": None,
        "notes": ["no labels: accuracy is agreement with the float network's own answers"],
        **changes,
    }


def promise(proven: bool = True, **changes: Any) -> dict[str, Any]:
    return {
        "verdict": "kept with 95 % confidence" if proven else "not proven: 893 samples would prove it",
        "proven": proven,
        "kept": 0.998,
        "bound": 0.992 if proven else 0.985,
        "confidence": 0.95,
        "samples": 1536,
        "accuracy": {"float": 0.92, "plan": 0.918},
        **changes,
    }


class Written:
    """A run folder of layers called `names`; files are added one by one, or all of them."""

    def __init__(self, path: Path, names: list[str], **run: Any) -> None:
        self.path, self.names = path, names
        self.folder = RunFolder(path, "ab" * 32)
        about = {
            "bitsect": "run",
            "version": VERSION,
            "model": "network.pt2",
            "data": "samples.npz",
            "files": {},
        }
        settings = {**to_json(Settings(task="classification", threads=1, batch_size=64)), "seed": 7}
        fingerprints = {"model_fingerprint": "cd" * 32, "data_fingerprint": "ef" * 32, "torch": "2.13.0"}
        noted = {"method": "bitsect", "destination": "bits"}
        self.folder.write_json("run.json", {**about, **settings, **fingerprints, **noted, **run})

    def layers(self) -> Written:
        shapes = [LayerFacts(name, "linear", (8, 4), 32 + i, 320 + i) for i, name in enumerate(self.names)]
        self.folder.write_json("layers.json", Structure(tuple(shapes)).to_json())
        return self

    def answer(self, **changes: Any) -> Written:
        self.plan(plan_of(self.names))
        self.folder.write_json("result.json", facts(self.names, **changes))
        seconds = {"capture": 1.5, "search": 0.25}
        self.folder.write_json("effort.json", {"evaluations": 3, "seconds": seconds, "versions": {}})
        return self

    def plan(self, layers: dict[str, str]) -> Written:
        self.folder.write_plain("plan.json", {"bitsect": "plan", "version": 1, "layers": layers})
        return self

    def scores(self, metric: str = "damage", format: Any = INT8, sign: float = 1.0) -> Written:
        values = tuple(sign * 1e-4 * (1 + i) ** 1.5 for i in range(len(self.names)))
        found = Scores(
            metric, format, tuple(self.names), values, tuple(0.1 * abs(v) for v in values), 0.9, 64
        )
        self.folder.write_json(f"scores-{metric}-{format}-1.json", found.to_json())
        return self

    def pairs(self, format: str = "int8") -> Written:
        table = np.random.default_rng(0).normal(size=(len(self.names),) * 2)
        found = Interaction("excess damage", format, tuple(self.names), table + table.T)
        self.folder.write_json(f"pairs-excess-damage-{format}.json", found.to_json())
        return self

    def values(self) -> Written:
        counts = tuple(int(1000 * np.exp(-(((b - 40) / 12) ** 2))) for b in range(80))
        four = Histogram(-1.5, 1.5, counts, 4, (-1.4, 1.4), 0.2, 0.001)
        found = {name: LayerValues("int4", four, Histogram(0.0, 6.0, counts)) for name in self.names}
        layers = {name: each.to_json() for name, each in found.items()}
        self.folder.write_json("values.json", {"plan": key_of(self.names), "layers": layers})
        return self

    def times(self) -> Written:
        ms = {name: {"float": 0.2 + 0.01 * i, "int8": 0.1, "int4": 0.05} for i, name in enumerate(self.names)}
        allowed = dict.fromkeys(self.names, ("float", "int8", "int4"))
        self.folder.write_json("choices.json", Choices(allowed, ms, "A100", 0.1).to_json())
        return self

    def curve(self, timed: bool = True) -> Written:
        points = []
        for order, (key, names, accuracy, size) in enumerate(
            [
                ("aaaaaaaa", ["float"], 0.92, 1.0),
                ("bbbbbbbb", ["all int8"], 0.92, 0.5),
                ("cccccccc", ["all int4"], 0.7, 0.25),
                ("dddddddd", [], 0.9, 0.28),
                (key_of(self.names)[:8], ["99-percent"], 0.915, 0.3),
            ]
        ):
            points.append(
                {
                    "key": key,
                    "names": names,
                    "accuracy": accuracy,
                    "samples": 512,
                    "complete": key != "dddddddd",
                    "size_ratio": size,
                    "latency_ms": size if timed else None,
                    "latency_ratio": size if timed else None,
                    "on_size_hull": key != "dddddddd",
                    "on_latency_hull": key != "dddddddd",
                    "formats": {"float": 0, "int8": 1, "int4": 1},
                    "order": order,
                }
            )
        self.folder.write_json("curve.json", {"float_accuracy": 0.92, "device": "A100", "points": points})
        return self

    def blame(self) -> Written:
        gain = {"mean": 0.5, "error": 0.05}
        layers = [
            {
                "name": name,
                "format": "int4",
                "gain": gain,
                "share": 0.5,
                "weights": gain,
                "activations": None,
                "causes": [{"words": f"its range is wide: {name}"}],
                "remedies": [{"words": "int8", "recovers": 0.9, "size_ratio": 0.01, "latency_ratio": None}],
                "remedy": "int8",
            }
            for name in self.names[:12]
        ]
        pairs = [{"first": name, "second": name, "excess": gain} for name in self.names[:2]]
        data = {"plan": key_of(self.names), "samples": 64, "damage": {"mean": 1.0, "error": 0.1}}
        self.folder.write_json("blame.json", {**data, "layers": layers, "pairs": pairs, "notes": []})
        return self

    def all(self, **changes: Any) -> Written:
        """Everything that a finished run may hold."""
        self.layers().answer(**changes).scores().scores("damage", INT4).scores("sqnr", INT8, -1e4)
        return self.pairs().pairs("int4").values().times().curve().blame()

    def done(self) -> Path:
        self.folder.close()
        return self.path
