"""What makes inputs of texts and images: the tokenizer or image processor that belongs to a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import DataError
from .room import ANY, Room


@dataclass(frozen=True)
class Preparation:
    """A processor of transformers, and what its network says of the samples that it takes."""

    name: str  # what messages call it: `hf:FOLDER`
    processor: Any = None  # a tokenizer or an image processor
    missing: str = ""  # why there is none
    task: str | None = None  # what the network is made for
    made_for: str = ""  # the class that says so
    inputs: tuple[str, ...] | None = None  # what its forward takes; None if that is not known
    classes: Mapping[str, int] = field(default_factory=dict)  # names of labels
    longest: int | None = None  # tokens at most
    vocabulary: int | None = None  # how many tokens it knows

    @property
    def tokenizer(self) -> Any:
        """The tokenizer; a processor of several kinds of inputs holds one."""
        found = getattr(self.processor, "tokenizer", self.processor)
        if found is None or not hasattr(found, "convert_tokens_to_ids"):
            raise DataError(self.missing or NO_TOKENIZER)
        return found

    @property
    def images(self) -> Any:
        """The image processor, if there is one."""
        found = getattr(self.processor, "image_processor", self.processor)
        return found if hasattr(found, "preprocess") and hasattr(found, "image_mean") else None

    def taken(self, encoded: Mapping[str, Any]) -> dict[str, Any]:
        """What the network takes of what a tokenizer makes."""
        names = self.inputs if self.inputs is not None else tuple(encoded)
        return {name: encoded[name] for name in encoded if name in names}


NO_TOKENIZER = (
    "texts need the tokenizer of the network: name one with [processor=hf:FOLDER], or give tokens by the "
    "names of the network's inputs"
)
NOTHING = Preparation("the network")


@dataclass(frozen=True)
class Reading:
    """How texts and images are read: what prepares them, for which task, from which columns, how long."""

    preparation: Preparation = NOTHING
    task: str = "classification"
    columns: Sequence[str] = ()
    max_length: int | None = None
    stride: int | None = None
    group_by: str | None = None
    room: Room = ANY  # that they may take

    @property
    def limit(self) -> int | None:
        """Tokens of a text at most."""
        limits = [each for each in (self.max_length, self.preparation.longest) if each is not None]
        return min(limits) if limits else None
