"""Differentially private variational inference by clipped, noisy gradients: DPVI.

Source: Jälkö, Dikmen and Honkela, "Differentially Private Variational Inference for Non-conjugate
Models", UAI 2017. The guarantee is worst-case differential privacy for the whole training
trajectory; draws from the trained guide are post-processing and cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyro
import torch
from pyro.optim import PyroOptim
from torch import Tensor
from torch.distributions import transform_to
from torch.utils._pytree import tree_map

from bdpvi._ground import validate
from bdpvi._ground.host import as_gradient, on_host
from bdpvi.bayesian.inference.guide import Free, Reparameterised, check_steps
from bdpvi.bayesian.inference.optimisers import check_elementwise, decay, fresh, fused
from bdpvi.bayesian.inference.svi import default_optimiser, isolated
from bdpvi.bench.methods.outcome import Outcome
from bdpvi.bench.methods.runs import Run, Streams
from bdpvi.bench.methods.scores import Clip, Scores, scores
from bdpvi.datasets.dataset import Dataset
from bdpvi.guides import FullRank, MeanField
from bdpvi.models.contract import Model
from bdpvi.privacy.cost import Cost
from bdpvi.privacy.sampled_steps import PrivacyLossAccountant, WorstCaseAccountant

GUIDES = (MeanField, FullRank)
"""Guides in which a parameter moves only the latent of its own row, as :func:`chain_rule` needs."""


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
        last: multiplies the optimiser's step for the last latent's parameters, as in
            :class:`~bdpvi.bench.methods.descent.DPGDSettings`.
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


@on_host
def dpvi_runs(
    model: Model,
    guide: Reparameterised,
    data: Dataset,
    *,
    runs: Sequence[Run],
    settings: DPVISettings | None = None,
    delta: float = 1e-5,
    accountant: WorstCaseAccountant | None = None,
) -> tuple[Outcome, ...]:
    """Train a guide with differential privacy and release samples from it.

    Args:
        model: a Pyro model of records, see :mod:`bdpvi.models.contract`.
        guide: one of :data:`GUIDES`.
        data: N records, on the device and of the dtype to train with.
        runs: one or more, trained side by side; each gets the result that it would get alone.
            :func:`bdpvi.privacy.sampled_steps.calibrate` finds the noise multiplier for an ε.
        settings: how to train.
        delta: δ of the privacy cost.
        accountant: computes the cost; by default with privacy loss distributions.

    Returns:
        For each run samples of the model's latent variables, each (k, ...), and their worst-case
        cost.

    Raises:
        ValueError: if an argument is out of range.
        FloatingPointError: if the parameters stop being finite.

    >>> from bdpvi import BayesianLogisticRegression, datasets, guides
    >>> model = BayesianLogisticRegression.unweighted()
    >>> data = datasets.load_breast_cancer().train
    >>> settings = DPVISettings(steps=20, rate=0.1, draws=3)
    >>> guide = guides.MeanField(model)
    >>> runs = [Run(noise_multiplier=2.0)]
    >>> (outcome,) = dpvi_runs(model, guide, data, runs=runs, settings=settings)
    >>> cost = outcome.cost.worst_case
    >>> outcome.latents["w"].shape, cost.by, round(cost.epsilon, 2)
    (torch.Size([3, 30]), 'privacy loss distribution', 1.08)
    """
    settings = settings or DPVISettings()
    accountant = accountant or PrivacyLossAccountant()
    streams = Streams(runs, data, steps=settings.steps, rate=settings.rate)
    free = _train(model, guide, data, streams, settings)
    prices = streams.prices(accountant, delta)
    return tuple(
        Outcome(
            _draws(guide, {n: v[r] for n, v in free.items()}, streams, r, settings),
            Cost.of(prices[r]),
        )
        for r in range(len(runs))
    )


@on_host
def train(
    model: Model,
    guide: Reparameterised,
    data: Dataset,
    *,
    runs: Sequence[Run],
    settings: DPVISettings | None = None,
) -> dict[str, Tensor]:
    """Return the guide's constrained parameters after each run, (R, ...). They are private too."""
    settings = settings or DPVISettings()
    streams = Streams(runs, data, steps=settings.steps, rate=settings.rate)
    free = _train(model, guide, data, streams, settings)
    return {name: transform_to(c)(free[name]) for name, c in guide.constraints.items()}


def _train(
    model: Model, guide: Reparameterised, data: Dataset, streams: Streams, settings: DPVISettings
) -> Free:
    """Return the unconstrained parameters of all runs, (R, ...)."""
    check_steps(guide)
    if type(guide) not in GUIDES:
        raise ValueError(f"guide: {type(guide).__name__} may mix rows; use MeanField or FullRank")
    check = getattr(model, "check", None)
    if check is not None:
        check(data)
    if settings.clip is None and bool((streams.noise_multiplier > 0).any()):
        raise ValueError("clip=None does not bound gradients, so noise would give no guarantee")
    optim = fused(fresh(settings.optim or default_optimiser(settings.steps)))
    if len(streams) > 1:
        check_elementwise(optim)
    with isolated(data.x), pyro.validation_enabled(False):
        guide.setup(data.x, data.y)
        start = {
            name: transform_to(guide.constraints[name]).inv(value)
            for name, value in guide.initial(data.x).items()
        }
        free = {n: v.expand(len(streams), *v.shape).clone() for n, v in start.items()}
        step_gradient = DPVIGradient(scores(model, data, guide.unpack), guide, streams, settings)
        for step in range(settings.steps):
            gradient = step_gradient(free, step)
            before = {name: value[:, -1].clone() for name, value in free.items()}
            for name, value in free.items():
                value.grad = as_gradient(gradient[name], value)
            optim(free.values())
            if settings.last != 1:
                for name, value in free.items():
                    value[:, -1] = before[name].lerp(value[:, -1], settings.last)
            decay(optim)
    for name, value in free.items():
        if not bool(value.isfinite().all()):
            raise FloatingPointError(f"optim: {name} is not finite; use a lower learning rate")
    return free


