"""What DP-SGD cannot train, told before the first step and by the layer's name."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map

from bdpvi.dp.networks.gradients import Batch, Loss, trainable

INSTEAD = (
    "use GroupNorm or LayerNorm instead, or freeze its statistics: layer.eval(), if they come from "
    "public data"
)


def check_module(module: nn.Module, batch: Batch) -> None:
    """Refuse a module that mixes records or remembers them.

    A copy of the module sees two batches that share one record and one stream of random numbers.
    What becomes of that record must not depend on the others, and buffers must stay as they were.

    Args:
        module: the network, in the mode it will be trained in.
        batch: at least five records.

    Raises:
        ValueError: naming the layer; or if weights are in half precision.

    >>> module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    >>> check_module(module, (torch.eye(5, 2), torch.ones(5)))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    ValueError: module has layer '1' (BatchNorm1d), which mixes records; use GroupNorm ...
    """
    weights = trainable(module)
    half = {w.dtype for w in weights} - {torch.float32, torch.float64}
    if half:
        raise ValueError(
            f"module has weights of type {half.pop()}; use float32, and torch.autocast around "
            "step() for mixed precision"
        )
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) and layer.training:
            raise _refused(name, layer, "mixes records")
    copy, seen = deepcopy(module), list[tuple[str, nn.Module, Tensor]]()
    for name, layer in copy.named_modules():
        layer.register_forward_hook(_keep(name, seen))
    before = {name: value.clone() for name, value in copy.named_buffers()}
    x = batch[0]
    runs = []
    with torch.no_grad(), torch.random.fork_rng(_devices(weights[0])):
        for part in ([0, 1, 2], [0, 3, 4]):
            torch.manual_seed(0)
            seen.clear()
            copy(*(one[part] for one in tree_leaves(x)))
            runs.append(list(seen))
    # The module's own output, last of all, decides; the first layer that differs is to blame.
    pairs = [(name, layer, a, b) for (name, layer, a), (*_, b) in zip(*runs, strict=True)]
    if pairs and not _alike(*pairs[-1][2:]):
        name, layer, *_ = next(pair for pair in pairs if not _alike(*pair[2:]))
        raise _refused(name, layer, "mixes records")
    for name, value in copy.named_buffers():
        if not torch.equal(before[name], value):
            owner = name.rpartition(".")[0]
            raise _refused(owner, module.get_submodule(owner), f"changes its buffer {name!r}")


def check_loss(loss: Loss, module: nn.Module, batch: Batch) -> None:
    """Refuse a loss that is not a number for each record, nor the sum or mean of them.

    Raises:
        ValueError: naming ``loss``.
    """
    with torch.no_grad(), torch.random.fork_rng(_devices(next(module.parameters()))):
        # A copy, as a forward pass may change the module.
        output, y = deepcopy(module)(*tree_leaves(batch[0])), batch[1]
        alone = [
            loss(tree_map(lambda one, i=i: one[i : i + 1], output), y[i : i + 1])
            for i in range(len(y))
        ]
        together = loss(output, y)
    if any(value.numel() != 1 for value in alone):
        raise ValueError(f"loss has {alone[0].numel()} values for one record; it needs one")
    each = torch.stack([value.reshape(()) for value in alone])
    if not any(
        together.numel() == expected.numel() and _alike(together.reshape(expected.shape), expected)
        for expected in (each, each.sum(), each.mean())
    ):
        raise ValueError(
            "loss mixes records: for several it is neither one number each, nor the sum or the "
            "mean of what it is for each alone; use reduction='none' or 'sum'"
        )


def check_optimizer(optimizer: Optimizer, module: nn.Module) -> None:
    """Refuse an optimiser that does not train exactly the trainable weights.

    Raises:
        ValueError: naming ``optimizer``.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("optimizer=LBFGS evaluates the loss itself; use SGD or Adam")
    given = {id(w) for group in optimizer.param_groups for w in group["params"]}
    wanted = {id(w) for w in trainable(module)}
    if not wanted:
        raise ValueError("module has no trainable weight; set requires_grad_(True) on some")
    if given != wanted:
        raise ValueError(
            f"optimizer has {len(given)} weights, {len(given & wanted)} of the {len(wanted)} that "
            "the module trains; give it all of these and no others (requires_grad_(False) freezes)"
        )


def _devices(weight: Tensor) -> list[torch.device]:
    return [weight.device] if weight.is_cuda else []


def _keep(name: str, seen: list[tuple[str, nn.Module, Tensor]]) -> Callable[..., None]:
    def hook(layer: nn.Module, _: Any, output: Any) -> None:
        for one in tree_leaves(output):
            if isinstance(one, Tensor) and one.ndim:
                seen.append((name, layer, one[0].clone()))

    return hook


def _alike(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-3, atol=1e-5, equal_nan=True)


def _refused(name: str, layer: nn.Module, what: str) -> ValueError:
    where = f"layer {name!r} ({type(layer).__name__})" if name else f"({type(layer).__name__})"
    return ValueError(f"module has {where}, which {what}; {INSTEAD}")
