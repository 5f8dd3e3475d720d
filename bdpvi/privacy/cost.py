"""Costs: bounds of five kinds, none of which replaces another."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from bdpvi._ground.outputs import several
from bdpvi._ground.store import json_value
from bdpvi.privacy.assumptions import CONDITIONS, Assumption, Evidence, facts, sentences

if TYPE_CHECKING:
    from bdpvi.privacy.membership import Membership

ADD_OR_REMOVE = "add or remove"
REPLACE = "replace"
RECORD = "one record"
READ_FROM_RECORDS = "temperature read from the records: no δ covers it"


class Kind(str, Enum):
    """The kind of guarantee that an ε belongs to.

    Attributes:
        WORST_CASE: (ε, δ)-differential privacy, which holds for every conceivable record.
        BAYESIAN: for a record drawn from the distribution that the reference records represent.
        GROUP: for a record drawn from any group of at least a share of that population, however
            the group was chosen.
        TYPICAL: for most records, each by itself; it does not cover the others.
        PATH: for a random record on the training path that ran: a diagnostic, no guarantee.
    """

    WORST_CASE = "worst-case DP"
    BAYESIAN = "Bayesian DP"
    GROUP = "every-group DP"
    TYPICAL = "typical-record DP"
    PATH = "on the training path that ran"


@dataclass(frozen=True, kw_only=True)
class Bound:
    """An ε at a δ, of one kind, with its scope and its assumptions.

    Attributes:
        kind: the kind of guarantee.
        epsilon, delta: ε and δ; ε is +∞ if none is published.
        by: how ε was computed.
        relation: relation between neighbouring data sets: "add or remove", "remove", "replace" ….
            Replacing a record costs more than adding or removing one:
            as much as two, :func:`bdpvi.privacy.group`.
        unit: the unit that is added, removed or replaced, in words.
        observer: who sees only what is priced; "" means everybody.
        reliable: whether diagnostics support the estimate; a worst case needs none. See
            :attr:`certified`.
        reason: why, in words.
        assumptions: the assumptions behind it.
        distance: μ, if the mechanism is no worse than a Gaussian one of this distance (μ-Gaussian
            DP); None if unknown.
        rounding: for a worst case, the total variation between the release and what ε was computed
            for, which δ covers; for other kinds, the part of δ that covers it.
        evidence: the estimate behind it, None if nothing was estimated.
        share: for a typical-record bound, the share of the population that it covers; for an
            every-group bound, the least share of a group.
        confidence: for both, 1 − γ.
        deltas: δ as a function of ε, if more is known of it than a distance; in no file.
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
    assumptions: tuple[Assumption, ...] = field(default=(), repr=False)
    distance: float | None = None
    rounding: float = 0.0
    evidence: Evidence | None = field(default=None, repr=False)
    share: float = field(default=0.0, metadata={"absent": 0.0})
    confidence: float = field(default=0.0, metadata={"absent": 0.0})
    deltas: Callable[[Any], Any] | None = field(
        default=None, repr=False, compare=False, metadata={"kept": False}
    )

    @property
    def certified(self) -> bool:
        """Whether it is a Bayesian or every-group ε that holds for every population.

        Then betting bounds the mean, over the proven range of any conceivable record, or a worst
        case implies it; and no public number was computed from the records.
        """
        return self.kind in (Kind.BAYESIAN, Kind.GROUP) and not self.doubt

    @property
    def doubt(self) -> str:
        """Why a Bayesian or every-group ε is not certified, "" if it is."""
        found = {
            Assumption.SEEDED_EXPERIMENT: "an experiment that follows a seed",
            Assumption.FOUND_FROM_DATA: READ_FROM_RECORDS,
            Assumption.STUDENT_T: "by Student's t",
        }
        doubts = [words for one, words in found.items() if one in self.assumptions]
        return "; ".join(doubts) or ("" if self.reliable else "the estimate is not reliable")

    @property
    def mark(self) -> str:
        """Whether such an ε is certified, in words, with the condition if there is one."""
        if self.doubt:
            return f"not certified: {self.doubt}"
        stand = ", if the table's own records can serve as fresh records"
        stated = ", with bounds that the analyst states"
        return (
            "certified"
            + stand * (Assumption.LEAVE_ONE_OUT in self.assumptions)
            + stated * (Assumption.STATED_BOUNDS in self.assumptions)
        )

    @property
    def conditions(self) -> str:
        """The conditions of the ε that the owner can have broken before, in words."""
        found = [words for one, words in CONDITIONS.items() if one in self.assumptions]
        return f", conditional on {' and '.join(found)}" if found else ""

    @property
    def sure(self) -> str:
        """The confidence of an every-group bound, in words."""
        return f"with confidence 1 − {1 - self.confidence:.2g}"

    @property
    def neighbours(self) -> str:
        """How neighbouring data sets differ, in words."""
        return f"{self.relation} {self.unit}"

    def assuming(self, *more: Assumption) -> Bound:
        """Return the bound with further assumptions, without repetitions."""
        return replace(self, assumptions=tuple(dict.fromkeys((*self.assumptions, *more))))

    def seeded(self) -> Bound:
        """Return the bound of an experiment, which guarantees nothing."""
        why = Assumption.SEEDED_EXPERIMENT
        return replace(self.assuming(why), reliable=False, reason=why.value)

    def public(self, epsilon: float) -> Bound:
        """Return its public part, at a public ε: a target, or one rounded up."""
        hidden: dict[str, Any] = dict.fromkeys(("distance", "evidence", "deltas"))
        return replace(self, epsilon=epsilon, rounding=0.0, reason="", **hidden)

    @property
    def attack_success(self) -> float:
        """P(A): the accuracy of :attr:`membership`, a mean over records x′ of a Bayesian ε.

        >>> bound = Bound(kind=Kind.BAYESIAN, epsilon=0.62, delta=1e-5, by="")
        >>> round(bound.attack_success, 3)
        0.65
        """
        return self.membership.accuracy

    @cached_property
    def membership(self) -> Membership:
        """How well anybody tells whether a record is in the table, by all that is known of δ(ε).

        Of a Gaussian mechanism of unknown distance, ε and δ tell the largest that it can have. A
        training path's ε bounds no attack, and is a ValueError.
        """
        from bdpvi.privacy.gaussian import GAUSSIAN, largest_variance
        from bdpvi.privacy.membership import Membership, of_curve, of_gaussian

        if self.kind is Kind.PATH:
            raise ValueError(f"an ε {self.kind.value} is a diagnostic and does not bound an attack")
        known = [(self.epsilon, self.delta)]
        if self.deltas is not None:
            known += of_curve(self.deltas)
        elif self.distance is not None:
            known += of_gaussian(self.distance**2, self.rounding)
        elif self.by == GAUSSIAN and self.epsilon > 0:  # δ covers thresholds and rounding
            known += of_gaussian(largest_variance(self.epsilon, self.delta), spare=self.delta)
        return Membership.of(known)

    @property
    def meaning(self) -> str:
        """The guarantee in words, with every assumption."""
        words = meaning(self.kind, self.relation, self.unit, self.share, self.confidence)
        return sentences(words, *facts(self.assumptions))

    def __str__(self) -> str:
        seeded = Assumption.SEEDED_EXPERIMENT in self.assumptions
        number = f"ε = {self.epsilon:.4g}"
        priced = f"{number} at δ = {self.delta:g}{self.conditions}"
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
            return f"{self.kind.value}: {priced} ({self.by}{seen}{seeded_}, to {self.neighbours})"
        records = f"{several(self.evidence.sample_size, 'record')}, " if self.evidence else ""
        if self.kind is Kind.TYPICAL:
            read = f"; {READ_FROM_RECORDS}" * (Assumption.FOUND_FROM_DATA in self.assumptions)
            return (
                f"{self.kind.value}: at least {100 * self.share:g} % of the population have at "
                f"most {priced}, with confidence {100 * self.confidence:g} % ({records}each by "
                f"itself{read})"
            )
        if self.kind is Kind.GROUP:
            return (
                f"{self.kind.value}: for every group of at least {100 * self.share:g} % of the "
                f"population {priced}, a mean over the group, {self.sure} ({records}{self.mark})"
            )
        why = f": {self.reason}" if self.reason and not (self.certified or self.reliable) else ""
        return f"{self.kind.value} {priced} ({records}{self.mark}{why})"


