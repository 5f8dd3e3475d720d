"""Federated variational inference: clients keep their records, a server trains one guide.

In every round the server draws a point w from its guide by base noise and sends it out. A client
answers with the sum of its records' scores at w, the gradients of their log-likelihoods, each
clipped, and the sum clipped again. :class:`~bdpvi.federated.federated.Federation` sums the answers
and adds noise of a fixed scale. With the Jacobian J of w in the guide's parameters, Jᵀ(noisy sum)
is the likelihood part of the ELBO's gradient; the prior and entropy parts are exact. So a client
sends d numbers in a round, whatever the guide. This is how :mod:`bdpvi.programs.program`
trains any program.

**Draws from the guide cost nothing more.** Let G_t be the guide and the optimiser's state after t
rounds, S_t the noisy sum of round t, and ξ all base noise, drawn without the records. (1) G_0 is
public. (2) The point of round t is a function of G_t and ξ, so it is public given S_1, …, S_t, and
S_{t+1} is a Gaussian mechanism on a sum that one client moves by at most C and one record by at
most its own clip, whatever the point is: the rounds compose adaptively, which is charged for both
units. (3) G_{t+1} is a function of G_t, S_{t+1}, ξ and the prior, which sees no record. So by
induction the last guide is a function of (S_1, …, S_T) and ξ, and draws are a function of it and of
fresh randomness: post-processing. This no longer holds once a guide is fitted to records again. The
numbers of rounds, columns and clients, the optimiser and the scaling of the columns must be public.

The ELBO's gradient is a sum over records, so the clients' answers add up to the pooled gradient:
without clipping and noise the result is the pooled fit, however records are divided. This is also
the fixed point of partitioned variational inference (Ashman et al. 2022, Property 2). With noise
added by each client it is the baseline of Heikkilä et al., "Differentially Private Partitioned
Variational Inference", TMLR 2023.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from pyro.infer import Trace_ELBO
from pyro.optim import PyroOptim
from torch import Tensor
from torch.distributions import Distribution, transform_to

from bdpvi._ground import progress as bars
from bdpvi._ground import validate
from bdpvi._ground.host import HOST, on_host, onto
from bdpvi._ground.isolation import isolated
from bdpvi._ground.outputs import several
from bdpvi._ground.types import tell_owner
from bdpvi.bayesian.inference.guide import Guide, check_steps
from bdpvi.bayesian.inference.optimisers import decay, fresh, fused
from bdpvi.bayesian.inference.svi import default_optimiser
from bdpvi.datasets.dataset import Dataset, in_arrays
from bdpvi.federated.federated import Federation, Message
from bdpvi.federated.rounds import PUBLIC, Observer, Rounds
from bdpvi.guides import MeanField
from bdpvi.models.contract import Model, fitting
from bdpvi.models.parameters import Parameters
from bdpvi.models.predictions import predictive_means
from bdpvi.models.reachable import check_reach
from bdpvi.noise import secure
from bdpvi.noise.batches import BatchPlan
from bdpvi.noise.keys import Key
from bdpvi.privacy.cost import Bound, Cost
from bdpvi.privacy.ledger import Ledger
from bdpvi.programs.arguments import Arguments
from bdpvi.programs.descent import Clip, clipped_sum, move, unchanged
from bdpvi.programs.program import Draw, Program
from bdpvi.programs.reading import read
from bdpvi.programs.sources import Batch, at
from bdpvi.releases import basis
from bdpvi.releases.steps import Steps


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
        data = fitting(model, data).to(data.x.device)
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
        clip = Clip(bound=rounds.record_clip or _LONGEST)
        with isolated(x, self._plan.noise_seed(round)):
            draw = Draw(onto(point.to(x.dtype), x.device), {}, x.new_zeros(()))
            batch = Batch(partial(at, self._program.arguments.tables), chosen)
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
        with unchanged(self._program):
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


_LONGEST = 1e100
"""Bound on a score where none is asked for: a sum of scores stays finite."""
LEARNING_RATE = 0.1
"""Adam's first learning rate: a fit has about 100 rounds where SVI has 1,000 steps."""


