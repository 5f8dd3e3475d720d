"""Differentially private full-batch gradient descent, a strong baseline.

Every step uses every record, so the privacy of all steps together is that of one Gaussian release
and is known exactly. The result is one point, near the maximum of the posterior.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyro
import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi._ground.host import on_host
from bdpvi.bayesian.inference.svi import isolated
from bdpvi.bench.methods.outcome import Outcome
from bdpvi.bench.methods.runs import Run, Streams
from bdpvi.bench.methods.scores import Clip, euclidean, scores
from bdpvi.datasets.dataset import Dataset
from bdpvi.models.contract import Model
from bdpvi.privacy.cost import Cost
from bdpvi.privacy.sampled_steps import GaussianAccountant


@dataclass(frozen=True, kw_only=True)
class DPGDSettings:
    """Settings of private gradient descent.

    Args:
        steps: number of steps.
        clip: C, bound on the norm of each record's score.
        step_size: Nη. A step moves by η times the sum of the records' clipped scores; N is the
            number of records. The guarantee takes η as a public constant that one record does not
            change. N is not public where neighbours differ by a record: unless N is known anyway,
            choose η beforehand and pass η times N.
        tail: fraction of the iterates, the last ones, to average; 0 returns the last iterate.
        last: multiplies ``step_size`` for the last latent. Noise in a weight harms in proportion to
            its squared feature, so noise in d weights harms d times as much as noise in an
            intercept, which may therefore take longer steps.
    """

    steps: int = 100
    clip: float = 1.0
    step_size: float = 1.0
    tail: float = 0.5
    last: float = 1.0

    def __post_init__(self) -> None:
        validate.positive("last", self.last)
        validate.positive_int("steps", self.steps)
        validate.positive("clip", self.clip)
        validate.positive("step_size", self.step_size)
        if not 0 <= self.tail <= 1:
            raise ValueError(f"tail must lie in [0, 1], got {self.tail!r}")


@on_host
def dp_gd_runs(
    model: Model,
    data: Dataset,
    *,
    runs: Sequence[Run],
    settings: DPGDSettings | None = None,
    delta: float = 1e-5,
) -> tuple[Outcome, ...]:
    """Return private maxima of the posterior density, and their exact privacy costs.

    Args:
        model: a Pyro model of records, see :mod:`bdpvi.models.contract`.
        data: N records, on the device and of the dtype to train with.
        runs: one or more, trained side by side; each gets the result that it would get alone.
            :func:`bdpvi.privacy.sampled_steps.calibrate` with a
            :class:`~bdpvi.privacy.sampled_steps.GaussianAccountant` finds the noise multiplier for
            an ε.
        settings: how to train.
        delta: δ of the privacy cost.

    Returns:
        For each run the maximum as the model's latent variables, each (1, ...), and its cost.

    Raises:
        ValueError: if an argument is out of range.
        FloatingPointError: if the iterates stop being finite.

    >>> from bdpvi import BayesianLogisticRegression, datasets
    >>> data = datasets.load_breast_cancer().train
    >>> runs = [Run(noise_multiplier=50.0)]
    >>> (outcome,) = dp_gd_runs(BayesianLogisticRegression.unweighted(), data, runs=runs)
    >>> outcome.latents["w"].shape, round(outcome.cost.worst_case.epsilon, 4)
    (torch.Size([1, 30]), 0.7255)
    """
    settings = settings or DPGDSettings()
    streams = Streams(runs, data, steps=settings.steps, rate=1.0)
    with isolated(data.x), pyro.validation_enabled(False), torch.no_grad():
        records = scores(model, data)
        clip = Clip(settings.clip, euclidean)
        w = data.x.new_zeros(len(runs), records.dim)
        step_size = torch.full_like(w[0], settings.step_size / len(data))
        step_size[-1] *= settings.last
        total, averaged = torch.zeros_like(w), max(1, round(settings.tail * settings.steps))
        for step in range(settings.steps):
            score = streams.noisy(records.likelihood(w, None, clip), settings.clip)
            w = w + step_size * (records.prior(w) + score)
            if step >= settings.steps - averaged:
                total += w
        latents = torch.vmap(records.unpack)(_finite(total / averaged))
    prices = streams.prices(GaussianAccountant(), delta)
    return tuple(
        Outcome({name: value[r : r + 1] for name, value in latents.items()}, Cost.of(price))
        for r, price in enumerate(prices)
    )


def _finite(w: Tensor) -> Tensor:
    if not bool(w.isfinite().all()):
        raise FloatingPointError("step_size: the iterates are not finite; use a smaller one")
    return w
