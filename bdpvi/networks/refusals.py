"""Refuses modules, losses and optimisers that DP-SGD cannot train, naming the layer at fault."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map

from bdpvi._ground.checkpoint import reread
from bdpvi._ground.outputs import several
from bdpvi.networks.gradients import Batch, Loss, call, track_layers, trainable
from bdpvi.networks.preflight import TrialRun, still

INSTEAD = (
    "use GroupNorm or LayerNorm instead, or freeze its statistics: layer.eval(), if they come from "
    "public data"
)

FIRST = (
    "records come first in every input and output (batch_first=True where a layer goes over "
    "steps), and the output of a record must depend on its own row only"
)

COMPUTED = (
    "use torch.nn.utils.parametrizations in place of torch.nn.utils.weight_norm or spectral_norm, "
    "and prune.remove after pruning"
)


def check_module(module: nn.Module, batch: Batch) -> None:
    """Refuse a module that mixes records or remembers them.

    A copy of the module sees the records together, and each of them alone. A record's outputs must
    not depend on the other records, and buffers must not change.

    Args:
        module: the network, in the mode it will be trained in.
        batch: at least three made-up records.

    Raises:
        ValueError: naming the layer; or if weights are in half precision.

    >>> module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    >>> check_module(module, (torch.eye(5, 2), torch.ones(5)))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    ValueError: module has layer '1' (BatchNorm1d), which mixes records; use GroupNorm ...
    """
    half = {w.dtype for w in trainable(module)} - {torch.float32, torch.float64}
    if half:
        raise ValueError(
            f"module has weights of type {half.pop()}; use float32, and torch.autocast around "
            "step() for mixed precision"
        )
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) and layer.training:
            raise _refusal(name, layer, "mixes records", INSTEAD)
    trial = TrialRun.of(module, batch)
    copy, (x, y) = trial.perturbed_copy(), trial.batch
    before = {name: value.clone() for name, value in copy.named_buffers()}
    with torch.no_grad(), still(batch):
        together = _passes(copy, x)
        _check_buffers(module, before, copy)
        for at in range(len(y)):
            alone = _passes(copy, tree_map(lambda one, at=at: one[at : at + 1], x))
            if not _same(together[-1][2], alone[-1][2], at, trial.near):
                name = _mixing(together, alone, at, trial.near)
                raise _refusal(name, module.get_submodule(name), "mixes records", FIRST)


def check_kind(module: nn.Module) -> None:
    """Refuse a module without Python layers, or with weights that have no shape or are computed.

    Raises:
        ValueError: naming the layer.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, torch.jit.ScriptModule):
            raise _refusal(name, layer, "torch.jit compiled", "give the module as it was before")
        if any(is_lazy(weight) for weight in layer.parameters(recurse=False)):
            raise _refusal(
                name, layer, "has no weights before its first call", "call the module once"
            )
        for attribute, value in vars(layer).items():
            if isinstance(value, Tensor) and not value.is_leaf:  # no copy can be made
                raise _refusal(name, layer, f"keeps a computed tensor {attribute!r}", COMPUTED)


def _check_buffers(module: nn.Module, before: Mapping[str, Tensor], copy: nn.Module) -> None:
    """Refuse a module whose copy changed its buffers."""
    for name, value in copy.named_buffers():
        if not torch.equal(before[name], value):
            owner = name.rpartition(".")[0]
            kind = module.get_submodule(owner)
            raise _refusal(owner, kind, f"changes its buffer {name!r}", INSTEAD)


def check_loss(loss: Loss, module: nn.Module, batch: Batch) -> None:
    """Refuse a loss that is neither one number per record nor the sum or mean of such numbers.

    Raises:
        ValueError: naming ``loss``.
    """
    trial = TrialRun.of(module, batch, loss)
    x, y = trial.batch
    with torch.no_grad(), still(batch):
        output = call(trial.module, x)
        alone = [
            loss(tree_map(lambda one, i=i: one[i : i + 1], output), y[i : i + 1])
            for i in range(len(y))
        ]
        together = loss(output, y)
    if any(value.numel() != 1 for value in alone):
        raise ValueError(
            f"loss has {several(alone[0].numel(), 'value')} for one record; it needs one"
        )
    each = torch.stack([value.reshape(()) for value in alone])
    if not any(
        together.numel() == expected.numel()
        and _alike(together.reshape(expected.shape), expected, trial.near)
        for expected in (each, each.sum(), each.mean())
    ):
        raise ValueError(
            "loss mixes records: for a batch it is neither one value per record, nor the sum or "
            "mean of the values of single records; use reduction='none' or 'sum'"
        )