@dataclass(frozen=True, eq=False)
class FederatedFit:
    """A guide trained in rounds; ``parameters`` and draws may be published, with their ε.

    Attributes:
        model, guide: the arguments of :func:`fit_federated`; ``guide.parameters`` are this fit's
            until the guide is fitted again.
        parameters: constrained and detached.
        federation: the server's account, with its coins: keep it secret.
        tables: the ledgers of tables that came without one: what this process spent on the same
            rows counts for a record.
    """

    model: Model
    guide: Guide
    parameters: Mapping[str, Tensor]
    federation: Federation
    tables: tuple[Ledger, ...] = field(default=(), repr=False)

    @property
    def posterior(self) -> Distribution:
        """The Gaussian over the flat vector of latents. Its width ignores the privacy noise."""
        return self.guide.posterior(self.parameters)

    def worst_case(self, delta: float, unit: str = "client", observer: Observer = PUBLIC) -> Bound:
        """Return the guarantee of all rounds, and so of the guide and all draws from it.

        Args:
            delta: δ.
            unit: "client": a whole table added or removed; "record": one record of one client.
            observer: see :class:`bdpvi.federated.rounds.Observer`.

        Raises:
            ValueError: if no finite ε can be promised, or none towards this observer.
        """
        found = self.federation.worst_case(delta, unit, observer)
        if unit != "record" or observer != PUBLIC or not self.tables:
            return found
        each = (one.altogether(delta) for one in self.tables)
        most = max((found, *filter(None, each)), key=lambda one: one.epsilon)
        more = (*found.assumptions, *self.tables[0].assumptions)
        return replace(most, observer=found.observer).assuming(*more)

    def cost(self, delta: float, unit: str = "client", observer: Observer = PUBLIC) -> Cost:
        """Return :meth:`worst_case` as a :class:`bdpvi.Cost`.

        Arguments and errors are as for :meth:`worst_case`. For the path's cost pass a panel's norms
        to ``federation.cost(delta, unit, observer, norms)``.
        """
        found = self.federation.cost(delta, unit, observer)
        return replace(found, worst_case=self.worst_case(delta, unit, observer))

    def draw(self, draws: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Return samples from the guide as the model's latent variables, each (k, ...).

        They are post-processing of the released rounds, so they cost nothing.

        Args:
            draws: k.
            generator: for experiments; by default the operating system's generator.
        """
        validate.positive_int("draws", draws)
        flat = secure.sample(self.posterior, draws, generator=generator)
        return torch.vmap(self.guide.unpack)(flat)

    def predict_mean(
        self, x: Any, draws: int = 100, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return each record's expected target, averaged over draws from the guide, (N,).

        Args:
            x: features, (N, columns), as in training.
            draws, generator: see :meth:`draw`.
        """
        features = validate.finite("x", validate.numbers("x", x)).double()
        return predictive_means(self.model, self.draw(draws, generator), features).mean(0)


@on_host
def fit_federated(
    model: Model,
    guide: Guide,
    clients: Sequence[Dataset],
    federation: Federation,
    *,
    rounds: int = 100,
    optim: PyroOptim | None = None,
    progress: bool = True,
) -> FederatedFit:
    """Train a guide on separate tables by federated rounds simulated on this machine.

    Over a network, :class:`Client` and :class:`Server` do the same by exchanging messages.

    Args:
        model: a Pyro model of records, see :mod:`bdpvi.models.contract`.
        guide: ``MeanField``, ``LowRank`` or ``FullRank`` of :mod:`bdpvi.guides`. Its start counts
            as public.
        clients: a table for each client, with the same columns. A table may be empty: refusing it
            would distinguish it from a neighbour with one record.
        federation: settings, and the ledger of clients. ``clip`` bounds a client's contribution,
            ``record_clip`` a record's. One seed determines everything. Each round is also charged
            to the ledgers of the tables, at its cost to a record.
        rounds: number of rounds, public.
        optim: a Pyro optimiser, by default Adam whose learning rate falls from 0.1 to 0.001. Its
            settings must not be derived from the records.
        progress: whether to show a bar on standard error.

    Returns:
        The fit. Nothing stays in Pyro's parameter store.

    Raises:
        ValueError: naming the argument that does not fit, before anything is charged.
        BudgetExceededError: at the round that would cost more than is left.
        FloatingPointError: if the guide stops being finite.

    >>> from bdpvi import BayesianLogisticRegression, datasets, guides
    >>> model, data = BayesianLogisticRegression.unweighted(), datasets.load_breast_cancer().train
    >>> clients = [data.select(rows) for rows in torch.arange(len(data)).tensor_split(5)]
    >>> settings = Rounds(clients=5, size=30, clip=50.0, noise_multiplier=4.0,
    ...                   record_rate=1.0, record_clip=1.0)
    >>> fit = fit_federated(model, guides.MeanField(model), clients, Federation(settings),
    ...                     rounds=20, progress=False)
    >>> fit.posterior.mean.shape
    torch.Size([30])
    >>> [round(fit.worst_case(delta, unit).epsilon, 2) for delta, unit in
    ...     [(1e-2, "client"), (1e-4, "record")]]
    [2.69, 0.05]
    """
    validate.positive_int("rounds", rounds)
    settings = federation.rounds
    _check_clients(clients, settings)
    records = [one for data in clients for one in (data.x, data.y)]
    check_reach(records, guide=guide, optim=optim)
    server = Server(
        model, guide, clients[0], rounds=rounds, optim=optim, seed=seed_of(settings.seed, 0)
    )
    if settings.size != server.size:
        raise ValueError(
            f"federation has size={settings.size}, but the model has "
            f"{several(server.size, 'latent')}: make "
            f"Rounds(size={server.size}, ...)"
        )
    there = [
        Client(model, data, settings, seed_of(settings.seed, number + 1))
        for number, data in enumerate(clients)
    ]
    known = (basis.given(one, **in_arrays(one)) for one in clients)
    facts = [federation.unseen] * bool(federation.charged) + list(known)
    federation.unseen = tuple(dict.fromkeys(fact for some in facts for fact in some))
    # Turn the mean over expected clients into the sum over all records.
    scale = settings.clients / (settings.record_rate or 1.0)
    track = bars.bar if progress else bars.silent
    event, name = settings.record_event(), secrets.token_hex(8)
    ledgers = {id(data.ledger): data.ledger for data in clients}.values()
    spent = [Steps(one, event, kind="rounds", of=name) for one in ledgers]
    for _ in track(range(rounds), "rounds"):
        for table in spent:
            table.take()
        number, point = federation.next_round, server.point()
        asked = federation.sampled(number)
        answers = [Message(one, number, there[one].answer(number, point)) for one in asked]
        released = federation.aggregate(number, answers)
        if released.update is not None:
            server.update(scale * released.update)
    guide.parameters = server.parameters
    own = tuple(one for one in ledgers if one.process is not None)
    return FederatedFit(model, guide, dict(server.parameters), federation, own)


def seed_of(seed: int | None, who: int) -> int | None:
    """Return the seed of the server (``who`` = 0) or of client ``who`` − 1; None without a seed."""
    if seed is None:
        return None
    return int(np.random.SeedSequence((seed, who)).generate_state(1, np.uint64)[0])


def blank(data: Dataset) -> Dataset:
    """Return one record of zeros with the columns of ``data``, on the CPU.

    >>> blank(Dataset(torch.ones(3, 2), torch.ones(3))).x
    tensor([[0., 0.]], dtype=torch.float64)
    """
    return Dataset(
        torch.zeros(1, *data.x.shape[1:], dtype=torch.float64, device=HOST),
        torch.zeros(1, *data.y.shape[1:], dtype=torch.float64, device=HOST),
    )


def _check_clients(clients: Sequence[Dataset], settings: Rounds) -> None:
    """Raise ValueError unless there are as many as expected, all with the same columns."""
    if len(clients) != settings.clients:
        raise ValueError(
            f"clients has {several(len(clients), 'table')}, but federation is for "
            f"clients={settings.clients}"
        )
    first = clients[0]
    for number, data in enumerate(clients):
        if data.x.shape[1:] != first.x.shape[1:] or data.y.shape[1:] != first.y.shape[1:]:
            raise ValueError(
                f"clients[{number}] has {several(data.x.shape[1], 'column')}, clients[0] "
                f"{first.x.shape[1]}: "
                "all need the same"
            )
        if data.feature_names != first.feature_names:
            raise ValueError(
                f"clients[{number}] has the columns {data.feature_names}, clients[0] "
                f"{first.feature_names}: all need the same in the same order"
            )
