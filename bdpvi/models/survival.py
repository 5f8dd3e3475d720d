"""Bayesian survival regression: the piecewise exponential model of times to an event."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi.models.contract import Prior
from bdpvi.models.family import Regression
from bdpvi.models.hazards import restricted_mean, survival

_REACH = 20.0
"""Logarithms of hazards, per horizon, are clipped at ± this."""
_SOON = 1e-9
"""A time of 0 counts as this part of the first interval."""


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
    target = "time"
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
