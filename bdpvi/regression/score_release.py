"""Noisy scores: a generalised linear model from a few Gaussian rounds, with valid intervals.

Each round releases a weighted score and its matrix (:mod:`bdpvi.models.scores`) at a
point computed from earlier rounds, so all points are public once they are used. The first round, at
a public point, gives a start and the second moments that standardise the features; the posterior of
:mod:`bdpvi.regression.score_posterior` uses the later rounds. The family's shares divide μ² among
the rounds: together they are a Gaussian mechanism of distance μ (adaptive composition of Gaussian
mechanisms; Dong, Roth and Su 2022, Corollary 3.3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from scipy.special import ndtr
from torch import Tensor

from bdpvi.datasets.records import Records
from bdpvi.models.scores import ROBUST, ScoreParts
from bdpvi.noise.keys import Key
from bdpvi.noise.secure import sum_rounding
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.norms import NormCounts
from bdpvi.privacy.solve import root
from bdpvi.regression.score_posterior import (
    NormalPrior,
    Posterior,
    Round,
    closed_form,
    near,
)
from bdpvi.regression.score_rounds import (
    Joined,
    Place,
    count_of,
    join_levels,
    release_round,
    standardising,
    start,
    within,
)

_STRONG = 15.0
_SATURATED, _FARTHEST = 0.5, 100.0
_ALMOST = 1e-6


@dataclass(frozen=True, kw_only=True)
class ScorePlan:
    """Public settings of noisy scores.

    Attributes:
        family: the model's family.
        columns: k, including the intercept.
        event: all rounds together.
        size: expected mean square of a record's length; the first round's R² over radius².
        radius: R over the root of that.
        weighted: whether records have weights.
    """

    family: ScoreParts
    columns: int
    event: SampledGaussian
    size: float
    radius: float = 1.0
    weighted: bool = False

    @classmethod
    def of(
        cls,
        family: ScoreParts,
        columns: int,
        distance: float,
        rows: float = 0.0,
        size: float | None = None,
    ) -> ScorePlan:
        """Return the settings for rounds of total distance μ.

        R is a record's expected length if about this many rows give a weak signal, and wider, up to
        the family's widest, if they give a strong one: downweighting records then loses more
        precision than noise does, and of a misspecified model it moves the estimate. The signal
        falls with R², so R grows with its fourth root only: a larger ε or more rows must also lower
        the noise.

        Args:
            family: the model's family.
            columns: k, including the intercept.
            distance: μ of all rounds.
            rows: about how many records.
            size: expected mean square of a record's length: k, or less if levels of a category are
                columns, as a record has one of them.
        """
        numbers = columns * (columns + 2) + (family.link == "identity")
        rounding = len(family.shares) * sum_rounding(numbers)
        event = SampledGaussian(noise_multiplier=1 / distance, rounding=rounding)
        size = float(columns) if size is None else min(size, columns)
        made = cls(family=family, columns=columns, event=event, size=size)
        wide = (made.signal(rows) / _STRONG) ** 0.25
        return replace(made, radius=min(max(wide, 1.0), family.widest))

    @property
    def events(self) -> tuple[SampledGaussian]:
        """The events to charge."""
        return (self.event,)

    def with_noise(self, noise_multiplier: float) -> ScorePlan:
        """Return the settings with another noise multiplier."""
        return replace(self, event=replace(self.event, noise_multiplier=noise_multiplier))

    def multipliers(self) -> list[float]:
        """Return the noise multiplier of each round."""
        return [self.event.noise_multiplier / math.sqrt(share) for share in self.family.shares]

    @property
    def length(self) -> float:
        """R of the first round."""
        return self.radius * math.sqrt(self.size)

    def signal(self, rows: float) -> float:
        """Return the approximate least eigenvalue of A, over √k standard deviations of its noise.

        It is for standardised features; a value of 2 is needed.

        >>> from bdpvi.models.logistic import LogisticScores
        >>> plan = ScorePlan.of(LogisticScores(), 6, distance=0.0645)  # ε = 0.2 at δ = 1e-5
        >>> round(plan.signal(5000), 1)
        6.6
        """
        unit = self.family.unit(self.columns, self.length)
        shares = [one / sum(self.family.shares[1:]) / 2 for one in self.family.shares[1:]]
        shares[-1] += 0.5
        noises = [unit * one for one in self.multipliers()[1:]]
        noises[-1] *= ROBUST
        noise = math.hypot(*(a * b for a, b in zip(shares, noises, strict=True)))
        return self.family.typical * rows / (noise * math.sqrt(self.columns))


@dataclass(frozen=True, eq=False)
class Measured:
    """The releases of later rounds, in standardised coordinates, and the map back.

    Attributes:
        rounds: the rounds that the posterior uses, in order.
        back: W, (k, m): coefficients are W times the m standardised ones.
        joined: which columns were used after the first round.
        prior, posterior: of the standardised coefficients.
        dispersion: φ.
        paid: length of each record's contribution over its bound, (all rounds, N), None of a table
            in blocks. Secret.
    """

    rounds: tuple[Round, ...]
    back: Tensor
    joined: Joined
    prior: NormalPrior
    posterior: Posterior
    dispersion: float
    paid: Tensor | None = field(repr=False)

    def of_features(self) -> Posterior:
        """Return the posterior of the coefficients; of a level left out, its column's mean."""
        return self.posterior.rotate(self.back)


