"""``pyro.infer.SVI`` with clipped, noisy gradients, as a drop-in replacement in training loops."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import torch
from pyro.optim import PyroOptim
from torch import Tensor

from bdpvi._ground import validate
from bdpvi._ground.checkpoint import sealed, understood, unsealed
from bdpvi._ground.halving import by_halves
from bdpvi._ground.host import HOST, drawing, on_host
from bdpvi._ground.outputs import several
from bdpvi._ground.promotion import Promotion
from bdpvi._ground.schema import require_same
from bdpvi.bayesian.inference.guide import check_steps, check_unused
from bdpvi.datasets.dataset import BlockData, Dataset, in_arrays
from bdpvi.datasets.records import People
from bdpvi.models.misfits import MisfitError
from bdpvi.models.reachable import check_reach
from bdpvi.privacy.cost import Bound, Cost
from bdpvi.privacy.ledger import Ledger
from bdpvi.programs.arguments import Arguments
from bdpvi.programs.descent import Descent, GradientClip, tell_ignored
from bdpvi.programs.program import Draw, Program
from bdpvi.programs.reading import read
from bdpvi.programs.shown_loss import UNDISCLOSED, with_loss
from bdpvi.programs.sources import RecordBatch
from bdpvi.releases import basis
from bdpvi.releases.noisy_sum import NoisySum
from bdpvi.releases.steps import Steps

BLOCK = 10
"""Steps that are charged at once."""


class PrivateSVI:
    """Stochastic variational inference whose parameters are private in every step.

    A step takes a Poisson sample of the records, clips each record's gradient, adds noise to their
    sum and passes it to the optimiser. It is charged before anything is drawn. The guarantee is
    worst-case, for adding or removing one record. It covers all parameters of model and guide after
    every step, and so any number of draws from the guide.

    Args:
        model, guide: as for ``pyro.infer.SVI``. Draws of global latents follow from parameters;
            local ones need a guide that computes theirs from the record's own row. Plates over
            records may subsample: their sizes are ignored. What they hold beside their arguments
            counts as public, starting values included. A start must be the same on two made-up
            tables; and closures, defaults, globals, attributes and containers are searched for the
            records, by memory and by value. The search is for mistakes: it does not see globals of
            installed packages, or numbers computed from the records, such as means.
        optim: an optimiser of ``pyro.optim``.
        loss: ``Trace_ELBO``; ``TraceMeanField_ELBO``; or
            ``TraceEnum_ELBO``, which sums enumerated latents of the model out. After the first 80
            steps the tensor operations of a step are recorded, on made-up records, and replayed,
            three times as fast, as long as the replay is what model and guide do. With Pyro's
            ``JitTrace_ELBO``, ``JitTraceEnum_ELBO`` and ``JitTraceMeanField_ELBO`` from the first
            step on, and a program for which that is not so is refused.
        clip: C, bound on the norm of each record's gradient in the unconstrained global latents and
            the parameters that its own sites use. Public, as all arguments are.
        noise_multiplier: z; the sum of the gradients gets noise of standard deviation zC.
        rate: Poisson sampling rate q of the records.
        ledger: the ledger of all charges for these people; by default that of a
            :class:`bdpvi.Dataset` or of records in blocks, otherwise one in memory, which adds up
            with others of the same rows in this process. Records are one person's each; a ledger
            of persons with several takes those of ``bdpvi.Dataset.of(x, y, unit=persons)``.
        plate: name of the plate over the records, if it is ambiguous.
        seed: None for anything that you share. A number makes an experiment, which is repeatable:
            whoever knows the seed can subtract the noise.
        noisy_loss: None, or a pair (B, z) for a loss that may be shown: :meth:`step` then returns
            an estimate from the records' losses, each cut off at ±B, whose sum gets noise of
            standard deviation zB. A step is charged for both sums: with a z of four times
            ``noise_multiplier`` as one whose noise is 3 % smaller.

    Raises:
        ValueError: naming the argument that is out of range.

    >>> import pyro, pyro.distributions as dist
    >>> def model(x, y):
    ...     w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    ...     with pyro.plate("records", len(x), subsample_size=100) as at:
    ...         pyro.sample("y", dist.Bernoulli(logits=x[at] @ w), obs=y[at])
    >>> x = torch.randn(2000, 2, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).float()
    >>> pyro.clear_param_store()
    >>> guide = pyro.infer.autoguide.AutoNormal(model)
    >>> optim, loss = pyro.optim.Adam({"lr": 0.05}), pyro.infer.Trace_ELBO()
    >>> svi = PrivateSVI(model, guide, optim, loss, clip=1.0, noise_multiplier=2.0, rate=0.05)
    >>> for _ in range(50):
    ...     loss = svi.step(x, y)
    >>> print(f"{loss:.2f}")
    undisclosed
    >>> round(svi.get_epsilon(1e-5), 2), bool(guide.median()["w"][0] > 0.5)
    (0.78, True)
    >>> pyro.clear_param_store()
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        optim: PyroOptim,
        loss: Any,
        *,
        clip: float,
        noise_multiplier: float,
        rate: float,
        ledger: Ledger | None = None,
        plate: str | None = None,
        seed: int | None = None,
        noisy_loss: tuple[float, float] | None = None,
    ) -> None:
        check_steps(guide, seals=True)
        if not isinstance(optim, PyroOptim):
            raise ValueError(
                f"optim={type(optim).__name__} is none of pyro.optim; use pyro.optim.Adam(...)"
            )
        self.model, self.guide, self.optim, self.loss = model, guide, optim, loss
        self.plate, self._ledger = plate, ledger
        only = GradientClip(bound=validate.positive("clip", clip))
        self._clip, noise = with_loss(only, noise_multiplier, noisy_loss)
        self._mechanism = NoisySum(
            rate=validate.rate("rate", rate),
            clip=1.0,
            noise_multiplier=noise,
            size=1,
            records=1,
            seed=seed,
        )
        self._descent: Descent | None = None
        self._charged: Steps | None = None
        self._told = False
        self._rule: Callable[[], AbstractContextManager[Any]] = nullcontext

    @on_host
    def step(self, *args: Any, **kwargs: Any) -> float:
        """Charge a step, then take it, and return what may be shown of the loss.

        By default this is a NaN, which prints as ``undisclosed`` and may be added: the loss follows
        from records without noise, and the owner may look at :meth:`evaluate_loss`. With
        ``noisy_loss=`` it is an estimate of the negative ELBO of all records at the step's draw,
        private as the parameters are.

        Args:
            args, kwargs: the arguments of model and guide: **all** records in every step, as
                tensors with a row for each (copies are understood), or one torch ``Dataset`` or
                another sequence whose items are the arguments, or what
                :func:`bdpvi.datasets.from_blocks` returns. Numbers, strings and modules are public,
                and may change from step to step, as a weight that is annealed.

        Raises:
            BudgetExceededError: if the step would cost more than the ledger's budget has left.
                Nothing is charged or drawn.
            ValueError: naming the site that cannot be protected and the remedy; nothing is charged.
                Or naming a block that cannot be read; this step is then charged and lost.
            FloatingPointError: if a parameter is not finite after the step.

        Warns:
            PrivacyUtilityWarning: about records whose gradient is not finite or on which model or
                guide fail; they count as zero.
        """
        descent, charged = self._prepare(args, kwargs)
        charged.take()
        with self._rule():
            descent.step(charged.taken - 1)
        if not self._told:
            tell_ignored(descent.ignored, 3)
            self._told = bool(descent.ignored)
        return UNDISCLOSED if self._clip.loss is None else descent.loss

    @on_host
    def evaluate_loss(self, *args: Any, **kwargs: Any) -> float:
        """Return an estimate of the negative ELBO of all records, at one draw. Secret.

        Arguments are as for :meth:`step`. Nothing is charged, so never publish it. A record on
        which model or guide fail counts as zero.
        """
        descent, _ = self._prepare(args, kwargs)
        program = descent.program
        with drawing(HOST), torch.no_grad(), self._rule():
            draw = program.draw()
            each = [
                float(found.double().sum())
                for some in program.arguments.source.every()
                for one in some.positions.split(1024)
                for _, found in by_halves(partial(_losses, program, draw, some), one)
                if found is not None
            ]
        return float(draw.public) + math.fsum(each)

    @property
    def steps(self) -> int:
        """The number of steps begun."""
        return 0 if self._charged is None else self._charged.taken

    @property
    def ledger(self) -> Ledger:
        """All charges for the records, including these steps.

        Raises:
            ValueError: before the first step, if none was given.
        """
        if self._charged is None and self._ledger is not None:
            return self._ledger
        return self._existing[1].ledger

    @property
    def _existing(self) -> tuple[Descent, Steps]:
        if self._descent is None or self._charged is None:
            raise ValueError("nothing was charged yet: call step() first")
        return self._descent, self._charged

    def worst_case(self, delta: float) -> Bound:
        """Return the guarantee for these steps and everything else in the ledger.

        Args:
            delta: δ.

        Raises:
            ValueError: before the first step, or if no finite ε can be promised.
        """
        descent, charged = self._existing
        return charged.worst_case(descent.mechanism, delta)

    def cost(self, delta: float) -> Cost:
        """Return :meth:`worst_case` as a cost; without a panel there is no other bound."""
        return Cost(worst_case=self.worst_case(delta))

    def get_epsilon(self, delta: float) -> float:
        """Return the worst-case ε at δ, like Opacus's privacy engine."""
        return self.worst_case(delta).epsilon

    def state_dict(self) -> dict[str, Any]:
        """Return parameters, the optimiser's state and the number of steps, for ``torch.save``.

        Secret: it contains the number of records.

        Raises:
            ValueError: before the first step.
        """
        descent, charged = self._existing
        run = {"mechanism": descent.mechanism.settings(), "run": charged.of, "charged": self.steps}
        return sealed({**run, **descent.state_dict()})

    @on_host
    @understood("state")
    def load_state_dict(self, state: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        """Resume from ``state``, of a run with the same settings.

        No charge is undone: steps taken here stay charged, and steps in the state that the ledger
        lacks are charged.

        Args:
            state: the result of :meth:`state_dict`.
            args, kwargs: as for :meth:`step`; model and guide run only on made-up records.

        Raises:
            ValueError: naming what differs, or if the state was changed. Nothing is then changed.
        """
        state = unsealed(state)
        descent, charged = self._prepare(args, kwargs)
        made, now = state["mechanism"], descent.mechanism.settings()
        require_same("state", made, now, "make the run as it was made before")
        descent.load_state_dict(state)
        charged.resume(state["run"], state["charged"])

    def _prepare(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Descent, Steps]:
        """Return descent and steps, created from these arguments in the first call."""
        source = args[0] if len(args) == 1 and not kwargs else None
        given = source if isinstance(source, Dataset | BlockData) else None
        arguments = Arguments.of(args, kwargs) if given is None else Arguments.of_data(given)
        if self._descent is not None and self._charged is not None:
            self._descent.follow(arguments)
            return self._descent, self._charged
        people = People() if given is None else given.people
        people.share(self._ledger or people.kept, parts=arguments.source.some)
        if not arguments.length:
            raise ValueError("step: the records are 0; at least 1 is needed. Nothing was charged")
        check_unused(self.guide)
        programs = {"model": self.model, "guide": self.guide, "loss": self.loss}
        check_reach(arguments.source.holds, arguments.length, **programs, optim=self.optim)
        try:
            program = read(self.model, self.guide, self.loss, arguments, self.plate)
        except MisfitError:
            raise
        except ValueError:
            with suppress(ValueError), Promotion():  # of which the first says more
                program = read(self.model, self.guide, self.loss, arguments, self.plate)
                self._rule = Promotion
            if self._rule is nullcontext:
                raise
        rows = arguments.tables if arguments.source.in_memory else ()
        shown = in_arrays(source) or {f"argument {at}": one for at, one in enumerate(rows)}
        mechanism = replace(
            self._mechanism,
            size=program.size + self._clip.more,
            length=arguments.length,
            assumptions=basis.given_assumptions(source, **shown),
        )
        of = secrets.token_hex(8)
        descent = Descent(program, self.optim, mechanism, self._clip)
        with self._rule():
            descent.rehearse()
        self._charged = Steps(people, mechanism.event(1), kind="steps", of=of, block=BLOCK)
        self._descent = descent
        return descent, self._charged

    def __getstate__(self) -> NoReturn:
        raise TypeError("PrivateSVI cannot be copied or pickled; state_dict() has what to keep")

    def __repr__(self) -> str:
        kind = "" if self._mechanism.seed is None else ", seeded: no guarantee"
        return f"PrivateSVI({several(self.steps, 'step')}{kind})"


def _losses(program: Program, draw: Draw, batch: RecordBatch, positions: Tensor) -> Tensor:
    return program.record_losses(draw, batch.read(positions))
