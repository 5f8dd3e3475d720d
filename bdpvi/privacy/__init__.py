"""Privacy accounting in the worst case: from events to ε, and the ledger of what was spent."""

from typing import TYPE_CHECKING

from bdpvi._ground.lazy import lazy

if TYPE_CHECKING:
    from bdpvi.privacy.assumptions import Assumption
    from bdpvi.privacy.conceivable import Influence
    from bdpvi.privacy.cost import Exposure
    from bdpvi.privacy.entry import Charge
    from bdpvi.privacy.groups import group
else:
    __getattr__ = lazy(
        __name__,
        {
            "entry": ("Charge",),
            "conceivable": ("Influence",),
            "assumptions": ("Assumption",),
            "cost": ("Exposure",),
            "groups": ("group",),
        },
    )

__all__ = ["Assumption", "Charge", "Exposure", "Influence", "group"]


def __dir__() -> list[str]:
    return __all__
