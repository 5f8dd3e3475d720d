"""Checks per-record gradients against plain autograd before anything is charged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from bdpvi._ground import validate
from bdpvi.networks.gradients import (
    GRAD_SAMPLE_MODES,
    MARGIN,
    Batch,
    FunctionalGradients,
    GradSampleMode,
    Loss,
    OpacusGradients,
    RecordGradients,
    call,
    trainable,
    trainable_here,
)
from bdpvi.networks.trial import TRIED_ROW, TrialRun, entered, still

_STEPS, _RATE = 3, 10.0
"""Trial steps of a copy of the module, enough to reveal what fails with large weights."""

Fixed = Sequence[tuple[int, int | slice]]
"""Number of a trainable weight, and its entries along the first dimension."""


def make_gradients(
    mode: GradSampleMode,
    module: nn.Module,
    loss: Loss,
    physical_batch: int | None,
    batches: Sequence[Batch],
) -> RecordGradients:
    """Return per-record gradients, after comparing a copy's with autograd's record by record.

    The copy then takes some steps, so that whatever fails, fails before any charge.

    Args:
        mode, module, loss, physical_batch: as for :func:`make_private`.
        batches: made-up records in at least two batch sizes, so that no dimension of the module can
            be mistaken for the batch dimension in both.

    Raises:
        ValueError: naming ``grad_sample_mode``, or the layer without such gradients.
        ImportError: if Opacus is requested and not installed.
    """
    validate.choice("grad_sample_mode", mode, GRAD_SAMPLE_MODES)
    for batch in batches:
        trial = TrialRun.of(module, batch, loss)
        with still(trial.batch):
            if wrong := _wrong(mode, trial.moved(), loss, trial):
                raise ValueError(_refusal(mode, module, loss, trial, wrong))
    _check_steps(mode, module, loss, batches[-1])
    return _made(mode, module, loss, physical_batch)


def without_gradient(module: nn.Module, loss: Loss, batches: Sequence[Batch]) -> Fixed:
    """Return the weights that never have a gradient: unused weights and padding rows.

    A padding row counts only if autograd agrees: a row tied to another layer has a gradient.
    """
    places = {id(weight): at for at, weight in enumerate(trainable(module))}
    unused, rows = set(places.values()), _padding(module)
    for batch in batches:
        trial = TrialRun.of(module, batch, loss)
        with still(trial.batch):
            for each in _alone(trial.moved(), loss, trial.batch):
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


def _check_steps(mode: GradSampleMode, module: nn.Module, loss: Loss, batch: Batch) -> None:
    """Take trial steps with a copy; refuse a module that changes its own weights in a step."""
    with torch.random.fork_rng([batch[1].device] if batch[1].is_cuda else []):
        tried = deepcopy(module)
        made = _made(mode, tried, loss, None)
        for _ in range(_STEPS):
            before = {name: value.detach().clone() for name, value in tried.named_parameters()}
            made.norms(batch)
            total = made.clipped_sum(batch, 1.0)
            check_unchanged(module, before, dict(tried.named_parameters()))
            with torch.no_grad():
                for weight, one in zip(trainable(tried), total, strict=True):
                    weight.add_(one, alpha=_RATE / len(batch[1]))


def _made(
    mode: GradSampleMode, module: nn.Module, loss: Loss, physical_batch: int | None
) -> RecordGradients:
    if mode == "functorch":
        return FunctionalGradients(module, loss, physical_batch)
    return OpacusGradients(module, loss, physical_batch, ghost=mode == "ghost")


@dataclass(frozen=True)
class _Wrong:
    """A fault in the gradients: an error and the layer where it occurred, or a difference."""

    error: Exception | None = None
    layer: str = ""


def _wrong(mode: GradSampleMode, module: nn.Module, loss: Loss, trial: TrialRun) -> _Wrong | None:
    """Return the fault in a mode's gradients of a module, or None.

    Norms are compared, and sums: of unclipped gradients, and of gradients clipped to one length.
    """
    try:
        with entered(module) as names:
            agree = _agree(mode, module, loss, trial)
    except ImportError:
        raise
    except Exception as error:  # whatever a module, its hooks or vmap may raise
        return _Wrong(error, names[-1] if names else "")
    return None if agree else _Wrong()


def _agree(mode: GradSampleMode, module: nn.Module, loss: Loss, trial: TrialRun) -> bool:
    weights = trainable(module)
    norms = torch.stack([_norm(each) for each in _alone(module, loss, trial.batch)])
    found = _made(mode, module, loss, None)
    if not _near(found.norms(trial.batch), norms, norms, trial.near):
        return False
    positive = norms[norms > 0]
    if not len(positive):
        return True
    for clip in (0.5 * float(positive.min()), 2 * float(positive.max())):
        factors = (clip * (1 - MARGIN) / norms).clamp(max=1.0)
        total = [torch.zeros_like(weight) for weight in weights]
        for factor, each in zip(factors, _alone(module, loss, trial.batch), strict=True):
            for whole, one in zip(total, each, strict=True):
                if one is not None and float(factor) < float("inf"):
                    whole += factor.to(one) * one
        sums = found.clipped_sum(trial.batch, clip)
        pairs = zip(sums, total, strict=True)
        if not all(_near(a, b, norms.clamp(max=clip), trial.near) for a, b in pairs):
            return False
    return True


def _alone(module: nn.Module, loss: Loss, batch: Batch) -> Iterator[list[Tensor | None]]:
    """Yield the gradient of each record by plain autograd, as a batch of its own."""
    weights = trainable(module)
    for at in range(len(batch[1])):
        x, y = tree_map(lambda one, at=at: one[at : at + 1], batch)
        value = loss(call(module, x), y).sum()
        yield list(torch.autograd.grad(value, weights, allow_unused=True))


def _norm(each: Sequence[Tensor | None]) -> Tensor:
    """Return the norm over all weights; 0 where it is not finite, as that counts as zero."""
    norms = [one.double().norm() for one in each if one is not None]
    whole: Tensor = torch.stack(norms).norm()
    return whole.nan_to_num(0.0, 0.0, 0.0)


def _near(found: Tensor, wanted: Tensor, norms: Tensor, near: float) -> bool:
    """Whether two are equal up to rounding errors relative to the records' norms."""
    if found.shape != wanted.shape:
        return False
    off = (found.double() - wanted.double()).abs().max() if found.numel() else torch.zeros(())
    return bool(off <= near * norms.max())