def measure(
    plan: ScorePlan,
    records: Records[tuple[Tensor, ...]],
    prior: NormalPrior,
    key: Key,
    levels: Tensor | None = None,
) -> Measured:
    """Release the rounds and return the posterior that follows from them.

    A level without a record still has a column, whose noise would double that of all others. So
    levels that the first round cannot tell from such ones have no column in the later rounds
    (:func:`bdpvi.regression.score_rounds.join_levels`). R of later rounds follows from the first
    round too: it is ``plan.radius`` times the length of standardised records.

    Args:
        plan: the settings.
        records: in memory or in blocks; each part is a design, float64, (N, k), the last column
            ones, targets, (N,), and, if the plan says so, weights of records from 0 to 1, (N,).
        prior: of the k coefficients.
        key: secret.
        levels: for each level of a category the number of the first of these columns; for a column
            that says that a number is blank, that of the number; −2 for others that may be left
            out and then count as 0; −1 for all others, (k,). By default none is left out.

    >>> from bdpvi.datasets.records import Held
    >>> from bdpvi.models.logistic import LogisticScores
    >>> x = torch.ones(5000, 2, dtype=torch.float64)
    >>> x[:, 0] = torch.linspace(-2, 2, 5000)
    >>> prior = NormalPrior(torch.zeros(2).double(), torch.eye(2).double() / 25)
    >>> plan = ScorePlan.of(LogisticScores(), 2, distance=0.3)
    >>> y = (torch.arange(5000) * 0.618 % 1 < torch.sigmoid(x[:, 0])).double()
    >>> found = measure(plan, Held((x, y)), prior, Key.of_seed(0)).of_features()
    >>> bool((found.mean - torch.tensor([1.0, 0.0])).abs().max() < 0.2), found.passes
    (True, True)
    """
    family, multipliers, radius = plan.family, plan.multipliers(), plan.length
    zero = torch.zeros(plan.columns, dtype=torch.float64)
    first, lengths = release_round(
        records, Place(family, radius), zero, multipliers[0], key.child("round", 0)
    )
    paid = [lengths]
    columns = join_levels(first, levels)
    first, prior = first.merged(columns.place), prior.within(columns.used)
    point, moments, noise, variance = start(family, first, radius, prior)
    back, forth = standardising(moments, noise)
    white, point = records.map(_standardise_records, columns, back), forth @ point
    square = float((back @ moments @ back).trace()) / count_of(moments)  # of a record's length
    radius = plan.radius * math.sqrt(min(max(square, 1.0), len(moments)))
    prior = NormalPrior(forth @ prior.mean, back @ prior.precision @ back)
    clip, rounds, count = family.clip(variance), [], forth[:, -1]
    typical = 1.0
    for number, multiplier in enumerate(multipliers[1:], 1):
        place = Place(family, radius, point, clip)
        if number == len(multipliers) - 1:
            place = replace(place, longest=family.longest(radius, clip, typical))
        one, lengths = release_round(white, place, point, multiplier, key.child("round", number))
        rounds.append(replace(one, clip=clip, weighted=plan.weighted))
        paid.append(lengths)
        typical = max(float(count @ one.curvature @ count), 0.0) / count_of(moments)
        found = _answer(family, rounds, prior, count, variance)
        variance = found.variance
        clip = family.clip(variance + float(found.posterior.covariance.trace()))
        step = found.posterior.mean - point
        point = point + step * min(1.0, family.furthest / max(float(step.norm()), 1e-300))
    known = [one for one in paid if one is not None]
    return Measured(
        rounds=found.rounds,
        back=columns.place @ back,
        joined=columns,
        prior=prior,
        posterior=found.posterior,
        dispersion=found.dispersion,
        paid=torch.stack(known) if len(known) == len(paid) else None,
    )


def _standardise_records(
    records: tuple[Tensor, ...], columns: Joined, back: Tensor
) -> tuple[Tensor, ...]:
    """Return standardised records; one that is set aside is 0, and adds 0 to every sum."""
    x, y, *weights = records
    there = (x[:, columns.aside] == 0).all(1)
    return (x @ columns.place @ back) * there[:, None], y * there, *weights