_MEANING = {
    Kind.WORST_CASE: (
        "Worst-case differential privacy: for all data sets D and D′ that differ by {change}, "
        "whatever {noun} it is, Pr[S | D] ≤ e^ε Pr[S | D′] + δ for every set S of outputs"
    ),
    Kind.BAYESIAN: (
        "Bayesian differential privacy, not worst-case differential privacy: for a {noun} x′ "
        "drawn from the distribution that the reference {noun}s represent, Pr[S | D] ≤ e^ε Pr[S "
        "| D′] + δ for every set S of outputs and either order of D and D′, where D′ has "
        "{change}. It is a statement about this table, not about every one. δ is a mean: a {noun} "
        "rarer than δ, or unlike the others, may be fully exposed"
    ),
    Kind.GROUP: (
        "Every-group differential privacy, not worst-case differential privacy: with confidence 1 "
        "− {doubt:.2g}, for every group of at least {share:g} % of the population that the "
        "reference {noun}s represent, whoever belongs to it and even if it was chosen from the "
        "data, and a {noun} x′ drawn from the group, Pr[S | D] ≤ e^ε Pr[S | D′] + δ for every set "
        "S of outputs and either order of D and D′, where D′ has {change}. It is a statement about "
        "this table. δ is a mean over the group: a {noun} rarer than δ within it may be fully "
        "exposed, and a smaller group is not covered"
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
    """Return a guarantee in words, without its assumptions."""
    noun = unit.removeprefix("one ") if unit.startswith("one ") else "record"
    noun = "person" if "one person" in unit else noun
    worst = kind is Kind.WORST_CASE
    change = f"{unit} {_DONE[relation]}" if worst else _CHANGED[relation]
    numbers = {"share": 100 * share, "confidence": 100 * confidence, "doubt": 1 - confidence}
    return _MEANING[kind].format(change=change, noun=noun, **numbers)


@dataclass(frozen=True)
class Exposure:
    """The ε of single records, each at one δ. Secret: it is computed from the records.

    The Bayesian ε is for a record drawn at random; these are the reference records' own ε, the
    larger of both directions.

    Attributes:
        delta: δ of each record's own ε.
        largest, most, median: over the reference records; ``most`` is the 99 % quantile.
        certified: with confidence 1 − γ, at least 99 % of the population behind the sample pay at
            most this; +inf if there are too few reference records.
        failure_probability: γ, of each certified value separately.
        quantiles: fractions of the population, and the certified bound on each quantile.
        on_path: whether the costs were observed on a training path. They are then no guarantee for
            the algorithm.
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
        return f"{Kind.PATH.value}, not a guarantee about the algorithm: " * self.on_path + (
            f"single records at δ = {self.delta:g}: largest ε = {self.largest:.3g}, 99 % within "
            f"{self.most:.3g}, median {self.median:.3g}; {certified}"
        )


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The joint cost of all charges. Secret, except for a worst case.

    Attributes:
        worst_case: for every conceivable record, from public numbers only; None if nothing bounds a
            record, or a number that should be public was computed from the records.
        bayesian: for a record like the reference records; None without any. The worst case implies
            it, and replaces it if no smaller ε is certified.
        groups: for every group of at least a share of them, one bound for each share that was
            asked for. They hold at once, with the confidence that they state; the mean's is apart.
        typical: for most records like the reference records, each by itself.
        path: the cost of a random record on the training path that ran. A diagnostic; it never
            replaces one of the others.
        exposure: the ε of single reference records, if requested.
        why: why there is no Bayesian ε, in words, unless there is just no panel.
    """

    worst_case: Bound | None = None
    bayesian: Bound | None = None
    groups: tuple[Bound, ...] = ()
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
            parts[:0] = [str(one) for one in (self.typical, self.bayesian) if one]
        return "\n".join(["; ".join(parts), *map(str, self.groups)])

    __repr__ = __str__

    @property
    def curve(self) -> tuple[tuple[float, float], ...]:
        """Pairs of share ρ and ε, from everybody on average (share 1) to the smallest group."""
        mean = [] if self.bayesian is None else [(1.0, self.bayesian.epsilon)]
        found = dict([*mean, *((group.share, group.epsilon) for group in self.groups)])
        return tuple(sorted(found.items(), reverse=True))

    @property
    def membership(self) -> Membership | None:
        """How well anybody tells whether any record is in the table; None if nothing bounds it."""
        return None if self.worst_case is None else self.worst_case.membership

    @classmethod
    def of(cls, worst_case: Bound | None) -> Cost | None:
        """Return the cost without a panel; None if nothing is guaranteed."""
        return None if worst_case is None else cls(worst_case=worst_case)

    def each(self, change: Callable[[Bound], Bound]) -> Cost:
        """Return the cost with every bound changed."""
        bounds = (self.worst_case, self.bayesian, self.typical, self.path)
        one, two, three, four = (bound and change(bound) for bound in bounds)
        groups = tuple(map(change, self.groups))
        return replace(self, worst_case=one, bayesian=two, groups=groups, typical=three, path=four)

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes as JSON types, equally secret.

        Numbers that JSON lacks become the strings "Infinity", "-Infinity" and "NaN".
        """
        plain = self.each(lambda one: replace(one, deltas=None))
        kept = asdict(plain, dict_factory=lambda all_: {k: v for k, v in all_ if k != "deltas"})
        return dict(json_value(kept))
