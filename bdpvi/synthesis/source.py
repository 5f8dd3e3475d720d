"""The table of a synthesis: rows in memory, or in blocks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bdpvi._ground.progress import bar
from bdpvi._ground.types import Machine, tell_owner
from bdpvi.datasets.encoding import with_text_names
from bdpvi.datasets.formats import FileFormat
from bdpvi.datasets.identity import Identity
from bdpvi.datasets.looks import misread, tell_of_misread
from bdpvi.datasets.objects import in_memory
from bdpvi.datasets.records import Held, Records
from bdpvi.datasets.schema import Schema, in_file
from bdpvi.datasets.table import LEFT_OUT, ODD, Table, in_blocks
from bdpvi.datasets.types import ColumnType
from bdpvi.datasets.units import Persons, RowLimit, check_dtype
from bdpvi.releases import persons
from bdpvi.releases.table_file import TableFile
from bdpvi.synthesis.order import Order

if TYPE_CHECKING:
    import pandas as pd


def open_table(
    table: pd.DataFrame | Table | str | os.PathLike[str],
    schema: Schema | None,
    *,
    people: Mapping[str, Any],
    known: TableFile,
    machine: Machine,
) -> tuple[list[str], Records[pd.DataFrame], FileFormat, Schema | None]:
    """Return a table's header and rows, how it is written, and its schema with its file's signs.

    Args:
        table, schema, machine: as for :func:`bdpvi.synthesize`.
        people: whom ε protects, as :func:`bdpvi.releases.persons.check_said` takes it.
        known: what the table's public file declares.

    Raises:
        ValueError: naming the argument at fault.
    """
    table = in_memory(table)
    path = table.path or table if isinstance(table, Table) else table
    persons.check_said(path, **people)
    if isinstance(table, str | os.PathLike | Table) or in_blocks(table):
        blocks = Table.of(table, file=known.file)
        track = bar if machine.progress else None
        rows = blocks.records(machine.executor, track=track, what="pass")
        header = list(blocks.header)
        return header, rows, blocks.file, in_file(schema or blocks.schema, header, blocks.file)
    if machine.executor is not None:
        raise ValueError("executor: a table in memory needs no workers; leave it out")
    frame = with_text_names(table)
    check_dtype(frame, people["unit"])
    return list(frame.columns), Held(frame), FileFormat(), schema


def look(
    rows: Records[pd.DataFrame], order: Order, signs: tuple[str, str] | None = None
) -> Identity | None:
    """Show the owner what may be read otherwise than meant, by one pass before any charge.

    Args:
        rows: the table.
        order: the release.
        signs: as for :meth:`bdpvi.datasets.identity.Identity.of`; None if it is not wanted.

    Returns:
        Whose rows these are.

    Raises:
        ValueError: if rows of one person lie in several blocks, or a block has other rows when it
            is read again.
    """
    read_by = {name: one.reading for name, one in order.declared.items()} | dict(order.types)
    types = {name: one for name, one in read_by.items() if one is not None}
    limit = None if rows.in_memory else order.limit
    whose = None if signs is None else (signs, order.limit.unit if order.limit else "")
    facts = rows.sum(_facts, types, tuple(order.kinds), limit, whose)
    odd, found, persons = facts[:3]
    rows.check()
    if limit is not None:
        limit.check(persons)
    tell_owner(odd, "line", ODD)
    tell_of_misread(found, types)
    return facts[3] if signs else None


def _facts(
    frame: pd.DataFrame,
    types: dict[str, ColumnType],
    names: Sequence[str],
    limit: RowLimit | None,
    whose: tuple[tuple[str, str], str] | None,
) -> tuple[Any, ...]:
    """Return the number of lines left out of a block, what is misread, the persons, and whose
    rows they are."""
    persons: Persons = ([], 0) if limit is None else limit.persons(frame)
    identity = (Identity.of(frame, *whose),) if whose else ()
    return int(frame.attrs.get(LEFT_OUT, 0)), misread(frame, types, names), persons, *identity
