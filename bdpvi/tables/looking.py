"""A look at a table before anything is spent: it charges nothing, and changes no release."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from bdpvi._ground import validate
from bdpvi._ground.outputs import several
from bdpvi._ground.progress import bar
from bdpvi._ground.types import TooFewRecordsError, Unit, tell_owner
from bdpvi.datasets.cells import read_cell
from bdpvi.datasets.encoding import with_text_names
from bdpvi.datasets.estimates import UNDECLARED
from bdpvi.datasets.formats import FileFormat
from bdpvi.datasets.guess import Tally, numbers_in, seems, sign_options
from bdpvi.datasets.records import Records
from bdpvi.datasets.stored import files_of
from bdpvi.datasets.table import ODD, Table, in_blocks, is_path
from bdpvi.datasets.types import ColumnType
from bdpvi.releases.row_counts import FEWEST, MOST
from bdpvi.score.reading import BOOLEAN, NUMBERS, UNUSED
from bdpvi.tables.encoded import check, price_of
from bdpvi.tables.looks import Finding, Price, TableLook, TargetLook
from bdpvi.tables.request import Machine, Public, Request
from bdpvi.tables.sheet import FEW, Column, Totals, model_for, persons_of, totals
from bdpvi.tables.validation import purchase

_ODD = 3
"""Most texts among numbers that may be declared to be blanks."""
_MIXED = 0.05
"""Smallest fraction of a column's cells that is worth a line."""
_YES = ColumnType(kind="boolean")
_ANY = ColumnType(kind="any")


def look(
    table: Any,
    *,
    target: str = "",
    positive: object = "",
    epsilon: float | None = None,
    delta: float = 1e-5,
    public: Public | None = None,
    unit: str | Unit | None = None,
    file: FileFormat | None = None,
    machine: Machine | None = None,
) -> TableLook:
    """Look at a table, for its owner only; nothing is charged, and no file is written.

    A table in blocks need not fit in memory: its cells are counted block by block, and what needs
    rows in memory is a look at its first 200,000.

    Args:
        table: what :meth:`bdpvi.Table.of` takes; all rows of a single file are in memory.
        target, delta, public, unit: as :func:`bdpvi.private` would be asked.
        positive: the target's value that counts as 1; None if the target is not one of yes and no.
        epsilon: ε of a release, to see what it pays for.
        file: how a file of text is written.
        machine: workers that count the cells, with which a file is read in blocks too, and whether
            to show a bar of the blocks; by default none.

    Returns:
        What the options read, and what they seem to read otherwise than meant. Where the separator
        or the character set seems to be another one, the rest is a look by that one.

    Warns:
        PrivacyUtilityWarning: about lines that are left out.

    Raises:
        ValueError: as :meth:`bdpvi.Table.of` does, or naming a missing column.
    """
    given, machine = file or FileFormat(), machine or Machine(progress=False)
    written = seeming(table, given)
    rows = Table.of(table, file=written)
    public = public or Public()
    asked = Request(
        target=target,
        positive=positive,
        epsilon=epsilon or 0.0,
        delta=delta,
        public=public if public.types else replace(public, types=rows.schema),
        unit=unit if unit is None or isinstance(unit, Unit) else Unit(unit),
    )
    alone = is_path(table) and not in_blocks(table)
    if machine.executor is None and alone:
        found = look_at_frame(rows.frame(text=True, least=0), asked, written)
    else:
        track = bar if machine.progress else None
        cells = rows.records(machine.executor, track=track, what="counts")
        found = _look_at_rows(rows.first(), cells, asked, written)
    return replace(found, findings=(*_of_file(given, written), *found.findings))


def seeming(table: Any, file: FileFormat) -> FileFormat:
    """Return the format that a table, or its first file, seems to have."""
    if not is_path(table) or "://" in os.fspath(table):
        return file
    return seems(files_of(os.fspath(table))[0], file)


