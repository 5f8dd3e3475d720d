"""Flower: what leaves a client, what a server takes, and what it is charged."""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import flower_digits as fed
import numpy as np
import torch
from flower_digits import CLIENTS, CLIP, SIZE, Nodes, Wire, client_app, first, rounds
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    RecordDict,
)
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

import bdpvi.federated.flower
from bdpvi._ground.types import Budget, BudgetExceededError
from bdpvi.federated.federated import Federation
from bdpvi.federated.flower import BayesianFedAvg, client_mod
from bdpvi.federated.rounds import Rounds
from bdpvi.privacy.ledger import Ledger

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages need a run and a node, which Flower's processes set."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def strategy(settings: Rounds, **named: Any) -> BayesianFedAvg:
    return BayesianFedAvg(FedAvg(min_available_nodes=CLIENTS), Federation(settings, **named))


def ran(settings: Rounds, wire: Wire, times: int = 1) -> tuple[BayesianFedAvg, Nodes]:
    nodes, one = Nodes(client_app(settings), wire), strategy(settings)
    one.start(nodes, first(), num_rounds=times)
    return one, nodes


def flat(arrays: ArrayRecord | None) -> torch.Tensor:
    assert arrays is not None
    return torch.from_numpy(np.concatenate([a.ravel() for a in arrays.to_numpy_ndarrays()]))


def plain(message: Message, reply: Message) -> list[Message]:
    return [reply]


def test_it_learns_and_releases_weights_only() -> None:
    settings = rounds(noise_multiplier=0.05)
    nodes, one = Nodes(client_app(settings)), strategy(settings)
    result = one.start(nodes, first(), num_rounds=6)
    assert fed.accuracy(result.arrays) > 0.7
    assert not result.train_metrics_clientapp
    assert not result.evaluate_metrics_clientapp
    assert {message.metadata.message_type for message, _ in nodes.sent} == {"train"}
    assert one.refused == {}
    assert one.federation.charged == 6
    assert torch.equal(flat(one.arrays), flat(result.arrays))


def test_a_client_sends_its_clipped_update_and_nothing_else() -> None:
    one, nodes = ran(rounds(seed=0), plain)
    assert one.released is not None
    assert len(nodes.sent) == CLIENTS
    for message, (reply,) in nodes.sent:
        (arrays,) = reply.content.values()
        sent = flat(message.content["arrays"]).double()
        assert float((flat(arrays).double() - sent).norm()) == pytest.approx(CLIP, rel=1e-5)


def test_the_mean_is_over_the_expected_number_and_the_noise_is_the_federations() -> None:
    one, nodes = ran(rounds(client_rate=0.5, seed=1), plain)
    total = sum(flat(reply.content["arrays"]).double() for _, (reply,) in nodes.sent)
    again = Federation(rounds(client_rate=0.5, seed=1))
    again.sampled(1)
    noise = again.aggregate(1, []).update
    assert noise is not None
    assert 0 < len(nodes.sent) < CLIENTS
    step = 0.5 * CLIP / 32 / (0.5 * CLIENTS)  # of the lattice that sums are rounded to
    gap = flat(one.arrays) - total / (0.5 * CLIENTS) - noise
    assert float(gap.abs().max()) <= step


def reply_with(arrays: ArrayRecord, message: Message) -> Message:
    return Message(RecordDict({"arrays": arrays}), reply_to=message)


def test_the_log_does_not_tell_who_took_part(caplog: pytest.LogCaptureFixture) -> None:
    logs = []
    logging.getLogger("flwr").addHandler(caplog.handler)
    try:
        for come in (0, CLIENTS):
            caplog.clear()
            ran(rounds(client_rate=0.99), lambda m, r, come=come: [r][:come])  # type: ignore[misc]
            logs.append([text for text in caplog.messages if "finished in" not in text])
    finally:
        logging.getLogger("flwr").removeHandler(caplog.handler)
    assert logs[0] == logs[1] != []


class Many(Nodes):
    """As many nodes as one likes."""

    def get_node_ids(self) -> Any:
        return range(1000, 1000 + self.many)

    def __init__(self, app: Any, many: int) -> None:
        super().__init__(app)
        self.many = many


