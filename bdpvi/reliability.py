"""Whether an estimate's diagnostics support its bound."""

from __future__ import annotations

from torch import Tensor

from bdpvi.estimators import Estimate


def reliable(estimate: Estimate, failure_probability: float) -> Tensor:
    """Return whether the bound may be relied on, over the estimate's leading dimensions."""
    return estimate.pareto_k <= 0.7
