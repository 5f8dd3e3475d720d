"""Requests by plain words, of which tests combine many: one dictionary for all that is asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import bdpvi
from bdpvi import Ledger, Release
from bdpvi._ground.types import Unit
from bdpvi.datasets.formats import FileFormat
from bdpvi.noise.keys import Key
from bdpvi.programs.dpvi import DPVI
from bdpvi.releases.transaction import Transaction
from bdpvi.synthesis.synthetic import Synthetic
from bdpvi.tables import Machine, Public, Request
from bdpvi.tables import look as look_at
from bdpvi.tables.looks import TableLook
from bdpvi.tables.reading import work_of
from bdpvi.tables.work import Work

_UNIT = ("unit", "rows_per_unit", "one_row_per_person", "other_people")


def _taken(words: dict[str, Any], kind: Any) -> dict[str, Any]:
    """Take the fields of a class out of the words."""
    names = [one.name for one in fields(kind) if one.name in words]
    return {name: words.pop(name) for name in names}


def given(words: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of :func:`bdpvi.private`."""
    words = dict(words)
    if "expected_rows" in words:
        words["rows"] = words.pop("expected_rows")
    found = _taken(words, Public)
    known = words.pop("public", None) or (Public(**found) if found else None)
    machine = _taken(words, Machine)
    said = {name: words.pop(name) for name in _UNIT if name in words}
    unit = said.get("unit", "")
    if not isinstance(unit, str):
        words["unit"] = unit
    elif unit or said.get("one_row_per_person") or said.get("other_people"):
        if unit and said.get("one_row_per_person"):
            raise ValueError(f"unit={unit!r} and one_row_per_person=True were both given; give one")
        words["unit"] = Unit(unit, said.get("rows_per_unit", 1), said.get("other_people", False))
    elif said.get("rows_per_unit", 1) != 1:
        words["unit"] = Unit(rows=said["rows_per_unit"])
    more = {"public": known, "machine": Machine(**machine) if machine else None}
    return words | {name: one for name, one in more.items() if one is not None}


def _read(table: Any, words: dict[str, Any]) -> Any:
    file = _taken(words, FileFormat)
    return bdpvi.Table.of(table, file=FileFormat(**file)) if file else table


def private(table: Any = None, **words: Any) -> Release:
    """Do :func:`bdpvi.private`."""
    table = _read(table, words)
    return bdpvi.private(table, **given(words))


@contextmanager
def few_steps(steps: int) -> Iterator[None]:
    """Let trainings have few steps, where a test is not about what they find."""
    usual: Any = DPVI.__init__.__kwdefaults__
    with_all, usual["steps"] = usual["steps"], steps
    try:
        yield
    finally:
        usual["steps"] = with_all


def request(**words: Any) -> Request:
    """Return the request."""
    return Request(**{"epsilon": 0.0, **given(words)})


def work(table: Any, **words: Any) -> Work:
    """Return the work of :func:`bdpvi.private`."""
    table = _read(table, words)
    found = given(words)
    names = {one.name for one in fields(Request)}
    asked = {name: found.pop(name) for name in [*found] if name in names}
    if isinstance(asked.get("unit"), str):
        asked["unit"] = Unit(asked["unit"])
    return work_of(table, Request(**asked), **found)


def look(table: Any, **words: Any) -> TableLook:
    """Do :func:`bdpvi.tables.look`."""
    file = _taken(words, FileFormat)
    return look_at(table, **given(words), file=FileFormat(**file) if file else None)


def synthesize(table: Any, *more: Any, **words: Any) -> Synthetic:
    """Do :func:`bdpvi.synthesize`; a seed makes an experiment."""
    table = _read(table, words)
    if "file" in words:
        table = bdpvi.Table.of(table, file=words.pop("file"))
    if machine := _taken(words, Machine):
        words["machine"] = Machine(**machine)
    one, others = (words.pop(name, False) for name in ("one_row_per_person", "other_people"))
    if one or others:
        words["unit"] = Unit(other_people=others)
    if "work" in words:
        words["ledger"] = words.pop("work")
    if (seed := words.pop("seed", None)) is not None:
        ledger = words.pop("ledger", None) or Ledger()
        words["ledger"] = Transaction(ledger, Key.of_seed(seed), alone=True, what="synthesize")
    return bdpvi.synthesize(table, *more, **words)
