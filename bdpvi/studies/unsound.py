"""What papers printed and no privacy guarantee follows from: only to reproduce their figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bdpvi import _validate
from bdpvi.accounting.composition import added
from bdpvi.accounting.estimators import Estimate


@dataclass(frozen=True)
class Naive:
    """Σ_t log E_x′ exp(λ D^(t)): NOT SOUND, since x′ is the same in every event.

    Only to reproduce published figures that used it (arXiv 1901.09697v2).
    """

    name = "naive (unsound)"
    limit = None

    def bounds(self, events: int) -> int:
        """Return one for each distinct event."""
        return events

    def add(
        self, state: Estimate | None, cost: Tensor, count: int, bound: Callable[[Tensor], Estimate]
    ) -> Estimate:
        """Return the sum of the bounds of the single events, which bounds nothing."""
        return added(state, bound(cost), count)

    def total(self, state: Estimate, bound: Callable[[Tensor], Estimate]) -> Estimate:
        """Return the sum."""
        return state


def legacy_gaussian_cost(
    distance: Tensor | float, noise: float, rate: float, order: Tensor | float
) -> Tensor:
    """Return λ(λ+1) q² d²/2σ², **unsound**: no privacy guarantee follows from it.

    Triastcyn and Faltings, "Improved Accounting" (arXiv 1901.09697v1). It charges a subsampled
    release as if it were a single Gaussian of distance qd; the true one is a mixture, whose moments
    grow faster. It exists only to reproduce that paper's figure.

    Arguments, shapes and errors as for :func:`subsampled_gaussian_cost`; any λ > 0.
    """
    distance = torch.as_tensor(distance, dtype=torch.float64)
    _validate.every(
        "distance", distance, (distance >= 0) & distance.isfinite(), "be finite and >= 0"
    )
    lam = torch.as_tensor(order, dtype=torch.float64)
    _validate.every("order", lam, (lam > 0) & lam.isfinite(), "be finite and positive")
    lam = lam.reshape(lam.shape + (1,) * distance.ndim)
    noise, rate = _validate.positive("noise", noise), _validate.rate("rate", rate)
    return lam * (lam + 1) * (rate * distance / noise) ** 2 / 2
