"""Norms of single records' gradients, and sums of clipped ones, for any torch module.

A private step needs two things from a network: the norm of each record's gradient, over all
trainable weights together, and the sum of the gradients, each clipped by itself. The
implementations of :class:`RecordGradients` differ in memory and time.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_map

from bdpvi._ground import validate
from bdpvi._ground.halving import WorkError
from bdpvi._ground.outputs import several

Batch = tuple[Any, Tensor]
"""Inputs (B, ...), a tensor, a tuple of several or a mapping by name, and targets (B, ...)."""

Loss = Callable[[Tensor, Tensor], Tensor]
"""Maps a module's output and the targets to a loss, for one record at a time."""

GradSampleMode = Literal["functorch", "hooks", "ghost"]
GRAD_SAMPLE_MODES = ("functorch", "hooks", "ghost")

MARGIN = 1e-5
"""Clipped gradients are shorter than the clip by this relative margin: a norm that float32 rounds
down must not make a gradient longer than the clip."""


class RecordGradients(Protocol):
    """The gradients that a private step needs from a network."""

    def norms(self, batch: Batch) -> Tensor:
        """Return the L2 norm of each record's gradient, over all trainable weights, (B,).

        0 where a gradient is not finite, as it then counts as zero.
        """

    def clipped_sum(self, batch: Batch, clip: float) -> list[Tensor]:
        """Return Σ g · min(1, clip/‖g‖), one tensor for each trainable weight of the module.

        An empty batch has the sum 0. A gradient that is not finite counts as zero: a record must
        not be able to stop the run.

        Args:
            batch: inputs and targets.
            clip: C.
        """


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


