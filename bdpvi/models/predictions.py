"""Predictions for new records: the library's regressions by formula, other models by Pyro."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

import torch
from torch import Tensor
from torch.distributions import Categorical, constraints

from bdpvi.models.contract import Model
from bdpvi.models.kinds import OfClasses, OfNumbers
from bdpvi.models.logistic import BayesianLogisticRegression

Formula = Callable[[Mapping[str, Tensor], Tensor], Tensor]


def predictive_means(model: Model, latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return the mean of each record's target for each of k values of the latents, (k, N).

    Args:
        model: the model.
        latents: their values, each (k, ...), on any device.
        x: features, (N, d); the result is on their device.

    Raises:
        ValueError: if the target is one of several classes, which have no mean.
    """
    if _is(model, BayesianLogisticRegression, *get_args(OfNumbers)):
        return _each(model.means, latents, x)  # type: ignore[attr-defined]

    def mean(name: str, law: Any) -> Tensor:
        if isinstance(law, Categorical):
            raise ValueError(
                f"model: target {name!r} is one of several classes, which have no mean; use "
                "predict_proba"
            )
        return law.mean  # type: ignore[no-any-return]

    return _traced(model, latents, x, mean)


def class_probabilities(model: Model, latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return the probabilities of 0 to K − 1 for each of k values of the latents, (k, N, K).

    Args:
        model, latents, x: as for :func:`predictive_means`.

    Raises:
        ValueError: if the target is neither 0 or 1 nor one of several classes.
    """
    if _is(model, BayesianLogisticRegression):
        return _of_one(predictive_means(model, latents, x))
    if _is(model, *get_args(OfClasses)):
        return _each(model.probabilities, latents, x)  # type: ignore[attr-defined]

    def probabilities(name: str, law: Any) -> Tensor:
        if isinstance(law, Categorical):
            return law.probs
        if law.support is not constraints.boolean:
            raise ValueError(
                f"model: target {name!r} is {type(law).__name__} and not 0 or 1 or one of several "
                "classes, so it has no class and no probability; use predict_mean"
            )
        return _of_one(law.mean)

    return _traced(model, latents, x, probabilities)


def _of_one(probability: Tensor) -> Tensor:
    """Return the probabilities of 0 and 1 from those of 1, (..., 2)."""
    return torch.stack([1 - probability, probability], dim=-1)


def _is(model: Model, *kinds: type) -> bool:
    """Whether the model is of one of these kinds itself: a subclass may observe anything."""
    return type(model) in kinds


def _each(formula: Formula, latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return a formula's value for each of k values of the latents, (k, N, ...)."""
    with torch.no_grad():
        return torch.vmap(lambda one: formula(one, x), chunk_size=256)(_beside(latents, x))


def _traced(
    model: Model, latents: Mapping[str, Tensor], x: Tensor, of: Callable[[str, Any], Tensor]
) -> Tensor:
    from bdpvi.models.traces import predicted  # late: it loads Pyro

    return predicted(model, _beside(latents, x), x, of)


def _beside(latents: Mapping[str, Tensor], x: Tensor) -> dict[str, Tensor]:
    return {name: value.to(x.device) for name, value in latents.items()}
