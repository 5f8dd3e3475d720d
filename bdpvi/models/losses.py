r"""Losses of linear predictors: derivatives, and public bounds on them.

A loss ℓ(a; y) is a negative log-likelihood in the predictor a. Three numbers bound it for every
target (:class:`LossBound`): |ℓ′| ≤ s, 0 ≤ ℓ″ ≤ κ, and ln ℓ″ has the Lipschitz constant M, that is
|ℓ‴| ≤ Mℓ″ wherever ℓ‴ exists. From these follows how far any record moves a posterior's mode
(:mod:`bdpvi.bayesian.mode.influence`; Bach, EJS 4, 2010, for M = 1). Each loss has |ℓ⁽ᵏ⁾| ≤
M^{k−2} ℓ″ for k up to 6 too, except across its kink.

*Proofs.* Let p = σ(b). All derivatives of ln(1 + e^b) from the second to the sixth are p(1 − p)
times a polynomial in p(1 − p) and 1 − 2p that is at most 1 in size, so s = 1, κ = ¼ and M = 1.

- Negative binomial of dispersion α: ℓ = (y + 1/α) ln(1 + αe^a) − ya has ℓ′ = (y + 1/α)p − y in
  [−y, 1/α] with b = a + ln α; all else is (y + 1/α) times the above. With y ≤ Y, s = max(Y, 1/α),
  κ = (Y + 1/α)/4, M = 1.
- Errors of the logistic law with scale s₀: ℓ = 2 ln(1 + e^{r/s₀}) − r/s₀ with r = a − y has ℓ′ =
  (2p − 1)/s₀ and derivatives 2/s₀ᵏ times the above: s = 1/s₀, κ = 1/(2s₀²), M = 1/s₀.
- Poisson, the rate continued above R = Y/2: with L = ln R and e = a − L, the rate is e^a where
  e ≤ 0 and R(2 − e^{−e}) above, so ℓ″ = Re^{−|e|}: ln ℓ″ has the slope ±1, M = 1, and ℓ″ ≤ κ = Y/2.
  The rate stays below 2R = Y, so ℓ′, rate minus count, is within ±Y = s. With a tangent to the rate
  the score has no bound, with one to the loss ℓ″ ends at once and there is no M; of falls with
  M = 1 this is the fastest. ℓ‴ has a jump at the kink L; on each side all derivatives are ±ℓ″.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

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


class Loss(Protocol):
    """A convex loss of a linear predictor."""

    @property
    def bound(self) -> LossBound:
        """Bounds for every target."""

    @property
    def kink(self) -> float:
        """The predictor at which ℓ‴ has a jump; inf if there is none."""

    @property
    def predictors(self) -> int:
        """1."""

    def value(self, a: Tensor, y: Tensor) -> Tensor:
        """Return ℓ, up to a constant of the target; shapes are broadcast."""

    def slopes(self, a: Tensor, y: Tensor, degree: int) -> list[Tensor]:
        """Return the derivatives from the first to that of ``degree``, at most 5."""


def logistic_slopes(logit: Tensor, degree: int) -> list[Tensor]:
    """Return the derivatives of ln(1 + e^{−a}) from the first to that of ``degree``, at most 5.

    >>> [round(float(one), 4) for one in logistic_slopes(torch.tensor(1.0).double(), 5)]
    [-0.2689, 0.1966, -0.0909, -0.0353, 0.1235]
    """
    first = (-logit).sigmoid().neg_()
    if degree == 1:
        return [first]
    v, odd = -first * logit.sigmoid(), -1 - 2 * first
    found = [first, v]
    if degree > 2:
        found.append(v * odd)
    if degree > 3:
        found.append(v * (1 - 6 * v))
    if degree > 4:
        found.append(v * odd * (1 - 12 * v))
    return found


def _softplus(b: Tensor) -> Tensor:
    return -logsigmoid(-b)


def _softplus_slopes(b: Tensor, degree: int) -> list[Tensor]:
    """Return the derivatives of ln(1 + e^b)."""
    return [(-1) ** k * one for k, one in enumerate(logistic_slopes(-b, degree), 1)]


@dataclass(frozen=True)
class Logistic:
    """ln(1 + e^{−a}), a the predictor times 2y − 1: the rows of the design have that sign."""

    kink, predictors = math.inf, 1
    bound = LossBound(1.0, 0.25, 1.0)

    def value(self, a: Tensor, y: Tensor) -> Tensor:
        """Return ℓ; the target is in the rows' sign."""
        return -logsigmoid(a)

    def slopes(self, a: Tensor, y: Tensor, degree: int) -> list[Tensor]:
        """Return the derivatives."""
        return logistic_slopes(a, degree)


