"""Releases: charge, draw, store."""

from typing import TYPE_CHECKING

from bdpvi._runtime.lazy import lazy

if TYPE_CHECKING:
    from bdpvi.releasing.prepared import Prepared
    from bdpvi.releasing.releases import calibrate, preview
else:
    __getattr__ = lazy(
        __name__,
        {
            "prepared": ("Prepared",),
            "releases": ("calibrate", "preview"),
        },
    )

__all__ = ["Prepared", "calibrate", "preview"]
