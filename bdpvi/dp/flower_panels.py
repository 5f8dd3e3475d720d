"""What single records pay in Flower: clients count for their own panels, and send sums alone.

It needs the extra ``bdpvi[flower]``. In each round a client notes how far the records of its panel
would have moved its update, in its own state, which never leaves. At the end the server asks once,
and clients answer with :class:`~bdpvi.accounting.secure_sums.SecureSums`, masked if they share
secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bdpvi._runtime import validate
from bdpvi.accounting.epsilon_report import EpsilonReport
from bdpvi.accounting.events import NormCounts
from bdpvi.accounting.rounds import PUBLIC
from bdpvi.accounting.secure_sums import SecureSums, masked, together, unmasked
from bdpvi.dp.flower import decoded, without_text
from bdpvi.dp.updates import Rounds

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
    from flwr.clientapp.typing import ClientAppCallable, Mod
    from flwr.serverapp import Grid
except ImportError as error:
    raise ImportError("bdpvi.dp.flower_panels needs pip install 'bdpvi[flower]'") from error

ASK = "query.bdpvi_panel"
"""Type of the message that asks for sums."""
_STATE, _ANSWERED = "bdpvi-panel", "bdpvi-panel-answered"

Distances = Callable[[ArrayRecord, Context], Tensor]
Secrets = Callable[[Context], tuple[int, Mapping[int, bytes]]]


def panel_mod(
    rounds: Rounds, report: EpsilonReport, distances: Distances, secrets: Secrets | None = None
) -> Mod:
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
            client, see :func:`~bdpvi.accounting.secure_sums.masked`. Without it the server reads
            each client's sums.

    Raises:
        ValueError: if ``rounds`` bounds no record.

    >>> rounds = Rounds(clients=100, size=10, clip=1.0, noise_multiplier=4.0, record_rate=0.5,
    ...                 record_clip=0.1)
    >>> report = EpsilonReport(epsilons=(0.5, 1.0, 2.0), delta=1e-5)
    >>> mod = panel_mod(rounds, report, lambda arrays, context: torch.zeros(100))
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
            event = rounds.event(number).instance(PUBLIC, _norms(context, m, number))
            sums = report.sums(event)
        else:  # never asked to train: it has no panel that anybody saw
            columns = report.grids.columns
            sums = SecureSums.of(report.grids, torch.zeros(columns, 0), torch.zeros(0))
        context.state[_ANSWERED] = ConfigRecord({"rounds": number})
        if secrets is None:
            return sums.vector().numpy()
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
    grid: Grid, report: EpsilonReport, rounds: int, *, secret: bool, timeout: float = 3600
) -> SecureSums:
    """Ask all nodes for the sums of their panels, and add them up. Secret.

    Then ``report.spent(total, federation.event("record"))`` has the records' ε. Clients are
    believed: one that lies about its sums can make the path's ε any number, never the worst case.

    Args:
        grid: Flower's.
        report: what the clients sum.
        rounds: how many were charged: ``federation.charged``.
        secret: whether clients mask their sums. All have to answer then.
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
        words[node] = decoded("words", array, (report.grids.length,), "iu")
    if secret:
        return unmasked(report.grids, [one.astype(np.uint64) for one in words.values()])
    vectors = [torch.from_numpy(one.astype(np.int64)) for one in words.values()]
    return together([SecureSums.from_vector(report.grids, one) for one in vectors])