def test_the_budget_stops_it_and_leaves_the_weights() -> None:
    one = strategy(rounds(noise_multiplier=4.0), ledger=Ledger(budget=Budget(1.0, 1e-3)))
    with pytest.raises(BudgetExceededError):
        one.start(Nodes(client_app(one.federation.rounds)), first(), num_rounds=50)
    assert one.worst_case(1e-3).epsilon <= 1.0
    assert flat(one.arrays).shape == (SIZE,)


def test_nodes_beyond_the_fixed_number_are_not_asked() -> None:
    one = strategy(rounds())
    nodes = Many(client_app(rounds()), CLIENTS + 5)
    one.start(nodes, first(), num_rounds=2)
    assert {m.metadata.dst_node_id for m, _ in nodes.sent} == set(range(1000, 1000 + CLIENTS))


def test_bad_arguments_are_named() -> None:
    federation = Federation(rounds())
    with pytest.raises(ValueError, match="strategy"):
        BayesianFedAvg("FedAvg", federation)
    with pytest.raises(ValueError, match="federation"):
        BayesianFedAvg(FedAvg(), rounds())  # type: ignore[arg-type]
    one = strategy(rounds())
    with pytest.raises(ValueError, match="is not open"):
        one.aggregate_train(1, [])
    nodes = Nodes(client_app(rounds()))
    with pytest.raises(ValueError, match="size=650 in Rounds, but the arrays have 3"):
        one.configure_train(1, ArrayRecord([np.zeros(3)]), ConfigRecord(), nodes)
    counter = ArrayRecord({"steps": Array(np.zeros(SIZE, dtype=int))})
    with pytest.raises(ValueError, match=r"'steps'.*floating-point"):
        one.configure_train(1, counter, ConfigRecord(), nodes)
    assert one.federation.charged == 0


def call(mod: Any, app: Any) -> Message:
    message = Message(RecordDict({"arrays": first()}), 1000, "train", group_id="1")
    return mod(message, Context(1, 1000, {}, RecordDict(), {}), app)


def test_the_mod_keeps_what_an_exception_says_to_the_client() -> None:
    def fails(message: Message, context: Context) -> Message:
        raise KeyError("patient 17")

    reply = call(client_mod(rounds()), fails)
    assert reply.error.reason == "KeyError in the client, which keeps the text"


def test_the_mod_adds_the_clients_share_of_the_noise() -> None:
    settings = rounds(noise_multiplier=40.0, noise_shares=4)
    same = call(client_mod(lambda context: settings), lambda m, c: reply_with(first(), m))
    sent = flat(same.content["arrays"]).double()
    error = 20.0 / (2 * SIZE) ** 0.5
    assert float(sent.std()) == pytest.approx(40.0 / 4**0.5, abs=5 * error)


def test_without_flower_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    spec = importlib.util.spec_from_file_location("again", bdpvi.federated.flower.__file__)
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(ImportError, match=r"pip install 'bdpvi\[flower\]'"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


SIMULATION = """
import flower_digits as fed
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from bdpvi.federated.federated import Federation
from bdpvi.federated.flower import BayesianFedAvg

settings = fed.rounds(noise_multiplier=0.25, client_rate=0.9)
server = ServerApp()

@server.main()
def main(grid, context):
    strategy = BayesianFedAvg(FedAvg(min_available_nodes=10), Federation(settings))
    result = strategy.start(grid, fed.first(), num_rounds=3)
    print("accuracy", fed.accuracy(result.arrays), strategy.worst_case(1e-3), strategy.refused)

resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 1}}
run_simulation(server, fed.client_app(settings), 10, backend_config=resources)
"""


@pytest.mark.slow
def test_flowers_own_simulation_runs_it(tmp_path: Path) -> None:
    """In processes of Flower's and Ray's own, telemetry off."""
    pytest.importorskip("ray")
    off = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    where = {"FLWR_HOME": str(tmp_path), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    done = subprocess.run(
        [sys.executable, "-c", SIMULATION],
        env={**os.environ, **off, **where}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    (said,) = [row for row in done.stdout.splitlines() if row.startswith("accuracy")] or [""]
    assert said, done.stderr[-3000:]
    assert float(said.split()[1]) > 0.4
    assert "to add or remove one client" in said
    assert said.endswith(" {}")
