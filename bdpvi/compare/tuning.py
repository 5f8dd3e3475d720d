"""Hyper-parameters by random and local search and cross-validation, equal effort for all methods.

Test rows are never seen. Privacy is not paid for the search: a comparison asks what methods are
worth at their best settings, and says so.
"""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from bdpvi import _validate
from bdpvi._runtime import progress as bars
from bdpvi._runtime.cells import Cells
from bdpvi._runtime.progress import Track
from bdpvi._runtime.store import check_writable, replacing
from bdpvi.compare.comparison import EPSILONS, measure
from bdpvi.compare.hyperparameters import FILE, Chosen, Entry, build, describe, read
from bdpvi.compare.methods import NONE, Method, Prepared
from bdpvi.datasets import folds
from bdpvi.types import Dataset, Outcome, Split

Result = Mapping[str, Any]
"""What a configuration reached, see :func:`score`."""

_GOES_ON = {"refinements", "repeats", "finalists"}
"""What may grow when a search is run again: no finished trial depends on it."""

_FIRST_SEED = 1_000
"""Comparisons count seeds from 0: no draw that settings were chosen by comes up there again."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """How much is tried, and how it is scored; the same for every method.

    Args:
        configurations: tried for every method at random.
        refinements: tried for every method after that: the best at each target so far, in turn,
            with one hyper-parameter a step further up or down its list.
        epsilons: a configuration is scored by its mean accuracy on held-out rows at each of these.
            The best is chosen for each, and for all of them together.
        seeds: the mean is over so many seeds for every fold, other ones for each.
        delta: δ of the guarantees.
        folds: of cross-validation: so many times a part of the training rows is held out.
        repeats: of cross-validation, each with folds of its own. All configurations are scored in
            the first; then the finalists in the others too, and the best of them in all is chosen.
            The best of many in one is partly the luckiest.
        finalists: how many at each target, and on average over all, are scored in all repeats.
        seed: of the choice of configurations and of the folds.
    """

    configurations: int = 24
    refinements: int = 12
    epsilons: tuple[float, ...] = EPSILONS
    seeds: int = 4
    delta: float = 1e-5
    folds: int = 5
    repeats: int = 1
    finalists: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        _validate.positive_int("configurations", self.configurations)
        _validate.positive_int("refinements", self.refinements, least=0)
        if not self.epsilons:
            raise ValueError("epsilons has no value")
        for epsilon in self.epsilons:
            _validate.positive("epsilons", epsilon)
        _validate.positive_int("seeds", self.seeds)
        _validate.probability("delta", self.delta)
        _validate.positive_int("folds", self.folds, least=2)
        _validate.positive_int("repeats", self.repeats)
        _validate.positive_int("finalists", self.finalists)


@dataclass(frozen=True)
class Trial:
    """One configuration of one method."""

    name: str
    number: int
    entry: Entry

    def cell(self, fold: int) -> str:
        """Return the name of a fold's file."""
        return f"{self.name}-{self.number}-{fold}"


