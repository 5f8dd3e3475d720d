"""``bdpvi.score`` predicts as the library does, from a copy of its folder, with NumPy alone."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import flat
import numpy as np
import pandas as pd
import pytest
import torch
from odd_cells import ODD, TYPES, as_objects
from score_releases import GOLDEN, HASHED, MODELS, columns, encoding, release_of, saved, with_terms

import bdpvi
from bdpvi import Ledger, score
from bdpvi._ground.schema import to_json
from bdpvi.datasets import constants_of
from bdpvi.datasets.cells import read_columns
from bdpvi.datasets.columns import Numeric, OneHot
from bdpvi.datasets.looks import unclear
from bdpvi.models.predictions import class_probabilities, predictive_means
from bdpvi.score.laws import law_of
from bdpvi.tables import Predictions

FOLDER = Path(score.__file__).parent
pytestmark = pytest.mark.filterwarnings("ignore:for the owner only")
ROWS: list[dict[str, Any]] = [
    {"years": 0.5, "sex": "F", "paid": "$1,234.5", "smokes": True},
    {"years": "2.5", "sex": " female ", "paid": 9999, "smokes": "TRUE"},
    {"years": 1, "sex": "M", "paid": None, "smokes": False},
    {"years": Decimal("3.25"), "sex": "M", "paid": "($20)", "smokes": "True", "besides": 3},
    {"years": 1e300, "sex": "M", "paid": -1e15, "smokes": "False"},
]
UNCLEAR: list[dict[str, Any]] = [
    {"years": None, "sex": "X", "paid": "much", "smokes": "?"},
    {"years": "long", "sex": "", "paid": "1,2345", "smokes": "maybe"},
    {"years": float("inf"), "sex": np.nan, "paid": "", "smokes": pd.NA},
    {"years": -1.0, "sex": 7, "paid": 0, "smokes": None},
]


def of_library(path: Path, rows: pd.DataFrame, unknown: str = "") -> pd.DataFrame:
    """Return what ``bdpvi predict`` gives."""
    release = bdpvi.load_release(path)
    return Predictions.of(release, rows, unknown=unknown, progress=False).frame()


def frame_of(rows: list[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame({name: as_objects([row[name] for row in rows]) for name in rows[0]})


def same(found: list[dict[str, Any]], right: pd.DataFrame) -> None:
    made = pd.DataFrame(found)
    assert list(made) == list(right)
    for name in right:
        if right[name].dtype.kind == "f":
            np.testing.assert_allclose(made[name].astype(float), right[name], 1e-12, 1e-12)
        else:
            pd.testing.assert_series_equal(made[name], right[name], check_dtype=False)


@pytest.mark.parametrize("model", MODELS)
def test_every_likelihood_predicts_as_the_library_does(tmp_path: Path, model: str) -> None:
    path, rows = saved(tmp_path / "release.json", MODELS[model]), ROWS + UNCLEAR
    scorer = score.load(path)
    found, right = scorer.predict(rows), of_library(path, frame_of(rows))
    same(found, right)
    assert len({tuple(one.items()) for one in found}) > 5
    alone = [scorer.predict(row) for row in rows]
    same(alone, right)


@pytest.mark.parametrize("name", MODELS)
def test_laws_are_those_of_the_models_also_at_their_bounds(name: str) -> None:
    release = release_of(MODELS[name], encoding(columns()), size=3.0)
    latents = {site: draws.numpy() for site, draws in release.latents.items()}
    target: Any = release.preprocessing["target"]
    law = law_of(to_json(release.model), latents, target, len(release.feature_names))
    x = np.abs(np.random.default_rng(0).normal(0.0, 2.0, (50, len(release.feature_names))))
    of_model = class_probabilities if law.labels[2:] else predictive_means
    right = of_model(release.model, release.latents, torch.from_numpy(x))
    np.testing.assert_allclose(law.targets(x), right, 1e-12, 1e-12)


@pytest.mark.parametrize("unknown", ["refuse", "base"])
@pytest.mark.parametrize("model", ["unclipped", "poisson of years", "ordinal"])
def test_known_cells_are_read_alike_by_releases_of_other_encodings(
    tmp_path: Path, model: str, unknown: str
) -> None:
    path = saved(tmp_path / "release.json", MODELS[model], "refuse")
    rows = ROWS[:4]
    same(score.load(path, unknown=unknown).predict(rows), of_library(path, frame_of(rows), unknown))
    if unknown == "base":
        rows = [ROWS[0], {**ROWS[2], "sex": "X", "smokes": None, "years": ""}]
        scorer = score.load(path, unknown=unknown)
        same(scorer.predict(rows), of_library(path, frame_of(rows), unknown))
        less = [{"years": 2.0, "paid": 3, "smokes": True}] * 2
        same(scorer.predict(less), of_library(path, pd.DataFrame(less), unknown))
        assert scorer.counts["blank"] == {"years": 1, "paid": 1, "smokes": 1, "sex": 2}
        assert scorer.counts["unlisted level"] == {"sex": 1}


@pytest.mark.parametrize("model", ["unclipped", "poisson", "multinomial", "linear"])
def test_a_formula_s_terms_are_those_of_the_library(tmp_path: Path, model: str) -> None:
    for at, unknown in enumerate(("other", "base", "refuse")):
        path = tmp_path / f"{at}.json"
        bdpvi.save_release(release_of(MODELS[model], with_terms(unknown), size=0.2), path)
        rows = ROWS + UNCLEAR if unknown == "other" else ROWS[:4]
        found = score.load(path).predict(rows)
        same(found, of_library(path, frame_of(rows)))
        assert len({tuple(one.items()) for one in found}) == len(rows)


def test_names_of_one_number_and_hashed_names(tmp_path: Path) -> None:
    made = (OneHot("ward", ("7", "07", "NA")), OneHot("big", ("1e+16", "true")), HASHED)
    for at, unknown in enumerate(("base", "other")):
        path = tmp_path / f"{at}.json"
        release = release_of(MODELS["unclipped"], encoding(made, unknown))
        bdpvi.save_release(release, path)
        wards = ["7", "07", "7.0", 7, "NA", "na", None, "8"]
        big: list[Any] = [10**16, "1e16", True, "TRUE", "True", "tru", 1e16, "x"]
        jobs = ["nurse", "cook", None, "", "é", 3, "a", "b"]
        frame = pd.DataFrame(
            {"ward": as_objects(wards), "big": as_objects(big), "job": as_objects(jobs)}
        )
        scorer = score.load(path)
        same(scorer.predict(frame.to_dict("records")), of_library(path, frame))


@pytest.mark.parametrize("name", [name for name in TYPES if name not in ("text", "identifier")])
def test_odd_cells_are_read_as_the_columns_type_reads_them(tmp_path: Path, name: str) -> None:
    declared = TYPES[name]
    made = encoding(
        (
            Numeric("number", 5.0, 3.0, type=declared),
            OneHot("level", ("F", "007", "True", "yes", "1", "2020-01-02"), type=declared),
        )
    )
    path, odd = tmp_path / "release.json", as_objects(ODD)
    bdpvi.save_release(release_of(MODELS["bounded score"], made), path)
    scorer, frame = score.load(path), pd.DataFrame({"number": odd, "level": odd})
    rows = [{"number": one, "level": one} for one in ODD]
    same(scorer.predict(rows), of_library(path, frame))
    assert scorer.counts == unclear(made, read_columns(frame, made.types))


def test_a_table_s_own_release_is_scored(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    frame = pd.DataFrame({"age": random.normal(50, 12, 600), "sex": random.choice(["F", "M"], 600)})
    sick = random.random(600) < 1 / (1 + np.exp((50 - frame["age"]) / 10))
    frame["sick"] = np.where(sick, "yes", "no")
    release = flat.private(
        frame, epsilon=2.0, target="sick", positive="yes", draws=3, one_row_per_person=True,
        ledger=Ledger(), progress=False,
        constants=constants_of({"source": "By law.", "age": [0, 100], "sex": ["F", "M"]}),
    )  # fmt: skip
    path = tmp_path / "release.json"
    bdpvi.save_release(release, path)
    rows = frame[["age", "sex"]].to_dict("records")
    same(score.load(path).predict(rows), of_library(path, frame))


def test_what_says_nothing_is_counted_by_column_and_what_is_refused_is_not(tmp_path: Path) -> None:
    path = saved(tmp_path / "release.json", MODELS["unclipped"], "refuse")
    scorer = score.load(path)
    for row, words in (
        ({**ROWS[0], "sex": "X"}, "row 0, from 0: column 'sex' has 'X', which is not among"),
        ({**ROWS[0], "years": ""}, "column 'years' is blank; load(…, unknown='base')"),
        ({**ROWS[0], "years": "long"}, "column 'years' has 'long', which is no finite number"),
        ({"years": 1}, "it has no column 'sex'; give None for a blank"),
        (7, "it must be a dictionary of cells by column, got 7"),
    ):
        with pytest.raises(ValueError, match=re.escape(words)):
            scorer.predict([row])  # type: ignore[list-item]
    assert scorer.counts == {}
    assert scorer.predict([]) == []
    assert scorer.predict(ROWS[2])["class"] in ("yes", "not yes")  # its blank has a feature
    assert scorer.counts == {"blank": {"paid": 1}}


def test_other_files_are_refused_by_what_they_are(tmp_path: Path) -> None:
    whole = json.loads(GOLDEN.read_text(encoding="utf-8"))
    for changed, words in (
        ({"format": 4}, "its format is 4 and not 5: another version of bdpvi made it"),
        ({"model": None}, "it is a release of your own Pyro model"),
        ({"preprocessing": {}}, "it is a release of features"),
        ({"model": {**whole["model"], "tail": 1}}, "the model has 'tail': a later version made it"),
        ({"model": {**whole["model"], "kind": "odd"}}, "the model is of the unknown kind 'odd'"),
        ({"latents": {"w": [[0.0]]}}, "latents.w has the shape (1, 1)"),
        ({"latents": {"w": [[1e999]]}}, "Infinity is not JSON"),
        ({"feature_names": ["a"]}, "features, feature_names 1"),
        ({"latents": 3}, "an entry is missing or wrong"),
    ):
        path = tmp_path / "changed.json"
        path.write_text(json.dumps({**whole, **changed}), encoding="utf-8")
        with pytest.raises(
            ValueError, match=f"{re.escape(f'{path} gives no predictions: ')}.*{re.escape(words)}"
        ):
            score.load(path)
    path = saved(tmp_path / "classes.json", MODELS["multinomial"])
    whole = json.loads(path.read_text(encoding="utf-8"))
    names = {**whole["preprocessing"], "target": {"classes": ["low", "high"]}}
    for changed, words in (
        ({"preprocessing": names}, "the target has 2 classes, latents 3"),
        ({"model": {**whole["model"], "classes": 10**9}}, "the model has 1000000000 classes"),
    ):
        path.write_text(json.dumps({**whole, **changed}), encoding="utf-8")
        with pytest.raises(ValueError, match=words):
            score.load(path)
    with pytest.raises(ValueError, match="it is the file of a synthetic table"):
        score.load(GOLDEN.with_name("synthetic.json"))
    with pytest.raises(ValueError, match="it is a folder; give the release"):
        score.load(tmp_path)
    with pytest.raises(ValueError, match="it is no JSON"):
        score.load(GOLDEN.parent.parent / "slow.txt")
    with pytest.raises(ValueError, match="leave it out"):
        score.load(GOLDEN, unknown="base")
    with pytest.raises(ValueError, match="'no' must be 'refuse' or 'base'"):
        score.load(saved(tmp_path / "r.json", MODELS["unclipped"], "refuse"), unknown="no")


def test_it_imports_numpy_and_the_standard_library_alone() -> None:
    for file in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [one.name for one in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [str(node.module)]
            else:
                continue
            assert {name.split(".")[0] for name in names} <= {"numpy", *sys.stdlib_module_names}


USED = """
import json, sys, time
{come}
scorer = score.load({path!r})
row = json.loads({row!r})
scorer.predict(row)
each = 1.0
for _ in range(10):  # the quickest, as others use the processor too
    start = time.perf_counter()
    for _ in range(50):
        scorer.predict(row)
    each = min(each, (time.perf_counter() - start) / 50)
