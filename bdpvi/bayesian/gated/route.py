"""Draws of logistic regression's posterior as a route: charged, gated, released in one go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from bdpvi._ground import validate
from bdpvi._ground.host import HOST
from bdpvi._ground.outputs import several, two_digits
from bdpvi._ground.types import TooFewRecordsError
from bdpvi.bayesian.gated.coordinates import Coordinates, enough, norm
from bdpvi.bayesian.gated.gate import Gate, chances, curvature
from bdpvi.bayesian.mode.objective import EXACT, LogPosterior, Peak, search_mode
from bdpvi.bayesian.optimum.weighted import Weighted
from bdpvi.datasets.dataset import Data, Dataset, sample_of_form
from bdpvi.datasets.records import Records
from bdpvi.models.contract import Model
from bdpvi.models.family import CONSTANT, LIMIT
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.noise import secure
from bdpvi.noise.keys import Key
from bdpvi.noise.secure import Lattice
from bdpvi.privacy.assumptions import sentences
from bdpvi.privacy.event import Event
from bdpvi.privacy.events import SampledGaussian, Threshold
from bdpvi.privacy.gaussian import largest_variance
from bdpvi.privacy.gaussian_dp import gaussian_epsilon
from bdpvi.releases.estimate import Output
from bdpvi.releases.row_counts import COUNT, FEWEST, MOST, magnitude, words_of_rows

if TYPE_CHECKING:  # settings need not load the releasing code
    from bdpvi.releases.route import Allowance

SPARE = 0.3
"""Share of δ for the gate beside its Gaussian mechanism: from .2 to .6 ε is the same to 2 %."""
SHARE = 0.25
"""The largest share of μ² for the coordinates."""
REFUSED = (
    "refused: the posterior is too flat in some direction for this ε, or the gate's coin fell so. "
    "The refusal tells something of the table, and ε was charged for it; ask "
    "ObjectivePerturbation() with what is left, or another table with fewer columns"
)
_COIN = 2.0**-50
_LIKELY, _SURE = 0.5, 0.95


@dataclass(frozen=True, kw_only=True)
class GatedPlan:
    """The settings of one release; public.

    Attributes:
        columns: d.
        draws, temperature: k and τ.
        noise: 1/μ of coordinates and gate together.
        share: share of μ² for the coordinates; 0 if they are public.
        spare: δ₀ of the gate.
        curvature: M of a table of this size, as planned; None if its size is not known.
        centre: the intercept's prior mean.
    """

    columns: int
    draws: int
    temperature: float
    noise: float
    share: float
    spare: float
    curvature: float | None
    centre: float

    @property
    def event(self) -> SampledGaussian:
        """The Gaussian part of the price."""
        return SampledGaussian(noise_multiplier=self.noise)

    @property
    def events(self) -> tuple[Event, ...]:
        """The coordinates, and the gate with the draws behind it."""
        gate = SampledGaussian(noise_multiplier=1 / self.distance, rounding=_COIN)
        if not self.share:
            return gate, Threshold(delta=self.spare)
        size = (self.columns + 1) * (self.columns + 2) // 2
        rounding = secure.sum_rounding(size)
        moments = SampledGaussian(noise_multiplier=self.multiplier, rounding=rounding)
        return moments, gate, Threshold(delta=self.spare)

    @property
    def multiplier(self) -> float:
        """The noise multiplier of the coordinates."""
        return self.noise / math.sqrt(self.share)

    @property
    def distance(self) -> float:
        """μ of the gate."""
        return math.sqrt(1 - self.share) / self.noise

    def with_noise(self, noise_multiplier: float) -> GatedPlan:
        """Return the settings with another noise multiplier."""
        return replace(self, noise=noise_multiplier)

    def gate(self, coordinates: Coordinates | None = None) -> Gate:
        """Return the chances, by default with all columns kept."""
        made = coordinates or _all(self.columns)
        return chances(made.shape(self.draws, self.temperature), self.distance, self.spare)

    @property
    def chance(self) -> float:
        """The chance of a release at the planned curvature; 1 if no size is known."""
        return 1.0 if self.curvature is None else self.gate().chance(self.curvature)


@dataclass(frozen=True, kw_only=True)
class PosteriorDraws:
    """Draws from the posterior itself with a worst case: :mod:`bdpvi.bayesian.gated.gate`.

    The posterior of weighted logistic regression, N(m, τH⁻¹) at its mode, costs any record little
    if the table curves it enough in every direction. How much it does is secret, so a gate releases
    the draws with a public chance, and otherwise refuses: a refusal is covered by ε and charged
    like the draws. Before, new coordinates are released with noise, in which no direction is much
    flatter than the others. ε is fixed beforehand, for every table, and includes all of it.

    The model computes features and predictions; its prior, clip and weights are not used. Features
    should be standardised; they are clipped at ±2. More draws, or a lower temperature, need a
    larger ε. A unit of several rows has no price.

    Args:
        rows: N as declared by the owner, within a factor of 3, from 10 to 1e12. By default N is
            estimated privately, for 1 % of μ².
        draws: k.
        temperature: τ. It is public: do not choose it by the records.
        whiten: public coordinates, A (k, d), in which features are about uncorrelated with unit
            variance, such as from an earlier table; by default they are released with noise.
        curvature: a public guess of M(d + 2.5)/N, by which a release that would probably be refused
            is not charged: 0.04 suits rare or well predicted classes, 0.1 balanced and noisy ones.
        counted: whether ``rows`` is a noisy count instead of declared.

    Raises:
        ValueError: if a number is out of range, or ``whiten`` has rows that depend on each other.
    """

    rows: float | None = None
    draws: int = 1
    temperature: float = 1.0
    whiten: Sequence[Sequence[float]] | Tensor | None = None
    curvature: float = 0.06
    counted: bool = False

    def __post_init__(self) -> None:
        if self.rows is not None:
            object.__setattr__(self, "rows", magnitude(self.rows))
        validate.positive_int("draws", self.draws)
        validate.positive("temperature", self.temperature)
        validate.positive("curvature", self.curvature)
        if self.whiten is not None:
            a = torch.as_tensor(self.whiten, dtype=torch.float64, device=HOST)
            regular = a.ndim == 2 and bool(a.isfinite().all())
            if not regular or not 0 < len(a) == int(torch.linalg.matrix_rank(a)):
                raise ValueError(
                    f"whiten must be finite, of shape (k, d), with independent rows, got shape "
                    f"{tuple(a.shape)}; None releases coordinates with noise"
                )
            object.__setattr__(self, "whiten", tuple(map(tuple, a.tolist())))

    def adapt(self, model: Model, data: Data, guide: object) -> PosteriorDraws:
        """Return the route.

        Raises:
            ValueError: unless the model is logistic regression with an intercept, with targets 0
                and 1.
        """
        if not isinstance(model, BayesianLogisticRegression) or not model.intercept:
            raise ValueError(
                "route=PosteriorDraws() is for BayesianLogisticRegression with an intercept, got "
                f"model={model!r:.80}; DPVI() takes any model"
            )
        if guide is not None:
            raise ValueError(
                f"guide={guide!r:.80}: route=PosteriorDraws() has its own Laplace approximation "
                "and takes no guide; leave it out"
            )
        model.check(sample_of_form(data))
        columns = len(data.feature_names)
        if not columns:
            raise ValueError("x has no columns: a prediction needs at least one")
        if self.whiten is not None and (given := len(self.whiten[0])) != columns:
            raise ValueError(f"whiten has {given} columns, and x has {columns}: it must be (k, d)")
        return self

    @property
    def count(self) -> float:
        """Share of μ² for a noisy number of records."""
        return COUNT if self.rows is None else 0.0

    def of_rows(self, rows: float) -> PosteriorDraws:
        """Return the route for a noisy count of the rows."""
        return replace(self, rows=min(max(rows, FEWEST), MOST), counted=True)

    def plan(self, model: Any, features: int, left: Allowance) -> GatedPlan:
        """Return the settings; see :class:`~bdpvi.releases.route.Route`.

        Raises:
            ValueError: if a unit has several rows, or a table of this size would probably be
                refused; if the size is a noisy count, it is a TooFewRecordsError.
        """
        if left.rows > 1:
            raise ValueError(
                f"rows_per_unit={left.rows}: draws of the posterior have no price for several "
                "rows of a unit; ObjectivePerturbation(), the default, has one (leave "
                "--draws-of-the-posterior out)"
            )
        spare = SPARE * left.delta
        variance = largest_variance(left.epsilon, left.delta - spare) - left.variance
        if not variance > 0:
            raise ArithmeticError
        made = self._settings(features, variance**-0.5, spare, model.intercept_mean)
        if made.chance < _LIKELY:
            paid = self.counted and made.gate().chance(math.inf) >= _LIKELY
            refusal = TooFewRecordsError if paid else ValueError
            raise refusal(self._unlikely(features, left, paid))
        return made

    def _settings(
        self, features: int, noise: float, spare: float, centre: float = 0.0
    ) -> GatedPlan:
        size, share = None, SHARE
        if self.rows is not None:
            size = self.curvature * self.rows / (features + 2.5)
            share = min(share, (noise * enough(features, self.rows)) ** 2)
        return GatedPlan(
            columns=features,
            draws=self.draws,
            temperature=self.temperature,
            noise=noise,
            share=share if self.whiten is None else 0.0,
            spare=spare,
            curvature=size,
            centre=centre,
        )

    def needed(
        self, columns: int, *, delta: float = 1e-5, chance: float = 0.95, variance: float = 0.0
    ) -> float:
        """Return the least ε at which a table is released with a chance, by public numbers.

        M is taken to be curvature · rows/(d + 2.5); a real table's may be half or twice that.

        Args:
            columns: d.
            delta: δ.
            chance: the chance.
            variance: μ² of what was spent before.

        Returns:
            ε, at most 2 % more than needed; +inf if none up to that of μ = 10 is enough.

        >>> round(PosteriorDraws(rows=1e4).needed(5), 1)
        0.6
        """

        def suffices(noise: float) -> bool:
            return self._settings(columns, noise, SPARE * delta).chance >= chance

        low = 0.1
        if not suffices(low):
            return math.inf
        while suffices(2 * low):  # gates with little noise take least time
            low *= 2
        high = 2 * low
        while high > 1.01 * low:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if suffices(middle) else (low, middle)
        return gaussian_epsilon(low**-2 + variance, delta * (1 - SPARE))

    def _unlikely(self, columns: int, left: Allowance, paid: bool) -> str:
        """Return why a table of this size is not charged, and the ε that would do."""
        needed = self.needed(columns, delta=left.delta, chance=_LIKELY, variance=left.variance)
        enough = "no ε" if math.isinf(needed) else f"a worst-case ε = {two_digits(needed)}"
        return (
            f"epsilon={left.epsilon:g}: a table of this size would be refused more often than "
            f"not, at the same price. At δ = {left.delta:g} {enough} would do; fewer draws, fewer "
            "columns, a higher temperature or more records need less, and ObjectivePerturbation() "
            f"takes any. {'Only the count of records' if paid else 'Nothing'} was charged for it"
        )

    def predicting(self, model: Any, plan: GatedPlan) -> BayesianLogisticRegression:
        """Return the model without weights, with the limit at which features were clipped."""
        plain: BayesianLogisticRegression = model.plain
        return replace(plain, limit=model.limit or LIMIT)

    def words(self, plan: GatedPlan) -> str:
        """Return what was decided before the release."""
        return sentences(
            words_of_rows(self.rows, self.counted),
            f"{several(plan.draws, 'draw')} of the posterior at temperature {plan.temperature:g}, "
            "released with a public chance that depends on the table's least curvature; the "
            "possible refusal is covered by ε",
        )

    def caution(self, plan: GatedPlan, delta: float) -> str:
        """Return a warning unless half the planned curvature would do; "" if it would."""
        flat, gate = self.curvature / 2, plan.gate()
        if plan.curvature is None:
            rows = gate.sure(_SURE) * (plan.columns + 2.5) / flat
            return (
                f"the draws are behind a gate: below about {two_digits(rows):,.0f} records with "
                f"{several(plan.columns, 'column')} the table may be refused, at the same price"
            )
        chance = gate.chance(plan.curvature / 2)
        if chance >= _SURE:
            return ""
        enough = replace(self, curvature=flat).needed(plan.columns, delta=delta)
        return (
            f"about {100 * (1 - plan.chance):.0f} of 100 tables of this size and curvature would "
            f"be refused, at the same price, and {100 * (1 - chance):.0f} of 100 of half of it, as "
            "where a class is rare or well predicted. For these ε would have to be about "
            f"{two_digits(enough)}; ObjectivePerturbation() refuses none"
        )

    def draw(self, model: Model, data: Data, plan: GatedPlan, key: Key) -> Output:
        """Return the weights, {"w": (draws, d + 1)}.

        Raises:
            TooFewRecordsError: if the gate refuses.
        """
        known = self.predicting(model, plan)
        records = data.parts.map(_features, known)
        coordinates = self._coordinates(records, plan, key)
        peak = _mode(records, coordinates, len(data), plan.centre)
        of_table = curvature(peak.root, norm(coordinates.columns), coordinates.longest)
        chance = plan.gate(coordinates).chance(of_table)
        if not key.child("gate").coins(1)[0] < chance:
            raise TooFewRecordsError(f"route=PosteriorDraws() {REFUSED}")
        assert self.rows is not None  # declared or counted
        largest = coordinates.ridge * (1 + self.rows / 16)
        step = math.sqrt(plan.temperature / largest) / 32
        posterior = MultivariateNormal(peak.point, peak.root @ peak.root.T)
        w = secure.sample(
            posterior,
            plan.draws,
            plan.temperature,
            lattice=Lattice.of(step),
            key=key.child("draws"),
        )
        w = coordinates.weights(w)
        return Output({"w": w.to(data.x) if isinstance(data, Dataset) else w})

    def _coordinates(
        self, records: Records[tuple[Tensor, Tensor]], plan: GatedPlan, key: Key
    ) -> Coordinates:
        if self.whiten is not None:
            matrix = torch.tensor(self.whiten, dtype=torch.float64, device=HOST)
            return Coordinates(matrix, matrix.new_zeros(plan.columns))
        return Coordinates.released(records, plan.columns, plan.multiplier, key.child("moments"))


def _features(part: tuple[Tensor, Tensor], model: BayesianLogisticRegression) -> tuple[Any, Tensor]:
    """Return features as the model sees them, without the intercept's column."""
    return model.design(part[0].double())[:, :-1], part[1]


def _all(columns: int) -> Coordinates:
    """Return the coordinates of all columns, whatever they are."""
    return Coordinates(torch.eye(columns).double(), torch.zeros(columns).double())


def _mode(
    records: Records[tuple[Tensor, Tensor]], coordinates: Coordinates, count: int, centre: float
) -> Peak:
    """Return the posterior's mode.

    Raises:
        FloatingPointError: if rounding keeps the search from it, which takes more records than any
            table has.
    """
    start = torch.zeros(coordinates.columns + 1, dtype=torch.float64)
    start[-1] = centre / CONSTANT
    rows: Records[Weighted] = records.map(_rows, coordinates)
    peak = search_mode(LogPosterior(rows, count, coordinates.ridge, start), start)[-1]
    if not peak.error <= EXACT:
        raise FloatingPointError(
            f"the mode is only known to {peak.error:.3g} standard deviations: nothing is released"
        )
    return peak


def _rows(part: tuple[Tensor, Tensor], coordinates: Coordinates) -> Weighted:
    return coordinates.rows(part)
