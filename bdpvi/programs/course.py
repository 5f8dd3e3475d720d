"""A whole training run, and the posterior estimated from its trajectory."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bdpvi._ground.checkpoint import UNKEPT, KeptState
from bdpvi.bayesian.inference.optimisers import adam_factors, decay
from bdpvi.programs.curvatures import correlations, curvatures
from bdpvi.programs.descent import Descent
from bdpvi.programs.moments import drawn, is_gaussian, moments, prior_deviations, prior_given

_MANY = 500
"""Draws for the mean of a guide that is not Gaussian."""
_EARLY = 20
"""Curvatures are those of all but the first 1/20 of the steps, which are far from the optimum."""
_DRIFT = 1.5
"""Standard errors by which the slope of a random walk is too large on average."""
_JOINT = 100
"""Most latents of which pairs are looked at."""
_PRIOR = 0.9
"""Standard deviation, in those of the prior, from which a coordinate does not count as measured:
its information is then less than a quarter of the prior's."""
_AWAY = 3.0
"""Distance from the optimum, in posterior standard deviations, from which a mean is not settled:
root mean square over coordinates; :func:`furthest` has that of the worst."""


_STATE = ("taken", "variance", "sums", "start", "moments", "products", "pull", "square")
"""What later steps depend on, beside the descent."""


class TrainedGuide(NamedTuple):
    """The posterior of the latents after a training.

    Attributes:
        mean: (d,).
        covariance: (d, d), or (d,) where coordinates are independent.
        measured: whether each coordinate's information exceeds the privacy noise, and the posterior
            is narrower than the prior, (d,). The others have the prior's variance.
        settled: whether the steps were enough for the mean to reach the optimum.
        moved: standard deviation that noise alone gives the mean of one that nothing pulls, or inf.
    """

    mean: Tensor
    covariance: Tensor
    measured: Tensor
    settled: bool
    moved: float


class Course:
    """Steps of a descent, the last half of which is averaged.

    Source of the average: Polyak and Juditsky, "Acceleration of Stochastic Approximation by
    Averaging", 1992.

    Attributes:
        descent: takes the steps.
        steps, taken: total number of steps, and number taken so far.
        variance: mean noise variance of the averaged steps.
        sums: sums of the parameters over the averaged steps.
        identified: linear combinations of latents that records identify, one for each latent,
            (d, d); by default each latent alone. Latents may drift in other directions, which would
            hide their slopes.
        start: identified combinations of the first step's latents, (d,).
        moments: sums of 1, u, g, u² and ug over the early and over the later steps, each weighted
            by the inverse noise variance, with the identified combinations u, less those of the
            start, and noisy gradients g, (2, 5, d).
        products: sums of uuᵀ and of ugᵀ over the later steps, weighted likewise, (2, d, d); empty
            where latents are many or combined.
        pull: mean of g over the averaged steps, (d,).
        square: mean of g² over all steps, (d,).
    """

    def __init__(self, descent: Descent, steps: int, identified: Tensor | None = None) -> None:
        self.descent, self.steps, self.taken, self.variance = descent, steps, 0, 0.0
        self.identified, self.gaussian = identified, is_gaussian(descent.program)
        self.first = steps // 2
        self.averaged = steps - self.first
        self.sums = {n: torch.zeros_like(v) for n, v in descent.program.parameters.items()}
        self.start = torch.zeros(descent.program.dim, dtype=torch.float64)
        self.moments = torch.zeros(2, 5, descent.program.dim, dtype=torch.float64)
        pairs = descent.program.dim * (identified is None and descent.program.dim <= _JOINT)
        self.products = torch.zeros(2, pairs, pairs, dtype=torch.float64)
        self.pull, self.square = torch.zeros(2, descent.program.dim, dtype=torch.float64)

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
        if later and self.products.numel():
            self.products += torch.stack([torch.outer(u, u), torch.outer(u, g)]) / noise
        self.square += g * g / self.steps
        decay(descent.optim)
        self.taken = number + 1
        if number < self.first:
            return
        self.variance += noise / self.averaged
        self.pull += g / self.averaged
        for name, value in descent.program.parameters.items():
            self.sums[name] += value.detach()

    def posterior(self) -> TrainedGuide:
        """Set the parameters to their average, and return the posterior of the latents.

        A guide learns its variance slowly under noise, so the variance becomes the inverse of the
        measured curvature, less its error: of that near the optimum, unless noise hides it there
        (:func:`curvatures`). The variance that batches and noise leave in the average is added, as
        far as the steps have :func:`reached` it: where the records say little, they are few. If the
        guide's latents are independent, curvatures between them widen it (:func:`correlations`).

        A latent that is not measured may have been moved by noise alone, and a guide narrows around
        wherever that led. It gets its prior's variance, given the others, and its mean is shrunk to
        the prior's by the variance that noise alone gives it (:func:`walk`). One that counts fully
        in a measured combination is measured, such as an intercept that is part of a level's.

        Near the optimum gradients average to about 0. A Newton step by their mean says how far away
        it is; the prior's gradient, small where coordinates are measured, is left out. All measured
        coordinates together decide, and the worst by itself (:func:`furthest`).
        """
        program = self.descent.program
        with torch.no_grad():
            for name, value in program.parameters.items():
                value.copy_(self.sums[name] / self.averaged)
        mean, covariance = self._moments()
        slope, error, measured = curvatures(self.moments)
        own = _diagonal(covariance).clamp(min=1e-300)  # a guide may have no spread at all
        covariance = _scaled(
            covariance, torch.where(measured, 1 / (slope - _DRIFT * error) / own, 1.0)
        )
        rate, noise = self.descent.mechanism.rate, self.variance
        away = _diagonal(covariance) * self.pull
        left = left_in_average(covariance, rate, noise, self.averaged)
        spread = _diagonal(covariance + left).sqrt()
        if self.gaussian and covariance.ndim == 1 and self.products.numel():
            joint = correlations(self.moments[1], self.products, slope, measured)
            if bool((joint != joint.diag().diag()).any()):
                size = covariance.sqrt()
                covariance = torch.linalg.inv(joint) * torch.outer(size, size)
                left = left_in_average(covariance, rate, noise, self.averaged)
        walk, left = self._reached(covariance, left)
        covariance = covariance + left
        if self.identified is not None:
            measured = parts_of(measured, self.identified)
        measured &= _diagonal(covariance).sqrt() < _PRIOR * prior_deviations(program)
        worst = (away / spread)[measured].abs()  # whose noise has a variance of at most 1
        away = away[measured] / _diagonal(covariance)[measured].sqrt()
        settled = not bool(away.square().mean() > _AWAY**2 or (worst > furthest(len(worst))).any())
        if not bool(measured.all()):
            centre, variance = prior_given(program, measured)
            share = variance / (variance + walk**2)
            others = centre + share * (mean - centre)
            mean, covariance = replace_others(mean, covariance, measured, others, variance)
        return TrainedGuide(mean, covariance, measured, settled, walk)

    def _moments(self) -> tuple[Tensor, Tensor]:
        """Return the latents' mean and covariance, of draws if the guide is not Gaussian."""
        program = self.descent.program
        if self.gaussian:
            return moments(program)
        found = drawn(program, _MANY)
        return found.mean(0), found.var(0).clamp(min=1e-300)

    def _reached(self, covariance: Tensor, left: Tensor) -> tuple[float, Tensor]:
        """Return :func:`walk` of noise alone, and what the steps have :func:`reached` of the noise.

        With joint curvatures F = S⁻¹ and gradients' mean squares v, Adam moves v^¼x by v^-¼Fv^-¼,
        in whose directions noise is reached. If it is not plain Adam, nothing is known of it.
        """
        factors = adam_factors(self.descent.optim, self.steps)
        if factors is None:
            return math.inf, left
        rates, fresh = factors[:, 0], factors[:, 1]
        alone = float(walk(rates, fresh, self.first, torch.zeros(1)))
        size = self.square.clamp(min=1e-300) ** 0.25
        if covariance.ndim == 1:
            return alone, left * reached(rates, fresh, self.first, 1 / (covariance * size**2))
        values, vectors = torch.linalg.eigh(covariance * torch.outer(size, size))
        part = reached(rates, fresh, self.first, 1 / values.clamp(min=1e-300))
        turned = (vectors * part.sqrt()) @ vectors.T * size / size.unsqueeze(1)
        return alone, turned @ left @ turned.T

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


