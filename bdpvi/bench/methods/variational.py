"""Differentially private variational inference of a mean-field guide: DPVI.

Source: Jälkö, Dikmen and Honkela, "Differentially Private Variational Inference for Non-conjugate
Models", UAI 2017. The guarantee is worst-case differential privacy for the whole training
trajectory; draws from the trained guide are post-processing and cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyro
import torch
from pyro.optim import PyroOptim
from torch import Tensor
from torch.nn.functional import softplus

from bdpvi._ground import validate
from bdpvi._ground.host import as_gradient, on_host
from bdpvi.bayesian.inference.optimisers import check_elementwise, decay, fresh, fused
from bdpvi.bayesian.inference.svi import default_optimiser, isolated
from bdpvi.bench.methods.method import Outcome
from bdpvi.bench.methods.runs import Run, Streams
from bdpvi.bench.methods.scores import Clip, RecordScores
from bdpvi.datasets.dataset import Dataset
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.privacy.cost import Cost
from bdpvi.privacy.sampled_steps import PrivacyLossAccountant, WorstCaseAccountant

START = 0.1
"""The scale of every weight before the first step."""


@dataclass(frozen=True, kw_only=True)
class DPVISettings:
    """Settings of DPVI.

    Args:
        steps: optimiser steps.
        rate: Poisson sampling rate q of the batches.
        clip: C, bound on the norm of each record's gradient of the likelihood term in all of the
            guide's unconstrained parameters together. None does not clip: this is variational
            inference without privacy, and no noise may be added.
        optim: a Pyro optimiser, by default Adam with a decaying learning rate.
        draws: number k of released samples, independent draws from the guide; None releases its
            mean.
        last: multiplies the optimiser's step for the last weight's parameters, as in
            :class:`~bdpvi.bench.methods.ascent.AscentSettings`.
    """

    steps: int = 1000
    rate: float = 0.05
    clip: float | None = 1.0
    optim: PyroOptim | None = None
    draws: int | None = 100
    last: float = 1.0

    def __post_init__(self) -> None:
        validate.positive("last", self.last)
        validate.positive_int("steps", self.steps)
        validate.rate("rate", self.rate)
        if self.clip is not None:
            validate.positive("clip", self.clip)
        if self.draws is not None:
            validate.positive_int("draws", self.draws)


@dataclass(frozen=True, eq=False)
class Gaussians:
    """The mean-field guides of R runs: N(loc, softplus(raw)²) for each weight.

    Attributes:
        loc, raw: the unconstrained parameters, (R, d).
    """

    loc: Tensor
    raw: Tensor

    @property
    def scale(self) -> Tensor:
        """Return the standard deviations, (R, d)."""
        return softplus(self.raw)

    def draw(self, noise: Tensor) -> Tensor:
        """Return the weights that follow from base noise."""
        return torch.addcmul(self.loc, self.scale, noise)


@on_host
def dpvi_runs(
    model: BayesianLogisticRegression,
    data: Dataset,
    *,
    runs: Sequence[Run],
    settings: DPVISettings | None = None,
    delta: float = 1e-5,
    accountant: WorstCaseAccountant | None = None,
) -> tuple[Outcome, ...]:
    """Train a guide with differential privacy and release samples from it.

    Args:
        model: makes the features, and has the prior.
        data: N records, on the device and of the dtype to train with.
        runs: one or more, trained side by side; each gets the result that it would get alone.
            :func:`bdpvi.privacy.sampled_steps.calibrate` finds the noise multiplier for an ε.
        settings: how to train.
        delta: δ of the privacy cost.
        accountant: computes the cost; by default with privacy loss distributions.

    Returns:
        For each run samples of the weights, (k, d), and their worst-case cost.

    Raises:
        ValueError: if an argument is out of range.
        FloatingPointError: if the parameters stop being finite.

    >>> from bdpvi import datasets
    >>> model = BayesianLogisticRegression.unweighted()
    >>> data = datasets.load_breast_cancer().train
    >>> settings = DPVISettings(steps=20, rate=0.1, draws=3)
    >>> (outcome,) = dpvi_runs(model, data, runs=[Run(noise_multiplier=2.0)], settings=settings)
    >>> cost = outcome.cost.worst_case
    >>> outcome.latents["w"].shape, cost.by, round(cost.epsilon, 2)
    (torch.Size([3, 30]), 'privacy loss distribution', 1.08)
    """
    settings = settings or DPVISettings()
    streams = Streams(runs, data, steps=settings.steps, rate=settings.rate)
    guides = train(model, data, streams, settings)
    found = []
    for r, price in enumerate(streams.prices(accountant or PrivacyLossAccountant(), delta)):
        own = Gaussians(guides.loc[r], guides.raw[r])
        noise = own.loc.new_zeros(1, len(own.loc))
        if settings.draws is not None:
            noise = streams.of_run[r].draws(settings.draws, len(own.loc)).to(noise)
        found.append(Outcome({"w": own.draw(noise)}, Cost.of(price)))
    return tuple(found)


@on_host
def train(
    model: BayesianLogisticRegression, data: Dataset, streams: Streams, settings: DPVISettings
) -> Gaussians:
    """Return the guides of all runs. They are private too."""
    model.check(data)
    if settings.clip is None and bool((streams.noise_multiplier > 0).any()):
        raise ValueError("clip=None does not bound gradients, so noise would give no guarantee")
    optim = fused(fresh(settings.optim or default_optimiser(settings.steps)))
    if len(streams) > 1:
        check_elementwise(optim)
    with isolated(data.x), pyro.validation_enabled(False):
        records = RecordScores(model, data)
        loc = data.x.new_zeros(len(streams), records.dim)
        raw = torch.full_like(loc, START).expm1().log()
        guides = Gaussians(loc, raw)
        parameters = (loc, raw)
        for step in range(settings.steps):
            gradients = noisy_gradients(records, guides, streams, settings, step)
            before = [value[:, -1].clone() for value in parameters]
            for value, gradient in zip(parameters, gradients, strict=True):
                value.grad = as_gradient(gradient, value)
            optim(parameters)
            if settings.last != 1:
                for value, old in zip(parameters, before, strict=True):
                    value[:, -1] = old.lerp(value[:, -1], settings.last)
            decay(optim)
    if not bool((loc.isfinite() & raw.isfinite()).all()):
        raise FloatingPointError("optim: a parameter is not finite; use a lower learning rate")
    return guides


def noisy_gradients(
    records: RecordScores, guides: Gaussians, streams: Streams, settings: DPVISettings, step: int
) -> tuple[Tensor, ...]:
    """Return gradients of the negative ELBO in loc and raw, with every record's part bounded.

    A draw is w = loc + softplus(raw) · noise, so a score g of w has the gradient g in loc and
    noise · softplus′ · g in raw; no record's gradient is ever stored.

    The likelihood term is the sum over the batch divided by q. The actual batch size would leak
    who is in the batch; the expected size qN would leak N. Neither is used, so the guarantee
    assumes nothing about N.
    """
    noise, slope = streams.base(step, records.dim), torch.sigmoid(guides.raw)
    w, moved = guides.draw(noise), noise * slope
    squares = (1 + moved.square()).unsqueeze(1)

    def norm(score: Tensor) -> Tensor:
        return (squares @ score.square().mT).squeeze(1).sqrt()

    clip = None if settings.clip is None else Clip(settings.clip, norm)
    score = records.likelihood(w, streams.batch(step), clip)
    loss = -records.prior(w) - score / settings.rate
    both = torch.cat([loss, moved * loss - slope / guides.scale], dim=1)
    if settings.clip is not None:
        # The prior and entropy gradients are public given earlier steps: they only shift the sum
        # of clipped gradients, and add nothing to its sensitivity.
        both = streams.noisy(both, settings.clip / settings.rate)
    return both.chunk(2, dim=1)
