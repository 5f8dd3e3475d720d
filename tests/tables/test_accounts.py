"""A table has one account, whatever its path, format and order."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import flat
import numpy as np
import pandas as pd
import pytest
from test_cli import run

import bdpvi
from bdpvi import Budget, BudgetExceededError, Ledger, PrivacyUtilityWarning
from bdpvi.datasets.identity import Identity
from bdpvi.privacy import accounts
from bdpvi.privacy.accounts import account, beside
from bdpvi.privacy.entry import Entry
from bdpvi.releases.persons import OTHER_PEOPLE
from bdpvi.tables import Unit

ASKED: dict[str, Any] = {
    "target": "sick",
    "positive": "yes",
    "one_row_per_person": True,
    "budget": Budget(9.0),
    "progress": False,
}
OPTIONS = ("--one-row-per-person", "--target", "sick", "--quiet", "--budget", 9, "--delta", 1e-5)
HAS_NONE = "has no account, and that of another table"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a folder with one table."""
    random = np.random.default_rng(0)
    age = random.normal(50, 12, 2000)
    sick = np.where(random.random(2000) < 1 / (1 + np.exp((50 - age) / 8)), "yes", "no")
    folder = tmp_path / "data"
    folder.mkdir()
    pd.DataFrame({"age": age, "sick": sick}).to_csv(folder / "p.csv", index=False)
    return folder


def private(table: object, epsilon: float = 1.0, **more: Any) -> bdpvi.Release:
    return flat.private(table, epsilon=epsilon, **(ASKED | more))


def ledgers(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.parent.rglob("*.ledger.jsonl"))


def spent(ledger: Path) -> float:
    found = Ledger.at(ledger).worst_case(1e-5)
    assert found is not None
    return found.epsilon


def appended(data: Path) -> Path:
    """Write the table with a row more."""
    frame = pd.read_csv(data / "p.csv")
    pd.concat([frame, frame[:1].assign(age=33)]).to_csv(data / "q.csv", index=False)
    return data / "q.csv"


def test_a_file_a_glob_a_folder_and_a_link_have_one_account(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data)
    os.symlink(data / "p.csv", data.parent / "link.csv")
    os.symlink(data, data.parent / "linked")
    spelled: list[Any] = [
        data / "p.csv", "p.csv", "./p.csv", "../data/p.csv", f"{data}/p*.csv", "*.csv", data, ".",
        "../link.csv", "../linked", "../linked/*",
    ]  # fmt: skip
    assert {beside(one) for one in spelled} == {data / "p.csv.ledger.jsonl"}
    private(data / "p.csv", 1.0)
    private("p*.csv", 2.0)
    private(data, 3.0)
    assert ledgers(data) == ["p.csv.ledger.jsonl"]
    assert 2.9 < spent(beside("p.csv")) <= 3
    with pytest.raises(BudgetExceededError):
        private("./p*.csv", 3.0)


def test_the_same_rows_in_another_file_join_the_account(data: Path) -> None:
    private(data / "p.csv", 1.0)
    frame = pd.read_csv(data / "p.csv")
    frame.sample(frac=1, random_state=1)[["sick", "age"]].to_parquet(data / "q.parquet")
    (data.parent / "more").mkdir()
    shutil.copy(data / "p.csv", data.parent / "more" / "copy.csv")
    for at, one in enumerate((data / "q.parquet", data.parent / "more" / "copy.csv"), start=2):
        with pytest.warns(PrivacyUtilityWarning, match="p.csv.ledger.jsonl, and is charged there"):
            private(one, float(at))
    assert ledgers(data) == ["p.csv.ledger.jsonl"]
    assert 2.9 < spent(data / "p.csv.ledger.jsonl") <= 3


