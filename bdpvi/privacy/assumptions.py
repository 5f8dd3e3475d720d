"""What a bound rests on: assumptions that no computation can check, and an estimate."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum


class Assumption(Enum):
    """Assumptions of a bound that no computation can check; each value is a sentence."""

    PUBLIC_CONSTANTS = "The preprocessing bounds and categories are public, not read from the rows"
    PRIVATE_CONSTANTS = (
        "The preprocessing bounds and categories were estimated privately: ε covers them"
    )
    CONSTANTS_FROM_TABLE = (
        "The guarantee is conditional on the preprocessing bounds and categories, which were "
        "read from this table and published; no ε covers them"
    )
    CONSTANTS_FROM_ANOTHER_RELEASE = (
        "Some preprocessing bounds or categories are outputs of another release: this ε does not "
        "cover them, and they are assumed to be public for the people in this table"
    )
    GIVEN_FEATURES = (
        "The given features were made without reading the table: no ε covers means, limits, "
        "components or a choice of columns that were computed from its rows before"
    )
    DECLARED_FACTS = (
        "What the owner declared about the table is public: if any of it was chosen by looking "
        "at the rows, no ε covers that"
    )
    PUBLIC_CLASSES = "The classes are public: they were taken from the labels, and no ε covers them"
    RECORDS_ACROSS_LINES = (
        "A quoted value can span several lines of the file, so one line can merge others into "
        "its record, and no ε covers that"
    )
    SECRET_SPLIT = "Which records were held out was decided by secret coins, one for each record"
    PUBLIC_SIZE = "The order of magnitude of the number of records is public"
    ROUNDED_SIZE = "The power of two that is nearest to the number of records is public"
    PANEL_REPRESENTS_POPULATION = (
        "The reference records are independent draws from the distribution of a record at risk"
    )
    LEAVE_ONE_OUT = (
        "The table's own records, each left out once, serve as fresh records: their costs are "
        "assumed to vary like those of independent records, and duplicates violate this"
    )
    STUDENT_T = (
        "Means over records are bounded by Student's t, which can fail if costs have a heavy tail"
    )
    STATED_BOUNDS = (
        "The bounds on the derivatives of the model's log-likelihood are stated by the analyst, "
        "not proved"
    )
    FOUND_FROM_DATA = (
        "The temperature was chosen from the data, on a coarse public grid, and no ε covers that "
        "choice"
    )
    RELEASE_AFTER_CERTIFICATE = (
        "Whether to release, and at which temperature, was decided by a Bayesian ε computed from "
        "the records; no ε covers what that decision reveals"
    )
    POISSON_BATCHES = (
        "The training loop is not the library's: every batch is assumed to be a Poisson sample at "
        "the rate that was charged, each record in it by a coin of its own"
    )
    SECRET_SAMPLING = "Which records took part in each step is secret"
    SERVER_ADDS_NOISE = "The server is trusted to add the noise"
    PROCESS_ALONE = (
        "No ledger was given: what was spent on these rows is known of this process alone, and "
        "other releases from them add to ε"
    )
    SEEDED_EXPERIMENT = "An experiment: its randomness is seeded, so there is no guarantee"


CONDITIONS = {
    Assumption.CONSTANTS_FROM_TABLE: "preprocessing bounds read from this table",
    Assumption.GIVEN_FEATURES: "features made without reading the table",
}
"""Assumptions that every line with an ε names, in short: the owner can have broken them before."""
CONSTANTS = frozenset(
    {
        Assumption.PUBLIC_CONSTANTS,
        Assumption.PRIVATE_CONSTANTS,
        Assumption.CONSTANTS_FROM_TABLE,
        Assumption.CONSTANTS_FROM_ANOTHER_RELEASE,
    }
)
"""Origins of preprocessing bounds and categories; of several, each is that of some of them."""


def facts(assumptions: Collection[Assumption]) -> list[str]:
    """Return assumptions as sentences, all of which can be true of one release.

    >>> facts([Assumption.PUBLIC_CONSTANTS])
    ['The preprocessing bounds and categories are public, not read from the rows']
    >>> for one in facts([Assumption.PUBLIC_CONSTANTS, Assumption.PRIVATE_CONSTANTS]):
    ...     print(one)
    Some preprocessing bounds and categories are public, not read from the rows
    Some preprocessing bounds and categories were estimated privately: ε covers them
    """
    mixed = len(CONSTANTS.intersection(assumptions)) > 1
    said = []
    for assumption in assumptions:
        words = assumption.value
        if mixed and assumption in CONSTANTS:
            words = words.replace("The preprocessing", "Some preprocessing")
            words = words.replace("on the preprocessing", "on some preprocessing")
        said.append(words)
    return said


def sentences(*parts: str) -> str:
    """Return the parts that are not empty as one text.

    >>> sentences("One.", "", "Two")
    'One. Two'
    """
    return ". ".join(part.rstrip(".") for part in parts if part)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The estimate behind a bound that was computed from a panel of records. Secret.

    Attributes:
        order: λ at which ε is smallest; None if the conversion has no orders.
        direction: the most costly direction, such as "remove D‖D′".
        conversion, estimator: names of the methods that turned costs into ε.
        failure_probability: γ of each estimate; δ includes ``estimates`` times γ.
        estimates: number of bounds behind ε.
        sample_size: records m in the panel.
        skewness: of the values at ``order``: if it is large, a bound from mean and variance fails
            more often than γ.
    """

    order: float | None
    direction: str
    conversion: str
    estimator: str
    failure_probability: float
    estimates: int
    sample_size: int
    skewness: float
