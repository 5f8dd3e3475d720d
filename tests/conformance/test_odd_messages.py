"""No client decides an exit: what it sends, or a record of its own, changes no error or charge.

The law of :mod:`test_odd_records`, where what is added is a client's message.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import numpy as np
import torch
from flower_digits import CLIENTS, Nodes, Wire
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, MetricRecord, RecordDict
from flwr.app import Message as Reply
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity
from test_odd_records import MORE_NUMBERS, NUMBERS, same, what_happens

from bdpvi import Ledger
from bdpvi.federated.federated import Federation, Message
from bdpvi.federated.flower import BayesianFedAvg, client_mod
from bdpvi.federated.rounds import Rounds

ROUNDS = 2
BAD = 1003
"""The node that sends something odd."""


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages need a run and a node, which Flower's processes set."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def published(weights: Any, folder: Path) -> None:
    (folder / "shared.json").write_text(json.dumps({"weights": weights.flatten().tolist()}))


# --- messages of Flower ---------------------------------------------------------------------------


SETTINGS = Rounds(clients=CLIENTS, size=3, clip=1.0, noise_multiplier=0.5)
USUAL = np.random.default_rng(0).normal(size=(3, 2)), np.array([0.0, 1.0, 1.0])
"""Features and targets of a client."""


def app_of(data: tuple[Any, Any]) -> ClientApp:
    """Return a client that has three records, or all where it is :data:`BAD`."""
    app = ClientApp(mods=[client_mod(SETTINGS)])

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Reply, context: Context) -> Reply:
        own = context.node_config["partition-id"] == BAD - 1000
        x, y = (torch.from_numpy(one[: len(one) if own else 3]) for one in data)
        weights = message.content["arrays"].to_torch_state_dict()["w"]
        labels = torch.eye(2)[y.long(), 1]  # fails on labels of other classes
        design = torch.cat([x, torch.ones(len(x), 1)], 1).to(weights)
        slope = design.T @ (labels - torch.sigmoid(design @ weights))
        content = {"arrays": ArrayRecord({"w": weights + slope})}
        return Reply(RecordDict(content), reply_to=message)

    return app


def flower(wire: Wire, folder: Path) -> None:
    """Run rounds of Flower in which one node's replies are changed."""

    def of_one(message: Reply, reply: Reply) -> list[Reply]:
        return wire(message, reply) if message.metadata.dst_node_id == BAD else [reply]

    through(Nodes(app_of(USUAL), of_one), folder)


def of_records(data: tuple[Any, Any], folder: Path) -> None:
    """Run rounds of Flower in which one node has another table."""
    through(Nodes(app_of(data)), folder)


def through(nodes: Nodes, folder: Path) -> None:
    ledger = Ledger.at(folder / "people.jsonl")
    made = BayesianFedAvg(FedAvg(min_available_nodes=CLIENTS), Federation(SETTINGS, ledger))
    result = made.start(nodes, ArrayRecord({"w": torch.zeros(3)}), num_rounds=ROUNDS)
    weights = np.concatenate([ndarray.ravel() for ndarray in result.arrays.to_numpy_ndarrays()])
    assert np.isfinite(weights).all()
    published(weights, folder)


def holding(**content: Any) -> Wire:
    return lambda message, reply: [Reply(RecordDict(content), reply_to=message)]


def put(value: Any) -> Wire:
    def wire(message: Reply, reply: Reply) -> list[Reply]:
        array = value if isinstance(value, Array) else Array(np.asarray(value))
        arrays = ArrayRecord({**dict(reply.content["arrays"].items()), "w": array})
        return [Reply(RecordDict({"arrays": arrays}), reply_to=message)]

    return wire


def renamed(message: Reply, reply: Reply) -> list[Reply]:
    arrays = dict(reply.content["arrays"].items())
    arrays["other"] = arrays.pop("w")
    return [Reply(RecordDict({"arrays": ArrayRecord(arrays)}), reply_to=message)]


def marked(**metadata: object) -> Wire:
    def wire(message: Reply, reply: Reply) -> list[Reply]:
        reply.metadata.__dict__.update(metadata)
        return [reply]

    return wire


