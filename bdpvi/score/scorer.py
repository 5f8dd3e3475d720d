"""A release's file, and its predictions for rows as dictionaries."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from typing import Any, overload

import numpy as np

from .blocks import blocks_of
from .columns import columns_of
from .laws import Floats, law_of

FORMAT = 5
"""Format of a release's file."""
MOST_BYTES = 2**27
_AT_ONCE = 1024
_OTHERS = (
    ({"schema", "single"}, "the file of a synthetic table: read it with bdpvi synthesize"),
    ({"columns", "receipt"}, "a description of a table, which predicts nothing"),
    ({"kind", "sequence"}, "an account, which predicts nothing"),
)
"""What other files hold, and what they are."""
_GIVE = "give OUT/release.json of bdpvi private, or what bdpvi.save_release wrote"


class Scorer:
    """The predictions of a release; :func:`load` reads one.

    Attributes:
        receipt: the release's guarantee, as in its file.
        columns: the columns that a row must have.
        encoding: how they become features, as in its file.
        law: what features predict.
    """

    def __init__(self, content: Mapping[str, Any], unknown: str = "") -> None:
        encoding, target = (content["preprocessing"].get(one) for one in ("encoding", "target"))
        self.receipt: Mapping[str, Any] = content["receipt"]
        self.encoding: Mapping[str, Any] = encoding
        self._columns = columns_of(encoding, _chosen(unknown, encoding["unknown"]))
        self._blocks = blocks_of(encoding.get("terms", ()), self._columns)
        width = self._blocks[-1].end
        if len(content["feature_names"]) != width:
            raise ValueError(
                f"the encoding has {width} features, feature_names {len(content['feature_names'])}"
            )
        latents = {name: _numbers(name, one) for name, one in content["latents"].items()}
        self.law = law_of(content["model"], latents, target or {}, width)
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lock = Lock()

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns that a row must have."""
        return tuple(one.name for one in self._columns)

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """How many cells of all rows since :func:`load` said nothing, by what and by column.

        ``blank``; ``unfit``, no number or not of the declared type; or ``unlisted level``. As
        secret as the rows.
        """
        result: dict[str, dict[str, int]] = {}
        with self._lock:
            for (what, name), count in self._counts.items():
                result.setdefault(what, {})[name] = count
        return result

    @overload
    def predict(self, rows: Mapping[Any, Any]) -> dict[str, Any]: ...

    @overload
    def predict(self, rows: Iterable[Mapping[Any, Any]]) -> list[dict[str, Any]]: ...

    def predict(
        self, rows: Mapping[Any, Any] | Iterable[Mapping[Any, Any]]
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Return what ``bdpvi predict`` gives for a row, or for each of several.

        Args:
            rows: a dictionary of raw cells by column, None for a blank; or several of them. Other
                columns are ignored.

        Returns:
            For each row a dictionary: ``class``, ``probability`` and ``spread`` of a logistic
            regression; ``class``, a probability of each class and ``spread`` of several classes;
            otherwise ``expected`` and ``spread``, of times with the probability of no event until
            each cut. The spread is the standard deviation over the
            draws, None for one draw. All are None where the exposure is not positive.

        Raises:
            ValueError: if a row, which it names, lacks a column or has a cell that is refused;
                nothing is counted then.
        """
        if isinstance(rows, Mapping):
            return self._predicted([rows])[0]
        return self._predicted(list(rows))

    def to_sql(self, table: str, *, ids: Sequence[str] = (), dialect: str = "standard") -> str:
        """Return a SELECT that computes the predictions, without their spread, in a database.

        Numbers must lie in a column of numbers, where other text is the database's error; levels
        may be text, numbers or Booleans; days are of type DATE. NULL is a blank. A row with a cell
        that :meth:`predict` refuses has NULL.

        Args:
            table: the table; dots separate its schema.
            ids: columns that the result begins with.
            dialect: ``"standard"``, for PostgreSQL and DuckDB; or ``"sqlite"``, with dates as text
                such as 1970-01-31.

        Raises:
            ValueError: if an argument is invalid, or a column cannot be computed there.
        """
        from .sql import select_of

        return select_of(self._blocks, self._columns, self.law, table, ids, dialect)

    def _predicted(self, rows: Sequence[Mapping[Any, Any]]) -> list[dict[str, Any]]:
        found: Counter[tuple[str, str]] = Counter()
        made: list[dict[str, Any]] = []
        for start in range(0, len(rows), _AT_ONCE):
            part = rows[start : start + _AT_ONCE]
            x = np.zeros((len(part), self._columns[-1].end))
            for at, row in enumerate(part):
                try:
                    found.update(self._filled(x[at], row))
                except ValueError as error:
                    raise ValueError(f"row {start + at}, from 0: {error}") from None
            made += self._results(np.hstack([one.values(x) for one in self._blocks]))
        with self._lock:
            self._counts.update(found)
        return made

    def _filled(self, x: Floats, row: Mapping[Any, Any]) -> list[tuple[str, str]]:
        """Fill a row of features; return what is unclear, with its column."""
        if not isinstance(row, Mapping):
            raise ValueError(f"it must be a dictionary of cells by column, got {row!r:.80}")
        odd = []
        for one in self._columns:
            if one.name in row:
                what = one.fill(x, row[one.name])
            elif one.unknown == "base":
                what = "blank"
            else:
                raise ValueError(f"it has no column {one.name!r}; give None for a blank")
            if what:
                odd.append((what, one.name))
        return odd

    def _results(self, x: Floats) -> list[dict[str, Any]]:
        each = {name: one.tolist() for name, one in self.law.predictions(x).items()}
        rows = zip(*each.values(), strict=True)
        return [
            {name: one if one == one else None for name, one in zip(each, row, strict=True)}
            for row in rows
        ]


