"""Scores, the records' gradients of their log-likelihoods: clipped one by one and summed.

Everything here is for R training runs side by side. A run is one row w of a matrix (R, d): the
weights of a logistic regression.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bdpvi.datasets.dataset import Dataset
from bdpvi.models.clipped import likelihood_slope
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.releases.clipping import shortened


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


class RecordScores:
    """The scores of a logistic regression: the derivative in the logit times the features.

    No score is stored. A score has norm at most C if the derivative is at most C/‖x‖, so clipping
    only bounds the derivative.

    >>> data = Dataset(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0]))
    >>> logistic = RecordScores(BayesianLogisticRegression.unweighted(), data)
    >>> logistic.likelihood(torch.zeros(1, 2), None, None)
    tensor([[1.5000, 2.0000]])
    >>> logistic.likelihood(torch.zeros(1, 2), None, Clip(1.0, euclidean))
    tensor([[0.6000, 0.8000]])
    """

    def __init__(self, model: BayesianLogisticRegression, data: Dataset) -> None:
        design = model.design(data.x)
        self.dim = design.shape[1]
        self.model = model
        # The design is multiplied by (2y − 1), so y is not needed any more.
        self.signed = (2 * data.y - 1).unsqueeze(1) * design
        self.bound, self.weight = model.slope_bound(design), model.record_weights(design)

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
