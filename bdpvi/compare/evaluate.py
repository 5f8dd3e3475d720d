"""How well posterior samples predict."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bdpvi._fit import Fit
from bdpvi.models.logistic import Model, predictive_means
from bdpvi.releasing.releases import rehearse
from bdpvi.types import Dataset


def accuracy(model: Model, latents: Mapping[str, Tensor], data: Dataset) -> float:
    """Return the accuracy on ``data`` of the prediction averaged over k samples.

    Args:
        model: a model with a target in {0, 1}.
        latents: samples of its latent variables, each (k, ...).
        data: records with targets in {0, 1}.
    """
    return _share_correct(predictive_means(model, latents, data.x).mean(0), data)


def expected_accuracy(
    fit: Fit, data: Dataset, draws: int, temperature: float, *, repeats: int = 100, seed: int = 0
) -> float:
    """Return the mean accuracy over ``repeats`` imagined releases of ``draws`` samples each.

    Nothing is charged, so neither the samples nor a choice made by this number may leave the house
    if ``data`` were training records; on held-out records it tells what a release would be worth.
    """
    generator = torch.Generator().manual_seed(seed)
    latents = rehearse(fit, draws * repeats, temperature=temperature, generator=generator)
    means = predictive_means(fit.model, latents, data.x)
    means = means.reshape(repeats, draws, len(data)).mean(1)
    return sum(_share_correct(one, data) for one in means) / repeats


def _share_correct(probability: Tensor, data: Dataset) -> float:
    return float(((probability > 0.5) == (data.y > 0.5)).double().mean())
