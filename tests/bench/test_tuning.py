"""Tuning: equal effort, held-out rows, resumed, and a file that loads again."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from simulated import logistic_data
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

from bdpvi import Dataset
from bdpvi._ground.store import read_json
from bdpvi.bench import commands as cli_comparison
from bdpvi.bench import tuning
from bdpvi.bench.commands import TUNED
from bdpvi.bench.hyperparameters import FILE, build, describe, load
from bdpvi.bench.methods import METHODS, Method
from bdpvi.bench.trials import Trial, configurations, refinement, value_at
from bdpvi.bench.tuning import Search, score, tune
from bdpvi.datasets.dataset import Split
from bdpvi.datasets.split import folds
from bdpvi.tables.metrics import OBJECTIVES

QUICK = Search(configurations=3, refinements=0, epsilons=(0.5, 2.0), seeds=2, folds=2)
DATA = logistic_data(300, 2)


def test_the_command_tunes_what_has_a_space_of_its_own() -> None:
    assert tuple(name for name, method in METHODS.items() if method.space) == TUNED


@pytest.mark.parametrize("name", TUNED)
def test_every_method_has_room_for_the_default_effort(name: str) -> None:
    entries = configurations(METHODS[name](), 24)
    assert len({json.dumps(entry, sort_keys=True) for entry in entries}) == 24
    for entry in entries:
        method = build(name, entry)
        assert describe(method) == entry
        for path, values in method.space.items():
            value = value_at(entry, path)
            assert value in values or entry == entries[0]


def test_configurations_cover_the_space() -> None:
    # 200 random points: every value of every hyper-parameter comes up, and about as often.
    method = METHODS["dp-gd"]()
    entries = configurations(method, 200)
    assert len({json.dumps(entry, sort_keys=True) for entry in entries}) == 200
    assert configurations(method, 200, seed=1)[1:] != entries[1:]
    for path, values in method.space.items():
        counts = [sum(value_at(entry, path) == value for entry in entries) for value in values]
        assert min(counts) > 200 / len(values) / 3
    points = math.prod(len(values) for values in method.space.values())
    with pytest.raises(ValueError, match=f"configurations={points + 1} is more than the {points}"):
        configurations(method, points + 1)


@pytest.mark.parametrize("name", METHODS)
def test_committed_file_holds_every_method_of_every_data_set(name: str) -> None:
    for data in read_json(FILE):
        assert load(data).methods[name].name == name
    assert load("a table that nobody tuned").data == "default"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"stps": 3}, "stps"),
        ({"step_size": float("nan")}, "step_size"),
        ({"model": 3}, "dp-gd"),
        ({"model": {"limit": -1.0}}, "limit"),
    ],
)
def test_bad_entries(entry: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build("dp-gd", entry)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "JSON object"),
        ("{}", "neither"),
        ('{"default": {"methods": {}}}', "lacks"),
        ('{"default": {"chosen": {}, "methods": {"dp-gdd": {}}}}', "dp-gdd"),
    ],
)
def test_bad_files(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "h.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        load("abalone", file)


def parts(out: Path, name: str) -> int:
    """Return how many trials of a study are kept."""
    return len(list(out.with_name(f"{out.name}.trials").glob(f"cells/{name}-*.json")))


def test_best_configuration_is_written_and_the_others_kept(tmp_path: Path) -> None:
    out = tmp_path / "h.json"
    entry = tune(DATA, load("data"), ["dp-gd"], QUICK, out)
    assert parts(out, "dp-gd-0") == 3
    result = entry["chosen"]["result"]["dp-gd"]
    assert entry["chosen"]["configurations"] == 3
    assert entry["chosen"]["folds"] == 2
    assert "dp-gd" not in entry["chosen"]["not tuned"]["methods"]
    again = load("data", out)
    assert again.data == "data"
    assert describe(again.methods["dp-gd"]) == entry["methods"]["dp-gd"]

    def by_hand(method: Method) -> Any:
        pieces = zip(
            folds(DATA, 2), (range(10**6, 10**6 + 2), range(10**6 + 2, 10**6 + 4)), strict=True
        )
        scores = [score(method, split, QUICK, seeds) for split, seeds in pieces]
        return np.mean(scores, axis=0)

    before = load("data")
    tried = configurations(before.methods["dp-gd"], 3, at=before.at.get("dp-gd", {}).values())
    means = [by_hand(build("dp-gd", entry)) for entry in tried]
    assert result["score"] == pytest.approx(max(mean.mean() for mean in means), abs=1e-12)
    for index, epsilon in enumerate(QUICK.epsilons):
        there = by_hand(again.at["dp-gd"][epsilon])[index]
        assert there == pytest.approx(max(mean[index] for mean in means), abs=1e-12)
    assert set(read_json(FILE)) < set(read_json(out))  # others' entries stay


def places(method: Method, entry: Any) -> list[int]:
    """Return where an entry's values are in the lists of the method's space."""
    return [list(values).index(value_at(entry, path)) for path, values in method.space.items()]


@pytest.mark.parametrize("name", ["dp-gd", "objective-perturbation"])
def test_refinements_climb_to_the_best_of_each_target(name: str) -> None:
    method = METHODS[name]()
    sizes = [len(values) for values in method.space.values()]
    goals = [[0] * len(sizes), [size - 1 for size in sizes]]

    def trial(entry: Any) -> Trial:
        here = places(method, entry)
        far = [sum(abs(a - b) for a, b in zip(here, goal, strict=True)) for goal in goals]
        return Trial(entry, [-distance for distance in far])

    _, middle = configurations(method, 2)
    tried = [trial(middle)]
    while max(one.scores[0] for one in tried) < 0:
        entry = refinement(method, tried)
        assert entry is not None
        assert entry not in [known.entry for known in tried]
        turn = len(tried) % 2
        ways = []
        for target in (turn, 1 - turn):
            best = max(tried, key=lambda one: one.scores[target])
            pairs = zip(places(method, entry), places(method, best.entry), strict=True)
            ways.append(sorted(abs(a - b) for a, b in pairs))
        # The other target has the turn once all steps from the best at this one were tried.
        done = max(one.scores[turn] for one in tried) == 0
        assert [0] * (len(sizes) - 1) + [1] in (ways if done else ways[:1])
        tried.append(trial(entry))
        assert len(tried) < 4 * sum(sizes) * len(sizes)


def test_a_finished_search_goes_on_with_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # From the values that it began with, though those of the file are what it found.
    out, other, scored = tmp_path / "h.json", tmp_path / "other.json", 0
    less = replace(QUICK, configurations=2, refinements=1)
    more = replace(less, refinements=2, repeats=3, finalists=1)
    tune(DATA, load("data"), ["dp-gd"], less, out)

    def counting(*arguments: object) -> list[float]:
        nonlocal scored
        scored += 1
        return score(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(tuning, "score", counting)
    found = tune(DATA, load("data", out), ["dp-gd"], more, out)
    at_once = tune(DATA, load("data"), ["dp-gd"], more, other)
    assert found["methods"] == at_once["methods"]
    assert found["at"] == at_once["at"]
    assert found["chosen"]["result"] == at_once["chosen"]["result"]
    trials = sum(parts(other, f"dp-gd-{repeat}") for repeat in range(3))
    assert scored == 2 * (2 * trials - 3)  # three configurations in two folds were there already
    with pytest.raises(ValueError, match="and not search="):
        tune(DATA, load("data"), ["dp-gd"], replace(more, seeds=3), out)


def test_finalists_are_scored_in_folds_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[tuple[str, frozenset[int], int]] = []

    def luck(method: object, split: Split, search: Search, seeds: range) -> list[float]:
        # The first cross-validation favours some configurations, the second all others more.
        entry, again = json.dumps(describe(method), sort_keys=True), seeds[0] >= 1000 + 2 * 2  # type: ignore[arg-type]
        number = order.setdefault(entry, len(order))
        scored.append((entry, frozenset(split.test.ids.tolist()), seeds[0]))
        gain = (0.02 * number, -0.06 * number)[again]
        return [0.5 + gain, 0.5 - gain]

    order: dict[str, int] = {}
    monkeypatch.setattr(tuning, "score", luck)
    search = replace(QUICK, configurations=5, repeats=2, finalists=2)
    entry = tune(DATA, load("data"), ["dp-gd"], search, tmp_path / "h.json")
    counts = {e: sum(one[0] == e for one in scored) for e in order}
    # 4 and 3 lead at the first target, 0 and 1 at the second and, being earlier, on average.
    assert [counts[e] for e in order] == [4, 4, 2, 4, 4]
    assert len({seed for _, _, seed in scored}) == 4
    assert len({ids for _, ids, _ in scored}) == 4
    found = [json.dumps(e, sort_keys=True) for e in entry["at"]["dp-gd"].values()]
    assert [order[e] for e in found] == [0, 4]
    assert "2 best at each in 2 such cross-validations" in entry["chosen"]["how"]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_what_cannot_be_had_scores_like_the_base_rate(objective: str) -> None:
    # The moments accountant promises nothing below 0.116. The commoner class in training is 1,
    # that of 3 in 10 held-out records.
    y = torch.tensor([0.0] * 7 + [1.0] * 3)
    x = torch.randn(10, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    held_out = Dataset(x, y.double())
    search = Search(epsilons=(0.05,), seeds=1, objective=objective)
    split = Split(logistic_data(60, 2), held_out)
    rate = float(split.train.y.mean())
    assert rate > 0.5
    by_hand = {
        "log-score": 0.7 * math.log(1 - rate) + 0.3 * math.log(rate),
        "accuracy": 0.3,
        "auc": 0.5,
    }
    result = score(METHODS["dpvi-ma"](), split, search, [0])
    assert result == [pytest.approx(by_hand[objective])]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_settings_are_chosen_by_the_objective(objective: str, tmp_path: Path) -> None:
    # Against scikit-learn's measures of the predictions of the two configurations.
    search = replace(QUICK, configurations=2, folds=2, objective=objective)
    out = tmp_path / "h.json"
    entry = tune(DATA, load("data"), ["non-private"], replace(search, seeds=1), out)
    assert (
        entry["chosen"]["objective"] == read_json(out)["data"]["chosen"]["objective"] == objective
    )
    assert f"by mean {OBJECTIVES[objective].label} in 2-fold" in entry["chosen"]["how"]
    measure = {
        "log-score": lambda y, p: -log_loss(y, p),
        "accuracy": lambda y, p: accuracy_score(y, p > 0.5),
        "auc": roc_auc_score,
    }[objective]
    before = load("data")
    tried = configurations(before.methods["non-private"], 2)
    means = []
    for one in tried:
        method, found = build("non-private", one), []
        for seed, split in enumerate(folds(DATA, 2)):
            (outcome,) = method.prepare(split.train, 1e-5).outcomes([0.0], [10**6 + seed])
            w = torch.as_tensor(outcome.latents["w"])
            p = (method.model.design(split.test.x) @ w.T).sigmoid().mean(1)
            found.append(measure(split.test.y.numpy(), p.numpy()))
        means.append(np.mean(found))
    assert entry["chosen"]["result"]["non-private"]["score"] == pytest.approx(max(means), rel=1e-9)
    assert entry["methods"]["non-private"] == tried[int(np.argmax(means))]
    other = next(name for name in OBJECTIVES if name != objective)
    with pytest.raises(ValueError, match="and not search="):
        tune(DATA, load("data"), ["non-private"], replace(search, objective=other, seeds=1), out)


def test_a_fold_of_one_class_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    rare = replace(DATA, y=(torch.arange(len(DATA)) == 7).double())
    out = tmp_path / "h.json"
    search = replace(QUICK, objective="auc")
    with pytest.raises(ValueError, match=r"objective='auc' .* folds=2: .* take fewer folds"):
        tune(rare, load("data"), ["dp-gd"], search, out)
    assert not list(tmp_path.iterdir())
    assert tune(rare, load("data"), ["dp-gd"], replace(QUICK, configurations=1), out)["at"]


def test_test_rows_are_out_of_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[int] = set()
    held_out_ids: list[int] = []

    def spying(method: object, split: Split, search: Search, seeds: object) -> list[float]:
        held_out, fitted = set(split.test.ids.tolist()), set(split.train.ids.tolist())
        assert not held_out & fitted
        seen.update(held_out | fitted)
        held_out_ids.extend(held_out)
        return [0.0] * len(search.epsilons)

    monkeypatch.setattr(tuning, "score", spying)
    train = DATA.select(torch.arange(200))
    tune(train, load("data"), ["dp-gd"], QUICK, tmp_path / "h.json")
    assert seen == set(range(200))
    assert sorted(held_out_ids) == sorted(3 * list(range(200)))  # once for every configuration


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("configurations", 0),
        ("refinements", -1),
        ("epsilons", (float("nan"),)),
        ("epsilons", ()),
        ("seeds", 0),
        ("objective", "nll"),
        ("delta", float("nan")),
        ("folds", 1),
        ("repeats", 0),
        ("finalists", 0),
    ],
)
def test_bad_search(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        Search(**{field: value})  # type: ignore[arg-type]


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "h.json"
    options = {
        "configurations": 2,
        "refinements": 1,
        "seeds": 1,
        "folds": 2,
        "epsilons": "1",
        "quiet": True,
    }
    cli_comparison.tune(data="breast-cancer", out=out, methods="dp-gd", **options)
    printed = capsys.readouterr().out
    # 398 of the 569 records, every class as often as in the whole table up to chance.
    assert re.search(r"^base-rate: log score -0\.6[5-9]\d\d in cross-validation$", printed, re.M)
    assert re.search(r"^dp-gd: log score -0\.\d{4} in cross-validation$", printed, re.M)
    assert load("breast-cancer", out).data == "breast-cancer"
    with pytest.raises(ValueError, match="dp-gdd"):
        cli_comparison.tune(data="breast-cancer", out=out, methods="dp-gdd", **options)
