"""How well posterior samples predict yes/no targets, and how far methods can be told apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from sklearn.metrics import log_loss, roc_auc_score
from torch import Tensor

from bdpvi._fit import Fit
from bdpvi.models.contract import Model, predictive_means
from bdpvi.releasing.releases import rehearse
from bdpvi.types import Dataset

BINS = 15
"""Of the expected calibration error, as in most papers that give one."""


@dataclass(frozen=True)
class Metrics:
    """On records whose targets are 0 or 1.

    Attributes:
        accuracy: fraction of records on whose side of ½ the probability lies.
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


def accuracy(model: Model, latents: Mapping[str, Tensor], data: Dataset) -> float:
    """Return the accuracy on ``data`` of the prediction averaged over k samples.

    Args:
        model: a model with a target in {0, 1}.
        latents: samples of its latent variables, each (k, ...).
        data: records with targets in {0, 1}.
    """
    return float(correct(predictive_means(model, latents, data.x).mean(0), data.y).double().mean())


def expected_accuracy(
    fit: Fit, data: Dataset, draws: int, temperature: float, *, repeats: int = 100, seed: int = 0
) -> float:
    """Return the mean accuracy over ``repeats`` simulated releases of ``draws`` samples each.

    Nothing is charged. On held-out records it estimates the accuracy of a release; if ``data``
    were training records, neither the number nor a choice made by it may be published.

    Args:
        fit: where the samples come from.
        data: M records with targets in {0, 1}.
        draws: number k of samples of one release, over which predictions are averaged.
        temperature: τ of the samples.
        repeats: number of simulated releases.
        seed: of the samples.
    """
    generator = torch.Generator().manual_seed(seed)
    latents = rehearse(fit, draws * repeats, temperature=temperature, generator=generator)
    means = predictive_means(fit.model, latents, data.x)
    means = means.reshape(repeats, draws, len(data)).mean(1)
    return float(correct(means, data.y).double().mean())


def behind(right: Sequence[Tensor]) -> list[tuple[float, float]]:
    """Return how far each method's accuracy lies below the best one's, and the standard error.

    The error is that of a mean of paired differences, one for every record: records that all
    methods get right, or none, contribute nothing. It holds for further records from the same
    population, with the seeds as given. The best of many is partly the luckiest, so on further
    records it is expected to be less ahead.

    Args:
        right: for every method the fraction of seeds that are right about each record, (N,), N ≥ 2.

    >>> best, other = torch.tensor([1.0, 1.0, 0.5, 1.0]), torch.tensor([1.0, 0.0, 0.5, 1.0])
    >>> behind([other, best])
    [(0.25, 0.25), (0.0, 0.0)]
    """
    best = max(right, key=lambda fractions: float(fractions.double().mean()))
    differences = [best.double() - fractions.double() for fractions in right]
    return [(float(d.mean()), float(d.std() / len(d) ** 0.5)) for d in differences]
