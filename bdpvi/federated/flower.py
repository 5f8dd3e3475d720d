"""Federated averaging with client-level privacy in Flower: a strategy, and a mod for clients.

It needs the extra ``bdpvi[flower]`` and uses Flower's Message API. A round passes on only the noisy
sum of clipped updates. Flower's other channels are closed, because nothing accounts for them:
clients' metrics, evaluation on clients, and their error texts are dropped unread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from io import BytesIO
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bdpvi._ground.outputs import several
from bdpvi.federated.federated import Federation, Released
from bdpvi.federated.federated import Message as Answer
from bdpvi.federated.rounds import PUBLIC, Observer, Rounds
from bdpvi.privacy.cost import Bound, Cost
from bdpvi.privacy.norms import NormCounts

try:
    from flwr.app import (
        Array,
        ArrayRecord,
        ConfigRecord,
        Context,
        Error,
        Message,
        MessageType,
        MetricRecord,
        RecordDict,
    )
    from flwr.clientapp.typing import ClientAppCallable, Mod
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Strategy
except ImportError as error:
    raise ImportError(
        "bdpvi.federated.flower needs Flower 1.41 and Python 3.11 or later: "
        "pip install 'bdpvi[flower]'"
    ) from error

_LOG = logging.getLogger(__name__)
_FAILED = 2
"""Flower's code for an error raised by a client app."""


