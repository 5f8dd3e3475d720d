"""Steps of stochastic variational inference by noisy sums of clipped per-record gradients.

Source: Abadi et al., "Deep Learning with Differential Privacy", CCS 2016. The clip that tracks a
quantile of the norms is by Andrew, Thakkar, Ramaswamy and McMahan, "Differentially Private Learning
with Adaptive Clipping", NeurIPS 2021.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from pyro.optim import PyroOptim
from torch import Tensor

from bdpvi._ground.checkpoint import reread
from bdpvi._ground.halving import by_halves
from bdpvi._ground.host import HOST, all_finite, drawing
from bdpvi._ground.outputs import several
from bdpvi._ground.types import PrivacyUtilityWarning
from bdpvi.bayesian.inference.optimisers import fresh, together
from bdpvi.noise.secure import stir
from bdpvi.programs.arguments import Arguments
from bdpvi.programs.program import Draw, Program, keep_parameters
from bdpvi.programs.replays import Replays
from bdpvi.programs.sources import RecordBatch
from bdpvi.releases import clipping
from bdpvi.releases.noisy_sum import NoisySum

_AT_A_TIME = 2**24
"""Largest number of gradient entries held in memory at once."""
_MOST_ROWS = 1024
_FIRST, _LATER = 0.2, 5.0
"""Change of log C by a whole batch too many: at most, and divided by the number of the step."""


@dataclass(frozen=True, kw_only=True)
class GradientClip:
    """A bound C on the norm of each record's gradient in (u, θ).

    With ``share`` 0 the bound is fixed. Otherwise a step's sum has one more coordinate, which each
    record moves by at most ``share``: the sum of their losses, or a count of the gradients in the
    batch longer than C. C then adapts, from noisy counts alone, until a fraction ``longer`` of the
    records exceeds it. Gradient and this coordinate together are a vector of norm at most 1, so
    they cost no more than one sum.

    Attributes:
        bound: C, or its initial value.
        longer: target fraction of the records with a gradient longer than C.
        share: β, bound on a record's contribution to the last coordinate.
        pace: the least change of log C by a whole batch too many. Where noise hides the counts, a
            quick C would follow it far above the norms, and their noise would grow with it.
        batch: expected number of records in a batch, public.
        loss: B, bound on the size of a record's loss; None if losses are not summed.
    """

    bound: float
    longer: float = 0.5
    share: float = 0.0
    pace: float = _FIRST
    batch: float = 1.0
    loss: float | None = None

    def __post_init__(self) -> None:
        clipping.clip_of("bound", self.bound)

    @property
    def counts(self) -> bool:
        """Whether C adapts to a count."""
        return self.share > 0 and self.loss is None

    @property
    def more(self) -> bool:
        """Whether a sum has a coordinate beside the gradient's."""
        return self.share > 0

    @property
    def rest(self) -> float:
        """√(1 − β²), the gradient's share of the norm."""
        return math.sqrt(1 - self.share**2)

    def parts(self, gradients: Tensor, bound: float) -> Tensor:
        """Return the sum of the records' contributions, (D,) or (D + 1,), each of norm at most 1.

        Args:
            gradients: (B, D), float64, with a last column of losses if they are summed. A gradient
                that is not finite counts as zero, and so does a loss.
            bound: the current C.

        >>> clip = GradientClip(bound=1.0, longer=0.25, share=0.6)
        >>> each = torch.tensor([[3.0, 4.0], [0.0, 0.5], [math.inf, 0.0]]).double()
        >>> clip.parts(each, 1.0).round(decimals=6)  # 0.8 of each, then 0.6 · (0.75 − 0.25)
        tensor([0.4800, 1.0400, 0.3000], dtype=torch.float64)
        >>> clip = GradientClip(bound=1.0, share=0.6, loss=10.0)
        >>> each = torch.tensor([[0.3, 0.4, 5.0], [0.0, 2.0, -30.0]]).double()
        >>> clip.parts(each, 1.0).round(decimals=5)  # 0.8 of each, then 0.6 · (0.5 − 1)
        tensor([ 0.2400,  1.1200, -0.3000], dtype=torch.float64)
        """
        gradients, losses = gradients.tensor_split(
            [gradients.shape[1] - (self.loss is not None)], 1
        )
        total, norms = clipping.clipped_sum([gradients], bound, self.rest)
        if self.loss is not None:
            return torch.cat([total, clipping.clipped_sum([losses], self.loss, self.share)[0]])
        if not self.counts:
            return total
        longer = (norms > bound).double() - self.longer
        longer = longer.masked_fill(~norms.isfinite(), 0.0)
        return torch.cat([total, self.share * longer.sum().unsqueeze(0)])

    def next(self, bound: float, noisy: float, number: int) -> float:
        """Return C updated by the noisy count of the step with this number, from 0.

        It moves by gains a/t, as of Robbins and Monro, "A Stochastic Approximation Method", 1951,
        so that it gets from a far start to the quantile and then averages out noise, but never by
        less than ``pace``, so that it goes on with norms that change.

        >>> clip = GradientClip(bound=1.0, share=0.1, batch=50.0, pace=0.02)
        >>> round(clip.next(2.0, 2.5, 0), 4)  # 25 records of 50 too many: 2 e^(0.2 · 25/50)
        2.2103
        >>> round(clip.next(2.0, 2.5, 49), 4), round(clip.next(2.0, 2.5, 999), 4)  # 0.1, 0.02
        (2.1025, 2.0201)
        """
        excess = noisy / self.share / self.batch
        pace = min(_FIRST, max(self.pace, _LATER / (number + 1)))
        changed = bound * math.exp(pace * min(max(excess, -1.0), 1.0))
        return min(max(changed, 1e-100), 1e100)


