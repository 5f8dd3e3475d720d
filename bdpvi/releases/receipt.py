"""The receipt of a release: its guarantee, and how the samples were made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from bdpvi._ground import schema
from bdpvi.privacy.assumptions import Assumption, sentences
from bdpvi.privacy.cost import READ_FROM_RECORDS, Bound, Kind

AIMED = "target"
PUBLIC = "computed from public settings"
COMPUTED = "computed from the data, rounded up to two digits"
OWNERS = "not published: it is the owner's certificate"


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """A release's guarantee, one of four, in public words and numbers.

    Attributes:
        worst_case: bound on everything spent on the table up to and including this release.
        bayesian: bound on all releases from the fit up to this one. Its ε is +∞ if it is certified
            and was no target, as it was then computed from the records.
        group: the same for every group of at least a share of the population.
        typical: bound on all releases from the fit up to this one, for most records.
        about: what D is, and the source of the preprocessing bounds.
        source: whether ε is a target, was computed from public numbers or from the data, or is not
            published; and how many targets were refused before by looking at the records.
        draws: number of samples k.
        temperature: τ; on a coarse grid if it was computed from the data. None if the noise was
            part of the fit.
        noise_scale: standard deviation of the noise in each coordinate, if it is public.
        step: the samples are multiples of this, if known.
        together: ε of everything that this process spent on the same rows, in words, if no ledger
            was given and there is more than this release.
    """

    worst_case: Bound | None = None
    bayesian: Bound | None = None
    about: str = ""
    source: str
    draws: int
    temperature: float | None
    noise_scale: float | None
    step: float | None
    typical: Bound | None = field(default=None, metadata={"absent": None})
    group: Bound | None = field(default=None, metadata={"absent": None})
    together: str = field(default="", metadata={"absent": ""})

    def __post_init__(self) -> None:
        if (self.worst_case, self.bayesian, self.group, self.typical).count(None) != 3:
            raise ValueError("a receipt has worst_case, bayesian, group or typical, one of four")
        for kind in (Kind.WORST_CASE, Kind.BAYESIAN, Kind.GROUP, Kind.TYPICAL):
            name = kind.name.lower()
            one: Bound | None = getattr(self, name)
            if one is not None and one.kind is not kind:
                raise ValueError(f"{name}.kind must be {kind.value!r}, got {one.kind.value!r}")
            if one is not None and one.evidence is not None:
                raise ValueError(f"{name}.evidence is secret and has no place in a receipt")

    @property
    def bound(self) -> Bound:
        """The guarantee of the release, of whichever kind."""
        result = self.worst_case or self.bayesian or self.group or self.typical
        assert result is not None
        return result

    @property
    def experiment(self) -> bool:
        """Whether samples, batches or the choice of training rows follow a seed: then there is no
        guarantee at all."""
        return Assumption.SEEDED_EXPERIMENT in self.bound.assumptions

    @property
    def meaning(self) -> str:
        """The guarantee in words, with its assumptions and what it covers."""
        together = self.together[:1].upper() + self.together[1:]
        return sentences(self.bound.meaning, self.about, together)

    @property
    def in_one_sentence(self) -> str:
        """How well anybody tells who is in the table, by these public numbers; "" if none say."""
        return "" if self.worst_case is None else in_one_sentence(self.worst_case)

    def lines(self, kind: str) -> Iterator[str]:
        """Yield the receipt for a screen."""
        yield f"{kind}: {self}"
        yield from (f"  {one}" for one in (self.meaning, self.in_one_sentence) if one)

    def __str__(self) -> str:
        if self.experiment:
            return "an EXPERIMENT: its noise is seeded, so there is no guarantee"
        bound = self.bound
        trust, number = "", f"ε = {bound.epsilon:.4g} ({self.source})"
        if self.source.startswith(OWNERS):
            number = f"(ε {self.source})"
        if self.bayesian:
            trust = f", {bound.mark}"
        elif self.group:
            trust = (
                f", for every group of at least {100 * bound.share:g} % of the population, a mean "
                f"over the group, {bound.sure}, {bound.mark}"
            )
        elif self.typical:
            trust = (
                f", for at least {100 * bound.share:g} % of the population, each by itself, with "
                f"confidence {100 * bound.confidence:g} %"
            )
            trust += f"; {READ_FROM_RECORDS}" * (Assumption.FOUND_FROM_DATA in bound.assumptions)
        return (
            f"{bound.kind.value} {number} at δ = {bound.delta:g}, "
            f"to {bound.neighbours}{bound.conditions}{trust}"
        ) + f"; {self.together}" * bool(self.together)

    def __repr__(self) -> str:
        return f"Receipt({self})"

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes, which are public, as JSON types."""
        return dict(schema.to_json(self))


def in_one_sentence(bound: Bound) -> str:
    """Return how well anybody tells who is in the table, as a line of a screen; "" if seeded."""
    told = f"In one sentence: {bound.membership.in_one_sentence(bound.unit)}"
    return told if bound.reliable else ""
