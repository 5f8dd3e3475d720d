"""What something costs: bounds of four kinds that never stand in for one another."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

import torch

from bdpvi._runtime.outputs import several
from bdpvi._runtime.store import json_value
from bdpvi.accounting.evidence import Evidence

ADD_OR_REMOVE = "add or remove"
REPLACE = "replace"
RECORD = "one record"
GIVEN = ", conditional on preprocessing bounds read from this table"
"""What no ε covers where means, deviations and categories of the rows are published."""
READ_FROM_RECORDS = "temperature read from the records: no δ covers it"


class Kind(str, Enum):
    """Which promise an ε belongs to.

    Attributes:
        WORST_CASE: (ε, δ)-differential privacy, which holds for every conceivable record.
        BAYESIAN: for a record drawn from the distribution that the panel's records represent.
        TYPICAL: for most records, each by itself; nothing is said of the others.
        PATH: what a random record paid on the training path that ran: a diagnostic, and no
            guarantee about the algorithm.
    """

    WORST_CASE = "worst-case DP"
    BAYESIAN = "Bayesian DP"
    TYPICAL = "typical-record DP"
    PATH = "on the training path that ran"


class Assumption(Enum):
    """What a bound rests on that no computation can check; the value says it in a sentence."""

    PUBLIC_CONSTANTS = "The preprocessing bounds and categories are public, not read from the rows"
    BOUGHT_CONSTANTS = (
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
    FOUND_FROM_DATA = (
        "The temperature was chosen from the data, on a coarse public grid, and no ε covers that "
        "choice"
    )
    RELEASE_AFTER_CERTIFICATE = (
        "Whether to release, and at which temperature, was decided by a Bayesian ε computed from "
        "the records; no ε covers what that decision reveals"
    )
    SECRET_SAMPLING = "Which records took part in each step is secret"
    SERVER_ADDS_NOISE = "The server is trusted to add the noise"
    SEEDED_EXPERIMENT = "An experiment: its randomness is seeded, so there is no guarantee"


def sentences(*parts: str) -> str:
    """Return the parts that say something as one text.

    >>> sentences("One.", "", "Two")
    'One. Two'
    """
    return ". ".join(part.rstrip(".") for part in parts if part)


@dataclass(frozen=True, kw_only=True)
class Bound:
    """An ε at a δ, of one kind, with all that it speaks of and rests on.

    Attributes:
        kind: which promise it is.
        epsilon, delta: its two numbers; ε is +∞ where none is published.
        by: how ε was computed.
        relation: between neighbouring data sets: "add or remove", "remove", "replace" and so on.
            Replacing a record costs more than adding or removing one:
            :func:`bdpvi.accounting.worst_case.replace_one`.
        unit: of which one is added, removed or replaced, in words.
        observer: who sees no more than is priced; "" is everybody.
        reliable: whether diagnostics support the estimate; a worst case needs none. See
            :attr:`certified`.
        reason: why, in words.
        assumptions: what it rests on.
        distance: μ, if the mechanism is no worse than a Gaussian one of this distance (μ-Gaussian
            DP); None where that is not known.
        rounding: of a worst case: total variation between what was released and what ε was computed
            for, which δ pays for; of others, the part of δ that pays.
        evidence: the estimate behind it, None where nothing was estimated.
        share: of a typical-record bound, the share of the population that it speaks of.
        confidence: of a typical-record bound, 1 − γ.
    """

    kind: Kind
    epsilon: float = field(metadata={"absent": math.inf})
    delta: float
    by: str
    relation: str = ADD_OR_REMOVE
    unit: str = RECORD
    observer: str = ""
    reliable: bool = True
    reason: str = ""
    assumptions: tuple[Assumption, ...] = ()
    distance: float | None = None
    rounding: float = 0.0
    evidence: Evidence | None = None
    share: float = field(default=0.0, metadata={"absent": 0.0})
    confidence: float = field(default=0.0, metadata={"absent": 0.0})

    @property
    def certified(self) -> bool:
        """Whether it is a Bayesian ε that holds for every population.

        The mean is then bounded by betting on the proven range of any conceivable record, or a
        worst case implies it, and no public number was read from the records.
        """
        return self.kind is Kind.BAYESIAN and not self.doubt

    @property
    def doubt(self) -> str:
        """Why a Bayesian ε is not certified, "" where it is."""
        found = {
            Assumption.SEEDED_EXPERIMENT: "an experiment that follows a seed",
            Assumption.FOUND_FROM_DATA: READ_FROM_RECORDS,
            Assumption.STUDENT_T: "by Student's t",
        }
        doubts = [words for one, words in found.items() if one in self.assumptions]
        return "; ".join(doubts) or ("" if self.reliable else "the estimate is not reliable")

    @property
    def mark(self) -> str:
        """Whether a Bayesian ε is certified, in words, with the condition if there is one."""
        if self.doubt:
            return f"not certified: {self.doubt}"
        stand = ", if the table's own records can serve as fresh records"
        return "certified" + stand * (Assumption.LEAVE_ONE_OUT in self.assumptions)

    @property
    def neighbours(self) -> str:
        """What tells neighbouring data sets apart, in words."""
        return f"{self.relation} {self.unit}"

    def assuming(self, *more: Assumption) -> Bound:
        """Return the bound with further assumptions; those it has are not named twice."""
        return replace(self, assumptions=tuple(dict.fromkeys((*self.assumptions, *more))))

    def seeded(self) -> Bound:
        """Return the bound of an experiment, which promises nothing."""
        why = Assumption.SEEDED_EXPERIMENT
        return replace(self.assuming(why), reliable=False, reason=why.value)

    def public(self, epsilon: float) -> Bound:
        """Return what may be published of it, at an ε that may be: one aimed at, or rounded up."""
        return replace(self, epsilon=epsilon, distance=None, rounding=0.0, reason="", evidence=None)

    @property
    def attack_success(self) -> float:
        """P(A): how often the best attacker tells D from D′ at most, each as likely as the other.

        (e^ε + δ)/(1 + e^ε), for one who knows all but the record that differs: (ε, δ) in both
        orders leaves no test with false alarms α and misses β for which α + β is below
        2(1 − δ)/(1 + e^ε) (Kairouz, Oh and Viswanath, "The composition theorem for differential
        privacy", ICML 2015, Theorem 2.1). At δ = 0 it is 1/(1 + e^{−ε}), which Triastcyn (EPFL
        2020, Table 5.2) prints. Of a Bayesian guarantee it is a mean over records x′, as δ is.

        Raises:
            ValueError: if ε is that of a training path, which bounds no attack.

        >>> bound = Bound(kind=Kind.BAYESIAN, epsilon=0.62, delta=1e-5, by="")
        >>> round(bound.attack_success, 3)
        0.65
        """
        if self.kind is Kind.PATH:
            raise ValueError(f"an ε {self.kind.value} is a diagnostic and does not bound an attack")
        shrunk = math.exp(-self.epsilon)
        return (1 + self.delta * shrunk) / (1 + shrunk)

    def group(self, size: int) -> Bound | None:
        """Return the worst case of groups: see :func:`bdpvi.accounting.groups.group`."""
        from bdpvi.accounting.groups import group

        return group(self, size)

    @property
    def meaning(self) -> str:
        """The promise in words, with every assumption."""
        words = meaning(self.kind, self.relation, self.unit, self.share, self.confidence)
        return sentences(words, *(one.value for one in self.assumptions))

    def __str__(self) -> str:
        seeded = Assumption.SEEDED_EXPERIMENT in self.assumptions
        given = GIVEN * (Assumption.CONSTANTS_FROM_TABLE in self.assumptions)
        number = f"ε = {self.epsilon:.4g}"
        if self.kind is Kind.PATH:
            unit = self.unit.removeprefix("one ")
            return (
                f"{self.kind.value} a random {unit} had {number} at δ = {self.delta:g}: a "
                "diagnostic, not a guarantee about the algorithm"
            )
        seen = f", seen by {self.observer}" if self.observer else ""
        if self.kind is Kind.WORST_CASE:
            seeded_ = (
                "; an experiment: its noise is seeded, so there is no guarantee" if seeded else ""
            )
            return (
                f"{self.kind.value}{given}: {number} at δ = {self.delta:g} "
                f"({self.by}{seen}{seeded_}, to {self.neighbours})"
            )
        records = f"{several(self.evidence.sample_size, 'record')}, " if self.evidence else ""
        if self.kind is Kind.TYPICAL:
            read = f"; {READ_FROM_RECORDS}" * (Assumption.FOUND_FROM_DATA in self.assumptions)
            return (
                f"{self.kind.value}{given}: at least {100 * self.share:g} % of the population "
                f"have at most {number} at δ = {self.delta:g}, with confidence "
                f"{100 * self.confidence:g} % ({records}each by itself{read})"
            )
        why = f": {self.reason}" if self.reason and not (self.certified or self.reliable) else ""
        return (
            f"{self.kind.value}{given} {number} at δ = {self.delta:g} ({records}{self.mark}{why})"
        )


_MEANING = {
    Kind.WORST_CASE: (
        "Worst-case differential privacy: for all data sets D and D′ that differ by {change}, "
        "whatever {noun} it is, Pr[S | D] ≤ e^ε Pr[S | D′] + δ for every set S of outputs"
    ),
    Kind.BAYESIAN: (
        "Bayesian differential privacy, not worst-case differential privacy: for a {noun} x′ "
        "drawn from the distribution that the reference {noun}s represent, Pr[S | D] ≤ e^ε Pr[S "
        "| D′] + δ for every set S of outputs and either order of D and D′, where D′ has "
        "{change}. δ is a mean over such {noun}s: a {noun} rarer than δ may be fully exposed"
    ),
    Kind.TYPICAL: (
        "Typical-record differential privacy, neither worst-case nor Bayesian: with confidence "
        "{confidence:g} %, at least {share:g} % of the population that the reference {noun}s "
        "represent have, each by itself, Pr[S | D] ≤ e^ε Pr[S | D′] + δ for every set S of "
        "outputs and either order of D and D′, where D′ has {change}. It is a statement about "
        "this table, and the other {noun}s may be fully exposed"
    ),
    Kind.PATH: (
        "A diagnostic of the training path that ran, not a guarantee about the algorithm: a "
        "record in the data changes the path"
    ),
}
_DONE = {
    ADD_OR_REMOVE: "added or removed",
    "remove": "removed",
    "add": "added",
    REPLACE: "replaced by another",
    "zero out": "set to zero",
}
_CHANGED = {
    **{relation: f"x′ {done}" for relation, done in _DONE.items()},
    REPLACE: "one record replaced by another, the two drawn together as x′",
}


def meaning(
    kind: Kind,
    relation: str = ADD_OR_REMOVE,
    unit: str = RECORD,
    share: float = 0.99,
    confidence: float = 0.95,
) -> str:
    """Return a promise in words, without what it rests on."""
    noun = unit.removeprefix("one ") if unit.startswith("one ") else "record"
    worst = kind is Kind.WORST_CASE
    change = f"{unit} {_DONE[relation]}" if worst else _CHANGED[relation]
    numbers = {"share": 100 * share, "confidence": 100 * confidence}
    return _MEANING[kind].format(change=change, noun=noun, **numbers)


def relation_of(kinds: Iterable[str]) -> str:
    """Return the relation of panels of these kinds.

    >>> relation_of(["remove", "add"]), relation_of(["add-or-remove"]), relation_of(["replace"])
    ('add or remove', 'add or remove', 'replace')
    """
    return " or ".join(sorted({one.replace("-", " ") for one in kinds}))


@dataclass(frozen=True)
class Exposure:
    """What single records pay, at one δ each. For the owner's eyes only: it is computed from them.

    The Bayesian ε is for a record drawn at random; these are the ε of the records in the panel,
    each by itself, the larger of both directions.

    Attributes:
        delta: δ of each record's own ε.
        largest, most, median: over the panel; ``most`` is what 99 % of it stay within.
        certified: with confidence 1 − γ, at least 99 % of the population that the panel is a sample
            of pay at most this; +inf if the panel is too small to say so.
        failure_probability: γ, of each certified value by itself.
        quantiles: fractions of the population, and what they are certified to pay at most.
        on_path: whether the costs were met on a training path. They are then no guarantee about the
            algorithm.
    """

    delta: float
    largest: float
    most: float
    median: float
    certified: float
    failure_probability: float
    quantiles: tuple[tuple[float, float], ...] = ()
    on_path: bool = False

    def __str__(self) -> str:
        certified = (
            f"certified for 99 % of the population with confidence "
            f"1 − {self.failure_probability:g}: {self.certified:.3g}"
        )
        if math.isinf(self.certified):
            certified = "too few records to certify a bound for 99 % of the population"
        path = f"{Kind.PATH.value}, not a guarantee about the algorithm: "
        return (path if self.on_path else "") + (
            f"single records at δ = {self.delta:g}: largest ε = {self.largest:.3g}, 99 % within "
            f"{self.most:.3g}, median {self.median:.3g}; {certified}"
        )


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What everything that was charged costs together. Secret, but for a worst case.

    Attributes:
        worst_case: for every conceivable record, by public numbers alone; None where nothing bounds
            a record, or a number that should be public was found from the records.
        bayesian: for a record like those of the panel; None without a panel. It is the worst case
            where no smaller ε is certified, as that implies it.
        typical: for most records like those of the panel, each by itself.
        path: what a random record paid on the training path that ran. A diagnostic; it never stands
            in for one of the others.
        exposure: what single records of the panel pay, where it was asked for.
        why: there is no Bayesian ε, in words, if not for want of a panel alone.
    """

    worst_case: Bound | None = None
    bayesian: Bound | None = None
    typical: Bound | None = None
    path: Bound | None = None
    exposure: Exposure | None = None
    why: str = ""

    def __str__(self) -> str:
        worst, bayesian = self.worst_case, self.bayesian or self.typical
        if worst is None and bayesian is None and self.path is None:
            return sentences("neither a worst-case nor a Bayesian ε is known", self.why)
        found = bayesian and Assumption.FOUND_FROM_DATA in bayesian.assumptions
        none = "worst-case DP: none" + ", as a temperature was found from the records" * bool(found)
        parts = [str(worst or none)]
        if self.path is not None:
            parts.append(str(self.path))
        elif bayesian is None:
            parts.append(self.why or "no reference records, so no Bayesian ε")
        else:
            parts[:0] = [str(one) for one in (self.bayesian, self.typical) if one]
        return "; ".join(parts)

    @classmethod
    def of(cls, worst_case: Bound | None) -> Cost | None:
        """Return the cost of something without a panel; None where nothing is guaranteed."""
        return None if worst_case is None else cls(worst_case=worst_case)

    def each(self, change: Callable[[Bound], Bound]) -> Cost:
        """Return the cost with every bound changed."""
        bounds = (self.worst_case, self.bayesian, self.typical, self.path)
        one, two, three, four = (bound and change(bound) for bound in bounds)
        return replace(self, worst_case=one, bayesian=two, typical=three, path=four)

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes as JSON types, as secret as they are here.

        Numbers that JSON does not have are the strings "Infinity", "-Infinity" and "NaN".
        """
        return dict(json_value(asdict(self)))


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a method hands out, and what it costs: the common result of all compared methods.

    Attributes:
        latents: released values of the model's latent variables, each (k, ...): posterior samples,
            or the one iterate that a method publishes.
        cost: None for no guarantee at all.
    """

    latents: Mapping[str, torch.Tensor]
    cost: Cost | None