def load(path: str | os.PathLike[str], *, unknown: str = "") -> Scorer:
    """Read the file of a release, which is not trusted.

    Args:
        path: ``OUT/release.json`` of ``bdpvi private``, or what :func:`bdpvi.save_release` wrote.
        unknown: ``"refuse"`` or ``"base"``, which makes the features of an unlisted level or a
            blank 0, for releases whose encoding has a choice; by default that of the release.

    Raises:
        ValueError: if it is no release of a table's rows, saying what it is and what to do.
    """
    try:
        return Scorer(_content(path), unknown)
    except (OSError, ValueError) as error:
        raise ValueError(f"{os.fspath(path)} gives no predictions: {error}") from error
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(
            f"{os.fspath(path)} gives no predictions: an entry is missing or wrong "
            f"({error!r:.80}); {_GIVE}"
        ) from error


def _content(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the content of a release's file, or say what it is."""
    if os.path.isdir(path):
        raise ValueError("it is a folder; give the release.json in it")
    with open(path, "rb") as file:
        read = file.read(MOST_BYTES + 1)
    if len(read) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
    try:
        content = json.loads(read, parse_constant=_no_json)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON ({error!s:.80}); {_GIVE}") from None
    keys = content.keys() if isinstance(content, dict) else set()
    if "latents" not in keys:
        what = next((words for some, words in _OTHERS if some <= keys), f"no release; {_GIVE}")
        raise ValueError(f"it is {what}")
    if content["format"] != FORMAT:
        raise ValueError(
            f"its format is {content['format']!r} and not {FORMAT}: another version of bdpvi made "
            "it; copy the folder bdpvi/score of that version, or release again"
        )
    if content["model"] is None:
        raise ValueError(
            "it is a release of your own Pyro model, which the file does not contain; predict with "
            "bdpvi.load_release(path, model=...)"
        )
    if not (content["preprocessing"] or {}).get("encoding"):
        raise ValueError(
            "it is a release of features and does not say how a table becomes them; predict with "
            "bdpvi.load_release(path).predict_mean(x)"
        )
    if (content.get("guide") or {}).get("features"):
        raise ValueError("it was trained on whole numbers; predict with bdpvi.load_release(path)")
    return content  # type: ignore[no-any-return]


def _chosen(unknown: str, written: str) -> str:
    """Return how unlisted levels are treated."""
    if written not in ("refuse", "base", "other"):
        raise ValueError(f"the encoding's unknown={written!r} is of a later version")
    if unknown not in ("", "refuse", "base"):
        raise ValueError(f"unknown={unknown!r} must be 'refuse' or 'base'")
    if unknown and written == "other":
        raise ValueError(
            f"unknown={unknown!r}: the release has other features for blanks and levels that are "
            "not listed; leave it out"
        )
    return unknown or written


def _numbers(name: str, given: object) -> Floats:
    made = np.array(given, dtype=np.float64)
    if not np.isfinite(made).all():
        raise ValueError(f"latents.{name} must be finite")
    return made


def _no_json(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
