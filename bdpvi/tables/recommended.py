"""Settings for a release from a table without a search on it."""

from __future__ import annotations

import math

from bdpvi._ground import validate
from bdpvi.guides import GaussianGuide, MeanField
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.privacy.sampled_steps import GaussianAccountant, calibrate
from bdpvi.programs.dpvi import DPVI
from bdpvi.regression.noisy_scores import NoisyScores
from bdpvi.regression.objective import ObjectivePerturbation
from bdpvi.regression.objective_plan import magnitude
from bdpvi.tables.inference import Intervals
from bdpvi.tables.recipe import Recipe

NOISE = 0.1
"""Standard deviation of the noise in every weight, for standardised features."""
PRIOR_SCALE = 0.1
"""The prior's standard deviation, as long as the matching clip is at most 1."""
WEAK_PRIOR_SCALE = 5.0
"""The prior's standard deviation for intervals."""
ENOUGH = 300.0
"""μN above which the noise of a guide's release decreases with N."""
LIMIT = 2.0
"""Standardised features are clamped to ± this."""


def recommended(
    epsilon: float,
    *,
    delta: float = 1e-5,
    draws: int = 1,
    base_rate: float | None = None,
    expected_rows: float | None = None,
    guide: type[GaussianGuide] | None = None,
) -> Recipe:
    """Return settings for a release at worst-case ε, for ``recommended(1.0).fit(data)``.

    They reveal nothing about the table. The default is objective perturbation, whose estimate
    converges to the non-private fit as records are added (:mod:`bdpvi.regression.objective_plan`).
    Its noise and shrinkage follow from the whole ε at the time of a release. With a ``guide``,
    draws are from the guide: for a Bayesian guarantee in addition to the worst case, or to study
    the guide.

    With a guide, settings follow from ε, δ and the number of draws. One record moves the mean by
    at most clip · prior_scale²; the release needs this much noise times a factor from ε and δ. The
    settings keep the noise at 0.1 in every weight for every ε: with a prior of scale 0.1 and a
    smaller clip if ε is small, with a clip of 1 and a wider prior if it is large. With
    ``expected_rows`` they depend on N too: as μN grows, noise slowly decreases and the clip
    increases (:func:`settings_for`), so that the release converges to the non-private fit. Without
    it they do not, and the release does not converge to that fit.

    Args:
        epsilon: ε of all draws together.
        delta: δ of the guarantee.
        draws: number of released samples.
        base_rate: a public guess of the fraction of class 1, for tables where one class is rare:
            the intercept is shrunk to its logit instead of 0. Never take it from the table.
        expected_rows: N as declared by the owner, within a factor of 3. It is published, rounded to
            1, 2 or 5 times a power of ten. By default N is estimated privately with the release,
            and a guide's settings do not depend on N.
        guide: kind of guide, mean-field or full-rank, to draw from instead.

    Raises:
        ValueError: if ``epsilon`` is not positive, ``delta`` or ``base_rate`` is not a probability,
            ``draws`` is below 1 or ``expected_rows`` is not from 10 to 1e12.

    >>> print(recommended(1.0))
    objective perturbation: worst-case, and close to the non-private fit for large tables
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
    """Return settings for coefficients with intervals.

    The route is :class:`bdpvi.regression.NoisyScores` for few features and :class:`bdpvi.DPVI` for
    many, by public facts (:class:`bdpvi.tables.inference.Intervals`).

    Args:
        draws: number of posterior draws; any number has the same price.
        base_rate, expected_rows: as for :func:`recommended`.

    >>> str(for_intervals(expected_rows=1e4)).partition(":")[0]
    'noisy scores, or DPVI for many features'
    """
    mean = 0.0 if base_rate is None else _logit(base_rate)
    return Recipe(
        model=BayesianLogisticRegression.unweighted(
            intercept=True, intercept_mean=mean, prior_scale=WEAK_PRIOR_SCALE
        ),
        route=Intervals(
            scores=NoisyScores(rows=expected_rows, draws=draws),
            trained=DPVI(rows=expected_rows, draws=draws),
        ),
    )


def settings_for(
    distance: float,
    *,
    draws: int = 1,
    base_rate: float | None = None,
    expected_rows: float | None = None,
    guide: type[GaussianGuide] = MeanField,
) -> Recipe:
    """Return the settings of :func:`recommended` for a guide and draws of total distance μ.

    With a noise ν and a clip C the prior's variance is s² = νμ/C. If N is known, with
    r = μN/300 for one draw,

        C = r^⅓,    ν = 0.1 min(1, r^−¼),

    so that for large N noise and prior become negligible, as s²N grows like r^(5/12), and no record
    is clipped: the release is consistent. 300 and the powers were chosen on simulated
    tables of 5 and 20 columns.
    """
    each = distance / math.sqrt(draws)
    if expected_rows is None:
        noise = NOISE
        clip = min(1.0, _rounded(noise * each / PRIOR_SCALE**2))
    else:
        ratio = each * magnitude(expected_rows) / ENOUGH
        noise, clip = min(NOISE, _rounded(NOISE * ratio**-0.25)), _rounded(ratio ** (1 / 3))
    sensitivity = noise * each  # sensitivity of the mean: clip · prior_scale²
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