def tune(
    train: Dataset,
    chosen: Chosen,
    names: Sequence[str],
    search: Search,
    out: Path,
    *,
    track: Track[Any] = bars.silent,
) -> dict[str, Any]:
    """Search, and write what was found to the hyper-parameter file ``out``.

    Args:
        train: training records; some are held out to score by.
        chosen: the methods as they are: fields that a method's space does not name stay.
        names: the methods to tune.
        search: how much is tried.
        out: an existing file gets a new entry for the data set; a new one starts as a copy of the
            file that comes with bdpvi. Finished trials are kept in the folder ``out``.trials, and
            the same search with more refinements, repeats or finalists goes on from them.
        track: shows progress.

    Returns:
        The data set's new entry.

    Raises:
        ValueError: if a name is unknown or a method has fewer configurations than are to be tried.
    """
    for name in names:
        if name not in chosen.methods:
            raise ValueError(f"methods must be among {list(chosen.methods)}, got {name!r}")
    if out.exists():
        read(out)  # what cannot be read cannot get an entry
    shuffles = range(search.seed, search.seed + search.repeats)
    splits = [split for seed in shuffles for split in folds(train, search.folds, seed)]
    check_writable(out.parent)
    settings = {
        "train": train.fingerprint(),
        "search": {k: v for k, v in asdict(search).items() if k not in _GOES_ON},
        "spaces": {name: dict(chosen.methods[name].space) for name in names},
    }
    store = Cells(trials_folder(out), settings)
    check = partial(_check_first, names=names, search=search)
    if (
        store.get("first", check) is None
    ):  # kept, for what is found becomes the values to begin with
        store.put("first", {name: _first(chosen, name, search) for name in names})
    trials = [
        Trial(name, number, entry)
        for name, entries in store.get("first", check).items()
        for number, entry in enumerate(entries)
    ]

    def kept(trial: Trial, fold: int) -> Any:
        targets = 1 if chosen.methods[trial.name].guarantee == NONE else len(search.epsilons)
        return store.get(trial.cell(fold), partial(_check_score, targets=targets))

    def run(trial: Trial, fold: int) -> None:
        if kept(trial, fold) is None:
            first = _FIRST_SEED + fold * search.seeds
            seeds = range(first, first + search.seeds)
            found = score(build(trial.name, trial.entry), splits[fold], search, seeds)
            store.put(trial.cell(fold), found)

    def run_all(trials: Iterable[Trial], some: range, shown: str) -> None:
        pieces = [(trial, fold) for trial in trials for fold in some]
        for trial, fold in track([p for p in pieces if kept(*p) is None], shown):
            run(trial, fold)

    def results(name: str, some: range) -> list[tuple[Trial, Result]]:
        mine = (trial for trial in trials if trial.name == name)
        return [(t, _together([kept(t, fold) for fold in some])) for t in mine]

    first, every = range(search.folds), range(len(splits))
    run_all(trials, first, "tune")
    turns = [(name, turn) for name in names for turn in range(search.refinements)]
    for name, _ in track(turns, "refine"):
        better = refinement(chosen.methods[name], results(name, first), search)
        if better is not None:
            trials.append(better)
            for fold in first:
                run(better, fold)
    trials = [trial for name in names for trial in _finalists(results(name, first), search)]
    run_all(trials, every, "repeat")
    best = {
        name: max(results(name, every), key=lambda result: float(result[1]["score"]))
        for name in names
    }
    entry = {
        "chosen": _story(train, chosen, search, best),
        "methods": {
            **{name: describe(method) for name, method in chosen.methods.items()},
            **{name: trial.entry for name, (trial, _) in best.items()},
        },
        "at": {
            **{name: _entries(values) for name, values in chosen.at.items()},
            **{
                name: _best_at(results(name, every), search.epsilons)
                for name in names
                if chosen.methods[name].guarantee != NONE
            },
        },
    }
    content = read(out if out.exists() else FILE)  # anew: others may have written to it
    content[train.name] = entry
    with replacing(out) as temporary:
        temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return entry


def trials_folder(out: Path) -> Path:
    """Return where the finished trials of a search for the file ``out`` are kept."""
    return out.with_name(f"{out.name}.trials")


def configurations(method: Method, search: Search, at: Iterable[Method] = ()) -> list[Entry]:
    """Return what is tried first: the method as it is, and distinct points of its space at random.

    Args:
        method: with the hyper-parameters that it has for all targets.
        search: how many there are to be, and the seed.
        at: the method as it is for particular targets, which is tried before the random points.

    >>> from bdpvi.compare.methods import DPGD
    >>> first, second = configurations(DPGD(), Search(configurations=2))
    >>> first["steps"] == DPGD().steps, second["steps"] in DPGD.space["steps"]
    (True, True)
    """
    points = math.prod(len(values) for values in method.space.values())
    order = random.Random(f"{search.seed} {method.name}").sample(
        range(points), min(points, search.configurations)
    )
    now: list[Entry] = []
    for entry in map(describe, (method, *at)):
        if entry not in now:
            now.append(entry)
    others = [entry for entry in (_point(method, number) for number in order) if entry not in now]
    entries = [*now, *others][: search.configurations]
    if len(entries) < search.configurations:
        raise ValueError(
            f"configurations={search.configurations} is more than the {len(entries)} that "
            f"{method.name} has"
        )
    return entries


