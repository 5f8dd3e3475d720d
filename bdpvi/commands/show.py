"""``bdpvi show``: what a shared file says, from the file alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bdpvi._ground import outputs, store


def show(
    shared: Annotated[Path, typer.Argument(help="File synthetic.json, or one with a release.")],
) -> None:
    """Show what a shared file says at no cost: what ε covered, and the noisy counts of its columns.

    Of a synthetic table it shows columns, kinds, levels or bounds, shares of levels and quantiles
    of numbers; of a release its guarantee and its coefficients, as bdpvi summary does.
    """
    from bdpvi._ground.schema import parsed
    from bdpvi.releases import shared_file
    from bdpvi.synthesis import load
    from bdpvi.synthesis.described import described

    try:
        content = parsed(store.read_shared(shared))
    except ValueError as error:
        raise ValueError(f"{shared} is no shared file: {error}") from error
    if "schema" in content:
        outputs.show(*described(load(shared)))
    else:
        found = shared_file.load_release(shared)
        outputs.show(*found.receipt.lines("Covered"))
        outputs.show(*str(found.summary(odds=True)).split("\n"))