def clipped_sum(
    program: Program, draw: Draw, batch: RecordBatch, clip: GradientClip, bound: float
) -> tuple[Tensor, int]:
    """Return the sum of :meth:`GradientClip.parts`, and how many gradients were ignored.

    A gradient that is not finite or cannot be computed counts as zero.

    Args:
        program: the program of the records.
        draw: the latents at which to differentiate.
        batch: the records.
        clip, bound: the clipping rule and the current C.
    """

    def gradients(positions: Tensor) -> Tensor:
        return program.gradients(draw, batch.read(positions)).detach().cpu()

    total = torch.zeros(program.size + clip.more, dtype=torch.float64, device=HOST)
    rows, ignored = _rows_at_once(program), 0
    for piece in batch.positions.split(rows) if len(batch.positions) else ():
        for part, found in by_halves(gradients, piece):
            if found is None:
                ignored += len(part)
                continue
            ignored += int((~torch.linalg.vector_norm(found, dim=1).isfinite()).sum())
            total += clip.parts(found, bound)
    return total, ignored


def _rows_at_once(program: Program) -> int:
    return max(1, min(_MOST_ROWS, _AT_A_TIME // max(program.size, 1)))


def move(program: Program, optim: PyroOptim, draw: Draw, gradient: Tensor, number: int) -> None:
    """Move the parameters by one step of the optimiser: post-processing of a noisy gradient.

    Args:
        program: the program whose parameters move.
        optim: the optimiser.
        draw: the latents at which the gradient was taken.
        gradient: of all records, in (u, θ), (D,).
        number: the step's number, from 0.

    Raises:
        FloatingPointError: if a parameter is then not finite.
    """
    program.backward(draw, gradient)
    together(optim, list(program.parameters.values()))
    if all_finite(program.parameters.values()):
        return
    name = next(n for n, value in program.parameters.items() if not all_finite([value]))
    raise FloatingPointError(
        f"parameter {name!r} is not finite after step {number + 1}; use a lower learning rate"
    )


def tell_ignored(ignored: int, stacklevel: int) -> None:
    """Warn the owner about gradients that count as zero, if there are any."""
    if ignored:
        warnings.warn(
            "for the owner only: not finite or failed, and set to zero: "
            f"{several(ignored, 'gradient')} of records; look for NaN, infinities and values "
            "outside the support",
            PrivacyUtilityWarning,
            stacklevel=stacklevel + 1,
        )


class Descent:
    """A program in training. Its steps are charged elsewhere, before they are taken.

    Attributes:
        program: the program whose parameters are trained.
        replays: its recorded steps.
        optim: the optimiser.
        mechanism: coins and noise, for sums that one record moves by at most 1.
        clip: the clipping rule.
        bound: the current C; public, because it is computed from noisy sums.
        loss: the noisy estimate of the last step's negative ELBO, if losses are summed.
        ignored: number of gradients so far that were not finite or could not be computed. They
            count as zero, because a record must not stop a run that was charged. Secret.
    """

    def __init__(
        self,
        program: Program,
        optim: PyroOptim,
        mechanism: NoisySum,
        clip: GradientClip,
        steps: int | None = None,
    ) -> None:
        records = program.arguments.length
        expected = mechanism.rate * records
        most = min(records, math.ceil(expected + 3 * math.sqrt(expected)), _rows_at_once(program))
        self.program = replace(program, losses=clip.loss is not None)
        self.replays = Replays(
            self.program, max(most, 1), steps
        )  # 0 rows would show an empty table
        self.optim, self.mechanism, self.clip = optim, mechanism, clip
        self.bound, self.ignored, self.loss = clip.bound, 0, math.nan

    def follow(self, arguments: Arguments) -> None:
        """Go on with the arguments of a later call.

        Raises:
            ValueError: if they hold other records.
        """
        own = self.program.arguments
        later = own.following(arguments)
        if any(one is not other for one, other in zip(own.constants, later.constants, strict=True)):
            self.program = replace(self.program, arguments=later)

    def rehearse(self) -> None:
        """Take two steps on made-up records, with the state saved and loaded between them.

        What can fail without noise fails here, before a charge. Nothing stays changed.

        Raises:
            ValueError: naming what failed.
        """
        program = replace(self.program, arguments=self.program.arguments.made_up)
        (batch,) = program.arguments.source.every()
        tried = copy(self)
        tried.program, tried.optim = program, fresh(self.optim)
        with keep_parameters(program), drawing(HOST, 0):
            try:
                for number in range(2):
                    draw = program.draw()
                    total, _ = clipped_sum(program, draw, batch, self.clip, self.bound)
                    move(program, tried.optim, draw, total[: program.size], number)
                    tried.load_state_dict(reread(tried.state_dict()))
            except Exception as error:  # whatever an optimiser or a program of the user's raises
                raise ValueError(
                    f"training fails on made-up records, by {type(error).__name__}: "
                    f"{error!s:.200}. Nothing was charged"
                ) from error

    def step(self, number: int) -> tuple[Tensor, Tensor]:
        """Take the step with this number: Poisson batch, clipped gradients, noise, optimiser.

        The sum over the batch is divided by the rate. Its actual size would leak who is in it, and
        the expected size qN would leak N.

        Returns:
            The drawn latents, and the noisy gradient of all records at them, (d,) each.

        Raises:
            FloatingPointError: if a parameter is not finite after the step.
        """
        program, mechanism = self.replays.program(self.program, number), self.mechanism
        with drawing(HOST, mechanism.seed_of(number)):
            draw = program.draw()
            if program.records_draw:
                # The parameters may reveal the draw, and with it other draws from the same seed.
                stir(mechanism.key_of("records", number))
            clip, batch = self.clip, program.arguments.source.batch(mechanism, number)
            total, ignored = clipped_sum(program, draw, batch, clip, self.bound)
            (noisy,) = mechanism.noisy([total], mechanism.key_of(number))
            gradient = noisy[: program.size] * (self.bound / clip.rest / mechanism.rate)
            self.ignored += ignored
            if clip.counts:
                self.bound = clip.next(self.bound, float(noisy[-1]), number)
            if clip.loss is not None:
                of_records = float(noisy[-1]) * (clip.loss / clip.share / mechanism.rate)
                self.loss = float(draw.public.detach()) + of_records
            move(program, self.optim, draw, gradient, number)
        return draw.latents.detach().double(), gradient[: program.dim]

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise in each coordinate of the full gradient."""
        return self.mechanism.deviation * self.bound / self.clip.rest / self.mechanism.rate

    def state_dict(self) -> dict[str, Any]:
        """Return parameters, the optimiser's state and C."""
        parameters = {n: v.detach().clone() for n, v in self.program.parameters.items()}
        optim = deepcopy(self.optim.get_state())
        return {"parameters": parameters, "optim": optim, "bound": self.bound}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state.

        Raises:
            ValueError: if it has other parameters. Nothing is then changed.
        """
        own = self.program.parameters
        shapes = [{n: v.shape for n, v in one.items()} for one in (own, state["parameters"])]
        if shapes[0] != shapes[1]:
            raise ValueError("state has other parameters; make model and guide as they were before")
        with torch.no_grad():
            for name, value in own.items():
                value.copy_(state["parameters"][name])
        self.optim.optim_objs.clear()
        self.optim.set_state(deepcopy(state["optim"]))  # takes effect in the next step
        self.bound = state["bound"]
