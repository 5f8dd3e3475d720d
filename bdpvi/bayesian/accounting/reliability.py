"""Whether an estimate's diagnostics support its bound.

A bound by Student's t falls below the truth with probability γ when the values are Gaussian. When
they are skewed to the right, as y = exp(λD) is, a sample that happens to lack large values has a
small mean *and* a small spread, and the bound misses more often. How much more often depends on
the skewness and on the number of records, so the rule uses these two; ``python -m studies
coverage`` measures how well it works. No rule can detect a tail of which the sample has no values:
reliable means that the sample gives no reason for doubt.
"""

from __future__ import annotations

import math

import torch
from scipy import special
from torch import Tensor

from bdpvi._ground import validate
from bdpvi._ground.outputs import several
from bdpvi.bayesian.accounting.estimators import MeanEstimate, student_t_quantile

TOLERANCE = 0.9
"""A miss rate up to γ^0.9 is tolerated: 1.3 γ at γ = 0.1, 4 γ at 1e-6, 32 γ at 1e-15."""

LEAST_RECORDS = 30
"""Fewer records of a skewed distribution look symmetric too often."""


def predicted_miss_rate(skewness: Tensor, sample_size: int, failure_probability: float) -> Tensor:
    """Predict how often the bound by Student's t lies below the truth.

    γ exp(κ h(t)/√m) with h(t) = (2t² + 1) φ(t)/6(1 − Φ(t)) and t the quantile that the bound uses:
    for small t the Edgeworth expansion of the t statistic (Hall, "The Bootstrap and Edgeworth
    Expansion", 1992, §2.6), for large t its large deviation, γ exp(κ t³/3√m) (Jing, Shao and Wang
    2003). κ is the sample's skewness plus one standard error √(6/m), as small samples may look
    symmetric by chance.

    Args:
        skewness: skewness of the sample, any shape; +inf gives 1.
        sample_size: m, at least 3.
        failure_probability: γ, in (0, 1).

    Returns:
        The rate, between γ and 1, in the shape of ``skewness``.

    >>> [f"{predicted_miss_rate(torch.tensor(2.0), m, 1e-6):.1e}" for m in (256, 10_000)]
    ['2.4e-04', '2.2e-06']
    """
    m = validate.positive_int("sample_size", sample_size, least=3)
    t = student_t_quantile(m, failure_probability)
    hazard = math.sqrt(2 / math.pi) / float(special.erfcx(t / math.sqrt(2)))
    exponent = (2 * t * t + 1) * hazard / 6 / math.sqrt(m)
    doubtful = (torch.as_tensor(skewness, dtype=torch.float64) + math.sqrt(6 / m)).clamp(min=0)
    return (failure_probability * torch.exp(exponent * doubtful)).clamp(max=1)


def tolerable(
    skewness: Tensor, sample_size: int, failure_probability: float, tolerated: float | None = None
) -> Tensor:
    """Return whether the predicted miss rate of a bound by Student's t is tolerated.

    Arguments as for :func:`predicted_miss_rate` and :func:`reliable`.

    >>> tolerable(torch.tensor([0.5, 5.0]), 2000, 1e-6).tolist()
    [True, False]
    """
    rate = predicted_miss_rate(skewness, sample_size, failure_probability)
    return (rate <= _tolerated(failure_probability, tolerated)) & (sample_size >= LEAST_RECORDS)


def reliable(
    estimate: MeanEstimate, failure_probability: float, tolerated: float | None = None
) -> Tensor:
    """Return whether the bound is reliable.

    True if the bound holds for every distribution (:attr:`MeanEstimate.distribution_free`), or if
    there are at least :data:`LEAST_RECORDS` and the predicted miss rate is tolerated.

    Args:
        estimate: of any shape.
        failure_probability: γ of the estimate, in (0, 1).
        tolerated: the largest miss rate; by default γ^0.9.

    Returns:
        Booleans over the estimate's leading dimensions.

    >>> from bdpvi.bayesian.accounting.estimators import student_t
    >>> few, many = torch.linspace(0, 1, 20), torch.linspace(0, 1, 2000)
    >>> bool(reliable(student_t(few, 1e-6), 1e-6)), bool(reliable(student_t(many, 1e-6), 1e-6))
    (False, True)
    """
    if estimate.distribution_free:
        return torch.ones_like(estimate.constant)
    return tolerable(estimate.skewness, estimate.sample_size, failure_probability, tolerated)


def why(estimate: MeanEstimate, failure_probability: float, tolerated: float | None = None) -> str:
    """Say in words why one estimate is reliable or not.

    Arguments as for :func:`reliable`; the estimate must have a single entry.

    Raises:
        ValueError: if the estimate has several entries.

    >>> from bdpvi.bayesian.accounting.estimators import student_t
    >>> why(student_t(torch.zeros(50), 1e-6), 1e-6)
    '50 records of the same value, which says nothing about records not seen'
    """
    if estimate.skewness.numel() != 1:
        raise ValueError(
            f"estimate must have a single entry, got shape {tuple(estimate.skewness.shape)}"
        )
    m, skewness = estimate.sample_size, float(estimate.skewness)
    if estimate.distribution_free:
        return "the bound holds for any distribution that the records are independent draws from"
    if bool(estimate.constant):
        return (
            f"{several(m, 'record')} of the same value, which says nothing about records not seen"
        )
    if math.isinf(skewness):
        return "a record has an infinite value"
    if m < LEAST_RECORDS:
        return (
            f"{several(m, 'record')}: fewer than the {LEAST_RECORDS} that show how skewed they are"
        )
    rate = float(predicted_miss_rate(estimate.skewness, m, failure_probability))
    limit = _tolerated(failure_probability, tolerated)
    verdict = "within" if rate <= limit else "over"
    return (
        f"at skewness {skewness:.3g}, a bound from {several(m, 'record')} is expected to miss at "
        f"a rate of {rate:.1e}, {verdict} the {limit:.1e} that is tolerated at γ = "
        f"{failure_probability:g}"
    )


def _tolerated(failure_probability: float, tolerated: float | None) -> float:
    if tolerated is None:
        return float(failure_probability**TOLERANCE)
    return validate.probability("tolerated", tolerated)