class DPVIGradient:
    """The noisy gradient of the negative ELBO, with every record's contribution bounded."""

    def __init__(
        self, records: Scores, guide: Reparameterised, streams: Streams, settings: DPVISettings
    ) -> None:
        self.records, self.guide, self.streams = records, guide, streams
        self.rate, self.clip = settings.rate, settings.clip

    def __call__(self, free: Free, step: int) -> Free:
        """Return the gradient in the unconstrained parameters of R runs, each (R, ...).

        The likelihood term is the sum over the batch divided by q. The actual batch size would leak
        who is in the batch; the expected size qN would leak N. Neither is used, so the guarantee
        assumes nothing about N.
        """
        noise = self.streams.base(step, self.guide.dim)
        batch = self.streams.batch(step)
        w = _each(partial(_latents, self.guide), free, noise)
        chain = chain_rule(self.guide, free, noise)
        clip = None if self.clip is None else Clip(self.clip, chain.norm)
        score = self.records.likelihood(w, batch, clip)
        gradient = chain.gradient(-self.records.prior(w) - score / self.rate)
        if self.clip is None:
            return gradient
        # The prior and entropy gradients are public given earlier steps: they only shift the sum
        # of clipped gradients, and add nothing to its sensitivity.
        flat = torch.cat([value.flatten(1) for value in gradient.values()], dim=1)
        noisy = self.streams.noisy(flat, self.clip / self.rate)
        sizes = [value[0].numel() for value in gradient.values()]
        for value, part in zip(gradient.values(), noisy.split(sizes, dim=1), strict=True):
            value.copy_(part.reshape(value.shape))
        return gradient


@dataclass(frozen=True)
class ChainRule:
    """Turns a gradient g in the latents, (R, d), into one in the guide's parameters, at one step.

    The gradient in the parameters is Jᵀg with the Jacobian J of the draw w = w(parameters, noise),
    so its squared norm is gᵀ(JJᵀ)g: no record's gradient in the parameters is ever stored.

    Attributes:
        norm: maps gradients (..., B, d) to the norms of their gradients in the parameters, (R, B).
        gradient: maps g to the gradient in the parameters of (a loss with gradient g) − entropy.
    """

    norm: Callable[[Tensor], Tensor]
    gradient: Callable[[Tensor], Free]


def chain_rule(guide: Reparameterised, free: Free, noise: Tensor) -> ChainRule:
    """Return the chain rule for a guide in which a parameter moves only the latent of its own row.

    JJᵀ is then diagonal, and the pullbacks of 0 and of (1, …, 1) determine it.

    Args:
        guide: one of :data:`GUIDES`.
        free: unconstrained parameters of R runs, each (R, ...).
        noise: base noise of each run, (R, d).
    """
    ends = torch.stack([torch.zeros_like(noise[0]), torch.ones_like(noise[0])])
    rows = _pullbacks(guide, free, noise, ends)
    entropy = {name: value[:, 0] for name, value in rows.items()}
    moved = {name: value[:, 1] - value[:, 0] for name, value in rows.items()}

    def norm(score: Tensor) -> Tensor:
        scale = (
            torch.cat([m.reshape(*noise.shape, -1) for m in moved.values()], dim=2).square().sum(2)
        )
        return (scale.unsqueeze(1) @ score.square().mT).squeeze(1).sqrt()

    def gradient(g: Tensor) -> Free:
        return {
            name: torch.addcmul(entropy[name], m, g.reshape(g.shape + (1,) * (m.ndim - 2)))
            for name, m in moved.items()
        }

    return ChainRule(norm, gradient)


def _pullbacks(guide: Reparameterised, free: Free, noise: Tensor, rows: Tensor) -> Free:
    """Return the pullbacks of the same m gradients in every run, each (R, m, ...)."""

    def one(free: Free, noise: Tensor) -> Free:
        repeated = {name: value.expand(len(rows), *value.shape) for name, value in free.items()}
        return guide.pushforward(repeated, noise)[1](rows)

    return _each(one, free, noise)  # type: ignore[no-any-return]


def _latents(guide: Reparameterised, free: Mapping[str, Tensor], noise: Tensor) -> Tensor:
    """Return the latents of one guide, (d,)."""
    return guide.pushforward({n: v.unsqueeze(0) for n, v in free.items()}, noise)[0].squeeze(0)


def _each(function: Callable[[Free, Tensor], Any], free: Free, noise: Tensor) -> Any:
    """Return the results of all runs, stacked."""
    if len(noise) == 1:  # vmap would double the time of a small step
        result = function({name: value[0] for name, value in free.items()}, noise[0])
        return tree_map(lambda value: value.unsqueeze(0), result)
    return torch.vmap(function)(free, noise)


def _draws(
    guide: Reparameterised, free: Free, streams: Streams, run: int, settings: DPVISettings
) -> Mapping[str, Tensor]:
    """Return samples from the guide trained by one run, or its mean, as latent variables."""
    like = next(iter(free.values()))
    if settings.draws is None:
        noise = like.new_zeros(1, guide.dim)
    else:
        noise = streams.of_run[run].draws(settings.draws, guide.dim).to(like)
    return torch.vmap(lambda e: guide.unpack(_latents(guide, free, e)))(noise)
