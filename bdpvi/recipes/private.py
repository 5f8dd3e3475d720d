"""From a table to a model that may be shared: one pipeline, one ε for all that leaves the house."""

from __future__ import annotations

import hashlib
import os
import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bdpvi._runtime import store
from bdpvi._runtime.keys import Key
from bdpvi._runtime.schema import to_json
from bdpvi.datasets.cells import read_cell
from bdpvi.datasets.encoding import with_text_names
from bdpvi.datasets.reading import read_table
from bdpvi.datasets.tables import dataset_from_frame
from bdpvi.neighbours.optimum.route import Optimum
from bdpvi.neighbours.route import Remove
from bdpvi.recipes import files
from bdpvi.recipes.pipeline import Encoded, Pipeline, PrivacyUtilityWarning, Rows, encode
from bdpvi.releasing import storage
from bdpvi.releasing.guarantees import BayesianDP, WorstCaseDP
from bdpvi.releasing.intent import begun
from bdpvi.releasing.releases import release
from bdpvi.types import Budget, Dataset

if TYPE_CHECKING:
    import pandas as pd

    from bdpvi._fit import Fit
    from bdpvi.releasing.released import Release

MODEL = "release.json"
"""The file in the public folder."""


def private(
    table: pd.DataFrame | Dataset | str | os.PathLike[str],
    *,
    target: str = "",
    positive: object = None,
    epsilon: float,
    out: str | os.PathLike[str] | None = None,
    secret: str | os.PathLike[str] | None = None,
    separator: str = ",",
    progress: bool = True,
    **options: Any,
) -> Release:
    """Turn a table into a private model: buy constants, fit all rows, charge, draw.

    ε covers all that leaves the house: the constants that encode the columns, the number of
    records, and the draws. Where constants are public they cost nothing, and all of ε is for the
    fit. It is for one row added or removed, and worst-case.

    Args:
        table: a data frame, a CSV or Parquet file, or records encoded by public constants.
        target: the yes/no column.
        positive: its value that counts as 1.
        epsilon: ε of everything.
        out: new folder for :data:`MODEL`, which may be shared. Without it nothing is written, and
            nothing is known of other releases from this table.
        secret: new folder for the fit and its ledger; ``OUT.secret`` by default. Never share it.
            After an interruption the same call goes on there and pays nothing twice.
        separator: of a CSV file.
        progress: whether to show progress bars.
        options: further fields of :class:`Pipeline`.

    Raises:
        TooFewRecordsError: by the noisy number of records, before anything is fitted.
        ValueError: naming what is wrong with header, constants or options, never with a row.

    Warns:
        PrivacyUtilityWarning: if there are few records.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"age": range(20, 70), "sick": ["no", "yes"] * 25})
    >>> from bdpvi.datasets import constants_of
    >>> public = constants_of({"source": "By law.", "age": [18, 80]})
    >>> release = private(frame, target="sick", positive="yes", epsilon=1.0, constants=public)
    >>> print(release.receipt)
    worst-case DP ε = 1 (aimed at) at δ = 1e-05, to add or remove one record
    """
    pipeline = {"target": target, "positive": positive, "epsilon": epsilon, **options}
    work = Work.of(table, separator=separator, progress=progress, **pipeline)
    return work.released(Key.fresh()) if out is None else work.written(*places(out, secret))


def places(
    out: str | os.PathLike[str], secret: str | os.PathLike[str] | None = None
) -> tuple[Path, Path]:
    """Return the file that may be shared and the folder that may not."""
    folder = Path(out).with_name(f"{Path(out).name}.secret") if secret is None else Path(secret)
    return Path(out) / MODEL, folder


