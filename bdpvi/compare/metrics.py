"""How well probabilities predict yes/no targets."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sklearn.metrics import log_loss, roc_auc_score
from torch import Tensor

BINS = 15


@dataclass(frozen=True)
class Metrics:
    """On records whose targets are 0 or 1.

    Attributes:
        accuracy: share of records on whose side of ½ the probability lies.
        nll: mean negative log-likelihood, nats.
        ece: expected calibration error.
        auc: area under the receiver operating characteristic.
    """

    accuracy: float
    nll: float
    ece: float
    auc: float


def metrics(probability: Tensor, y: Tensor) -> Metrics:
    """Measure predicted probabilities of 1, (N,), against targets in {0, 1}, (N,).

    Raises:
        ValueError: if only one class is present, for which there is no AUC.

    >>> measured = metrics(torch.tensor([0.1, 0.6, 0.8]), torch.tensor([0.0, 0.0, 1.0]))
    >>> round(measured.accuracy, 3), measured.auc
    (0.667, 1.0)
    """
    if len(torch.unique(y)) < 2:
        raise ValueError(f"y has one class only: every target is {y[0].item():g}")
    return Metrics(
        accuracy=float(correct(probability, y).double().mean()),
        nll=float(log_loss(y.numpy(), probability.double().numpy(), labels=[0.0, 1.0])),
        ece=expected_calibration_error(probability, y),
        auc=float(roc_auc_score(y.numpy(), probability.numpy())),
    )


def correct(probability: Tensor, y: Tensor) -> Tensor:
    """Return for each record whether the probability of 1 lies on its target's side of ½, (N,).

    >>> correct(torch.tensor([0.1, 0.6, 0.8]), torch.tensor([0.0, 0.0, 1.0]))
    tensor([ True, False,  True])
    """
    return (probability > 0.5) == (y > 0.5)


def expected_calibration_error(probability: Tensor, y: Tensor, bins: int = BINS) -> float:
    """Return Σ_b n_b/N · |mean of y − mean probability| over equal bins of the probability of 1.

    Source: Naeini, Cooper and Hauskrecht, "Obtaining Well Calibrated Probabilities Using Bayesian
    Binning", AAAI 2015.

    >>> expected_calibration_error(torch.tensor([0.75, 0.75, 0.2]), torch.tensor([1.0, 0.0, 0.0]))
    0.2333...
    """
    where = (probability.double() * bins).long().clamp(max=bins - 1)
    gap = torch.zeros(bins, dtype=torch.float64).index_add_(0, where, (y - probability).double())
    return float(gap.abs().sum()) / len(y)
