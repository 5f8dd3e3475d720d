"""DP-SGD: stochastic gradient descent on any torch module, with clipped and noisy gradients.

Source: Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, Algorithm 1. Here a
step is charged before anything random is drawn, a batch is a Poisson sample, and the noisy sum is
divided by the batch's expected size, not by its size, which one record changes. Beside the
worst-case ε stands what a panel of held-out records paid on the path that ran.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import copy, deepcopy
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bdpvi._runtime import validate
from bdpvi.accounting.bayesian import BayesianAccountant
from bdpvi.accounting.events import SampledGaussianSteps
from bdpvi.accounting.levels import LEVELS, LevelCounts
from bdpvi.accounting.odometer import Filter
from bdpvi.accounting.worst_case import PrivacyLossAccountant, calibrate
from bdpvi.dp.gradients import (
    MARGIN,
    Batch,
    FunctionalGradients,
    Loss,
    OpacusGradients,
    RecordGradients,
    trainable,
)
from bdpvi.dp.mechanism import Mechanism, affordable
from bdpvi.dp.records import Records, Source, check_panel
from bdpvi.dp.refusals import check_loss, check_module, check_optimizer
from bdpvi.types import Budget, BudgetExceededError, Exposure, Spent, WorstCase

GradSampleMode = Literal["functorch", "hooks", "ghost"]
GRAD_SAMPLE_MODES = ("functorch", "hooks", "ghost")
EXPERIMENT = "an experiment: its noise is seeded and protects nobody"
_TRIED = 8
"""Panel records that module and loss are tried on before the first step."""


class Private:
    """A network in private training; :func:`make_private` makes it.

    All of it is secret but the network's weights, and those are private only as far as ε says.
    After an error in a step the step counts as charged.

    Attributes:
        module, optimizer: as given.
        batch: positions in the data of the records in the last batch, (B,).
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        gradients: RecordGradients,
        records: tuple[Records, Records],
        mechanism: Mechanism,
        allowed: float = math.inf,
        stopping: Filter | None = None,
    ) -> None:
        self.module, self.optimizer = module, optimizer
        self._mechanism = mechanism
        self.batch = torch.zeros(0, dtype=torch.int64)
        self._gradients, self._allowed, self._filter = gradients, allowed, stopping
        self._data, self._panel = records
        self._weights = trainable(module)
        self._modes = [(layer, layer.training) for layer in module.modules()]
        self._counts = LevelCounts(LEVELS, len(self._panel))
        self._stopped = ""

    @property
    def mechanism(self) -> Mechanism:
        """Rate, clip, noise multiplier, number of records and seed, for all steps."""
        return self._mechanism

    @property
    def steps(self) -> int:
        """The number of steps that were charged."""
        return self._counts.steps

    def step(self) -> None:
        """Charge a step, then take it: Poisson batch, clipped gradients, noise, optimiser.

        The network trains in the mode (``train`` or ``eval``) that each layer had at first.

        Raises:
            BudgetExceededError: if the step would cost more than is left, or the filter stops the
                run before it. Nothing is charged or drawn.
            ValueError: if the data have another length than at first. Nothing is charged.
            FloatingPointError: if a gradient is not finite. The step is charged, no weight is
                changed, ``batch`` stays for a look at it, and the run goes no further: that it
                stopped is not covered by ε.
        """
        if self._stopped:
            raise FloatingPointError(self._stopped)
        self._data.check_length("data")
        self._panel.check_length("panel")
        if self.steps >= self._allowed:
            raise BudgetExceededError(
                f"budget: step {self.steps + 1} would cost more than is left. Nothing was charged"
            )
        device = self._weights[0].device
        for layer, mode in self._modes:
            layer.training = mode
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            step = self.steps
            torch.manual_seed(self.mechanism.seed_of(step))
            everybody = torch.arange(len(self._panel))
            norms = self._gradients.norms(self._panel.take(everybody, device))
            norms = norms.cpu().double() * ((1 + MARGIN) / self.mechanism.clip)
            ahead = copy(self._counts)  # add() puts a new tensor in place of the old one
            ahead.add(norms.nan_to_num(nan=1.0, posinf=1.0).clamp(max=1.0))
            if self._filter is not None:
                self._filter.check(self._event(ahead))
            self._counts = ahead
            self.batch = self.mechanism.batch(step)
            taken = self._data.take(self.batch, device)
            total = self._gradients.clipped_sum(taken, self.mechanism.clip)
            if not all(bool(one.isfinite().all()) for one in (norms, *total)):
                where = "batch (its positions: .batch)" if norms.isfinite().all() else "panel"
                self._stopped = (
                    f"step {step + 1} met a gradient that is not finite, in the {where}; it is "
                    "charged and the run is over. Try a smaller learning rate, or mend the record"
                )
                raise FloatingPointError(self._stopped)
            for weight, one in zip(self._weights, total, strict=True):
                weight.grad = self.mechanism.mean(one).to(weight)
            self.optimizer.step()

    def event(self) -> SampledGaussianSteps:
        """Return all steps so far as an event for an accountant. Secret.

        Raises:
            ValueError: before the first step.
        """
        if not self.steps:
            raise ValueError("nothing was charged yet: call step() first")
        return self._event(self._counts)

    def _event(self, counts: LevelCounts) -> SampledGaussianSteps:
        return counts.event(self._panel.ids, self.mechanism.noise_multiplier, self.mechanism.rate)

    def worst_case(self, delta: float) -> WorstCase:
        """Return the guarantee to publish: it follows from rate, noise and steps alone.

        With a filter the steps are all that it could have allowed: how many it did is secret.

        Args:
            delta: δ.

        Raises:
            ValueError: before the first step, or if no finite ε can be promised.
        """
        if self._filter is not None:
            found = self._filter.spent(self.event(), delta).worst_case
        else:
            found = self._accountant().worst_case(delta)
        if found is None:
            raise ValueError(
                f"noise_multiplier={self.mechanism.noise_multiplier:g} has no finite ε; use more"
            )
        return self._marked(found)

    def spent(self, delta: float) -> Spent:
        """Return what all steps cost: the worst-case ε, and what the path that ran cost.

        ``worst_case``, by privacy loss distributions, holds for every record and is the one to
        publish. ``path_epsilon`` is what a random record like the panel's paid on the path that
        this run took: a diagnostic, and no guarantee about the algorithm.

        With a filter, ε is the filter's Bayesian one instead, a constant of its settings that holds
        on every path, and ``worst_case`` is that of all steps it could have allowed.

        Args:
            delta: δ of both.

        Raises:
            ValueError: before the first step, or if δ is too small for the estimates.
        """
        if self._filter is not None:
            found = self._filter.spent(self.event(), delta)
        else:
            found = self._accountant().spent(delta)
        if self.mechanism.seed is None or found.worst_case is None:
            return found
        return replace(
            found,
            guarantee=f"{found.guarantee}; {EXPERIMENT}",
            worst_case=self._marked(found.worst_case),
            reliable=False,
            reason=EXPERIMENT,
        )

    def _marked(self, found: WorstCase) -> WorstCase:
        """Return a guarantee whose text says so if the noise is seeded."""
        if self.mechanism.seed is None:
            return found
        return replace(found, accountant=f"{found.accountant}; {EXPERIMENT}")

    def per_record(self, delta: float) -> Tensor:
        """Return the ε of each record of the panel by itself, on the path that ran, (m,). Secret.

        Args:
            delta: δ of each.

        Raises:
            ValueError: before the first step.
        """
        return self._accountant().per_record(delta)

    def exposure(self, delta: float) -> Exposure:
        """Return what most records like the panel's pay at most, on the path that ran. Secret.

        Args:
            delta: δ of each record's own ε.

        Raises:
            ValueError: before the first step.
        """
        return self._accountant().exposure(delta)

    def _accountant(self) -> BayesianAccountant:
        accountant = BayesianAccountant(conversion="hockey-stick", failure_probability=1e-12)
        accountant.step(self.event())
        return accountant

    def _settings(self) -> dict[str, Any]:
        """Return what a resumed run has to agree with."""
        rule = self._filter
        return {**self.mechanism.settings(), "stopping": None if rule is None else rule.settings()}

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimiser, number of steps and counts, for ``torch.save``. Secret.

        A seeded run goes on from it bit by bit as if it had not stopped, on one machine. An
        unseeded one goes on with fresh secret batches.
        """
        return deepcopy(
            {
                "mechanism": self._settings(),
                "module": self.module.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "panel": self._panel.ids,
                "counts": self._counts.state_dict(),
                "stopped": self._stopped,
            }
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``, of a run with the same module, data, panel, mechanism and filter.

        Raises:
            ValueError: naming what differs. Nothing is then changed.
        """
        for name, here in self._settings().items():
            if state["mechanism"][name] != here:
                raise ValueError(
                    f"state has {name}={state['mechanism'][name]!r}, this run {here!r}; make it as "
                    "it was made before"
                )
        if not torch.equal(state["panel"], self._panel.ids):
            raise ValueError("state has the counts of another panel; give the panel it had")
        own = self.module.state_dict()
        if {n: v.shape for n, v in state["module"].items()} != {n: v.shape for n, v in own.items()}:
            raise ValueError("state has the weights of another module; make it as it was before")
        counts = LevelCounts(LEVELS, len(self._panel))
        counts.load_state_dict(state["counts"])
        self.optimizer.load_state_dict(deepcopy(state["optimizer"]))  # refuses before it changes
        self.module.load_state_dict(state["module"])
        self._counts, self._stopped = counts, state["stopped"]

    def __repr__(self) -> str:
        kind = "" if self.mechanism.seed is None else f", {EXPERIMENT}"
        return f"Private({type(self.module).__name__}, {self.steps} steps{kind})"


