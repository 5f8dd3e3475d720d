"""``bdpvi audit``: what releases give away, measured from tables that differ in one record."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bdpvi._ground import outputs, store, validate
from bdpvi.commands import options
from bdpvi.commands.options import Delta, Json, Quiet, SplitTable, of_fields

if TYPE_CHECKING:
    from bdpvi.datasets.dataset import Dataset

FILE = "audit.json"
SECRET = "secret: it is computed from rows without noise. Share nothing of it"


@dataclass(frozen=True, kw_only=True)
class AuditedTable(SplitTable):
    """A table of the owner's, or none."""

    data: Annotated[
        str,
        typer.Option(
            help="A file, such as CSV, Parquet or Excel, or a public table; or give --simulated."
        ),
    ] = ""

    def check(self) -> None:
        """Refuse a table that cannot be there, if one is named."""
        if self.data:
            super().check()


def records_of(table: AuditedTable, simulated: bool) -> Dataset:
    """Return encoded records of the table, or simulated ones.

    Raises:
        ValueError: unless one of both is given.
    """
    import torch

    if simulated == bool(table.data):
        wrong = "were both given" if simulated else "are both missing"
        raise ValueError(f"data={table.data!r} and --simulated {wrong}; give one")
    if not simulated:
        return table.split(options.PUBLIC_SEED).train
    from bdpvi.audits import exact

    return exact.simulated(torch.Generator().manual_seed(options.PUBLIC_SEED))


@of_fields
def audit(
    table: AuditedTable,
    out: Annotated[
        Path,
        typer.Option(help="Secret folder for what is found; an unfinished audit continues."),
    ],
    simulated: Annotated[
        bool, typer.Option("--simulated", help="Use a simulated table instead.")
    ] = False,
    epsilon: Annotated[float, typer.Option(help="ε of each release.")] = 4.0,
    delta: Delta = 1e-5,
    runs: Annotated[
        int, typer.Option(help="Releases with the record, and as many without, of each door.")
    ] = 1000,
    exact_only: Annotated[
        bool, typer.Option("--exact-only", help="Leave out the doors that need runs.")
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Audit every door: does a release give away more about one record than is claimed?

    Two tables that differ in one record go the whole way, and what comes out is compared. Where it
    is Gaussian or has a density the result is exact, for a worst record and for random ones; else
    an attacker who knows all other rows guesses, run after run or about many canaries of one run,
    and the audited ε is a lower bound at 95 and 99.9 %. A bound below the claim proves nothing; one
    above it, at 99.9 %, gives exit code 1.

    For the owner of the table only: what it prints and writes is secret. Nothing is shared, and
    nothing is charged.

    Example: bdpvi audit --simulated --out audited
    """
    from bdpvi._ground import progress
    from bdpvi._ground.checkpoint import Checkpoint
    from bdpvi.audits import doors, exact, one_run

    validate.epsilon(epsilon)
    validate.probability("delta", delta)
    validate.positive_int("runs", runs, least=40)
    data = records_of(table, simulated)
    some = exact.first(data, exact.ROWS)
    settings = {"epsilon": epsilon, "delta": delta, "table": exact.digest(some)}
    kept = Checkpoint(out, settings, "runs")
    track = progress.silent if quiet else progress.bar
    with options.resumable(out):
        found = []
        for _name, one in track(exact.audits(data, epsilon, delta), "exact"):
            found.append(one())
        if not exact_only:
            found += [
                one.audited(delta, runs, kept, track) for one in doors.doors(some, epsilon, delta)
            ]
            found.append(one_run.dp_sgd(some, epsilon, delta))
        kept.begin()
        said: dict[str, Any] = {
            "out": out,
            "audits": [{**asdict(one), "tightness": one.tightness} for one in found],
            "refuted": [one.door for one in found if one.refuted],
        }
        store.write(out / FILE, store.json_text(said, indent=1).encode())
    if as_json:
        outputs.show(store.json_text({"secret": said}))
    else:
        outputs.show(*map(str, found), f"Wrote {out / FILE} ({SECRET})")
    if said["refuted"]:
        outputs.complain(
            f"the claim of {', '.join(said['refuted'])} is too small: more was given away than ε "
            "says. Share nothing of this door; report it as SECURITY.md says"
        )
        raise typer.Exit(1)
