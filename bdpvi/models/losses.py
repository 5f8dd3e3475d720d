r"""Losses of linear predictors: derivatives, expectations, and public bounds on them.

A loss ℓ(a; y) is a negative log-likelihood in the predictor a. Three numbers bound it for every
target (:class:`LossBound`): |ℓ′| ≤ s, 0 ≤ ℓ″ ≤ κ, and ln ℓ″ has the Lipschitz constant M, that is
|ℓ‴| ≤ Mℓ″ wherever ℓ‴ exists. From these follows how far any record moves a posterior's mode
(:mod:`bdpvi.bayesian.mode.influence`; Bach, EJS 4, 2010, for M = 1). Each loss has |ℓ⁽ᵏ⁾| ≤
M^{k−2} ℓ″ for k up to 6 too, except across its kink. The proof stands with each likelihood; most
use this: with p = σ(b), all derivatives of ln(1 + e^b) from the second to the sixth are p(1 − p)
times a polynomial in p(1 − p) and 1 − 2p that is at most 1 in size, so s = 1, κ = ¼ and M = 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


@dataclass(frozen=True)
class LossBound:
    """Public bounds on a loss, for every target and predictor.

    Attributes:
        score: s, the largest |ℓ′|.
        curvature: κ, the largest ℓ″.
        concordance: M, with |ℓ‴| ≤ Mℓ″.
    """

    score: float
    curvature: float
    concordance: float


class PredictorLoss:
    """A convex loss of one linear predictor."""

    predictors: ClassVar[int] = 1
    stated: ClassVar[bool] = False
    """Whether the bounds are stated by their author, and not proved."""

    bound: LossBound
    """Bounds for every target."""

    @property
    def basis(self) -> Tensor:
        """Q, (K, J): orthonormal columns, of the predictors that the loss depends on; 1 of one."""
        return torch.ones(1, 1, dtype=torch.float64)

    @property
    def kink(self) -> float:
        """The predictor at which ℓ‴ has a jump; inf if there is none."""
        return math.inf

    def value(self, a: Tensor, y: Tensor) -> Tensor:
        """Return ℓ, up to a constant of the target; shapes are broadcast."""
        raise NotImplementedError

    def slopes(self, a: Tensor, y: Tensor, degree: int) -> list[Tensor]:
        """Return the derivatives from the first to that of ``degree``, at most 5."""
        raise NotImplementedError

    def smoothed(self, mean: Tensor, variance: Tensor, mark: Tensor, order: int) -> Tensor:
        """Return −E ℓ(a) for a ~ N(m, v), and its derivatives with respect to m/√v, (order + 1, N).

        The first is up to a constant. As ``|v^{k/2} D_k| = v |E ℓ″(a) He_{k-2}(t)|`` with the
        Hermite polynomials He_k of t = (a - m)/√v, it is at most ``κ v √(k-2)!`` for k ≥ 2.

        Args:
            mean, variance: m and v, (N,).
            mark: what the loss of a record takes beside its predictor, (N,): the bound on the slope
                of the logistic loss, of other losses the target.
            order: number of derivatives, from 1 to 17.
        """
        raise NotImplementedError

    def steepest(self, mark: Tensor) -> Tensor:
        """Return a bound on the slope of each record's loss, (N,)."""
        return torch.full_like(mark, self.bound.score)


def logistic_slopes(logit: Tensor, degree: int) -> list[Tensor]:
    """Return the derivatives of ln(1 + e^{−a}) from the first to that of ``degree``, at most 5.

    >>> [round(float(one), 4) for one in logistic_slopes(torch.tensor(1.0).double(), 5)]
    [-0.2689, 0.1966, -0.0909, -0.0353, 0.1235]
    """
    first = (-logit).sigmoid().neg_()
    if degree == 1:
        return [first]
    v, odd = -first * logit.sigmoid(), -1 - 2 * first
    slopes = [first, v]
    if degree > 2:
        slopes.append(v * odd)
    if degree > 3:
        slopes.append(v * (1 - 6 * v))
    if degree > 4:
        slopes.append(v * odd * (1 - 12 * v))
    return slopes


def softplus(b: Tensor) -> Tensor:
    """Return ln(1 + e^b)."""
    return -logsigmoid(-b)


def softplus_slopes(b: Tensor, degree: int) -> list[Tensor]:
    """Return the derivatives of ln(1 + e^b)."""
    return [(-1) ** k * slope for k, slope in enumerate(logistic_slopes(-b, degree), 1)]


def softplus_smoothed(
    mean: Tensor, variance: Tensor, size: Tensor, order: int, slope: Tensor, line: Tensor
) -> Tensor:
    """Return the expectations of a line, given its slope and value, minus size · ln(1 + e^a)."""
    from bdpvi.models.quadrature import derivatives

    rows = derivatives(-mean, variance, torch.full_like(mean, math.inf), order).mul_(size)
    rows[1::2].neg_()
    rows[0] += line
    rows[1] += slope * variance.sqrt()
    return rows