def _look_at_rows(
    first: tuple[pd.DataFrame, bool, int],
    rows: Records[pd.DataFrame],
    asked: Request,
    file: FileFormat,
) -> TableLook:
    """Return the look at a table by its first rows, and by counts of all."""
    frame, whole, odd = first
    header = list(frame.columns)
    if whole:
        tell_owner(odd, "line", ODD)
        return look_at_frame(frame, asked, file)
    _check(header, asked)
    numbers = tuple(name for name, kind in asked.public.kinds.items() if kind in NUMBERS)
    counted = rows.sum(totals, _types(header, asked, file), numbers)
    tell_owner(counted[1], "line", ODD)
    return replace(look_at_frame(frame, asked, file, counted), first=len(frame))


def look_at_frame(
    frame: pd.DataFrame,
    asked: Request,
    file: FileFormat | None = None,
    counted: Totals | None = None,
) -> TableLook:
    """Return the look at a raw table of texts by the options.

    Args:
        frame: the table, or its first rows.
        asked: the options.
        file: how its file is written.
        counted: what is counted of the whole table, if the rows are its first ones.

    >>> frame = pd.DataFrame({"kg": ["70,5", "81,0"] * 9, "sick": ["yes", "no"] * 9})
    >>> asked = Request(target="sick", positive="yes", epsilon=0.0, unit=Unit())
    >>> found = look_at_frame(frame, asked)
    >>> print(*found.short, sep="\\n")
    For the owner only: 18 rows, 2 columns; 1 finding
      column 'kg': 0 % of its cells are numbers, 100 % are not: declare {"file": {"decimal": ","}}
    """
    file, frame = file or FileFormat(), with_text_names(frame)
    header = list(frame.columns)
    _check(header, asked)
    types = _types(header, asked, file)
    sheet = {name: Column.of(frame[name], types.get(name), asked.public) for name in header}
    rows = len(frame)
    if counted is not None:
        rows, _, cells, labels, many = counted
        sheet = {n: c.in_all(cells[n], {} if many[n] else labels[n]) for n, c in sheet.items()}
    features = {
        name: one for name, one in sheet.items() if name not in (*asked.public.drop, asked.person)
    }
    features = {n: one for n, one in features.items() if one.look.kind not in UNUSED or one.free}
    target: TargetLook | None = None
    of_target: list[Finding] = []
    if asked.target:
        target, of_target = _target(sheet[asked.target], asked, file)
    signs = _signs(features, file)
    persons, of_persons = persons_of({n: c for n, c in sheet.items() if n not in signs}, asked)
    known = {asked.target, *signs, *(person.name for person in persons)}
    found = [
        *(f for some in signs.values() for f in some),
        *(f for n, one in features.items() if n not in known for f in _of_column(one, file)),
        *of_target,
        *of_persons,
    ]
    if 2 * sum(one.startswith("Unnamed: ") for one in header) > len(header):
        option = "delete the lines above that of the names"
        found.insert(0, Finding("most columns have no name", option, costly=True))
    price, of_price = _price(sheet, rows, asked, file)
    return TableLook(
        rows, file, tuple(one.look for one in sheet.values()), (*found, *of_price),
        target, persons, price,
    )  # fmt: skip


def _check(header: Sequence[str], asked: Request) -> None:
    """Refuse options that name no column."""
    for argument, names in (
        ("target", [asked.target] if asked.target else []), ("drop", asked.public.drop),
        ("categorical", asked.public.categorical), ("numeric", asked.public.numeric),
        ("unit", [asked.person] if asked.person else []),
    ):  # fmt: skip
        validate.columns(argument, names, header)


def _types(header: Sequence[str], asked: Request, file: FileFormat) -> dict[str, ColumnType]:
    """Return the types by which columns are read; a column of persons is one of codes."""
    types = asked.public.in_file(header, file).read_by
    if asked.person and types.get(asked.person, _ANY).kind == _ANY.kind:
        types = {**types, asked.person: ColumnType(kind="code")}
    return types


def _of_file(given: FileFormat, seeming: FileFormat) -> Iterator[Finding]:
    """Yield what the file looks like otherwise than declared."""
    for name in ("charset", "separator"):
        mine, other = getattr(given, name), getattr(seeming, name)
        if mine != other:
            words = f"the file does not look like {name} {mine!r} but {other!r}"
            yield Finding(words, _declare(file={name: other}), costly=True)


