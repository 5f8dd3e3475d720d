"""What a promise has to name of how records were made: origins of constants, declared facts."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

DECLARED = "declared"
"""Key among what is noted of data of what its owner declared: facts by name, in words."""


class Origin(str, Enum):
    """Where the constants that encode columns come from, the least covered first.

    Attributes:
        FROM_THIS_TABLE: read from the rows; no ε covers them.
        FROM_ANOTHER_RELEASE: bought for a release that the ε at hand does not count.
        BOUGHT_HERE: bought by charges that the ε at hand counts.
        PUBLIC: said to be public.
    """

    FROM_THIS_TABLE = "from this table"
    FROM_ANOTHER_RELEASE = "from another release"
    BOUGHT_HERE = "bought here"
    PUBLIC = "public"


def declared(**facts: object) -> dict[str, str]:
    """Return what was declared of a table, in words that are published.

    >>> declared(positive=0, numeric=("age", "dose"), missing=None, left_out=())
    {'positive': '0', 'numeric': 'age, dose'}
    """
    return {
        name.replace("_", " "): ", ".join(map(str, said)) if type(said) is tuple else str(said)
        for name, said in facts.items()
        if said not in (None, "", ())
    }


def listed(facts: Mapping[str, str]) -> str:
    """Return declared facts as a sentence; "" without any.

    >>> listed(declared(positive=0, rows="about 500"))
    'Declared: positive: 0; rows: about 500'
    """
    words = "; ".join(f"{name}: {said}" for name, said in facts.items())
    return f"Declared: {words}" if words else ""
