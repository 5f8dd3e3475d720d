"""``bdpvi synthesize`` and ``sample``: a table to rows that may be shared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bdpvi._ground import outputs, store, validate
from bdpvi._ground.outputs import several
from bdpvi.commands import quality
from bdpvi.commands.counted import CountedData, Counting, CountOptions
from bdpvi.commands.engine import WorkerOptions
from bdpvi.commands.options import (
    AccountOptions,
    ColumnOptions,
    Out,
    Quiet,
    ScreenOptions,
    of_fields,
)
from bdpvi.commands.quality import ReportOptions
from bdpvi.commands.sampled import SampleOptions, rows_text

if TYPE_CHECKING:
    import pandas as pd

    from bdpvi.privacy.cost import Bound
    from bdpvi.privacy.ledger import Ledger
    from bdpvi.synthesis import Synthetic

_MOST_VALUES = 2**25
"""The most values of a table unless its size is given."""
_USUAL = 1e-5
"""δ of other works on a table without a budget."""


@dataclass(frozen=True, kw_only=True)
class PairOptions(CountOptions):
    """What is counted."""

    target: Annotated[str, typer.Option(help="Most important column, such as a label.")] = ""
    also: Annotated[
        list[str] | None,
        typer.Option(help="Columns a,b,c that are counted together too."),
    ] = None

    @property
    def given(self) -> tuple[str, dict[str, Any]]:
        """The target, and the groups of columns."""
        return self.target, {"also": tuple(tuple(one.split(",")) for one in self.also or ())}


@of_fields
def synthesize(
    data: CountedData,
    counts: PairOptions,
    columns: ColumnOptions,
    account: AccountOptions,
    samples: SampleOptions,
    report: ReportOptions,
    workers: WorkerOptions,
    screen: ScreenOptions,
) -> None:
    """Turn a table into synthetic rows that may be shared, under a worst-case ε.

    OUT gets synthetic.csv, and synthetic.json, from which `bdpvi sample` makes more rows. Bounds
    and levels that the table's file does not declare are estimated privately, for a fifth of μ².
    What is spent on the table is written to its ledger before anything is drawn. After an
    interruption the same command goes on and nothing is charged twice. The secret folder gets a
    report on how well models and statistics of the rows agree with the table's, for the owner of
    the table alone; the same command makes it again, and OUT stays.
    A table in blocks need not fit in memory; no rows are held out, and there is no report.

    Example: bdpvi synthesize --data patients.csv --one-row-per-person --target sick --epsilon 1
    --out shared
    """
    from bdpvi.releases.publishing import secret_of
    from bdpvi.synthesis.released import rehearse

    work = Counting(data, counts, columns, account, workers.is_given)
    samples.check()
    if work.blocks:
        report.check_in_memory()
    order = work.order  # refuse before anything is stored
    if not work.blocks:
        report.check([*order.declared, *order.kinds])
    work.look_first(screen)
    rehearse(order, work.known.file, rows_text)
    fraction = None if work.blocks or report.no_report else report.test_fraction

    def write(
        made: Synthetic, folder: Path, put: Callable[[Path, bytes], None], seed: int
    ) -> pd.DataFrame:
        return samples.write(made, folder, put, seed=seed, bars=screen.bars)

    with workers.machine(progress=screen.bars) as machine:
        made, people, shared = work.publish("synthetic.json", write, machine, fraction)
    where = {"out": account.out, "secret": secret_of(account.out, account.secret)}
    report_spent(made, people, where, as_json=screen.as_json)
    lines = ["No report for the owner: the table is in blocks, and no rows were held out"]
    if work.used is not None:
        lines = []
        if fraction is not None:
            parts = quality.read_split(work.where.secret, work.used)
            lines += quality.report(made, *parts, shared, report.groups or (), where["secret"])
    if not screen.as_json and lines:
        outputs.say(*lines)


@of_fields
def sample(
    shared: Annotated[Path, typer.Argument(help="File synthetic.json.")],
    out: Out,
    samples: SampleOptions,
    quiet: Quiet = False,
) -> None:
    """Make more synthetic rows, which costs nothing."""
    from bdpvi.synthesis import load

    made = load(shared)
    samples.check()
    rows = samples.rows
    if rows is None:  # then the file has the number
        rows, width = made.rows, len(made.schema.columns)
        name = f"values in the {rows} rows that {shared} speaks of"
        validate.at_most(name, rows * width, _MOST_VALUES, "say how many rows you want (--rows)")
    with store.claimed_folder(out) as folder:
        samples.write(made, folder, store.write, bars=not quiet)
    outputs.say(f"{out}: {samples.tables} × {several(rows, 'row')}; {made.receipt}")


def _total_cost(people: Ledger, delta: float) -> Bound | None:
    """Return the cost of everything at δ; at the budget's if an earlier work has used up δ."""
    larger = people.budget.delta if people.budget else _USUAL
    return people.worst_case(delta) or people.worst_case(max(delta, larger))


def report_spent(made: Synthetic, people: Ledger, where: dict[str, Path], *, as_json: bool) -> None:
    """Say what was charged, for what, and where it lies."""
    from bdpvi._ground.schema import to_json
    from bdpvi.releases.account import NOT_PRICED, words_of_account

    assert people.path is not None
    spent = _total_cost(people, made.receipt.worst_case.delta)
    if as_json:
        secret = {
            "folder": where["secret"],
            "ledger": people.path,
            "spent": to_json(spent),
        }
        public = {"out": where["out"], "rows": made.rows, "receipt": to_json(made.receipt)}
        outputs.say(store.json_text({"public": public, "secret": secret}))
        return
    outputs.say(
        f"Public: {made.receipt}",
        f"  {made.receipt.meaning}",
        *([f"  {told}"] if (told := made.receipt.in_one_sentence) else []),
        f"For the owner only: everything spent on this table: {spent or NOT_PRICED}",
        f"Wrote {where['out']}: about {several(made.rows, 'row')}, which may be shared. Keep "
        f"{where['secret']}/ and {people.path} secret",
        *words_of_account(people, made.receipt.worst_case),
    )
