"""A SELECT that computes a release's predictions in a database.

Cells become numbers and indices of levels, those become features, and a subquery over the draws,
which are written as VALUES, averages the expected target. What databases write differently is in
:data:`DIALECTS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from .bases import BOUND
from .blocks import FeatureBlock
from .columns import FARTHEST, LevelColumn, NumberColumn, RankColumn, RowColumn
from .expressions import (
    MISSING,
    UNLISTED,
    clipped,
    exp,
    literal,
    quoted,
    sigmoid,
    sum_of,
    text_of,
    texts_of,
    values_of,
)
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
    blocks: Sequence[FeatureBlock],
    columns: Sequence[RowColumn],
    law: ScoreLaw,
    table: str,
    ids: Sequence[str],
    dialect: str,
) -> str:
    """Return the SELECT; see :meth:`.scorer.Scorer.to_sql`.

    Args:
        blocks: the features, in the order of the weights.
        columns: the columns of the release.
        law: its likelihood, with the draws.
        table, ids, dialect: as there.

    Raises:
        ValueError: as there.
    """
    if dialect not in DIALECTS:
        raise ValueError(f"dialect={dialect!r} must be one of {sorted(DIALECTS)}")
    means = MEANS[type(law)](law)
    made = law.predictions(np.zeros((0, law.weights.shape[1])))
    results = [one for one in made if one not in ("class", "spread")]
    kept = [quoted(one) for one in ids]
    if both := sorted({*ids} & {"class", *results}):
        raise ValueError(f"ids has {both[0]!r}, which is a column of the predictions too")
    _check_groups(blocks, law)
    places = {one.name: at for at, one in enumerate(columns)}
    cells = [f"{_cell(one, DIALECTS[dialect])} AS c{at}" for at, one in enumerate(columns)]
    features = [f"{_feature(one, at)} AS x{at}" for at, one in enumerate(columns)]
    used = {factor.column.name for one in blocks for factor in one.factors}
    features += [
        f"{_within(columns[places[one]], places[one])} AS z{places[one]}" for one in sorted(used)
    ]
    terms = [value for one in blocks for value in _values(one, places, law)]
    predictors = [
        sum_of([*(_part(one, law, k) for one in blocks), f"d.b{k}"]) + f" AS e{k}"
        for k in range(_predictors(law))
    ]
    names, draws = _draws(law)
    over = f"(SELECT {', '.join([*predictors, 'd.*'])} FROM bdpvi_draws AS d) AS l"
    scores = [
        f"(SELECT AVG({mean}) FROM {over}) AS {quoted(one)}"
        for mean, one in zip(means, results, strict=True)
    ]
    final = [*_class(results, law.labels), *(f"s.{quoted(one)}" for one in results)]
    return "\n".join(
        [
            f"WITH bdpvi_draws({', '.join(names)}) AS (VALUES",
            ",\n".join(f"  ({', '.join(map(literal, row))})" for row in draws.tolist()),
            _stage("bdpvi_cells", kept, cells, ".".join(map(quoted, table.split(".")))),
            _stage("bdpvi_numbers", kept, features, "bdpvi_cells"),
            _stage("bdpvi_features", kept, terms, "bdpvi_numbers"),
            _stage("bdpvi_scores", kept, scores, "bdpvi_features"),
            f")\nSELECT {', '.join([*(f's.{one}' for one in kept), *final])}",
            "FROM bdpvi_scores AS s\n",
        ]
    )


def _stage(made: str, kept: Sequence[str], values: Sequence[str], table: str) -> str:
    """Return a stage that a database does not merge with the next, which names values often."""
    each = ",\n    ".join([*(f"t.{one}" for one in kept), *values])
    return f"), {made} AS MATERIALIZED (\n  SELECT\n    {each}\n  FROM {table} AS t"


def _check_groups(blocks: Sequence[FeatureBlock], law: ScoreLaw) -> None:
    """Raise ValueError unless features that are scaled together are the levels of one column."""
    levels = [{*range(one.start, one.end)} for one in blocks if one.column.named and one.plain]
    for group in law.groups:
        if not any({*group} <= one for one in levels):
            raise ValueError("to_sql: features of several columns are scaled together; use predict")


def _cell(column: RowColumn, way: Dialect) -> str:
    """Return a column's number, NULL for a blank, or the index of its level."""
    at, kind = f"t.{quoted(column.name)}", column.read_by.kind
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
    value = f"(0e0 + {way.number.format(at, _blank(column, f'TRIM({at})'))})"
    rules = [f"{value} - {value} = 0e0"]  # neither infinite nor undefined
    if column.read_by.codes:
        rules.append(f"{value} NOT IN ({', '.join(map(literal, column.read_by.codes))})")
    if kind == "integer":
        rules.append(f"{value} = FLOOR({value})")
    return f"CASE WHEN {' AND '.join(rules)} THEN {value} END"