def make_private(
    module: nn.Module,
    optimizer: Optimizer,
    *,
    loss: Loss,
    data: Source,
    panel: Source,
    rate: float,
    clip: float,
    noise_multiplier: float | None = None,
    epsilon: float | None = None,
    steps: int | None = None,
    delta: float = 1e-5,
    budget: Budget | None = None,
    stopping: Filter | None = None,
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
        data: tensors (x, y), or a torch Dataset of pairs with a fixed length N. N counts as public.
        panel: 100 records or more of the same kind, never trained on or tested with; their
            gradients say what records such as these pay.
        rate: Poisson sampling rate q; qN is the expected batch size.
        clip: C, bound on the L2 norm of each record's gradient. Chosen from public knowledge.
        noise_multiplier: z; the sum of a batch's gradients gets noise of standard deviation zC.
        epsilon, steps: in place of ``noise_multiplier``: the least noise with which so many steps
            cost at most ε at ``delta``, in the worst case. Further steps are refused.
        delta: δ of ``epsilon``.
        budget: limits the worst-case ε.
        stopping: a :class:`~bdpvi.accounting.odometer.Filter`, asked before each step is charged:
            its Bayesian ε holds whatever path training takes. When it stopped is secret.
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
    >>> spent = private.spent(delta=1e-5)
    >>> spent.epsilon <= spent.worst_case.epsilon
    True
    """
    validate.choice("grad_sample_mode", grad_sample_mode, GRAD_SAMPLE_MODES)
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
    held, apart = Records.of_source("data", data), Records.of_source("panel", panel)
    mechanism = Mechanism(
        rate=rate, clip=clip, noise_multiplier=noise_multiplier, records=len(held), seed=seed
    )
    check_panel(apart, held)
    check_optimizer(optimizer, module)
    some = apart.take(torch.arange(_TRIED), trainable(module)[0].device)
    check_module(module, some)
    check_loss(loss, module, some)
    gradients = _gradients(grad_sample_mode, module, loss, physical_batch, some)
    if budget is not None:
        allowed = min(allowed, affordable(mechanism, budget))
    return Private(module, optimizer, gradients, (held, apart), mechanism, allowed, stopping)


def _gradients(
    mode: GradSampleMode, module: nn.Module, loss: Loss, physical_batch: int | None, batch: Batch
) -> RecordGradients:
    """Make gradients and ask for them once: what cannot be done is known before any charge."""
    with torch.random.fork_rng([batch[0].device] if batch[0].is_cuda else []):
        try:
            made: RecordGradients
            if mode == "functorch":
                made = FunctionalGradients(module, loss, physical_batch)
            else:
                made = OpacusGradients(module, loss, physical_batch, ghost=mode == "ghost")
            made.clipped_sum(batch, 1.0)
        except (NotImplementedError, AttributeError, RuntimeError, TypeError) as error:
            other = "hooks" if mode == "functorch" else "functorch"
            raise ValueError(
                f"module has no gradients of single records with grad_sample_mode={mode!r} "
                f"({error}); try {other!r}"
            ) from error
    return made
