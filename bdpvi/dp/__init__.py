"""Training whose noise is the privacy."""

from typing import TYPE_CHECKING

from bdpvi._runtime.lazy import lazy

if TYPE_CHECKING:
    from bdpvi.dp.federated import Federation
    from bdpvi.dp.federated_vi import FederatedFit, fit_federated
    from bdpvi.dp.rounds import Rounds
else:
    __getattr__ = lazy(
        __name__,
        {
            "federated": ("Federation",),
            "federated_vi": ("FederatedFit", "fit_federated"),
            "rounds": ("Rounds",),
        },
        packages=("networks",),
    )

__all__ = ["FederatedFit", "Federation", "Rounds", "fit_federated"]