def _level(column: LevelColumn, text: str) -> str:
    """Return the index of a level by its texts, each of which the column itself reads so."""
    kind = column.read_by.kind
    if kind not in (*NAMES, ANY):
        raise ValueError(f"to_sql: column {column.name!r} has levels of kind {kind}; use predict")

    def found(one: str) -> int:
        _, label, status = column.read_by.of_text(one, column.declared)
        place = None if status in (BLANK, UNFIT) else column.place(label)
        return UNLISTED if place is None else place

    texts: dict[str, int] = {}
    for at, level in enumerate(column.levels):
        words = [level, *column.read_by.spellings.get(level, ())]
        words += [one for some in WORDS for one in some] if kind == "boolean" else []
        forms = {form for one in words for form in (one, one.lower(), one.upper(), one.title())}
        texts |= {one: at for one in (*forms, f"{level}.0") if found(one) == at}
    for level in BOOLEAN:  # a database's own Booleans, whose text is in lower case
        if level in texts and found(level.lower()) == UNLISTED:
            texts[level.lower()] = texts[level]
    cases = [
        f"WHEN {text} IN ({texts_of(one for one, place in texts.items() if place == at)}) THEN {at}"
        for at in range(len(column.levels))
        if at in texts.values()
    ]
    cases.append(f"WHEN {text} IS NULL OR {_blank(column, text)} THEN {MISSING}")
    return f"CASE {' '.join(cases)} ELSE {MISSING if kind == 'boolean' else UNLISTED} END"


def _blank(column: RowColumn, text: str) -> str:
    """Return the condition that a text is a blank."""
    type = column.read_by
    usual = [one for one in BLANKS if type.blank is None and _is_blank(column, one)]
    codes = [one for code in type.declared_blanks for one in (code, f"{code}.0")]
    codes = [one for one in codes if one and _is_blank(column, one)]
    each = [f"LOWER({text}) IN ({texts_of({'', *usual})})"]
    each += [f"{text} IN ({texts_of(codes)})"] if codes else []
    return f"({' OR '.join(each)})"


def _is_blank(column: RowColumn, text: str) -> bool:
    return column.read_by.of_text(text, column.declared)[2] == BLANK


def _feature(column: RowColumn, at: int) -> str:
    """Return a column's standardised number, or the index of its level."""
    if not isinstance(column, NumberColumn):
        return f"t.c{at}"
    value = f"(t.c{at} - {literal(column.mean)}) / {literal(column.sd)}"
    return clipped(value, FARTHEST if column.unknown == "other" else math.inf)


def _within(column: RowColumn, at: int) -> str:
    """Return a number within its bounds, as terms have it: at the mean for a blank."""
    if isinstance(column, RankColumn):
        raise ValueError(f"to_sql: column {column.name!r} is ranks in a term; use predict")
    if not isinstance(column, NumberColumn):
        return "NULL"
    value = _feature(column, at)
    if column.unknown != "refuse" or column.missing >= 0:
        value = f"COALESCE({value}, 0e0)"
    return clipped(value, BOUND)


def _values(block: FeatureBlock, places: Mapping[str, int], law: ScoreLaw) -> list[str]:
    """Return the features of a block, with their names: of levels and signs of blanks the index."""
    if not block.factors:
        x = f"t.x{places[block.column.name]}"
        if block.plain and isinstance(block.column, NumberColumn) and block.start != law.exposure:
            x = clipped(x, law.limit)
        return [f"{x} AS g{block.start}"]
    each = []
    for one in block.factors:
        at = places[one.column.name]
        each.append(values_of(one, f"t.x{at}", f"t.z{at}"))
    less = literal(BOUND ** -max(0, sum(one.counts for one in block.factors) - 1))
    made = (" * ".join(f"({one})" for one in some) for some in product(*each))
    return [
        f"{clipped(f'({one} * {less})', law.limit)} AS g{at}"
        for at, one in enumerate(made, block.start)
    ]