def _first(chosen: Chosen, name: str, search: Search) -> list[Entry]:
    return configurations(chosen.methods[name], search, chosen.at.get(name, {}).values())


def _check_first(found: Any, names: Sequence[str], search: Search) -> None:
    """Raise ValueError unless these are so many configurations of every method."""
    if not isinstance(found, dict) or found.keys() != set(names):
        raise ValueError(f"it must have the methods {sorted(names)}")
    for name, entries in found.items():
        if not isinstance(entries, list) or len(entries) != search.configurations:
            raise ValueError(f"{name} must have {search.configurations} configurations")
        for entry in entries:
            build(name, entry)


def _check_score(found: Any, targets: int) -> None:
    """Raise ValueError unless this is what :func:`score` returns for so many targets."""
    if not isinstance(found, dict) or found.keys() != {
        "score",
        "accuracies",
        "reached",
        "reliable",
    }:
        raise ValueError("it must have score, accuracies, reached and reliable")
    accuracies = found["accuracies"]
    if not isinstance(accuracies, list) or len(accuracies) != targets:
        raise ValueError(f"accuracies must have {targets} entries, got {accuracies!r}")
    for value in (found["score"], *accuracies):
        if type(value) not in (int, float) or not 0 <= value <= 1:
            raise ValueError(f"accuracies must lie in [0, 1], got {value!r}")
    for name in ("reached", "reliable"):
        if type(found[name]) is not int or not 0 <= found[name] <= targets:
            raise ValueError(f"{name} must be a whole number up to {targets}, got {found[name]!r}")


def refinement(
    method: Method, tried: Sequence[tuple[Trial, Result]], search: Search
) -> Trial | None:
    """Return what to try next: a step away from the best at one target, each target in turn.

    None if all that lies a step away from a best one was tried. Of several steps the one is taken
    that gained most where it was made from others, on average; one that was never made counts as
    no gain. Which of equal ones is random, and depends on the search's seed and on how much was
    tried.

    Args:
        method: of which ``tried`` are configurations.
        tried: at least one.
        search: with its seed.

    >>> from bdpvi.compare.methods import DPGD
    >>> search = Search(configurations=1)
    >>> (entry,) = configurations(DPGD(), search)
    >>> found = refinement(DPGD(), [(Trial("dp-gd", 0, entry), {"accuracies": [0.7]})], search)
    >>> found.name, found.number, found.entry != entry
    ('dp-gd', 1, True)
    """
    known, targets = {_key(trial.entry) for trial, _ in tried}, len(tried[0][1]["accuracies"])
    for turn in range(len(tried), len(tried) + targets):
        index = turn % targets
        reached = [(trial.entry, float(result["accuracies"][index])) for trial, result in tried]
        best, _ = max(reached, key=lambda one: one[1])
        steps = {step: _stepped(best, step) for step in _steps(method, best)}
        gains = {
            step: _gain(reached, _value(best, step[0]), step)
            for step, entry in steps.items()
            if _key(entry) not in known
        }
        if gains:
            most = [step for step, gain in gains.items() if gain == max(gains.values())]
            chance = random.Random(f"{search.seed} {method.name} {len(tried)}")
            return Trial(method.name, len(tried), steps[chance.choice(most)])
    return None


Step = tuple[str, Any]
"""A field's dotted path, and its new value."""