def walk(rates: Tensor, fresh: Tensor, first: int, pull: Tensor) -> Tensor:
    """Return the standard deviation that noise gives to an average of a location's last steps.

    Adam divides its mean of gradients by their root mean square, so a location x moves by unit
    noise, whatever its size, and by pull · x towards its optimum, 0; without a pull it is a random
    walk. At step t the mean has the share 1 − β of the gradient g_t and β of the mean before.

    Args:
        rates: step sizes for that mean, which corrects its start, (T,).
        fresh: 1 − β, (T,).
        first: number of steps before the averaged ones.
        pull: curvature over the root mean square of gradients, of any shape.

    >>> rates, one = torch.tensor([0.3, 0.4, 0.0], dtype=torch.float64), torch.ones(3).double()
    >>> walk(rates, one, 2, one[:1] * 0)  # one location, after two steps: √(0.3² + 0.4²)
    tensor([0.5000], dtype=torch.float64)
    >>> walk(rates, one, 2, one[:1])  # √(0.3² · (1 − 0.4)² + 0.4²)
    tensor([0.4386], dtype=torch.float64)
    """
    steps = len(rates)
    after = carried = total = torch.zeros_like(pull)
    for step, (rate, share) in reversed([*enumerate(zip(rates, fresh, strict=True))]):
        after = after + (step >= first) / (steps - first)
        carried = rate * after + (1 - share) * carried
        total = total + (share * carried) ** 2
        after = after - share * carried * pull
    return total.sqrt()


def reached(rates: Tensor, fresh: Tensor, first: int, pull: Tensor) -> Tensor:
    """Return the variance of :func:`walk` in units of that after very many steps, at most 1.

    That is 1/(pull² T) for T averaged steps, by Polyak and Juditsky as in :class:`Course`. A pull
    that is through in one step is there.

    >>> rates, fresh = torch.full((400,), 0.01).double(), torch.full((400,), 0.1).double()
    >>> reached(rates, fresh, 200, torch.tensor([0.0, 0.1, 1.0, 10.0]).double())
    tensor([0.0000, 0.0382, 0.5933, 0.9976], dtype=torch.float64)
    """
    pull = pull.clamp(max=1 / float(rates[first:].max()))
    found = walk(rates, fresh, first, pull).square() * pull.square() * (len(rates) - first)
    return found.clamp(max=1.0)


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
