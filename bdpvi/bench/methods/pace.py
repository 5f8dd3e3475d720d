"""Default step size and clip of noisy training, from public facts.

T steps of N·η times the mean of N clipped scores cover a path length L = T·N·η along the gradient.
Their noise has standard deviation L·ν in every weight, unless the data pull it back. In d + 1
weights it moves a logit by L·ν·√(d + 1). So L falls where the noise is large, and training that
learns almost nothing stays near its start. Noise in the intercept moves a logit only by L·ν, so the
intercept goes further: with a rare class it determines most of the log score.

    C  = 0.6√(d + 1)                    ‖(x, 1)‖² is about d + 1
    ν  = Cσ/(qN√T)                      d columns, N rows, σ noise multiplier, q sampling rate
    L  = 1/(1/30 + ν²(d + 1)/0.2)       for the features' weights
    L₀ = 1/(1/30 + 3ν²/0.2)             for the intercept

The numbers 0.6, 30, 0.2 and 3 were chosen on simulated tables (``benchmarks/baselines.py``). N is
rounded to 1, 2 or 5 times a power of ten, as an owner would declare it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from bdpvi.datasets.dataset import Dataset
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.releases.row_counts import FEWEST, magnitude

SCALE = 0.6
FURTHEST = 30.0
HARM = 0.2
OF_INTERCEPT = 3.0
LIMIT = 2.0
"""Features are clipped at ± this, as in objective perturbation."""


def clip_of(weights: int) -> float:
    """Return C for d + 1 weights.

    >>> clip_of(25)
    3.0
    """
    return SCALE * math.sqrt(weights)


def weights_of(model: BayesianLogisticRegression, train: Dataset) -> int:
    """Return d + 1, the number of a model's weights."""
    return int(model.design(train.x[:1]).shape[1])


def pace(
    weights: int,
    rows: int,
    *,
    noise_multiplier: float,
    steps: int,
    rate: float,
    clip: float | None = None,
) -> dict[str, float]:
    """Return clip, step size Nη and what multiplies it for the intercept, for a noise level.

    Args:
        weights: d + 1.
        rows: N; the step over N is that of the rounded N.
        noise_multiplier: σ.
        steps: T.
        rate: q.
        clip: C; None means the rule's C.

    >>> facts = {"steps": 20, "rate": 1.0}
    >>> slow, quick = (pace(21, 1000, noise_multiplier=z, **facts) for z in (259, 17))
    >>> round(slow["step_size"], 3), round(slow["last"], 1), round(quick["step_size"], 3)
    (0.019, 6.5, 1.116)
    """
    clip, declared = clip or clip_of(weights), magnitude(max(FEWEST, rows))
    variance = (clip * noise_multiplier / (rate * declared)) ** 2 / steps
    way, of_intercept = (
        1 / (1 / FURTHEST + variance * count / HARM) for count in (weights, OF_INTERCEPT)
    )
    size = way / steps / declared * rows
    return {"clip": clip, "step_size": size, "last": max(1.0, of_intercept / way)}


def steps_for(
    model: BayesianLogisticRegression,
    train: Dataset,
    *,
    steps: int,
    rate: float,
    clip: float | None,
    step_size: float | None = None,
) -> Callable[[float], dict[str, float]]:
    """Return :func:`pace` as a function of the noise multiplier.

    Args:
        model: what is fitted.
        train: N records.
        steps, rate, clip: as for :func:`pace`.
        step_size: Nη; None means the rule's.
    """
    weights = weights_of(model, train)

    def choose(noise_multiplier: float) -> dict[str, float]:
        if step_size is not None:
            return {"clip": clip or clip_of(weights), "step_size": step_size, "last": 1.0}
        return pace(
            weights, len(train), noise_multiplier=noise_multiplier, steps=steps, rate=rate,
            clip=clip,
        )  # fmt: skip

    return choose
