"""The protocol of routes: methods that fit a guide and find the fit's neighbours."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi._ground.checkpoint import settings_of
from bdpvi._ground.outputs import several
from bdpvi._ground.progress import Track
from bdpvi._ground.types import PrivacyUtilityWarning
from bdpvi.bayesian.accounting.panel import Panel
from bdpvi.bayesian.inference.fingerprint import SECRET
from bdpvi.bayesian.inference.guide import Guide
from bdpvi.bayesian.inference.svi import Convergence, Problem
from bdpvi.bayesian.neighbours.rows import RowFits
from bdpvi.datasets.dataset import BlockData, Dataset
from bdpvi.models.contract import Model
from bdpvi.noise.keys import Key

_FEW, _COMPARED, _BY_CHANCE, _CLEARLY = 20, 10_000, 1e-6, 0.1
"""Least and most records whose features are compared, the chance of a warning without a difference,
and the distance from which on it is told."""


@dataclass(frozen=True, eq=False)
class TrainedNeighbours:
    """The result of a route: the fit, and its distance from each neighbour.

    Attributes:
        parameters: the guide's parameters, constrained and detached. Secret.
        convergence: convergence of the fit. Secret.
        panels: how far single records move the posterior, one panel per kind. Secret.
    """

    parameters: dict[str, Tensor]
    convergence: Convergence
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Remove:
    """Leave-one-out neighbours.

    Args:
        records: number of records to leave out in turn, drawn at random; None means all. 0 gives an
            empty panel, for a worst case that is known without one.
        seed: seed of that choice.
    """

    records: int | None = None
    seed: int = 0

    def rows(self, data: Dataset, model: Model) -> RowFits:
        """Return the neighbours of ``data``, with records that the model accepts."""
        if self.records == 0:
            return RowFits("remove", data.select(torch.arange(0, device=data.ids.device)), -1.0)
        return RowFits("remove", _sample(data, self.records, self.seed), -1.0)


@dataclass(frozen=True, eq=False)
class Add:
    """Neighbours with one additional held-out record: x' ~ μ, as in the definition.

    ε is then for records like the held-out ones. A warning names the feature that is most unlike
    the data's, where its distribution clearly differs (two-sample Kolmogorov-Smirnov test).

    Args:
        heldout: records that are not in the data, with distinct ids; those that are invalid for the
            model are left out.
        records: number of records to add in turn; None means all.
        seed: seed of that choice.
    """

    heldout: Dataset
    records: int | None = None
    seed: int = 0

    def rows(self, data: Dataset, model: Model) -> RowFits:
        """Return the neighbours of ``data``, with records that the model accepts."""
        shared = torch.isin(self.heldout.ids.cpu(), data.ids.cpu())
        if bool(shared.any()):
            first = int(self.heldout.ids.cpu()[shared][0])
            raise ValueError(f"heldout has record id {first}, which is in the data already")
        if self.heldout.x.shape[1] != data.x.shape[1]:
            raise ValueError(
                f"heldout has {several(self.heldout.x.shape[1], 'feature')}, the data "
                f"{data.x.shape[1]}"
            )
        heldout = self.heldout.to(data.x.device, data.x.dtype)
        heldout = heldout.taking(getattr(model, "takes", None))
        _tell_unlike(heldout, data)
        return RowFits("add", _sample(heldout, self.records, self.seed), 1.0)


def _tell_unlike(heldout: Dataset, data: Dataset) -> None:
    """Warn if a feature of held-out records is distributed otherwise than the data's."""
    if min(len(heldout), len(data)) < _FEW:
        return
    from scipy.stats import ks_2samp  # late: it is slow to import

    columns = [one.x[:: max(1, len(one) // _COMPARED)].cpu().numpy().T for one in (heldout, data)]
    found = [ks_2samp(one, other, method="asymp") for one, other in zip(*columns, strict=True)]
    apart = [one.statistic if one.pvalue < _BY_CHANCE / len(found) else 0.0 for one in found]
    if max(apart, default=0.0) > _CLEARLY:
        at = apart.index(max(apart))
        warnings.warn(
            f"for the owner only: heldout: feature {heldout.feature_names[at]!r} is distributed "
            f"unlike the data's (Kolmogorov-Smirnov distance {apart[at]:.2f}). ε is for records "
            "like those of heldout, and says nothing of others",
            PrivacyUtilityWarning,
            stacklevel=6,
        )


def _sample(data: Dataset, records: int | None, seed: int) -> Dataset:
    """Return ``records`` records, drawn without replacement, or all; in the order of the data."""
    size = len(data) if records is None else validate.positive_int("records", records)
    if records is not None and not 3 <= size <= len(data):
        raise ValueError(f"records={size} must be between 3 and the number of records, {len(data)}")
    if size == len(data):
        return data
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(data), generator=generator, device="cpu")[:size]
    return data.select(chosen.sort().values.to(data.x.device))


def check_rate(problem: Problem) -> None:
    """Refuse a sampling rate below 1 where the fit is an optimum for all records."""
    if problem.plan.rate != 1:
        raise ValueError(f"rate={problem.plan.rate} must be 1: the optimum is for all records")


def removed(kinds: Iterable[Remove | Add], route: str) -> Iterator[Remove]:
    """Yield kinds of neighbours of a table in blocks; raise ValueError if one adds records."""
    for kind in kinds:
        if not isinstance(kind, Remove):
            raise ValueError(f"neighbours: of a table in blocks records are left out, {route}")
        yield kind


class Neighbours:
    """A route: fits the guide and computes how far single records move the posterior."""

    checkpoint: Path | None = None
    """Folder for finished parts, so that an interrupted run can resume."""

    def key(self) -> Key:
        """Return the secret key of a run's batches: an interrupted run's key, or a new one."""
        kept = "" if self.checkpoint is None else str(settings_of(self.checkpoint).get("seed"))
        number = kept.removeprefix(SECRET)
        if number == kept or not number.isdecimal():
            return Key.fresh()
        return Key.of_int(int(number))

    @classmethod
    def bounds(cls, model: Model, guide: Guide, features: int = 1) -> bool:
        """Return whether public numbers bound any record's influence in any table.

        Args:
            model, guide: to fit.
            features: number of columns d.
        """
        return False

    @classmethod
    def certifies(cls, model: Model, guide: Guide, features: int = 1) -> bool:
        """Return whether any record's influence on the fit to the table at hand is bounded.

        Args:
            model, guide, features: as for :meth:`bounds`.
        """
        return cls.bounds(model, guide, features)

    def over(self, table: BlockData) -> Neighbours:
        """Return the route for records in blocks.

        Raises:
            ValueError: if it needs the records in memory, or adds records.
        """
        raise ValueError(
            f"neighbours={type(self).__name__} needs the records in memory: give a Dataset, "
            "or of a table in blocks take Optimum()"
        )

    def train(self, problem: Problem, track: Track[Any]) -> TrainedNeighbours:
        """Train guide and neighbours."""
        raise NotImplementedError
