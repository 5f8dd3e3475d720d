"""Bayesian survival regression: the piecewise exponential model of times to an event.

With public cuts c₁ < … < c_J and c₀ = 0 the hazard of a record with features x is
λ(t) = exp(h_j + xᵀβ) for c_{j−1} < t ≤ c_j. A record with an event at t has the likelihood
λ(t)S(t), one that is censored then S(t) = exp(−Σ_j λ_j e_j), e_j = min(t, c_j) − c_{j−1} where that
is positive. So it is that of Poisson counts of events in each interval with the exposures e_j
(Friedman, "Piecewise Exponential Models for Survival Data with Covariates", Annals of Statistics,
1982), but all intervals of a record are one term, with one gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi.models.contract import Prior
from bdpvi.models.family import Regression

_REACH = 20.0
"""Logarithms of hazards, per horizon, are clipped at ± this."""
_SOON = 1e-9
"""A time of 0 counts as this part of the first interval."""


def exposures(times: Tensor, cuts: Sequence[float]) -> Tensor:
    """Return how long each interval between cuts lasts until each time, (..., J).

    >>> exposures(torch.tensor([0.5, 3.0, 9.0]), (1.0, 2.0, 5.0))
    tensor([[0.5000, 0.0000, 0.0000],
            [1.0000, 1.0000, 1.0000],
            [1.0000, 1.0000, 3.0000]])
    """
    ends = times.new_tensor(cuts)
    starts = times.new_tensor((0.0, *cuts[:-1]))
    return torch.minimum((times.unsqueeze(-1) - starts).clamp(min=0), ends - starts)


def log_likelihood(log_hazards: Tensor, y: Tensor, cuts: Sequence[float]) -> Tensor:
    """Return the log-likelihood of times, (N,), those of censored records with a minus sign.

    Args:
        log_hazards: in each interval, (N, J).
        y: within the horizon, (N,).
        cuts: the ends of the intervals.
    """
    times = y.abs()
    at_risk = exposures(times, cuts)
    starts = times.new_tensor((0.0, *cuts[:-1]))
    here = (times.unsqueeze(-1) > starts) & (times.unsqueeze(-1) <= times.new_tensor(cuts))
    events = (y > 0).unsqueeze(-1) & here
    return (torch.where(events, log_hazards, 0.0) - log_hazards.exp() * at_risk).sum(-1)


def survival(log_hazards: Tensor, times: Tensor, cuts: Sequence[float]) -> Tensor:
    """Return S(t) at each of T times, (N, T), for log hazards, (N, J).

    >>> survival(torch.tensor([[0.0, 1.0]]), torch.tensor([1.0, 2.0]), (1.0, 3.0)).log()
    tensor([[-1.0000, -3.7183]])
    """
    return (-log_hazards.exp() @ exposures(times, cuts).mT).exp()


def restricted_mean(log_hazards: Tensor, cuts: Sequence[float]) -> Tensor:
    """Return the mean time to the event or to the last cut, whichever is first, (N,).

    It is ∫₀ᴴ S(t) dt = Σ_j S(c_{j−1}) (1 − e^{−λ_j(c_j − c_{j−1})})/λ_j.

    >>> restricted_mean(torch.tensor([[0.0, 0.0]]), (1.0, 50.0))
    tensor([1.])
    """
    starts = log_hazards.new_tensor((0.0, *cuts[:-1]))
    rates, widths = log_hazards.exp(), log_hazards.new_tensor(cuts) - starts
    each = -torch.expm1(-rates * widths) / rates
    return (survival(log_hazards, starts, cuts) * each).sum(-1).clamp(max=cuts[-1])


@dataclass(frozen=True, kw_only=True)
class BayesianSurvivalRegression(Regression):
    """Bayesian piecewise exponential regression of times to an event, some of them censored.

    The hazard is λ_j exp(xᵀβ) in interval j, so that e^β are hazard ratios. A target is one signed
    number: t for an event at time t, and −t for a record that was censored then; see
    :meth:`targets`. Later times count as censored at the last cut, the horizon, which biases
    nothing. The latent variable ``w`` has the weights β, of features as they are, and then the
    logarithms of λ_j, per unit of time; their prior means are 0, and for the hazards −ln H, one
    event by the horizon H.

    Args:
        cuts: public ends of the intervals, ascending, at most the last of which is the horizon. One
            makes the hazard constant. Each interval should have some dozens of events.
        prior_scale: standard deviation s of all normal priors.
        limit: features are clipped at ± limit; None does not clip.
        levels: column numbers of the levels of each category.

    Raises:
        ValueError: unless the cuts are positive and ascending.

    >>> model = BayesianSurvivalRegression(cuts=(1, 2, 5))
    >>> model.priors(torch.zeros(4, 2))["w"].mean.shape, model.baselines
    (torch.Size([5]), ('log hazard 0 to 1', 'log hazard 1 to 2', 'log hazard 2 to 5'))
    """

    kind: ClassVar[str] = "survival"
    target: ClassVar = "time"
    option: ClassVar[str] = "cuts"
    ratio: ClassVar[str] = "hazard ratio"
    rule: ClassVar[str] = "be times, those of censored records with a minus sign, and not 0"
    certifies: ClassVar[bool] = False

    cuts: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        cuts = tuple(validate.positive("cuts", cut) for cut in self.cuts)
        if not cuts or any(a >= b for a, b in pairwise(cuts)):
            raise ValueError(
                f"cuts must be ascending times, such as (1, 2, 5), the last of which is the "
                f"horizon, got {self.cuts!r}"
            )
        object.__setattr__(self, "cuts", cuts)

    @property
    def horizon(self) -> float:
        """The last cut, where follow-up ends."""
        return self.cuts[-1]

    @property
    def baselines(self) -> tuple[str, ...]:
        """The names of the intervals' log hazards."""
        starts = (0.0, *self.cuts[:-1])
        pairs = zip(starts, self.cuts, strict=True)
        return tuple(f"log hazard {start:.9g} to {end:.9g}" for start, end in pairs)

    def targets(self, times: Any, events: Any) -> Tensor:
        """Return the targets of records, (N,): ``times``, of censored ones with a minus sign.

        Args:
            times: until the event or the end of observation, (N,). 0 counts as just after 0; a
                negative one becomes NaN, which is no target.
            events: 1 or True for an event, 0 or False if censored, (N,); others become NaN.

        >>> model = BayesianSurvivalRegression(cuts=(1, 5))
        >>> model.targets([3.0, 4.0, -1.0], [True, False, True])
        tensor([ 3., -4., nan], dtype=torch.float64)
        """
        t = validate.numbers("times", times).double()
        yes = validate.numbers("events", events).double()
        known = (t >= 0) & ((yes == 0) | (yes == 1))
        signed = t.clamp(min=_SOON * self.cuts[0]) * (2 * yes - 1)
        return torch.where(known, signed, math.nan)

    def weight_prior(self, x: Tensor, *columns: int) -> Prior:
        """Return the prior of the weights and the log hazards, (d + J,)."""
        d, intervals = len(self.columns(x.shape[1])), len(self.cuts)
        mean = torch.cat([x.new_zeros(d), x.new_full((intervals,), -math.log(self.horizon))])
        return Prior(mean, x.new_tensor(self.prior_scale))

    def design(self, x: Tensor) -> Tensor:
        """Return the clipped features, (N, d)."""
        return super().design(x)[:, :-1]

    def log_hazards(self, latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the logarithm of the hazard in each interval, (N, J)."""
        design, w = self.design(x), latents["w"]
        d = design.shape[1]
        centre = -math.log(self.horizon)
        found = (design @ w[:d]).unsqueeze(-1) + w[d:]
        return found.clamp(centre - _REACH, centre + _REACH)

    def means(self, latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the mean time to the event or the horizon, whichever is first, (N,)."""
        return restricted_mean(self.log_hazards(latents, x), self.cuts)

    def survival(self, latents: Mapping[str, Tensor], x: Tensor, times: Tensor) -> Tensor:
        """Return the probability of no event until each of T times, (N, T)."""
        return survival(self.log_hazards(latents, x), times.to(x), self.cuts)

    def likelihood(self, latents: Mapping[str, Tensor], x: Tensor) -> Any:
        """Return the Pyro distribution of the targets."""
        from bdpvi.models.piecewise import PiecewiseExponential  # loads Pyro

        return PiecewiseExponential(self.log_hazards(latents, x), self.cuts)

    def cut(self, y: Tensor) -> Tensor:
        """Return the targets, those beyond the horizon as censored there."""
        return torch.where(y > self.horizon, -self.horizon, y).clamp(min=-self.horizon)

    def fits(self, y: Tensor) -> Tensor:
        """Return a mask of the valid targets."""
        return y.isfinite() & (y != 0)
