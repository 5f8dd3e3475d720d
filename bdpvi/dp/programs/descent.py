"""Steps of stochastic variational inference by noisy sums of clipped gradients of single records.

Source: Abadi et al., "Deep Learning with Differential Privacy", CCS 2016; the clip that follows a
quantile of the norms: Andrew, Thakkar, Ramaswamy and McMahan, "Differentially Private Learning with
Adaptive Clipping", NeurIPS 2021.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from pyro.optim import PyroOptim
from torch import Tensor

from bdpvi._runtime import validate
from bdpvi._runtime.halving import by_halves
from bdpvi._runtime.host import HOST, drawing
from bdpvi._runtime.streams import stir
from bdpvi.dp.mechanism import BELOW, NoisySum
from bdpvi.dp.programs.program import Program

_AT_A_TIME = 2**24
"""Numbers in the gradients that are in memory at once."""
_MOST_ROWS = 1024


@dataclass(frozen=True, kw_only=True)
class Clip:
    """A bound C on the norm of each record's gradient in (u, θ).

    With ``share`` 0 it stays as it is. Otherwise a step's sum has one more coordinate, of which
    each record moves ``share`` at most: how many of the batch are longer than C. C then follows,
    from noisy numbers alone, until a part ``longer`` of the records is. Both together are a vector
    of norm 1 at most, so that the price is that of one sum.

    Attributes:
        bound: C, or where it starts.
        longer: part of the records whose gradient is to be longer than C.
        share: β, length of what the count may move.
        pace: largest change of log C in a step.
        batch: expected number of records in a batch, public.
    """

    bound: float
    longer: float = 0.5
    share: float = 0.0
    pace: float = 0.2
    batch: float = 1.0

    def __post_init__(self) -> None:
        validate.positive("bound", self.bound)

    @property
    def counts(self) -> bool:
        """Whether C follows a count."""
        return self.share > 0

    @property
    def rest(self) -> float:
        """√(1 − β²), for the gradient."""
        return math.sqrt(1 - self.share**2)

    def parts(self, gradients: Tensor, bound: float) -> Tensor:
        """Return the sum of what each record adds, (D,) or (D + 1,): each of norm 1 at most.

        Args:
            gradients: (B, D), float64. One that is not finite counts as zero.
            bound: C now.

        >>> clip = Clip(bound=1.0, longer=0.25, share=0.6)
        >>> each = torch.tensor([[3.0, 4.0], [0.0, 0.5], [math.inf, 0.0]]).double()
        >>> clip.parts(each, 1.0).round(decimals=6)  # 0.8 of each, then 0.6 · (0.75 − 0.25)
        tensor([0.4800, 1.0400, 0.3000], dtype=torch.float64)
        """
        norms = torch.linalg.vector_norm(gradients, dim=1)
        good = norms.isfinite()
        factors = self.rest * BELOW / norms.clamp(min=bound)
        kept = gradients.masked_fill(~good.unsqueeze(1), 0.0)
        total: Tensor = kept.T @ factors.masked_fill(~good, 0.0)
        if not self.counts:
            return total
        longer = ((norms > bound).double() - self.longer).masked_fill(~good, 0.0)
        return torch.cat([total, self.share * longer.sum().unsqueeze(0)])

    def next(self, bound: float, noisy: float) -> float:
        """Return C after the noisy count of a step.

        >>> clip = Clip(bound=1.0, share=0.1, batch=50.0, pace=0.2)
        >>> round(clip.next(2.0, 2.5), 4)  # 25 records of 50 too many: 2 e^(0.2 · 25/50)
        2.2103
        """
        excess = noisy / self.share / self.batch
        changed = bound * math.exp(self.pace * min(max(excess, -1.0), 1.0))
        return min(max(changed, 1e-100), 1e100)


class Descent:
    """A program in training. What a step costs is charged elsewhere, before it is taken.

    Attributes:
        program: whose parameters change.
        optim: how.
        mechanism: coins and noise, of sums that one record moves by 1 at most.
        clip: the rule.
        bound: C now; public, as all that follows from noisy sums.
        ignored: gradients that were not finite so far, or could not be computed, which count as
            zero: a record must not stop a training that is charged. Secret.
    """

    def __init__(self, program: Program, optim: PyroOptim, mechanism: NoisySum, clip: Clip) -> None:
        self.program, self.optim, self.mechanism, self.clip = program, optim, mechanism, clip
        self.bound, self.ignored = clip.bound, 0

    def step(self, number: int) -> tuple[Tensor, Tensor]:
        """Take the step with this number: Poisson batch, clipped gradients, noise, optimiser.

        The sum over the batch is divided by the rate; its own size would give away who is in it,
        and qN how many records there are.

        Returns:
            The latents that were drawn, and the noisy gradient of all records in them, (d,) each.

        Raises:
            FloatingPointError: if a parameter is not finite after it.
        """
        program, mechanism = self.program, self.mechanism
        with drawing(HOST, mechanism.seed_of(number)):
            draw = program.draw()
            # The parameters may show the draw, and with it what would follow from the same seed.
            stir(mechanism.key_of("records", number))
            total = torch.zeros(mechanism.size, dtype=torch.float64)
            for positions in self._pieces(mechanism.batch(number)):
                for part, found in by_halves(partial(program.gradients_at, draw), positions):
                    if found is None:
                        self.ignored += len(part)
                        continue
                    self.ignored += int((~found.isfinite().all(dim=1)).sum())
                    total += self.clip.parts(found, self.bound)
            (noisy,) = mechanism.noisy([total], mechanism.key_of(number))
            gradient = noisy[: program.size] * (self.bound / self.clip.rest / mechanism.rate)
            program.backward(draw, gradient)
            self.optim(program.parameters.values())
        if self.clip.counts:
            self.bound = self.clip.next(self.bound, float(noisy[-1]))
        for name, value in program.parameters.items():
            if not bool(value.isfinite().all()):
                raise FloatingPointError(
                    f"parameter {name!r} is not finite after step {number + 1}; use a lower "
                    "learning rate"
                )
        return draw.latents.detach().double(), gradient[: program.dim]

    def _pieces(self, positions: Tensor) -> Iterator[Tensor]:
        rows = max(1, min(_MOST_ROWS, _AT_A_TIME // max(self.program.size, 1)))
        return (one for one in positions.split(rows) if len(one))

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise in each coordinate of the gradient of all records."""
        return self.mechanism.deviation * self.bound / self.clip.rest / self.mechanism.rate

    def state_dict(self) -> dict[str, Any]:
        """Return parameters, the optimiser's state and C."""
        parameters = {n: v.detach().clone() for n, v in self.program.parameters.items()}
        optim = deepcopy(self.optim.get_state())
        return {"parameters": parameters, "optim": optim, "bound": self.bound}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state.

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
        self.optim.set_state(deepcopy(state["optim"]))  # taken up in the next step
        self.bound = state["bound"]
