"""Facts about preprocessing that a guarantee has to name: origins of constants, declarations."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

DECLARED = "declared"
"""Key in a data set's notes for its owner's declarations: facts by name, in words."""
MULTILINE = "multiline"
"""Key in a data set's notes if its records may span several lines of a file."""
GIVEN = "given"
"""Key in a data set's notes: whether its features came as arrays, without public constants."""
FEATURES = "features"
"""The declaration of how the features of arrays were made, from public constants alone."""


class Origin(str, Enum):
    """Where preprocessing constants come from, the least covered first.

    Attributes:
        FROM_THIS_TABLE: computed from the rows; no ε covers them.
        FROM_ANOTHER_RELEASE: privately estimated; this release's ε does not include the charge.
        ESTIMATED_HERE: privately estimated; this release's ε includes the charge.
        PUBLIC: declared public.
    """

    FROM_THIS_TABLE = "from this table"
    FROM_ANOTHER_RELEASE = "from another release"
    ESTIMATED_HERE = "bought here"
    PUBLIC = "public"


def declarations(**facts: object) -> dict[str, str]:
    """Return declarations about a table, in words to be published.

    >>> declarations(positive=0, numeric=("age", "dose"), missing=None, left_out=())
    {'positive': '0', 'numeric': 'age, dose'}
    """
    return {
        name.replace("_", " "): ", ".join(map(str, said)) if type(said) is tuple else str(said)
        for name, said in facts.items()
        if said not in (None, "", ())
    }


def declared(preprocessing: Mapping[str, Any], facts: Mapping[str, str]) -> dict[str, Any]:
    """Return notes on how records were made, with further declarations.

    >>> declared({"declared": {"positive": "0"}}, declarations(persons="one row each"))
    {'declared': {'positive': '0', 'persons': 'one row each'}}
    """
    known = {**preprocessing.get(DECLARED, {}), **facts}
    return {**preprocessing, DECLARED: known} if known else {**preprocessing}


def features_of(preprocessing: Mapping[str, Any]) -> str:
    """Return the declaration of how features were made, from public constants alone; "" if none.

    Raises:
        ValueError: if what is declared is anything but texts by name.

    >>> features_of({"declared": {"features": "ages over 100"}}), features_of({})
    ('ages over 100', '')
    """
    facts = preprocessing.get(DECLARED, {})
    if not isinstance(facts, Mapping) or not all(isinstance(fact, str) for fact in facts.values()):
        raise ValueError(
            f"preprocessing[{DECLARED!r}] must be texts by name, such as "
            f"{{{FEATURES!r}: 'ages over 100'}}, got {facts!r:.80}"
        )
    found: str = facts.get(FEATURES, "")
    return found.strip()


def target_bounds(model: object) -> tuple[str, ...]:
    """Return the public bounds of a regression's targets, lowest first; none without any.

    >>> from bdpvi import BayesianLinearRegression, BayesianPoissonRegression
    >>> target_bounds(BayesianLinearRegression.of_bounds(0, 6000))
    ('0', '6000')
    >>> target_bounds(BayesianPoissonRegression(largest=30))
    ('0', '30')
    """
    most = getattr(model, "largest", getattr(model, "horizon", None))
    middle = getattr(model, "middle", None)
    if most is None:
        return ()
    ends = (0, most) if middle is None else (middle - most, middle + most)
    return tuple(f"{end:.12g}" for end in ends)


def listed(facts: Mapping[str, str]) -> str:
    """Return declared facts as a sentence; "" without any.

    >>> listed(declarations(positive=0, rows="about 500"))
    'Declared: positive: 0; rows: about 500'
    """
    words = "; ".join(f"{name}: {said}" for name, said in facts.items())
    return f"Declared: {words}" if words else ""