class BayesianFedAvg(Strategy):  # type: ignore[misc]
    """Wraps one of Flower's strategies to make it private.

    The wrapped strategy configures the messages to nodes, and receives the noisy mean as a single
    client's reply. So any strategy (FedAvg, FedAvgM, FedAdam, FedProx) is post-processing of the
    released mean. The federation samples the clients, clips, adds noise, divides and charges. Leave
    ``fraction_train`` at 1: a node that the wrapped strategy leaves out is charged all the same.

    Nodes are the clients, numbered as they appear; nodes beyond ``Rounds.clients`` are not asked.
    A node that comes back under another id is another client.

    Args:
        strategy: a strategy of ``flwr.serverapp.strategy``.
        federation: settings, ledger and budget.
        watch: whether to count how far clients moved the sum, for the path's ε in :meth:`cost`; it
            keeps 64 numbers per client.

    Attributes:
        arrays: the weights after the last round, to publish or to resume from. None at first.
        released: the last round's result, by client number. Secret.
        refused: for each refused reply in the last round, its node and what was wrong; includes
            nodes that were asked and did not answer. Secret.

    Raises:
        ValueError: if an argument is of another kind.

    >>> from flwr.serverapp.strategy import FedAvg
    >>> rounds = Rounds(clients=100, size=10, clip=1.0, noise_multiplier=4.0)
    >>> strategy = BayesianFedAvg(FedAvg(), Federation(rounds))
    >>> strategy.federation.charged
    0
    """

    def __init__(self, strategy: Strategy, federation: Federation, *, watch: bool = True) -> None:
        if not isinstance(strategy, Strategy):
            raise ValueError(f"strategy must be one of flwr.serverapp.strategy, got {strategy!r}")
        if not isinstance(federation, Federation):
            raise ValueError(f"federation must be a bdpvi Federation, got {federation!r}")
        self.strategy, self.federation = strategy, federation
        self.arrays: ArrayRecord | None = None
        self.released: Released | None = None
        self.refused: Mapping[int, str] = {}
        clients = federation.rounds.clients
        watched = watch and clients >= 3 and federation.rounds.noise_shares is None
        self._norms = NormCounts.none(torch.arange(clients)) if watched else None
        self._numbers: dict[int, int] = {}
        self._open: tuple[int, ArrayRecord] | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Charge a round, then sample its clients with their secret coins; perhaps none.

        Raises:
            BudgetExceededError: if the round would cost more than is left. Nothing is charged, and
                ``arrays`` has the last weights.
            ValueError: if the arrays are not ``Rounds.size`` floating-point numbers, or the wrapped
                strategy has two messages for one node. Nothing is charged.
        """
        size = sum(_check_array(name, one).numpy().size for name, one in arrays.items())
        if size != self.federation.rounds.size:
            raise ValueError(
                f"size={self.federation.rounds.size} in Rounds, but the arrays have "
                f"{several(size, 'weight')}"
            )
        messages = {}
        for one in self.strategy.configure_train(server_round, arrays, config, grid):
            node = one.metadata.dst_node_id
            if node in messages:
                raise ValueError(f"strategy has two messages for node {node}; it may have one")
            messages[node] = one
        for node in sorted(messages.keys() - self._numbers.keys()):
            if len(self._numbers) < self.federation.rounds.clients:
                self._numbers[node] = len(self._numbers)
        number = self.federation.next_round
        asked = set(self.federation.sampled(number))
        self._open = number, arrays
        chosen = [messages[node] for node in messages if self._numbers.get(node) in asked]
        for one in chosen:
            one.metadata.group_id = str(number)
        return chosen

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the weights after the round, and never metrics.

        A reply counts as zero, and its node is listed in ``refused``, if it is an error, stale, a
        second reply, from a node that was not asked, not finite, or has other arrays. The noise
        stays the same.

        Raises:
            ValueError: if no round is open.
        """
        if self._open is None:
            raise ValueError(f"server_round={server_round} is not open: call configure_train first")
        (number, sent), self._open = self._open, None
        nodes = {client: node for node, client in self._numbers.items()}
        said: dict[int, str] = {}
        answers = (self._answer(reply, number, sent, nodes, said) for reply in replies)
        self.released = self.federation.aggregate(number, answers)
        refused = self.released.refused.items()  # some may never have been connected
        self.refused = {nodes[client]: why for client, why in refused if client in nodes} | said
        if self._norms is not None:
            # Rounds before a restart or a crash, not observed here, count at the clip.
            seen = self._norms.add_largest(self.federation.charged - 1 - self._norms.steps)
            self._norms = seen.add(self.released.distances(self.federation.rounds.clients))
        if self.released.update is None:
            return None, None
        mean = ArrayRecord(_add_update(sent, self.released.update))
        weight = MetricRecord({getattr(self.strategy, "weighted_by_key", "num-examples"): 1})
        only = Message(RecordDict({"arrays": mean, "metrics": weight}), 0, MessageType.TRAIN)
        self.arrays, _ = self.strategy.aggregate_train(server_round, [only])
        return self.arrays, None

    def _answer(
        self,
        reply: Message,
        number: int,
        sent: ArrayRecord,
        nodes: dict[int, int],
        said: dict[int, str],
    ) -> Answer:
        """Return a reply as a federation message and what is wrong with it; complete ``nodes``."""
        node, group = reply.metadata.src_node_id, reply.metadata.group_id
        client = self._numbers.get(node)
        if client is None:
            client = self.federation.rounds.clients + len(nodes)  # a number that nobody has
            nodes[client] = node
        update = None
        if group != str(number):
            said[node] = f"stale: answers round {group[:20]!r}, not {number}"
        elif reply.has_error():
            said[node] = f"lost: error {reply.error.code}"
        else:
            try:
                update = _update(reply.content, sent)
            except ValueError as error:
                said[node] = str(error)
        return Answer(client, number if group == str(number) else 0, update)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask nobody: clients' answers are not accounted for. Evaluate on public data."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return None."""
        return None

    def summary(self) -> None:
        """Log the wrapped strategy's settings."""
        self.strategy.summary()

    def worst_case(self, delta: float, unit: str = "client", observer: Observer = PUBLIC) -> Bound:
        """Return the guarantee to publish; see
        :meth:`bdpvi.federated.federated.Federation.worst_case`."""
        return self.federation.worst_case(delta, unit, observer)

    def cost(self, delta: float, observer: Observer = PUBLIC) -> Cost:
        """Return the cost of all rounds to a client: the worst-case ε, and the path's cost.

        ``path`` estimates the ε of clients like these on the path that ran: a diagnostic, not a
        guarantee about the algorithm. It counts a client at the clip in rounds where it was not
        asked, did not answer, or answered another server before this one started.

        Args:
            delta: δ of both.
            observer: see :class:`bdpvi.federated.rounds.Observer`.

        Raises:
            ValueError: before the first round, or if δ is too small for the estimates.
        """
        norms = self._norms
        if norms is not None:
            norms = norms.add_largest(self.federation.charged - norms.steps)
        return self.federation.cost(delta, "client", observer, norms)


