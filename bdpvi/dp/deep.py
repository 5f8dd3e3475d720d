"""DP-SGD: stochastic gradient descent on any torch module, with clipped and noisy gradients.

Source: Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, Algorithm 1. Here a
step is charged before anything random is drawn, a batch is a Poisson sample, and the noisy sum is
divided by the batch's expected size, not by its size, which one record changes. Beside the
worst-case ε stands what a panel of held-out records paid on the path that ran.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.optim import Optimizer

from bdpvi._runtime import validate
from bdpvi.accounting.worst_case import PrivacyLossAccountant, calibrate
from bdpvi.dp.gradients import GradSampleMode, Loss, make_gradients, trainable
from bdpvi.dp.mechanism import NoisySum, affordable
from bdpvi.dp.private import Private
from bdpvi.dp.records import Records, Source, check_panel
from bdpvi.dp.refusals import check_loss, check_module, check_optimizer
from bdpvi.types import Budget

_TRIED = 8
"""Records that module and loss are tried on before the first step; the panel's, if there is one."""


def make_private(
    module: nn.Module,
    optimizer: Optimizer,
    *,
    loss: Loss,
    data: Source,
    panel: Source | None = None,
    rate: float,
    clip: float,
    records: int | None = None,
    noise_multiplier: float | None = None,
    epsilon: float | None = None,
    steps: int | None = None,
    delta: float = 1e-5,
    budget: Budget | None = None,
    seed: int | None = None,
    physical_batch: int | None = None,
    grad_sample_mode: GradSampleMode = "functorch",
) -> Private:
    """Prepare a network for private training by DP-SGD.

    Args:
        module: any torch module whose output for a record depends on that record alone, in the
            modes (``train`` or ``eval``) to train it in. All its trainable weights are clipped
            together and released.
        optimizer: any that needs no closure, over all trainable weights. Its learning rate must
            follow from public constants.
        loss: of outputs and targets, such as ``F.cross_entropy``, for one record at a time.
        data: tensors (x, y), or a torch Dataset of pairs with a fixed length; x is a tuple of
            tensors for a module of several inputs.
        records: N as it is declared, by which the expected batch size is qN. By default the length
            of ``data``, which then counts as public.
        panel: 100 records or more of the same kind, never trained on or tested with: their
            gradients, taken at every step, say what records such as these paid on the path that
            ran. A diagnostic, usually 0 to 10 % below the worst-case ε. By default there is none.
        rate: Poisson sampling rate q; qN is the expected batch size.
        clip: C, bound on the L2 norm of each record's gradient. Chosen from public knowledge.
        noise_multiplier: z; the sum of a batch's gradients gets noise of standard deviation zC.
        epsilon, steps: in place of ``noise_multiplier``: the least noise with which so many steps
            cost at most ε at ``delta``, in the worst case. Further steps are refused.
        delta: δ of ``epsilon``.
        budget: limits the worst-case ε.
        seed: None for any network that leaves your hands. A number makes an experiment, which
            repeats: whoever knows it can subtract the noise.
        physical_batch: records whose gradients are held in memory at a time; it changes no result
            beyond rounding.
        grad_sample_mode: "functorch" (torch.func, any module), or with the extra ``bdpvi[opacus]``
            "hooks" and "ghost" (no gradients of single records in memory).

    Returns:
        An object whose ``step()`` trains.

    Raises:
        ValueError: naming the argument, or the layer that cannot be trained.
        ImportError: if Opacus is asked for and not there.

    >>> generator = torch.Generator().manual_seed(0)
    >>> x = torch.randn(1100, 4, generator=generator)
    >>> y = (x[:, 0] > 0).long()
    >>> module = nn.Linear(4, 2)
    >>> optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    >>> private = make_private(
    ...     module, optimizer, loss=nn.functional.cross_entropy, data=(x[:1000], y[:1000]),
    ...     panel=(x[1000:], y[1000:]), rate=0.1, clip=1.0, noise_multiplier=2.0,
    ... )
    >>> for _ in range(3):
    ...     private.step()
    >>> cost = private.cost(delta=1e-5)
    >>> cost.path.epsilon <= cost.worst_case.epsilon
    True
    """
    validate.positive("clip", clip)
    validate.rate("rate", rate)
    validate.probability("delta", delta)
    allowed = math.inf
    if noise_multiplier is None and epsilon is not None and steps is not None:
        allowed = steps
        noise_multiplier = calibrate(
            PrivacyLossAccountant(), epsilon=epsilon, delta=delta, rate=rate, steps=steps
        )
    elif noise_multiplier is None or epsilon is not None or steps is not None:
        raise ValueError("give noise_multiplier, or both epsilon and steps")
    held = Records.of_source("data", data)
    mechanism = NoisySum(
        rate=rate,
        clip=clip,
        noise_multiplier=noise_multiplier,
        size=max(1, sum(weight.numel() for weight in trainable(module))),
        records=len(held) if records is None else records,
        length=len(held),
        seed=seed,
    )
    counted: Records | None = None
    if panel is not None:
        counted = Records.of_source("panel", panel)
        check_panel(counted, held)
    check_optimizer(optimizer, module)
    tried = held if counted is None else counted
    some = tried.take(torch.arange(_TRIED) % len(tried), trainable(module)[0].device)
    check_module(module, some)
    check_loss(loss, module, some)
    gradients = make_gradients(grad_sample_mode, module, loss, physical_batch, some)
    if budget is not None:
        allowed = min(allowed, affordable(mechanism, budget))
    return Private(module, optimizer, gradients, held, counted, mechanism, allowed)
