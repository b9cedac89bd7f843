"""bitsect: the bit-width each layer of a trained network can bear.

    result = bitsect.quantize(model, samples, target=0.999, out="runs/mine")

Everything that a user meets is here; names are loaded on first use.
"""

from importlib import import_module

__version__ = "0.1.0"

# Where each public name lives: loaded on first use, so that `bitsect --help` and the rooms without
# torch start at once. `tools/stubs.py` makes of this table what editors and type checkers read.
_NAMES_OF = {
    "errors": "BitsectError CaptureError DataError ExportError MissingExtraError OptionError PlanError "
    "RunError TargetError",
    "exporters.deliver": "Delivery",
    "exporters.proof": "Proof",
    "latency.cutlass": "import_cutlass",
    "network.capture": "capture",
    "network.program": "Program",
    "pipeline.blame": "blame",
    "pipeline.compare": "compare",
    "pipeline.evaluate": "Judgement evaluate evaluate_file",
    "pipeline.export": "export",
    "pipeline.frontier": "frontier",
    "pipeline.layers": "layers",
    "pipeline.load": "load",
    "pipeline.quantize": "quantize",
    "pipeline.recipe": "run_recipe",
    "pipeline.referee": "judge",
    "pipeline.report": "report",
    "pipeline.result": "Result",
    "pipeline.rows": "Row Tested",
    "pipeline.sensitivity": "sensitivity",
    "runs.progress": "Progress",
    "solve.metrics": "Array Means Metric metric",
    "solve.search.problem": "Found Problem Trials",
    "sources.data.load": "load_samples",
    "sources.data.samples": "Samples",
    "sources.tasks.task": "Outcome Task",
    "values": "Evaluation Format Goal LatencyTable Layer Plan Resources Scores Scoring Settings Target",
    "values.blame": "Blame",
    "values.curve": "Curve",
    "values.trial": "Compared",
    "values.verdict": "Verdict",
}
_HOME_OF = {name: home for home, names in _NAMES_OF.items() for name in names.split()}

__all__ = sorted([*_HOME_OF, "__version__"])


def __getattr__(name: str) -> object:  # typing is another import, see __main__
    if name not in _HOME_OF:
        raise AttributeError(f"module 'bitsect' has no attribute '{name}'")
    return getattr(import_module(f".{_HOME_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
