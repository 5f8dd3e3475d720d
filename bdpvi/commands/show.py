"""``bdpvi demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bdpvi._runtime import outputs, store
from bdpvi.commands.options import Json, Quiet


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure and the table.")] = Path("demo"),
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run the main job on data that comes along: fit, release, account, predict, draw a figure.

    Fits the breast cancer table (455 training records), and sets the test accuracy of a posterior
    sample beside its worst-case and its Bayesian ε.
    """
    from rich.console import Console

    from bdpvi.commands import demonstration

    result = demonstration.run(out, progress=not quiet)
    if as_json:
        outputs.say(store.json_text(result.to_dict()))
    else:
        result.print(Console())
