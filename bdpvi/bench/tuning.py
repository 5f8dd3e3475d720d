"""Hyper-parameter search by random and local search and cross-validation, equal for all methods.

Test rows are never used. The search's privacy cost is not counted: a comparison is about methods at
their best settings, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from bdpvi._ground import log, validate
from bdpvi._ground import progress as bars
from bdpvi._ground.checkpoint import Checkpoint
from bdpvi._ground.progress import Track
from bdpvi._ground.store import check_writable, json_text, read_json, replacing
from bdpvi.bench.comparison import EPSILONS, check_epsilons, predict
from bdpvi.bench.hyperparameters import FILE, Chosen, Entry, build, describe
from bdpvi.bench.methods import NONE, BaseRate, Method, PreparedMethod
from bdpvi.bench.methods.method import Outcome
from bdpvi.bench.trials import Study, Trial, configurations, refinement
from bdpvi.datasets.dataset import Dataset, Split
from bdpvi.datasets.split import folds
from bdpvi.tables.metrics import OBJECTIVES, Measure

_GOES_ON = {"refinements", "repeats", "finalists"}
"""Settings that may grow when a search is run again: no finished trial depends on them."""

_FIRST_SEED = 1_000_000
"""First seed of a search. Comparisons count from 0, so they repeat no draw used for tuning."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """The effort and the scoring of a search; the same for every method.

    Args:
        configurations: number of random configurations for every method.
        refinements: number of further configurations for every method: the best so far at each
            target, in turn, with one hyper-parameter moved a step up or down its list.
        objective: score on held-out rows, "log-score", "accuracy" or "auc", see
            :data:`bdpvi.tables.metrics.OBJECTIVES`.
        epsilons: a configuration is scored at each of these. The best is chosen for each, and for
            all of them together.
        seeds: number of seeds for every fold, over which scores are averaged; no two folds share
            one.
        delta: δ of the guarantees.
        folds: number of folds of cross-validation.
        repeats: number of repeats of cross-validation, with different folds. All configurations are
            scored in the first; the finalists in all repeats, and the best of them is chosen,
            because the best of many in one repeat is partly the luckiest.
        finalists: number at each target, and on average over all, that are scored in all repeats.
        seed: seed of the configurations and of the folds.
    """

    configurations: int = 24
    refinements: int = 12
    objective: str = "log-score"
    epsilons: tuple[float, ...] = EPSILONS
    seeds: int = 4
    delta: float = 1e-5
    folds: int = 5
    repeats: int = 1
    finalists: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("configurations", "seeds", "repeats", "finalists"):
            validate.positive_int(name, getattr(self, name))
        validate.positive_int("refinements", self.refinements, least=0)
        validate.positive_int("folds", self.folds, least=2)
        validate.probability("delta", self.delta)
        validate.choice("objective", self.objective, OBJECTIVES)
        check_epsilons(self.epsilons)

    @property
    def measure(self) -> Measure:
        """Return the objective."""
        return OBJECTIVES[self.objective]


def tune(
    train: Dataset,
    chosen: Chosen,
    names: Sequence[str],
    search: Search,
    out: Path,
    *,
    track: Track[Any] = bars.silent,
) -> dict[str, Any]:
    """Search, and write the result to the hyper-parameter file ``out``.

    Args:
        train: training records; some are held out for scoring.
        chosen: the current methods: fields outside a method's space do not change.
        names: the methods to tune.
        search: effort and scoring.
        out: an existing file gets a new entry for the data set; a new file starts as a copy of the
            one in bdpvi. Finished trials are kept in the folder ``out``.trials; the same search
            with other methods, or with more refinements, repeats or finalists, resumes from them.
        track: shows progress.

    Returns:
        The data set's new entry.

    Raises:
        ValueError: if a name is unknown, a method has too few configurations, or a fold cannot be
            scored because it has only one class.
    """
    for name in names:
        validate.choice("methods", name, chosen.methods)
    if out.exists():
        read_json(out)  # an unreadable file cannot get an entry
    floor = _floor(train, search)
    check_writable(out.parent)
    found = _searched(train, chosen, names, search, trials_folder(out), track)
    best = {name: max(trials, key=lambda trial: trial.score) for name, trials in found.items()}
    at: dict[str, dict[float, Entry]] = {
        name: {epsilon: describe(method) for epsilon, method in values.items()}
        for name, values in chosen.at.items()
    }
    for name, trials in found.items():
        if chosen.methods[name].guarantee != NONE:
            columns = zip(*(trial.scores for trial in trials), strict=True)
            firsts = [column.index(max(column)) for column in columns]
            at[name] = {e: trials[i].entry for e, i in zip(search.epsilons, firsts, strict=True)}
    methods = {name: describe(method) for name, method in chosen.methods.items()}
    entry = {
        "chosen": _story(train, chosen, search, best, floor),
        "methods": methods | {name: trial.entry for name, trial in best.items()},
        "at": {n: {f"{e:g}": entry for e, entry in there.items()} for n, there in at.items()},
    }
    content = read_json(out if out.exists() else FILE)  # again: others may have written to it
    content[train.name] = entry
    with replacing(out) as temporary:
        temporary.write_text(json_text(content, 1) + "\n", "utf-8")
    return entry


def trials_folder(out: Path) -> Path:
    """Return the folder of finished trials of a search for the file ``out``."""
    return out.with_name(f"{out.name}.trials")


def _searched(
    train: Dataset,
    chosen: Chosen,
    names: Sequence[str],
    search: Search,
    folder: Path,
    track: Track[Any],
) -> dict[str, list[Trial]]:
    """Return each method's finalists, with the mean of their scores over all repeats."""
    settings = {
        "train": train.fingerprint(),
        "search": {k: v for k, v in asdict(search).items() if k not in _GOES_ON},
    }
    kept = Checkpoint(folder, settings, "cells")
    kept.begin()
    repeats = range(search.repeats)
    splits = [folds(train, search.folds, search.seed + repeat) for repeat in repeats]

    def study(name: str, repeat: int) -> Study:
        targets = 1 if chosen.methods[name].guarantee == NONE else len(search.epsilons)
        return Study(kept, f"{name}-{repeat}", chosen.methods[name], targets)

    def add(name: str, repeat: int, entry: Entry) -> None:
        first = _FIRST_SEED + repeat * search.folds * search.seeds
        with log.step(f"tune {name}"):
            found = cross_validated(build(name, entry), splits[repeat], search, first)
            studies[name, repeat].add(found)

    studies = {(name, repeat): study(name, repeat) for name in names for repeat in repeats}
    first = search.configurations
    for words, effort in (("tune", first), ("refine", first + search.refinements)):
        turns = [n for n in names for _ in range(effort - len(studies[n, 0].trials))]
        for name in track(turns, words):
            at = chosen.at.get(name, {}).values()
            entry = proposal(chosen.methods[name], studies[name, 0].trials, search, at)
            if entry is not None:
                add(name, 0, entry)
    finalists = {name: _finalists(studies[name, 0].trials, search) for name in names}
    missing = [
        (name, repeat, entry)
        for (name, repeat), one in studies.items()
        for entry in finalists[name]
        if entry not in [trial.entry for trial in one.trials]
    ]
    for job in track(missing, "repeat"):
        add(*job)

    def whole(name: str, entry: Entry) -> Trial:
        everywhere = (t for repeat in repeats for t in studies[name, repeat].trials)
        return _mean(entry, [t.scores for t in everywhere if t.entry == entry])

    return {name: [whole(name, entry) for entry in finalists[name]] for name in names}