said = scorer.to_sql(table="t")
memory = None
if sys.platform == "linux":
    with open("/proc/self/status") as file:
        memory = next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024
print(json.dumps([each, memory, sorted(sys.modules)]))
"""


@pytest.mark.parametrize("copied", [True, False])
def test_a_score_is_quick_and_small(tmp_path: Path, copied: bool) -> None:
    """A copy of the folder loads nothing of bdpvi; the package itself nothing but this."""
    path = saved(tmp_path / "release.json", MODELS["multinomial"], draws=500)
    come = "from bdpvi import score"
    if copied:
        shutil.copytree(FOLDER, tmp_path / "scores")
        come = f"sys.path.insert(0, {str(tmp_path)!r}); import scores as score"
    row = json.dumps({"years": 0.5, "sex": "F", "paid": "$1,234.5", "smokes": True})
    code = USED.format(come=come, path=str(path), row=row)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    each, memory, modules = json.loads(done.stdout)
    assert not {*modules} & {"torch", "pandas", "pyro", "scipy", "pyarrow"}
    ours = {name for name in modules if name.split(".")[0] == "bdpvi"}
    rest = {name for name in ours if not name.startswith("bdpvi.score")}
    assert rest <= (set() if copied else {"bdpvi", "bdpvi._ground", "bdpvi._ground.lazy"})
    print(f"{1e3 * each:.3f} ms a row, {memory:.1f} MB")
    assert each < 0.001
    assert memory is None or memory < 60
