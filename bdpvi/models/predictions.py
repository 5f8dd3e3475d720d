"""Predictions for new records: the library's regressions by formula, other models by Pyro.

A regression with public bounds on its targets, such as ``largest``, was fitted to targets clipped
to them, and knows nothing beyond: each draw's expected target is clipped to them too. Otherwise
noise in a coefficient, of which a count's mean is the exponential, could make it any number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical, constraints

from bdpvi._ground import validate
from bdpvi.models.contract import Model
from bdpvi.models.kinds import is_regression
from bdpvi.models.survival import BayesianSurvivalRegression

Formula = Callable[[Mapping[str, Tensor], Tensor], Tensor]


def predictive_means(model: Model, latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return the mean of each record's target for each of k values of the latents, (k, N).

    Args:
        model: the model.
        latents: their values, each (k, ...), on any device.
        x: features, (N, d); the result is on their device.

    Raises:
        ValueError: if the target is one of several classes, which have no mean; or a record, which
            it names, has no positive exposure.
    """
    check_exposures(model, x)
    if is_regression(model) and model.target != "class":  # type: ignore[attr-defined]
        return within_bounds(model, _each(model.means, latents, x))  # type: ignore[attr-defined]

    def mean(name: str, law: Any) -> Tensor:
        if isinstance(law, Categorical):
            raise ValueError(
                f"model: target {name!r} is one of several classes, which have no mean; use "
                "predict_proba"
            )
        return law.mean  # type: ignore[no-any-return]

    return within_bounds(model, _traced(model, latents, x, mean))


def within_bounds(model: Model, targets: Tensor) -> Tensor:
    """Return targets clipped to the model's public bounds, as those were that it was fitted to."""
    cut = getattr(model, "cut", None)
    return targets if cut is None else cut(targets)


def check_exposures(model: Model, x: Tensor) -> None:
    """Raise ValueError if a record, which it names, has no positive exposure.

    Raises:
        ValueError: so that nothing is predicted from an exposure that is not known.
    """
    if (exposed := getattr(model, "exposed", None)) is None or bool(exposed(x).all()):
        return
    row = int((~exposed(x)).nonzero()[0])
    raise ValueError(
        f"x: row {row}, from 0, has the exposure {x[row, model.exposure].item()!r}, which must be "  # type: ignore[attr-defined]
        "positive; leave out rows whose exposure is not known"
    )


def class_probabilities(model: Model, latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return the probabilities of 0 to K − 1 for each of k values of the latents, (k, N, K).

    Args:
        model, latents, x: as for :func:`predictive_means`.

    Raises:
        ValueError: if the target is neither 0 or 1 nor one of several classes.
    """
    if is_regression(model) and model.target in ("label", "class"):  # type: ignore[attr-defined]
        return _each(model.probabilities, latents, x)  # type: ignore[attr-defined]

    def probabilities(name: str, law: Any) -> Tensor:
        if isinstance(law, Categorical):
            return law.probs
        if law.support is not constraints.boolean:
            raise ValueError(
                f"model: target {name!r} is {type(law).__name__} and not 0 or 1 or one of several "
                "classes, so it has no class and no probability; use predict_mean"
            )
        return torch.stack([1 - law.mean, law.mean], dim=-1)

    return _traced(model, latents, x, probabilities)


def survival_draws(model: Model, latents: Mapping[str, Tensor], x: Tensor, times: Tensor) -> Tensor:
    """Return the probability of no event until T times for each of k values of the latents.

    Args:
        model, latents, x: as for :func:`predictive_means`.
        times: (T,).

    Returns:
        (k, N, T).

    Raises:
        ValueError: if the model has no survival curve, or a time, which it names, is not between 0
            and the horizon, the last cut.
    """
    if not is_regression(model) or model.target != "time":  # type: ignore[attr-defined]
        name = getattr(model, "kind", type(model).__name__)
        raise ValueError(f"model: {name} has no survival curve; BayesianSurvivalRegression has")
    curve: BayesianSurvivalRegression = model  # type: ignore[assignment]
    rule = f"lie between 0 and the horizon {curve.horizon:g}, the last cut"
    if times.ndim != 1:
        raise ValueError(f"times must be a list of numbers, got the shape {tuple(times.shape)}")
    validate.every("times", times, (times >= 0) & (times <= curve.horizon), rule)
    return _each(lambda draw, x: curve.survival(draw, x, times), latents, x)


def _each(formula: Formula, latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return a formula's value for each of k values of the latents, (k, N, ...)."""
    with torch.no_grad():
        return torch.vmap(lambda draw: formula(draw, x), chunk_size=256)(_beside(latents, x))


def _traced(
    model: Model, latents: Mapping[str, Tensor], x: Tensor, of: Callable[[str, Any], Tensor]
) -> Tensor:
    from bdpvi.models.traces import predicted  # late: it loads Pyro

    return predicted(model, _beside(latents, x), x, of)


def _beside(latents: Mapping[str, Tensor], x: Tensor) -> dict[str, Tensor]:
    return {name: value.to(x.device) for name, value in latents.items()}
