"""A statement: one page beside a release, from the release's file alone."""

from __future__ import annotations

import hashlib
import math
import re
from html import unescape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from test_cli import run

import bdpvi
from bdpvi.datasets import ColumnType, Schema
from bdpvi.privacy.assumptions import Assumption
from bdpvi.privacy.cost import Bound, Kind
from bdpvi.releases import statement
from bdpvi.synthesis.described import statement_of
from bdpvi.tables import Public

GOLDEN = Path(__file__).parents[1] / "golden"


def words(page: str) -> str:
    return " ".join(
        unescape(re.sub(r"<(style|head).*?</\1>|<[^>]+>", " ", page, flags=re.S)).split()
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    age = random.uniform(20, 80, 3000).round()
    frame = pd.DataFrame({"age": age, "<b>kind": random.choice(["a&b", "c"], 3000)})
    frame["sick"] = np.where(random.random(3000) < age / 100, "yes", "no")
    out = tmp_path_factory.mktemp("statement") / "shared"
    bdpvi.private(
        frame,
        target="sick",
        positive="yes",
        epsilon=2.0,
        intervals=True,
        public=Public(numeric=["age"]),
        out=out,
    )
    return out


def test_a_release_gets_one_that_says_what_its_file_says(folder: Path) -> None:
    page = (folder / statement.NAME).read_text(encoding="utf-8")
    text, content = words(page), (folder / "release.json").read_bytes()
    assert "A logistic regression of 'sick'" in text
    assert str(bdpvi.load_release(folder / "release.json").receipt) in text
    assert f"with it is at most {math.exp(2):.3g} times its chance without it" in text
    assert "plus 1 in 100,000; and the reverse" in text
    assert hashlib.sha256(content).hexdigest() in text
    release = bdpvi.load_release(folder / "release.json")
    for row in release.summary(odds=True).rows()[1:]:  # the last four are ratio, ends and note
        assert " ".join(filter(None, [row[0], *row[-4:]])) in text
    for one in release.receipt.bound.assumptions:
        assert text.count(one.value.replace("The preprocessing", "")[-40:]) == 1
    assert text.count("positive yes") == text.count("guesses right") == 1
    assert "<b>kind" not in page
    assert "3000" not in text
    ends = [float(x) for x in re.findall(r"M([\d.]+) 5H", page)]
    assert ends
    assert all(0 <= one <= 100 for one in ends)


def test_it_is_written_again_if_it_was_lost_and_never_over_another_file(folder: Path) -> None:
    path, content = folder / statement.NAME, (folder / "release.json").read_bytes()
    before = path.read_bytes()
    path.unlink()
    statement.write(folder, statement.of_release(content))
    assert path.read_bytes() == before
    path.write_text("mine", encoding="utf-8")
    statement.write(folder, statement.of_release(content))
    assert path.read_text(encoding="utf-8") == "mine"
    path.write_bytes(before)


def test_show_writes_the_same_page(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert run("show", folder / "release.json", "--html", page) == 0
    assert page.read_bytes() == (folder / statement.NAME).read_bytes()
    assert run("show", folder / "release.json", "--html", page) == 2


@pytest.mark.parametrize("file", ["release.json", "certified.json"])
def test_releases_of_other_kinds_say_their_own_guarantee(file: str) -> None:
    made = statement.of_release((GOLDEN / file).read_bytes(), file)
    text = words(made.html())
    bound = made.bound
    assert (bound.kind is Kind.WORST_CASE) == ("Everything released would have come out" in text)
    assert bool(made.member) == (bound.kind is Kind.WORST_CASE and bound.reliable)
    assert f"bdpvi show {file}" in text
    assert (bound.kind is Kind.BAYESIAN) == ("somebody unlike the others may be fully" in text)


def test_no_sentence_contradicts_another() -> None:
    both = (Assumption.PUBLIC_CONSTANTS, Assumption.PRIVATE_CONSTANTS)
    made = statement.of_release((GOLDEN / "release.json").read_bytes())
    from dataclasses import replace

    bound = Bound(kind=Kind.WORST_CASE, epsilon=1.0, delta=1e-5, by="", assumptions=both)
    some = replace(made, bound=bound)
    assert [said.partition(" ")[0] for _, said in some.assumptions] == ["Some", "Some"]


def test_a_synthetic_table_gets_one_too(tmp_path: Path) -> None:
    age = ColumnType(kind="integer", low=0, high=99)
    frame = pd.DataFrame({"age": [*range(100)] * 20})
    made = bdpvi.synthesize(frame, Schema({"age": age}, "By law."), epsilon=1.0)
    text = words(statement_of(made, "synthetic.json", made.to_bytes()).html())
    assert str(made.receipt) in text
    assert "of a synthetic table, drawn from noisy counts" in text
    assert "Schema: By law" in text