@dataclass(frozen=True)
class NegativeBinomial:
    """Counts of known dispersion, at most ``largest``.

    >>> NegativeBinomial(largest=8.0, dispersion=0.5).bound
    LossBound(score=8.0, curvature=2.5, concordance=1.0)
    """

    largest: float
    dispersion: float

    kink, predictors = math.inf, 1

    @property
    def bound(self) -> LossBound:
        """Bounds for every target."""
        size = 1 / self.dispersion
        return LossBound(max(self.largest, size), (self.largest + size) / 4, 1.0)

    def value(self, a: Tensor, y: Tensor) -> Tensor:
        """Return ℓ."""
        return (y + 1 / self.dispersion) * _softplus(a + math.log(self.dispersion)) - y * a

    def slopes(self, a: Tensor, y: Tensor, degree: int) -> list[Tensor]:
        """Return the derivatives."""
        size = y + 1 / self.dispersion
        first, *more = _softplus_slopes(a + math.log(self.dispersion), degree)
        return [size * first - y, *(size * one for one in more)]


@dataclass(frozen=True)
class LogisticErrors:
    """Numbers with errors of the logistic law.

    >>> LogisticErrors(scale=2.0).bound
    LossBound(score=0.5, curvature=0.125, concordance=0.5)
    """

    scale: float

    kink, predictors = math.inf, 1

    @property
    def bound(self) -> LossBound:
        """Bounds for every target."""
        return LossBound(1 / self.scale, 0.5 / self.scale**2, 1 / self.scale)

    def value(self, a: Tensor, y: Tensor) -> Tensor:
        """Return ℓ."""
        r = (a - y) / self.scale
        return 2 * _softplus(r) - r

    def slopes(self, a: Tensor, y: Tensor, degree: int) -> list[Tensor]:
        """Return the derivatives."""
        s = self.scale
        first, *more = _softplus_slopes((a - y) / s, degree)
        return [(2 * first - 1) / s, *(2 * one / s**k for k, one in enumerate(more, 2))]


