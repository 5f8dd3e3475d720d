"""``bdpvi account``: what was spent on a table, when and what for; no draw depends on it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import flat
import numpy as np
import pandas as pd
import pytest
import torch
from test_cli import run

import bdpvi
from bdpvi.bayesian import storage
from bdpvi.privacy.accounts import beside
from bdpvi.privacy.entry import Entry, Note
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.gaussian_dp import gaussian_epsilon
from bdpvi.privacy.ledger import Ledger
from bdpvi.releases.account import Statement

pytestmark = pytest.mark.filterwarnings("ignore:column 'age'")

GOLDEN = Path(__file__).parents[1] / "golden" / "ledger.jsonl"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    age = rng.normal(50, 12, 2000)
    sick = np.where(rng.random(2000) < 1 / (1 + np.exp((50 - age) / 8)), "yes", "no")
    path = tmp_path_factory.mktemp("account") / "people.csv"
    pd.DataFrame({"age": age, "s<i>ck": sick}).to_csv(path, index=False)
    given = (
        "--data", path, "--one-row-per-person", "--target", "s<i>ck", "--quiet", "--delta", 1e-6
    )  # fmt: skip
    made = ("--positive", "yes", "--epsilon", 2, "--budget", 5, "--no-scores")
    assert run("private", *given, *made, "--out", path.with_name("shared")) == 0
    counted = ("--epsilon", 1, "--no-report")
    assert run("synthesize", *given, *counted, "--out", path.with_name("rows")) == 0
    return path


def test_it_says_when_what_for_which_file_and_at_which_epsilon(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("account", table) == 0
    said = capsys.readouterr().out
    lines = said.splitlines()
    assert lines[0].startswith("1. 20")
    assert lines[0].endswith(" UTC: private: logistic regression of 's<i>ck' → shared/release.json")
    assert re.match(r"   alone worst-case ε = (1\.99|2 )", lines[1])
    assert lines[2].endswith(" UTC: synthesize → rows/synthetic.json")
    assert "alone worst-case ε = 1 at δ = 1e-06" in lines[3]
    assert "All together: worst-case DP: ε = 2." in said  # δ is the budget's
    chance = re.search(r"guesses right .* in at most ([\d.]+) of 100 cases", said)
    assert chance
    assert 66 < float(chance[1]) < 70  # of (ε, δ) alone more than 88
    assert "budget: ε = 5 at δ = 1e-06" in said
    for place in (beside(table), table.with_name("shared.secret")):
        assert run("account", place) == 0
        assert capsys.readouterr().out == said
    assert run("account", table, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["out"] for one in found["works"]] == ["shared/release.json", "rows/synthetic.json"]
    assert len(found["charges"]) > 2


def test_the_page_needs_no_other_file_and_escapes(table: Path, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    assert run("account", table, "--html", tmp_path / "a.html") == 0
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "s&lt;i&gt;ck" in page
    assert "<i>" not in page
    assert "http" not in page
    assert "src=" not in page
    assert "rows/synthetic.json" in page


def test_the_epsilon_of_each_and_of_all() -> None:
    noises = {"a": 4.0, "b": 6.0, "c": 10.0}
    ledger = Ledger()
    for name, noise in noises.items():
        price = (SampledGaussian(noise_multiplier=noise),)
        ledger.charge(Entry(kind="release", of=name, events=price))
    found = Statement(ledger.book(), 1e-5)
    alone = [line.alone.epsilon for line in found.lines if line.alone]
    assert alone == pytest.approx([gaussian_epsilon(z**-2, 1e-5) for z in noises.values()])
    assert found.total is not None
    all_of_them = sum(z**-2 for z in noises.values())
    assert found.total.epsilon == pytest.approx(gaussian_epsilon(all_of_them, 1e-5))
    one = Statement(ledger.book().of_entries(ledger.entries()[:1]), 1e-5)
    assert ("before any output" in found.guarantee, "before any output" in one.guarantee) == (1, 0)
    ledger.charge(Entry(kind="draws", of="d", events=None))
    unbounded = Statement(ledger.book(), 1e-5)
    assert unbounded.total is None
    assert "no worst-case ε at δ = 1e-05" in "\n".join(unbounded.text())


def test_a_refusal_calls_everything_by_its_name(tmp_path: Path) -> None:
    frame = pd.DataFrame({"age": [*range(20, 70)] * 40, "sick": ["no", "yes"] * 1000})
    ledger = Ledger(budget=bdpvi.Budget(3.0))
    for call in (bdpvi.describe, bdpvi.synthesize):
        call(frame, epsilon=1.0, ledger=ledger)
    x = torch.arange(200.0).double()[:, None] / 200
    records = bdpvi.Dataset(x, (x[:, 0] > 0.5).double())
    release = bdpvi.fit_private(
        bdpvi.BayesianLogisticRegression(), records, epsilon=1.0, ledger=Ledger(),
        route=bdpvi.regression.ObjectivePerturbation(rows=200),
    )  # fmt: skip
    held_out = bdpvi.Dataset(x + 1, records.y)
    bdpvi.compare_models(release, release, held_out, epsilon=1.8, ledger=ledger)
    with pytest.raises(bdpvi.BudgetExceededError) as refused:
        bdpvi.describe(frame, epsilon=2.5, ledger=ledger)
    said = str(refused.value)
    assert said.startswith("Table 1 at ε = 2.5 would bring")
    assert said.endswith("3 charges made before: Table 1; synthetic table; comparison")
    account = bdpvi.tables.account(ledger)
    assert [one.charges for one in account.lines] == ["Table 1", "synthetic table", "comparison"]
    assert str(account).splitlines()[-2] == f"All together: {ledger.worst_case(1e-5)}"
    assert bdpvi.tables.account(ledger, 1e-4).total.delta == 1e-4  # type: ignore[union-attr]


def test_python_and_the_command_print_one_account(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("account", table) == 0
    for place in (table, beside(table), Ledger(beside(table))):
        assert capsys.readouterr().out.startswith(str(bdpvi.tables.account(place)))
        assert run("account", table) == 0


def test_ledgers_of_earlier_versions_can_be_read(tmp_path: Path) -> None:
    shutil.copy(GOLDEN, tmp_path / "ledger.jsonl")
    for one in GOLDEN.parent.glob("ledger.jsonl.head"):
        shutil.copy(one, tmp_path / one.name)
    found = Statement(storage.open_ledger(tmp_path / "ledger.jsonl").book(), 1e-5)
    assert found.lines[0].time == "not recorded"
    assert found.total is not None


def test_a_note_is_checked_as_all_of_a_ledger_is() -> None:
    entry = Entry(kind="release", note=Note(time="2026-01-01T00:00:00Z", what="a", out="b"))
    content = entry.to_dict()
    assert Entry.from_dict(content).note == entry.note
    for bad in ({"time": "now"}, {"what": "\x1b"}, {"out": "x" * 301}, {"what": 3}):
        with pytest.raises(ValueError, match="must be"):
            Entry.from_dict({**content, "note": {**content["note"], **bad}})
    with pytest.raises(TypeError):
        Entry.from_dict({**content, "note": {**content["note"], "more": ""}})


def test_every_door_leaves_a_note(tmp_path: Path) -> None:
    frame = pd.DataFrame({"age": [*range(20, 70)] * 40, "sick": ["no", "yes"] * 1000})
    ledger = Ledger(budget=bdpvi.Budget(5.0))
    flat.private(
        frame, target="sick", positive="yes", epsilon=2.0, ledger=ledger, progress=False,
        numeric=["age"],
    )  # fmt: skip
    bdpvi.synthesize(frame, epsilon=1.0, ledger=ledger)
    whats = [line.what for line in Statement(ledger.book(), 1e-5).lines]
    assert whats == ["private: logistic regression of 'sick'", "synthesize"]


def test_a_budget_is_planned_said_and_raised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    table = tmp_path / "people.csv"
    frame = pd.DataFrame({"age": rng.normal(50, 12, 2000).round(1)})
    frame.assign(sick=np.where(frame.age > 50, "yes", "no")).to_csv(table, index=False)
    assert run("account", table, "--budget", 2, "--plan", "model, synthetic") == 0
    told = capsys.readouterr().out
    assert "model: ε = 1.36 by itself; 1.36 with all before it" in told
    assert "synthetic: ε = 1.36 by itself; 2 with all before it" in told
    assert "Make those by bdpvi private last" in told
    assert "Give the first of them --budget 2 --delta 1e-05: without a budget," in told
    assert not beside(table).exists()
    assert run("account", table) == run("account", table, "--budget", 5) == 2
    assert "has no account yet: nothing was spent on it" in capsys.readouterr().err
    given = ("--data", table, "--one-row-per-person", "--target", "sick", "--quiet", "--no-scores")
    ask = ("private", *given, "--positive", "yes", "--numeric", "age")
    assert run(*ask, "--epsilon", 1, "--out", tmp_path / "one") == 0
    told = capsys.readouterr().out
    assert re.search(
        r"Spent: worst-case ε = (1|0\.99\d) of 1, the budget at δ = 1e-05: the first ε, as", told
    )
    assert run(*ask, "--epsilon", 2, "--out", tmp_path / "two") == 2
    assert "over the budget of ε = 1" in capsys.readouterr().err
    assert run("account", table, "--budget", 2, "--plan", "model") == 0
    assert f"Raise the budget before: bdpvi account {beside(table)} --budget 2" in (
        capsys.readouterr().out
    )
    assert run("account", table, "--budget", 2) == 0
    assert re.search("budget: ε = 2 at δ = 1e-05; raised on 20", capsys.readouterr().out)
    assert run("account", table, "--plan", "model") == 0
    assert "model: ε = 1.65 by itself; 2 with all before it" in capsys.readouterr().out
    assert run(*ask, "--epsilon", 2, "--out", tmp_path / "two") == 0
    told = capsys.readouterr().out
    assert re.search(
        r"Spent: worst-case ε = (2|1\.99\d?) of 2, the budget at δ = 1e-05\. ", told
    ), told
    before = beside(table).read_bytes()
    for wrong in (("--charge", "1,1"), ("--delta", 2)):  # refused: the budget stays
        assert run("account", table, "--budget", 9, *wrong) == 2
    assert beside(table).read_bytes() == before
    assert run("account", table, "--budget", 1.5) == 2
    assert "it is only raised" in capsys.readouterr().err


def test_a_plan_with_the_model_last_can_be_followed_to_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "people.csv"
    age = np.random.default_rng(0).normal(50, 12, 2000).round(1)
    pd.DataFrame({"age": age, "sick": age > 50}).to_csv(table, index=False)
    assert run("account", table, "--budget", 2, "--plan", "table1,model") == 0
    told = capsys.readouterr().out
    own, whole = re.findall(r"table1: ε = (\S+) by|model: .*; (\S+) with", told)
    given = ("--data", table, "--one-row-per-person", "--quiet")
    first = ("--epsilon", own[0], "--budget", 2, "--delta", 1e-5, "--out", tmp_path / "t")
    assert run("describe", *given, *first) == 0
    model = ("--target", "sick", "--positive", "True", "--no-scores", "--epsilon", whole[1])
    assert run("private", *given, *model, "--out", tmp_path / "shared") == 0
    assert "of 2, the budget" in capsys.readouterr().out


def test_every_door_has_the_same_delta_by_default() -> None:
    from inspect import signature

    from bdpvi.commands.counted import CountOptions
    from bdpvi.commands.private import RequestOptions
    from bdpvi.tables import Request

    doors = (
        bdpvi.private, bdpvi.fit_private, bdpvi.synthesize, bdpvi.release, bdpvi.Budget,
        CountOptions, RequestOptions, Request,
    )  # fmt: skip
    assert {signature(one).parameters["delta"].default for one in doors} == {1e-5}
