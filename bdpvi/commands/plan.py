"""``bdpvi private --plan``: what ε would pay for, before anything is read or charged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bdpvi._ground import outputs, store
from bdpvi._ground.outputs import several
from bdpvi.commands import options
from bdpvi.commands.options import WholeTable

if TYPE_CHECKING:
    from bdpvi.privacy.book import Book


def show_plan(table: WholeTable, given: dict[str, Any], people: Book, as_json: bool) -> None:
    """Print the plan for these people, from the header only."""
    from bdpvi.datasets.schema import in_file
    from bdpvi.datasets.units import without_unit
    from bdpvi.privacy.book import ROW
    from bdpvi.tables.encoded import price_of
    from bdpvi.tables.pipeline import Pipeline

    if table.data in options.TABLES:
        raise ValueError(
            f"plan: the preprocessing of {table.data} is public, so nothing is estimated privately"
        )
    header = table.header
    types, named = in_file(given.get("types"), header, table.file), header
    if people.unit != ROW:
        named = without_unit(header, people.unit)
        types = None if types is None else types.of_unit(people.unit)[1]
    pipeline = Pipeline(**given | {"types": types})
    price = price_of(pipeline, named, people.rows)
    whom = "" if people.unit == ROW else f" to add or remove {people.whose}"
    facts = {
        "epsilon": pipeline.epsilon,
        "delta": pipeline.delta,
        "unit": people.unit,
        "rows_per_unit": people.rows,
        "bought": price.columns,
        "records_needed": price.needed,
        "records_refused_below": price.refused_below,
    }
    if as_json:
        outputs.show(store.json_text(facts))
    elif not price.needed:
        outputs.show(
            f"Nothing is estimated privately: the model gets all of ε = {pipeline.epsilon:g}{whom}"
        )
    else:
        outputs.show(
            "private preprocessing takes a fifth of μ² and estimates bounds or categories of "
            f"{several(len(price.columns), 'column')}: "
            f"{', '.join(f'{name} ({kind})' for name, kind in price.columns.items())}",
            f"ε = {pipeline.epsilon:g}{whom} needs about {price.needed} records for this "
            f"preprocessing; below {price.refused_below} nothing is fitted. Columns of an "
            "undeclared kind count as numbers. Only the header was read, and nothing is charged",
        )