def _part(block: FeatureBlock, law: ScoreLaw, predictor: int) -> str:
    """Return what a block adds to a predictor; NULL for a cell that is refused."""
    column, x = block.column, f"t.g{block.start}"

    def part(feature: int, value: float = 1.0) -> str:
        """Return the weight of a column's feature times its value within the limit."""
        if feature < 0:
            return "0e0" if column.unknown == "base" else "NULL"
        at = block.start + feature - column.start
        return f"{literal(min(max(value, -law.limit), law.limit))} * d.w{at}_{predictor}"

    if block.factors:
        every = range(block.start, block.end)
        return sum_of([f"t.g{at} * d.w{at}_{predictor}" for at in every])
    if block.sign:
        return f"CASE WHEN {x} IS NULL THEN {part(column.start)} ELSE 0e0 END"
    blank = part(column.missing)
    if block.start == law.exposure:
        least = literal(math.exp(-REACH))
        return f"CASE WHEN {x} > {least} THEN LN({x}) WHEN {x} > 0e0 THEN {literal(-REACH)} END"
    if not isinstance(column, LevelColumn):
        value = f"{x} * d.w{block.start}_{predictor}"
        return value if blank == "NULL" else f"CASE WHEN {x} IS NULL THEN {blank} ELSE {value} END"
    values = (next(iter(column.at(place).items())) for place in range(len(column.levels)))
    cases = [f"WHEN {place} THEN {part(*one)}" for place, one in enumerate(values)]
    cases += [f"WHEN {MISSING} THEN {blank}", f"WHEN {UNLISTED} THEN {part(column.other)}"]
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


def _logistic(law: ScoreLaw) -> list[str]:
    return [sigmoid("l.e0")]


def _linear(law: ScoreLaw) -> list[str]:
    middle = literal(law.model["middle"])
    return [f"{middle} + ({clipped(f'(l.e0 - {middle})', law.model['largest'])})"]


def _counts(law: ScoreLaw) -> list[str]:
    """Return the exponential of the predictor, at most the public bound."""
    mean, largest = exp("l.e0", REACH), float(law.model["largest"])
    return [f"CASE WHEN {mean} > {literal(largest)} THEN {literal(largest)} ELSE {mean} END"]


def _poisson(law: ScoreLaw) -> list[str]:
    if not law.weighs:
        return _counts(law)
    half = float(law.model["largest"]) / 2
    away, half_ = f"(l.e0 - {literal(math.log(half))})", literal(half)
    beyond = f"{half_} * (2e0 - {exp(f'(0e0 - {away})')})"
    return [f"CASE WHEN {away} > 0e0 THEN {beyond} ELSE {half_} * {exp(away)} END"]


def _classes(law: ScoreLaw) -> list[str]:
    each = range(_predictors(law))
    return [f"1e0 / {sum_of([exp(f'(l.e{k} - l.e{one})') for k in each])}" for one in each]


def _ordered(law: ScoreLaw) -> list[str]:
    last = int(law.model["classes"]) - 1
    made = []
    for k in range(last + 1):
        factors = [sigmoid(f"(l.cut{k} - l.e0)")] if k < last else []
        factors += [sigmoid(f"(l.e0 - l.cut{k - 1})")] if k else []
        factors += [f"l.share{k}"] if 0 < k < last else []
        made.append(" * ".join(factors))
    return made


def _survival(law: ScoreLaw) -> list[str]:
    """Return the mean time until the event or the last cut, and the curve at each cut."""
    assert isinstance(law, SurvivalLaw)
    horizon, parts, curve, until = law.cuts[-1], [], ["1e0"], "0e0"
    for j, share in enumerate(law.shares.tolist()):
        log = f"(l.e0 + l.step{j} + {literal(math.log(horizon))})"
        each = f"({exp(log, REACH)} * {literal(share)})"
        near = f"1e0 - {each} * (5e-1 - {each} * ({literal(1 / 6)} - {each} * {literal(1 / 24)}))"
        far = f"(1e0 - EXP(0e0 - {each})) / {each}"  # cancels where that is near 0
        mean = f"CASE WHEN {each} < 1e-3 THEN {near} ELSE {far} END"
        parts.append(f"{curve[-1]} * {literal(share * horizon)} * ({mean})")
        until = f"({until} + {each})"
        curve.append(f"EXP(0e0 - {until})")
    return [sum_of(parts), *curve[1:]]


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
    names = [f"s.{quoted(one)}" for one in results]
    if len(names) == 1:
        (p,), (no, yes) = names, map(text_of, labels)
        return [f'CASE WHEN {p} > 5e-1 THEN {yes} WHEN {p} <= 5e-1 THEN {no} END AS "class"']
    cases = []
    for one, label in zip(names, labels, strict=True):
        most = " AND ".join(f"{one} >= {other}" for other in names if other != one)
        cases.append(f"WHEN {most} THEN {text_of(label)}")
    return [f'CASE {" ".join(cases)} END AS "class"']
