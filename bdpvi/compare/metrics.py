"""How well posterior samples predict yes/no targets, and how far methods can be told apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


def fraction_correct(probability: Tensor, y: Tensor) -> float:
    """Return the fraction of records on whose side of ½ the probability of 1 lies."""
    return float(correct(probability, y).double().mean())


def log_score(probability: Tensor, y: Tensor) -> float:
    """Return the mean log-likelihood of a record, in nats; higher is better, and 0 is perfect.

    Probabilities of 0 and 1 count as 2.2e-16 and 1 − 2.2e-16, so a record costs at most 36 nats.

    >>> round(log_score(torch.tensor([0.5, 0.25]), torch.tensor([1.0, 0.0])), 4)  # (ln ½ + ln ¾)/2
    -0.4904
    """
    return -float(log_loss(y.numpy(), probability.double().numpy(), labels=[0.0, 1.0]))


def auc(probability: Tensor, y: Tensor) -> float:
    """Return the area under the receiver operating characteristic.

    It is the chance that a record of class 1 has the higher probability than one of class 0, a tie
    counting one half.

    Raises:
        ValueError: if ``y`` has one class only.
    """
    check_classes("y", y)
    return float(roc_auc_score(y.numpy(), probability.numpy()))


def check_classes(name: str, y: Tensor) -> None:
    """Raise ValueError, naming the argument, unless both 0 and 1 are among the targets."""
    if len(torch.unique(y)) < 2:
        raise ValueError(
            f"{name} has one class only: all {len(y)} targets are {y[0].item():g}; hold more "
            "records out, as AUC needs both classes"
        )


def expected_calibration_error(probability: Tensor, y: Tensor, bins: int = BINS) -> float:
    """Return Σ_b n_b/N · |mean of y − mean probability| over equal bins of the probability of 1.

    Source: Naeini, Cooper and Hauskrecht, "Obtaining Well Calibrated Probabilities Using Bayesian
    Binning", AAAI 2015.

    >>> expected_calibration_error(torch.tensor([0.75, 0.75, 0.2]), torch.tensor([1.0, 0.0, 0.0]))
    0.2333...
    """
    _, predicted, observed = calibration(probability, y, bins).unbind(1)
    return float((observed - predicted).abs().sum()) / len(y)


def calibration(probability: Tensor, y: Tensor, bins: int = BINS) -> Tensor:
    """Return what a reliability diagram shows, in equal bins of the probability of 1.

    Returns:
        For each bin the number of records, the sum of their probabilities, and that of their
        targets, (bins, 3).

    >>> calibration(torch.tensor([0.75, 0.75, 0.25]), torch.tensor([1.0, 0.0, 0.0]), bins=2)
    tensor([[1.0000, 0.2500, 0.0000],
            [2.0000, 1.5000, 1.0000]], dtype=torch.float64)
    """
    where = (probability.double() * bins).long().clamp(max=bins - 1)
    each = torch.stack([torch.ones_like(y), probability, y], dim=1).double()
    return each.new_zeros(bins, 3).index_add_(0, where, each)


@dataclass(frozen=True)
class Measure:
    """How well predicted probabilities do, in one number.

    Attributes:
        label: in tables and figures.
        of: the number, from probabilities of 1, (N,), and targets in {0, 1}, (N,).
    """

    label: str
    of: Callable[[Tensor, Tensor], float]


MEASURES: Mapping[str, Measure] = {
    "accuracy": Measure("accuracy", fraction_correct),
    "auc": Measure("AUC", auc),
    "log_score": Measure("log score", log_score),
    "ece": Measure("calibration error", expected_calibration_error),
}
"""By the column of a comparison's tables."""
OBJECTIVES: Mapping[str, Measure] = {
    name.replace("_", "-"): MEASURES[name] for name in ("log_score", "accuracy", "auc")
}
"""What settings may be chosen by, all of them the higher the better."""


def metrics(probability: Tensor, y: Tensor) -> dict[str, float]:
    """Return every measure of predicted probabilities of 1, (N,), on targets in {0, 1}, (N,).

    Raises:
        ValueError: if only one class is present, for which there is no AUC.

    >>> measured = metrics(torch.tensor([0.1, 0.6, 0.8]), torch.tensor([0.0, 0.0, 1.0]))
    >>> round(measured["accuracy"], 3), measured["auc"]
    (0.667, 1.0)
    """
    return {name: measure.of(probability, y) for name, measure in MEASURES.items()}


def correct(probability: Tensor, y: Tensor) -> Tensor:
    """Return for each record whether the probability of 1 lies on its target's side of ½, (N,).

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
    return fraction_correct(predictive_means(model, latents, data.x).mean(0), data.y)


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
