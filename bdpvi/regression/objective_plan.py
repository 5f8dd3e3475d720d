"""Settings of objective perturbation that follow from public facts about a table.

With a clip C, a residual clip k and a ridge λ that do not grow with the table, the minimum is
consistent: at the truth weighted scores have mean 0, unlike clipped scores. Where the noise is
large relative to the table, λ grows and k shrinks with it.

    z = (x, 2)                                    so a quarter of the ridge holds the intercept
    C = ¾√(m + 4)                                 m units of variance: ‖z‖² is about m + 4
    ω = min(1, C/‖z‖, 3C²/2‖z‖²)                  so ω‖z‖ ≤ C and ω‖z‖² ≤ 3C²/2
    k = 0.02 μN/√((m + 4)(d + 1)), in [½, 1]      d columns, N rows, μ the remaining distance
    λ = max(3C²/2ε, 4(d + 1)(kC/μ)²/N, rN)        the floor of privacy; shrinkage; rounding
    σ by the accountant; for d + 1 never more than 16(m + 4).
    κ = max(4σ − λ, 0)                            for blanks and unlisted levels

Few records or none may have a blank or a level that is not listed, and the weight of a feature that
none has is noise of deviation σ/λ. So each such weight is held near the mean of the weights of its
column's listed levels, or near 0 for a number, by a further term κ/2 times the square of the
difference. It adds to the second derivative, of which the proof needs λ, and depends on no record:
ε is the same.

A standardised number counts 1 in m. Of a category with L listed levels 1/L is taken from each
level's feature, which the intercept makes up for after the release; what is left is 1 − 1/L long,
squared, in every record. So yes/no columns, of two features, need noise for half a column each.

Records that count less than once (:class:`bdpvi.Dataset`) have smaller ω. N stays their number:
settings for the sum of counts have the same loss within 0.01 nats, but where noise drowns the
records (``benchmarks/row_weights.py --settings``).

The numbers ¾, 3/2, 0.02 and 4 (:class:`Rule`) were chosen on simulated tables, all but 0.02 also on
Abalone, MAGIC and Spambase; 16 on simulated categories. The intercept's column (:data:`CONSTANT`)
was chosen on simulated tables with one eighth of rows in one class, where a ridge that holds the
intercept near 0 costs most. Where several draws or other mechanisms share ε and δ, λ rises until
it needs at most 3 % more noise (5 % for k < 1) than an infinite ridge, or than one draw alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from bdpvi._ground import validate
from bdpvi.noise.secure import sum_rounding, sum_slack
from bdpvi.privacy.dominating import within
from bdpvi.privacy.gaussian import largest_variance
from bdpvi.privacy.groups import changes, one_of
from bdpvi.privacy.perturbed_objective import PerturbedObjective, calibrate
from bdpvi.privacy.perturbed_objective import delta as delta_of
from bdpvi.privacy.rounding import rounding_delta
from bdpvi.privacy.solve import smallest
from bdpvi.releases.row_counts import magnitude

CONSTANT = 2.0
"""The value of the intercept's column: a power of two, so that rescaling weights is exact."""
HIDING = 0.01
"""ν over C/σ: hiding the search's error takes half of this squared in additional noise."""
LAST = 2.0**-10
"""Standard deviation of the noise that hides it, in weights of standardised features."""
EACH = 16
"""Largest number of weights counted for each unit of ‖z‖²: a hashed category uses few of its 64
columns, and noise in the others changes no logit."""
FAINT = 0.25
"""Deviation of the noise, in logits, by which a feature that no record has may move a prediction,
if it is a blank or an unlisted level."""
MANY = 1e5
"""Rows from which features are clipped at ±4, not ±2: clipping at 2 then costs more than noise."""
MOST_RIDGE = 0.25
"""λ/N above which the ridge outweighs the records: their curvature in a feature is at most N/4."""
_OF_PERSONS = 12.0
"""A larger ε of several rows has the settings of this one: rounding would use up their δ."""
_PRICES = (0.03, 0.05)
_SPARE = 2.0
"""λ over the least that hides the rounding: noise may be larger than the distance says."""
Seldom = tuple[tuple[int, tuple[int, ...]], ...]
Levels = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The numbers of the rule; see the module.

    Attributes:
        scale: C over √(m + 4).
        bend: the bound on ω‖z‖², over C²; at least 1.
        residual: k over μN/√((m + 4)(d + 1)).
        shrinkage: λ over (d + 1)(kC/μ)²/N.
    """

    scale: float = 0.75
    bend: float = 1.5
    residual: float = 0.02
    shrinkage: float = 4.0

    def __post_init__(self) -> None:
        for name in ("scale", "residual"):
            validate.positive(name, getattr(self, name))
        validate.non_negative("shrinkage", self.shrinkage)
        if not validate.positive("bend", self.bend) >= 1:
            raise ValueError(f"bend must be at least 1, got {self.bend!r}")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Public facts about a table.

    Attributes:
        columns: d, number of features; an intercept adds one weight.
        rows: N, declared or privately estimated, from 10 to 1e12; rounded to 1, 2 or 5 times a
            power of ten. None if unknown: the settings are then for many rows, and on small tables
            the model is worse than the base rate.
        sources: m, in columns of the raw table, where d features encode fewer; d by default.
        centre: a guess of the intercept, to which the ridge shrinks it: the logit of a base rate.
        intercept: whether the model has an intercept.
        together: the most rows of one person, for whom ε is.

    Raises:
        ValueError: if an argument is out of range.

    >>> Facts(columns=5, rows=39_073).rows
    50000.0
    """

    columns: int
    rows: float | None = None
    sources: float | None = None
    centre: float = 0.0
    intercept: bool = True
    together: int = 1

    def __post_init__(self) -> None:
        validate.positive_int("columns", self.columns)
        validate.positive_int("together", self.together)
        if self.sources is not None:
            validate.positive("sources", self.sources)
        if not math.isfinite(self.centre):
            raise ValueError(f"centre must be finite, got {self.centre!r}")
        if self.centre and not self.intercept:
            raise ValueError(f"centre={self.centre!r} needs intercept=True")
        if self.rows is not None:
            object.__setattr__(self, "rows", magnitude(self.rows))

    @property
    def squared(self) -> float:
        """Approximate ‖z‖²: m, plus 4 for the intercept's column."""
        of_features = self.columns if self.sources is None else self.sources
        return of_features + self.intercept * CONSTANT**2

    @property
    def weights(self) -> int:
        """d, plus 1 with an intercept."""
        return self.columns + self.intercept


