"""A network in private training by DP-SGD: its steps and their privacy cost."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy, deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from bdpvi._ground import validate
from bdpvi._ground.checkpoint import sealed, understood, unsealed
from bdpvi._ground.halving import by_halves
from bdpvi._ground.host import all_finite, as_gradient
from bdpvi._ground.outputs import several
from bdpvi._ground.schema import require_same
from bdpvi._ground.types import tell_owner
from bdpvi.bayesian.accounting.accountant import Account
from bdpvi.networks.gradients import Batch, RecordGradients, fork_random_state, trainable
from bdpvi.networks.preflight import Fixed
from bdpvi.networks.records import IndexedRecords
from bdpvi.networks.refusals import check_frozen
from bdpvi.noise.secure import stir
from bdpvi.privacy.cost import Bound, Cost, Exposure
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.ledger import Ledger
from bdpvi.privacy.norms import NormCounts
from bdpvi.releases.clipping import MARGIN, clip_of
from bdpvi.releases.noisy_sum import NoisySum
from bdpvi.releases.steps import Steps


class Private:
    """A network in private training, as returned by :func:`make_private`.

    Everything in it is secret except the network's weights, which are protected by ε.
    A step that fails with an error still counts as charged.

    Attributes:
        module, optimizer: as given.
        mechanism: rate, clip, noise multiplier, number of records and seed, for all steps.
        batch: positions in the data of the records in the last batch, (B,).
    """

    def __init__(
        self,
        optimizer: Optimizer,
        gradients: RecordGradients,
        data: IndexedRecords,
        counted: IndexedRecords | None,
        mechanism: NoisySum,
        charged: Steps,
        *,
        fixed: Fixed,
        made_up: Batch,
    ) -> None:
        module = gradients.module
        self.module, self.optimizer = module, optimizer
        self.mechanism = mechanism
        self.batch = torch.zeros(0, dtype=torch.int64)
        self._gradients, self._charged = gradients, charged
        self._data, self._counted = data, counted
        self._weights, self._fixed, self._made_up = trainable(module), fixed, made_up
        self._modes = [(layer, layer.training) for layer in module.modules()]
        self._place = 0
        self._norms = None if counted is None else NormCounts.none(counted.ids)
        self._versions = self._now()
        self._stopped = ""
        self._told = False

    @property
    def ledger(self) -> Ledger:
        """All charges for the data, including these steps."""
        return self._charged.ledger

    @property
    def steps(self) -> int:
        """The number of steps begun; after a restart, all of this run's steps in the ledger."""
        return self._charged.taken

    def __getstate__(self) -> dict[str, Any]:
        # A copy draws its own coins: two steps on one batch cost more than two steps on independent
        # batches.
        return {**self.__dict__, "mechanism": replace(self.mechanism)}

    def step(self) -> None:
        """Charge a step, then take it: Poisson batch, clipped gradients, noise, optimiser.

        Steps are written to the ledger ten at a time, before the first of them.

        The network trains in the mode (``train`` or ``eval``) that each layer had initially.

        A record whose gradient is not finite, or cannot be computed, counts as zero.

        Warns:
            PrivacyUtilityWarning: about records on which module or loss fail. For the owner only.

        Raises:
            BudgetExceededError: if the step would exceed what is left of the ledger's budget.
                Nothing is charged or drawn.
            ValueError: if the length of the data or the set of trainable weights has changed, or a
                weight was changed since the last step, or a layer has no gradients of single
                records under the current ``torch.autocast``; nothing is charged. Also if the
                forward pass changes a weight: the network must then not be released.
            FloatingPointError: if a weight is not finite after the step, as is visible in it.
        """
        if self._stopped:
            raise ValueError(self._stopped)
        self._data.check_length("data")
        self._check_weights()
        if self._counted is not None:
            self._counted.check_length("panel")
        for layer, mode in self._modes:
            layer.training = mode
        self._gradients.check_autocast(self._made_up)
        self._charged.take()
        device = self._weights[0].device
        with fork_random_state(device):
            # No coins are drawn twice if a run went back to an earlier state.
            step = self.steps - 1 if self.mechanism.seed is None else self._place
            self._place += 1
            stir(self.mechanism.key_of("records", step), device)
            self._count(device)
            self.batch = self.mechanism.batch(step)
            total = self._clipped_sum(device)
            if self._now() != self._versions:
                self._stopped = (
                    f"step {step + 1}: the forward pass changed a weight or a buffer, by records "
                    "and without noise. Do not release the network; the run is over"
                )
                raise ValueError(self._stopped)
            for weight, one in zip(self._weights, self.mechanism.means(total, step), strict=True):
                weight.grad = as_gradient(one, weight)
            for at, entries in self._fixed:  # no gradient by construction, so no noise either
                self._weights[at].grad[entries] = 0  # type: ignore[index]
            self.optimizer.step()
            self._versions = self._now()
        if not all_finite(self._weights):
            raise FloatingPointError(
                f"step {step + 1} made a weight that is not finite; use a smaller learning rate"
            )

    def go_on(
        self,
        *,
        noise_multiplier: float | None = None,
        max_grad_norm: float | None = None,
        steps: int | None = None,
    ) -> Private:
        """Return the next part of a schedule: further steps at another noise or clip.

        Module, optimiser, data and ledger stay, and the ledger has the charges of all parts. So
        :meth:`worst_case` of the last part includes them; :meth:`cost` is of one part. Steps that
        an earlier part has charged in advance stay charged, at most nine; none if it had a number
        of steps and took them all. The earlier part takes no step after the new one has.

        Args:
            noise_multiplier: z from now on; unchanged by default. Like the clip it must follow from
                public facts.
            max_grad_norm: C from now on; unchanged by default.
            steps: number of steps of the new part; no limit by default.

        Raises:
            ValueError: naming the argument. Nothing is charged.

        >>> module = torch.nn.Linear(4, 2)
        >>> from bdpvi.networks import DPSGDSettings
        >>> from bdpvi.networks.deep import make_private
        >>> private = make_private(
        ...     module, torch.optim.SGD(module.parameters(), lr=1.0),
        ...     loss=torch.nn.functional.cross_entropy,
        ...     data=(torch.zeros(100, 4), torch.arange(100) % 2), rate=0.1, max_grad_norm=1.0,
        ...     noise_multiplier=4.0, settings=DPSGDSettings(records=100, steps=5),
        ... )
        >>> for _ in range(5):
        ...     private.step()
        >>> private = private.go_on(noise_multiplier=2.0, steps=1)
        >>> private.step()
        >>> [entry.count for entry in private.ledger.entries()]
        [5, 1]
        """
        if steps is not None:
            validate.positive_int("steps", steps)
        given = {"noise_multiplier": noise_multiplier, "clip": max_grad_norm}
        if max_grad_norm is not None:
            clip_of("max_grad_norm", max_grad_norm)
        made = copy(self)
        chosen: dict[str, Any] = {name: one for name, one in given.items() if one is not None}
        made.mechanism = replace(self.mechanism, **chosen)
        made._charged = self._charged.next(made.mechanism.event(1), steps)
        made._norms = None if self._counted is None else NormCounts.none(self._counted.ids)
        return made

    def _clipped_sum(self, device: torch.device) -> list[Tensor]:
        """Return the sum of the batch's clipped gradients; records that fail count as zero."""

        def of(positions: Tensor) -> list[Tensor]:
            return self._gradients.clipped_sum(
                self._data.take(positions, device), self.mechanism.clip
            )

        total = [torch.zeros_like(weight, dtype=torch.float64) for weight in self._weights]
        failed = 0
        for part, found in by_halves(of, self.batch):
            if found is None:
                failed += len(part)
                continue
            for whole, one in zip(total, found, strict=True):
                whole += one
        if failed and not self._told:
            self._told = True
            why = "a gradient fails in this step, and counts as zero"
            tell_owner(failed, "record", why, 4)
        return total

    def _now(self) -> list[int]:
        """Return torch's version counters of all weights and buffers."""
        return [one._version for one in (*self.module.parameters(), *self.module.buffers())]

    def _check_weights(self) -> None:
        """Refuse weights that were changed since the last step."""
        if [id(one) for one in trainable(self.module)] != [id(weight) for weight in self._weights]:
            raise ValueError(
                "module has other trainable weights than at the start: weights frozen since "
                "would still be trained and charged. Call make_private again. Nothing was "
                "charged"
            )
        check_frozen(self.optimizer, self.module)
        if self._now() != self._versions:
            raise ValueError(
                "module has a weight or a buffer that was changed outside step(), possibly from "
                "records. Nothing was charged"
            )

    def _count(self, device: torch.device) -> None:
        """Count the step at the norms of the panel's records, if there is a panel."""
        panel = self._counted
        if panel is None:
            return
        norms = torch.zeros(len(panel), dtype=torch.float64)
        each = lambda at: self._gradients.norms(panel.take(at, device))  # noqa: E731
        for part, found in by_halves(each, torch.arange(len(panel))):
            if found is not None:
                norms[part] = found.detach().cpu().double()
        self._norms = self._at_largest(self.steps - 1).add(self._in_clips(norms))

    def _at_largest(self, steps: int) -> NormCounts:
        """Return the norms of ``steps`` steps; steps not observed here count at the clip."""
        assert self._norms is not None
        return self._norms.add_largest(steps - self._norms.steps)

    def _in_clips(self, norms: Tensor) -> Tensor:
        """Return the norms after clipping, in units of the clip; NaN counts as 1."""
        units = norms.cpu() * ((1 + MARGIN) / self.mechanism.clip)
        return units.nan_to_num(nan=1.0).clamp(max=1.0)

    def event(self) -> SampledGaussian:
        """Return all steps so far as an event for an accountant. Secret.

        Raises:
            ValueError: before the first step.
        """
        self._require_steps()
        norms = None if self._norms is None else self._at_largest(self.steps)
        return self.mechanism.event(self.steps, norms)

    def _require_steps(self) -> None:
        if not self.steps:
            raise ValueError("nothing was charged yet: call step() first")

    def worst_case(self, delta: float) -> Bound:
        """Return the guarantee to publish: for these steps and everything else in the ledger.

        It depends only on rate, noise and number of steps, including steps of copies.

        Args:
            delta: δ.

        Raises:
            ValueError: before the first step, or if no finite ε can be promised.
        """
        self._require_steps()
        return self._charged.worst_case(self.mechanism, delta)

    def cost(self, delta: float) -> Cost:
        """Return the cost of these steps: the worst-case ε, and with a panel the path's cost.

        ``worst_case``, by privacy loss distributions, holds for every record; :meth:`worst_case` is
        the one to publish. ``path``, None without a panel, estimates the ε of a random record like
        the panel's on the path of this run: a diagnostic, not a guarantee about the algorithm.

        Args:
            delta: δ of both.

        Raises:
            ValueError: before the first step, or if δ is too small for the estimates.
        """
        found = self._account().cost(delta)
        found = found.each(lambda bound: bound.assuming(*self.mechanism.assumptions))
        return found if self.mechanism.seed is None else found.each(Bound.seeded)

    def per_record(self, delta: float) -> Tensor:
        """Return each panel record's own ε on the path that ran, (m,). Secret.

        Args:
            delta: δ of each.

        Raises:
            ValueError: before the first step, or without a panel.
        """
        return self._account(True).per_record(delta)

    def exposure(self, delta: float) -> Exposure:
        """Return quantiles of the panel records' own ε on the path that ran. Secret.

        Args:
            delta: δ of each record's own ε.

        Raises:
            ValueError: before the first step, or without a panel.
        """
        return self._account(True).exposure(delta)

    def _account(self, panel: bool = False) -> Account:
        if panel and self._counted is None:
            raise ValueError(
                "panel is None: make_private(panel=...) reports the costs of its records"
            )
        return Account([self.event()])

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimiser, numbers of steps and counts, for ``torch.save``. Secret.

        On the same machine a seeded run resumes bit for bit as if it had not stopped. An unseeded
        run resumes with fresh secret batches.
        """
        state = deepcopy(
            {
                "mechanism": self.mechanism.settings(),
                "module": self.module.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "run": self._charged.of,
                "steps": self._place,
                "charged": self.steps,
                "norms": None if self._norms is None else self._norms.state_dict(),
                "stopped": self._stopped,
            }
        )
        return sealed(state)

    @understood("state")
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from ``state``, of a run with the same module, data, panel and mechanism.

        No charge is undone: steps taken here and the run's steps in the ledger stay charged. Steps
        in the state that the ledger lacks are charged.

        Raises:
            ValueError: naming what differs, or if the state was changed. Nothing is then changed.
        """
        state = unsealed(state)
        made, now = state["mechanism"], self.mechanism.settings()
        require_same("state", made, now, "make the run as it was made before")
        norms = None if state["norms"] is None else NormCounts(**state["norms"])
        here, there = ([] if one is None else one.ids.tolist() for one in (self._norms, norms))
        if here != there:
            raise ValueError(
                "state has the norms of another panel or data; give the same panel and data"
            )
        own = self.module.state_dict()
        if {n: v.shape for n, v in state["module"].items()} != {n: v.shape for n, v in own.items()}:
            raise ValueError("state has the weights of another module; make it as it was before")
        self.optimizer.load_state_dict(deepcopy(state["optimizer"]))  # refuses before it changes
        self._charged.resume(state["run"], state["charged"])
        self.module.load_state_dict(state["module"])
        self._place, self._norms, self._stopped = state["steps"], norms, state["stopped"]
        self._versions = self._now()

    def __repr__(self) -> str:
        kind = "" if self.mechanism.seed is None else ", seeded: no guarantee"
        return f"Private({type(self.module).__name__}, {several(self.steps, 'step')}{kind})"