def client_mod(rounds: Rounds | Callable[[Context], Rounds]) -> Mod:
    """Return a mod that sends nothing from a client but its clipped update.

    Put it first in the list of mods, so that it is the last to see a reply. From a reply to a
    training message it keeps one record of arrays, moved towards the received arrays so that they
    differ by at most C; with ``noise_shares`` the client's noise share is added. Metrics are
    dropped, and an exception is sent without its text, which goes to the client's log. Replies to
    other kinds of messages pass unchanged. The server clips again, because a client may lie.

    Args:
        rounds: the settings, or a function of the context that returns them; set by the client, so
            that the server cannot ask for less protection.

    >>> mod = client_mod(Rounds(clients=100, size=10, clip=1.0, noise_multiplier=4.0))
    """

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if message.metadata.message_type.partition(".")[0] != MessageType.TRAIN:
            return call_next(message, context)
        try:
            own = rounds(context) if callable(rounds) else rounds
            (sent,) = message.content.array_records.values()
            before = ArrayRecord(dict(sent.items()))  # the app may change what it was given
            reply = call_next(message, context)
            update = _update(reply.content, before)
            kept = own.clip_update(update) if own.noise_shares is None else own.share(update)
        except Exception as error:
            return _without_text(error, message)
        content = RecordDict({"arrays": ArrayRecord(_add_update(before, kept))})
        return Message(content, reply_to=message)

    return mod


def _without_text(error: Exception, message: Message) -> Message:
    """Return the reply to an exception, and log the exception on the client.

    Flower's own reply would hold its text and traceback, which may show records to the server.
    """
    _LOG.error("the client failed; the server learns the kind of the error only", exc_info=error)
    said = f"{type(error).__name__} in the client, which keeps the text"
    return Message(Error(_FAILED, said), reply_to=message)


def _check_array(name: str, array: Array) -> Array:
    """Return an array if it is floating-point."""
    if np.dtype(array.dtype).kind != "f":
        raise ValueError(
            f"arrays[{name!r}] is of {array.dtype}; only floating-point weights can be released. "
            "Leave counters out, or replace batch normalisation by GroupNorm"
        )
    return array


def _update(content: RecordDict, sent: ArrayRecord) -> Tensor:
    """Return received minus sent weights, (size,) float64.

    Raises:
        ValueError: unless there is one record of arrays, with the names, shapes and kind of the
            sent ones.
    """
    records = list(content.array_records.values())
    if len(records) != 1 or list(records[0]) != list(sent):
        raise ValueError("reply must have one record of arrays, with the names that were sent")
    differences = [
        (_decoded(name, records[0][name], one.numpy().shape) - one.numpy().astype(float)).ravel()
        for name, one in sent.items()
    ]
    return torch.from_numpy(np.concatenate(differences))


def _decoded(name: str, array: Array, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return an array from an untrusted sender, in float64.

    The bytes have their own header, which is checked before memory is allocated.

    Raises:
        ValueError: unless it has this shape and is floating-point.
    """
    try:
        stream = BytesIO(array.data)
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError("another format")
        found, _, kind = np.lib.format.read_array_header_1_0(stream)
        if found != shape or kind.kind != "f":
            raise ValueError(f"shape {found} of {kind}")
        numbers: NDArray[Any] = array.numpy()
    except Exception as error:
        raise ValueError(
            f"array {name!r} must be floating-point numbers of shape {shape}"
        ) from error
    return numbers.astype(np.float64)


def _add_update(arrays: ArrayRecord, update: Tensor) -> dict[str, Array]:
    """Return the arrays after an update, in their own dtypes."""
    result, start = {}, 0
    moved = update.numpy()
    for name, one in arrays.items():
        before = one.numpy()
        part = moved[start : start + before.size].reshape(before.shape)
        result[name] = Array(np.asarray(before + part, dtype=before.dtype))
        start += before.size
    return result
