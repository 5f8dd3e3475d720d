"""How long a record's row can be, in the units of a Gaussian: rows lie in a box."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bdpvi.models.family import Family

_MANY = 400
"""The most weights for which the search of :func:`widest` is worth its time."""
_SHARPER = (1e1, 1e2, 1e3, 1e4)
"""How sharply the largest eigenvalue counts, in turn."""


def boxes(model: Family, weights: int) -> list[list[int]]:
    """Return groups of a row's columns that are at most ``limit`` long; none without a bound.

    A category is a group, as its columns are scaled together.

    >>> from bdpvi.models.poisson import BayesianPoissonRegression
    >>> boxes(BayesianPoissonRegression.bounded(largest=4, levels=((1, 2),)), 5)
    [[1, 2], [0], [3]]
    """
    if not model.intercept or math.isinf(model.longest(weights)):
        return []
    grouped = {at for group in model.levels for at in group}
    alone = [[at] for at in range(weights - 1) if at not in grouped]
    return [list(group) for group in model.levels] + alone


def widest(model: Family, covariance: Tensor) -> float:
    r"""Return Λ with zᵀAz ≤ Λ‖z‖² for the covariance A and every row z that is conceivable.

    A row's column c of ones times :attr:`.Family.constant` bounds its others: Σ_{j∈g} z_j² ≤ ρ z_c²
    for every group g of :func:`boxes`, ρ = (limit/constant)². So for every μ ≥ 0

        zᵀAz ≤ zᵀ(A + Σ_g μ_g (ρ e_c e_cᵀ − Σ_{j∈g} e_j e_jᵀ))z ≤ λ_max(…) ‖z‖²

    (the S-procedure; without it Λ is the largest eigenvalue of A, whose eigenvector may not be near
    any row). Any μ is rigorous; a search minimises the convex right side, smoothed. Of several
    predictors the rows are v ⊗ z, v the score, and each inequality is multiplied by ‖v‖².

    Args:
        model: has a loss.
        covariance: A, (n, n), n the number of weights in all.
    """
    from scipy.optimize import minimize  # takes a while to load

    top, predictors = float(torch.linalg.eigvalsh(covariance)[-1]), model.loss.predictors
    n = len(covariance) // predictors
    groups = boxes(model, n) if len(covariance) <= _MANY else []
    if not groups or model.limit is None:
        return top
    signs = torch.zeros(len(groups), n, dtype=torch.float64)
    signs[:, -1] = (model.limit / model.constant) ** 2
    for row, group in zip(signs, groups, strict=True):
        row[group] = -1
    signs, least, mu = signs.repeat_interleave(predictors, 1), 1.0, torch.zeros(len(groups)).numpy()

    def largest(mu: Any, sharp: float) -> tuple[float, Any]:
        size, axes = torch.linalg.eigh(covariance / top + (torch.tensor(mu) @ signs).diag())
        weights, value = (sharp * size).softmax(0), (sharp * size).logsumexp(0) / sharp
        return float(value), (signs @ (axes.square() @ weights)).numpy()

    for sharp in _SHARPER:
        mu = minimize(
            largest, mu, (sharp,), "L-BFGS-B", True, bounds=[(0, None)] * len(mu),
            options={"maxiter": 100},
        ).x  # fmt: skip
        exact = covariance / top + (torch.tensor(mu) @ signs).diag()
        least = min(least, float(torch.linalg.eigvalsh(exact)[-1]))
    return least * top * (1 + 1e-9)  # rounding of eigenvalues