def _signs(columns: Mapping[str, Column], file: FileFormat) -> dict[str, list[Finding]]:
    """Return the columns whose numbers are written with other signs, and the options for them."""
    held = {
        name: (one.shapes, one.signs(file))
        for name, one in columns.items()
        if one.look.kind in ("number", "integer") or (one.free and one.look.kind != "date")
    }
    best, result = sign_options(held.values(), file.separator), {}
    for name, (shapes, now) in held.items():
        own = sign_options([(shapes, now)], file.separator)
        if own is None:
            continue
        of_file = best is not None and numbers_in(shapes, *best) >= numbers_in(shapes, *own)
        signs = best if best is not None and of_file else own
        entry = {"decimal": signs[0]} | ({"thousands": signs[1]} if signs[1] else {})
        new = zip(("decimal", "thousands"), signs, now, strict=True)
        option = _declare(file={n: one for n, one, old in new if one != old})
        if not of_file:
            option = _typed(name, {"kind": "number", **entry})
        look = columns[name].look
        words = _share(name, look.numbers / look.filled)
        result[name] = [Finding(words, option, costly=2 * look.numbers <= look.filled)]
        odd = _odd(columns[name].tally, signs)
        cells = sum(columns[name].tally.values())
        if odd and numbers_in(shapes, *signs) <= (1 - _MIXED) * cells:
            entry = {} if of_file else entry
            option = _typed(name, {"kind": "number", **entry, "blank": odd})
            result[name].append(
                Finding(f"column {name!r} has {odd[0]!r} among its numbers", option)
            )
    return result


def _share(name: str, numbers: float) -> str:
    share = f"{100 * numbers:.0f} % of its cells are numbers, {100 - 100 * numbers:.0f} % are not"
    return f"column {name!r}: {share}"


def _declare(**content: Mapping[str, Any]) -> str:
    """Return what to write into the table's public file."""
    return f"declare {json.dumps(content, ensure_ascii=False)}"


def _typed(name: str, entry: Mapping[str, Any]) -> str:
    return _declare(columns={name: entry})


def _of_column(one: Column, file: FileFormat) -> Iterator[Finding]:
    """Yield what is to be said of a feature, but for the signs of its numbers."""
    look, name = one.look, one.look.name
    named, drop = f"column {name!r}", f"--drop {shlex.quote(name)}"
    cells = sum(one.labels.values())
    if new := _undeclared(one):
        count = several(new[1], "cell")
        words = f"{named}: {count} with a value that is not declared, such as {new[0]!r}"
        yield Finding(words, "add them to its levels or spellings", 2 * new[1] > cells)
    elif not look.filled:
        yield Finding(f"{named} is blank in every row", drop, costly=look.declared)
    elif look.levels == 1 and not look.unread:
        yield Finding(f"{named} never varies", drop)
    elif one.free and look.kind == "date":
        known = {} if one.dates[0] == "%Y-%m-%d" else {"date_format": one.dates[0]}
        both = " (or %m/%d/%Y)" if "%m/%d/%Y" in one.dates[1:] else ""
        option = _typed(name, {"kind": "date", **known}) + both
        yield Finding(f"{named} has days, which are read as names", f"{option}, or {drop}")
    elif one.free and look.kind in ("identifier", "text"):
        what = f"{named} has {look.levels} different values in {cells} cells"
        yield Finding(f"{what}, and looks like {_A[look.kind]}", drop)
    elif one.codes is not None:
        code, number = one.codes
        option = f"--categorical {shlex.quote(name)}"
        yield Finding(f"{named} looks like a code: {code!r} is read as {number!r}", option)
    elif look.unread:
        yield from _unread(one, file)
    elif one.free:
        yield from _mixed(one, file)


def _undeclared(one: Column) -> tuple[str, int] | None:
    """Return the first value that the declared levels lack, and the number of such cells."""
    levels = None if one.type is None else one.type.names
    counts = {} if levels is None else {n: c for n, c in one.labels.items() if n not in levels}
    return (max(counts, key=counts.__getitem__), sum(counts.values())) if counts else None


_A = {"identifier": "an identifier", "text": "free text"}