@pytest.mark.parametrize("command", ["private", "synthesize"])
def test_commands_join_and_refuse(
    command: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private(data / "p.csv", 1.0)
    given: tuple[object, ...] = (*OPTIONS, "--epsilon", 2)
    given += {"private": ("--no-scores", "--positive", "yes"), "synthesize": ("--no-report",)}[
        command
    ]
    more = appended(data)
    assert run(command, "--data", more, *given, "--out", tmp_path / "a") == 2
    said = capsys.readouterr().err
    assert HAS_NONE in said
    assert "--other-people" in said
    assert not (tmp_path / "a").exists()
    assert ledgers(data) == ["p.csv.ledger.jsonl"]
    assert run(command, "--data", more, *given, "--other-people", "--out", tmp_path / "b") == 0
    shutil.copy(data / "p.csv", data / "r.csv")
    assert run(command, "--data", data / "r.csv", *given, "--out", tmp_path / "c") == 0
    assert ledgers(data) == ["p.csv.ledger.jsonl", "q.csv.ledger.jsonl"]
    file = {"private": "release.json", "synthesize": "synthetic.json"}[command]
    assert OTHER_PEOPLE in (tmp_path / "b" / file).read_text()
    assert OTHER_PEOPLE not in (tmp_path / "c" / file).read_text()


def test_a_row_more_opens_no_account(data: Path) -> None:
    private(data / "p.csv", 1.0)
    more, before = appended(data), sorted(data.iterdir())
    with pytest.raises(ValueError, match=f"q.csv' {HAS_NONE}"):
        private(more, out=data.parent / "out")
    assert [one for one in sorted(data.iterdir()) if one.name != ".accounts.lock"] == [
        one for one in [*before] if one.name != ".accounts.lock"
    ]
    assert not (data.parent / "out").exists()
    said = private(more, 2.0, ledger=data / "p.csv.ledger.jsonl").receipt.about
    assert said is not None
    assert OTHER_PEOPLE not in said
    assert 1.9 < spent(data / "p.csv.ledger.jsonl") <= 2
    told = private(more, 2.0, other_people=True).receipt.about
    assert told is not None
    assert f"people: {OTHER_PEOPLE}" in told
    assert ledgers(data) == ["p.csv.ledger.jsonl", "q.csv.ledger.jsonl"]


@pytest.mark.parametrize("door", ["file", "blocks", "synthesize", "command"])
def test_later_rows_of_the_same_persons_open_no_account(
    door: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(1)
    persons = np.repeat(random.permutation(10**6)[:600], 2)

    def year(persons: Any) -> pd.DataFrame:
        age = random.normal(50, 12, len(persons))
        sick = random.choice(["yes", "no"], len(persons))
        return pd.DataFrame({"person": persons, "age": age, "sick": sick})

    account(data / "first.csv", Identity.of(year(persons), unit="person")).charge(
        Entry(kind="release")
    )
    for at, some in enumerate((persons[:400], persons[400:800])):
        later = data / "later" / f"{at}.csv"
        later.parent.mkdir(exist_ok=True)
        year(some).to_csv(later, index=False)
    unit = Unit("person", rows=2)
    if door == "command":
        given = ("--unit", "person", "--rows-per-unit", 2, "--epsilon", 1, "--out", data / "out")
        assert run("synthesize", "--data", later, *given, "--quiet", "--no-report") == 2
        assert f"{HAS_NONE}, {data}/first.csv.ledger.jsonl" in capsys.readouterr().err
    elif door == "synthesize":
        with pytest.raises(ValueError, match=f"{HAS_NONE}, .*first.csv.ledger.jsonl"):
            bdpvi.synthesize(later, epsilon=1.0, unit=unit)
    else:
        table = later.parent if door == "blocks" else later
        with pytest.raises(ValueError, match=f"{HAS_NONE}, .*first.csv.ledger.jsonl"):
            bdpvi.private(table, target="sick", positive="yes", epsilon=1.0, unit=unit)
    assert ledgers(data) == ["first.csv.ledger.jsonl"]


def test_a_given_ledger_is_taken_and_the_owner_told_once(data: Path) -> None:
    private(data / "p.csv", 1.0)
    own = data.parent / "own.jsonl"
    with pytest.warns(PrivacyUtilityWarning, match=r"own.jsonl knows nothing of .*p.csv.ledger"):
        private(data / "p.csv", 1.0, ledger=own)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*knows nothing")
        private(data / "p.csv", 2.0, ledger=own)
    assert 1.9 < spent(own) <= 2
    accounts._used.clear()
    frame = pd.read_csv(data / "p.csv")
    with pytest.warns(PrivacyUtilityWarning, match="knows nothing of"):
        private(frame, 1.0, ledger=data.parent / "data" / "third.jsonl")


def test_each_table_of_a_ledger_is_kept_at_its_charge(data: Path) -> None:
    ledger = Ledger.at(data / "all.jsonl")
    kept = data / "all.jsonl.identity"
    frame = pd.read_csv(data / "p.csv")
    frames = [frame.assign(age=frame["age"] + more) for more in (1, 2)]
    for frame in frames:  # two works at once
        account(data / "p.csv", Identity.of(frame), ledger)
    assert not kept.exists()
    ledger.charge(Entry(kind="release"))
    assert len(json.loads(kept.read_text("utf-8"))) == 2


def test_without_a_ledger_nothing_is_refused(data: Path) -> None:
    frame = pd.read_csv(data / "p.csv")
    for fold in range(3):  # as in cross-validation
        some = {key: one for key, one in ASKED.items() if key != "budget"}
        flat.private(frame[fold * 100 :], epsilon=1.0, **some)


def test_the_rows_in_memory_join_the_account_in_use(data: Path) -> None:
    private(data / "p.csv")
    frame = pd.read_csv(data / "p.csv")
    asked: dict[str, Any] = {key: one for key, one in ASKED.items() if key != "budget"}
    for table in (frame[::-1], bdpvi.Table.of(frame)):
        with pytest.raises(BudgetExceededError, match="already spent"):
            flat.private(table, epsilon=1.0, **asked)
    flat.private(frame[:1500], epsilon=1.0, **asked)  # a fold
    before = spent(beside(data / "p.csv"))
    flat.synthesize(frame, epsilon=1.0, delta=1e-5)
    assert spent(beside(data / "p.csv")) > before


def test_one_account_is_opened_by_processes_at_once(data: Path) -> None:
    program = (
        "import sys, pandas as pd\nfrom bdpvi.datasets.identity import Identity\n"
        "from bdpvi.privacy.accounts import account\n"
        "identity = Identity.of(pd.read_csv(sys.argv[1], dtype=str))\n"
        "input()\nprint(account(sys.argv[1], identity).path)"
    )
    files = [data / f"{name}.csv" for name in "pq"]
    for one in files[1:]:
        shutil.copy(files[0], one)
    pipe = subprocess.PIPE
    running = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", program, file],
            stdin=pipe,
            stdout=pipe,
            text=True,
        )
        for file in files
    ]
    found = {one.communicate("\n")[0] for one in running}
    assert len(found) == 1
    assert len(ledgers(data)) == 1


