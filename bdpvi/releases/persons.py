"""Whom ε protects: every row of a table, or every person with all their rows.

It is said before a file is read, and never found out from its rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import pandas as pd

from bdpvi._ground import store
from bdpvi._ground.types import PrivacyUtilityWarning
from bdpvi.datasets.looks import ReadingWarning
from bdpvi.datasets.measuring import repeated_identifiers
from bdpvi.datasets.origin import DECLARED
from bdpvi.datasets.records import People
from bdpvi.datasets.units import ONE_ROW as ONE_ROW
from bdpvi.privacy.book import ROW, Unsaid

OTHER_PEOPLE = "in no other account, though rows may be equal"
"""The declaration that nobody in a table is in another account's, whose rows it shares."""
_REPEATED = (
    "for the owner only: column {name!r} has a value more than once. If it names persons, "
    "unit={name!r} (--unit {name}) makes the guarantee one for all rows of a person"
)
_UNSAID = (
    "unit: ε is for one row. If a person may have several, give unit=bdpvi.tables.Unit(persons, "
    "rows=k); unit=bdpvi.tables.Unit() says that everybody has one"
)


def check_said(
    table: object, *, unit: str = ROW, rows_per_unit: int = 1, one_row_per_person: bool = False
) -> None:
    """Refuse a file unless the options say who is protected; a data frame's rows are persons.

    Args:
        table: the table, or the path of its file, which is not read.
        unit: the column that names persons; :data:`~bdpvi.privacy.book.ROW` if it is not said.
        rows_per_unit: the most rows of one person.
        one_row_per_person: whether every person has one row.

    Raises:
        ValueError: if the options say nothing, or two different things; or if the column of persons
            has the name that a ledger has for single rows.

    >>> check_said("patients.csv", unit="patient", rows_per_unit=3)
    >>> check_said("patients.csv")
    Traceback (most recent call last):
        ...
    ValueError: unit: the rows of 'patients.csv' may be of the same persons; give \
unit=bdpvi.tables.Unit(COLUMN, k) (--unit COLUMN --rows-per-unit k) to protect all rows of a \
person, or unit=bdpvi.tables.Unit() (--one-row-per-person) if everybody has one row
    """
    if one_row_per_person and unit != ROW:
        raise ValueError(f"unit={unit!r} and one_row_per_person=True were both given; give one")
    header = [str(one).strip() for one in getattr(table, "header", getattr(table, "columns", ()))]
    path, alone = store.path_of(table), unit == ROW and not one_row_per_person
    if alone and not isinstance(unit, Unsaid) and (path is not None or unit in header):
        raise ValueError(
            f"unit={unit!r} stands for single rows in a ledger: rename the column of persons, or "
            "leave unit out if there is none"
        )
    if alone and path is not None:
        more = "" if rows_per_unit == 1 else f"rows_per_unit={rows_per_unit} needs unit=; "
        raise ValueError(
            f"unit: {more}the rows of {path!r} may be of the same persons; give "
            "unit=bdpvi.tables.Unit(COLUMN, k) (--unit COLUMN --rows-per-unit k) to protect all "
            "rows of a person, or unit=bdpvi.tables.Unit() (--one-row-per-person) if everybody has "
            "one row"
        )


def warn_of_unsaid(people: People, noted: Mapping[str, Any], level: int = 3) -> None:
    """Warn where nothing says whether a person has several of some records.

    Args:
        people: the people of the records.
        noted: how they were made; those of a table's columns were asked for where they were read.
        level: the ``stacklevel`` of the warning.
    """
    asked = people.unit != ROW or "persons" in noted.get(DECLARED, {})
    if not (asked or noted.get("encoding")):
        warnings.warn(_UNSAID, PrivacyUtilityWarning, stacklevel=level)


def warn_of_repeats(frame: pd.DataFrame, unit: str, level: int = 3) -> None:
    """Warn the owner of columns named like identifiers whose values repeat; no release differs.

    Args:
        frame: the table.
        unit: the unit of privacy; with a column of persons there is nothing to say.
        level: the ``stacklevel`` of the warning.
    """
    for name in repeated_identifiers(frame) if unit == ROW else ():
        warnings.warn(_REPEATED.format(name=name), ReadingWarning, stacklevel=level)
