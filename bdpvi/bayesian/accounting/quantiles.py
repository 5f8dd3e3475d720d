"""Population quantiles, certified from a sample for every distribution."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence

import torch
from scipy import special
from torch import Tensor

from bdpvi._ground import validate
from bdpvi.privacy.cost import Exposure

FRACTIONS = (0.5, 0.75, 0.9)
"""Fractions of the population, besides 99 %, with a certified bound each."""


def quantile_certificate(
    values: Tensor, failure_probability: float, fraction: float, counts: Tensor | None = None
) -> Tensor:
    """Return an upper bound on the values of at least ``fraction`` of the population.

    It holds with probability at least 1 − γ over the sample and assumes nothing about the
    distribution, not even moments. Values are per record, such as its own ε or divergence.

    Args:
        values: (..., m), on any scale; +inf is allowed.
        failure_probability: γ, in (0, 1).
        fraction: in (0, 1), fixed before the sample was seen.
        counts: how many records each value stands for, (m,) int64; None is one each.

    Returns:
        An order statistic over the leading dimensions; +inf if m records are too few for the
        fraction.

    Raises:
        ValueError: if a value is NaN, or γ or the fraction is out of range.

    >>> float(quantile_certificate(torch.arange(1000.0), 1e-6, fraction=0.97))
    992.0
    """
    fraction = validate.probability("fraction", fraction)
    validate.every("values", values, ~values.isnan(), "not be NaN")
    size = values.shape[-1] if counts is None else int(counts.sum())
    rank = certified_rank(size, failure_probability, fraction)
    if rank > size:
        return torch.full(values.shape[:-1], math.inf, dtype=torch.float64)
    return _ranked(values, counts, rank).to(torch.float64)


def certified_rank(sample_size: int, failure_probability: float, fraction: float) -> int:
    """Return the least rank, from 1, that bounds ``fraction`` of the population; m + 1 if none.

    With probability at least 1 − γ over the sample, at least ``fraction`` of the population has a
    value no larger than the one of this rank. Exact, without assumptions: the fraction at or
    below the k-th smallest value is Beta(k, m−k+1), or more with ties (Wilks 1941).

    >>> certified_rank(1000, 1e-6, 0.9677), certified_rank(1000, 1e-6, 0.99)
    (992, 1001)
    """
    m, gamma = sample_size, validate.probability("failure_probability", failure_probability)
    ranks = range(1, m + 1)
    return 1 + bisect_left(
        ranks, True, key=lambda k: bool(special.betainc(k, m - k + 1, fraction) <= gamma)
    )


def _ranked(values: Tensor, counts: Tensor | None, rank: int) -> Tensor:
    """Return the ``rank``-th smallest value, from 1."""
    if counts is None:
        return values.kthvalue(rank, dim=-1).values
    ranked = values.sort(dim=-1)
    place = (counts[ranked.indices].cumsum(-1) >= rank).int().argmax(-1, keepdim=True)
    return ranked.values.gather(-1, place).squeeze(-1)


def exposure_of(
    own: Tensor,
    price: Callable[[float], float],
    delta: float,
    failure_probability: float,
    on_path: bool = False,
    counts: Tensor | None = None,
) -> Exposure:
    """Return the exposure: the ε of single records.

    Args:
        own: a number per record, (m,).
        price: the increasing function that maps such a number to ε.
        delta: δ of each record's own ε.
        failure_probability: γ of each certified quantile.
        on_path: whether the numbers were observed on a training path.
        counts: how many records each number stands for, (m,) int64; None is one each.

    >>> found = exposure_of(torch.linspace(0, 1, 1001), float, 1e-5, 1e-6)
    >>> round(found.median, 2), [(share, round(value, 2)) for share, value in found.quantiles]
    (0.5, [(0.5, 0.58), (0.75, 0.81), (0.9, 0.94)])
    """

    def certified(fraction: float) -> float:
        value = float(quantile_certificate(own, failure_probability, fraction, counts))
        return price(value) if math.isfinite(value) else math.inf

    median, most, largest = within(own, price, (0.5, 0.99, 1.0), counts)
    return Exposure(
        delta=delta,
        largest=largest,
        most=most,
        median=median,
        certified=certified(0.99),
        failure_probability=failure_probability,
        quantiles=tuple((fraction, certified(fraction)) for fraction in FRACTIONS),
        on_path=on_path,
    )


def within(
    own: Tensor,
    price: Callable[[float], float],
    levels: Sequence[float],
    counts: Tensor | None = None,
) -> list[float]:
    """Return the ε that bounds each fraction of the records.

    Args:
        own, price, counts: as for :func:`exposure_of`.
        levels: fractions in (0, 1].

    >>> within(torch.tensor([3.0, 1.0, 2.0]), float, (0.5, 1.0))
    [2.0, 3.0]
    """
    for level in levels:
        validate.rate("levels", level)
    size = len(own) if counts is None else int(counts.sum())
    return [price(float(_ranked(own, counts, math.ceil(level * size)))) for level in levels]
