"""Measures of predictions of yes/no targets by posterior samples; many predictions at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bdpvi.datasets.dataset import Dataset
from bdpvi.models.contract import Model
from bdpvi.models.predictions import predictive_means

BINS = 15
"""Bins of the expected calibration error, as in most papers that report it."""


def fraction_correct(probability: Tensor, y: Tensor) -> Tensor:
    """Return the accuracy: the fraction of records classified correctly at threshold ½, (...)."""
    return correct(probability, y).double().mean(-1)


def log_score(probability: Tensor, y: Tensor) -> Tensor:
    """Return the mean of :func:`log_scores` over the records, (...); higher is better.

    >>> log_score(torch.tensor([0.5, 0.25]), torch.tensor([1.0, 0.0]))  # (ln ½ + ln ¾)/2
    tensor(-0.4904, dtype=torch.float64)
    """
    return log_scores(probability, y).mean(-1)


def log_scores(probability: Tensor, y: Tensor) -> Tensor:
    """Return each record's log-likelihood in nats, (..., N); 0 is perfect.

    Probabilities of 0 and 1 count as 2.2e-16 and 1 − 2.2e-16, so a record costs at most 36 nats.
    """
    least = torch.finfo(torch.float64).eps
    likelihood = torch.where(y > 0.5, probability.double(), 1 - probability.double())
    return likelihood.clamp(least, 1 - least).log()


def auc(probability: Tensor, y: Tensor) -> Tensor:
    """Return the area under the receiver operating characteristic, (...).

    It is the chance that a record of class 1 has a higher probability than one of class 0; a tie
    counts one half.

    Raises:
        ValueError: if ``y`` has one class only.

    >>> auc(torch.tensor([[0.1, 0.2, 0.8], [0.3, 0.3, 0.3]]), torch.tensor([0.0, 1.0, 0.0]))
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    check_classes("y", y)
    zeros = probability[..., y < 0.5].sort(-1).values
    ones = probability[..., y > 0.5].contiguous()
    below, within = (torch.searchsorted(zeros, ones, right=right) for right in (False, True))
    return (below + within).double().mean(-1) / (2 * zeros.shape[-1])


def check_classes(name: str, y: Tensor) -> None:
    """Raise ValueError, naming the argument, unless both 0 and 1 are among the targets."""
    if len(torch.unique(y)) < 2:
        raise ValueError(
            f"{name} has one class only: all {len(y)} targets are {y[0].item():g}; hold more "
            "records out, as AUC needs both classes"
        )


def expected_calibration_error(probability: Tensor, y: Tensor, bins: int = BINS) -> Tensor:
    """Return Σ_b n_b/N · |mean of y − mean probability| over equal bins of the probability of 1.

    Source: Naeini, Cooper and Hauskrecht, "Obtaining Well Calibrated Probabilities Using Bayesian
    Binning", AAAI 2015.

    >>> expected_calibration_error(torch.tensor([0.75, 0.75, 0.2]), torch.tensor([1.0, 0.0, 0.0]))
    tensor(0.2333, dtype=torch.float64)
    """
    _, predicted, observed = calibration(probability, y, bins).unbind(-1)
    return (observed - predicted).abs().sum(-1) / len(y)


def calibration(probability: Tensor, y: Tensor, bins: int = BINS) -> Tensor:
    """Return the data of a reliability diagram, in equal bins of the probability of 1.

    Returns:
        For each bin the number of records, the sum of their probabilities, and the sum of their
        targets, (..., bins, 3).

    >>> calibration(torch.tensor([0.75, 0.75, 0.25]), torch.tensor([1.0, 0.0, 0.0]), bins=2)
    tensor([[1.0000, 0.2500, 0.0000],
            [2.0000, 1.5000, 1.0000]], dtype=torch.float64)
    """
    probability = probability.double()
    where = (probability * bins).long().clamp(max=bins - 1)
    empty = probability.new_zeros(*probability.shape[:-1], bins)
    each = (torch.ones_like(probability), probability, y.double().expand_as(probability))
    return torch.stack([empty.scatter_add(-1, where, one) for one in each], dim=-1)


@dataclass(frozen=True)
class Measure:
    """A measure of predicted probabilities.

    Attributes:
        label: label in tables and figures.
        of: maps probabilities of 1, (..., N), and targets in {0, 1}, (N,), to numbers, (...).
    """

    label: str
    of: Callable[[Tensor, Tensor], Tensor]


MEASURES: Mapping[str, Measure] = {
    "accuracy": Measure("accuracy", fraction_correct),
    "auc": Measure("AUC", auc),
    "log_score": Measure("log score", log_score),
    "ece": Measure("calibration error", expected_calibration_error),
}
"""Measures by their column in a comparison's tables."""
OBJECTIVES: Mapping[str, Measure] = {
    name.replace("_", "-"): MEASURES[name] for name in ("log_score", "accuracy", "auc")
}
"""Criteria for choosing settings; higher is better."""


def metrics(probability: Tensor, y: Tensor) -> dict[str, float]:
    """Return every measure of predicted probabilities of 1, (N,), on targets in {0, 1}, (N,).

    Raises:
        ValueError: if only one class is present, so that there is no AUC.

    >>> measured = metrics(torch.tensor([0.1, 0.6, 0.8]), torch.tensor([0.0, 0.0, 1.0]))
    >>> round(measured["accuracy"], 3), measured["auc"]
    (0.667, 1.0)
    """
    return {name: float(measure.of(probability, y)) for name, measure in MEASURES.items()}


def correct(probability: Tensor, y: Tensor) -> Tensor:
    """Return whether each record is classified correctly at threshold ½, (..., N).

    >>> correct(torch.tensor([0.1, 0.6, 0.8]), torch.tensor([0.0, 0.0, 1.0]))
    tensor([ True, False,  True])
    """
    return (probability > 0.5) == (y > 0.5)


def accuracy(model: Model, latents: Mapping[str, Tensor], data: Dataset) -> float:
    """Return the accuracy on ``data`` of the prediction averaged over k samples.

    Args:
        model: a model with a target in {0, 1}.
        latents: samples of its latent variables, each (k, ...).
        data: records with targets in {0, 1}.
    """
    return float(fraction_correct(predictive_means(model, latents, data.x).mean(0), data.y))