def _steps(method: Method, entry: Entry) -> Iterator[Step]:
    """Iterate over what moves one field by one place along its values."""
    for path, values in method.space.items():
        for value in _beside(values, _value(entry, path)):
            yield path, value


def _stepped(entry: Entry, step: Step) -> Entry:
    """Return a configuration after a step."""
    path, value = step
    moved = copy.deepcopy(dict(entry))
    _inner(moved, path)[_last(path)] = value
    return moved


def _gain(reached: Sequence[tuple[Entry, float]], old: Any, step: Step) -> float:
    """Return the mean gain of a step from ``old`` where it was made, either way; 0 if nowhere."""
    found = {_key(entry): accuracy for entry, accuracy in reached}
    gains = [
        found[after] - accuracy
        for entry, accuracy in reached
        if _value(entry, step[0]) == old and (after := _key(_stepped(entry, step))) in found
    ]
    return fmean(gains) if gains else 0.0


def _key(entry: Entry) -> str:
    return json.dumps(entry, sort_keys=True)


def _beside(values: Sequence[Any], now: Any) -> Sequence[Any]:
    """Return the values before and after one; for a number that is not there, the nearest two.

    >>> _beside((1, 2, 3), 3), _beside((0.1, 0.4, 1.0), 0.5), _beside((None, 2.0, 1.0), 3.0)
    ((2,), (0.4, 1.0), (2.0,))
    """
    if now in values:
        at = values.index(now)
        return (*values[max(at - 1, 0) : at], *values[at + 1 : at + 2])
    if now is None:
        return ()
    numbers = [value for value in values if value is not None]
    below = [value for value in numbers if value < now]
    above = [value for value in numbers if value > now]
    return (*sorted(below)[-1:], *sorted(above)[:1])


def score(method: Method, split: Split, search: Search, seeds: Sequence[int]) -> dict[str, Any]:
    """Return a configuration's mean accuracy on held-out rows, and how often it could be had.

    A target that cannot be reached, or at which ε is not reliable, or a training that diverges,
    scores what releasing nothing does: always the commoner class of the training records.
    """
    targets = [math.inf] if method.guarantee == NONE else search.epsilons
    share = float(split.test.y.double().mean())
    nothing = share if float(split.train.y.double().mean()) > 0.5 else 1 - share
    attempts = _attempts(method, split, search.delta, targets, seeds)
    found = [nothing if accuracy is None else accuracy for accuracy, _ in attempts]
    return {
        "score": fmean(found),
        "accuracies": found,
        "reached": sum(accuracy is not None for accuracy, _ in attempts),
        "reliable": sum(reliable for _, reliable in attempts),
    }