def test_what_is_kept_is_the_owner_s_alone(data: Path) -> None:
    private(data / "p.csv", 1.0, out=data.parent / "out", secret=data.parent / "secret")
    kept = data / "p.csv.ledger.jsonl.identity"
    if os.name == "posix":
        assert kept.stat().st_mode & 0o077 == 0
    text = kept.read_text()
    frame = pd.read_csv(data / "p.csv")
    key = accounts._key(data / "p.csv.ledger.jsonl")
    assert key is not None
    mine = Identity.of(frame).sealed(key)
    assert mine.digest in text
    public = b"".join(one.read_bytes() for one in (data.parent / "out").iterdir())
    ledger = (data / "p.csv.ledger.jsonl").read_bytes()
    for words in (mine.digest, *list(mine.samples[0][1])[:9]):
        assert words.encode() not in public + ledger


def test_a_damaged_identity_is_refused(data: Path) -> None:
    private(data / "p.csv", 1.0)
    kept = data / "p.csv.ledger.jsonl.identity"
    whole = kept.read_bytes()
    for content in (whole[:-9], b"[1]", b'[{"digest": "0"}]', b"\xff"):
        kept.write_bytes(content)
        with pytest.raises(ValueError, match=r"identity is damaged.*Put it back; or remove it"):
            private(appended(data))
    kept.unlink()
    private(data / "q.csv", 2.0, ledger=data / "p.csv.ledger.jsonl")


def test_two_accounts_of_the_same_rows_need_a_choice(data: Path) -> None:
    identity = Identity.of(pd.read_csv(data / "p.csv"))
    for name in ("a.jsonl", "b.jsonl"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            account(data / "p.csv", identity, data / name)
    with pytest.raises(ValueError, match=r"a\.jsonl"):
        account(data / "p.csv", identity)
    assert account(data / "p.csv", identity, data / "b.jsonl").path == data / "b.jsonl"


def test_synthesis_in_python_has_the_account_and_the_public_file_of_its_table(data: Path) -> None:
    (data / "p.csv.table.json").write_text(
        '{"one_row_per_person": true, "account": "all.jsonl", "budget": {"epsilon": 2.5}}', "utf-8"
    )
    made = flat.synthesize(data / "p.csv", epsilon=1.0, delta=1e-5, progress=False)
    assert made.receipt.declared["table file"] == "used"
    flat.private(data / "p.csv", target="sick", positive="yes", epsilon=2.5, progress=False)
    shutil.copy(data / "p.csv", data / "copy.csv")
    with pytest.raises(BudgetExceededError):
        flat.synthesize(
            data / "copy.csv", epsilon=1.0, delta=1e-5, one_row_per_person=True, progress=False
        )
    assert len({charge.of for charge in Ledger.at(data / "all.jsonl").book().charges}) == 2