def path_events(plan: ScorePlan, measured: Measured, ids: Tensor) -> list[SampledGaussian]:
    """Return the rounds with each record's contribution to them. Secret.

    Passed to :func:`bdpvi.bayesian.accounting.accountant.cost_of`, they give the worst case of
    ``plan`` and a ``path``: a random record's cost at the points that were released. Another table
    would have had other points, so the path is a diagnostic, not a guarantee.

    Args:
        plan, measured: of :func:`measure`.
        ids: of the records, (N,).

    >>> from bdpvi.models.logistic import LogisticScores
    >>> from bdpvi.bayesian.accounting.accountant import cost_of
    >>> x = torch.linspace(-2, 2, 3000, dtype=torch.float64)[:, None] ** torch.tensor([1.0, 0.0])
    >>> prior = NormalPrior(torch.zeros(2).double(), torch.eye(2).double())
    >>> plan = ScorePlan.of(LogisticScores(), 2, distance=0.268)  # ε = 1
    >>> from bdpvi.datasets.records import Held
    >>> records = Held((x, (x[:, 0] > 0).double()))
    >>> found = measure(plan, records, prior, Key.of_seed(0))
    >>> cost = cost_of(path_events(plan, found, torch.arange(3000)), delta=1e-5)
    >>> round(cost.worst_case.epsilon, 2), cost.path.epsilon < 0.9, cost.bayesian
    (1.0, True, None)
    """
    assert measured.paid is not None
    none = NormCounts.none(ids)
    return [
        SampledGaussian(noise_multiplier=noise, norms=none.add(one))
        for noise, one in zip(plan.multipliers(), measured.paid, strict=True)
    ]


class _Answer(NamedTuple):
    """The posterior, the rounds that it uses, φ, and σ² of the target."""

    posterior: Posterior
    rounds: tuple[Round, ...]
    dispersion: float
    variance: float


def _answer(
    family: ScoreParts, rounds: Sequence[Round], prior: NormalPrior, count: Tensor, variance: float
) -> _Answer:
    if family.link == "identity":
        return _of_squares(family, rounds, prior, count, variance)
    used = list(rounds)
    for _ in range(2):
        found = closed_form(used, prior)
        used = near(rounds, found.mean)
    return _Answer(closed_form(used, prior), tuple(used), 1.0, variance)


def _of_squares(
    family: ScoreParts, rounds: Sequence[Round], prior: NormalPrior, count: Tensor, variance: float
) -> _Answer:
    """Return the answer for linear regression, with σ² from the last round's Σ ψ²."""
    last = rounds[-1]
    number = max(float(count @ last.curvature @ count), 1.0)
    mean = last.point
    for _ in range(6):
        facts = []
        for one in rounds:
            error = float((mean - one.point).square().sum())
            facts.append(_cut_normal(one.clip, math.sqrt(variance + error)))
        scaled = [one.times(f) for one, (f, _) in zip(rounds, facts, strict=True)]
        dispersion = max(v / f for f, v in facts)
        found = closed_form(scaled, prior, dispersion)
        mean = found.mean
        far2 = float((mean - last.point).square().sum())
        total = _deviation_of(last.square / number, last.clip) ** 2
        variance = within(total - far2, math.inf, family.largest)
    far = found.far / math.sqrt(variance)
    if last.square > _SATURATED * number * last.clip**2:
        far = _FARTHEST
    error = _log_error(last, number, math.sqrt(variance))
    log_scale = (math.log(variance) / 2, error)
    found = replace(found, far=far, log_scale=log_scale)
    return _Answer(found, tuple(scaled), dispersion, variance)


def _log_error(last: Round, number: float, deviation: float) -> float:
    """Return the standard error of log σ, from that of (Σ wψ²)/(Σ w); E ψ⁴ ≤ κ² E ψ²."""
    square = _cut_normal(last.clip, deviation)[1]
    error = math.hypot(last.square_noise, last.clip * math.sqrt(number * square))
    relative = math.hypot(error / (number * square), last.curvature_noise / number)
    steepness = math.log(_cut_normal(last.clip, deviation * (1 + _ALMOST))[1] / square) / _ALMOST
    return relative / max(steepness, 1e-3)


def _cut_normal(clip: float, deviation: float) -> tuple[float, float]:
    """Return P(|Z| < κ) and E ψ(Z)² for a centred normal Z clipped at ± κ."""
    z = clip / deviation
    inside = float(2 * ndtr(z) - 1)
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return inside, deviation**2 * (inside - 2 * z * density) + clip**2 * (1 - inside)


def _deviation_of(square: float, clip: float) -> float:
    """Return the standard deviation of Z at which E ψ(Z)² is ``square``."""

    def excess(deviation: float) -> float:
        return _cut_normal(clip, deviation)[1] - square

    low, high = _ALMOST * clip, 50 * clip
    if excess(low) > 0:
        return low
    return high if excess(high) < 0 else root(excess, low, high)
