"""A SELECT that computes a release's predictions in a database.

Cells become numbers and indices of levels, those become features, and a subquery over the draws,
which are written as VALUES, averages the expected target. What databases write differently is in
:data:`DIALECTS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from .columns import FARTHEST, LevelColumn, NumberColumn, RowColumn
from .laws import (
    REACH,
    ClassLaw,
    CountLaw,
    Floats,
    LinearLaw,
    LogisticLaw,
    OrdinalLaw,
    PoissonLaw,
    ScoreLaw,
    SurvivalLaw,
)
from .reading import ANY, BLANK, BOOLEAN, NAMES, UNFIT, WORDS
from .spelling import BLANKS

_LARGEST = 700.0
"""Exponents are clipped at ± this: databases refuse larger ones."""
_BLANK, _UNLISTED = -1, -2
"""What stands for a blank and for an unlisted level among indices of levels."""


class Dialect(NamedTuple):
    """What databases write differently.

    Attributes:
        text: the type of text.
        number: the number that a column, {0}, holds; {1} says whether its text is a blank.
        days: the number of days from the day {1} to a column, {0}.
        iso: whether days must be written as 1970-01-31.
    """

    text: str
    number: str
    days: str
    iso: bool


DIALECTS = {
    "standard": Dialect("VARCHAR", "{0}", "(0e0 + (CAST({0} AS DATE) - DATE '{1}'))", False),
    "sqlite": Dialect(
        "TEXT",
        # A text that is no number is an error, as it is elsewhere, and not 0.
        "CASE WHEN typeof({0}) <> 'text' THEN {0} WHEN {1} THEN NULL"
        " ELSE json_extract({0}, '$') END",
        "CASE WHEN typeof({0}) = 'text' THEN julianday(date({0})) - julianday('{1}') END",
        True,
    ),
}


def select_of(
    columns: Sequence[RowColumn],
    law: ScoreLaw,
    labels: Sequence[str],
    table: str,
    ids: Sequence[str],
    dialect: str,
) -> str:
    """Return the SELECT; see :meth:`.scorer.Scorer.to_sql`.

    Args:
        columns: the columns of the release.
        law: its likelihood, with the draws.
        labels: of its classes.
        table, ids, dialect: as there.

    Raises:
        ValueError: as there.
    """
    if dialect not in DIALECTS:
        raise ValueError(f"dialect={dialect!r} must be one of {sorted(DIALECTS)}")
    _check_groups(columns, law)
    means = _means(law)
    results = [f"probability of {one}" for one in labels]
    if len(means) == 1:
        results = ["probability" if labels else "expected"]
    elif isinstance(law, SurvivalLaw):
        results = ["expected", *law.beside(np.zeros((0, law.weights.shape[1])))]
    kept = [_name(one) for one in ids]
    if both := sorted({*ids} & {"class", *results}):
        raise ValueError(f"ids has {both[0]!r}, which is a column of the predictions too")
    numbered = [*enumerate(columns)]
    cells = [f"{_cell(one, DIALECTS[dialect])} AS c{at}" for at, one in numbered]
    features = [f"{_feature(one, at, law)} AS x{at}" for at, one in numbered]
    predictors = [
        f"{_sum([*(_term(one, at, law, k) for at, one in numbered), f'd.b{k}'])} AS e{k}"
        for k in range(_predictors(law))
    ]
    names, draws = _draws(law)
    over = f"(SELECT {', '.join([*predictors, 'd.*'])} FROM bdpvi_draws AS d) AS l"
    scores = [
        f"(SELECT AVG({mean}) FROM {over}) AS {_name(name)}"
        for mean, name in zip(means, results, strict=True)
    ]
    final = [*_class(results, labels), *(f"s.{_name(one)}" for one in results)]
    place = ".".join(map(_name, table.split(".")))
    return "\n".join(
        [
            f"WITH bdpvi_draws({', '.join(names)}) AS (VALUES",
            ",\n".join(f"  ({', '.join(map(_number, row))})" for row in draws.tolist()),
            _stage("bdpvi_cells", "t", kept, cells, place),
            _stage("bdpvi_features", "c", kept, features, "bdpvi_cells"),
            _stage("bdpvi_scores", "f", kept, scores, "bdpvi_features"),
            f")\nSELECT {', '.join([*(f's.{one}' for one in kept), *final])}",
            "FROM bdpvi_scores AS s\n",
        ]
    )


def _stage(name: str, source: str, kept: Sequence[str], made: Sequence[str], table: str) -> str:
    each = ",\n    ".join([*(f"{source}.{one}" for one in kept), *made])
    return f"), {name} AS (\n  SELECT\n    {each}\n  FROM {table} AS {source}"


def _check_groups(columns: Sequence[RowColumn], law: ScoreLaw) -> None:
    """Raise ValueError unless features that are scaled together are the levels of one column."""
    levels = [{*range(one.start, one.end)} for one in columns if one.named]
    for group in law.groups:
        if not any({*group} <= one for one in levels):
            raise ValueError("to_sql: features of several columns are scaled together; use predict")


def _cell(column: RowColumn, way: Dialect) -> str:
    """Return a column's number, NULL for a blank, or the index of its level."""
    at, kind = f"t.{_name(column.name)}", column.read_by.kind
    if isinstance(column, LevelColumn):
        return _level(column, f"TRIM(CAST({at} AS {way.text}))")
    if not isinstance(column, NumberColumn) or kind not in ("number", "integer", "date", ANY):
        what = f"of kind {kind}" if column.number else "hashed"
        raise ValueError(f"to_sql: column {column.name!r} is {what}; use predict")
    if kind == "date":
        if way.iso and column.read_by.date_format:
            raise ValueError(
                f"to_sql: column {column.name!r} has the date format "
                f"{column.read_by.date_format!r}, which this dialect does not read; use predict"
            )
        return way.days.format(at, column.read_by.since)
    number = f"(0e0 + {way.number.format(at, _blank(column, f'TRIM({at})'))})"
    rules = [f"{number} - {number} = 0e0"]  # neither infinite nor undefined
    if column.read_by.codes:
        rules.append(f"{number} NOT IN ({', '.join(map(_number, column.read_by.codes))})")
    if kind == "integer":
        rules.append(f"{number} = FLOOR({number})")
    return f"CASE WHEN {' AND '.join(rules)} THEN {number} END"


