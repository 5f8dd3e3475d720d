"""Upper bounds on a mean over records, log E y, from m sampled records, in log space.

Records are the last dimension and are reduced; orders and directions lead. With y = exp(λ D), D
a record's Rényi divergence, the bound is a cost c(λ). An estimator takes log y and γ, the
probability that its bound lies below the truth, and returns an :class:`MeanEstimate`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from scipy import special
from torch import Tensor

from bdpvi._ground import validate
from bdpvi._ground.outputs import several

_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class MeanEstimate:
    """A bound on log E y, the sample mean, and diagnostics of the bound.

    Every tensor has the leading dimensions of the values that were estimated.

    Attributes:
        log_bound: the upper bound on log E y.
        log_mean: the log of the sample mean.
        sample_size: m.
        constant: whether all m values were equal. The spread then says nothing about unseen
            records, and bounds based on it equal the mean.
        skewness: E(y − M)³/S³ of the sample. It is invariant to shifting and scaling y, as are the
            misses of a bound based on M and S. So it is as informative at tiny costs, where
            every y is almost 1, as at large ones. +inf: all values are equal, or one is +inf.
        distribution_free: whether the bound holds with probability 1 − γ for every distribution
            that the estimator accepts, whatever the diagnostics are.
    """

    log_bound: Tensor
    log_mean: Tensor
    sample_size: int
    constant: Tensor
    skewness: Tensor
    distribution_free: bool

    def at(self, index: Tensor) -> MeanEstimate:
        """Return the estimates at these positions of the first dimension."""
        values: dict[str, Any] = {
            n: v[index] for n, v in vars(self).items() if isinstance(v, Tensor)
        }
        return replace(self, **values)


Estimator = Callable[..., MeanEstimate]
"""Maps log y (..., m) and γ to an estimate over the leading dimensions. ``counts=`` (m,) repeats
each value."""


def student_t(
    log_values: Tensor, failure_probability: float, counts: Tensor | None = None
) -> MeanEstimate:
    """Bound the mean by Student's t (Triastcyn and Faltings 2020, eq. 13).

    log[ M + F⁻¹(1−γ) S/√(m−1) ], F with m − 1 degrees of freedom, S the (1/m) standard
    deviation. It assumes a finite variance, and at small γ much more: with heavy tails it
    misses more often than γ, so read the diagnostics.

    Args:
        log_values: log y, (..., m); +inf gives an infinite bound.
        failure_probability: γ, in (0, 1). Above 1/2 the bound is the mean.
        counts: how many records each value stands for, (m,) int64; None is one each.

    Raises:
        ValueError: if m < 3, a value is NaN or γ is out of range.

    >>> estimate = student_t(torch.tensor([0.1, 0.2, 0.3, 0.4]), failure_probability=1e-3)
    >>> round(float(estimate.log_bound), 4), round(float(estimate.log_mean), 4)
    (0.7619, 0.2562)
    """
    sample = SampleMoments.of(log_values, least=3, counts=counts)
    return sample.estimate(log_student_t_bound(sample, failure_probability))


def student_t_quantile(sample_size: int, failure_probability: float) -> float:
    """Return F⁻¹(1−γ) of Student's t with m − 1 degrees of freedom, 0 where γ is above 1/2.

    It is +inf where γ is so small, at few degrees of freedom, that no value is found.

    >>> round(student_t_quantile(256, 1e-6), 3)
    4.866
    """
    gamma = validate.probability("failure_probability", failure_probability)
    # The lower quantile at γ: 1 − γ rounds to 1 below 1e-16.
    quantile = float(special.stdtrit(sample_size - 1, gamma))
    if not math.isfinite(quantile):
        # Infinite, of either sign: below, −quantile would give no margin.
        return math.inf
    return max(0.0, -quantile)


def log_student_t_bound(sample: SampleMoments, failure_probability: float) -> Tensor:
    """Return the bound of :func:`student_t` alone, without the diagnostics."""
    margin = student_t_quantile(sample.size, failure_probability) / math.sqrt(sample.size - 1)
    return sample.above_mean(torch.where(sample.sd > 0, sample.log_sd + _log(margin), -math.inf))


def within(
    log_values: Tensor,
    log_upper: Tensor | float,
    log_lower: float,
    counts: Tensor | None = None,
) -> tuple[SampleMoments, Tensor]:
    """Return the sample, whose values lie between two bounds, and the log of their distance.

    Raises:
        ValueError: if m < 2, or a value is NaN or out of its range.
    """
    upper = torch.as_tensor(log_upper, dtype=torch.float64)
    log_values = torch.as_tensor(log_values, dtype=torch.float64)
    validate.every(
        "log_upper", upper, (upper > -math.inf) & (upper >= log_lower), f"be at least {log_lower}"
    )
    rule = f"lie in [{log_lower!r}, log_upper]"
    inside = (log_values >= log_lower - _ROUNDING) & (log_values <= upper[..., None] + _ROUNDING)
    validate.every("log_values", log_values, inside | log_values.isnan(), rule)
    sample = SampleMoments.of(log_values, least=2, counts=counts)
    return sample, upper + torch.log(-torch.expm1(log_lower - upper))


@dataclass(frozen=True, eq=False)
class SampleMoments:
    """Moments of a sample of y, in units of its largest value M.

    The values enter as y/M − 1, because costs near 0 have y within rounding of 1.

    Attributes:
        size: m, the number of records.
        log_max: log M, over the leading dimensions.
        mean: mean of y/M − 1.
        sd: its (1/m) standard deviation.
        third: its third central moment over the cubed standard deviation.

    >>> sample = SampleMoments.of(torch.tensor([1.0, 2.0, 3.0, 10.0]).log(), least=3)
    >>> round(float(sample.log_mean.exp()), 4), round(float(sample.skewness), 4)
    (4.0, 1.0182)
    """

    size: int
    log_max: Tensor
    mean: Tensor
    sd: Tensor
    third: Tensor

    @classmethod
    def of(cls, log_values: Tensor, least: int, counts: Tensor | None = None) -> SampleMoments:
        """Return the moments of log y, (..., m), of at least ``least`` records.

        ``counts`` (m,) repeats each value.
        """
        log_values = torch.as_tensor(log_values, dtype=torch.float64)
        size = log_values.shape[-1] if log_values.ndim else 0
        if counts is not None and size:
            size = int(counts.sum())
        if size < least:
            raise ValueError(
                f"log_values must have at least {several(least, 'record')} in its last dimension, "
                f"got shape {tuple(log_values.shape)}"
            )
        log_max = log_values.amax(-1)  # NaN if any is
        if bool(log_max.isnan().any()):
            raise ValueError("log_values must not be NaN, got nan")
        values = relative(log_values, log_max)
        if counts is None:
            sd, mean = torch.std_mean(values, dim=-1, correction=0)
            third = ((values - mean[..., None]) / sd[..., None]).pow(3).mean(-1)
        else:
            weights = counts.to(values) / size
            mean = values @ weights
            centred = values - mean[..., None]
            sd = (centred.square() @ weights).sqrt()
            third = (centred / sd[..., None]).pow(3) @ weights
        return cls(size, log_max, mean, sd, third)

    @property
    def log_mean(self) -> Tensor:
        """The log of the plain mean."""
        return self.log_max + torch.log1p(self.mean)

    @property
    def log_sd(self) -> Tensor:
        """The log of the (1/m) standard deviation."""
        return torch.where(self.sd > 0, self.log_max + torch.log(self.sd), -math.inf)

    @property
    def skewness(self) -> Tensor:
        """The third central moment over the cubed standard deviation, +inf where there is none."""
        return torch.where((self.sd > 0) & (self.log_max < math.inf), self.third, math.inf)

    def above_mean(self, log_margin: Tensor) -> Tensor:
        """Return log(mean + margin)."""
        return torch.logaddexp(self.log_mean, log_margin)

    def estimate(self, log_bound: Tensor, distribution_free: bool = False) -> MeanEstimate:
        """Return ``log_bound`` with all diagnostics."""
        return MeanEstimate(
            log_bound=log_bound,
            log_mean=self.log_mean,
            sample_size=self.size,
            constant=self.sd == 0,
            skewness=self.skewness,
            distribution_free=distribution_free,
        )


def relative(log_values: Tensor, log_max: Tensor) -> Tensor:
    """Return y/M − 1, 0 at the maximum M itself even where that is 0 or infinite."""
    top = log_max[..., None]
    return torch.where(log_values == top, 0.0, torch.expm1(log_values - top))


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
