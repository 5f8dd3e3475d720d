"""Models of the optimum route, and a bound on how far any record can move the optimum."""

from __future__ import annotations

import math

from bdpvi.bayesian.inference.guide import Guide
from bdpvi.guides.laplace import Laplace
from bdpvi.models.contract import Model
from bdpvi.models.family import Family, smooth

ROOM = 1e-5
"""Largest effect of rounding on the mean, as a fraction of a record's largest effect."""


def room(model: Family, weights: int, share: float = ROOM) -> float:
    """Return the largest allowed distance of a fit from the optimum, in the units of the weights.

    It is public, and fits to all tables stay within it. It raises ε by a fraction of at most about
    twice the share.

    Args:
        model: has bounded scores; without a bound the result is inf.
        weights: d.
        share: of a record's largest effect.
    """
    return share * _distance(model, weights)


def _distance(model: Family, weights: int) -> float:
    """Return Cs²."""
    return model.score_bound(weights) / model.precision(weights)


def largest(model: Family, guide: Guide, weights: int, share: float = ROOM) -> float | None:
    """Return a bound on Σb² for any record, if the model and the guide give one.

    The negative ELBO is strongly convex in (μ, L), Σ = LLᵀ, by the prior with 1/s² (Challis and
    Barber 2013). The gradient of a record's term E ℓ(xᵀ(μ + Lz)) is x (E ℓ′, E ℓ′zᵀ); 1 and the
    coordinates of z are orthonormal under z ~ N(0, I), so by Bessel's inequality its norm is at
    most ‖x‖ (E ℓ′²)^½ ≤ C, where ℓ includes the record's weight: C is the norm of the weighted row
    times the largest |ℓ′| of the loss. The maximisers with and without
    the record are then within Cs² of each other (as for all strongly convex losses: Chaudhuri,
    Monteleoni and Sarwate, JMLR 2011, Lemma 7). Each of the two fits is within the :func:`room` of
    its maximiser.

    Args:
        model: has the bound C on its scores and the prior's precision 1/s².
        guide: its noise scale is the unit of the distance.
        weights: d.
        share: of the room.

    Returns:
        None if there is no bound: without a bound on scores or a noise scale.

    >>> from bdpvi import BayesianLogisticRegression
    >>> from bdpvi.guides import FullRank
    >>> model = BayesianLogisticRegression(clip=0.5, prior_scale=2.0)
    >>> round(largest(model, FullRank(model, noise_scale=10.0), 3), 5)
    0.04
    """
    distance = _distance(model, weights) + 2 * room(model, weights, share)
    if guide.noise_scale is None or not math.isfinite(distance):
        return None
    return (distance / guide.noise_scale) ** 2


def scale_name(model: Model, guide: Guide) -> str:
    """Return the name of the guide's scale parameter.

    Raises:
        ValueError: if this route does not support the model or the guide.
    """
    if smooth(model) is None:
        raise ValueError(
            f"model={model!r} is neither BayesianLogisticRegression nor a regression of numbers "
            "made by its bounded(); use Coupled for other models"
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
