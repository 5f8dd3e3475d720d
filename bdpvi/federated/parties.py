"""The two sides of federated variational inference: clients with records, and a server.

:mod:`bdpvi.federated.federated_vi` says what they exchange, and why it is private.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from functools import partial

import torch
from pyro.infer import Trace_ELBO
from pyro.optim import PyroOptim
from torch import Tensor
from torch.distributions import transform_to

from bdpvi._ground import validate
from bdpvi._ground.host import HOST, onto
from bdpvi._ground.isolation import isolated
from bdpvi._ground.types import tell_owner
from bdpvi.bayesian.inference.guide import Guide, check_steps
from bdpvi.bayesian.inference.optimisers import decay, fresh, fused
from bdpvi.bayesian.inference.svi import default_optimiser
from bdpvi.datasets.dataset import Dataset
from bdpvi.datasets.weights import refuse_weights
from bdpvi.federated.rounds import Rounds
from bdpvi.guides import MeanField
from bdpvi.models.contract import Model
from bdpvi.models.parameters import Parameters
from bdpvi.models.reachable import check_reach
from bdpvi.noise.batches import BatchPlan
from bdpvi.noise.keys import Key
from bdpvi.programs.arguments import Arguments
from bdpvi.programs.descent import GradientClip, clipped_sum, move
from bdpvi.programs.program import Draw, Program, keep_parameters
from bdpvi.programs.reading import read
from bdpvi.programs.sources import RecordBatch, at

_LONGEST = 1e100
"""Bound on a score where none is asked for: a sum of scores stays finite."""
LEARNING_RATE = 0.1
"""Adam's first learning rate: a fit has about 100 rounds where SVI has 1,000 steps."""


class Client:
    """One owner of records. It sends nothing but the results of :meth:`answer`.

    Args:
        model: the Pyro model of all clients, see :mod:`bdpvi.models.contract`.
        data: the client's records, perhaps none. A record that does not fit the model is left out.
        rounds: the settings of all clients.
        seed: of the records' coins; None for a secret one.

    Raises:
        ValueError: from the model's own ``check(data)``, if it has one.
    """

    def __init__(
        self, model: Model, data: Dataset, rounds: Rounds, seed: int | None = None
    ) -> None:
        refuse_weights(data, "a client")
        data = data.taking(getattr(model, "takes", None)).to(data.x.device)
        check = getattr(model, "check", None)
        if check is not None:
            check(data)
        check_reach([data.x, data.y], model=model)
        self.rounds, self._data, self._ids = rounds, data, data.ids.to(HOST)
        # No record is needed to read the model, and the guide is the server's.
        program = _read(model, MeanField(model), blank(data).to(data.x.device))
        self._program = replace(program, arguments=Arguments.of((data.x, data.y), {}))
        secret = secrets.randbits(128) if seed is None else seed
        self._plan = BatchPlan(steps=1, rate=rounds.record_rate or 1.0, seed=secret)

    def answer(self, round: int, point: Tensor) -> Tensor:
        """Return the sum of the clipped scores of a Poisson sample of the records, (d,) float64.

        The sum is clipped, and includes this client's noise share if clients add the noise. Without
        noise shares the aggregator sees it in the clear: :mod:`bdpvi.federated.rounds` says who may
        see it. A score that is not finite counts as zero, and the owner is told.

        Args:
            round: the round's number, which decides the coins.
            point: w, (d,).

        Raises:
            ValueError: if the point has another size.
        """
        rounds, x = self.rounds, self._data.x
        if point.shape != (rounds.size,):
            raise ValueError(f"point must have shape ({rounds.size},), got {tuple(point.shape)}")
        chosen = self._plan.batch(round, self._ids).nonzero()[:, 0]
        clip = GradientClip(bound=rounds.record_clip or _LONGEST)
        with isolated(x, self._plan.noise_seed(round)):
            draw = Draw(onto(point.to(x.dtype), x.device), {}, x.new_zeros(()))
            batch = RecordBatch(partial(at, self._program.arguments.tables), chosen)
            slopes, ignored = clipped_sum(self._program, draw, batch, clip, clip.bound)
        tell_owner(ignored, "record", "a score is not finite")
        total = -clip.bound * slopes
        if rounds.noise_shares is None:
            return rounds.clip_update(total)
        key = None if rounds.seed is None else Key.of_seed(self._plan.seed).child("share", round)
        return rounds.share(total, key)