def check_optimizer(optimizer: Optimizer, module: nn.Module) -> None:
    """Refuse an optimiser that does not train exactly the trainable weights.

    It may have frozen weights of the module as well, as ``module.parameters()`` gives them: an
    optimiser passes over a weight without a gradient.

    Raises:
        ValueError: naming ``optimizer``, or a frozen weight with a gradient, which is none of ours.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("optimizer=LBFGS evaluates the loss itself; use SGD or Adam")
    given = {id(w) for group in optimizer.param_groups for w in group["params"]}
    wanted = {id(w) for w in trainable(module)}
    if not wanted:
        raise ValueError("module has no trainable weight; set requires_grad_(True) on some")
    frozen = {id(w) for w in module.parameters() if not w.requires_grad}
    check_frozen(optimizer, module)
    if given - frozen != wanted:
        raise ValueError(
            f"optimizer has {several(len(given), 'weight')}, {len(given & wanted)} of the "
            f"{len(wanted)} that the module trains; give it all of these and no others "
            "(requires_grad_(False) freezes)"
        )


def check_rehearsed(optimizer: Optimizer, module: nn.Module) -> None:
    """Refuse an optimiser that cannot take two steps without gradient, saved and loaded between.

    A copy of it does so, with a copy of the module.

    Raises:
        ValueError: naming ``optimizer``.
    """
    memo: dict[int, Any] = {}
    try:
        copy = deepcopy(module, memo)
        tried = object.__new__(type(optimizer))
        tried.__dict__ = deepcopy(vars(optimizer), memo)
    except Exception:  # a module or an optimiser that cannot be copied
        return
    try:
        for _ in range(2):
            for weight in trainable(copy):
                weight.grad = torch.zeros_like(weight)
            tried.step()
            state = reread({"optimizer": tried.state_dict(), **copy.state_dict()})
            tried.load_state_dict(state["optimizer"])
    except Exception as error:  # whatever an optimiser of the user's raises
        raise ValueError(
            f"optimizer={type(optimizer).__name__} raised {type(error).__name__} in two steps "
            f"without records ({error!s:.200}); use one of torch.optim. Nothing was charged"
        ) from error


def check_frozen(optimizer: Optimizer, module: nn.Module) -> None:
    """Refuse a gradient of a frozen weight: the optimiser would add it without clip and noise.

    Raises:
        ValueError: naming the weight.
    """
    given = {id(w) for group in optimizer.param_groups for w in group["params"]}
    for name, weight in module.named_parameters():
        if id(weight) in given and not weight.requires_grad and weight.grad is not None:
            raise ValueError(
                f"module has a frozen weight {name!r} with a gradient, which the optimizer would "
                "use without clip and noise. Nothing was charged; call module.zero_grad()"
            )


_Pass = tuple[str, list[Tensor], list[Tensor]]
"""A layer's name, and its inputs and outputs in a forward pass."""


def _passes(module: nn.Module, x: Any) -> list[_Pass]:
    """Return the passes of all layers in the order in which they end; the module's pass is last.

    Raises:
        ValueError: naming the layer that fails.
    """
    ended: list[_Pass] = []

    def end(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            ended.append((name, _copied((args, kwargs)), _copied(output)))

        return hook

    hooks = [
        layer.register_forward_hook(end(name), with_kwargs=True)
        for name, layer in module.named_modules()
    ]
    try:
        with track_layers(module) as names:
            call(module, x)
    except Exception as error:
        layer = module.get_submodule(names[-1])
        raise _refusal(names[-1], layer, f"fails on one record alone ({error})", FIRST) from error
    finally:
        for hook in hooks:
            hook.remove()
    return ended


def _copied(values: Any) -> list[Tensor]:
    return [one.clone() for one in tree_leaves(values) if isinstance(one, Tensor)]


def _same(together: list[Tensor], alone: list[Tensor], at: int, near: float) -> bool:
    """Whether a record's rows, in tensors with one row per record, equal its values alone."""
    pairs = [
        (all_[at], one[0])
        for all_, one in zip(together, alone, strict=False)
        if one.ndim and len(one) == 1 and len(all_) > at and all_.shape[1:] == one.shape[1:]
    ]
    return bool(pairs) and all(_alike(a, b, near) for a, b in pairs)


def _mixing(together: list[_Pass], alone: list[_Pass], at: int, near: float) -> str:
    """Return the layer that gives different outputs for the same inputs; "" is the module."""
    for (name, inputs, outputs), (other, taken, made) in zip(together, alone, strict=False):
        if name == other and _same(inputs, taken, at, near) and not _same(outputs, made, at, near):
            return name
    return ""


def _alike(one: Tensor, other: Tensor, near: float) -> bool:
    if not one.is_floating_point():
        return torch.equal(one, other)
    return torch.allclose(one, other, rtol=near, atol=near / 100, equal_nan=True)


def _refusal(name: str, layer: nn.Module, what: str, instead: str) -> ValueError:
    where = f"layer {name!r} ({type(layer).__name__})" if name else f"({type(layer).__name__})"
    return ValueError(f"module has {where}, which {what}; {instead}")
