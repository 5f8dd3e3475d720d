"""Settings for a release from a table that nothing was searched on."""

from __future__ import annotations

import math

from bdpvi._runtime import validate
from bdpvi.accounting.worst_case import GaussianAccountant, calibrate
from bdpvi.dp.objective_plan import magnitude
from bdpvi.guides import GaussianGuide, MeanField
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.recipes.noisy_scores import NoisyScores
from bdpvi.recipes.objective import ObjectivePerturbation
from bdpvi.recipes.recipe import Recipe

NOISE = 0.1
"""Standard deviation of the noise in every weight, for standardised features."""
PRIOR_SCALE = 0.1
"""The prior's standard deviation, as long as the clip that goes with it is at most 1."""
WEAK_PRIOR_SCALE = 5.0
"""That of a release for intervals."""
ENOUGH = 300.0
"""μN from which on the noise of a guide's release falls with N."""
LIMIT = 2.0
"""Standardised features are cut off at ± this."""


def recommended(
    epsilon: float,
    *,
    delta: float = 1e-5,
    draws: int = 1,
    base_rate: float | None = None,
    expected_rows: float | None = None,
    guide: type[GaussianGuide] | None = None,
) -> Recipe:
    """Return settings for a release at worst-case ε; ``recommended(1.0).fit(data)`` takes them.

    They tell nothing of the table. Objective perturbation is taken, whose estimate goes to the fit
    without privacy as records are added (:mod:`bdpvi.dp.objective_plan`); ``print`` says so. Its
    noise and shrinkage follow from the whole ε when something is released. With a ``guide``, draws
    come from that: for a Bayesian guarantee beside the worst case, for several rows of one person,
    or to see what the guide says.

    With a guide, settings follow from ε, δ and the number of draws alone. One
    record moves the mean by at most clip · prior_scale², and that much noise times a factor of ε
    and δ makes the release private. The settings keep this noise at 0.1 in every weight, whatever
    ε: with a prior of scale 0.1 and a smaller clip where ε is small, with a clip of 1 and a wider
    prior where it is large. With ``expected_rows`` they follow N too: noise falls and clip rises
    slowly as μN grows (:func:`settings_for`), so that the release goes to the fit without privacy.
    Without it they do not, and with many records the release stays away from that.

    Args:
        epsilon: ε of all draws together.
        delta: δ of the guarantee.
        draws: number of samples to be released.
        base_rate: a public guess of the fraction of class 1, for tables where one class is rare:
            the intercept is drawn to its logit, in place of 0. Never take it from the table.
        expected_rows: N as the owner declares it, within a factor of 3. It is published, rounded to
            1, 2 or 5 times a power of ten. Without it a noisy count is bought with the release; a
            guide's settings then do not follow N.
        guide: kind of a guide, mean-field or full-rank, to draw from instead.

    Raises:
        ValueError: if ``epsilon`` is not positive, ``delta`` or ``base_rate`` no probability,
            ``draws`` below 1 or ``expected_rows`` not from 10 to 1e12.

    >>> print(recommended(1.0))
    objective perturbation: worst-case, and nearer to the fit without privacy with every row
    >>> settings = recommended(1.0, guide=MeanField)
    >>> settings.model.clip, settings.model.prior_scale, settings.noise_scale
    (1.0, 0.16, 0.1)
    """
    validate.epsilon(epsilon)
    validate.probability("delta", delta)
    validate.positive_int("draws", draws)
    if guide is None:
        mean = 0.0 if base_rate is None else _logit(base_rate)
        return Recipe(
            model=BayesianLogisticRegression.unweighted(intercept=True, intercept_mean=mean),
            route=ObjectivePerturbation(rows=expected_rows, draws=draws),
        )
    multiplier = calibrate(
        GaussianAccountant(), epsilon=epsilon, delta=delta, rate=1.0, steps=draws
    )
    distance = math.sqrt(draws) / multiplier
    return settings_for(
        distance, draws=draws, base_rate=base_rate, expected_rows=expected_rows, guide=guide
    )


def for_intervals(
    *,
    draws: int = 1000,
    base_rate: float | None = None,
    expected_rows: float | None = None,
) -> Recipe:
    """Return settings for coefficients with intervals, by :class:`bdpvi.recipes.NoisyScores`.

    Args:
        draws: number of posterior draws; any number has the same price.
        base_rate, expected_rows: as for :func:`recommended`.

    >>> print(for_intervals(expected_rows=1e4))
    noisy scores: worst-case, with intervals that know of sampling and of the noise
    """
    mean = 0.0 if base_rate is None else _logit(base_rate)
    return Recipe(
        model=BayesianLogisticRegression.unweighted(
            intercept=True, intercept_mean=mean, prior_scale=WEAK_PRIOR_SCALE
        ),
        route=NoisyScores(rows=expected_rows, draws=draws),
    )


def settings_for(
    distance: float,
    *,
    draws: int = 1,
    base_rate: float | None = None,
    expected_rows: float | None = None,
    guide: type[GaussianGuide] = MeanField,
) -> Recipe:
    """Return the settings of :func:`recommended` for a guide and draws of distance μ together.

    With a noise ν and a clip C the prior's variance is s² = νμ/C. Where N is known, and
    r = μN/300 for one draw,

        C = r^⅓,    ν = 0.1 min(1, r^−¼),

    so that for large N noise and prior vanish beside the records, as s²N grows like r^(5/12), and
    no record is clipped any more: the release is consistent. 300 and the powers were chosen on
    simulated tables of 5 and 20 columns.
    """
    each = distance / math.sqrt(draws)
    if expected_rows is None:
        noise = NOISE
        clip = min(1.0, _rounded(noise * each / PRIOR_SCALE**2))
    else:
        ratio = each * magnitude(expected_rows) / ENOUGH
        noise, clip = min(NOISE, _rounded(NOISE * ratio**-0.25)), _rounded(ratio ** (1 / 3))
    sensitivity = noise * each  # of the mean: clip · prior_scale²
    model = BayesianLogisticRegression(
        clip=clip,
        prior_scale=_rounded(math.sqrt(sensitivity / clip)),
        limit=LIMIT,
        intercept=True,
        intercept_mean=0.0 if base_rate is None else _logit(base_rate),
    )
    return Recipe(model=model, guide=guide, noise_scale=noise, draws=draws)


def _logit(base_rate: float) -> float:
    rate = validate.probability("base_rate", base_rate)
    return math.log(rate) - math.log1p(-rate)


def _rounded(value: float) -> float:
    """Return the number to two digits."""
    return float(f"{value:.2g}")
