"""A network's trial before the first step: gradients against plain autograd, on made-up records.

A copy in float64, with constants in place of random numbers, so that results for a record alone and
in a batch can be compared.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from bdpvi._ground.host import HOST
from bdpvi._ground.types import PrivacyUtilityWarning
from bdpvi._ground.undropped import Undropped
from bdpvi.networks.gradients import (
    Batch,
    Each,
    Loss,
    RecordGradients,
    alone,
    by_vmap,
    call,
    fork_random_state,
    one_by_one,
    track_layers,
    trainable,
    words_of_layer,
)

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
        wider = cls(deepcopy(module).double(), wide, NEAR[torch.float64])
        with suppress(Exception):  # a dtype hard-coded in the module or the loss
            wider._run(loss)
            return replace(wider, module=deepcopy(module).double())
        made = cls(deepcopy(module), batch, NEAR[torch.float32])
        try:
            made._run(None)
        except Exception as error:
            raise ValueError(
                f"module raised {type(error).__name__} on made-up records ({_first(error)}): no "
                "real one is looked at before the first charge. If it needs others than numbers "
                "from 0 to 1 and whole numbers from 0 up, give some made-up (x, y) that it takes "
                "as settings.example"
            ) from error
        return replace(made, module=deepcopy(module))

    def _run(self, loss: Loss | None) -> None:
        with still(self.batch), torch.no_grad():
            output = call(self.module, self.batch[0])
            if loss is not None:
                loss(output, self.batch[1])

    def perturbed_copy(self) -> nn.Module:
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
    autocast = torch.autocast(device.type, enabled=False)
    with fork_random_state(device), autocast, Undropped(0.5):
        torch.manual_seed(0)
        yield


def _first(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]


_STEPS, _RATE = 3, 10.0
"""Trial steps of a copy of the module, enough to reveal what fails with large weights."""

Fixed = Sequence[tuple[int, int | slice]]
"""Number of a trainable weight, and its entries along the first dimension."""


def make_gradients(
    module: nn.Module, loss: Loss, physical_batch: int | None, batches: Sequence[Batch]
) -> RecordGradients:
    """Return per-record gradients, after a copy's were compared with autograd's.

    The copy then takes some steps, so that whatever fails, fails before any charge.

    Args:
        module, loss, physical_batch: as for :func:`make_private`.
        batches: made-up records in at least two batch sizes, so that no dimension of the module can
            be mistaken for the batch dimension in both.

    Warns:
        PrivacyUtilityWarning: if gradients are computed by one record after the other, naming the
            layer that ``torch.vmap`` does not follow.

    Raises:
        ValueError: naming the layer without gradients of single records.
    """
    each: Each = by_vmap
    if wrong := _wrong(by_vmap, module, loss, batches):
        each = one_by_one
        if failed := _wrong(one_by_one, module, loss, batches):
            raise ValueError(f"{failed}; put a layer or a loss in its place that autograd follows")
        warnings.warn(
            f"{wrong} by torch.vmap. They are computed of one record after the other, which is "
            "slower",
            PrivacyUtilityWarning,
            stacklevel=3,
        )
    _check_steps(each, module, loss, batches[-1])
    return RecordGradients(module, loss, physical_batch, each)


def without_gradient(module: nn.Module, loss: Loss, batches: Sequence[Batch]) -> Fixed:
    """Return the weights that never have a gradient: unused weights and padding rows.

    A padding row counts only if autograd agrees: a row tied to another layer has a gradient.
    """
    places = {id(weight): at for at, weight in enumerate(trainable(module))}
    unused, rows = set(places.values()), _padding(module)
    for batch in batches:
        trial = TrialRun.of(module, batch, loss)
        with still(trial.batch):
            for each in alone(trial.perturbed_copy(), loss, trial.batch):
                unused -= {at for at, one in enumerate(each) if one is not None}
                rows = [(w, row) for w, row in rows if not _any(each[places[id(w)]], TRIED_ROW)]
    fixed: list[tuple[int, int | slice]] = [(at, slice(None)) for at in sorted(unused)]
    return fixed + [(places[id(w)], row) for w, row in rows if places[id(w)] not in unused]


def _padding(module: nn.Module) -> list[tuple[Tensor, int]]:
    return [
        (layer.weight, layer.padding_idx)
        for layer in module.modules()
        if isinstance(layer, (nn.Embedding, nn.EmbeddingBag))
        and layer.padding_idx is not None
        and layer.weight.requires_grad
    ]


def _any(gradient: Tensor | None, row: int) -> bool:
    return gradient is not None and bool(gradient[row].any())


def check_unchanged(
    module: nn.Module, before: Mapping[str, Tensor], now: Mapping[str, Tensor]
) -> None:
    """Refuse a module whose forward pass changes its weights, without clip and noise.

    Raises:
        ValueError: naming the weight and its layer.
    """
    for name, value in now.items():
        if not torch.equal(before[name], value.detach()):
            owner = name.rpartition(".")[0]
            kind = type(module.get_submodule(owner)).__name__
            raise ValueError(
                f"module changes its weight {name!r} outside the optimiser's step, by records and "
                f"without noise; {kind} may do that on its own, as Embedding(max_norm=...) does"
            )


def _check_steps(each: Each, module: nn.Module, loss: Loss, batch: Batch) -> None:
    """Take trial steps with a copy; refuse a module that changes its own weights in a step."""
    with fork_random_state(batch[1].device):
        tried = deepcopy(module)
        made = RecordGradients(tried, loss, each=each)
        for _ in range(_STEPS):
            before = {name: value.detach().clone() for name, value in tried.named_parameters()}
            made.norms(batch)
            total = made.clipped_sum(batch, 1.0)
            check_unchanged(module, before, dict(tried.named_parameters()))
            with torch.no_grad():
                for weight, one in zip(trainable(tried), total, strict=True):
                    weight.add_(one, alpha=_RATE / len(batch[1]))


def _wrong(each: Each, module: nn.Module, loss: Loss, batches: Sequence[Batch]) -> str:
    """Return what is wrong with gradients of a copy of the module, naming the layer; "" if none."""
    for batch in batches:
        trial = TrialRun.of(module, batch, loss)
        names: Sequence[str] = ()
        try:
            with still(trial.batch), track_layers(copy := trial.perturbed_copy()) as names:
                if _agree(each, copy, loss, trial):
                    continue
            return "module: gradients of single records differ from autograd's"
        except Exception as error:  # whatever a module or vmap may raise
            return f"{words_of_layer(module, names)} has no gradients of single records ({error})"
    return ""


def _agree(each: Each, module: nn.Module, loss: Loss, trial: TrialRun) -> bool:
    """Whether gradients are those by plain autograd, up to rounding."""
    wanted = one_by_one(module, loss, trial.batch)
    near = trial.near * float(torch.stack([one.abs().max() for one in wanted]).max().nan_to_num())
    return all(
        torch.allclose(one, other, rtol=trial.near, atol=near, equal_nan=True)
        for one, other in zip(each(module, loss, trial.batch), wanted, strict=True)
    )
