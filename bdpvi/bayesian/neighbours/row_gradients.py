"""Gradients of many guides' negative ELBOs on one batch, each guide with one extra record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import transform_to

from bdpvi._ground.host import HOST, onto
from bdpvi.bayesian.inference.guide import Free, Reparameterised
from bdpvi.bayesian.inference.svi import Problem
from bdpvi.datasets.dataset import Dataset
from bdpvi.models.clipped import likelihood_slope_
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.models.traces import GlobalLatents, RecordWeights, log_likelihood

Seen = tuple[Tensor, ...]
"""Records in the form that a gradient needs; the first dimension indexes records."""

ALIGNED = 64
"""The rows of a tile are a multiple of this, which every vector length divides."""

_SLOPES = 2**21
"""Bytes of one tile's derivatives: they fit in the last cache; torch's overhead is per tile."""

_HEIGHT = 256
"""Records of a tile: enough for torch's matrix product to be fast."""


class Step(NamedTuple):
    """The training data of all rows in one step.

    Attributes:
        extra: one extra record for each row.
        weight: weight of the extra record in each row, (m,); 0 if it is not in the batch.
        batch: the batch that all rows share.
        generator: the host's generator of base noise, seeded for this step.
    """

    extra: Seen
    weight: Tensor
    batch: Seen
    generator: torch.Generator


class RowGradient(Protocol):
    """Gradient of every row's negative ELBO on one batch."""

    threads: bool
    """Whether rows may be trained in several threads."""

    def see(self, data: Dataset) -> Seen:
        """Return every record in the form that the gradient needs."""

    def __call__(self, free: Free, step: Step, out: Free) -> None:
        """Write the gradients at the parameters ``free`` of m rows into ``out``, shaped alike."""


class TracedGradient:
    """For any Pyro model: ``torch.func`` over the traced model and guide."""

    threads = False  # Pyro's handlers are global

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.transforms = {n: transform_to(c) for n, c in problem.guide.constraints.items()}
        self.vmapped = torch.vmap(
            torch.func.grad(self._loss), in_dims=(0, 0, 0, 0, None, None), randomness="same"
        )

    def see(self, data: Dataset) -> Seen:
        """Return features and targets."""
        return data.x, data.y

    def __call__(self, free: Free, step: Step, out: Free) -> None:
        """Write the gradients, see :class:`RowGradient`."""
        # Pyro draws from the global generator.
        torch.default_generator.manual_seed(step.generator.initial_seed())
        alone = {name: value.contiguous() for name, value in free.items()}  # one row after another
        x, y = (part.contiguous() for part in step.extra)
        for name, value in self.vmapped(alone, x, y, step.weight, *step.batch).items():
            out[name].copy_(value)

    def _loss(
        self, free: Free, x_extra: Tensor, y_extra: Tensor, weight: Tensor, x: Tensor, y: Tensor
    ) -> Tensor:
        model, guide, rate = self.problem.model, self.problem.guide, self.problem.plan.rate
        values = {name: self.transforms[name](value) for name, value in free.items()}
        q = poutine.trace(poutine.substitute(guide, data=values)).get_trace(x, y)
        with RecordWeights(1 / rate), GlobalLatents():
            p = poutine.trace(poutine.replay(model, trace=q)).get_trace(x, y)
        latents = {name: p.nodes[name]["value"] for name in p.stochastic_nodes if name in q.nodes}
        extra = log_likelihood(model, latents, x_extra[None], y_extra[None]).sum()
        return q.log_prob_sum() - p.log_prob_sum() - weight / rate * extra  # type: ignore[no-any-return]


@dataclass(frozen=True)
class LogisticGradient:
    """For logistic regression: two matrix products and a sigmoid per pair of row and record."""

    model: BayesianLogisticRegression
    guide: Reparameterised
    rate: float

    threads = True

    def see(self, data: Dataset) -> Seen:
        """Return (1 − 2y)·design, (n, d), and the bounds on derivatives in the logit, (n, 1).

        Then the weights, (n, 1), if records are weighted.
        """
        design = self.model.design(data.x)
        seen = (1 - 2 * data.y).unsqueeze(1) * design, self.model.slope_bound(design).unsqueeze(1)
        weights = [self.model.record_weights(design).unsqueeze(1)] if self.model.weighs else []
        return *seen, *weights

    def __call__(self, free: Free, step: Step, out: Free) -> None:
        """Write the gradients, see :class:`RowGradient`."""
        extra, weight, batch, generator = step
        like, m = batch[0], len(weight)
        noise = torch.randn(self.guide.dim, generator=generator, dtype=like.dtype, device=HOST)
        noise = onto(noise, like.device)
        height, width = (len(like), m) if like.is_cuda else _tile(like)
        tiles = list(zip(*(part.split(max(1, height)) for part in batch), strict=True))
        space = like.new_empty(min(height, len(like)) * min(width, m))
        for start in range(0, m, width):
            rows = slice(start, start + width)
            w, pullback = self.guide.pushforward({n: v[rows] for n, v in free.items()}, noise)
            gradient = self._loss_gradient(w, tiles, space)
            x, *more = (part[rows] for part in extra)
            slope = _slopes((w * x).sum(1, keepdim=True), *more)
            slope.mul_(weight[rows].unsqueeze(1))
            gradient.addcmul_(slope, x, value=1 / self.rate)
            for name, value in pullback(gradient).items():
                out[name][rows] = value

    def _loss_gradient(self, w: Tensor, batch: Sequence[Seen], space: Tensor) -> Tensor:
        """Return the sum over the batch and the prior for every row, (m, d).

        Slopes are kept as (records, rows): both products then run along the long side.
        """
        result = self.model.departure(w) * self.model.precision(w.shape[1])
        across, total = w.T, result.T
        for x, *more in batch:
            slope = space[: len(x) * len(w)].view(len(x), len(w))
            _slopes(torch.mm(x, across, out=slope), *more)
            torch.addmm(total, x.T, slope, alpha=1 / self.rate, out=total)
        return result


def _slopes(negative: Tensor, bound: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return weighted derivatives at logits −``negative``, which they overwrite."""
    slope = likelihood_slope_(negative, bound)
    return slope if weight is None else slope.mul_(weight)


def _tile(batch: Tensor) -> tuple[int, int]:
    """Return the numbers of records and of rows in a tile on a processor."""
    height = min(_HEIGHT, len(batch))
    width = _SLOPES // (max(1, height) * batch.itemsize)
    return height, max(ALIGNED, width // ALIGNED * ALIGNED)
