"""Privacy accounting: from events to ε. It does not depend on how a guide was trained."""

from typing import TYPE_CHECKING

from bdpvi._runtime.lazy import lazy

if TYPE_CHECKING:
    from bdpvi.accounting.accountant import Accounting, cost_of
    from bdpvi.accounting.book import Charge
    from bdpvi.accounting.conceivable import Influence
    from bdpvi.accounting.cost import Assumption, Exposure
    from bdpvi.accounting.panel import Panel
else:
    __getattr__ = lazy(
        __name__,
        {
            "accountant": ("Accounting", "cost_of"),
            "book": ("Charge",),
            "conceivable": ("Influence",),
            "cost": ("Assumption", "Exposure"),
            "panel": ("Panel",),
        },
    )

__all__ = ["Accounting", "Assumption", "Charge", "Exposure", "Influence", "Panel", "cost_of"]
