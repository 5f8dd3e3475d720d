"""The numbers of the owner's report, against pandas, scikit-learn and scipy."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pandas as pd
import pytest
from people_shared import FOUND, HELD_OUT, MADE, ROWS, SCHEMA, TRAIN, people, shared
from scipy.stats import mannwhitneyu
from scipy.stats.contingency import expected_freq
from sklearn.dummy import DummyClassifier
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

from bdpvi.datasets import ColumnType, Schema
from bdpvi.synthesis import evaluate, measures
from bdpvi.synthesis.report import ALL, BASE, REAL


def crossed(frame: pd.DataFrame, first: str, second: str) -> pd.DataFrame:
    """Return shares of a pair by pandas, numbers cut at quantiles of the training rows."""
    parts = {}
    for name in (first, second):
        parts[name] = frame[name].reset_index(drop=True)
        if parts[name].dtype.kind in "if":
            cuts = np.unique(np.percentile(TRAIN[name], 100 * np.arange(1, 16) / 16))
            parts[name] = pd.cut(parts[name], [-np.inf, *cuts, np.inf], right=False)
    return pd.crosstab(parts[first], parts[second], normalize="all", dropna=False)


def test_pairs_are_those_of_a_cross_table() -> None:
    assert [pair.names for pair in FOUND.pairs] == list(itertools.combinations(SCHEMA.columns, 2))
    for pair in FOUND.pairs:
        p, q = crossed(TRAIN, *pair.names), crossed(ROWS, *pair.names)
        q = q.reindex(index=p.index, columns=p.columns, fill_value=0.0)
        a, b = (table.to_numpy() for table in (p, q))
        away, lost = a - expected_freq(a), b - expected_freq(b)
        assert pair.variation == pytest.approx(np.abs(a - b).sum() / 2, abs=1e-12)
        assert pair.real == pytest.approx(np.abs(away).sum() / 2, abs=1e-12)
        assert pair.synthetic == pytest.approx(np.abs(lost).sum() / 2, abs=1e-12)
        assert pair.lost == pytest.approx(np.abs(away - lost).sum() / 2, abs=1e-12)
    assert FOUND.variation == pytest.approx(np.mean([pair.variation for pair in FOUND.pairs]))
    scales = measures.scales(measures.read(TRAIN, SCHEMA), SCHEMA)
    bins = [measures.binned(measures.read(one, SCHEMA), scales) for one in (TRAIN, ROWS)]
    assert measures.variation(*bins) == pytest.approx(FOUND.variation)
    assert FOUND.details[0].names == max(FOUND.pairs, key=lambda one: one.variation).names
    assert FOUND.lost[0].names == max(FOUND.pairs, key=lambda one: one.lost).names


def test_columns_are_shares_of_rows() -> None:
    sex = {column.name: column for column in FOUND.columns}["sex"]
    assert sex.labels == ("F", "M", "blank", "other")
    real, synthetic = (one["sex"].value_counts(normalize=True) for one in (TRAIN, ROWS))
    assert sex.real == pytest.approx((real["F"], real["M"], 0, 0))
    assert sex.variation == pytest.approx(abs(real["F"] - synthetic["F"]))
    for column in FOUND.columns:
        assert sum(column.real) == pytest.approx(1)
        assert sum(column.synthetic) == pytest.approx(1)


def test_controls_and_cells_of_two_equal_coins() -> None:
    """Shares ½, ½ on the diagonal; shuffled they are ¼ each, with an error of sd √(p(1 − p)/N)."""
    coin = ColumnType(levels=("0", "1"))
    frame = pd.DataFrame({"a": ["0", "1"] * 2000, "b": ["0", "1"] * 2000})
    swapped = frame.assign(b=frame["a"].map({"0": "1", "1": "0"}))
    made = shared(frame, Schema({"a": coin, "b": coin}, "coins"), None)
    found = evaluate(made, train=frame, held_out=frame[:0], rows=swapped)
    assert found.shuffled == pytest.approx(0.5, abs=4 * np.sqrt(0.25 / 4000))
    assert found.halves < 4 * np.sqrt(2 * 0.25 / 2000)
    (pair,) = found.pairs
    assert (pair.variation, pair.real, pair.synthetic, pair.lost) == (1.0, 0.5, 0.5, 1.0)
    cells = {cell.labels: (cell.real, cell.synthetic) for cell in found.details[0].cells}
    assert (cells["0", "0"], cells["0", "1"]) == ((0.5, 0.0), (0.0, 0.5))
    cells = {cell.labels: (cell.real, cell.synthetic) for cell in found.lost[0].cells}
    assert (cells["0", "0"], cells["0", "1"]) == ((0.25, -0.25), (-0.25, 0.25))


def test_scores_are_those_of_scikit_learn() -> None:
    assert FOUND.classes == ("no", "yes")
    train, test = (measures.read(one, SCHEMA) for one in (TRAIN, HELD_OUT))
    tasks = [measures.Task.of(one, SCHEMA, "sick", train) for one in (train, test)]
    truth = (HELD_OUT["sick"] == "yes").to_numpy()
    for name, given in measures.students(*tasks).items():
        score = next(
            one
            for one in FOUND.scores
            if (one.student, one.trained, one.group) == (name, REAL, ALL)
        )
        assert score.auc == pytest.approx(roc_auc_score(truth, given[:, 1]))
        greater = mannwhitneyu(given[truth, 1], given[~truth, 1]).statistic
        assert score.auc == pytest.approx(greater / truth.sum() / (~truth).sum())
        assert score.accuracy == pytest.approx(accuracy_score(truth, given[:, 1] > 0.5))
        assert score.log_score == pytest.approx(-log_loss(truth, given[:, :2]))


def test_every_group_has_its_own_scores_beside_the_base_rate() -> None:
    groups = {score.group: score.rows for score in FOUND.scores}
    assert groups["sex: F"] == (HELD_OUT["sex"] == "F").sum()
    assert sum(rows for name, rows in groups.items() if name.startswith("age")) == len(HELD_OUT)
    assert sum(name.startswith("age") for name in groups) == 4
    women = HELD_OUT[HELD_OUT["sex"] == "F"]
    base = next(score for score in FOUND.scores if (score.student, score.group) == (BASE, "sex: F"))
    dummy = DummyClassifier(strategy="prior").fit(TRAIN[["age"]], TRAIN["sick"])
    assert base.auc == 0.5
    assert base.accuracy == pytest.approx(dummy.score(women[["age"]], women["sick"]))
    loss = log_loss(women["sick"], dummy.predict_proba(women[["age"]]))
    assert base.log_score == pytest.approx(-loss)


def test_students_of_several_classes() -> None:
    random = np.random.default_rng(0)
    y = random.integers(0, 3, 400)
    given = random.dirichlet(np.ones(3), 400)
    assert measures.area(y, given) == pytest.approx(roc_auc_score(y, given, multi_class="ovr"))
    assert measures.area(np.zeros(4, dtype=np.int64), given[:4]) is None
    many = Schema(
        {"x": ColumnType(low=0, high=9), "y": ColumnType(levels=tuple("abcdefghijklmn"))}, "law"
    )
    letters = random.choice(list("aabbccddeeffgghhiijjklmn"), 2000)
    frame = pd.DataFrame({"x": random.random(2000), "y": letters})
    found = evaluate(shared(frame, many, "y"), train=frame, held_out=frame)
    assert found.classes[-1] == "others"
    assert set(found.classes) < {*"abcdefghij", "others"}
    assert len(found.classes) == measures.CLASSES


@pytest.mark.parametrize("high", [1, 100])
def test_a_target_of_numbers(high: int) -> None:
    random = np.random.default_rng(0)
    y = random.integers(0, high + 1, 400)
    frame = pd.DataFrame({"x": y + 0.1 * random.random(400), "y": y})
    domains = {"x": ColumnType(low=0, high=101), "y": ColumnType(low=0, high=high, whole=True)}
    values = measures.read(frame, Schema(domains, "law"))
    task = measures.Task.of(values, Schema(domains, "law"), "y", values)
    assert task.y.tolist() == (y if high == 1 else y > np.median(y)).tolist()
    middle = f"{np.median(y):g}"
    expected = ("0", "1") if high == 1 else (f"{middle} or less", f"above {middle}")
    assert task.classes[:2] == expected


def test_copies_are_seen_and_an_equal_share_of_repeats_is_none() -> None:
    frame, rows = TRAIN.astype(str), pd.concat([TRAIN[:70], HELD_OUT[:30]])
    joined = HELD_OUT.merge(TRAIN.drop_duplicates(), how="inner")
    assert FOUND.held_out_copies == pytest.approx(len(joined) / len(HELD_OUT))
    values = [measures.read(one, SCHEMA) for one in (rows, frame)]
    expected = (70 + len(HELD_OUT[:30].merge(TRAIN.drop_duplicates(), how="inner"))) / 100
    assert measures.copies(*values) == pytest.approx(expected)


def test_rows_of_another_kind_are_told_apart_by_the_column_that_betrays_them() -> None:
    odd = ROWS.assign(weight=ROWS["weight"] + 40)
    found = evaluate(MADE, train=TRAIN, held_out=HELD_OUT, rows=odd)
    assert found.told is not None
    assert found.told.auc > 0.95
    assert found.told.columns[0][0] == "weight"
    same = evaluate(MADE, train=TRAIN, held_out=HELD_OUT, rows=people(600, 2))
    assert same.told is not None
    assert abs(same.told.auc - 0.5) < 4 * np.sqrt((2 * 300 + 1) / (12 * 300**2))


def test_what_became_of_each_column() -> None:
    frame = TRAIN.assign(age=TRAIN["age"].mask(TRAIN.index < 7, 150))
    frame["sex"] = frame["sex"].mask(frame.index < 3, "X").mask(frame.index == 9, None)
    with pytest.warns(UserWarning, match="secret"):
        made = shared(frame)
    found = {
        column.name: column for column in evaluate(made, train=frame, held_out=HELD_OUT).columns
    }
    assert "7 values out of range and clamped" in found["age"].unfit
    assert "3 values no level, such as 'X'" in found["sex"].unfit
    assert found["age"].codes == 113
    assert found["age"].bins == made.counts.sizes[0] < 113
    assert found["sick"].parents == found["sick"].pooled == ()
    assert "sick" in found["weight"].parents


ONE = Schema({"a": ColumnType(levels=("x",))}, "law")
TWO = Schema({"a": ColumnType(levels=("x", "y")), "b": ColumnType(low=0, high=9)}, "law")


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize(
    ("schema", "cells", "target"),
    [
        (ONE, {"a": "x"}, None),
        (ONE, {"a": "x"}, "a"),
        (TWO, {"a": "x", "b": "1"}, "a"),
        (TWO, {"a": "", "b": ""}, "a"),
        (TWO, {"a": "", "b": ""}, "b"),
        (TWO, {"a": "z", "b": "many"}, None),
    ],
)
@pytest.mark.filterwarnings("ignore:column:UserWarning")
def test_tables_with_nothing_to_learn(
    rows: int, schema: Schema, cells: dict[str, str], target: str | None
) -> None:
    frame = pd.DataFrame([cells] * rows, columns=list(cells))
    made = shared(frame, schema, target)
    for held_out in (frame[:0], frame):
        found = evaluate(made, train=frame, held_out=held_out, groups=("a",))
        assert found.scores == ()
        assert found.unscored
        assert all(found.verdict)
        assert (found.held_out_copies is None) == (len(held_out) == 0)
        json.dumps(found.to_dict(), allow_nan=False)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="groups names 'z'"):
        evaluate(MADE, train=TRAIN, held_out=HELD_OUT, groups=("z",))
    with pytest.raises(ValueError, match="held_out: the table lacks the column 'sex'"):
        evaluate(MADE, train=TRAIN, held_out=HELD_OUT.drop(columns="sex"))
    with pytest.raises(ValueError, match="seed"):
        evaluate(MADE, train=TRAIN, held_out=HELD_OUT, seed=-1)
