"""From a table to a shared file, by settings fixed before any record is seen."""

from typing import TYPE_CHECKING

from bdpvi._ground.lazy import lazy

if TYPE_CHECKING:
    from bdpvi._ground.types import Unit
    from bdpvi.tables.compared import ModelComparison
    from bdpvi.tables.looking import look
    from bdpvi.tables.looks import ColumnLook, Finding, TableLook
    from bdpvi.tables.predictions import Predictions
    from bdpvi.tables.request import Machine, Public, Request
    from bdpvi.tables.spent import account
else:
    __getattr__ = lazy(
        __name__,
        {
            "compared": ("ModelComparison",),
            "looking": ("look",),
            "looks": ("ColumnLook", "Finding", "TableLook"),
            "predictions": ("Predictions",),
            "request": ("Machine", "Public", "Request", "Unit"),
            "spent": ("account",),
        },
    )

__all__ = [
    "ColumnLook",
    "Finding",
    "Machine",
    "ModelComparison",
    "Predictions",
    "Public",
    "Request",
    "TableLook",
    "Unit",
    "account",
    "look",
]


def __dir__() -> list[str]:
    return __all__
