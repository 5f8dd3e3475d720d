"""Whether the intervals of a trained guide are reliable, and what they assume, in words."""

from __future__ import annotations

from collections.abc import Sequence

from bdpvi.models.mixed import effects_of
from bdpvi.releases.content import Published
from bdpvi.releases.estimate import SHARE
from bdpvi.releases.summary import Coefficient

_TRAINED = (
    "the guide accounts for the records, privacy noise and batch sampling; its intervals assume "
    "that the model is correct and that the posterior has the guide's shape: a guide of "
    "independent normals gives intervals that are too narrow for correlated latents, such as an "
    "intercept and group effects"
)
_FAINT = (
    ". Intervals of coefficients dominated by privacy noise are as wide as their prior, because "
    "the records could not be seen behind the noise"
)
_UNTRAINED = (
    ". Training has not reached the posterior: gradients of its last half point away from the "
    "mean. Fit again with more steps"
)
_AMORTISED = (
    ". The guide approximates latents of single records, so estimates may be far off and intervals "
    "far too narrow. Integrate them out of the likelihood, as bdpvi.models.grouped does"
)
_UNTRIED = (
    ". How often intervals hold the truth was measured for this library's regressions alone: to "
    "see it for this model, fit tables that were simulated from it"
)
_GROUPS = (
    "intervals account for sampling and for privacy noise. They assume that the model is correct, "
    "with normal effects of groups; what is little known of an effect is drawn to 0"
)


def reliability(
    release: Published, rows: Sequence[Coefficient], of_features: bool
) -> tuple[bool | None, str]:
    """Return whether the intervals of a guide are reliable, if known, and what they assume.

    Args:
        release: a release with a guide.
        rows: its summary.
        of_features: whether the weights belong to the features, in order.
    """
    guide = release.guide
    assert guide is not None
    shown = [row for row in rows if row.used]
    effects = {release.feature_names[at] for at in effects_of(release.model)}
    fixed = [row.measured for row in shown if row.name not in effects]
    reason = _GROUPS if "log_spread" in guide.sites else _TRAINED
    reason += _FAINT * (not all(row.measured for row in shown))
    reason += _UNTRAINED * (not guide.settled) + _AMORTISED * guide.amortised
    reliable = sum(fixed) >= SHARE * len(fixed) and guide.settled and not guide.amortised
    if reliable and (guide.shape or not of_features):
        return None, reason + _UNTRIED
    return reliable, reason