def cross_validated(
    method: Method, splits: Sequence[Split], search: Search, first_seed: int
) -> Trial:
    """Return the method's trial: mean scores over the splits, each with its own seeds."""
    runs = search.seeds
    firsts = range(first_seed, first_seed + len(splits) * runs, runs)
    return _mean(
        describe(method),
        [
            score(method, split, search, range(first, first + runs))
            for split, first in zip(splits, firsts, strict=True)
        ],
    )


def _mean(entry: Entry, parts: Sequence[Sequence[float]]) -> Trial:
    """Return a configuration's trial, with the mean of these parts' scores."""
    return Trial(entry, [fmean(column) for column in zip(*parts, strict=True)])


def proposal(
    method: Method, tried: Sequence[Trial], search: Search, at: Iterable[Method] = ()
) -> Entry | None:
    """Return the next configuration to try, None if this method's search is finished.

    It depends only on the finished trials, so an interrupted search resumes identically.

    Args:
        method: the current method.
        tried: its finished trials.
        search: effort and scoring.
        at: current methods for particular targets.
    """
    known = [trial.entry for trial in tried]
    if len(tried) < search.configurations:
        first = configurations(method, search.configurations, search.seed, at)
        return next(entry for entry in first if entry not in known)
    more = len(tried) < search.configurations + search.refinements
    return refinement(method, tried, search.seed) if more else None