class FunctionalGradients:
    """Gradients of single records by ``torch.func``, some records at a time.

    Works for every module whose forward pass ``torch.vmap`` can follow. Holds ``physical_batch``
    gradients in memory. Each record is a batch of its own, so nothing can mix records, and draws
    its own dropout. Under ``torch.autocast`` norms and sums are taken in the weights' own type.

    Args:
        module: the network.
        loss: of one record.
        physical_batch: records at a time; by default as many as fit in 2²⁶ numbers, at most 512.

    >>> layer = nn.Linear(3, 1, bias=False)
    >>> gradients = FunctionalGradients(layer, lambda out, y: (out - y).sum())
    >>> x = torch.tensor([[3.0, 0.0, 4.0], [0.0, 0.5, 0.0]])
    >>> gradients.norms((x, torch.zeros(2))).tolist()
    [5.0, 0.5]
    >>> gradients.clipped_sum((x, torch.zeros(2)), clip=1.0)[0].round(decimals=3)
    tensor([[0.6000, 0.5000, 0.8000]])
    """

    def __init__(self, module: nn.Module, loss: Loss, physical_batch: int | None = None) -> None:
        self.module, self.loss = module, loss
        size = sum(weight.numel() for weight in trainable(module))
        default = min(512, max(1, 2**26 // max(size, 1)))
        self.physical_batch = _at_a_time(physical_batch, default)

    def norms(self, batch: Batch) -> Tensor:
        """See :class:`RecordGradients`."""
        found = [_norms(each) for each in self._chunks(batch)]
        return torch.cat(found) if found else torch.zeros(0)

    def clipped_sum(self, batch: Batch, clip: float) -> list[Tensor]:
        """See :class:`RecordGradients`."""
        total = [torch.zeros_like(weight) for weight in trainable(self.module)]
        for each in self._chunks(batch):
            _add_clipped(total, each, clip)
        return total

    def _chunks(self, batch: Batch) -> Iterator[list[Tensor]]:
        weights = {n: w.detach() for n, w in self.module.named_parameters() if w.requires_grad}

        def value(weights: dict[str, Tensor], x: Any, y: Tensor) -> Tensor:
            args, kwargs = arguments(tree_map(lambda one: one[None], x))
            output = functional_call(self.module, weights, args, kwargs)
            return self.loss(output, y[None]).sum()

        gradients = vmap(grad(value), in_dims=(None, 0, 0), randomness="different")
        for x, y in _split(batch, self.physical_batch):
            each = gradients(weights, x, y)
            yield [each[name] for name in weights]


class OpacusGradients:
    """Gradients of single records by Opacus, whose hooks support the common layers.

    The hooks are on the module during a call only: between calls it is a plain module, and its
    weights hold nothing computed from single records.

    Args:
        module: the network; its output is one tensor, records first.
        loss: of one record.
        physical_batch: records at a time, by default 512.
        ghost: compute norms without gradients of single records where a layer allows it, and the
            sum by a second backward pass with each record's loss scaled. It needs no more memory
            than a plain step.

    Under ``torch.autocast`` ghost clipping is refused with a ``ValueError``: the second pass would
    round the sum in half precision before the noise is added, by more than a record's share.

    Raises:
        ImportError: without the extra ``bdpvi[opacus]``.
        NotImplementedError: if Opacus does not support a layer.
    """

    def __init__(
        self, module: nn.Module, loss: Loss, physical_batch: int | None = None, *, ghost: bool
    ) -> None:
        try:
            from opacus.grad_sample import GradSampleHooks, GradSampleHooksFastGradientClipping
        except ImportError as error:
            raise ImportError(
                'grad_sample_mode="hooks" and "ghost" need Opacus: pip install "bdpvi[opacus]"'
            ) from error

        self.module, self.loss, self.ghost = module, loss, ghost
        self.physical_batch = _at_a_time(physical_batch, 512)
        self._hooks = GradSampleHooksFastGradientClipping if ghost else GradSampleHooks
        self._attach(deepcopy(module))  # if Opacus refuses a module, it leaves half the hooks on
        # One weight per layer makes autograd pass through all hooks; the smallest costs least.
        layers = [trainable_here(layer) for layer in module.modules()]
        self._probes = [min(weights, key=Tensor.numel) for weights in layers if weights]

    def norms(self, batch: Batch) -> Tensor:
        """See :class:`RecordGradients`."""
        found = []
        for part in _split(batch, self.physical_batch):
            with self._hooked() as hooks:
                torch.autograd.grad(self._values(part).sum(), self._probes)
                found.append(self._found(hooks, len(part[1])).nan_to_num(posinf=0.0))
        return torch.cat(found) if found else torch.zeros(0)

    def clipped_sum(self, batch: Batch, clip: float) -> list[Tensor]:
        """See :class:`RecordGradients`."""
        weights = trainable(self.module)
        total = [torch.zeros_like(weight) for weight in weights]
        for part in _split(batch, self.physical_batch):
            with self._hooked() as hooks:
                values = self._values(part)
                torch.autograd.grad(values.sum(), self._probes, retain_graph=self.ghost)
                if not self.ghost:
                    _add_clipped(total, self._each("grad_sample", len(part[1])), clip)
                    continue
                self._add_sums(total, part, values, hooks, clip)
        return total

    def _add_sums(
        self,
        total: Sequence[Tensor],
        part: Batch,
        values: Tensor,
        hooks: Any,
        clip: float,
    ) -> None:
        """Add the clipped gradients by a second backward pass, once norms are known."""
        norms = self._found(hooks, len(part[1]))
        bad = ~norms.isfinite()
        if bool(bad.any()):
            # A second pass would carry NaN into the sum even at weight zero. So such records are
            # replaced by zeros, and norms and losses recomputed, because dropout is drawn again.
            x = tree_map(lambda one: _blanked(one, bad), part[0])
            values = self._values((x, part[1]))
            torch.autograd.grad(values.sum(), self._probes, retain_graph=True)
            norms = self._found(hooks, len(part[1]))
            if not bool(norms.isfinite().all()):  # the weights themselves are not finite
                return
        hooks.disable_hooks()
        factors = _factors(norms.nan_to_num(posinf=0.0), clip) * ~bad
        sums = torch.autograd.grad((factors * values).sum(), trainable(self.module))
        for whole, one in zip(total, sums, strict=True):
            whole += one

    def _attach(self, module: nn.Module) -> Any:
        return self._hooks(module, loss_reduction="sum", strict=False)

    @contextmanager
    def _hooked(self) -> Iterator[Any]:
        if self.ghost and torch.is_autocast_enabled(self._probes[0].device.type):
            raise ValueError(
                "grad_sample_mode='ghost' does not go with torch.autocast, which rounds the sum "
                "of the gradients before the noise is added; use 'hooks' or 'functorch'"
            )
        hooks = self._attach(self.module)
        try:
            with warnings.catch_warnings():  # the first layer's input needs no gradient, of course
                warnings.filterwarnings("ignore", message="Full backward hook is firing")
                yield hooks
        finally:
            hooks.cleanup()
            for layer in self.module.modules():
                for left in ("activations", "max_batch_len"):  # left by a pass that failed
                    vars(layer).pop(left, None)

    def _found(self, hooks: Any, rows: int) -> Tensor:
        if not self.ghost:
            return _norms(self._each("grad_sample", rows))
        self._each("_norm_sample", rows)
        found: Tensor = hooks.get_norm_sample()
        return found.detach()

    def _each(self, what: str, rows: int) -> list[Tensor]:
        """Return the hooks' values for each weight, (rows, ...)."""
        found: list[Tensor] = []
        for name, weight in self.module.named_parameters():
            if weight.requires_grad:
                found.append(getattr(weight, what))
                _check_rows(name.rpartition(".")[0], found[-1], rows)
        return found

    def _values(self, batch: Batch) -> Tensor:
        """Return each record's loss, computed from its own output alone, (B,)."""

        def value(out: Any, y: Tensor) -> Tensor:
            return self.loss(tree_map(lambda one: one[None], out), y[None]).sum()

        values: Tensor = vmap(value)(call(self.module, batch[0]), batch[1])
        return values


def trainable_here(layer: nn.Module) -> list[nn.Parameter]:
    """Return a layer's own trainable weights, without sublayers' weights."""
    return [weight for weight in layer.parameters(recurse=False) if weight.requires_grad]


def _at_a_time(given: int | None, default: int) -> int:
    return default if given is None else validate.positive_int("physical_batch", given)


def _check_rows(layer: str, found: Tensor, rows: int) -> None:
    if len(found) != rows:
        raise WorkError(
            f"layer {layer!r} has gradients of {several(len(found), 'record')}, and there are "
            f"{rows}: its input has no row for each record. Nothing of this step was released"
        )


def _split(batch: Batch, size: int) -> Iterator[Batch]:
    for start in range(0, len(batch[1]), size):
        some = slice(start, start + size)
        yield tree_map(lambda one: one[some], batch[0]), batch[1][some]  # noqa: B023


def _norms(each: Sequence[Tensor]) -> Tensor:
    """Return the norm over all weights of gradients (B, ...), in float32 at least; 0 for NaN."""
    norms: Tensor = torch.stack([_wide(g).flatten(1).norm(dim=1) for g in each]).norm(dim=0)
    return norms.nan_to_num(posinf=0.0)


def _factors(norms: Tensor, clip: float) -> Tensor:
    """Return min(1, clip/norm)."""
    return (clip * (1 - MARGIN) / norms).clamp(max=1.0)


def _add_clipped(total: Sequence[Tensor], each: Sequence[Tensor], clip: float) -> None:
    norms = _norms(each)
    factors, bad = _factors(norms, clip), norms == 0
    some = bad.is_cuda or bool(bad.any())  # a device would be waited for
    # By mv, not einsum, and without autocast, which would use half precision.
    with torch.autocast(factors.device.type, enabled=False):
        for whole, one in zip(total, each, strict=True):
            flat = _wide(one).flatten(1)
            kept = _blanked(flat, bad) if some else flat  # 0 · NaN would be NaN
            whole += (kept.T @ factors).view_as(whole)


def _blanked(values: Tensor, rows: Tensor) -> Tensor:
    """Return (B, ...) with zeros in these rows."""
    return values.masked_fill(rows.view(-1, *[1] * (values.ndim - 1)), 0)


def _wide(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()