def _level(column: LevelColumn, text: str) -> str:
    """Return the index of a level by its texts, each of which the column itself reads so."""
    kind = column.read_by.kind
    if kind not in (*NAMES, ANY):
        raise ValueError(f"to_sql: column {column.name!r} has levels of kind {kind}; use predict")

    def found(one: str) -> int:
        _, label, status = column.read_by.of_text(one, column.declared)
        place = None if status in (BLANK, UNFIT) else column.place(label)
        return _UNLISTED if place is None else place

    texts: dict[str, int] = {}
    for at, level in enumerate(column.levels):
        words = [level, *column.read_by.spellings.get(level, ())]
        words += [one for some in WORDS for one in some] if kind == "boolean" else []
        forms = {form for one in words for form in (one, one.lower(), one.upper(), one.title())}
        texts |= {one: at for one in (*forms, f"{level}.0") if found(one) == at}
    for level in BOOLEAN:  # a database's own Booleans, whose text is in lower case
        if level in texts and found(level.lower()) == _UNLISTED:
            texts[level.lower()] = texts[level]
    cases = [
        f"WHEN {text} IN ({_texts(one for one, place in texts.items() if place == at)}) THEN {at}"
        for at in range(len(column.levels))
        if at in texts.values()
    ]
    cases.append(f"WHEN {text} IS NULL OR {_blank(column, text)} THEN {_BLANK}")
    return f"CASE {' '.join(cases)} ELSE {_BLANK if kind == 'boolean' else _UNLISTED} END"


def _blank(column: RowColumn, text: str) -> str:
    """Return the condition that a text is a blank."""
    type = column.read_by
    usual = [one for one in BLANKS if type.blank is None and _is_blank(column, one)]
    codes = [one for code in type.declared_blanks for one in (code, f"{code}.0")]
    codes = [one for one in codes if one and _is_blank(column, one)]
    each = [f"LOWER({text}) IN ({_texts({'', *usual})})"]
    each += [f"{text} IN ({_texts(codes)})"] if codes else []
    return f"({' OR '.join(each)})"