def _together(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the folds' result: mean accuracies, and how often a target could be had in all."""
    columns = zip(*(part["accuracies"] for part in parts), strict=True)
    return {
        "score": fmean(part["score"] for part in parts),
        "accuracies": [fmean(column) for column in columns],
        "reached": sum(part["reached"] for part in parts),
        "reliable": sum(part["reliable"] for part in parts),
    }


def _attempts(
    method: Method, split: Split, delta: float, targets: Sequence[float], seeds: Sequence[int]
) -> list[tuple[float | None, bool]]:
    """Return accuracy, None if it cannot be had or trusted, and if ε is reliable, per target."""
    try:
        prepared = method.prepare(split.train, delta)
    except FloatingPointError:
        return [(None, False)] * len(targets)
    settings = [_calibrated(prepared, epsilon) for epsilon in targets]
    found = [setting for setting in settings if setting is not None]
    try:  # side by side, which is quicker
        groups = iter(_outcomes(prepared, found, seeds) if found else [])
    except FloatingPointError:
        groups = iter([_alone(prepared, setting, seeds) for setting in found])
    results: list[tuple[float | None, bool]] = []
    for setting in settings:
        outcomes = [] if setting is None else next(groups)
        reliable = all(getattr(outcome.price, "reliable", True) for outcome in outcomes)
        if outcomes and reliable:
            accuracy = fmean(measure(method, outcome, split).accuracy for outcome in outcomes)
            results.append((accuracy, True))
        else:
            results.append((None, False))
    return results


def _calibrated(prepared: Prepared, epsilon: float) -> float | None:
    try:
        return prepared.calibrate(epsilon)
    except ValueError:
        return None


def _outcomes(
    prepared: Prepared, settings: Sequence[float], seeds: Sequence[int]
) -> list[list[Outcome]]:
    """Return the outcomes at every setting, for all seeds each."""
    pairs = [(setting, seed) for setting in settings for seed in seeds]
    flat = prepared.outcomes([setting for setting, _ in pairs], [seed for _, seed in pairs])
    return [flat[i : i + len(seeds)] for i in range(0, len(flat), len(seeds))]


def _alone(prepared: Prepared, setting: float, seeds: Sequence[int]) -> list[Outcome]:
    """Return the outcomes at one setting, none if the training diverges."""
    try:
        return prepared.outcomes([setting] * len(seeds), seeds)
    except FloatingPointError:
        return []


def _finalists(results: Sequence[tuple[Trial, Result]], search: Search) -> list[Trial]:
    """Return the trials that are among the best at a target, or on average over all."""
    scores = [(*result["accuracies"], result["score"]) for _, result in results]
    best: set[int] = set()
    for column in zip(*scores, strict=True):
        best.update(sorted(range(len(column)), key=lambda i: -column[i])[: search.finalists])
    return [results[i][0] for i in sorted(best)]


def _best_at(
    results: Sequence[tuple[Trial, Mapping[str, Any]]], epsilons: Sequence[float]
) -> dict[str, Entry]:
    """Return the configuration that is best at each target; the earlier one if several are."""
    best = {}
    for index, epsilon in enumerate(epsilons):
        trial, _ = max(results, key=lambda result: float(result[1]["accuracies"][index]))
        best[f"{epsilon:g}"] = trial.entry
    return best


def _entries(values: Mapping[float, Method]) -> dict[str, Entry]:
    return {f"{epsilon:g}": describe(method) for epsilon, method in values.items()}


def _point(method: Method, number: int) -> Entry:
    """Return the hyper-parameters at a position of the space, counted in mixed radix."""
    entry = describe(method)
    for path, values in method.space.items():
        number, index = divmod(number, len(values))
        _inner(entry, path)[_last(path)] = values[index]
    return entry


def _inner(entry: Any, path: str) -> Any:
    """Return what holds the field at a dotted path."""
    for name in path.split(".")[:-1]:
        entry = entry[name]
    return entry


def _value(entry: Any, path: str) -> Any:
    """Return the field at a dotted path."""
    return _inner(entry, path)[_last(path)]


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def _story(
    train: Dataset,
    chosen: Chosen,
    search: Search,
    best: Mapping[str, tuple[Trial, Result]],
) -> dict[str, Any]:
    """Return how the values were found, for people who read the file."""
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
            "so far, the same number of configurations for every tuned method, by mean accuracy in "
            f"{search.folds}-fold cross-validation on the {len(train)} training rows{again}: the "
            "best at each target, and the best on average for other targets. A target that cannot "
            "be reached, or at which ε is not reliable, scores like always predicting the commoner "
            "class. No test row was used."
        ),
        "configurations": search.configurations,
        "refinements": search.refinements,
        "epsilons": list(search.epsilons),
        "delta": search.delta,
        "seeds": search.seeds,
        "seed": search.seed,
        "folds": search.folds,
        "repeats": search.repeats,
        **({"finalists": search.finalists} if search.repeats > 1 else {}),
        "grid": {name: dict(chosen.methods[name].space) for name in best},
        "result": {name: result for name, (_, result) in best.items()},
        **({"not tuned": {"methods": rest, **chosen.how}} if rest else {}),
    }