@dataclass(frozen=True, eq=False)
class Work:
    """A table and what is done with it.

    Attributes:
        table: the rows, raw or encoded.
        pipeline: what is done.
        progress: whether to show progress bars.
    """

    table: pd.DataFrame | Dataset
    pipeline: Pipeline
    progress: bool = True

    @classmethod
    def of(
        cls,
        table: pd.DataFrame | Dataset | str | os.PathLike[str],
        *,
        separator: str = ",",
        progress: bool = True,
        **pipeline: Any,
    ) -> Work:
        """Read the table; arguments as of :func:`private`."""
        if isinstance(table, str | os.PathLike):
            pipeline = {"name": Path(table).stem, **pipeline}
            raw = not pipeline.get("from_data")
            table = read_table(table, separator=separator, text=raw, least=0 if raw else 1)
        if isinstance(table, Dataset):
            pipeline |= {"target": "y", "positive": 1, "name": table.name}
        return cls(table, Pipeline(**pipeline), progress)

    @cached_property
    def rows(self) -> Rows:
        """The raw rows that have a target."""
        assert not isinstance(self.table, Dataset)
        return Rows.of(self.table, self.pipeline)

    @cached_property
    def records(self) -> Dataset | None:
        """All records where constants are given, None where the table is encoded by others."""
        if isinstance(self.table, Dataset):
            return self.table
        pipeline = self.pipeline
        if not pipeline.from_data:
            return None
        given = {"drop": pipeline.drop, "categorical": pipeline.categorical, **pipeline.measuring}
        return dataset_from_frame(
            self.table, pipeline.target, positive=pipeline.positive, name=pipeline.name, **given
        )

    @property
    def bayesian(self) -> bool:
        """Whether the guarantee is not a worst-case one: as asked for, or as settings have it."""
        if self.pipeline.guarantee is not None:
            return self.pipeline.guarantee.name != WorstCaseDP.name
        settings = self.pipeline.chosen()
        return settings.noise_scale is None or settings.model.clip is None

    def check(self) -> None:
        """Say what is wrong with header, constants or options, before anything is bought or kept.

        Raises:
            ValueError: naming it.
        """
        if self.records is not None:
            return
        assert not isinstance(self.table, Dataset)
        purchase = self.pipeline.purchase(list(with_text_names(self.table).columns))
        if self.bayesian and not purchase.empty:
            raise ValueError(
                f"guarantee: {BayesianDP.name}, asked for or all that settings without clip and "
                "noise_scale can have, needs public constants for all columns, as bought ones are "
                "an output too; give --constants, or leave guarantee and settings out"
            )

    def dataset(self, key: Key) -> tuple[Dataset, Encoded | None]:
        """Return all records, and how they were encoded unless constants are given."""
        pipeline = self.pipeline
        if self.records is not None:
            return self.records, None
        found = encode(self.rows, pipeline, key)
        meaning = {"column": pipeline.target, "positive": read_cell(pipeline.positive)[1]}
        data = Dataset(
            found.encoding.whole(self.rows.columns),
            torch.from_numpy(self.rows.y),
            feature_names=found.encoding.feature_names,
            name=pipeline.name,
            preprocessing={
                "encoding": found.encoding.to_dict(),
                "target": meaning | {"negative": f"not {meaning['positive']}"},
            },
        )
        return data, found

    def fitted(self, key: Key) -> Fit:
        """Return the fit to all records, with its constants charged."""
        pipeline = self.pipeline
        self.check()
        data, found = self.dataset(key)
        paid = found.paid if found else ()
        about = len(data) if found is None or found.records is None else max(found.records, 1.0)
        if pipeline.delta * about >= 1:
            warnings.warn(
                f"delta={pipeline.delta:g} is at least 1/N = {1 / about:.2g}: a command that "
                "published one of the rows would keep it too. Choose a smaller δ",
                UserWarning,
                stacklevel=3,
            )
        if found and (few := found.caution(pipeline.epsilon)):
            warnings.warn(few, PrivacyUtilityWarning, stacklevel=3)
        if found and (nameless := found.nameless(pipeline.categorical)):
            warnings.warn(nameless, PrivacyUtilityWarning, stacklevel=3)
        settings = pipeline.chosen(paid)
        panel = self.bayesian or settings.noise_scale is None
        fit = settings.fit(
            data,
            neighbours=None if panel else Optimum(Remove(0)),
            budget=Budget(pipeline.epsilon, pipeline.delta),
            progress=self.progress,
        )
        for one in paid:
            fit.ledger.charge(one)
        return fit

    def drawn(self, fit: Fit, purpose: str = "") -> Release:
        """Return the draws from a fit, charged."""
        pipeline = self.pipeline
        return release(
            fit,
            pipeline.chosen().draws,
            epsilon=pipeline.epsilon,
            delta=pipeline.delta,
            guarantee=pipeline.guarantee,
            purpose=purpose,
        )

    def released(self, key: Key) -> Release:
        """Return a release that is written nowhere."""
        return self.drawn(self.fitted(key))

    def written(self, file: Path, secret: Path) -> Release:
        """Fit, charge, draw and write, going on where an earlier call was interrupted."""
        for name, path in (("out", file.parent), ("out", file), ("secret", secret)):
            if os.path.lexists(path) and path.is_symlink() and not path.exists():
                raise ValueError(f"{name}={str(path)!r} is a link that leads nowhere")
        if file.parent.is_dir():
            store.remove_dead(file)
        if not store.nothing_at(file):
            raise ValueError(f"out: {file} exists already; choose another, nothing is replaced")
        self.check()
        table, options = self.digests()
        with (
            store.new_folder(file.parent),
            store.held(secret),
            store.claimed(file, room=storage.ROOM) as temporary,
        ):
            price = {"epsilon": self.pipeline.epsilon, "delta": self.pipeline.delta}
            key = begun(secret, table=table, options=options, charge=price)
            fit = files.load(secret) if storage.is_fit(secret) else None
            if fit is None:
                fit = self.fitted(key)
                extra = to_json(self.pipeline.chosen(fit.ledger.bought()))
                storage.save_fit_in(fit, secret, extra=extra)
            found = self.drawn(
                fit, hashlib.sha256(f"private {table} {options}".encode()).hexdigest()
            )
            storage.write_release(found, temporary)
        return found

    def digests(self) -> tuple[str, str]:
        """Return digests of the table and of the options."""
        if isinstance(self.table, Dataset):
            table = self.table.fingerprint()
        else:
            table = hashlib.sha256(self.table.to_csv().encode("utf-8", "replace")).hexdigest()
        options = replace(self.pipeline, name="data")
        return table, hashlib.sha256(repr(options).encode()).hexdigest()
