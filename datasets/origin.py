"""Facts about preprocessing that a guarantee has to name: origins of constants, declarations."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

DECLARED = "declared"
"""Key in a data set's notes for its owner's declarations: facts by name, in words."""
MULTILINE = "multiline"
"""Key in a data set's notes if its records may span several lines of a file."""


class Origin(str, Enum):
    """Where preprocessing constants come from, the least covered first.

    Attributes:
        FROM_THIS_TABLE: computed from the rows; no ε covers them.
        FROM_ANOTHER_RELEASE: privately estimated; this release's ε does not include the charge.
        BOUGHT_HERE: privately estimated; this release's ε includes the charge.
        PUBLIC: declared public.
    """

    FROM_THIS_TABLE = "from this table"
    FROM_ANOTHER_RELEASE = "from another release"
    BOUGHT_HERE = "bought here"
    PUBLIC = "public"


def declared(**facts: object) -> dict[str, str]:
    """Return declarations about a table, in words to be published.

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
