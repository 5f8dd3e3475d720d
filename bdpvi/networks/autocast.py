"""Mixed precision is tried on made-up records before a step under it is charged."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from bdpvi.networks.gradients import Batch, RecordGradients
from bdpvi.networks.trial import blamed, entered


class Autocast:
    """The dtypes of ``torch.autocast`` in which the gradients of made-up records were computed.

    A layer may have gradients of single records in single precision alone. Every record would then
    fail in a step, and count as zero: a charge for noise only.

    Args:
        module: the network.
        gradients: of the network.
        batch: made-up records.
    """

    def __init__(self, module: nn.Module, gradients: RecordGradients, batch: Batch) -> None:
        self._module, self._gradients, self._batch = module, gradients, batch
        self._known: list[torch.dtype | None] = [None]

    def check(self) -> None:
        """Try the current dtype, if it is new.

        Raises:
            ValueError: naming the layer that fails.
        """
        device = self._batch[1].device
        on = torch.is_autocast_enabled(device.type)
        now = torch.get_autocast_dtype(device.type) if on else None
        if now in self._known:
            return
        names: Sequence[str] = ()
        try:
            with (
                torch.random.fork_rng([device] if device.type == "cuda" else []),
                entered(self._module) as names,
            ):
                self._gradients.norms(self._batch)
                self._gradients.clipped_sum(self._batch, 1.0)
        except Exception as error:  # whatever a module or vmap may raise
            where = blamed(self._module, names)
            raise ValueError(
                f"torch.autocast in {now}: {where} has no gradients of single records there "
                f"({error}). Nothing was charged; call step() outside torch.autocast"
            ) from error
        self._known.append(now)
