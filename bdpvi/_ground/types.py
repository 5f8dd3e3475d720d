"""Common terms of privacy, errors and warnings."""

from __future__ import annotations

import warnings
from concurrent.futures import Executor
from dataclasses import dataclass
from enum import Enum
from typing import Any

from bdpvi._ground import validate
from bdpvi._ground.outputs import several

BELOW = 1 - 2.0**-40
"""Values are clipped to a bound times this factor, so that rounding never exceeds the bound."""


class Scope(str, Enum):
    """The scope of a record's costs.

    Attributes:
        STATIC: any run: a cost depends on the record only, not on earlier outputs.
        PATH: the actual run. A mean of such costs is no guarantee for the algorithm.

    >>> Scope("path") is Scope.PATH
    True
    """

    STATIC = "static"
    PATH = "path"


class Relation(str, Enum):
    """The relation between neighbouring data sets.

    Attributes:
        ADD_OR_REMOVE: one record added or removed; it moves a clipped sum by its own norm.
        REPLACE: one record replaced by another; it moves the sum by their difference, up to twice
            the clip.
        ZERO_OUT: a contribution set to 0, with participation known; costs as much as to add.
    """

    ADD_OR_REMOVE = "add or remove"
    REPLACE = "replace"
    ZERO_OUT = "zero out"


@dataclass(frozen=True)
class Budget:
    """The total that may be spent.

    It limits the worst-case ε of releases under worst-case DP, and the Bayesian ε of all
    others.

    >>> Budget(epsilon=0.5, delta=1e-5)
    Budget(epsilon=0.5, delta=1e-05)
    """

    epsilon: float
    delta: float = 1e-5

    def __post_init__(self) -> None:
        validate.epsilon(self.epsilon)
        validate.probability("delta", self.delta)


@dataclass(frozen=True)
class Unit:
    """Whom ε protects: every person with all their rows, or everybody by the one row they have.

    Args:
        column: Column that identifies persons: the guarantee then covers all rows of a person. It
            is not a feature. Where a call says so, the persons themselves, one for each row.
            Without it every person has one row, so that ε for a row is ε for a person.
        rows: Most rows used of each person: the first ones, or for synthetic tables in memory a
            secret random choice. The noise grows with it.
        other_people: Nobody in this table is in one of another account, although it shares rows
            with it. The receipt says so.

    >>> Unit("patient", rows=3), Unit()
    (Unit(column='patient', rows=3, other_people=False), Unit(column='', rows=1, \
other_people=False))
    """

    column: Any = ""
    rows: int = 1
    other_people: bool = False

    def __post_init__(self) -> None:
        validate.positive_int("rows_per_unit", self.rows)
        if self.rows != 1 and self.one_row:
            raise ValueError(f"rows_per_unit={self.rows} needs unit=, a column of persons")

    @property
    def one_row(self) -> bool:
        """Whether it says that everybody has one row."""
        return isinstance(self.column, str) and not self.column


@dataclass(frozen=True, kw_only=True)
class Machine:
    """By what a release is computed; its law is the same on each.

    Args:
        executor: Workers that read a table in blocks and add up its rows, such as a
            :class:`concurrent.futures.ProcessPoolExecutor` or Dask's ``client.get_executor()``; a
            file is then read in blocks. They see rows, never keys or noise, and the release is the
            same to the bit for any number of them.
        device: Device to train on: auto, cpu, cuda or any torch device; auto is cuda where there is
            one. What is not trained goes through the rows a few times, where the rows are.
        progress: Whether to show progress bars.
    """

    executor: Executor | None = None
    device: str = "auto"
    progress: bool = True


class TooFewRecordsError(ValueError):
    """There are too few records for the request; nothing more was charged or drawn."""


class NotCertifiedWarning(UserWarning):
    """A release, made or planned, has neither a worst-case ε nor a certified Bayesian one."""


class PrivacyUtilityWarning(UserWarning):
    """A release may have little utility, as there are few records; or a condition may not hold."""


class BudgetExceededError(ValueError):
    """A release would cost more than the budget has left. Nothing was charged or drawn."""


def tell_owner(count: int, noun: str, why: str, stacklevel: int = 3) -> None:
    """Warn about omitted records, if there are any: a record must not cause an error.

    Args:
        count: their number.
        noun: the noun for one of them.
        why: the reason, which reads as well of one as of many: "a label is no class".
        stacklevel: stack level of the warning.
    """
    if count:
        warnings.warn(
            f"for the owner only: {several(count, noun)} left out: {why}",
            PrivacyUtilityWarning,
            stacklevel=stacklevel + 1,
        )


class Largest(float):
    """A number whose sum with another is the larger of both."""

    def __add__(self, other: float) -> Largest:
        return Largest(max(self, other))
