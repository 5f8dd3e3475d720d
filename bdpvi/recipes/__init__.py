"""Settings fixed before any record is seen, and the processing of a table by them."""

from typing import TYPE_CHECKING

from bdpvi._runtime.lazy import lazy

if TYPE_CHECKING:
    from bdpvi.recipes.noisy_scores import NoisyScores
    from bdpvi.recipes.objective import ObjectivePerturbation
    from bdpvi.recipes.recipe import Recipe
else:
    __getattr__ = lazy(
        __name__,
        {
            "noisy_scores": ("NoisyScores",),
            "objective": ("ObjectivePerturbation",),
            "recipe": ("Recipe",),
        },
    )

__all__ = ["NoisyScores", "ObjectivePerturbation", "Recipe"]