WIRES: dict[str, Wire] = {
    "none": lambda m, r: [],
    "error": lambda m, r: [Reply(Error(3, "age 42"), reply_to=m)],
    "strange error": lambda m, r: [Reply(Error(-(10**9), "\x1b[2J" * 99), reply_to=m)],
    "twice": lambda m, r: [r, r],
    "reply and error": lambda m, r: [r, Reply(Error(0, ""), reply_to=m)],
    "NaN": put(np.full(3, np.nan, dtype=np.float32)),
    "infinite": put(np.full(3, -np.inf)),
    "large": put(np.full(3, 1e300)),
    "half": put(np.zeros(3, dtype=np.float16)),
    "long": put(np.zeros(3, dtype=np.longdouble)),
    "integers": put(np.zeros(3, dtype=int)),
    "complex": put(np.zeros(3, dtype=complex)),
    "texts": put(np.full(3, "a")),
    "other shape": put(np.zeros((3, 1))),
    "empty": put(np.zeros(0)),
    "a number": put(1.0),
    "pickled": put(Array("object", (3,), "numpy.ndarray", b"cos\nsystem\n.")),
    "no bytes": put(Array("float32", (3,), "numpy.ndarray", b"")),
    "cut": put(Array("float32", (3,), "numpy.ndarray", b"\x93NUMPY\x01\x00v\x00{")),
    "of another kind": put(Array("float32", (3,), "torch.Tensor", bytes(12))),
    "other names": renamed,
    "nothing": holding(),
    "metrics alone": holding(metrics=MetricRecord({"num-examples": -1})),
    "settings": holding(arrays=ConfigRecord({"a": "b"})),
    "no arrays": holding(arrays=ArrayRecord()),
    "two records": lambda m, r: holding(one=r.content["arrays"], two=r.content["arrays"])(m, r),
    "more metrics": lambda m, r: holding(
        arrays=r.content["arrays"], metrics=MetricRecord({"other": [float("nan")]})
    )(m, r),
    "stale": marked(_group_id="0"),
    "no round": marked(_group_id=""),
    "round of a thousand letters": marked(_group_id="1" * 1000),
    "stranger": marked(_src_node_id=7),
    "another client": marked(_src_node_id=BAD + 1),
    "evaluation": marked(_message_type="evaluate"),
}

# --- messages to a federation ---------------------------------------------------------------------


def federation(answers: Callable[[int, int], list[Any]], folder: Path) -> None:
    """Run rounds in which one client answers so."""
    ledger = Ledger.at(folder / "people.jsonl")
    made = Federation(Rounds(clients=4, size=3, clip=1.0, noise_multiplier=2.0), ledger)
    for _ in range(ROUNDS):
        number = made.next_round
        asked = made.sampled(number)
        usual = [Message(one, number, torch.ones(3)) for one in asked if one]
        released = made.aggregate(number, [*usual, *answers(0, number)])
        assert released.update is not None
        assert bool(released.update.isfinite().all())
    published(released.update, folder)


def updated(update: Any) -> Callable[[int, int], list[Any]]:
    return lambda client, number: [Message(client, number, update)]


ANSWERS: dict[str, Callable[[int, int], list[Any]]] = {
    "none": lambda client, number: [],
    "no message": lambda client, number: [None, 7, "Message", object()],
    "twice": lambda client, number: 2 * updated(torch.ones(3))(client, number),
    "stale": lambda client, number: [Message(client, number - 1, torch.ones(3))],
    "other kinds": lambda client, number: [Message("0", number, torch.ones(3))],  # type: ignore[arg-type]
    "other round": lambda client, number: [Message(client, None, torch.ones(3))],  # type: ignore[arg-type]
    "stranger": lambda client, number: [Message(10**9, number, torch.ones(3))],
    **{
        name: updated(update)
        for name, update in {
            "lost": None,
            "NaN": torch.tensor([1.0, torch.nan, 0.0]),
            "infinite": torch.tensor([1.0, torch.inf, 0.0]),
            "large": torch.full((3,), 1e300, dtype=torch.float64),
            "tiny": torch.full((3,), 5e-324, dtype=torch.float64),
            "integers": torch.ones(3, dtype=torch.int64),
            "truth values": torch.ones(3, dtype=torch.bool),
            "complex": torch.ones(3, dtype=torch.complex64),
            "sparse": torch.ones(3).to_sparse(),
            "meta": torch.ones(3, device="meta"),
            "gradient": torch.ones(3, requires_grad=True),
            "other size": torch.ones(4),
            "empty": torch.ones(0),
            "a list": [1.0, 2.0, 3.0],
            "an array": np.ones(3),
        }.items()
    },
}

# --- the law --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ANSWERS)
def test_no_answer_decides_anything(name: str, tmp_path: Path) -> None:
    usual = what_happens(federation, updated(torch.ones(3)), tmp_path / "usual")
    same(what_happens(federation, ANSWERS[name], tmp_path / "odd"), usual)


def test_no_reply_decides_anything(tmp_path: Path) -> None:
    usual = what_happens(flower, lambda m, r: [r], tmp_path / "usual")
    for at, (name, wire) in enumerate(WIRES.items()):
        odd = what_happens(flower, wire, tmp_path / str(at))
        assert odd["end"] == "whole", name
        same(odd, dict(usual))


@pytest.mark.parametrize(
    "records", [NUMBERS, pytest.param(NUMBERS + MORE_NUMBERS, marks=pytest.mark.slow)]
)
def test_no_record_of_a_client_decides_anything(records: Any, tmp_path: Path) -> None:
    x, y = USUAL
    usual = what_happens(of_records, USUAL, tmp_path / "usual")
    for at, (*features, target) in enumerate(records):
        data = np.vstack([x, features]), np.append(y, target)
        same(what_happens(of_records, data, tmp_path / str(at)), dict(usual))
