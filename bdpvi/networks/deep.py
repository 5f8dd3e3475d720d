"""DP-SGD: stochastic gradient descent on any torch module, with clipped and noisy gradients.

Source: Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, Algorithm 1. Here a
step is charged before anything random is drawn, a batch is a Poisson sample, and the noisy sum is
divided by the batch's expected size, not by its actual size, which one record changes. Besides the
worst-case ε, the cost of the path that ran can be estimated on a panel of held-out records.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from bdpvi._ground import validate
from bdpvi.datasets.dataset import Dataset, People
from bdpvi.datasets.weights import refuse_weights
from bdpvi.models.reachable import check_reach
from bdpvi.networks.gradients import Batch, Loss, trainable
from bdpvi.networks.preflight import make_gradients, without_gradient
from bdpvi.networks.private import Private
from bdpvi.networks.records import IndexedRecords, Source, check_panel
from bdpvi.networks.refusals import (
    check_kind,
    check_loss,
    check_module,
    check_optimizer,
    check_rehearsed,
)
from bdpvi.privacy.assumptions import Assumption
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.ledger import Ledger
from bdpvi.privacy.solve import smallest
from bdpvi.releases import basis
from bdpvi.releases.clipping import clip_of
from bdpvi.releases.noisy_sum import NoisySum
from bdpvi.releases.steps import Steps

_MOST_NOISE = 100.0
"""Largest noise, over that for an empty ledger: beyond it the steps have less than ε/100."""
BLOCK = 10
"""Steps that are charged at once."""


@dataclass(frozen=True, kw_only=True)
class DPSGDSettings:
    """Optional settings of :func:`make_private`.

    Attributes:
        ledger: the ledger of all charges for the people in the data. By default the data's own, if
            they are a :class:`bdpvi.Dataset`; otherwise one in memory, which adds up with others of
            the same rows in this process.
        epsilon, steps: instead of ``noise_multiplier``: use the least noise at which ``steps``
            steps cost at most ε at ``delta``, worst-case, together with everything in the ledger.
            Further steps are refused.
        delta: δ of ``epsilon``.
        records: N as you declare it, from public knowledge: the sum of a batch is divided by qN.
            By default the power of two nearest in ratio to the length of the data; the guarantee
            then states that this approximation of N is public.
        panel: 100 records or more of the same kind, never used for training or testing. Their
            gradients at every step estimate the ε of such records on the path that ran: a
            diagnostic, usually 0 to 10 % below the worst-case ε. None by default.
        seed: None for any network that you share. A number makes an experiment, which is
            repeatable: whoever knows the seed can subtract the noise.
        physical_batch: number of records whose gradients are held in memory at a time; it changes
            no result beyond rounding.
        example: made-up (x, y), not real records, on which module and loss are tried before any
            charge. By default numbers from 0 to 1, and integers that embeddings accept.
    """

    ledger: Ledger | None = None
    epsilon: float | None = None
    steps: int | None = None
    delta: float = 1e-5
    records: int | None = None
    panel: Source | None = None
    seed: int | None = None
    physical_batch: int | None = None
    example: Source | None = None

    def __post_init__(self) -> None:
        validate.probability("delta", self.delta)
        if self.steps is not None:
            validate.positive_int("steps", self.steps)
        if self.epsilon is not None:
            validate.epsilon(self.epsilon)


_USUAL = DPSGDSettings()


def make_private(
    module: nn.Module,
    optimizer: Optimizer,
    *,
    loss: Loss,
    data: Source | Dataset,
    rate: float,
    max_grad_norm: float,
    noise_multiplier: float | None = None,
    settings: DPSGDSettings = _USUAL,
) -> Private:
    """Prepare a network for private training by DP-SGD.

    Args:
        module: any torch module whose output for a record depends on that record alone, in the
            modes (``train`` or ``eval``) to train it in. All its trainable weights are clipped
            together and released.
        optimizer: any optimizer without a closure, over all trainable weights. Its learning rate
            must not be derived from the data.
        loss: of outputs and targets, such as ``F.cross_entropy``, for one record at a time.
        data: tensors (x, y), or a torch Dataset of pairs with a fixed length. For a module with
            several inputs x is a tuple of tensors, or a mapping by input names. The x and y of a
            :class:`bdpvi.Dataset` are converted to the dtype of the weights. A torch Dataset
            can declare how x was made, as there, by an attribute ``preprocessing``.
        rate: Poisson sampling rate q; qN is the expected batch size.
        max_grad_norm: C, bound on the L2 norm of each record's gradient. Chosen from public
            knowledge.
        noise_multiplier: z; the sum of a batch's gradients gets noise of standard deviation zC.
        settings: the ledger, a panel, and other settings.

    Returns:
        An object whose ``step()`` takes a training step.

    Raises:
        ValueError: naming the argument, or the layer that cannot be trained.

    >>> generator = torch.Generator().manual_seed(0)
    >>> x = torch.randn(1000, 4, generator=generator)
    >>> y = (x[:, 0] > 0).long()
    >>> module = nn.Linear(4, 2)
    >>> optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    >>> private = make_private(
    ...     module, optimizer, loss=nn.functional.cross_entropy, data=(x, y),
    ...     rate=0.1, max_grad_norm=1.0, noise_multiplier=2.0,
    ...     settings=DPSGDSettings(records=1000),
    ... )
    >>> for _ in range(10):
    ...     private.step()
    >>> private.worst_case(delta=1e-5).epsilon == private.ledger.altogether(delta=1e-5).epsilon
    True
    """
    clip_of("max_grad_norm", max_grad_norm)
    validate.rate("rate", rate)
    check_kind(module)
    weights, whose, people = trainable(module), data, People()
    if isinstance(data, Dataset):
        refuse_weights(data, "make_private")
        people = data.people
        kind = weights[0].dtype if weights else torch.float32
        data = (data.x.to(kind), data.y.to(kind), data.ids)
    held = IndexedRecords.of_source("data", data)
    people.share(settings.ledger or people.kept, parts=held.some)
    mechanism = NoisySum(
        rate=rate,
        clip=max_grad_norm,
        noise_multiplier=1.0 if noise_multiplier is None else noise_multiplier,
        size=max(1, sum(weight.numel() for weight in weights)),
        records=nearest_power(len(held)) if settings.records is None else settings.records,
        length=len(held),
        seed=settings.seed,
        assumptions=(
            *basis.given_assumptions(whose, **held.tensors),
            *(Assumption.ROUNDED_SIZE,) * (settings.records is None),
        ),
    )
    if noise_multiplier is None:
        mechanism = replace(
            mechanism, noise_multiplier=_least_noise(mechanism, people.ledger, settings)
        )
    elif settings.epsilon is not None:
        raise ValueError("give noise_multiplier, or both epsilon and steps in settings")
    counted: IndexedRecords | None = None
    if settings.panel is not None:
        counted = IndexedRecords.of_source("panel", settings.panel)
        check_panel(counted, held)
    check_optimizer(optimizer, module)
    batches = _made_up(held, module, settings)
    check_rehearsed(optimizer, module)
    tables: list[object] = [*held.tensors.values()] or [held.source]
    check_reach(tables, len(held), module=module, loss=loss, optimizer=optimizer)
    check_module(module, batches[-1])
    check_loss(loss, module, batches[-1])
    gradients = make_gradients(module, loss, settings.physical_batch, batches)
    fixed = without_gradient(module, loss, batches)
    name = {"kind": "steps", "of": secrets.token_hex(8)}
    charged = Steps(people, mechanism.event(1), **name, block=BLOCK, most=settings.steps)
    return Private(
        optimizer, gradients, held, counted, mechanism, charged, fixed=fixed, made_up=batches[-1]
    )


def nearest_power(records: int) -> int:
    """Return the power of two nearest in ratio to a number of records; at least 1.

    >>> [nearest_power(n) for n in (0, 1, 1400, 1500)]
    [1, 1, 1024, 2048]
    """
    return 1 << round(math.log2(max(records, 1)))


def _made_up(held: IndexedRecords, module: nn.Module, settings: DPSGDSettings) -> list[Batch]:
    """Return made-up records in two batch sizes that are no dimension of the data or module."""
    some = tree_leaves(held.made_up(2, 2, torch.device("cpu")))
    shapes = [one.shape[1:] for one in some]
    shapes += [one.shape for one in (*module.parameters(), *module.buffers())]
    dimensions = {size for shape in shapes for size in shape}
    sizes = [size for size in range(3, len(dimensions) + 5) if size not in dimensions][:2]
    device = trainable(module)[0].device
    if settings.example is not None:
        example = IndexedRecords.of_source("example", settings.example)
        return [example.take(torch.arange(size) % len(example), device) for size in sizes]
    tables = (nn.Embedding, nn.EmbeddingBag)
    rows = [one.num_embeddings for one in module.modules() if isinstance(one, tables)]
    return [held.made_up(size, min(rows, default=2), device) for size in sizes]


def _least_noise(mechanism: NoisySum, ledger: Ledger, settings: DPSGDSettings) -> float:
    """Return the noise multiplier at which ``steps`` and everything in the ledger cost ε."""
    epsilon, steps, delta = settings.epsilon, settings.steps, settings.delta
    if epsilon is None or steps is None:
        raise ValueError("give noise_multiplier, or both epsilon and steps in settings")
    rounding = mechanism.event(1).rounding

    def cost(noise: float) -> float:
        step = SampledGaussian(noise_multiplier=noise, rate=mechanism.rate, rounding=rounding)
        found = ledger.worst_case(delta, {step: steps})
        return math.inf if found is None else found.epsilon

    # The noise of one Gaussian mechanism of distance q√T: right within a factor of about 2.
    guess = mechanism.rate * math.sqrt(2 * steps * math.log(1.25 / delta)) / epsilon
    try:
        return smallest(cost, epsilon, guess, slack=0.005, most=_MOST_NOISE * guess)
    except ArithmeticError as error:
        raise ValueError(
            f"epsilon={epsilon!r} cannot be reached at delta={delta!r}: any noise costs at least "
            f"{error.args[0]:.4g}; {ledger.history()}"
        ) from None
