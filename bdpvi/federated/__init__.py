"""Federations: noisy sums of the parameters of clients."""

from typing import TYPE_CHECKING

from bdpvi._ground.lazy import lazy

if TYPE_CHECKING:
    from bdpvi.federated.federated import Federation
    from bdpvi.federated.federated_vi import FederatedFit, fit_federated
    from bdpvi.federated.rounds import Rounds
else:
    __getattr__ = lazy(
        __name__,
        {
            "federated": ("Federation",),
            "federated_vi": ("FederatedFit", "fit_federated"),
            "rounds": ("Rounds",),
        },
    )

__all__ = ["FederatedFit", "Federation", "Rounds", "fit_federated"]


def __dir__() -> list[str]:
    return __all__
