"""Regressions whose noise is part of the fit: objective perturbation, noisy scores and moments."""

from typing import TYPE_CHECKING

from bdpvi._ground.lazy import lazy

if TYPE_CHECKING:
    from bdpvi.regression.noisy_groups import NoisyGroups
    from bdpvi.regression.noisy_scores import NoisyScores
    from bdpvi.regression.objective import ObjectivePerturbation
else:
    __getattr__ = lazy(
        __name__,
        {
            "noisy_groups": ("NoisyGroups",),
            "noisy_scores": ("NoisyScores",),
            "objective": ("ObjectivePerturbation",),
        },
    )

__all__ = ["NoisyGroups", "NoisyScores", "ObjectivePerturbation"]


def __dir__() -> list[str]:
    return __all__