def _is_blank(column: RowColumn, text: str) -> bool:
    return column.read_by.of_text(text, column.declared)[2] == BLANK


def _feature(column: RowColumn, at: int, law: ScoreLaw) -> str:
    """Return a column's standardised number within the limits, or the index of its level."""
    if not isinstance(column, NumberColumn):
        return f"c.c{at}"
    value = f"(c.c{at} - {_number(column.mean)}) / {_number(column.sd)}"
    limit = math.inf if column.start == law.exposure else law.limit
    return _clipped(value, limit if column.unknown != "other" else min(limit, FARTHEST))


def _term(column: RowColumn, at: int, law: ScoreLaw, predictor: int) -> str:
    """Return what a column adds to a predictor; NULL for a cell that is refused."""

    def part(feature: int, value: float = 1.0) -> str:
        """Return a feature's weight times its value within the limit."""
        if feature < 0:
            return "0e0" if column.unknown == "base" else "NULL"
        return f"{_number(min(max(value, -law.limit), law.limit))} * d.w{feature}_{predictor}"

    x, blank = f"f.x{at}", part(column.missing)
    if column.start == law.exposure:
        least = _number(math.exp(-REACH))
        return f"CASE WHEN {x} > {least} THEN LN({x}) WHEN {x} > 0e0 THEN {_number(-REACH)} END"
    if not isinstance(column, LevelColumn):
        value = f"{x} * d.w{column.start}_{predictor}"
        return value if blank == "NULL" else f"CASE WHEN {x} IS NULL THEN {blank} ELSE {value} END"
    values = (next(iter(column.at(place).items())) for place in range(len(column.levels)))
    cases = [f"WHEN {place} THEN {part(*one)}" for place, one in enumerate(values)]
    cases += [f"WHEN {_BLANK} THEN {blank}", f"WHEN {_UNLISTED} THEN {part(column.other)}"]
    return f"CASE {x} {' '.join(cases)} END"


def _predictors(law: ScoreLaw) -> int:
    """Return how many predictors there are."""
    return law.weights.shape[2] if law.weights.ndim == 3 else 1


def _draws(law: ScoreLaw) -> tuple[list[str], Floats]:
    """Return the columns of the table of draws, and its rows."""
    draws, width = law.weights.shape[:2]
    kept = [at for at in range(width) if at != law.exposure]
    each = range(_predictors(law))
    names = [f"w{at}_{k}" for at in kept for k in each] + [f"b{k}" for k in each]
    parts = [law.weights[:, kept].reshape(draws, -1), law.constant.reshape(draws, -1)]
    if isinstance(law, OrdinalLaw):
        cuts, shares = law.cuts
        names += [f"cut{k}" for k in range(cuts.shape[1])]
        names += [f"share{k}" for k in range(1, cuts.shape[1])]
        parts += [cuts, shares]
    elif isinstance(law, SurvivalLaw):
        names += [f"step{j}" for j in range(len(law.cuts))]
        parts.append(law.steps)
    return names, np.concatenate(parts, 1)


def _means(law: ScoreLaw) -> list[str]:
    """Return the expected target, or the probability of each class, by the columns of ``l``."""
    return MEANS[type(law)](law)


def _logistic(law: ScoreLaw) -> list[str]:
    return [_sigmoid("l.e0")]


def _linear(law: ScoreLaw) -> list[str]:
    middle = _number(law.model["middle"])
    return [f"{middle} + ({_clipped(f'(l.e0 - {middle})', law.model['largest'])})"]


def _counts(law: ScoreLaw) -> list[str]:
    """Return the exponential of the predictor, at most the public bound."""
    mean, largest = _exp("l.e0", REACH), float(law.model["largest"])
    return [f"CASE WHEN {mean} > {_number(largest)} THEN {_number(largest)} ELSE {mean} END"]


def _poisson(law: ScoreLaw) -> list[str]:
    if not law.weighs:
        return _counts(law)
    half = float(law.model["largest"]) / 2
    away, half_ = f"(l.e0 - {_number(math.log(half))})", _number(half)
    beyond = f"{half_} * (2e0 - {_exp(f'(0e0 - {away})')})"
    return [f"CASE WHEN {away} > 0e0 THEN {beyond} ELSE {half_} * {_exp(away)} END"]


