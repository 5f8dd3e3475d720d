"""Columns that may name persons, for the owner of a table."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping

from bdpvi.datasets.measuring import MOST_CATEGORIES, called_identifier
from bdpvi.tables.looks import Finding, PersonsLook
from bdpvi.tables.request import Request
from bdpvi.tables.sheet import FEW, Column

_PEOPLE = frozenset({"patient", "person", "subject", "customer", "client", "member", "user"})


def persons_of(
    sheet: Mapping[str, Column], asked: Request
) -> tuple[tuple[PersonsLook, ...], list[Finding]]:
    """Return the columns that may name persons, and what should be said about them."""
    if asked.person:
        unit = _repeats(sheet[asked.person])
        few = Finding(
            f"{unit}. The noise grows with --rows-per-unit {asked.rows_of_person}",
            f"--rows-per-unit {unit.most}",
        )
        return (unit,), [few] * (asked.rows_of_person > unit.most > 0)
    named, others = [], []
    for name, one in sheet.items():
        found = _repeats(one)
        if name == asked.target or one.look.kind == "date" or found.most <= 1:
            continue
        parts = {word.lower() for word in name.replace("-", "_").split("_")}
        if called_identifier(name) or (parts & _PEOPLE and found.persons > FEW):
            named.append(found)
        elif one.free and name not in asked.public.drop and _likepersons_of(one, found):
            others.append(found)
    shown = (*named, *([] if asked.one_row_per_person else others))
    if not shown and not asked.one_row_per_person:
        words = "nothing looks like a person with several rows. If everybody has one"
        return (), [Finding(words, "--one-row-per-person")]
    return shown, [
        Finding(
            f"{one}. If it names persons, protect all rows of a person",
            f"--unit {shlex.quote(one.name)} --rows-per-unit {one.usual}",
            costly=bool(named),
        )
        for one in (named or shown[:1])
    ]


def _repeats(one: Column) -> PersonsLook:
    """Return how often the values of a column repeat."""
    sizes = sorted(one.labels.values())
    half, usual, most = (
        sizes[math.ceil(q * len(sizes)) - 1] if sizes else 0 for q in (0.5, 0.95, 1.0)
    )
    return PersonsLook(one.look.name, len(sizes), half, usual, most, sum(sizes))


def _likepersons_of(one: Column, found: PersonsLook) -> bool:
    """Return whether a column that is not called an identifier repeats like persons."""
    digits = {len(label) for label in one.labels if label.isdigit()}
    coded = one.look.numbers and len(digits) == 1 and min(digits) >= 6
    many = found.persons > MOST_CATEGORIES and 10 * found.persons >= found.rows
    return many and (one.look.kind in ("code", "text", "category") or bool(coded))
