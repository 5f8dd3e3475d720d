"""How far one record moves the posterior."""

from typing import TYPE_CHECKING

from bdpvi._runtime.lazy import lazy

if TYPE_CHECKING:
    from bdpvi.neighbours.route import Add, Remove
else:
    __getattr__ = lazy(
        __name__,
        {
            "route": ("Add", "Remove"),
        },
    )

__all__ = ["Add", "Remove"]
