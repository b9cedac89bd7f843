"""bitsect recipe: experiments that can be run as they are, or copied and changed."""

from __future__ import annotations

from typing import Annotated

import typer

from .app import app

recipe = typer.Typer(no_args_is_help=True, help="Whole experiments in TOML, for `bitsect quantize --recipe`.")
app.add_typer(recipe, name="recipe")


@recipe.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `bitsect recipe list` has them.")],
) -> None:
    """Print a recipe, to be copied and changed.

    bitsect recipe show resnet50 > mine.toml
    """
    from ..sources.recipes import recipe_text

    typer.echo(recipe_text(name), nl=False)


@recipe.command("list")
def names() -> None:
    """List the recipes that come with bitsect."""
    from ..sources.recipes import RECIPES, read_recipe

    for name in RECIPES:
        typer.echo(f"{name}: {read_recipe(name).model}")
