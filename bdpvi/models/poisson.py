"""Bayesian Poisson regression of counts up to a public bound.

*Loss.* The rate continued above R = Y/2: with L = ln R and e = a − L, the rate is e^a where e ≤ 0
and R(2 − e^{−e}) above, so ℓ″ = Re^{−|e|}: ln ℓ″ has the slope ±1, M = 1, and ℓ″ ≤ κ = Y/2. The
rate stays below 2R = Y, so ℓ′, rate minus count, is within ±Y = s. With a tangent to the rate the
score has no bound, with one to the loss ℓ″ ends at once and there is no M; of falls with M = 1 this
is the fastest. ℓ‴ has a jump at the kink L; on each side all derivatives are ±ℓ″.

*Noisy scores.* s = w(min(y, b) − E min(Y, b)), of mean 0; h = w dE min(Y, b)/dη = wμP(Y < b), which
is at least w Var min(Y, b) (the Poincaré inequality). Here w = min(1, R²/|x|²), so w|x| ≤ R and
w|x|² ≤ R², and the matrix is free for c = A/R, A² the least of (b² − max(m, b − m)²)/h² over all
means μ, m = E min(Y, b).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi._ground.types import BELOW
from bdpvi.datasets.dataset import Dataset
from bdpvi.models.family import Regression
from bdpvi.models.losses import LossBound, PredictorLoss
from bdpvi.models.scores import Parts, ScoreParts, row_weights

REACH = 20.0
"""Log means are clipped at ± this."""
_FAR_OUT = 8.0
"""Residuals of counts that are larger, in standard deviations, are cut in the sandwich."""
MOST_COUNT = 10**6
"""The largest public bound of Poisson counts; see :func:`free_poisson`."""


@dataclass(frozen=True)
class ContinuedPoisson(PredictorLoss):
    """Counts at most ``largest``; the rate is e^a up to half of it, and stays below it.

    >>> loss = ContinuedPoisson(largest=8.0)
    >>> loss.bound, [round(float(loss.rate(torch.tensor(a))), 2) for a in (0.0, 1.0, 2.0, 9.0)]
    (LossBound(score=8.0, curvature=4.0, concordance=1.0), [1.0, 2.72, 5.83, 8.0])
    """

    largest: float

    @property
    def bound(self) -> LossBound:  # type: ignore[override]
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

    def smoothed(self, mean: Tensor, variance: Tensor, mark: Tensor, order: int) -> Tensor:
        """Integrate the continued Poisson loss in closed form.

        With e = m - L the distance from the kink, t = e/√v, φ and Φ the normal density and
        distribution, ``A = E e^e 1{e < 0} = e^{e + v/2} Φ(-t - √v)`` and
        ``B = E e^{-e} 1{e > 0} = e^{-e + v/2} Φ(t - √v)``, ℓ″ = R e^{-|e|} has the mean R h,
        h = A + B. As A′ = A - φ(t)/√v and B′ = -B + φ(t)/√v, h′ = A - B and h″ = h - 2φ(t)/√v; so
        every derivative follows from that of the order two below.
        """
        deviation = variance.sqrt()
        away, top = mean - self.kink, self.largest / 2
        t = away / deviation.clamp(min=1e-150)
        mass, density = torch.special.ndtr(t), torch.exp(-t * t / 2) / math.sqrt(2 * math.pi)
        below, above = _tilted(away, deviation, t), _tilted(-away, deviation, -t)
        beyond = away * mass + deviation * density
        rows = [
            mark * mean - top * (below + above + 2 * beyond),
            deviation * (mark - top * (below - above + 2 * mass)),
        ]
        heat = [below + above, deviation * (below - above)]
        before, hermite = torch.zeros_like(t), torch.ones_like(t)
        for k in range(order - 3):
            edge = 2 * deviation * hermite * density
            heat.append(variance * heat[k] - edge if k % 2 == 0 else variance * heat[k] + edge)
            before, hermite = hermite, t * hermite - k * before
        rows += [-top * variance * one for one in heat[: order - 1]]
        return torch.stack(rows)


def _tilted(away: Tensor, deviation: Tensor, t: Tensor) -> Tensor:
    """Return E e^e 1{e < 0} for e ~ N(away, deviation²), t = away/deviation."""
    w = t + deviation
    far = torch.exp(-t * t / 2) * torch.special.erfcx(w.clamp(min=0) / math.sqrt(2)) / 2
    # Where w < 0 the exponent is below -v/2.
    near = torch.exp((away + deviation**2 / 2).clamp(max=0)) * torch.special.ndtr(-w)
    return torch.where(w > 0, far, near)


@dataclass(frozen=True)
class PoissonScores(ScoreParts):
    """Counts, clipped at ``largest``, b."""

    largest: float
    link = "log"
    furthest: ClassVar[float] = 0.7
    typical: ClassVar[float] = 0.94

    def first(self, x: Tensor, y: Tensor, radius: float) -> Parts:
        """Return the parts of moments: min(y, b)x/b and xxᵀ/R."""
        w = row_weights(x, radius)
        cut = y.clamp(0, self.largest) / self.largest
        return Parts(w * cut, w, None, radius * math.sqrt(2), 1 / radius)

    def parts(self, x: Tensor, y: Tensor, radius: float, point: Tensor, clip: float) -> Parts:
        """Return the parts at a point."""
        b, w = self.largest, row_weights(x, radius)
        mean, slope = cut_poisson((x @ point).clamp(-REACH, REACH).exp(), b)
        score = w * (y.clamp(0, b) - mean)
        return Parts(score, w * slope, None, radius * b, free_poisson(b) / radius)

    def longest(self, radius: float, clip: float, variance: float) -> float:
        """Return v: R times 8 standard deviations of a count, and at most R b."""
        return radius * min(max(_FAR_OUT * math.sqrt(variance), 1.0), self.largest)

    def unit(self, columns: int, radius: float) -> float:
        """Return B/c."""
        return radius**2 * self.largest / free_poisson(self.largest)


def cut_poisson(mean: Tensor, largest: float) -> tuple[Tensor, Tensor]:
    """Return E min(Y, b) for Poisson Y, and its derivative in the logarithm of the mean.

    >>> mean, slope = cut_poisson(torch.tensor([2.0], dtype=torch.float64), 1.0)
    >>> bool(((mean - (1 - math.exp(-2.0))).abs() < 1e-12).all()), round(float(slope), 4)
    (True, 0.2707)
    """
    from scipy.special import pdtr  # late: models need none of scipy

    mu = mean.numpy()
    below = pdtr(largest - 1, mu)  # P(Y < b)
    two = pdtr(largest - 2, mu) if largest > 1 else 0 * mu
    cut = mu * two + largest * (1 - below)
    return torch.from_numpy(cut), torch.from_numpy(mu * below)


@cache
def free_poisson(largest: float) -> float:
    """Return a lower bound on A for counts clipped at b.

    It is within 2 % of A up to b = 1000 and half of A at 10⁶; beyond, the grid is too coarse.

    Between two grid means μ₁ < μ₂, m lies in [m₁, m₂] and h is at most μ₂P(Y < b | μ₁). Below the
    grid m ≥ μ(1 − μ/2) and h ≤ μ, so the ratio is at least b/2μ. Everywhere b − m ≥ P(Y < b), so
    the ratio is at least b/(μ²P(Y < b)): where that exceeds 100 it cannot be the minimum.

    >>> round(free_poisson(10.0), 2)
    1.06
    """
    from scipy.special import pdtr

    grid = torch.logspace(-3, math.log10(largest + 30 * math.sqrt(largest) + 60), 20_001).double()
    m, _ = cut_poisson(grid, largest)
    below = torch.from_numpy(pdtr(largest - 1, grid.numpy()))
    far = torch.maximum(m[1:], largest - m[:-1])
    steepest = grid[1:] * below[:-1]
    ratio = (largest**2 - far**2) / steepest.square()
    near = grid[1:] * steepest > largest / 100
    return BELOW * math.sqrt(float(ratio[near].min()))


@dataclass(frozen=True, kw_only=True)
class CountRegression(Regression):
    """A regression of counts with a linear log mean.

    Args:
        largest: whole number; larger counts are clipped to it.
        exposure: number of the column that holds exposures; see the models.
        prior_scale, limit, levels: as in :class:`.Regression`.
    """

    target = "count"
    rule: ClassVar[str] = "be whole numbers of at least 0"
    option: ClassVar[str] = "largest"
    ratio: ClassVar[str] = "rate ratio"
    intercept_mean: ClassVar[float] = 0.0

    largest: float
    exposure: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.positive_int("largest", self.largest)  # type: ignore[arg-type]
        validate.single("largest", self.largest)
        if self.exposure is not None:
            validate.positive_int("exposure", self.exposure, least=0)
            if self.weighs:
                raise ValueError(
                    f"exposure={self.exposure!r}: weighted records have none; leave it out"
                )

    @property
    def smooth(self) -> bool:
        """Whether the weights are the only unknown."""
        return self.loss is not None

    def columns(self, features: int) -> list[int]:
        """Return the numbers of the columns with weights: all but the exposure."""
        return [at for at in range(features) if at != self.exposure]

    def design(self, x: Tensor) -> Tensor:
        """Return the clipped features without the exposure, and a column of ones."""
        at = self.exposure
        if at is None:
            return super().design(x)
        if at >= x.shape[1]:
            raise ValueError(f"exposure={at} is the number of no column: x has {x.shape[1]}")
        return super().design(torch.cat([x[:, :at], x[:, at + 1 :]], dim=1))

    def log_means(self, latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return log means with exposure, clipped at ±20, (N,)."""
        linear = self.predictors(latents, x)
        if self.exposure is not None:
            least = math.exp(-REACH)  # so that predictions are finite for any table
            linear = linear + x[:, self.exposure].clamp(min=least).log()
        return linear.clamp(-REACH, REACH)

    def means(self, latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the expected counts, (N,)."""
        return self.log_means(latents, x).exp()

    def cut(self, y: Tensor) -> Tensor:
        """Return counts from 0 to ``largest``."""
        return y.clamp(0, self.largest)

    def fits(self, y: Tensor) -> Tensor:
        """Return a mask of the valid counts."""
        return y.isfinite() & (y >= 0) & (y == y.round())

    def takes(self, x: Tensor, y: Tensor) -> Tensor:
        """Return a mask of the records that the model accepts, (N,)."""
        return self.fits(y) & self.exposed(x)

    def exposed(self, x: Tensor) -> Tensor:
        """Return a mask of the records with a positive exposure, or of all without one, (N,)."""
        if self.exposure is None:
            return x.new_ones(len(x), dtype=torch.bool)
        self.design(x[:1])  # refuses a missing column
        return x[:, self.exposure] > 0

    def check(self, data: Dataset) -> None:
        """Raise ValueError as :meth:`.Family.check`, and unless exposures are positive."""
        super().check(data)
        if self.exposure is not None:
            rule = "be positive in the exposure's column, which is not to be standardised"
            exposed = self.exposed(data.x)
            validate.every("x", data.x[:, self.exposure], exposed, rule)


@dataclass(frozen=True, kw_only=True)
class BayesianPoissonRegression(CountRegression):
    """Bayesian Poisson regression: counts with a linear log mean.

    With :meth:`bounded` the rate is the exponential of the predictor up to half of ``largest``;
    beyond it is continued, and never exceeds ``largest``
    (:class:`.ContinuedPoisson`).

    Args:
        largest: whole number, at most :data:`MOST_COUNT`, public. Larger counts are clipped to it
            where sensitivity has to be bounded; :class:`bdpvi.regression.NoisyScores` corrects for
            this if counts are Poisson ones. Otherwise the mean is estimated too low by
            E(y − ``largest``)₊, and intervals cover the mean of the clipped counts.
        exposure: number of the feature column, from 0, with each record's exposure, such as years
            at risk: positive and not standardised. Its logarithm is an offset: it is added to the
            linear predictor with coefficient 1, and has no weight.
        prior_scale: standard deviation of the prior N(0, s²I) of the weights ``w``.
        limit: features are clipped at ± limit; None does not clip.
        levels: column numbers of the levels of each category.

    >>> model = BayesianPoissonRegression(largest=10)
    >>> model.priors(torch.zeros(4, 2))["w"].mean.shape
    torch.Size([3])
    >>> at_risk = BayesianPoissonRegression(largest=10, exposure=1)
    >>> at_risk.design(torch.tensor([[0.3, 12.0]]))
    tensor([[0.3000, 1.0000]])
    """

    kind: ClassVar[str] = "poisson"

    def __post_init__(self) -> None:
        super().__post_init__()
        remedy = "such counts are numbers to a linear model"
        validate.at_most("largest", self.largest, MOST_COUNT, remedy)

    @property
    def loss(self) -> ContinuedPoisson | None:
        """The loss of a weighted record."""
        return ContinuedPoisson(float(self.largest)) if self.weighs else None

    @property
    def score_parts(self) -> PoissonScores:
        """A record's contribution to noisy scores."""
        return PoissonScores(self.largest)

    def means(self, latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the expected counts, (N,)."""
        if self.loss is None:
            return super().means(latents, x)
        return self.loss.rate(self.predictors(latents, x))

    def likelihood(self, latents: Mapping[str, Tensor], x: Tensor) -> Any:
        """Return the Pyro distribution of the targets."""
        import pyro.distributions as dist

        if self.loss is None:
            return dist.Poisson(self.means(latents, x))
        from bdpvi.models.continued import Continued  # loads Pyro

        return Continued(self.predictors(latents, x), self.loss)