@dataclass(frozen=True, kw_only=True)
class ObjectivePlan:
    """Public settings of objective perturbation.

    Attributes:
        facts: about the table.
        clip: C, the bound on ω‖z‖.
        ridge: λ.
        event: the noise, k and the number of draws, as charged.
        residual: k as drawn, where the charge covers every possible k and λ; see :func:`plan`.
        bend: the bound on ω‖z‖², over C².
        limit: features are clipped at ± this.
        class_weights: factors of the weights of records of class 0 and 1, at most 1, public.
        seldom: the features that few records may have, each with the listed levels of its column.
        levels: the features of each category's listed levels, from which their mean is taken.
    """

    facts: Facts
    clip: float
    ridge: float
    event: PerturbedObjective
    residual: float | None = None
    bend: float = 1.5
    limit: float = 2.0
    class_weights: tuple[float, float] = (1.0, 1.0)
    seldom: Seldom = ()
    levels: Levels = ()

    @property
    def events(self) -> tuple[PerturbedObjective]:
        """The events to charge."""
        return (self.event,)

    @cached_property
    def actual_event(self) -> PerturbedObjective:
        """The noise, k and the number of draws, as drawn."""
        if self.residual is None:
            return self.event
        curvature = min(self.bend * self.clip**2 / self.ridge, self.event.curvature)
        return within(self.event, curvature, self.residual)

    @property
    def sigma(self) -> float:
        """Standard deviation of the slope."""
        return self.clip * self.actual_event.noise_multiplier

    @property
    def extra_ridge(self) -> float:
        """κ."""
        return max(self.sigma / FAINT - self.ridge, 0.0)

    @property
    def tolerance(self) -> float:
        """τ: the largest final gradient of a search that the charged ``hiding`` covers."""
        return (
            self.ridge * (self.actual_event.hiding * LAST - sum_slack(LAST, self.facts.weights)) / 2
        )

    def with_noise(self, noise_multiplier: float) -> ObjectivePlan:
        """Return the settings with another σ/C, and the hiding that matches it."""
        hiding = HIDING / noise_multiplier
        event = replace(self.event, noise_multiplier=noise_multiplier, hiding=hiding)
        return replace(self, event=event)