def _classes(law: ScoreLaw) -> list[str]:
    each = range(_predictors(law))
    return [f"1e0 / {_sum([_exp(f'(l.e{k} - l.e{one})') for k in each])}" for one in each]


def _ordered(law: ScoreLaw) -> list[str]:
    last = int(law.model["classes"]) - 1
    made = []
    for k in range(last + 1):
        factors = [_sigmoid(f"(l.cut{k} - l.e0)")] if k < last else []
        factors += [_sigmoid(f"(l.e0 - l.cut{k - 1})")] if k else []
        factors += [f"l.share{k}"] if 0 < k < last else []
        made.append(" * ".join(factors))
    return made


def _survival(law: ScoreLaw) -> list[str]:
    """Return the mean time until the event or the last cut, and the curve at each cut."""
    assert isinstance(law, SurvivalLaw)
    horizon, parts, curve, until = law.cuts[-1], [], ["1e0"], "0e0"
    for j, share in enumerate(law.shares.tolist()):
        log = f"(l.e0 + l.step{j} + {_number(math.log(horizon))})"
        each = f"({_exp(log, REACH)} * {_number(share)})"
        near = f"1e0 - {each} * (5e-1 - {each} * ({_number(1 / 6)} - {each} * {_number(1 / 24)}))"
        far = f"(1e0 - EXP(0e0 - {each})) / {each}"  # cancels where that is near 0
        mean = f"CASE WHEN {each} < 1e-3 THEN {near} ELSE {far} END"
        parts.append(f"{curve[-1]} * {_number(share * horizon)} * ({mean})")
        until = f"({until} + {each})"
        curve.append(f"EXP(0e0 - {until})")
    return [_sum(parts), *curve[1:]]


MEANS: dict[type[ScoreLaw], Callable[[ScoreLaw], list[str]]] = {
    LogisticLaw: _logistic,
    LinearLaw: _linear,
    CountLaw: _counts,
    PoissonLaw: _poisson,
    ClassLaw: _classes,
    OrdinalLaw: _ordered,
    SurvivalLaw: _survival,
}
"""How each law's expected target is written."""


def _class(results: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Return the likeliest class, the first of several, if there are classes."""
    if not labels:
        return []
    names = [f"s.{_name(one)}" for one in results]
    if len(names) == 1:
        (p,), (no, yes) = names, map(_text, labels)
        return [f'CASE WHEN {p} > 5e-1 THEN {yes} WHEN {p} <= 5e-1 THEN {no} END AS "class"']
    cases = []
    for one, label in zip(names, labels, strict=True):
        most = " AND ".join(f"{one} >= {other}" for other in names if other != one)
        cases.append(f"WHEN {most} THEN {_text(label)}")
    return [f'CASE {" ".join(cases)} END AS "class"']


def _sigmoid(value: str) -> str:
    return f"(1e0 / (1e0 + {_exp(f'(0e0 - {value})')}))"


def _exp(value: str, most: float = _LARGEST) -> str:
    return f"EXP({_clipped(value, most)})"


def _clipped(value: str, most: float) -> str:
    """Return a value within ± a bound."""
    if math.isinf(most):
        return value
    high, low = _number(most), _number(-most)
    return (
        f"CASE WHEN {value} > {high} THEN {high} WHEN {value} < {low} THEN {low} ELSE {value} END"
    )


def _sum(terms: Sequence[str]) -> str:
    """Return a sum whose depth grows with the logarithm of the terms: databases limit it."""
    if len(terms) == 1:
        return terms[0]
    half = len(terms) // 2
    return f"({_sum(terms[:half])} + {_sum(terms[half:])})"


def _number(value: float) -> str:
    """Return a number as a literal in double precision, which one with an exponent is.

    >>> _number(0.1), _number(-1e-7)
    ('0.1e0', '-1e-07')
    """
    text = repr(float(value))
    return text if "e" in text else f"{text}e0"


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _texts(some: Iterable[str]) -> str:
    return ", ".join(map(_text, sorted(some)))
