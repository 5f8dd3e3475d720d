"""Norms of single records' gradients, and sums of clipped ones, for any torch module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_map

from bdpvi._ground import validate
from bdpvi.releases.clipping import clipped_sum

Batch = tuple[Any, Tensor]
"""Inputs (B, ...), a tensor, a tuple of several or a mapping by name, and targets (B, ...)."""

Loss = Callable[[Tensor, Tensor], Tensor]
"""Maps a module's output and the targets to a loss, for one record at a time."""

Each = Callable[[nn.Module, Loss, Batch], list[Tensor]]
"""Returns the gradients of single records, (B, ...) for each trainable weight."""

_NUMBERS, _ON_DEVICE, _MOST = 2**22, 2**26, 512
"""Numbers of gradients at a time: on the CPU as many as its caches have; on a device, and for
:data:`_MOST` records at most, as many as leave it room."""


def call(module: nn.Module, x: Any) -> Any:
    """Return the module's output for positional (tuple or list) or named (mapping) arguments."""
    args, kwargs = arguments(x)
    return module(*args, **kwargs)


def arguments(x: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and keyword arguments of a module for inputs ``x``.

    >>> arguments({"words": 1, "mask": 2}), arguments((1, 2)), arguments(1)
    (((), {'words': 1, 'mask': 2}), ((1, 2), {}), ((1,), {}))
    """
    if isinstance(x, Mapping):
        return (), dict(x)
    return (tuple(x) if isinstance(x, (tuple, list)) else (x,)), {}


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """Return the trainable weights; a tied weight counts once."""
    return [weight for weight in module.parameters() if weight.requires_grad]


def by_vmap(module: nn.Module, loss: Loss, batch: Batch) -> list[Tensor]:
    """Return gradients by ``torch.func``, of every module whose forward pass it can follow.

    Each record is a batch of its own, so nothing can mix records, and draws its own dropout.
    """
    weights = {n: w.detach() for n, w in module.named_parameters() if w.requires_grad}

    def value(weights: dict[str, Tensor], x: Any, y: Tensor) -> Tensor:
        args, kwargs = arguments(tree_map(lambda one: one[None], x))
        return loss(functional_call(module, weights, args, kwargs), y[None]).sum()

    found = vmap(grad(value), in_dims=(None, 0, 0), randomness="different")(weights, *batch)
    return [found[name] for name in weights]


def alone(module: nn.Module, loss: Loss, batch: Batch) -> Iterator[list[Tensor | None]]:
    """Yield the gradient of each record by plain autograd; None for unused weights."""
    for at in range(len(batch[1])):
        x, y = tree_map(lambda one, at=at: one[at : at + 1], batch)
        value = loss(call(module, x), y).sum()
        yield list(torch.autograd.grad(value, trainable(module), allow_unused=True))


def one_by_one(module: nn.Module, loss: Loss, batch: Batch) -> list[Tensor]:
    """Return gradients by plain autograd, of one record after the other: of any module, slowly."""
    found = list(alone(module, loss, batch))
    return [
        torch.stack([torch.zeros_like(weight) if part is None else part for part in parts])
        for weight, *parts in zip(trainable(module), *found, strict=True)
    ]


@contextmanager
def track_layers(module: nn.Module) -> Iterator[list[str]]:
    """Yield the names of the layers currently in their forward pass, innermost last."""
    names: list[str] = []

    def begin(name: str) -> Callable[..., None]:
        return lambda *_: names.append(name)

    def end(*_: Any) -> None:
        names.pop()

    hooks = []
    for name, layer in module.named_modules():
        hooks.append(layer.register_forward_pre_hook(begin(name)))
        hooks.append(layer.register_forward_hook(end))
    try:
        yield names
    finally:
        for hook in hooks:
            hook.remove()


def words_of_layer(module: nn.Module, names: Sequence[str]) -> str:
    """Return what to call the layer that failed, given those that :func:`track_layers` yields."""
    name = names[-1] if names else ""
    return f"layer {name!r} ({type(module.get_submodule(name)).__name__})" if name else "module"


def fork_random_state(device: torch.device) -> AbstractContextManager[None]:
    """Return a context after which torch's random state, there and on the host, is as before."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


class RecordGradients:
    """The gradients that a private step needs from a network, some records at a time.

    Norms are over all trainable weights together. Under ``torch.autocast``, too, norms and sums are
    in float64.

    Args:
        module: the network.
        loss: of one record.
        physical_batch: records at a time.
        each: how gradients are computed.

    >>> layer = nn.Linear(3, 1, bias=False)
    >>> gradients = RecordGradients(layer, lambda out, y: (out - y).sum())
    >>> x = torch.tensor([[3.0, 0.0, 4.0], [0.0, 0.5, 0.0]])
    >>> gradients.norms((x, torch.zeros(2))).tolist()
    [5.0, 0.5]
    >>> gradients.clipped_sum((x, torch.zeros(2)), clip=1.0)[0].round(decimals=3)
    tensor([[0.6000, 0.5000, 0.8000]], dtype=torch.float64)
    """

    def __init__(
        self, module: nn.Module, loss: Loss, physical_batch: int | None = None, each: Each = by_vmap
    ) -> None:
        self.module, self.loss, self.each = module, loss, each
        self._tried: list[torch.dtype | None] = [None]
        weights = trainable(module)
        size = max(1, sum(weight.numel() for weight in weights))
        few = max(_NUMBERS // size, min(32, _ON_DEVICE // size))
        many = _ON_DEVICE // size if weights and weights[0].is_cuda else few
        if physical_batch is None:
            physical_batch = min(_MOST, max(1, many))
        self.physical_batch = validate.positive_int("physical_batch", physical_batch)

    def norms(self, batch: Batch) -> Tensor:
        """Return the L2 norm of each record's gradient, (B,).

        0 where a gradient is not finite, as it then counts as zero.
        """
        found = [torch.zeros(0, dtype=torch.float64, device=batch[1].device)]
        found += [clipped_sum(each, 1.0)[1] for each in self._chunks(batch)]
        return torch.cat(found).nan_to_num(posinf=0.0)

    def clipped_sum(self, batch: Batch, clip: float) -> list[Tensor]:
        """Return Σ g · min(1, clip/‖g‖), one float64 tensor for each trainable weight.

        An empty batch has the sum 0. A gradient that is not finite counts as zero: a record must
        not be able to stop the run.

        Args:
            batch: inputs and targets.
            clip: C.
        """
        weights = trainable(self.module)
        total = torch.cat([torch.zeros_like(w, dtype=torch.float64).flatten() for w in weights])
        for each in self._chunks(batch):
            total += clipped_sum(each, clip)[0]
        parts = total.split([weight.numel() for weight in weights])
        return [part.view(weight.shape) for part, weight in zip(parts, weights, strict=True)]

    def check_autocast(self, made_up: Batch) -> None:
        """Try the current dtype of ``torch.autocast`` on made-up records, if it is new.

        A layer may have gradients of single records in single precision alone. Every record would
        then fail in a step, and count as zero: a charge for noise only.

        Raises:
            ValueError: naming the layer that fails.
        """
        device = made_up[1].device
        on = torch.is_autocast_enabled(device.type)
        now = torch.get_autocast_dtype(device.type) if on else None
        if now in self._tried:
            return
        names: Sequence[str] = ()
        try:
            with fork_random_state(device), track_layers(self.module) as names:
                self.norms(made_up)
                self.clipped_sum(made_up, 1.0)
        except Exception as error:  # whatever a module or vmap may raise
            where = words_of_layer(self.module, names)
            raise ValueError(
                f"torch.autocast in {now}: {where} has no gradients of single records there "
                f"({error}). Nothing was charged; call step() outside torch.autocast"
            ) from error
        self._tried.append(now)

    def _chunks(self, batch: Batch) -> Iterator[list[Tensor]]:
        for start in range(0, len(batch[1]), self.physical_batch):
            some = slice(start, start + self.physical_batch)
            part = tree_map(lambda one: one[some], batch)  # noqa: B023
            yield self.each(self.module, self.loss, part)
