"""Records' own ε in Flower: as from all panels in one place, without anybody's sums on the way."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from accounts import path_of, worst_of

pytest.importorskip("flwr")

import torch
from flower_digits import CLIENTS, SIZE, Nodes, first, rounds
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

from bdpvi.accounting.events import NormCounts
from bdpvi.dp.federated import Federation
from bdpvi.dp.flower import BayesianFedAvg, client_mod
from bdpvi.dp.panels import EpsilonReport, SecureSums, ask_panels, length, panel_mod

M = 20
SETTINGS = rounds(noise_multiplier=2.0, client_rate=0.8, record_rate=0.5, record_clip=0.5, seed=3)
REPORT = EpsilonReport(epsilons=(0.25, 0.5, 1.0, 2.0), delta=1e-3)


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def panel(arrays: ArrayRecord, context: Context) -> torch.Tensor:
    """Return distances that differ between clients, records and rounds."""
    moved = sum(float(abs(one).sum()) for one in arrays.to_numpy_ndarrays())
    own = 0.05 * int(context.node_config["partition-id"]) + 0.01 * torch.arange(M)
    return (own + 0.1 * (moved % 1)).clamp(max=1)


def secrets(context: Context) -> tuple[int, Mapping[int, bytes]]:
    own = int(context.node_config["partition-id"])
    others = [k for k in range(CLIENTS) if k != own]
    return own, {k: bytes([min(own, k), max(own, k)]) * 8 for k in others}


def trained() -> tuple[BayesianFedAvg, Nodes]:
    ask = panel_mod(SETTINGS, REPORT, panel, secrets)
    app = ClientApp(mods=[client_mod(SETTINGS), ask])

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Message, context: Context) -> Message:
        return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)

    @app.query("bdpvi_panel")  # type: ignore[untyped-decorator]
    def query(message: Message, context: Context) -> Message:
        raise AssertionError("the mod answers")

    nodes, strategy = Nodes(app), BayesianFedAvg(FedAvg(), Federation(SETTINGS))
    strategy.start(nodes, first(), num_rounds=4)
    return strategy, nodes


def pooled(nodes: Nodes) -> SecureSums:
    """Return the sums over all panels as if one party had them, from the messages themselves."""
    asked = {(m.metadata.dst_node_id - 1000, int(m.metadata.group_id)): m for m, _ in nodes.sent}
    norms = NormCounts.none(torch.arange(M * CLIENTS))
    for number in range(1, 5):
        rows = []
        for client in range(CLIENTS):
            message = asked.get((client, number))
            context = Context(1, 0, {"partition-id": client}, RecordDict(), {})
            known = message and panel(message.content["arrays"], context)
            rows.append(torch.ones(M) if known is None else known)
        norms = norms.add(torch.cat(rows))
    return REPORT.sums(SETTINGS.event(4, "record", norms=norms))


def test_sums_over_clients_are_those_of_all_panels_together() -> None:
    strategy, nodes = trained()
    expected = pooled(nodes)
    assert {m.metadata.dst_node_id for m, _ in nodes.sent} == set(nodes.get_node_ids())
    nodes.sent.clear()
    total = ask_panels(nodes, REPORT, strategy.federation.charged)
    apart = (total.vector() - expected.vector()).abs()
    assert int(apart.max()) <= M * CLIENTS  # a record's last bit may be rounded either way
    spent = REPORT.cost(total, strategy.federation.event("record"))
    assert f"of {M * CLIENTS} records" in path_of(spent).by
    assert path_of(spent).unit == worst_of(spent).unit == "one record"

    for _, (reply,) in nodes.sent:  # what the server saw
        assert list(reply.content) == ["sums"]
        (words,) = reply.content["sums"].to_numpy_ndarrays()
        assert words.shape == (length(REPORT.columns),)
        # Uniform words: small ones are rare, and sums are small.
        assert (words < 2**44).mean() < 0.01


def test_a_client_answers_once() -> None:
    _, nodes = trained()
    ask_panels(nodes, REPORT, 4)
    nodes.sent.clear()
    with pytest.raises(ValueError, match="no client"):
        ask_panels(nodes, REPORT, 5)
    for _, (reply,) in nodes.sent:
        assert reply.error.reason == "ValueError in the client, which keeps the text"


def test_a_lost_client_is_noticed_where_sums_are_masked() -> None:
    _, nodes = trained()
    nodes.wire = lambda message, reply: [] if message.metadata.dst_node_id == 1002 else [reply]
    with pytest.raises(ValueError, match="masks do not cancel"):
        ask_panels(nodes, REPORT, 4)


def test_answers_twice_or_on_other_grids_are_refused() -> None:
    _, nodes = trained()
    nodes.wire = lambda message, reply: [reply, reply]
    with pytest.raises(ValueError, match="answered twice"):
        ask_panels(nodes, REPORT, 4)
    _, nodes = trained()
    other = EpsilonReport(epsilons=(0.5,), delta=1e-3)
    with pytest.raises(ValueError, match="'words' must be whole numbers of shape"):
        ask_panels(nodes, other, 4)


def test_records_need_a_bound() -> None:
    with pytest.raises(ValueError, match="record_rate=None"):
        panel_mod(rounds(), REPORT, panel, secrets)
    assert SETTINGS.size == SIZE
