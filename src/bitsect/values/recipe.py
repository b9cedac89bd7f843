"""Recipes: a network, a method and everything that is asked of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import BitsectError
from ..names import check_name, listed
from .goal import Goal
from .method import METHODS
from .options import given, names_of
from .scoring import Scoring
from .settings import Settings
from .target import Target

T = TypeVar("T")
KINDS: dict[str, Any] = {"settings": Settings, "scoring": Scoring, "goal": Goal}
NAMES = ("model", "method", "targets", "searches", *KINDS)


@dataclass(frozen=True)
class Recipe:
    """Named options for a whole experiment: every target is searched for with every search."""

    name: str
    model: str | None
    method: str
    targets: tuple[Target, ...]
    searches: tuple[str, ...]
    settings: Settings
    scoring: Scoring
    goal: Goal

    @classmethod
    def from_toml(cls, name: str, path: str, data: Mapping[str, Any]) -> Recipe:
        """The recipe in a table of TOML; an unknown name in it is refused."""
        try:
            for key in data:
                check_name("entry", key, NAMES)
            values = {}
            for group, kind in KINDS.items():
                options = data.get(group, {})
                if not isinstance(options, Mapping):
                    raise BitsectError(f"[{group}] is no table")
                for key in options:
                    check_name(f"option of [{group}]", key, names_of(kind))
                values[group] = kind(**options)
            method = data.get("method", "paper")
            check_name("method", method, METHODS)
            model = data.get("model")
            if model is not None and not isinstance(model, str):
                raise BitsectError(f"model {model!r} is no text")
            return cls(
                name,
                model,
                method,
                Target.several(data.get("targets")),
                tuple(map(str, listed(data.get("searches")))),
                **values,
            )
        except (BitsectError, TypeError) as error:
            said = error.message if isinstance(error, BitsectError) else str(error)
            raise BitsectError(f"{path}: {said}") from None

    def complete(self, asked: T) -> T:
        """`asked` with this recipe's options where nothing else was asked for."""
        (own,) = (each for each in (self.settings, self.scoring, self.goal) if type(each) is type(asked))
        return type(asked)(**{**given(own), **given(asked)})
