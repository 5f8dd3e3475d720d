"""``bdpvi show``: what a shared file says, from the file alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bdpvi._ground import outputs, store


def show(
    shared: Annotated[
        Path, typer.Argument(help="File synthetic.json or counts.json, or one with a release.")
    ],
    by: Annotated[
        str, typer.Option(help="Column of levels whose groups a table of counts is shown by.")
    ] = "",
    html: Annotated[
        Path | None,
        typer.Option(help="New file for the statement: one page for people who read no code."),
    ] = None,
) -> None:
    """Show what a shared file says at no cost: what ε covered, and the noisy counts of its columns.

    Of a synthetic table or of the counts of a Table 1 it shows columns, kinds, levels or bounds,
    and the Table 1; of a release its guarantee and its coefficients, as bdpvi summary does.
    """
    from bdpvi._ground.schema import parsed
    from bdpvi.releases import shared_file, statement
    from bdpvi.synthesis import load
    from bdpvi.synthesis.described import described, statement_of

    try:
        content = store.read_shared(shared)
        table = "schema" in parsed(content)
    except ValueError as error:
        raise ValueError(f"{shared} is no shared file: {error}") from error
    if table:
        made = load(shared)
        page = statement_of(made, shared.name, content)
        outputs.show(*described(made, by or None))
    elif by:
        raise ValueError(f"by={by!r}: {shared} has no counts of groups; leave it out")
    else:
        found = shared_file.load_release(shared)
        page = statement.of_release(content, shared.name)
        outputs.show(*found.receipt.lines("Covered"))
        outputs.show(*str(found.summary(odds=True)).split("\n"))
    if html is not None:
        with store.claimed(html) as temporary:
            temporary.write_text(page.html(), encoding="utf-8")
