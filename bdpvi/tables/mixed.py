"""Mixed models of tables: rows whose groups are features, or groups that are records."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bdpvi.datasets.dataset import Dataset
from bdpvi.datasets.groups import padded
from bdpvi.datasets.records import People
from bdpvi.models.mixed import MixedRecords, MixedRegression
from bdpvi.releases.estimate import Gaussian

if TYPE_CHECKING:
    from bdpvi.releases.released import Release


def _scale(mixed: MixedRegression) -> tuple[float, float]:
    """Return the middle and half the bound of numbers, in whose units they are trained."""
    of: Any = mixed.of
    return (of.middle, of.largest / 2) if of.target == "number" else (0.0, 1.0)


def of_records(mixed: MixedRegression, rows: int) -> MixedRecords:
    """Return the model of groups with at most R rows; numbers are in units of half their bound."""
    of, (_, unit) = mixed.of, _scale(mixed)
    if of.target == "number":
        of = replace(of, largest=2.0, middle=0.0, prior_scale=of.prior_scale / unit)  # type: ignore[operator]
    return MixedRecords(replace(mixed, of=of), rows)


def grouped(data: Dataset, persons: Any, mixed: MixedRegression, rows: int) -> Dataset:
    """Return records that are groups, for :class:`.MixedRecords`.

    Args:
        data: the rows.
        persons: the group of each, (N,); None if each is one of its own.
        mixed: the model of a row.
        rows: R, the most rows of a group.
    """
    middle, unit = _scale(mixed)
    names = np.arange(len(data)) if persons is None else persons
    made = padded(names, rows_per_unit=rows, x=data.x, y=(mixed.cut(data.y) - middle) / unit)
    x = MixedRecords.records(made["x"], made["present"])
    people = People(data.people.kept, unit=data.people.unit, rows_per_unit=rows, are_records=True)
    return replace(
        data,
        x=x,
        y=torch.where(made["present"], made["y"], 0.0),
        ids=torch.arange(len(x)),
        feature_names=(),
        people=people,
    )


def of_rows(release: Release, mixed: MixedRegression, names: tuple[str, ...]) -> Release:
    """Return a release of :class:`.MixedRecords` as one of rows, with the targets' own units."""
    assert release.guide is not None
    guide, (middle, unit) = release.guide, _scale(mixed)
    scale, shift = (_flat(guide, one) for one in ((unit, 1.0), (0.0, math.log(unit))))
    at = _flat(guide, (1.0, 0.0)).nonzero()[-1]  # the intercept
    shift[at] += middle
    mean = torch.tensor(guide.mean, dtype=torch.float64) * scale + shift
    spread = torch.tensor(guide.variances, dtype=torch.float64) * scale.square()
    whole = torch.tensor(guide.covariance, dtype=torch.float64) * 1.0
    if guide.covariance:
        whole = whole * torch.outer(scale, scale)
    made = replace(
        guide,
        mean=tuple(mean.tolist()),
        variances=tuple(spread.tolist()),
        covariance=tuple(map(tuple, whole.tolist())),
    )
    samples = release.samples * scale + shift
    latents = made.latents(mixed, samples, len(names))
    return replace(
        release, model=mixed, feature_names=names, guide=made, samples=samples, latents=latents
    )


def _flat(guide: Gaussian, values: tuple[float, float]) -> Tensor:
    """Return one value for each weight and the other for each logarithm, (d,)."""
    sizes = {name: math.prod(shape) for name, shape in guide.sites.items()}
    parts = [torch.full((n,), values[name != "w"]).double() for name, n in sizes.items()]
    return torch.cat(parts)