def _unread(one: Column, file: FileFormat) -> Iterator[Finding]:
    """Yield the cells that do not fit the declared kind, and the option that reads them."""
    look, name = one.look, one.look.name
    option = ""
    given = None if one.type is None else one.type.date_format
    if look.kind == "date" and one.dates and given not in one.dates:
        option = _typed(name, {"kind": "date", "date_format": one.dates[0]})
    elif look.kind in NUMBERS and (odd := _odd(one.tally, one.signs(file))):
        option = _typed(name, {"kind": look.kind, "blank": odd})
    yield Finding(
        f"column {name!r}: {look.unread} of {look.filled} cells do not fit kind {look.kind}, and "
        "count as blank",
        option,
        costly=2 * look.unread > look.filled,
    )


def _mixed(one: Column, file: FileFormat) -> Iterator[Finding]:
    """Yield a column of both numbers and names."""
    look = one.look
    if not 0 < _MIXED * look.filled <= min(look.numbers, look.names):
        return
    if odd := _odd(one.tally, one.signs(file)):
        words = f"{_share(look.name, look.numbers / look.filled)}, such as {odd[0]!r}"
        yield Finding(words, _typed(look.name, {"kind": "number", "blank": odd}))


def _odd(tally: Tally, signs: tuple[str, str]) -> list[str]:
    """Return the texts of a column of numbers that are none, if they are few."""
    odd: set[str] = set()
    for one in tally:
        if not numbers_in({one: 1}, *signs):
            odd.add(str(one).strip())
            if len(odd) > _ODD:
                return []
    return sorted(odd) if len(odd) < len(tally) else []


def _target(one: Column, asked: Request, file: FileFormat) -> tuple[TargetLook, list[Finding]]:
    """Return the target's values, and spellings of the positive one that count as not."""
    name = asked.target
    counts = dict(sorted(one.labels.items(), key=lambda pair: -pair[1]))
    if asked.positive in (None, ""):
        shown = TargetLook(name, "", counts)
        if asked.positive is None:
            return shown, []
        return shown, [Finding(f"{shown}. None of them counts as 1 yet", model_for(one, counts))]
    positive = read_cell(asked.positive, one.type)[1]
    shown = TargetLook(name, positive, counts)
    found = _unread(one, file) if one.look.unread else iter(())
    known = {*((one.type and one.type.names) or ())} | {positive}
    others = [label for label in counts if label not in known]
    alike = [label for label in others if _alike(label, positive)]
    if alike:
        entry = {"kind": "category", "spellings": {positive: alike}}
        words = f"{shown}. Some of them seem to mean {positive!r}"
        return shown, [*found, Finding(words, _typed(name, entry), costly=True)]
    if positive not in counts:
        return shown, [*found, Finding(f"{shown}. No cell is {positive!r}", costly=True)]
    if len(others) > 1:
        levels = [positive, *others]
        option = _typed(name, {"kind": "category", "levels": levels})
        if len(levels) > FEW:
            option = ""
        return shown, [*found, Finding(f"{shown}. All of these count as 0; if so", option)]
    return shown, list(found)


def _alike(label: str, positive: str) -> bool:
    """Return whether a value seems to be another spelling of the positive one."""
    both = [read_cell(text, _YES)[1] for text in (label, positive)]
    return label.casefold() == positive.casefold() or both == [BOOLEAN[1]] * 2


def _price(
    sheet: Mapping[str, Column], rows: int, asked: Request, file: FileFormat
) -> tuple[Price | None, list[Finding]]:
    """Return what ε pays for, and whether the rows are too few for it."""
    if not asked.epsilon or not asked.target or asked.positive in (None, ""):
        return None, []
    price, asked, used = price_of(asked, list(sheet), file)
    open_ones = [name for name, kind in price.columns.items() if kind == UNDECLARED]
    numbers = [one for one in open_ones if sheet[one].look.kind in NUMBERS]
    names = [one for one in open_ones if one not in numbers]
    public = replace(
        asked.public,
        rows=min(max(rows, FEWEST), MOST),
        numeric=(*asked.public.numeric, *numbers),
        categorical=(*asked.public.categorical, *names),
    )
    known = replace(asked, public=public)
    try:
        check(known, purchase(known, used), known.whole(asked.rows_of_person))
    except TooFewRecordsError as error:
        words = str(error).partition(" Nothing was fitted")[0].rstrip(".")
        return price, [Finding(words, costly=True)]
    return price, []
