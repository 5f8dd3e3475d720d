"""``bdpvi describe``: the Table 1 of a table, which may be published."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bdpvi._ground import outputs
from bdpvi.commands.counted import CountedData, Counting, CountOptions
from bdpvi.commands.engine import WorkerOptions
from bdpvi.commands.options import AccountOptions, ColumnOptions, ScreenOptions, of_fields
from bdpvi.commands.synthesize import report_spent

if TYPE_CHECKING:
    from bdpvi.synthesis import Synthetic, TableOne


@dataclass(frozen=True, kw_only=True)
class GroupOptions(CountOptions):
    """What is described."""

    by: Annotated[str, typer.Option(help="Column of groups; each gets a column of Table 1.")] = ""

    @property
    def given(self) -> tuple[str, dict[str, Any]]:
        """The column of groups, and that no pairs are counted."""
        return self.by, {"pairs": False}


@of_fields
def describe(
    data: CountedData,
    counts: GroupOptions,
    columns: ColumnOptions,
    account: AccountOptions,
    workers: WorkerOptions,
    screen: ScreenOptions,
) -> None:
    """Make the Table 1 of a study under a worst-case ε: it may be published.

    OUT gets counts, shares, means, standard deviations and quartiles of all columns, with intervals
    for privacy noise and sampling, as table_one.txt, .html and .csv, the noisy counts behind them,
    counts.json, and a statement of the guarantee. Bounds and levels that the table's file does not
    declare are estimated privately. `bdpvi show OUT/counts.json` prints the table again, at no
    cost.

    Example: bdpvi describe --data patients.csv --one-row-per-person --by ward --epsilon 1
    --out table1
    """
    from bdpvi.releases.publishing import secret_of
    from bdpvi.synthesis.released import rehearse
    from bdpvi.synthesis.table_one import table_one

    def write(
        made: Synthetic, folder: Path, put: Callable[[Path, bytes], None], seed: int
    ) -> TableOne:
        found = table_one(made, made.target)
        put(folder / "table_one.txt", f"{found}\n{made.receipt.meaning}\n".encode())
        put(folder / "table_one.html", found.to_html().encode())
        put(folder / "table_one.csv", outputs.csv_text(found.to_frame()).encode())
        return found

    work = Counting(data, counts, columns, account, workers.is_given)
    order = work.order  # refuse before anything is stored
    work.look_first(screen)
    rehearse(order, work.known.file)
    with workers.machine(progress=screen.bars) as machine:
        made, people, found = work.publish("counts.json", write, machine)
    where = {"out": account.out, "secret": secret_of(account.out, account.secret)}
    if not screen.as_json:
        outputs.show(*str(found).split("\n"))
    report_spent(made, people, where, as_json=screen.as_json)
