"""Networks of Hugging Face's transformers, from a folder or the hub, with what prepares their samples."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...errors import BitsectError, MissingExtraError
from ...files import first_line, read_json
from ..preparation import Preparation
from .claims import Held, check_claims, check_size

PREFIX = "hf:"
TOKENS = 128  # of an example, where there are no samples
# How the name of a class ends → the task of its networks.
TASKS = {
    "ForSequenceClassification": "classification",
    "ForImageClassification": "classification",
    "ForAudioClassification": "classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMaskedLM": "masked-language-modelling",
    "ForCausalLM": "language-modelling",
    "LMHeadModel": "language-modelling",
    "ForSemanticSegmentation": "segmentation",
    "WithProjection": "features",
    "Encoder": "features",
    "Model": "features",
}
# Networks whose positions begin after that of the token for padding: as many fewer they take.
AFTER_PADDING = (
    *("camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke", "mpnet"),
    *("roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
)
PROBLEMS = {"regression": "regression", "multi_label_classification": "multi-label"}


@dataclass(frozen=True)
class ModelPlace:
    """Where a network lies: a folder, or a name of the hub at a revision."""

    spec: str
    path: str
    revision: str | None

    @classmethod
    def of(cls, spec: str) -> ModelPlace:
        name, _, revision = spec.removeprefix(PREFIX).partition("@")
        if Path(spec.removeprefix(PREFIX)).expanduser().is_dir():  # whose name may hold an @
            name = spec.removeprefix(PREFIX)
        if not name:
            raise BitsectError(f"model '{spec}': expected hf:FOLDER or hf:NAME[@REVISION]")
        folder = Path(name).expanduser()
        if folder.is_dir():
            if not (folder / "config.json").is_file():
                raise BitsectError(f"{spec}: the folder holds no config.json: save it with save_pretrained")
            return cls(spec, str(folder.absolute()), None)
        if name.startswith((".", "/", "~")) or name.count("/") > 1:
            raise BitsectError(f"{spec}: no such folder: save the network there with save_pretrained")
        return cls(spec, name, revision or None)

    @property
    def held(self) -> Held | None:
        """What its weight files hold, where they are on this machine."""
        with _reading(self, "weights in safetensors"):
            return Held.by(Path(self.path)) if Path(self.path).is_dir() else None

    @property
    def options(self) -> dict[str, Any]:
        return {} if self.revision is None else {"revision": self.revision}


def load_hf(spec: str, *, trust: bool = False) -> tuple[nn.Module, Any]:
    """The network that `spec` names, in float32 and evaluation mode, and an example of its inputs."""
    place = ModelPlace.of(spec)
    config = _config(place, trust)
    kind = _class(place, config, trust)
    if not trust:
        with _reading(place, "configuration"), _quiet(), torch.device("meta"):
            check_size(spec, kind._from_config(deepcopy(config), attn_implementation="eager"), place.held)
    with _reading(place, "weights in safetensors"), _quiet():
        model, found = kind.from_pretrained(
            place.path,
            config=config,
            dtype=torch.float32,
            use_safetensors=None if trust else True,
            attn_implementation="eager",
            trust_remote_code=trust,
            ignore_mismatched_sizes=True,  # they are refused in one line
            output_loading_info=True,
            **place.options,
        )
    _check_weights(place, found)
    return as_captured(model), example_of(model)


def _check_weights(place: ModelPlace, found: Mapping[str, Any]) -> None:
    """Refuse weights that transformers would make up at random, for it only warns of them."""
    for name, stored, wanted in sorted(found["mismatched_keys"]):
        raise BitsectError(
            f"{place.spec}: '{name}' is {tuple(stored)} in the file and {tuple(wanted)} by config.json: "
            "save the network again with save_pretrained"
        )
    missing = sorted(found["missing_keys"])
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise BitsectError(
            f"{place.spec}: the file holds no weights for '{missing[0]}'{more}, which were never trained: "
            "save the whole network with save_pretrained"
        )


def save_beside(spec: str, folder: Path, quantization: dict[str, Any]) -> None:
    """Write the configuration of a network, marked as quantised, and what prepares its samples."""
    place = ModelPlace.of(spec)
    config = _config(place, trust=False)
    loader, _ = _processor_of(_class(place, config, trust=False))
    with _reading(place, "configuration"), _quiet():
        config.save_pretrained(folder)
        path = folder / "config.json"
        known = json.loads(path.read_text(encoding="utf-8"))
        text = json.dumps({**known, "quantization_config": quantization}, indent=2, ensure_ascii=False)
        path.write_text(text + "\n", encoding="utf-8")
    if loader is not None:
        with _quiet(), suppress(Exception):  # it may have none, and nothing of the model needs it
            loader.from_pretrained(place.path, **place.options).save_pretrained(folder)


def bare_network(folder: Path) -> nn.Module:
    """The architecture that the configuration in `folder` describes, with random weights."""
    place = ModelPlace.of(f"{PREFIX}{folder.absolute()}")
    transformers = _transformers(place.spec)
    with _reading(place, "configuration"), _quiet():
        known = read_json(folder / "config.json", what="configuration")
        if not isinstance(known, dict) or known.get("auto_map"):
            raise BitsectError(f"{folder}: this network runs code of its author, and is not loaded")
        known.pop("quantization_config", None)
        check_claims(place.spec, known, place.held)
        config = transformers.AutoConfig.for_model(known.pop("model_type"), **known)
        kind = _class(place, config, trust=False)
        with torch.device("meta"):
            check_size(
                place.spec, kind._from_config(deepcopy(config), attn_implementation="eager"), place.held
            )
        return as_captured(kind._from_config(config, dtype=torch.float32, attn_implementation="eager"))


def as_captured(model: nn.Module) -> nn.Module:
    """The network in evaluation mode, without the cache that a decoder keeps for its next token."""
    config = getattr(model, "config", None)
    if getattr(config, "use_cache", False):
        config.use_cache = False  # type: ignore[union-attr]
    return model.eval()


def preparation_of(spec: str, *, trust: bool = False) -> Preparation:
    """What prepares the samples of the network that `spec` names; its weights are not read."""
    place = ModelPlace.of(spec)
    config = _config(place, trust)
    kind = _class(place, config, trust)
    loader, what = _processor_of(kind)
    taken = getattr(kind, "main_input_name", "")
    processor, missing = None, f"{spec} takes {taken}, which a file of texts does not hold"
    if _writes(kind, config):
        missing = (
            f"{spec}: {kind.__name__} goes on with a text that no file holds (decoder_input_ids): give its "
            "encoder, or arrays with all its inputs by name and a task of your own"
        )
    elif loader is not None:
        try:
            with _quiet():
                processor = loader.from_pretrained(place.path, trust_remote_code=trust, **place.options)
            if what == "tokenizer" and len(processor) <= len(processor.all_special_ids) + 1:
                processor = None  # transformers makes an empty one where there is no file
                raise ValueError("it knows no words")
        except Exception as error:  # it is needed only for texts and images
            missing = (
                f"texts need the tokenizer of the network: {spec} has no {what} that can be loaded "
                f"({first_line(error)}): save it beside the network"
            )
    return describe(kind, config, spec, processor, missing)


def describe(kind: type, config: Any, name: str, processor: Any = None, missing: str = "") -> Preparation:
    """What a class of transformers and its configuration say of the samples of a network."""
    longest = _longest(config, processor)
    classes = {str(label): int(number) for label, number in (getattr(config, "label2id", None) or {}).items()}
    forward = tuple(inspect.signature(kind.forward).parameters)  # type: ignore[attr-defined]
    return Preparation(
        name,
        processor,
        missing,
        task_of(kind, config),
        kind.__name__,
        forward,
        classes,
        longest,
        getattr(config, "vocab_size", None),
    )


def preparation_of_object(model: Any, processor: Any) -> Preparation | None:
    """The same of a network that was given as an object, if it is one of transformers, or has a processor."""
    config = getattr(model, "config", None)
    if config is not None and hasattr(config, "model_type"):
        return describe(type(model), config, type(model).__name__, processor)
    if processor is None:
        return None
    return Preparation(type(model).__name__, processor, longest=_longest(None, processor))


def task_of(kind: type, config: Any) -> str | None:
    """The task of a class, by how its name ends; its configuration tells regressions from classifiers."""
    own = getattr(config, "auto_map", None) or {}  # which says what an author's own class is for
    name = next((auto for auto, each in own.items() if _is_of(kind, auto, each)), kind.__name__)
    task = next((task for ending, task in TASKS.items() if name.endswith(ending)), None)
    if name.endswith("ForSequenceClassification"):
        problem = getattr(config, "problem_type", None)
        if problem in PROBLEMS:
            return PROBLEMS[problem]
        if getattr(config, "num_labels", 2) == 1:
            return "regression"
    return task


def _is_of(kind: type, auto: str, reference: Any) -> bool:
    return auto.startswith("AutoModel") and str(reference).endswith(f".{kind.__name__}")


def example_of(model: Any) -> Any:
    """A batch of two samples of zeros, as the configuration has them; None where that is not known."""
    config, name = model.config, getattr(model, "main_input_name", "")
    if name == "input_ids":
        longest = _longest(config, None) or TOKENS
        tokens = torch.ones(2, min(TOKENS, longest), dtype=torch.long)
        return {"input_ids": tokens, "attention_mask": tokens}
    if name == "pixel_values":
        size = getattr(config, "image_size", None) or 224
        height, width = (size, size) if isinstance(size, int) else tuple(size)
        return {name: torch.zeros(2, getattr(config, "num_channels", 3), height, width)}
    if name == "input_features" and hasattr(config, "num_mel_bins"):
        return {name: torch.zeros(2, config.num_mel_bins, 2 * config.max_source_positions)}
    return None


def _config(place: ModelPlace, trust: bool) -> Any:
    transformers = _transformers(place.spec)
    with _reading(place, "configuration"), _quiet():
        data, _ = transformers.PreTrainedConfig.get_config_dict(place.path, **place.options)
        if data.get("auto_map") and not trust:
            raise BitsectError(
                f"{place.spec}: this network runs code of its author ({json.dumps(data['auto_map'])[:100]}): "
                "pass [trust=True] if you know it"
            )
        if data.get("quantization_config"):
            raise BitsectError(f"{place.spec}: its weights are quantised already: give the float network")
        check_claims(place.spec, data, place.held)
        return transformers.AutoConfig.from_pretrained(place.path, trust_remote_code=trust, **place.options)


def _class(place: ModelPlace, config: Any, trust: bool) -> Any:
    """The class of the network: the one that it was saved as."""
    transformers = _transformers(place.spec)
    own = getattr(config, "auto_map", None) or {}
    names = getattr(config, "architectures", None) or ()
    for name in names:
        found = getattr(transformers, name, None)
        if found is None:  # parts, such as the encoder of Whisper, are in the module of their model
            module = f"transformers.models.{config.model_type}.modeling_{config.model_type}"
            try:
                found = getattr(import_module(module), name, None)
            except ImportError:
                found = None
        if isinstance(found, type) and issubclass(found, nn.Module) and hasattr(found, "from_pretrained"):
            return found
    for reference in (str(each) for auto, each in own.items() if auto.startswith("AutoModel")):
        if not names or reference.rpartition(".")[2] in names:
            with _reading(place, "code"), _quiet():
                return transformers.dynamic_module_utils.get_class_from_dynamic_module(
                    reference, place.path, **place.options
                )
    if names:
        raise BitsectError(f"{place.spec}: transformers {transformers.__version__} knows no '{names[0]}'")
    raise BitsectError(
        f"{place.spec}: config.json does not say of which class the network is: add "
        '"architectures": ["…ForSequenceClassification"] or the like'
    )


def _writes(kind: type, config: Any) -> bool:
    """Whether a network is given a text, and what it has written so far of another."""
    takes = inspect.signature(kind.forward).parameters  # type: ignore[attr-defined]
    judged = task_of(kind, config) in ("classification", "regression", "multi-label", "question-answering")
    return bool(getattr(config, "is_encoder_decoder", False)) and "decoder_input_ids" in takes and not judged


def _processor_of(kind: Any) -> tuple[Any, str]:
    import transformers

    name = getattr(kind, "main_input_name", "")
    if name == "input_ids":
        return transformers.AutoTokenizer, "tokenizer"
    if name == "pixel_values":
        return transformers.AutoImageProcessor, "image processor"
    return None, ""


def _longest(config: Any, processor: Any) -> int | None:
    """Tokens at most, of those limits that are limits."""
    tokenizer = getattr(processor, "tokenizer", processor)
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int) and getattr(config, "model_type", "") in AFTER_PADDING:
        positions -= (config.pad_token_id or 0) + 1
    limits = [
        positions,
        getattr(config, "n_positions", None) if getattr(config, "model_type", "") != "t5" else None,
        getattr(tokenizer, "model_max_length", None),
    ]
    known = [int(limit) for limit in limits if isinstance(limit, int | float) and 0 < limit < 10**9]
    return min(known) if known else None


@cache
def _transformers(spec: str) -> Any:
    try:
        import transformers
    except ImportError:
        raise MissingExtraError("transformers", "hf", spec) from None
    return transformers


@contextmanager
def _reading(place: ModelPlace, what: str) -> Iterator[None]:
    """Whatever transformers and its hub raise becomes one line."""
    try:
        yield
    except BitsectError:
        raise
    except Exception as error:
        if Path(place.path).is_dir():
            raise BitsectError(f"{place.spec}: no readable {what} there: {first_line(error)}") from None
        raise BitsectError(
            f"{place.spec}: neither a folder here nor found on the Hugging Face hub (no such name or "
            "revision, or no connection): give hf:FOLDER of a network that was saved with save_pretrained"
        ) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers without its bars and warnings, which would come between our own lines."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