@lru_cache(maxsize=256)
def plan(
    facts: Facts,
    *,
    epsilon: float,
    delta: float = 1e-5,
    draws: int = 1,
    variance: float = 0.0,
    rule: Rule | None = None,
) -> ObjectivePlan:
    """Return the settings for a table.

    With ``variance``, columns and rows may come from an earlier release, and so may λ and k. The
    charge is then that of infinitely many rows, which depends on no fact about the table; λ is at
    least the λ of that charge, and the noise keeps δ(ε) within it at every ε: 0 to 2.4 % more
    noise for one draw, up to 3.7 % for several (:mod:`bdpvi.privacy.dominating`).

    For several rows of a person the settings are those of one row, at the ε and δ that group
    privacy gives it (:func:`bdpvi.privacy.groups.one_of`).

    Args:
        facts: public facts about it.
        epsilon, delta: of all draws and the mechanisms of ``variance`` together.
        draws: number of minima.
        variance: μ² of Gaussian mechanisms that share ε and δ, such as private preprocessing.
        rule: numbers in place of the default ones.

    Raises:
        ValueError: if an argument is out of range, ``variance`` uses up all of ε, or rounding
            all of δ.

    >>> one = plan(Facts(columns=20, rows=9_000), epsilon=1.0)
    >>> round(one.clip, 2), one.event.residual, round(one.ridge, 1), round(one.sigma, 1)
    (3.67, 1.0, 20.2, 13.7)
    """
    rule = rule or Rule()
    validate.epsilon(epsilon)
    validate.probability("delta", delta)
    whole = largest_variance(epsilon, delta)
    if not validate.non_negative("variance", variance) < whole:
        raise ValueError(
            f"variance={variance!r} uses up epsilon={epsilon!r}: it must be below {whole:.3g}"
        )
    rounding, each, several = draws * sum_rounding(2 * facts.weights), epsilon, 1.0
    if facts.together > 1:
        each = min(epsilon, _OF_PERSONS) / facts.together
        several = changes(each, facts.together)
    if not (least := rounding_delta(rounding, each) * several) < delta:
        raise ValueError(f"delta={delta!r} is too small: rounding alone costs {least:.2g}")
    if facts.together > 1:
        epsilon, delta = one_of(min(epsilon, _OF_PERSONS), delta, facts.together)
        made = plan(
            replace(facts, together=1),
            epsilon=epsilon,
            delta=delta,
            draws=draws,
            variance=variance / whole * largest_variance(epsilon, delta),  # the same share of it
            rule=rule,
        )
        return replace(made, facts=facts)
    distance = math.sqrt((whole - variance) / validate.positive_int("draws", draws))
    clip, k, ridge = _numbers(facts, rule, epsilon, distance)
    limit = 4.0 if (facts.rows or 0.0) >= MANY else 2.0
    if variance and facts.rows is not None:
        made = plan(
            replace(facts, rows=None),
            epsilon=epsilon, delta=delta, draws=draws, variance=variance, rule=rule,
        )  # fmt: skip
        return replace(made, facts=facts, ridge=max(ridge, made.ridge), residual=k, limit=limit)
    event = PerturbedObjective(
        noise_multiplier=k / distance,
        curvature=rule.bend * clip**2 / ridge,
        residual=k,
        draws=draws,
        hiding=HIDING * distance / k,
        rounding=rounding,
    )
    settings = ObjectivePlan(
        facts=facts, clip=clip, ridge=ridge, event=event, bend=rule.bend, limit=limit
    )
    settings = _cheapened(settings, epsilon, delta, variance)
    rest = delta - rounding_delta(event.rounding, epsilon)
    event = calibrate(settings.event, epsilon=epsilon, delta=rest, variance=variance)
    return replace(settings, event=event)


