"""An accountant for Opacus, registered as "bdp": the worst-case ε and the path's.

Importing this module registers it. It needs the extra ``bdpvi[opacus]``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from opacus.accountants import IAccountant
from opacus.accountants.registry import register_accountant
from opacus.utils.uniform_sampler import (
    DistributedUniformWithReplacementSampler,
    UniformWithReplacementSampler,
)
from torch import nn

from bdpvi._ground.checkpoint import sealed, understood, unsealed
from bdpvi._ground.outputs import several
from bdpvi.bayesian.accounting.accountant import Account
from bdpvi.networks.gradients import Loss, RecordGradients, fork_random_state, trainable
from bdpvi.networks.records import IndexedRecords, Source, check_panel_size
from bdpvi.networks.refusals import check_loss, check_module
from bdpvi.privacy import worst_case
from bdpvi.privacy.assumptions import Assumption
from bdpvi.privacy.cost import Cost, Exposure
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.norms import NormCounts
from bdpvi.releases.clipping import MARGIN

MECHANISM = "bdp"
_TRIED = 8
_POISSON = (UniformWithReplacementSampler, DistributedUniformWithReplacementSampler)
"""Opacus's samplers whose batches have each record by a coin of its own."""


class BDPAccountant(IAccountant):  # type: ignore[misc]
    """Charges Opacus's steps: :meth:`get_epsilon` is worst-case, :meth:`cost` has the path too.

    The worst case is computed by privacy loss distributions, for Poisson sampling and one record
    added or removed. A loader that does not sample so is refused where Opacus hands it over, as
    with ``poisson_sampling=False``. What a loop then reads is not seen: :meth:`cost` says what it
    assumes. A panel's cost is tracked after :meth:`watch`; earlier steps count at the clip. In
    Opacus's "ghost" mode, accumulated batches cannot be detected here: leave accumulation to
    ``BatchMemoryManager``.

    >>> from opacus.accountants import create_accountant
    >>> accountant = create_accountant("bdp")  # PrivacyEngine(accountant="bdp") does this
    >>> for _ in range(1000):
    ...     accountant.step(noise_multiplier=1.0, sample_rate=0.01)
    >>> round(accountant.get_epsilon(1e-5), 2)
    1.83
    """

    def __init__(self) -> None:
        self.history: list[tuple[float, float, int]] = []
        self._watched: tuple[IndexedRecords, RecordGradients] | None = None
        self._norms_of: dict[tuple[float, float], NormCounts] = {}
        self._fresh = True

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Charge a step with unknown norms."""
        if self.history and self.history[-1][:2] == (noise_multiplier, sample_rate):
            self.history[-1] = (noise_multiplier, sample_rate, self.history[-1][2] + 1)
        else:
            self.history.append((noise_multiplier, sample_rate, 1))

    def get_epsilon(self, delta: float, **_: Any) -> float:
        """Return the worst-case ε at ``delta``; +inf without noise, 0 before the first step."""
        if not self.history:
            return 0.0
        if min(noise for noise, *_ in self.history) <= 0:
            return math.inf
        found = worst_case.epsilon([_event(*run) for run in self.history], delta)
        return math.inf if found is None else found.epsilon

    def watch(
        self, twin: nn.Module, loss: Loss, panel: Source, physical_batch: int | None = None
    ) -> None:
        """Follow the gradients of a panel from the next step on.

        Args:
            twin: ``copy.deepcopy`` of the module, taken before Opacus made it private, as its hooks
                are incompatible with ``torch.func``. It receives the live weights in every step.
            loss: of outputs and targets, for one record at a time.
            panel: 100 records or more, (x, y) or a Dataset, never trained on.
            physical_batch: number of panel gradients held in memory at a time.

        Raises:
            ValueError: naming the argument, or the layer that mixes records.
        """
        records = IndexedRecords.of_source("panel", panel)
        check_panel_size(records)
        if self._watched is not None and len(self._watched[0]) != len(records):
            raise ValueError(
                f"panel has {several(len(records), 'record')}; go on with the one watched so far"
            )
        some = records.made_up(_TRIED, 2, trainable(twin)[0].device)
        check_module(twin, some)
        check_loss(loss, twin, some)
        self._watched = records, RecordGradients(twin, loss, physical_batch)
        self._fresh = True

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[Any], None]:
        """Return the hook that Opacus calls in each step, after the noise and before the update.

        The hook raises ValueError, before the step is released, if several batches were
        accumulated. With per-layer clips, a record's norm is that of its whole gradient over the
        root of the clips' sum of squares, which never understates its cost.

        Raises:
            ValueError: if Opacus, which calls this, keeps a loader that does not sample by Poisson.
        """
        _check_loader(sys._getframe(1).f_locals.get("data_loader"))

        def hook(optimizer: Any) -> None:
            if optimizer.accumulated_iterations != 1:
                raise ValueError(
                    f"{optimizer.accumulated_iterations} batches were accumulated; a record can be "
                    "in several: use opacus.utils.batch_memory_manager.BatchMemoryManager"
                )
            noise, clip = optimizer.noise_multiplier, optimizer.max_grad_norm
            norms = self._norms(optimizer.params)
            if norms is not None:
                key = float(noise), float(sample_rate)
                before = self._norms_of.get(key, NormCounts.none(torch.arange(len(norms))))
                self._norms_of[key] = before.add(norms.cpu().double() * ((1 + MARGIN) / clip))
            self.step(noise_multiplier=noise, sample_rate=sample_rate)

        return hook

    def cost(self, delta: float) -> Cost:
        """Return the cost of all steps, as :meth:`.Private.cost` does. Secret.

        Raises:
            ValueError: if there is no panel or no charge.
        """
        unseen = (Assumption.GIVEN_FEATURES, Assumption.POISSON_BATCHES)
        return self._account().cost(delta).each(lambda one: one.assuming(*unseen))

    def exposure(self, delta: float) -> Exposure:
        """Return quantiles of single records' ε; see :meth:`.Private.exposure`."""
        return self._account().exposure(delta)

    def __len__(self) -> int:
        return sum(steps for *_, steps in self.history)

    @classmethod
    def mechanism(cls) -> str:
        """Return the name under which Opacus knows this accountant."""
        return MECHANISM

    def state_dict(self, destination: Any = None) -> Any:
        """Return history and counts; secret, unlike the state of Opacus's own accountants."""
        state = super().state_dict(destination)
        state["norms"] = {key: one.state_dict() for key, one in self._norms_of.items()}
        return type(state)(sealed(state))

    @understood("state_dict")
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from ``state_dict``. Watch the same panel, with a twin of the loaded weights.

        Raises:
            ValueError: if the state was changed.
        """
        state_dict = unsealed(state_dict)
        norms = {key: NormCounts(**state) for key, state in state_dict.get("norms", {}).items()}
        super().load_state_dict(state_dict)
        self.history = list(state_dict["history"])
        self._norms_of, self._fresh = norms, True

    def _norms(self, weights: list[nn.Parameter]) -> torch.Tensor | None:
        """Return the gradient norms of the panel at the live weights, None without a panel."""
        if self._watched is None:
            return None
        records, gradients = self._watched
        own = trainable(gradients.module)
        if [w.shape for w in own] != [w.shape for w in weights] or (
            self._fresh and not all(map(torch.equal, own, weights))
        ):
            raise ValueError(
                "twin must be a copy of the trained module, with the same weights in the same "
                "order; take copy.deepcopy(module) before PrivacyEngine.make_private"
            )
        self._fresh = False
        with torch.no_grad():
            for mine, live in zip(own, weights, strict=True):
                mine.copy_(live)
        device = weights[0].device
        with fork_random_state(device):
            return gradients.norms(records.take(torch.arange(len(records)), device))

    def _account(self) -> Account:
        if self._watched is None or not self.history:
            raise ValueError("nothing was watched and charged: call watch(), then train")
        ids = self._watched[0].ids
        taken: dict[tuple[float, float], int] = {}
        for noise, rate, steps in self.history:
            taken[noise, rate] = taken.get((noise, rate), 0) + steps
        events = []
        for (noise, rate), steps in taken.items():
            norms = self._norms_of.get((noise, rate), NormCounts.none(ids))
            norms = norms.add_largest(steps - norms.steps)  # steps that were not watched
            events.append(_event(noise, rate, steps, replace(norms, ids=ids)))
        return Account(events)


def _check_loader(loader: object) -> None:
    """Refuse a loader whose batches are seen to be no Poisson samples; None is not seen."""
    batches = getattr(loader, "batch_sampler", None)
    if loader is None or isinstance(batches, _POISSON):
        return
    drawn = type(getattr(batches, "sampler", batches)).__name__
    raise ValueError(
        f"data_loader draws its batches by {drawn}, as with poisson_sampling=False: a record can "
        "be in every batch, or in one many times, and the ε for Poisson samples does not hold. "
        "Leave poisson_sampling at True, or give an opacus.data_loader.DPDataLoader"
    )


def _event(
    noise: float, rate: float, steps: int, norms: NormCounts | None = None
) -> SampledGaussian:
    return SampledGaussian(noise_multiplier=noise, rate=rate, steps=steps, norms=norms)


register_accountant(MECHANISM, BDPAccountant, force=True)
