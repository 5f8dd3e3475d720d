"""The work of ``bdpvi synthesize``: begun, charged and counted, or gone on with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bdpvi._ground import store
from bdpvi.commands import quality

if TYPE_CHECKING:
    import pandas as pd

    from bdpvi.datasets.formats import FileFormat
    from bdpvi.datasets.records import Records, Spread
    from bdpvi.privacy.ledger import Ledger
    from bdpvi.releases.intent import Begun
    from bdpvi.releases.transaction import Transaction
    from bdpvi.synthesis import Synthetic
    from bdpvi.synthesis.order import Order


def counted_bytes(
    table: pd.DataFrame | Spread[pd.DataFrame],
    order: Order,
    work: Transaction,
    file: FileFormat,
    said: Mapping[str, object],
    held: tuple[Path, float] | None,
) -> bytes:
    """Return the noisy counts of a table as bytes.

    Args:
        table: the rows, in memory, or in blocks and looked at.
        order: the release.
        work: the transaction.
        file: how the file is written.
        said: the owner's declarations about the table.
        held: folder for the numbers of the rows held out for the report, and their fraction.
    """
    from bdpvi.datasets.records import Held, Spread
    from bdpvi.privacy.assumptions import Assumption
    from bdpvi.synthesis.order import counted
    from bdpvi.synthesis.released import Synthesis, as_read
    from bdpvi.synthesis.source import look

    def made_of(rows: Records[pd.DataFrame]) -> Synthetic:
        if isinstance(rows, Held):
            look(rows, order)
        return as_read(work.perform(Synthesis(rows, order)), file, **said)

    if isinstance(table, Spread) or held is None:
        return made_of(table if isinstance(table, Spread) else Held(table)).to_bytes()
    (folder, fraction), settings, split = held, order.settings, work.secret.child("held out")
    both = quality.kept_out(table, fraction, split, settings.unit, order.person)
    made = made_of(Held(both[0]))
    made = replace(made, receipt=made.receipt.assuming(Assumption.SECRET_SPLIT))
    key = work.charge(Synthesis(Held(both[0]), order))[1]  # charged already, not again
    quality.keep(folder, *(counted(one, settings, key, person=order.person) for one in both))
    return made.to_bytes()


@contextmanager
def begun(
    folder: Path, table: str, people: Ledger, options: str, price: Mapping[str, float]
) -> Iterator[Begun]:
    """Hold the secret folder, and yield its work for this table, by its digest, and these options.

    Any error reports what was charged and how to resume. If nothing was charged, nothing is left.
    """
    from bdpvi._ground.validate import why
    from bdpvi.releases import intent

    digest = hashlib.sha256(options.encode()).hexdigest()
    with store.held(folder):
        file = folder / intent.NAME
        work = intent.begun(file, table=table, options=digest, charge=price, ledger=people.path)
        try:
            yield work
        except BaseException as error:
            words = (
                f"ε was charged to {people.path}; the same command continues from {folder}/ "
                "(secret) without a second charge"
            )
            charged = not work.abandoned(people)
            if not charged:
                words = "nothing was charged; the same command starts again"
            if isinstance(error, KeyboardInterrupt):
                raise KeyboardInterrupt(words) from None
            if isinstance(error, OSError):
                raise OSError(error.errno, f"{why(error)}; {words}", error.filename) from error
            if isinstance(error, ValueError) and charged and not work.kept.exists():
                raise ValueError(f"{error}; {words}") from error  # such as of a lost block
            raise