def _refusal(
    mode: GradSampleMode, module: nn.Module, loss: Loss, trial: TrialRun, wrong: _Wrong
) -> str:
    """Return the error about the gradients, naming the layer at fault."""
    name = wrong.layer or _blamed(mode, loss, trial)
    layer = module.get_submodule(name)
    place = f"module has layer {name!r} ({type(layer).__name__})" if name else "module"
    instead = _instead(module, mode)
    if wrong.error is not None:
        which = f"{place}, which has" if name else f"{place} has"
        return (
            f"{which} no gradients of single records with grad_sample_mode={mode!r} "
            f"({wrong.error}); {instead}"
        )
    return (
        f"{place}{', whose' * bool(name) or ':'} gradients of single records differ from "
        f"autograd's with grad_sample_mode={mode!r}, as those of a padding row do or where an "
        f"input has no row for each record; {instead}"
    )


def _blamed(mode: GradSampleMode, loss: Loss, trial: TrialRun) -> str:
    """Return the first layer whose weights alone have wrong gradients; "", the module, if all."""
    whole = trial.moved()
    layers = [name for name, layer in whole.named_modules() if trainable_here(layer)]
    wrong = []
    for name in layers:
        copy = deepcopy(whole)
        kept = {id(weight) for weight in trainable_here(copy.get_submodule(name))}
        for weight in copy.parameters():
            weight.requires_grad_(id(weight) in kept)
        if _wrong(mode, copy, loss, trial):
            wrong.append(name)
    several = len(layers) > 1 and len(wrong) == len(layers)
    return "" if several or not wrong else wrong[0]


def _instead(module: nn.Module, mode: str) -> str:
    for name, layer in module.named_modules():
        if isinstance(layer, nn.RNNBase):
            return (
                f"put opacus.layers.DP{layer.mode.split('_')[0]} in the place of layer {name!r} "
                f"({type(layer).__name__}), which trains in every mode"
            )
    return f"try {'hooks' if mode == 'functorch' else 'functorch'!r}"
