"""From a table to a shared file, by settings fixed before any record is seen."""

from typing import TYPE_CHECKING

from bdpvi._ground.lazy import lazy

if TYPE_CHECKING:
    from bdpvi.tables.looking import look
    from bdpvi.tables.looks import ColumnLook, Finding, TableLook
    from bdpvi.tables.predictions import Predictions
    from bdpvi.tables.prepared import Prepared
    from bdpvi.tables.recipe import Recipe
else:
    __getattr__ = lazy(
        __name__,
        {
            "looking": ("look",),
            "looks": ("ColumnLook", "Finding", "TableLook"),
            "predictions": ("Predictions",),
            "prepared": ("Prepared",),
            "recipe": ("Recipe",),
        },
    )

__all__ = ["ColumnLook", "Finding", "Predictions", "Prepared", "Recipe", "TableLook", "look"]


def __dir__() -> list[str]:
    return __all__
