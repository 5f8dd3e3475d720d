"""A whole training run, and the posterior estimated from its trajectory."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bdpvi._ground.checkpoint import UNKEPT, KeptState
from bdpvi.bayesian.inference.optimisers import adam_factors, decay
from bdpvi.programs.descent import Descent
from bdpvi.programs.moments import drawn, is_gaussian, moments, prior_deviations, prior_given

_WINDOWS = 10
_FEW, _MANY = 50, 500
"""Draws for the mean of a window, and of all, of a guide that is not Gaussian."""
_EARLY = 20
"""Curvatures are those of all but the first 1/20 of the steps, which are far from the optimum."""
_SIGNAL, _FROM_START = 3.7, 2.8
"""Standard errors from 0 at which a slope counts as measured, and a slope of a line through the
start: about half a percent of random walks get to each."""
_DRIFT = 1.5
"""Standard errors by which the slope of a random walk is too large on average."""
_PRIOR = 0.9
"""Standard deviation, in those of the prior, from which a coordinate does not count as measured:
its information is then less than a quarter of the prior's."""
_AWAY = 3.0
"""Distance from the optimum, in posterior standard deviations, from which a mean is not settled:
root mean square over coordinates; :func:`furthest` has that of the worst."""
_MARGIN = 2.0
"""Factor on the windows' variance: with nine degrees of freedom it is rarely below half the truth.
"""


_STATE = ("taken", "variance", "sums", "start", "moments", "pull")
"""What later steps depend on, beside the descent."""


class TrainedGuide(NamedTuple):
    """The posterior of the latents after a training.

    Attributes:
        mean: (d,).
        covariance: (d, d), or (d,) where coordinates are independent.
        measured: whether each coordinate's information exceeds the privacy noise, and the posterior
            is narrower than the prior, (d,). The others have the prior's variance.
        settled: whether the steps were enough for the mean to reach the optimum.
    """

    mean: Tensor
    covariance: Tensor
    measured: Tensor
    settled: bool