def score(method: Method, split: Split, search: Search, seeds: Sequence[int]) -> list[float]:
    """Return a configuration's mean objective on held-out rows at each target.

    It is the base rate's score if the target cannot be reached, ε is not reliable there, or
    training diverges.
    """
    targets = [math.inf] if method.guarantee == NONE else search.epsilons
    result = [base_rate_score(split, search.measure)] * len(targets)
    settings: dict[int, float] = {}
    with suppress(FloatingPointError):
        prepared = method.prepare(split.train, search.delta)
        for i, epsilon in enumerate(targets):
            with suppress(ValueError):
                settings[i] = prepared.calibrate(epsilon)
        groups = _outcomes(prepared, list(settings.values()), seeds) if settings else []
        for i, outcomes in zip(settings, groups, strict=True):
            if outcomes and all(_reliable(outcome) for outcome in outcomes):
                result[i] = _scored(method, outcomes, split, search.measure)
    return result


def base_rate_score(split: Split, measure: Measure) -> float:
    """Return the measure, on held-out rows, of always predicting the training rows' frequency.

    Raises:
        ValueError: if the measure is not defined on these rows.
    """
    base = BaseRate()
    outcomes = base.prepare(split.train, 0.5).outcomes([0.0], [0])
    return _scored(base, outcomes, split, measure)


def _reliable(outcome: Outcome) -> bool:
    found = None if outcome.cost is None else outcome.cost.bayesian
    return found is None or found.reliable


def _scored(method: Method, outcomes: Sequence[Outcome], split: Split, measure: Measure) -> float:
    return float(measure.of(predict(method, outcomes, split), split.test.y.cpu()).mean())


def _floor(train: Dataset, search: Search) -> float:
    """Return the base rate's score over all folds of all repeats."""
    every = (
        split
        for repeat in range(search.repeats)
        for split in folds(train, search.folds, search.seed + repeat)
    )
    try:
        return fmean(base_rate_score(split, search.measure) for split in every)
    except ValueError as error:
        raise ValueError(
            f"objective={search.objective!r} cannot score every one of folds={search.folds}: "
            f"{error}; take fewer folds, or another objective"
        ) from error


def _outcomes(
    prepared: PreparedMethod, settings: Sequence[float], seeds: Sequence[int]
) -> list[list[Outcome]]:
    """Return the outcomes at every setting, each for all seeds; none where training diverges."""
    try:  # side by side, which is faster
        flat = prepared.outcomes([s for s in settings for _ in seeds], [*seeds] * len(settings))
    except FloatingPointError:
        if len(settings) == 1:
            return [[]]
        return [group for setting in settings for group in _outcomes(prepared, [setting], seeds)]
    return [flat[i : i + len(seeds)] for i in range(0, len(flat), len(seeds))]


def _finalists(trials: Sequence[Trial], search: Search) -> list[Entry]:
    """Return the configurations among the best at a target, or on average over all."""
    scores = [(*trial.scores, trial.score) for trial in trials]
    best: set[int] = set()
    for column in zip(*scores, strict=True):
        best.update(sorted(range(len(column)), key=lambda i: -column[i])[: search.finalists])
    return [trials[i].entry for i in sorted(best)]


def _story(
    train: Dataset,
    chosen: Chosen,
    search: Search,
    best: Mapping[str, Trial],
    floor: float,
) -> dict[str, Any]:
    """Return how the values were found, for readers of the file."""
    rest = [name for name in chosen.methods if name not in best]
    again = (
        f", the {search.finalists} best at each in {search.repeats} such cross-validations, each "
        "with folds of its own"
        if search.repeats > 1
        else ""
    )
    return {
        "how": (
            "The values before, of each target too, and a random search, then steps from the best "
            "so far, the same number of configurations for every tuned method, by mean "
            f"{search.measure.label} in {search.folds}-fold cross-validation on the {len(train)} "
            f"training rows{again}: the best at each target, which serves the targets nearest to "
            "it too, and the best on average. A target that cannot be reached, or at which ε is "
            "not reliable, scores like the base rate, the frequency in the training rows of each "
            "fold. No test row was used."
        ),
        **asdict(search),
        "grid": {name: dict(chosen.methods[name].space) for name in best},
        "result": {BaseRate.name: {"score": floor}}
        | {name: {"score": trial.score, "scores": trial.scores} for name, trial in best.items()},
        **({"not tuned": {"methods": rest, **chosen.how}} if rest else {}),
    }
