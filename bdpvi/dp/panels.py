"""What single records pay in Flower, by sums: no client shows a record's value.

It needs the extra ``bdpvi[flower]``. In each round a client notes how far the records of its own
panel would have moved its update, in its own state, which never leaves. At the end the server asks
once. A client turns each record's own δ(ε) into values v in [0, 1], and these into whole numbers
that only have to be added up, modulo 2⁶⁴: masks that cancel in the sum hide every client's own
(Bonawitz et al., CCS 2017, without its recovery of lost clients). The total is as secret as they.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bdpvi._runtime import validate
from bdpvi.accounting import worst_case
from bdpvi.accounting.cost import Assumption, Bound, Cost, Kind
from bdpvi.accounting.events import NormCounts, SampledGaussian
from bdpvi.accounting.losses import OfRuns
from bdpvi.dp.flower import decoded, without_text
from bdpvi.dp.rounds import Rounds

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
    from flwr.clientapp.typing import ClientAppCallable, Mod
    from flwr.serverapp import Grid
except ImportError as error:
    raise ImportError("bdpvi.dp.panels needs pip install 'bdpvi[flower]'") from error

ASK = "query.bdpvi_panel"
"""Type of the message that asks for sums."""
_STATE, _ANSWERED = "bdpvi-panel", "bdpvi-panel-answered"

Distances = Callable[[ArrayRecord, Context], Tensor]
Secrets = Callable[[Context], tuple[int, Mapping[int, bytes]]]
BITS = 30
"""Binary places of all sums. 2³⁰ records fit in 64 bits."""
FRACTIONS = (1 - 2.0**-10, *(2.0**-j for j in range(1, 13)))
"""Of the wealth, that are bet; below 1, so that no record can take all of it."""
MEANS = tuple((torch.logspace(-5, 0, 97, dtype=torch.float64)[:-1] * (1 - 2.0**-10)).tolist())
"""Hypotheses about the mean, 13 % apart."""
Words = NDArray[np.uint64]


def length(columns: int) -> int:
    """Return how many whole numbers sums of so many values of each record are."""
    return 1 + columns * len(FRACTIONS) * len(MEANS)


@dataclass(frozen=True, eq=False)
class SecureSums:
    """Sums over records, as whole numbers; of a client, or of all.

    Attributes:
        records: n.
        wealth: Σ log(1 + c_j (ν_k − v)/(1 − ν_k)) of each of K values v, with c of
            :data:`FRACTIONS`, ν of :data:`MEANS` and :data:`BITS` binary places, (K, J, M) int64,
            rounded down.

    >>> sums = SecureSums.of(torch.full((1, 1000), 0.15))
    >>> sums.records, bool(0.15 < sums.betting(1e-6)[0] < 0.2)
    (1000, True)
    """

    records: int
    wealth: Tensor

    @classmethod
    def of(cls, values: Tensor) -> SecureSums:
        """Return the sums of one client's records.

        Args:
            values: in [0, 1], (K, m).

        Raises:
            ValueError: if one is NaN or out of its range.
        """
        values = values.detach().cpu().double()
        validate.every("values", values, (values >= 0) & (values <= 1), "lie in [0, 1]")
        return cls(values.shape[1], _wealth(values))

    def vector(self) -> Tensor:
        """Return all sums, (:func:`length`,) int64."""
        return torch.cat([torch.tensor([self.records]), self.wealth.flatten()])

    def betting(self, failure_probability: float) -> Tensor:
        """Return bounds on E v by betting, (K,), whatever the distribution.

        As :func:`bdpvi.accounting.betting.betting`, with :data:`FRACTIONS`: the least ν_k whose
        wealth is above 1/γ, or 1. Wealth rises with ν, so that the whole grid is one bet.
        """
        gamma = validate.probability("failure_probability", failure_probability)
        gains = self.wealth.double() * 2.0**-BITS
        k = torch.arange(len(FRACTIONS), dtype=torch.float64)
        weights = torch.cat([1 / ((k + 1) * (k + 2)), 1 / (k[-1:] + 2)])
        unbet = gains.new_zeros(len(gains), 1, gains.shape[2])
        log_wealth = torch.logsumexp(torch.cat([gains, unbet], 1) + weights.log()[:, None], 1)
        rejected = log_wealth >= -math.log(gamma)
        first = torch.where(rejected.any(1), rejected.int().argmax(1), rejected.shape[1])
        return torch.tensor([*MEANS, 1.0], dtype=torch.float64)[first]


def _wealth(values: Tensor) -> Tensor:
    """Return log-wealths (K, J, M), record by record rounded down."""
    c = torch.tensor(FRACTIONS, dtype=torch.float64)[:, None]
    means = torch.tensor(MEANS, dtype=torch.float64)
    total = torch.zeros(len(values), len(c), len(means), dtype=torch.int64)
    for record in values.T:
        gain = torch.log1p(c * ((means - record[:, None, None]) / (1 - means)))
        # A little less, as the logarithm is itself rounded.
        total += torch.floor(gain * 2.0**BITS - 2.0**-10).long()
    return total


def masked(sums: SecureSums, client: int, secrets: Mapping[int, bytes], tag: str) -> Words:
    """Return a client's sums under masks that cancel in the total of all, modulo 2⁶⁴.

    To anybody without the secrets a message is uniform, as far as SHAKE-256 is, whatever the sums.
    Every client has to answer: if one is lost, the rest start again among themselves, under a
    new tag. What the total says is left: with few clients it says much about each.

    Args:
        sums: of the client.
        client: its number.
        secrets: at least 16 secret bytes shared with each of the others, which the server must not
            know; at least two others, as one would subtract its own.
        tag: of the report and its set of clients; a tag is used once, or messages betray changes.

    Raises:
        ValueError: if there are fewer than two others, or a secret is too short.
    """
    if len(secrets) < 2 or client in secrets:
        raise ValueError(f"secrets must be of at least 2 clients other than {client}")
    words = sums.vector().numpy().view(np.uint64).copy()
    for other, secret in secrets.items():
        if len(secret) < 16:
            raise ValueError(f"secrets[{other}] has {len(secret)} bytes; at least 16 are needed")
        mask = _mask(secret, tag, len(words))
        words = words + mask if client < other else words - mask
    return words


def _mask(secret: bytes, tag: str, length: int) -> Words:
    # The secret's length keeps secret and tag apart.
    key = len(secret).to_bytes(8, "little") + secret + tag.encode()
    return np.frombuffer(hashlib.shake_256(key).digest(8 * length), dtype="<u8").astype(np.uint64)


def unmasked(columns: int, messages: Sequence[Words]) -> SecureSums:
    """Return the sums over all clients from everybody's :func:`masked` message.

    Args:
        columns: values of each record.
        messages: (:func:`length`,) each.

    Raises:
        ValueError: if masks do not cancel, as when a client's message is missing.
    """
    if not messages:
        raise ValueError("messages has no client's")
    total = torch.from_numpy(reduce(add, messages).view(np.int64))
    count = int(total[0])
    if not 0 <= count <= 2**BITS:
        raise ValueError(f"messages count {count} records: masks do not cancel, or are others")
    return SecureSums(count, total[1:].view(columns, len(FRACTIONS), len(MEANS)))


@dataclass(frozen=True, kw_only=True)
class EpsilonReport:
    """How all clients' panels give one ε, by sums; fixed and public before the first record.

    A value is a panel record's own δ(ε), at each ε of a grid and in both directions, over that of
    the worst case.

    Attributes:
        epsilons: the ε that the answer may take, increasing.
        delta: δ.
        failure_probability: γ of each bound; δ pays for all of them.

    Raises:
        ValueError: if an argument is out of range, or the bounds leave nothing of δ.
    """

    epsilons: tuple[float, ...]
    delta: float
    failure_probability: float = 1e-10

    def __post_init__(self) -> None:
        validate.probability("delta", self.delta)
        validate.probability("failure_probability", self.failure_probability)
        for one in self.epsilons:
            validate.positive("epsilons", one)
        if list(self.epsilons) != sorted(set(self.epsilons)) or not self.epsilons:
            raise ValueError(f"epsilons must increase, got {self.epsilons!r}")
        if not self._rest > 0:
            raise ValueError(
                f"failure_probability={self.failure_probability:g} times "
                f"{self.columns} bounds leaves nothing of delta={self.delta:g}"
            )

    @property
    def columns(self) -> int:
        """Values of each record."""
        return 2 * len(self.epsilons)

    @property
    def _rest(self) -> float:
        return self.delta - self.columns * self.failure_probability

    def sums(self, event: SampledGaussian) -> SecureSums:
        """Return one client's sums, from the rounds as its own panel has them.

        Args:
            event: of its panel, with the settings and the number of steps of every other client's.
        """
        runs, values = OfRuns(((event, 1),)), []
        for direction in event.records:
            own = runs.deltas(direction, self.delta)
            assert own.bound is not None
            for epsilon in self.epsilons:
                ceiling = own.bound(epsilon) or 1.0
                values.append((own.at(epsilon) / ceiling).clamp(max=1))
        return SecureSums.of(torch.stack(values))

    def epsilon(self, total: SecureSums, event: SampledGaussian) -> float:
        """Return the smallest ε of the grid that the bounds allow, +inf if none does.

        On a training path it is a diagnostic, and no guarantee about the algorithm: :meth:`cost`.

        Args:
            total: of all clients.
            event: the rounds, as of :meth:`bdpvi.dp.rounds.Rounds.event` without norms.

        Raises:
            ValueError: if the sums are of another report's grid.
        """
        if len(total.wealth) != self.columns:
            raise ValueError(
                f"total has sums of {len(total.wealth)} columns, and this report's have "
                f"{self.columns}: all clients make theirs by one report"
            )
        runs = OfRuns(((event, 1),))
        bounds = total.betting(self.failure_probability).view(2, -1)
        allowed = torch.ones(len(self.epsilons), dtype=torch.bool)
        for direction, means in zip(event.records, bounds, strict=True):
            bound = runs.deltas(direction, self.delta).bound
            assert bound is not None
            ceilings = torch.tensor([bound(one) for one in self.epsilons], dtype=torch.float64)
            allowed &= means * ceilings <= self._rest
        found = allowed.nonzero()
        return self.epsilons[int(found[0])] if len(found) else math.inf

    def cost(self, total: SecureSums, event: SampledGaussian) -> Cost:
        """Return the worst-case ε of ``event`` with the ε of the clients' panels beside it.

        ``path`` is at most the worst case. It speaks of a record of the mixture of the clients'
        populations in which each weighs as many records as it has in its panel.

        Args:
            total, event: as for :meth:`epsilon`.
        """
        found = worst_case.epsilon([event], self.delta)
        path = Bound(
            kind=Kind.PATH,
            epsilon=min(self.epsilon(total, event), found.epsilon if found else math.inf),
            delta=self.delta,
            by=f"betting, sums over all clients' panels of {total.records} records",
            relation=event.relation.value,
            unit=f"one {event.unit}",
            assumptions=(Assumption.PANEL_REPRESENTS_POPULATION,),
        )
        return Cost(worst_case=found, path=path)


def panel_mod(rounds: Rounds, report: EpsilonReport, distances: Distances, secrets: Secrets) -> Mod:
    """Return a mod that counts for a client's own panel, and answers with sums.

    Flower passes a message to mods only if the app has a function for it: register one by
    ``@app.query("bdpvi_panel")``, which the mod never calls.

    The client must train as ``rounds`` says: each record by its own coin of ``record_rate``, its
    part of the update clipped to ``record_clip``. A round in which the client was not asked counts
    at the clip. A client answers once in a run: the difference of two answers would tell of the
    rounds between them, or of a client that was left out of one.

    Args:
        rounds: settings, with ``record_rate`` and ``record_clip``; the client's own.
        report: what is summed; the client's own, fixed beforehand.
        distances: of the weights received and the context: how far each record of the panel would
            move the update, over ``record_clip``, (m,); m is at least 3 and fixed.
        secrets: of the context: this client's number, and the secrets shared with each other
            client, see :func:`masked`.

    Raises:
        ValueError: if ``rounds`` bounds no record.

    >>> rounds = Rounds(clients=100, size=10, clip=1.0, noise_multiplier=4.0, record_rate=0.5,
    ...                 record_clip=0.1)
    >>> report = EpsilonReport(epsilons=(0.5, 1.0, 2.0), delta=1e-5)
    >>> mod = panel_mod(rounds, report, lambda arrays, context: torch.zeros(100),
    ...                 lambda context: (0, {1: bytes(16), 2: bytes(16)}))
    """
    if rounds.record_rate is None:
        raise ValueError("record_rate=None: nothing bounds a record; set it and record_clip")

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        kind = message.metadata.message_type
        if kind == ASK:
            try:
                (config,) = message.content.config_records.values()
                words = _answer(validate.positive_int("rounds", config["rounds"]), context)
            except Exception as error:
                return without_text(error, message)
            content = RecordDict({"sums": ArrayRecord({"words": Array(words)})})
            return Message(content, reply_to=message)
        if kind.partition(".")[0] == MessageType.TRAIN:
            (arrays,) = message.content.array_records.values()
            counted = distances(arrays, context)
            before = int(message.metadata.group_id) - 1  # rounds that were charged
            norms = _norms(context, len(counted), before)
            norms = norms.add(counted.nan_to_num(nan=1.0, posinf=1.0))
            context.state[_STATE] = ArrayRecord({"counts": Array(norms.counts.numpy())})
        return call_next(message, context)

    def _answer(number: int, context: Context) -> NDArray[Any]:
        if _ANSWERED in context.state:
            raise ValueError("it has answered; a second answer would betray what is in between")
        if _STATE in context.state:
            m = len(context.state[_STATE]["counts"].numpy())
            event = rounds.event(number, "record", norms=_norms(context, m, number))
            sums = report.sums(event)
        else:  # never asked to train: it has no panel that anybody saw
            sums = SecureSums.of(torch.zeros(report.columns, 0))
        context.state[_ANSWERED] = ConfigRecord({"rounds": number})
        client, shared = secrets(context)
        return masked(sums, client, shared, f"{number} rounds")

    return mod


def _norms(context: Context, m: int, rounds: int) -> NormCounts:
    """Return a client's norms, those up to ``rounds`` that it did not see at the clip.

    Raises:
        ValueError: if the panel had another size, or more rounds were counted.
    """
    norms = NormCounts.none(torch.arange(m))
    if _STATE in context.state:
        found = torch.from_numpy(context.state[_STATE]["counts"].numpy().copy())
        if found.shape != norms.counts.shape:
            raise ValueError(f"distances has {m} records, and had {len(found)}; m is fixed")
        norms = replace(norms, counts=found)
    if norms.steps > rounds:
        raise ValueError(f"{norms.steps} rounds were counted, and {rounds} are asked for")
    return norms.add_largest(rounds - norms.steps)


def ask_panels(
    grid: Grid, report: EpsilonReport, rounds: int, *, timeout: float = 3600
) -> SecureSums:
    """Ask all nodes for the sums of their panels, and add them up. Secret. All have to answer.

    Then ``report.cost(total, federation.event("record"))`` has the records' ε. Clients are
    believed: one that lies about its sums can make the path's ε any number, never the worst case.

    Args:
        grid: Flower's.
        report: what the clients sum.
        rounds: how many were charged: ``federation.charged``.
        timeout: seconds to wait.

    Raises:
        ValueError: if nobody answers, somebody does twice, an answer is of another kind, or masks
            do not cancel, as when one client does not answer.
    """
    config = RecordDict({"config": ConfigRecord({"rounds": rounds})})
    messages = [Message(config, node, ASK) for node in grid.get_node_ids()]
    words: dict[int, NDArray[Any]] = {}
    for reply in grid.send_and_receive(messages, timeout=timeout):
        node = reply.metadata.src_node_id
        if reply.has_error():
            continue
        if node in words:
            raise ValueError(f"node {node} answered twice")
        (record,) = reply.content.array_records.values()
        (array,) = record.values()
        words[node] = decoded("words", array, (length(report.columns),), "iu")
    return unmasked(report.columns, [one.astype(np.uint64) for one in words.values()])
