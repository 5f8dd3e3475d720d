"""A network's trial before the first step: a copy in float64, on made-up records, with constants in
place of random numbers, so that results for a record alone and in a batch can be compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from bdpvi._ground.host import HOST
from bdpvi._ground.undropped import Undropped, filled
from bdpvi.networks.gradients import Batch, Loss, call, forked, trainable

NEAR = {torch.float64: 1e-6, torch.float32: 1e-3}
"""Relative tolerance of comparisons, by dtype."""

TRIED_ROW = 0
"""The padding row of embeddings in a trial, which made-up records always contain."""


@dataclass(frozen=True, eq=False)
class TrialRun:
    """A copy of a module, and records for it.

    Attributes:
        module: the copy, in float64 if it runs in float64.
        batch: the records, in the same dtype.
        near: relative tolerance of comparisons.
    """

    module: nn.Module
    batch: Batch
    near: float

    @classmethod
    def of(cls, module: nn.Module, batch: Batch, loss: Loss | None = None) -> TrialRun:
        """Return a trial of a module, and of a loss, in the widest dtype in which both run.

        Raises:
            ValueError: if the module does not run on the records.
        """
        wide = tree_map(lambda one: one.double() if one.is_floating_point() else one, batch)
        made = cls(deepcopy(module).double(), wide, NEAR[torch.float64])
        try:
            made._run(loss)
        except Exception:  # a dtype hard-coded in the module or the loss
            made = cls(deepcopy(module), batch, NEAR[torch.float32])
        else:
            return cls(deepcopy(module).double(), wide, made.near)
        try:
            made._run(None)
        except Exception as error:
            raise ValueError(
                f"module raised {type(error).__name__} on made-up records ({_first(error)}): no "
                "real one is looked at before the first charge. If it needs others than numbers "
                "from 0 to 1 and whole numbers from 0 up, give some made-up (x, y) that it takes "
                "as settings.example"
            ) from error
        return cls(deepcopy(module), batch, made.near)

    def _run(self, loss: Loss | None) -> None:
        with still(self.batch), torch.no_grad():
            output = call(self.module, self.batch[0])
            if loss is not None:
                loss(output, self.batch[1])

    def moved(self) -> nn.Module:
        """Return the module with every trainable weight slightly changed, and another padding row.

        A zero weight would hide the layers before it: they would get no gradient to compare.
        """
        copy, generator = deepcopy(self.module), torch.Generator().manual_seed(1)
        with torch.no_grad():
            for weight in trainable(copy):
                off = torch.rand(weight.shape, generator=generator, device=HOST).to(weight)
                weight.copy_(weight * (0.9 + 0.2 * off) + 0.1 * off * (weight == 0))
        for layer in copy.modules():
            if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) and layer.padding_idx is not None:
                layer.padding_idx = TRIED_ROW
        return copy


@contextmanager
def still(batch: Batch) -> Iterator[None]:
    """Replace every random number that a module draws by the same constant."""
    device = batch[1].device
    with (
        forked(device),
        torch.autocast(device.type, enabled=False),
        _Still(),
    ):
        torch.manual_seed(0)
        yield


class _Still(Undropped):
    """Makes dropout drop nothing, and turns all other random numbers into constants."""

    def drawn(self, out: Any) -> Any:
        return filled(out, 0.5)


def _first(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]
