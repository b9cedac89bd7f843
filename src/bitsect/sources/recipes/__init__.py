"""RECIPES: whole experiments in TOML, to be run as they are or copied and changed."""

from __future__ import annotations

import tomllib
from pathlib import Path

from ...errors import BitsectError
from ...files import first_line, reading
from ...names import check_name
from ...values.recipe import Recipe

FOLDER = Path(__file__).parent
RECIPES = {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}
LARGEST_BYTES = 1_000_000


def recipe_text(name: str) -> str:
    """The TOML of the recipe called `name`."""
    check_name("recipe", name, RECIPES)
    return RECIPES[name].read_text()


def read_recipe(recipe: str | Path) -> Recipe:
    """The recipe of that name, or in that file.

    >>> str(read_recipe("resnet50").targets[0])
    '99%'
    """
    path = Path(recipe)
    if path.suffix != ".toml":
        check_name("recipe", str(recipe), RECIPES)
        path = RECIPES[str(recipe)]
    with reading(path, what="recipe"):
        if path.stat().st_size > LARGEST_BYTES:
            raise BitsectError(f"{path}: larger than {LARGEST_BYTES:,} bytes: not a recipe")
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as error:
            raise BitsectError(f"{path}: not TOML: {first_line(error)}") from None
        return Recipe.from_toml(path.stem, str(path), data)
