"""The example in Flower, its server and three of its clients in one process."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flower_digits import Nodes
from flwr.app import Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity

ROOT = Path(__file__).resolve().parents[2]
APP = ROOT / "examples" / "federated"
MNIST = ROOT.parent / "shared" / "data" / "mnist"


@pytest.mark.skipif(not MNIST.is_dir(), reason="the MNIST files are not at hand")
def test_it_goes_on_from_its_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(APP))
    from federated_mnist import client_app, server_app, task

    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    tomllib = pytest.importorskip("tomllib")
    config = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    config |= {"num-rounds": 1, "clients": 3, "data": str(MNIST), "state": str(tmp_path)}
    nodes = Nodes(client_app.app, config=config)
    for _ in range(2):
        server_app.app(nodes, Context(1, 0, {}, RecordDict(), config))
    rows = [row for row in capsys.readouterr().out.splitlines() if row[:1].isdigit()]
    assert [row.split()[0] for row in rows] == ["1", "2"]
    first, second = (float(row.split()[2]) for row in rows)
    assert 0 < first < second
    assert len(nodes.sent) == 6
    for message, replies in nodes.sent:
        assert not any(reply.has_error() for reply in replies), message

    (_, labels), _ = task.load(str(MNIST))
    for split, kinds in (("iid", 10), ("shards", 4)):
        own = task.partition(labels, split, 200)
        assert own.shape == (200, 600)
        assert len(own[:100].unique()) == 60_000
        assert max(len(labels[one].unique()) for one in own) <= kinds
    with pytest.raises(ValueError, match="split"):
        task.partition(labels, "sorted", 100)