class Course:
    """Steps of a descent, the last half of which is averaged.

    Source of the average: Polyak and Juditsky, "Acceleration of Stochastic Approximation by
    Averaging", 1992.

    Attributes:
        descent: takes the steps.
        steps, taken: total number of steps, and number taken so far.
        variance: mean noise variance of the averaged steps.
        sums: sums of the parameters in consecutive windows of the averaged steps, (W, ...) each.
        identified: linear combinations of latents that records identify, one for each latent,
            (d, d); by default each latent alone. Latents may drift in other directions, which would
            hide their slopes.
        start: identified combinations of the first step's latents, (d,).
        moments: sums of 1, u, g, u² and ug over the early and over the later steps, each weighted
            by the inverse noise variance, with the identified combinations u, less those of the
            start, and noisy gradients g, (2, 5, d).
        pull: mean of g over the averaged steps, (d,).
    """

    def __init__(self, descent: Descent, steps: int, identified: Tensor | None = None) -> None:
        self.descent, self.steps, self.taken, self.variance = descent, steps, 0, 0.0
        self.identified, self.gaussian = identified, is_gaussian(descent.program)
        self.first = steps // 2
        self.averaged = steps - self.first
        self.windows = min(_WINDOWS, self.averaged)
        values = descent.program.parameters.items()
        self.sums = {n: torch.zeros(self.windows, *v.shape).to(v) for n, v in values}
        self.start = torch.zeros(descent.program.dim, dtype=torch.float64)
        self.moments = torch.zeros(2, 5, descent.program.dim, dtype=torch.float64)
        self.pull = torch.zeros(descent.program.dim, dtype=torch.float64)

    def run(self, steps: Any, kept: KeptState = UNKEPT) -> None:
        """Take these steps, starting from the last saved state.

        Args:
            steps: numbers from 0, perhaps wrapped in a progress bar.
            kept: where the state is saved.
        """
        if (state := kept.state()) is not None:
            self.load_state_dict(state)
        for number in steps:
            if number < self.taken:
                continue
            self._step(number)
            kept.save_if_due(self.state_dict)

    def _step(self, number: int) -> None:
        descent = self.descent
        noise = descent.deviation**2
        u, g = (one.cpu() for one in descent.step(number))
        u = u if self.identified is None else self.identified.to(u) @ u
        if number == 0:
            self.start = u
        u, later = u - self.start, int(number >= self.steps // _EARLY)
        self.moments[later] += torch.stack([torch.ones_like(u), u, g, u * u, u * g]) / noise
        decay(descent.optim)
        self.taken = number + 1
        if number < self.first:
            return
        self.variance += noise / self.averaged
        self.pull += g / self.averaged
        window = self._window(number)
        for name, value in descent.program.parameters.items():
            self.sums[name][window] += value.detach()

    def _window(self, number: int) -> int:
        return (number - self.first) * self.windows // self.averaged

    def posterior(self) -> TrainedGuide:
        """Set the parameters to their average, and return the posterior of the latents.

        A guide learns its variance slowly under noise, so the variance is raised to the inverse of
        the measured curvature where that is larger: of that near the optimum, unless noise hides it
        there (:func:`curvatures`). The variance that batches and noise leave in the average is
        added, but at most twice the variance that the windows' averages show: where the records say
        little, the steps are too short to reach :func:`left_in_average`.

        A latent that is not measured may have been moved by noise alone, and a guide narrows around
        wherever that led. It gets its prior's variance, given the others, and its mean is shrunk to
        the prior's by the variance that noise alone gives it (:func:`walk`). One that counts fully
        in a measured combination is measured, such as an intercept that is part of a level's.

        Near the optimum gradients average to about 0. A Newton step by their mean says how far away
        it is; the prior's gradient, small where coordinates are measured, is left out. All measured
        coordinates together decide, and the worst by itself (:func:`furthest`).
        """
        counts = torch.zeros(self.windows)
        for number in range(self.first, self.steps):
            counts[self._window(number)] += 1
        program, centres = self.descent.program, []
        for window in range(self.windows):
            self._set({n: v[window] / counts[window].to(v) for n, v in self.sums.items()})
            centres.append(self._moments(_FEW)[0])
        self._set({name: value.sum(0) / self.averaged for name, value in self.sums.items()})
        mean, covariance = self._moments(_MANY)
        slope, error, measured = curvatures(self.moments)
        least = torch.where(measured, 1 / (slope - _DRIFT * error), 0.0)
        least = least.clamp(min=1e-300)  # a guide may have no spread at all
        covariance = _scaled(covariance, (least / _diagonal(covariance)).clamp(min=1.0))
        rate, noise = self.descent.mechanism.rate, self.variance
        left = left_in_average(covariance, rate, noise, self.averaged)
        away = _diagonal(covariance) * self.pull
        spread = _diagonal(covariance + left).sqrt()
        if self.windows > 1 and len(mean):
            seen = _MARGIN * torch.stack(centres).var(0) / self.windows
            shrunk = (seen / _diagonal(left).clamp(min=1e-300)).clamp(max=1.0)
            left = _scaled(left, shrunk)
        if self.identified is not None:
            measured = parts_of(measured, self.identified)
        measured &= _diagonal(covariance).sqrt() < _PRIOR * prior_deviations(program)
        worst = (away / spread)[measured].abs()  # whose noise has a variance of at most 1
        covariance = covariance + left
        away = away[measured] / _diagonal(covariance)[measured].sqrt()
        settled = not bool(away.square().mean() > _AWAY**2 or (worst > furthest(len(worst))).any())
        if not bool(measured.all()):
            centre, variance = prior_given(program, measured)
            share = variance / (variance + self._walk() ** 2)
            others = centre + share * (mean - centre)
            mean, covariance = replace_others(mean, covariance, measured, others, variance)
        return TrainedGuide(mean, covariance, measured, settled)

    def _moments(self, draws: int) -> tuple[Tensor, Tensor]:
        """Return the latents' mean and covariance, of draws if the guide is not Gaussian."""
        program = self.descent.program
        if self.gaussian:
            return moments(program)
        found = drawn(program, draws)
        return found.mean(0), found.var(0).clamp(min=1e-300)

    def _walk(self) -> float:
        """Return :func:`walk` of the optimiser's steps; infinite if it is not plain Adam."""
        factors = adam_factors(self.descent.optim, self.steps)
        if factors is None:
            return math.inf
        return walk(factors[:, 0], factors[:, 1], self.first)

    def _set(self, values: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, value in self.descent.program.parameters.items():
                value.copy_(values[name])

    def state_dict(self) -> dict[str, Any]:
        """Return everything on which later steps depend."""
        own = {name: getattr(self, name) for name in _STATE}
        return {**own, "ignored": self.descent.ignored, **self.descent.state_dict()}

    def load_state_dict(self, state: Any) -> None:
        """Resume from a state."""
        self.descent.load_state_dict(state)
        self.descent.ignored = state["ignored"]
        for name in _STATE:
            setattr(self, name, state[name])


def slopes(moments: Tensor) -> tuple[Tensor, Tensor]:
    """Return each coordinate's curvature by weighted least squares, and its standard error, (d,).

    Latents u vary with the guide's draws and the noise of earlier steps, and gradients of all
    records follow them: g = F (u − w) + noise, with known variances. If F = 0, u is a random walk,
    and the estimate over its standard error has the distribution of Dickey and Fuller,
    "Distribution of the Estimators for Autoregressive Time Series With a Unit Root", 1979.

    Args:
        moments: as in :class:`Course`.

    >>> u, g = torch.tensor([[0.0, 1.0, 2.0]]).double(), torch.tensor([[-1.0, 2.0, 5.0]]).double()
    >>> sums = torch.stack([torch.ones_like(u), u, g, u * u, u * g]).sum(2) / 2  # variance 2
    >>> slopes(sums)  # 3, and √(2/2)
    (tensor([3.], dtype=torch.float64), tensor([1.], dtype=torch.float64))
    """
    weight, u, g, uu, ug = moments
    spread = (uu - u * u / weight).clamp(min=1e-300)
    return (ug - u * g / weight) / spread, spread.rsqrt()


def curvatures(moments: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return each coordinate's curvature, its standard error, and whether it is measured, (d,).

    All steps decide whether it is. An optimum that is far from the start shows by the way there,
    one that is near by a line through the start, which random walks follow less. The curvature is
    that near the optimum unless noise hides it.

    Args:
        moments: as in :class:`Course`.

    >>> late = torch.tensor([[4.0], [0.0], [0.0], [4.0], [40.0]]).double()
    >>> curvatures(torch.stack([late / 2, late]))  # the error is that of the later steps, √(1/4)
    (tensor([10.], dtype=torch.float64), tensor([0.5000], dtype=torch.float64), tensor([True]))
    """
    every = moments.sum(0)
    through_start = torch.stack([every[0], *torch.zeros_like(every[1:3]), *every[3:]])
    slope, error = slopes(through_start)  # without the sums of u and g no intercept is left
    far, near = slopes(every), slopes(moments[1])
    measured = (slope > _FROM_START * error) | (far[0] > _SIGNAL * far[1])
    for other, its in (far, near):
        seen = other > _SIGNAL * its
        slope, error = torch.where(seen, other, slope), torch.where(seen, its, error)
    return slope, error, measured


def parts_of(measured: Tensor, combinations: Tensor) -> Tensor:
    """Return whether each latent has the largest weight in a measured combination, (d,).

    One that is a sum of measured ones or their negatives, so that errors hardly grow, is measured
    too. A level that no record has is not: it takes several times the sum of all levels.

    Args:
        measured: whether each combination is, (m,).
        combinations: their weights, (m, d).

    >>> classes = torch.eye(3).double() - 1 / 3  # effects on classes, each less the mean effect
    >>> parts_of(torch.tensor([True, True, False]), classes).tolist()
    [True, True, True]
    >>> parts_of(torch.tensor([True, False, False]), classes).tolist()
    [True, False, False]
    >>> levels = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0], [0.5, 0.5, 1.0]]).double()
    >>> parts_of(torch.tensor([True, False, True]), levels).tolist()  # the second has no record
    [True, False, True]
    """
    known = combinations[measured]
    shares = combinations @ torch.linalg.pinv(known, rtol=1e-9)
    left = (combinations - shares @ known).norm(dim=1)
    follow = left <= 1e-6 * combinations.norm(dim=1)
    follow &= ~(shares.abs() > 1 + 1e-6).any(1)
    sizes = combinations.abs()
    fully = sizes >= sizes.amax(1, keepdim=True) * (1 - 1e-9)
    result: Tensor = (fully & follow.unsqueeze(1)).any(0)
    return result


def furthest(coordinates: int) -> float:
    """Return the distance that the worst of these standard normals exceeds as one exceeds 3.

    By Bonferroni's inequality, so they need not be independent.

    >>> round(furthest(1), 9), round(furthest(100), 2)
    (3.0, 4.2)
    """
    one = torch.special.ndtr(torch.tensor(-_AWAY, dtype=torch.float64))
    return -float(torch.special.ndtri(one / max(coordinates, 1)))


def walk(rates: Tensor, fresh: Tensor, first: int) -> float:
    """Return the standard deviation of a location that noise alone moves, averaged over last steps.

    Adam divides its mean of gradients by their size, so noise moves a location by the same random
    walk whatever its size. At step t the mean has the share 1 − β of the gradient g_t and β of the
    mean before, and a step counts for the share of the averaged locations that follow it.

    Args:
        rates: step sizes for that mean, which corrects its start, (T,).
        fresh: 1 − β, (T,).
        first: number of steps before the averaged ones.

    >>> rates = torch.tensor([0.3, 0.4, 0.0], dtype=torch.float64)
    >>> round(walk(rates, torch.ones(3), 2), 12)  # one location, after two steps
    0.5
    """
    steps, carried, total = len(rates), 0.0, 0.0
    after = torch.arange(steps, 0, -1).double().clamp(max=steps - first) / (steps - first)
    for moved, share in zip((rates * after).flip(0).tolist(), fresh.flip(0).tolist(), strict=True):
        carried = moved + (1 - share) * carried
        total += (share * carried) ** 2
    return math.sqrt(total)


def replace_others(
    mean: Tensor, covariance: Tensor, kept: Tensor, others: Tensor, variance: Tensor
) -> tuple[Tensor, Tensor]:
    """Return a normal law whose coordinates that are not kept have another mean and variance.

    Args:
        mean, covariance: (d,), and (d, d) or its diagonal, (d,).
        kept: (d,).
        others, variance: of coordinates that are not kept, which are independent of all, (d,).

    >>> one, kept = torch.ones(2).double(), torch.tensor([True, False])
    >>> replace_others(one, one + torch.eye(2), kept, 0 * one, 25 * one)[1].tolist()
    [[2.0, 0.0], [0.0, 25.0]]
    """
    mean = torch.where(kept, mean, others)
    if covariance.ndim == 1:
        return mean, torch.where(kept, covariance, variance)
    apart = covariance * torch.outer(kept, kept) + torch.where(kept, 0.0, variance).diag()
    return mean, apart


def _diagonal(covariance: Tensor) -> Tensor:
    return covariance if covariance.ndim == 1 else covariance.diagonal()


def _scaled(covariance: Tensor, by: Tensor) -> Tensor:
    """Return the covariance with each variance multiplied and the same correlations."""
    return covariance * (by if covariance.ndim == 1 else torch.outer(by.sqrt(), by.sqrt()))


def left_in_average(covariance: Tensor, rate: float, noise: float, steps: int) -> Tensor:
    """Return the covariance that batches and noise leave in an average of T locations.

    Near convergence the location moves by S g for a gradient g of all records, with the guide's
    covariance S, so the average has covariance S (F(1 − q)/(qT) + ν²/T) S. Gradients from Poisson
    batches of rate q have covariance F(1 − q)/q, with F = Σ gᵢgᵢᵀ about S⁻¹ if the model is true;
    noise has variance ν² in each coordinate.

    Args:
        covariance: S, (d, d), or its diagonal, (d,).
        rate: q.
        noise: ν², for the gradient of all records.
        steps: T.

    >>> left_in_average(torch.tensor([0.1]), 0.5, 4.0, 10)  # 0.1/10 + 0.1² · 4/10
    tensor([0.0140])
    >>> left_in_average(torch.tensor([2.0]), 1.0, 5.0, 2)  # all records in each: 2² · 5/2
    tensor([10.])
    """
    square = covariance @ covariance if covariance.ndim == 2 else covariance.square()
    return covariance * ((1 / rate - 1) / steps) + square * (noise / steps)