class Server:
    """Trains the guide. It sees no records, only noisy sums and the shape of a table.

    Args:
        model: the Pyro model of all clients.
        guide: a guide of :mod:`bdpvi.guides`, whose start must be public.
        like: records that only give the number of columns, such as :func:`blank` returns.
        rounds: number of rounds over which the default optimiser's learning rate falls.
        optim: a Pyro optimiser, by default Adam with a decaying learning rate.
        seed: seed of the base noise; None draws a secret one, though it may be public.
    """

    def __init__(
        self,
        model: Model,
        guide: Guide,
        like: Dataset,
        *,
        rounds: int = 100,
        optim: PyroOptim | None = None,
        seed: int | None = None,
    ) -> None:
        check_steps(guide)
        self._like, self._program = blank(like).x, _read(model, guide, blank(like))
        self._optim = fused(fresh(optim or default_optimiser(rounds, LEARNING_RATE)))
        self._plan = BatchPlan(steps=rounds, seed=secrets.randbits(128) if seed is None else seed)
        self.updates = 0
        with keep_parameters(self._program):
            try:
                zeros = torch.zeros(self.size, dtype=torch.float64)
                move(self._program, fresh(self._optim), self._draw(), zeros, 0)
            except Exception as error:  # whatever an optimiser of the user's raises
                raise ValueError(
                    f"optim raised {type(error).__name__} in a step without records "
                    f"({error!s:.200}). Nothing was charged"
                ) from error

    @property
    def size(self) -> int:
        """d, the number of latents."""
        return self._program.size

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The guide's constrained parameters after all updates so far. They may be published."""
        return {name: value.detach() for name, value in self._values().items()}

    def point(self) -> Tensor:
        """Return the draw from the guide at which clients compute their next answer, (d,)."""
        return self._draw().latents.detach()

    def update(self, total: Tensor) -> None:
        """Move the guide by one step of the optimiser.

        Args:
            total: a noisy, unbiased sum of all records' clipped scores at :meth:`point`, (d,).

        Raises:
            ValueError: if ``total`` is not finite or has another size.
            FloatingPointError: if the guide stops being finite.
        """
        if total.shape != (self.size,):
            raise ValueError(f"total must have shape ({self.size},), got {tuple(total.shape)}")
        validate.finite("total", total)
        with isolated(self._like):
            move(self._program, self._optim, self._draw(), -total, self.updates)
            decay(self._optim)
        self.updates += 1

    def _draw(self) -> Draw:
        """Return the round's draw, the same for the point and for the update after it."""
        seed = self._plan.noise_seed(self.updates)
        with isolated(self._like, seed), Parameters(self._values()):
            return self._program.draw()

    def _values(self) -> dict[str, Tensor]:
        """Return the constrained parameters, as functions of the trained ones."""
        own, supports = self._program.parameters, self._program.constraints
        return {name: transform_to(supports[name])(value) for name, value in own.items()}


def _read(model: Model, guide: Guide, like: Dataset) -> Program:
    """Return the program of one made-up record."""
    with isolated(like.x):
        guide.setup(like.x, like.y)
        return read(model, guide, Trace_ELBO(), Arguments.of((like.x, like.y), {}))


def blank(data: Dataset) -> Dataset:
    """Return one record of zeros with the columns of ``data``, on the CPU.

    >>> blank(Dataset(torch.ones(3, 2), torch.ones(3))).x
    tensor([[0., 0.]], dtype=torch.float64)
    """
    return Dataset(
        torch.zeros(1, *data.x.shape[1:], dtype=torch.float64, device=HOST),
        torch.zeros(1, *data.y.shape[1:], dtype=torch.float64, device=HOST),
    )