def _numbers(
    facts: Facts, rule: Rule, epsilon: float, distance: float
) -> tuple[float, float, float]:
    """Return C, k and λ of the rule."""
    n, weights = facts.rows or math.inf, min(facts.weights, EACH * facts.squared)
    clip = rule.scale * math.sqrt(facts.squared)
    k = min(1.0, max(0.5, rule.residual * distance * n / math.sqrt(facts.squared * weights)))
    floor = rule.bend * clip**2 / epsilon
    shrinkage = rule.shrinkage * weights * (k * clip / distance) ** 2 / n
    return clip, k, max(floor, shrinkage, _rounded(facts, clip, distance / k))


def _rounded(facts: Facts, clip: float, distance: float) -> float:
    """Return the λ at which a search hides the rounding of sums over N rows, 0 for unknown N.

    The rounding grows as N, and what is hidden as λ. Without this a search over more than about
    3e7 rows of 20 columns ends in a refusal. It is the bound of
    :mod:`bdpvi.regression.perturbed_objective`, for 50 additions, ‖z‖ twice the usual and ‖w‖ = 10,
    against a quarter of λ times the noise; it outweighs the rule from about 5e6 rows.
    """
    sums = 256 + 50 + 8 + (facts.weights + 1) * 2 * math.sqrt(facts.squared) * 10 / 4
    error = 2.0**-53 * sums * clip * (facts.rows or 0.0)
    return _SPARE * error / (HIDING * distance * LAST / 4)


def useful(facts: Facts, *, delta: float = 1e-5, rule: Rule | None = None) -> float:
    """Return the ε of one draw at which the ridge weighs as much as the records; 0 if N is unknown.

    >>> round(useful(Facts(columns=20, rows=1000)), 2)
    0.1
    """
    if facts.rows is None:
        return 0.0

    def ridge(epsilon: float) -> float:
        epsilon, rest = one_of(epsilon, delta, facts.together)
        distance = math.sqrt(largest_variance(epsilon, rest))
        return _numbers(facts, rule or Rule(), epsilon, distance)[2]

    return smallest(ridge, MOST_RIDGE * facts.rows, 1.0, slack=0.01, most=500.0)


def _cheapened(
    settings: ObjectivePlan, epsilon: float, delta: float, variance: float
) -> ObjectivePlan:
    """Return the settings with the smallest ridge, at least their own, that needs little noise.

    Three things need noise: the Gaussian losses that remain with an infinite ridge, never below 0,
    which make many draws expensive; the clipped residual's part in a single draw; and the ridge's
    part where draws or mechanisms are combined. The last must be small.
    """
    event = settings.event
    k, free = event.residual, replace(event, curvature=0.0, residual=1.0)
    if event.draws == 1 and variance == 0:
        return settings
    endless = calibrate(free, epsilon=epsilon, delta=delta, variance=variance)
    alone = calibrate(replace(event, draws=1), epsilon=epsilon, delta=delta)
    of_clip = alone.noise_multiplier * math.sqrt(largest_variance(epsilon, delta))
    noise = (1 + _PRICES[k < 1]) * of_clip * endless.noise_multiplier

    event = settings.with_noise(noise).event

    def with_ridge(factor: float) -> ObjectivePlan:
        at = replace(event, curvature=event.curvature / factor)
        return replace(settings, ridge=factor * settings.ridge, event=at)

    def fits(factor: float) -> bool:
        return bool(delta_of([with_ridge(factor).event], epsilon, variance) <= delta)

    if fits(1.0):
        return with_ridge(1.0)
    high = 2.0
    while not fits(high):
        high *= 2
    low = high / 2
    while high > 1.02 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return with_ridge(high)
