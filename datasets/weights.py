"""Sampling weights of records under a public bound: weight w counts min(w, W)/W times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bdpvi._ground import validate
from bdpvi.datasets.origin import DECLARED

if TYPE_CHECKING:  # so that a command's help is quick
    from torch import Tensor

TAKEN_BY = (
    "Logistic regression by objective perturbation, and logistic, linear and Poisson regression "
    "by noisy scores (intervals)"
)
"""The releases that take weights."""


def shares_of(weights: Tensor, largest: float = 1.0) -> Tensor:
    """Return how often each record counts, from 0 to 1; NaN where no weight is known.

    >>> import torch
    >>> shares_of(torch.tensor([0.0, 2.0, 9.0, -1.0, torch.inf]), largest=4.0).tolist()
    [0.0, 0.5, 1.0, nan, nan]
    """
    import torch

    known = weights.isfinite() & (weights >= 0)
    return torch.where(known, (weights / largest).clamp(max=1.0), torch.nan)


def weight_words(name: str, weights: object, largest: float | None) -> str:
    """Return weights and their public bound in words; "" without weights.

    Args:
        name: of the weights.
        weights: what is given, None or "" for nothing.
        largest: W.

    Raises:
        ValueError: if one is given without the other, or W is not positive.

    >>> weight_words("w", "w", 5.0)
    'w, of which more than 5 counts as 5'
    """
    missing = weights is None or (isinstance(weights, str) and not weights)
    if missing and largest is None:
        return ""
    if missing:
        raise ValueError(f"largest_weight={largest!r}: it bounds weights, and none are given")
    if largest is None:
        raise ValueError(
            f"{name}: weights of rows need a public bound, largest_weight= (--largest-weight), "
            "chosen without looking at the rows; a larger weight counts as it"
        )
    bound = f"{validate.positive('largest_weight', largest):g}"
    return f"{name}, of which more than {bound} counts as {bound}"


def given_weights(weights: object, largest: float | None) -> dict[str, Any]:
    """Return what :class:`bdpvi.Dataset` takes of weights, (N,), and their bound; errors as above.

    >>> given_weights([1.0, 4.0], 2.0)["preprocessing"]
    {'declared': {'weights': 'weights, of which more than 2 counts as 2'}}
    """
    if not (said := weight_words("weights", weights, largest)):
        return {}
    shares = shares_of(validate.numbers("weights", weights), largest or 1.0)
    return {"weights": shares, "preprocessing": {DECLARED: {"weights": said}}}


def refuse_weights(data: Any, what: str) -> None:
    """Refuse weighted records where weights would be ignored.

    Raises:
        ValueError: naming what takes them.
    """
    if data.weighted:
        raise ValueError(f"weights: {what} takes none. {TAKEN_BY} do; or leave the weights out")
