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
from typing import Any

import numpy as np
import torch
from pyro.optim import PyroOptim
from torch import Tensor
from torch.distributions import Distribution

from bdpvi._ground import progress as bars
from bdpvi._ground import validate
from bdpvi._ground.host import on_host
from bdpvi._ground.outputs import several
from bdpvi.bayesian.inference.guide import Guide
from bdpvi.datasets.dataset import Dataset, in_arrays
from bdpvi.federated.federated import Federation, Message
from bdpvi.federated.parties import Client, Server
from bdpvi.federated.rounds import PUBLIC, Observer, Rounds
from bdpvi.models.contract import Model
from bdpvi.models.predictions import predictive_means
from bdpvi.models.reachable import check_reach
from bdpvi.noise import secure
from bdpvi.privacy.cost import Bound, Cost
from bdpvi.privacy.ledger import Ledger
from bdpvi.releases import basis
from bdpvi.releases.steps import Steps


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
        result = self.federation.worst_case(delta, unit, observer)
        if unit != "record" or observer != PUBLIC or not self.tables:
            return result
        each = (table.altogether(delta) for table in self.tables)
        most = max((result, *filter(None, each)), key=lambda one: one.epsilon)
        more = (*result.assumptions, *self.tables[0].assumptions)
        return replace(most, observer=result.observer).assuming(*more)

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

    Over a network, the sides of :mod:`bdpvi.federated.parties` do the same by messages.

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
            f"{several(server.size, 'latent')}: make Rounds(size={server.size}, ...)"
        )
    there = [
        Client(model, data, settings, seed_of(settings.seed, number + 1))
        for number, data in enumerate(clients)
    ]
    known = (basis.given_assumptions(client, **in_arrays(client)) for client in clients)
    facts = [federation.unseen] * bool(federation.charged) + list(known)
    federation.unseen = tuple(dict.fromkeys(fact for some in facts for fact in some))
    # Turn the mean over expected clients into the sum over all records.
    scale = settings.clients / (settings.record_rate or 1.0)
    track = bars.bar if progress else bars.silent
    event, name = settings.record_event(), secrets.token_hex(8)
    people = {id(data.ledger): data.people for data in clients}.values()
    spent = [Steps(whose, event, kind="rounds", of=name) for whose in people]
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
    own = tuple(one.ledger for one in spent if one.ledger.process is not None)
    return FederatedFit(model, guide, dict(server.parameters), federation, own)


def seed_of(seed: int | None, who: int) -> int | None:
    """Return the seed of the server (``who`` = 0) or of client ``who`` − 1; None without a seed."""
    if seed is None:
        return None
    return int(np.random.SeedSequence((seed, who)).generate_state(1, np.uint64)[0])


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
                f"{first.x.shape[1]}: all need the same"
            )
        if data.feature_names != first.feature_names:
            raise ValueError(
                f"clients[{number}] has the columns {data.feature_names}, clients[0] "
                f"{first.feature_names}: all need the same in the same order"
            )
