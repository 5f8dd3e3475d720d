"""Private training of torch networks by DP-SGD, without Pyro or a model."""

from typing import TYPE_CHECKING

from bdpvi._ground.lazy import lazy

if TYPE_CHECKING:
    from bdpvi.networks.deep import DPSGDSettings
else:
    __getattr__ = lazy(
        __name__,
        {
            "deep": ("DPSGDSettings",),
        },
    )

__all__ = ["DPSGDSettings"]


def __dir__() -> list[str]:
    return __all__
