"""Configurations of a hyper-parameter search, and its finished trials."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations, product
from operator import getitem
from statistics import fmean
from typing import Any

from bdpvi._ground.checkpoint import Checkpoint
from bdpvi.bench.hyperparameters import Entry, build, describe
from bdpvi.bench.methods import Method


@dataclass(frozen=True)
class Trial:
    """A configuration of a method, and its scores.

    Attributes:
        entry: the hyper-parameters, see :func:`bdpvi.bench.hyperparameters.describe`.
        scores: mean objective on held-out records at each target ε; higher is better.
    """

    entry: Entry
    scores: Sequence[float]

    @property
    def score(self) -> float:
        """Return the mean over all targets."""
        return fmean(self.scores)


class Study:
    """The finished trials of one method in one cross-validation, each a part of a checkpoint.

    Args:
        kept: the checkpoint.
        name: the study's name.
        method: the method to tune.
        targets: number of scores of each trial.

    Raises:
        ValueError: if a part is no trial of this kind.

    >>> import tempfile
    >>> from bdpvi.bench.methods.dp_gd import DPGD
    >>> kept = Checkpoint(tempfile.mkdtemp() + "/trials", {})
    >>> Study(kept, "dp-gd", DPGD(), 2).add(Trial(describe(DPGD()), [0.5, 0.75]))
    >>> Study(kept, "dp-gd", DPGD(), 2).trials[0].score
    0.625
    """

    def __init__(self, kept: Checkpoint, name: str, method: Method, targets: int) -> None:
        self.kept, self.name, self.trials = kept, name, list[Trial]()
        while (part := kept.get(f"{name}-{len(self.trials)}")) is not None:
            trial = Trial(describe(build(method.name, part["entry"])), part["scores"])
            if len(trial.scores) != targets:
                raise ValueError(f"a trial of {name} must have {targets} scores")
            self.trials.append(trial)

    def add(self, trial: Trial) -> None:
        """Store a finished trial."""
        self.kept.write_part(f"{self.name}-{len(self.trials)}", vars(trial))
        self.trials.append(trial)


def value_at(entry: Entry, path: str) -> Any:
    """Return the field at a dotted path.

    >>> value_at({"model": {"clip": 1.0}}, "model.clip")
    1.0
    """
    return reduce(getitem, path.split("."), entry)


def replaced(entry: Entry, changes: Mapping[str, Any]) -> Entry:
    """Return a configuration with other values at these dotted paths.

    >>> replaced({"model": {"clip": 1.0}, "steps": 5}, {"model.clip": 0.5})
    {'model': {'clip': 0.5}, 'steps': 5}
    """
    new = copy.deepcopy(dict(entry))
    for path, value in changes.items():
        inner, _, last = path.rpartition(".")
        (value_at(new, inner) if inner else new)[last] = value
    return new


def configurations(
    method: Method, count: int, seed: int = 0, at: Iterable[Method] = ()
) -> list[Entry]:
    """Return the first configurations: the current method, and distinct random points.

    Args:
        method: the method, with its hyper-parameters for all targets.
        count: number of configurations.
        seed: seed of the random points.
        at: current methods for particular targets, tried before the random points.

    >>> from bdpvi.bench.methods.dp_gd import DPGD
    >>> first, second = configurations(DPGD(), 2)
    >>> first["steps"] == DPGD().steps, second["steps"] in DPGD.space["steps"]
    (True, True)
    """
    points = math.prod(len(values) for values in method.space.values())
    if count > points:
        raise ValueError(f"configurations={count} is more than the {points} that {method.name} has")
    chance = random.Random(f"{seed} {method.name}")
    entries: list[Entry] = []
    now: Iterator[Entry] = map(describe, (method, *at))
    for _ in range(1_000 * count):  # skip repeated and invalid points
        if len(entries) == count:
            return entries
        entry = next(now, None)
        if entry is None:
            drawn = {path: chance.choice(values) for path, values in method.space.items()}
            entry = _rebuild(method, replaced(describe(method), drawn))
        if entry is not None and entry not in entries:
            entries.append(entry)
    raise ValueError(
        f"configurations={count} is more than {method.name} has of its {points}: take fewer"
    )


def _rebuild(method: Method, entry: Entry) -> Entry | None:
    """Return a configuration as read back from its method, None if it is invalid.

    >>> from bdpvi.bench.methods.dp_gd import DPGD
    >>> entry = describe(DPGD())
    >>> _rebuild(DPGD(), replaced(entry, {"tail": 2.0})) is None
    True
    >>> _rebuild(DPGD(), replaced(entry, {"tail": entry["tail"]})) == entry
    True
    """
    try:
        return describe(build(method.name, entry))
    except ValueError:
        return None


def refinement(method: Method, tried: Sequence[Trial], seed: int = 0) -> Entry | None:
    """Return a configuration one step away from the best at one target, each target in turn.

    The step is chosen at random. If all configurations one step away from the best were tried, it
    is two steps away, which can leave a ridge: clip and prior scale, for example, interact. None if
    all of these were tried too.

    Args:
        method: the method to tune.
        tried: its finished trials, at least one.
        seed: seed of the choice, which also depends on the number of trials.

    >>> from bdpvi.bench.methods.dp_gd import DPGD
    >>> (entry,) = configurations(DPGD(), 1)
    >>> refinement(DPGD(), [Trial(entry, [0.7])]) != entry
    True
    """
    known, targets = [trial.entry for trial in tried], len(tried[0].scores)
    for reach in (1, 2):
        for turn in range(len(tried), len(tried) + targets):
            best = max(tried, key=lambda trial: trial.scores[turn % targets])
            beside = (_rebuild(method, e) for e in _steps(method, best.entry, reach))
            steps = [e for e in beside if e is not None and e not in known]
            if steps:
                return random.Random(f"{seed} {method.name} {len(tried)}").choice(steps)
    return None


def _steps(method: Method, entry: Entry, reach: int) -> Iterator[Entry]:
    """Iterate over configurations with ``reach`` fields moved to a neighbouring value.

    >>> from bdpvi.bench.methods.dp_gd import DPGD
    >>> [len(list(_steps(DPGD(), describe(DPGD()), reach))) for reach in (1, 2)]
    [11, 52]
    """
    for paths in combinations(method.space, reach):
        beside = [_beside(method.space[path], value_at(entry, path)) for path in paths]
        for values in product(*beside):
            yield replaced(entry, dict(zip(paths, values, strict=True)))


def _beside(values: Sequence[Any], now: Any) -> Sequence[Any]:
    """Return the values before and after one; for a number that is not among them, the nearest two.

    >>> _beside((1, 2, 3), 3), _beside((0.1, 0.4, 1.0), 0.5), _beside((None, 2.0, 1.0), 3.0)
    ((2,), (0.4, 1.0), (2.0,))
    """
    if now in values:
        index = values.index(now)
        return (*values[max(index - 1, 0) : index], *values[index + 1 : index + 2])
    if now is None:
        return ()
    numbers = [value for value in values if value is not None]
    below = [value for value in numbers if value < now]
    above = [value for value in numbers if value > now]
    return (*sorted(below)[-1:], *sorted(above)[:1])