@dataclass(frozen=True)
class ContinuedPoisson:
    """Counts at most ``largest``; the rate is e^a up to half of it, and stays below it.

    >>> loss = ContinuedPoisson(largest=8.0)
    >>> loss.bound, [round(float(loss.rate(torch.tensor(a))), 2) for a in (0.0, 1.0, 2.0, 9.0)]
    (LossBound(score=8.0, curvature=4.0, concordance=1.0), [1.0, 2.72, 5.83, 8.0])
    """

    largest: float

    predictors = 1

    @property
    def bound(self) -> LossBound:
        """Bounds for every target."""
        return LossBound(self.largest, self.largest / 2, 1.0)

    @property
    def kink(self) -> float:
        """The predictor beyond which the rate is continued."""
        return math.log(self.largest / 2)

    def _sides(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """Return e^a up to the kink, and Re^{−e} beyond it; each is R on the other side."""
        away = a - self.kink
        return away.clamp(max=0).exp() * self.largest / 2, (-away.clamp(min=0)).exp() * (
            self.largest / 2
        )

    def rate(self, a: Tensor) -> Tensor:
        """Return the expected count."""
        below, above = self._sides(a)
        return below + (self.largest / 2 - above)

    def value(self, a: Tensor, y: Tensor) -> Tensor:
        """Return ℓ: the integral of the rate, minus ya."""
        below, above = self._sides(a)
        beyond = self.largest * (a - self.kink).clamp(min=0)
        return below + (above - self.largest / 2) + beyond - y * a

    def slopes(self, a: Tensor, y: Tensor, degree: int) -> list[Tensor]:
        """Return the derivatives; at the kink those from below."""
        below, above = self._sides(a)
        bend = torch.where(a > self.kink, above, below)
        sign = torch.where(a > self.kink, -1.0, 1.0).to(bend)
        first = below + (self.largest / 2 - above) - y
        return [first, *(bend * sign**k for k in range(degree - 1))]


@dataclass(frozen=True)
class StatedLoss:
    """The loss of a likelihood of one's own, with bounds that are stated and not proved.

    Derivatives are by automatic differentiation.

    Args:
        family: the Pyro distribution of N targets for predictors (N,).
        bound: as stated.

    >>> from torch.distributions import Bernoulli
    >>> loss = StatedLoss(lambda a: Bernoulli(logits=a), LossBound(1.0, 0.25, 1.0))
    >>> [round(float(one), 4) for one in loss.slopes(torch.tensor([1.0]), torch.ones(1), 3)]
    [-0.2689, 0.1966, -0.0909]
    """

    family: Callable[[Tensor], Any]
    bound: LossBound

    kink, predictors = math.inf, 1

    def value(self, a: Tensor, y: Tensor) -> Tensor:
        """Return ℓ; shapes are broadcast."""
        a, y = torch.broadcast_tensors(a, y)
        found: Tensor = -self.family(a.flatten()).log_prob(y.flatten())
        return found.reshape(a.shape)

    def slopes(self, a: Tensor, y: Tensor, degree: int) -> list[Tensor]:
        """Return the derivatives from the first to that of ``degree``."""
        found: list[Tensor] = []
        with torch.enable_grad():
            at = torch.broadcast_tensors(a, y)[0].detach().clone().requires_grad_()
            last = self.value(at, y)
            for k in range(degree):
                if not last.requires_grad:  # it is constant
                    last = at * 0
                (last,) = torch.autograd.grad(last.sum(), at, create_graph=k + 1 < degree)
                found.append(last.detach())
        return found


@dataclass(frozen=True)
class Softmax:
    """The loss of classes: −ln of the target's share of the sum of exponentials of K predictors.

    Score and curvature are in the predictors' Euclidean norm: the score p − e_y has s = √2, the
    curvature's largest eigenvalue is κ = ½, and M = √2 as a vector of length 1 has at most that
    range (:mod:`bdpvi.bayesian.mode.classes`). Predictors that are equal for all classes change
    nothing, so weights are counted in a basis of the rest.

    >>> torch.allclose(Softmax(3).basis.T @ Softmax(3).basis, torch.eye(2).double())
    True
    """

    classes: int

    kink = math.inf
    bound = LossBound(math.sqrt(2), 0.5, math.sqrt(2))

    @property
    def predictors(self) -> int:
        """K − 1."""
        return self.classes - 1

    @property
    def basis(self) -> Tensor:
        """Q: orthonormal columns that sum to 0, (K, K − 1)."""
        return _basis(self.classes)

    def score(self, b: Tensor, y: Tensor) -> Tensor:
        """Return the gradient in the predictors' coordinates (..., N, K − 1)."""
        expected: Tensor = (b @ self.basis.T).softmax(-1) @ self.basis
        found: Tensor = expected - self.basis[y]
        return found


@cache
def _basis(classes: int) -> Tensor:
    """Return Helmert's contrasts, (K, K − 1)."""
    found = torch.zeros(classes, classes - 1, dtype=torch.float64)
    for j in range(1, classes):
        found[:j, j - 1], found[j, j - 1] = 1.0, -float(j)
    lengths: Tensor = torch.linalg.vector_norm(found, dim=0)
    return found / lengths
