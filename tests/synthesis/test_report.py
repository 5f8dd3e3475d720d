"""The owner's page: one secret file, in order, that says what it must."""

from __future__ import annotations

import json
import math
import re
import stat
import sys
from dataclasses import replace
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from people_shared import FOUND, HELD_OUT, MADE, TRAIN, people
from program import run
from scipy.optimize import linprog
from typer.testing import CliRunner

from bdpvi.cli import app
from bdpvi.commands.quality import hold_out
from bdpvi.noise.keys import Key
from bdpvi.privacy.assumptions import Assumption
from bdpvi.privacy.cost import Bound, Kind
from bdpvi.synthesis import evaluate, load
from bdpvi.synthesis.counts import count
from bdpvi.synthesis.report import copied

needs_page = pytest.mark.skipif(
    find_spec("jinja2") is None or find_spec("matplotlib") is None, reason="needs bdpvi[report]"
)


class Links(HTMLParser):
    """Everything that a page would fetch, its headings and its tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.open: list[str] = []
        self.headings: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "srcset")]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("delta", [0.0, 1e-6, 0.1])
def test_the_chance_that_is_told_is_the_best_of_all_mechanisms(
    epsilon: float, delta: float
) -> None:
    """The best rate over all laws of a yes and a no, by linear programming."""
    e = math.exp(epsilon)
    above = [[1, -e], [-1, e], [-e, 1], [e, -1]]  # P(yes), Q(yes) within (ε, δ), both ways
    bounds = [delta, e - 1 + delta, delta, e - 1 + delta]
    best = linprog([-1, 1], A_ub=above, b_ub=bounds, bounds=(0, 1))
    assert best.x is not None
    right = (1 + best.x[0] - best.x[1]) / 2
    bound = Bound(kind=Kind.WORST_CASE, epsilon=epsilon, delta=delta, by="")
    assert bound.attack_success == pytest.approx(right, rel=1e-9)
    said = re.search(r"at most ([\d.]+) of 100 cases", bound.membership.in_one_sentence())
    assert said
    assert 100 * right - 1e-9 <= float(said[1]) <= 100 * right + 0.0100001


@needs_page
def test_the_page_is_one_file_in_order(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    FOUND.html(path, attack="It found <nothing>.")
    text = path.read_text(encoding="utf-8")
    page = Links(text)
    assert page.open == []
    assert all(one.startswith("data:image/png;base64,") for one in page.fetched)
    assert not re.search(r"https?://|url\(|@import|<script", text)
    assert page.headings == [
        "Guarantee", "Columns", "Pairs of columns", "Use: predicting sick",
        "Telling synthetic rows from real ones", "Copies", "Attack", "Each column",
    ]  # fmt: skip
    assert text.index("SECRET") < text.index("without it in 50") < text.index("<h2>")
    assert "It found &lt;nothing&gt;." in text
    assert "sex: F (" in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    FOUND.html(path)
    assert "Attack" not in path.read_text(encoding="utf-8")
    worst = max(FOUND.columns, key=lambda one: one.variation)
    assert text.index(f"{worst.name}: total variation {worst.variation:.3f}") == text.index(
        ": total variation 0"
    ) - len(worst.name)


@needs_page
def test_names_from_the_table_are_text(tmp_path: Path) -> None:
    odd = replace(FOUND.columns[0], name="<b>$x_1$</b>", unfit="<i>")
    found = replace(FOUND, columns=(odd, *FOUND.columns[1:]))
    found.html(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<b>" not in text
    assert "<i>" not in text


def test_a_copy_of_the_table_is_called_one(tmp_path: Path) -> None:
    found = evaluate(MADE, train=TRAIN, held_out=HELD_OUT, rows=TRAIN)
    assert found.copies == 1.0
    assert copied(found)
    assert "100.00 % of the synthetic rows are copies of real ones" in found.verdict[2]
    assert not copied(FOUND)
    assert "copies" not in FOUND.verdict[2]
    if find_spec("jinja2"):
        found.html(tmp_path / "page.html")
        assert "find out why" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("copies", "held_out", "rows", "expected"),
    [(1.0, 1.0, 1000, False), (0.1, 0.1, 1000, False), (0.5, 0.4, 1000, True),
     (0.12, 0.1, 1000, False), (0.12, 0.1, 100_000, True), (0.0, 0.0, 1000, False),
     (0.9, None, 1000, True)],
)  # fmt: skip
def test_copies_beyond_chance(
    copies: float, held_out: float | None, rows: int, expected: bool
) -> None:
    found = replace(FOUND, copies=copies, held_out_copies=held_out, rows=(rows, rows, rows))
    assert copied(found) is expected


def test_who_is_kept_out_depends_on_no_other_row() -> None:
    frame, key = people(4000, 0), Key.of_seed(0)
    train, held_out = hold_out(frame, 0.1, key, "row")
    assert sorted([*train.index, *held_out.index]) == [*range(4000)]
    assert abs(len(held_out) - 400) < 4 * math.sqrt(4000 * 0.1 * 0.9)
    less, _ = hold_out(frame[:-1], 0.1, key, "row")
    assert less.index.tolist() == [at for at in train.index if at < 3999]
    frame["who"] = np.arange(4000) % 500
    train, held_out = hold_out(frame, 0.1, key, "who")
    assert not set(train["who"]) & set(held_out["who"])
    without = frame[frame["who"] != 7]
    less, _ = hold_out(without, 0.1, key, "who")
    assert less.index.tolist() == [at for at in train.index if frame["who"][at] != 7]


@pytest.fixture
def given(tmp_path: Path) -> list[object]:
    people(1200, 0).to_csv(tmp_path / "people.csv", index=False)
    MADE.schema.save(tmp_path / "s.json")
    return ["synthesize", "--one-row-per-person",
            "--data", tmp_path / "people.csv", "--table", tmp_path / "s.json",
            "--target", "sick", "--epsilon", "1", "--out", tmp_path / "shared"]  # fmt: skip


def test_the_report_is_in_the_secret_folder_alone(tmp_path: Path, given: list[object]) -> None:
    said = run(*given, "--groups", "sex")
    public, secret = tmp_path / "shared", tmp_path / "shared.secret"
    names = ["statement.html", "synthetic.csv", "synthetic.json"]
    assert sorted(one.name for one in public.iterdir()) == names
    assert stat.S_IMODE(secret.stat().st_mode) == 0o700
    for one in secret.iterdir():
        assert stat.S_IMODE(one.stat().st_mode) == 0o600
    content = json.loads((secret / "report.json").read_text(encoding="utf-8"))
    counted, held_out, _ = content["rows"]
    assert counted + held_out == 1200
    assert 0 < held_out < 240
    assert {"all", "sex: F", "sex: M"} == {one["group"] for one in content["scores"]}
    assert content["verdict"][1] in said
    assert Assumption.SECRET_SPLIT in load(public / "synthetic.json").receipt.worst_case.assumptions
    shared = (public / "synthetic.json").read_text(encoding="utf-8")
    assert not re.search(rf"\b({counted}|{held_out})\b", json.dumps(json.loads(shared)["receipt"]))


def test_without_the_extra_there_are_numbers_and_the_verdict(
    tmp_path: Path, given: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = run(*given)
    assert "bdpvi[report]" in said
    assert "without it in 50" in said
    found = {one.name for one in (tmp_path / "shared.secret").iterdir()} - {".lock"}
    assert found == {"report.json", "report.rows", "intent.json", "intent.output", "ledger.head"}


def test_an_interrupted_report_leaves_what_is_shared(
    tmp_path: Path, given: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bdpvi.synthesis.quality.evaluate", interrupted)
    done = CliRunner().invoke(app, [str(one) for one in given])
    assert "only the report is missing" in done.output
    assert (tmp_path / "shared" / "synthetic.csv").exists()


def test_of_a_person_the_rows_that_are_counted_are_looked_at(
    tmp_path: Path, given: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def counting(codes: Any, *rest: Any) -> Any:
        seen["counted"] = codes.part
        return count(codes, *rest)

    def evaluating(made: Any, *, train: Any, **rest: Any) -> Any:
        seen["looked at"] = made.schema.encode(train[list(made.schema.columns)])[0]
        return evaluate(made, train=train, **rest)

    monkeypatch.setattr("bdpvi.synthesis.released.count", counting)
    monkeypatch.setattr("bdpvi.synthesis.quality.evaluate", evaluating)
    frame = people(1200, 0)
    frame.assign(who=np.arange(1200) % 400).to_csv(tmp_path / "people.csv", index=False)
    rest = [one for one in given if one != "--one-row-per-person"]
    with pytest.warns(UserWarning, match="rows left out"):
        said = run(*rest, "--unit", "who", "--rows-per-unit", "2")
    assert "knows all records, at most 2, of one person ('who'), all others" in said
    content = json.loads((tmp_path / "shared.secret" / "report.json").read_text(encoding="utf-8"))
    assert sum(content["rows"][:2]) == 800
    assert content["rows"][1] % 2 == 0
    assert (seen["counted"] == seen["looked at"]).all()
