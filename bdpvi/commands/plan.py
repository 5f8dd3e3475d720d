"""``bdpvi private --plan``: what ε would pay for, before anything is read or charged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bdpvi._ground import outputs, store
from bdpvi._ground.outputs import several

if TYPE_CHECKING:
    from bdpvi.datasets.formats import FileFormat
    from bdpvi.tables import Request


def show_plan(data: str, file: FileFormat, asked: Request, as_json: bool) -> None:
    """Print the plan of a request, from the header only."""
    from bdpvi.datasets.table import Table
    from bdpvi.privacy.book import ROW, Book, checked
    from bdpvi.tables.encoded import price_of

    book = Book("", unit=asked.person or ROW, rows=asked.rows_of_person)
    checked(None, book.unit, book.rows)
    price = price_of(asked, list(Table.of(data, file=file).header), file)[0]
    whom = f" to add or remove {book.whose}" if asked.person else ""
    facts = {
        "epsilon": asked.epsilon,
        "delta": asked.delta,
        "unit": book.unit,
        "rows_per_unit": book.rows,
        "bought": price.columns,
        "records_needed": price.needed,
        "records_refused_below": price.refused_below,
    }
    if as_json:
        outputs.show(store.json_text(facts))
    elif not price.needed:
        outputs.show(
            f"Nothing is estimated privately: the model gets all of ε = {asked.epsilon:g}{whom}"
        )
    else:
        outputs.show(
            "private preprocessing takes a fifth of μ² and estimates bounds or categories of "
            f"{several(len(price.columns), 'column')}: "
            f"{', '.join(f'{name} ({kind})' for name, kind in price.columns.items())}",
            f"ε = {asked.epsilon:g}{whom} needs about {price.needed} records for this "
            f"preprocessing; below {price.refused_below} nothing is fitted. Columns of an "
            "undeclared kind count as numbers. Only the header was read, and nothing is charged",
        )
