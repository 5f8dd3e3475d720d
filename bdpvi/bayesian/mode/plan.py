"""The temperature of draws for a target ε, computed from public numbers only."""

from __future__ import annotations

from bdpvi._ground import validate
from bdpvi.models.family import Family
from bdpvi.models.logistic import LogisticLoss
from bdpvi.privacy.gaussian import largest_variance

MARGIN = 5.0
"""Typical populations need about 1 to 4.5; correlated columns and rare classes need more."""


def planned_temperature(
    model: Family,
    weights: int,
    *,
    rows: float,
    epsilon: float,
    delta: float,
    draws: int = 1,
) -> float:
    """Return the temperature planned for a certified Bayesian ε, at least 1.

    A record of typical length moves the mode by about (n/2(N + Λ))^½ standard deviations, Λ =
    13λ/4κ: its weight is ½, its ℓ″ about 0.6κ, for logistic regression 0.15. With μ the distance of
    a Gaussian mechanism with ε at δ,

        τ = max(1, 5 k n/((N + Λ) μ²)),    k draws, n weights.

    The records decide whether ε is then certified; ``python benchmarks/certified.py --rule`` prints
    how often it is.

    Args:
        model: gives the prior's precision λ, and κ.
        weights: n, including the intercept, of all predictors.
        rows: N as declared.
        epsilon, delta: of all draws together.
        draws: k.

    >>> from bdpvi.models.logistic import BayesianLogisticRegression
    >>> planned_temperature(BayesianLogisticRegression(), 9, rows=4000, epsilon=0.2, delta=1e-5)
    2.6
    """
    validate.positive("rows", rows)
    loss = model.loss or LogisticLoss()  # clipped scores have its curvature, or none
    prior = 13 * model.precision(weights // loss.predictors) / (4 * loss.bound.curvature)
    usual = (rows + prior) * largest_variance(epsilon, delta)
    return max(1.0, float(f"{MARGIN * draws * weights / usual:.2g}"))
