"""What the optimum route takes, and how far any record whatever can move its optimum."""

from __future__ import annotations

import math

from bdpvi.guides.laplace import Laplace
from bdpvi.inference.guide import Guide
from bdpvi.models.contract import Model
from bdpvi.models.logistic import BayesianLogisticRegression

ROOM = 1e-5
"""Fraction of what a record can move the mean by that rounding may move it by."""


def room(model: BayesianLogisticRegression, weights: int) -> float:
    """Return how far from the optimum a fit may end, in the units of the weights.

    Public, so that fits to all tables keep within it. With the whole of it ε grows by about 2e-5 of
    itself.

    Args:
        model: whose scores are bounded; without a bound it is inf.
        weights: d.
    """
    return ROOM * _distance(model, weights)


def _distance(model: BayesianLogisticRegression, weights: int) -> float:
    """Return Cs²."""
    return model.score_bound(weights) / model.precision(weights)


def largest(model: BayesianLogisticRegression, guide: Guide, weights: int) -> float | None:
    """Return what Σb² is at most for any record whatever, if the model and the guide bound it.

    The negative ELBO is convex in (μ, L), Σ = LLᵀ, and by the prior strongly so with 1/s² (Challis
    and Barber 2013). The gradient of a record's term E ℓ(xᵀ(μ + Lz)) is x (E ℓ′, E ℓ′zᵀ); 1 and the
    coordinates of z are orthonormal under z ~ N(0, I), so by Bessel's inequality its norm is at
    most ‖x‖ (E ℓ′²)^½ ≤ C, ℓ with the record's weight. With the record or without it, the maximiser
    is then within Cs² of the other one (as for strongly convex losses in general: Chaudhuri,
    Monteleoni and Sarwate, JMLR 2011, Lemma 7). Each of the two fits is within the :func:`room` of
    its maximiser.

    Args:
        model: with C the bound on its scores and 1/s² its prior's precision.
        guide: whose noise scale the distance is measured in.
        weights: d.

    Returns:
        None where nothing bounds it: without a bound on scores or a noise scale.

    >>> from bdpvi.guides import FullRank
    >>> model = BayesianLogisticRegression(clip=0.5, prior_scale=2.0)
    >>> round(largest(model, FullRank(model, noise_scale=10.0), 3), 5)
    0.04
    """
    distance = _distance(model, weights) + 2 * room(model, weights)
    if guide.noise_scale is None or not math.isfinite(distance):
        return None
    return (distance / guide.noise_scale) ** 2


def scale_name(model: Model, guide: Guide) -> str:
    """Return the name of the guide's scale parameter.

    Raises:
        ValueError: if this route cannot have the model or the guide.
    """
    if type(model) is not BayesianLogisticRegression:
        raise ValueError(
            f"model={model!r} is not BayesianLogisticRegression; use Coupled for other models"
        )
    if isinstance(guide, Laplace):
        raise ValueError("guide is Laplace, whose route is Mode()")
    names = set(guide.constraints)
    if names not in ({"loc", "scale_tril"}, {"loc", "scale"}):
        raise ValueError(
            f"guide has parameters {sorted(names)}; Optimum takes full-rank and mean-field ones"
        )
    (scale,) = names - {"loc"}
    return scale
