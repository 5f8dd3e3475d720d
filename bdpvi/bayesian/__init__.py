"""Guides by variational inference, and what their samples reveal about each record."""

from typing import TYPE_CHECKING

from bdpvi._ground.lazy import lazy

if TYPE_CHECKING:
    from bdpvi.bayesian.accounting.accountant import cost_of
    from bdpvi.bayesian.accounting.panel import Panel
    from bdpvi.bayesian.accounting.settings import Accounting
    from bdpvi.bayesian.curve import draw_groups
    from bdpvi.bayesian.neighbours.route import Add, Remove
    from bdpvi.bayesian.optimum.drawn import FixedDraws
    from bdpvi.bayesian.pricing import membership
    from bdpvi.bayesian.releases import preview
else:
    __getattr__ = lazy(
        __name__,
        {
            "accounting.accountant": ("cost_of",),
            "accounting.panel": ("Panel",),
            "accounting.settings": ("Accounting",),
            "neighbours.route": ("Add", "Remove"),
            "optimum.drawn": ("FixedDraws",),
            "curve": ("draw_groups",),
            "pricing": ("membership",),
            "releases": ("preview",),
        },
    )

__all__ = [
    "Accounting",
    "Add",
    "FixedDraws",
    "Panel",
    "Remove",
    "cost_of",
    "draw_groups",
    "membership",
    "preview",
]


def __dir__() -> list[str]:
    return __all__
