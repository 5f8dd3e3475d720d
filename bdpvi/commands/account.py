"""``bdpvi account``: everything spent on a table, and the repair of its record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdpvi._ground import outputs, store, validate
from bdpvi._ground.chain import head_of
from bdpvi._ground.outputs import several
from bdpvi._ground.types import Budget
from bdpvi.commands.options import Json

if TYPE_CHECKING:
    from bdpvi.privacy.entry import Entry
    from bdpvi.privacy.ledger import Ledger


def account(
    place: Annotated[
        Path, typer.Argument(help="The table's file, its ledger, or a release's secret folder.")
    ],
    html: Annotated[
        Path | None,
        typer.Option(help="New file for a page with the same content."),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(help="δ of every ε; by default the budget's."),
    ] = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Make a damaged ledger whole again; keep the damaged file beside it. Lines up to "
            "the first damage are kept. Where whole lines are lost and nothing says what they "
            "were, the whole budget counts as spent; without the .head no guarantee is left. Other "
            "damage only the owner of a fit can repair, by --charge.",
        ),
    ] = False,
    charge: Annotated[
        list[str] | None,
        typer.Option(
            help="With --repair: DRAWS,TEMPERATURE of a release, in place of the ledger lines that "
            "cannot be verified; once for every release. There is no worst case then: "
            "if in doubt, give too much."
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(help="Raise the budget to this ε, on record. δ stays."),
    ] = None,
    plan: Annotated[
        str,
        typer.Option(
            metavar="NAME,NAME,…",
            help="Divide what the budget has left among releases with these names, in this "
            "order, and print the ε of each. PLACE may have no account yet if --budget is given.",
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Show what was spent on a table: when, by which command, for which file, at which ε.

    Nothing is charged. What it shows is for the owner of the table.

    Example: bdpvi account patients.csv --budget 3 --plan table1,synthetic,model
    """
    from bdpvi.bayesian import storage
    from bdpvi.privacy.accounts import beside

    if delta is not None:
        validate.probability("delta", delta)
    place, new = (beside(place), False) if beside(place).is_file() else (place, _is_new(place))
    if plan:
        return _show_plan(place, new, plan, budget, delta)
    if new and not (repair or charge):
        raise ValueError(f"{place} has no account yet: nothing was spent on it")
    kept = storage.open_ledger(place)
    if not repair:
        _check(place, kept, charge or ())
    added = _repair_ledger(place, kept, charge or ()) if repair else None
    if budget is not None:  # last, as it is on record
        kept.raise_budget(budget)
    _print(place, as_json, delta=delta, html=html, added=added)


def _check(place: Path, kept: Ledger, charge: Sequence[str]) -> None:
    """Refuse charges without a repair, and a ledger that lacks what receipts say."""
    from bdpvi.releases import receipts

    if charge:
        raise ValueError(f"charge={charge[0]!r} goes with --repair; leave it out, or give both")
    receipts.check(place if place.is_dir() else None, kept)


def _is_new(place: Path) -> bool:
    """Return whether this is a table, or no file at all, and no account."""
    known = place.suffix == ".jsonl" or head_of(place).exists()
    return not place.exists() or (place.is_file() and not known)


def _show_plan(
    place: Path, new: bool, plan: str, budget: float | None, delta: float | None
) -> None:
    """Print the ε of each release; see :func:`bdpvi.privacy.left.divided`."""
    from bdpvi.bayesian import storage
    from bdpvi.privacy.book import Book
    from bdpvi.privacy.left import divided

    names = [name.strip() for name in plan.split(",") if name.strip()]
    book = Book("") if new else storage.open_ledger(place).book()
    limit = book.budget
    if budget is not None:
        limit = Budget(budget, delta or (limit.delta if limit else 1e-5))
    if limit is None:
        raise ValueError(f"plan={plan!r}: {place} has no account yet, so give --budget")
    said = [
        f"Worst-case ε = {limit.epsilon:g} at δ = {limit.delta:g}, each with an equal share of μ²:",
        *(
            f"{name}: ε = {own:.3g} by itself; {whole:.3g} with all before it, which bdpvi "
            "private takes"
            for name, (own, whole) in zip(names, divided(book, limit, len(names)), strict=True)
        ),
        "Make those by bdpvi private last: for prediction they are not Gaussian, and a share after "
        "them may be refused",
    ]
    if new:
        given = f"--budget {limit.epsilon:g} --delta {limit.delta:g}"
        said.append(f"Give the first of them {given}: without a budget, its ε is the budget")
    elif book.budget and limit.epsilon > book.budget.epsilon:
        said.append(f"Raise the budget before: bdpvi account {place} --budget {limit.epsilon:g}")
    outputs.show(*said)


def _repair_ledger(place: Path, kept: Ledger, charge: list[str] | tuple[()]) -> int:
    """Repair a ledger; return the number of charges that were added."""
    from bdpvi.bayesian import storage
    from bdpvi.privacy.repair import repair
    from bdpvi.releases import receipts

    assert kept.path is not None
    given = [_charge(text, storage.name_of(place)) for text in charge]
    fits = place if place.is_dir() else None
    told = () if given or fits is None else receipts.missing(fits, kept.repaired_copy()).values()
    return len(repair(kept.path, given, tuple(told)))


def _charge(text: str, of: str) -> Entry:
    from bdpvi.privacy.entry import Charge, Entry

    try:
        draws, temperature = text.split(",")
        made = Charge(int(draws), float(temperature))
        return Entry(kind="draws", of=of, charge=made, events=None)
    except ValueError as error:
        raise ValueError(f"charge must be like 10,5.0, got {text!r}: {error}") from error


def _print(
    place: Path, as_json: bool, *, delta: float | None, html: Path | None, added: int | None = None
) -> None:
    from bdpvi.bayesian import storage
    from bdpvi.tables.spent import account as spent

    kept = storage.open_ledger(place)
    made = spent(kept, delta)
    book = made.book
    if html is not None:
        store.write(html, made.page().encode())
    if as_json:
        content = {
            "path": kept.path,
            "id": book.id,
            "budget": asdict(book.budget) if book.budget else None,
            "unit": book.unit,
            "rows_per_unit": book.rows,
            "charges": [entry.to_dict() for entry in book.entries],
            "added": added or 0,
        }
        outputs.show(store.json_text(content | made.to_dict()))
        return
    if added is not None:
        outputs.show(f"{several(added, 'charge')} added" if added else "Nothing to repair")
    outputs.show(*made.text())
    outputs.show(
        f"{several(len(book.charges), 'charge')}; budget: {made.limit}; in {kept.path}",
        *([] if html is None else [f"Wrote {html}, for the owner of the table"]),
    )
