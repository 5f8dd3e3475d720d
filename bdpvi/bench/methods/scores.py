"""Scores, the records' gradients of their log-likelihoods: clipped one by one and summed.

Everything here is for R training runs side by side. A run is one row w of a matrix (R, d): a flat
vector of the model's unconstrained latents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import biject_to

from bdpvi.datasets.dataset import Dataset
from bdpvi.models import contract
from bdpvi.models.clipped import likelihood_slope
from bdpvi.models.contract import Model, dimension
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.models.traces import log_likelihood, sites
from bdpvi.releases.clipping import shortened

Unpack = Callable[[Tensor], Mapping[str, Tensor]]
"""From one flat unconstrained vector, (d,), to the model's latent variables."""


@dataclass(frozen=True, eq=False)
class Batch:
    """The records that each run sees in one step, padded to one length.

    Attributes:
        index: positions of the records, (R, B); padding may hold any position.
        present: 1 for a record, 0 for padding, (R, B).
    """

    index: Tensor
    present: Tensor


@dataclass(frozen=True, eq=False)
class Clip:
    """Scores longer than ``bound`` are shortened, by the margin of :mod:`bdpvi.releases.clipping`.

    In float64 no record then moves a computed sum by more: of up to 60,000 records in any order, of
    more in the blocks of a matrix product.

    Attributes:
        bound: C, positive.
        norm: maps scores (..., B, d) to their lengths, (R, B) or (B,). For variational inference it
            is the length of the score's gradient in the guide's parameters.
    """

    bound: float
    norm: Callable[[Tensor], Tensor]


def euclidean(score: Tensor) -> Tensor:
    """Return the Euclidean length of every score."""
    return torch.linalg.vector_norm(score, dim=-1)  # type: ignore[no-any-return]


def scores(model: Model, data: Dataset, unpack: Unpack | None = None) -> Scores:
    """Return the closed form where there is one, otherwise the gradients of the traced model.

    Args:
        model: a Pyro model of records, see :mod:`bdpvi.models.contract`.
        data: the records.
        unpack: a guide's order of the latents; by default that of the model's sample sites.

    >>> data = Dataset(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0]))
    >>> logistic = scores(BayesianLogisticRegression.unweighted(), data)
    >>> logistic.likelihood(torch.zeros(1, 2), None, None)
    tensor([[1.5000, 2.0000]])
    >>> logistic.likelihood(torch.zeros(1, 2), None, Clip(1.0, euclidean))
    tensor([[0.6000, 0.8000]])
    """
    if type(model) is BayesianLogisticRegression:
        return ClosedScores(model, data)
    return TracedScores(model, data, unpack)


class ClosedScores:
    """For logistic regression: a score is the derivative in the logit times the features.

    No score is stored. A score has norm at most C if the derivative is at most C/‖x‖, so clipping
    only bounds the derivative.
    """

    def __init__(self, model: BayesianLogisticRegression, data: Dataset) -> None:
        design = model.design(data.x)
        self.dim = design.shape[1]
        self.model = model
        # The design is multiplied by (2y − 1), so y is not needed any more.
        self.signed = (2 * data.y - 1).unsqueeze(1) * design
        self.bound, self.weight = model.slope_bound(design), model.record_weights(design)

    def unpack(self, flat: Tensor) -> Mapping[str, Tensor]:
        """Return the weights by their name."""
        return {"w": flat}

    def prior(self, w: Tensor) -> Tensor:
        """Return −w/s², where w is measured from its prior mean."""
        return -self.model.departure(w) * self.model.precision(self.dim)

    def likelihood(self, w: Tensor, batch: Batch | None, clip: Clip | None) -> Tensor:
        """Return Σ weight · slope · x over a batch, None being all records.

        With a ``clip`` every record's contribution has norm at most C.
        """
        x, bound, weight = self.signed, self.bound, self.weight
        if batch is not None:
            x, bound, weight = x[batch.index], bound[batch.index], weight[batch.index]
        if clip is not None:
            least = shortened(clip.bound, self.dim)
            bound = torch.minimum(bound, least / (weight * clip.norm(x)))
        slope = likelihood_slope((w.unsqueeze(1) @ x.mT).squeeze(1), bound) * weight
        if batch is not None:
            slope = slope * batch.present
        return (slope.unsqueeze(1) @ x).squeeze(1)


class TracedScores:
    """For any Pyro model: ``torch.func`` over the traced model, one record at a time."""

    def __init__(self, model: Model, data: Dataset, unpack: Unpack | None = None) -> None:
        self.model, self.data = model, data
        found = sites(model, data.x, data.y)
        self.dim = dimension(found)
        self.unpack = unpack or partial(contract.unpack, found)
        per_record = torch.vmap(torch.func.grad(self._log_likelihood), in_dims=(None, 0, 0))
        self._own = torch.vmap(per_record)
        self._shared = torch.vmap(per_record, in_dims=(0, None, None))
        self._prior = torch.vmap(torch.func.grad(self._log_prior))

    def prior(self, w: Tensor) -> Tensor:
        """Return the gradient through the traced model, the change of variables included."""
        return self._prior(w)  # type: ignore[no-any-return]

    def likelihood(self, w: Tensor, batch: Batch | None, clip: Clip | None) -> Tensor:
        """Return the sum of the records' scores over a batch, None being all records.

        With a ``clip`` every record's contribution has norm at most C; a record whose score is not
        finite counts as zero.
        """
        x, y = self.data.x, self.data.y
        if batch is None:
            score = self._shared(w, x, y)
            weight = score.new_ones(score.shape[:2])
        else:
            score = self._own(w, x[batch.index], y[batch.index])
            weight = batch.present
        if clip is not None:
            norm = clip.norm(score)
            weight = weight * (shortened(clip.bound, self.dim) / norm).clamp(max=1)
            score = torch.where(norm.isfinite().unsqueeze(-1), score, 0.0)
            weight = torch.where(norm.isfinite(), weight, 0.0)
        return (weight.unsqueeze(1) @ score).squeeze(1)  # type: ignore[no-any-return]

    def _log_likelihood(self, flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return log_likelihood(self.model, self.unpack(flat), x[None], y[None]).sum()

    def _log_prior(self, flat: Tensor) -> Tensor:
        latents = self.unpack(flat)
        # Zeros instead of a record: the prior's gradient is not clipped, so no record may enter it.
        x, y = torch.zeros_like(self.data.x[:1]), torch.zeros_like(self.data.y[:1])
        trace = poutine.trace(poutine.condition(self.model, data=dict(latents))).get_trace(x, y)
        total = flat.new_zeros(())
        for name, value in latents.items():
            prior = trace.nodes[name]["fn"]
            change = biject_to(prior.support)
            part = change.inv(value)
            total = total + prior.log_prob(value).sum()
            total = total + change.log_abs_det_jacobian(part, value).sum()
        return total


Scores = ClosedScores | TracedScores
"""The gradients of a model's log-density at the latents w of R runs, each (R, d)."""
