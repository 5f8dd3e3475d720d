"""Configurations of a hyper-parameter search, and its finished trials in an Optuna journal.

A search can resume from the journal file, and Optuna's own tools can show it.
"""

from __future__ import annotations

import copy
import math
import random
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from itertools import combinations, product
from operator import getitem
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from bdpvi.bench.hyperparameters import Entry, build, describe
from bdpvi.bench.methods import Method

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


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
    """The finished trials of one method: an Optuna study of :attr:`Trial.score`.

    Args:
        file: the journal of all studies of a search; only its owner may read it.
        name: the study's name.
        method: the method to tune.
        targets: number of scores of each trial.

    Raises:
        ValueError: if the file is not a journal of this kind.

    >>> import tempfile
    >>> from bdpvi.bench.methods.dp_gd import DPGD
    >>> file = Path(tempfile.mkdtemp()) / "journal.log"
    >>> Study(file, "dp-gd", DPGD(), 2).add(Trial(describe(DPGD()), [0.5, 0.75]))
    >>> Study(file, "dp-gd", DPGD(), 2).trials()[0].score
    0.625
    """

    def __init__(self, file: Path, name: str, method: Method, targets: int) -> None:
        import optuna
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.file, self.method, self.targets = file, method, targets
        file.touch(mode=0o600)
        content = file.read_bytes()
        if not content.endswith(b"\n"):  # the machine stopped while a trial was written
            file.write_bytes(content[: content.rfind(b"\n") + 1])
        with self._named():
            self._study = optuna.create_study(
                storage=optuna.storages.JournalStorage(JournalFileBackend(str(file))),
                study_name=name,
                direction="maximize",
                load_if_exists=True,
            )

    def trials(self) -> list[Trial]:
        """Return all finished trials, in the order in which they were added.

        Raises:
            ValueError: if one cannot have been added here.
        """
        with self._named():
            return [self._read(one.user_attrs) for one in self._study.trials]

    def add(self, trial: Trial) -> None:
        """Store a finished trial; only values in the method's space become parameters."""
        from optuna.trial import create_trial

        space, entry = distributions(self.method), trial.entry
        named = {p: v for p in space if (v := value_at(entry, p)) in self.method.space[p]}
        finished = create_trial(
            params=named,
            distributions={path: space[path] for path in named},
            value=trial.score,
            user_attrs=dict(vars(trial)),
        )
        with self._named():
            self._study.add_trial(finished)

    def _read(self, attributes: Mapping[str, Any]) -> Trial:
        entry = describe(build(self.method.name, attributes["entry"]))
        trial = Trial(entry, [float(one) for one in attributes["scores"]])
        if len(trial.scores) != self.targets or not math.isfinite(trial.score):
            raise ValueError(f"a trial must have {self.targets} finite scores")
        return trial

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the file in any error that its content causes, in Optuna or here."""
        try:
            yield
        except OSError:
            raise
        except Exception as error:
            raise ValueError(
                f"{self.file} is no journal of trials: {error!r}; delete it"
            ) from error


def distributions(method: Method) -> dict[str, BaseDistribution]:
    """Return the method's space in Optuna's terms."""
    from optuna.distributions import CategoricalDistribution

    return {path: CategoricalDistribution(values) for path, values in method.space.items()}


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
    import optuna

    points = math.prod(len(values) for values in method.space.values())
    if count > points:
        raise ValueError(f"configurations={count} is more than the {points} that {method.name} has")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.RandomSampler(seed=zlib.crc32(f"{seed} {method.name}".encode()))
    drawn, space = optuna.create_study(sampler=sampler), distributions(method)
    entries: list[Entry] = []
    now = map(describe, (method, *at))
    for _ in range(1_000 * count):  # skip repeated and invalid points
        if len(entries) == count:
            return entries
        entry = next(now, None) or _built(
            method, replaced(describe(method), drawn.ask(space).params)
        )
        if entry is not None and entry not in entries:
            entries.append(entry)
    raise ValueError(
        f"configurations={count} is more than {method.name} has of its {points}: take fewer"
    )


def _built(method: Method, entry: Entry) -> Entry | None:
    """Return a configuration as read back from its method, None if it is invalid.

    >>> from bdpvi.bench.methods.posterior import FullRankRelease as FullRank
    >>> path, entry = "model.correlation", describe(FullRank())
    >>> _built(FullRank(), replaced(entry, {path: 0.5})) is None  # no prior follows from the width
    True
    >>> _built(FullRank(), replaced(entry, {"model.limit": None})) == entry
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
            beside = (_built(method, e) for e in _steps(method, best.entry, reach))
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
