"""A statement beside what is shared: one printable page for people who read no code.

Everything on it follows from the shared file, so it is as public as the file. Each fact stands
once.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bdpvi._ground import page, store
from bdpvi._ground.outputs import one_line
from bdpvi._ground.version import __version__
from bdpvi.datasets.origin import DECLARED
from bdpvi.privacy.assumptions import facts
from bdpvi.privacy.cost import Bound, Kind, meaning
from bdpvi.releases import basis
from bdpvi.releases.estimate import BASE, LEFT_OUT
from bdpvi.releases.summary import Coefficient, rounded

NAME = "statement.html"
TITLE = "Privacy statement"
NOT_SAID = (
    "It does not say that nothing can be learned about a person. What is learned from everybody "
    "else, such as that older people are ill more often, also applies to people who are not in the "
    "table.",
    "It does not cover what was published elsewhere about the same people without this account.",
    "It does not say that the model is right, or that what it finds is a cause.",
)
"""What no guarantee says."""


class Line(NamedTuple):
    """A coefficient as the page draws it, and where, in per cent of its own line."""

    cells: tuple[str, ...]
    ends: tuple[float, float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class StatementPage:
    """What a statement says of a shared file.

    Attributes:
        what: what was released, in words.
        file: its name, and ``digest`` its SHA-256.
        guarantee: its guarantee, as its receipt has it.
        bound: the same, priced.
        declared: what the owner declared, by name.
        about: the rest of what the receipt says about the table.
        head: titles of the table of coefficients, if it has any.
        lines: the coefficients, with ``notes`` on them.
    """

    what: str
    file: str
    digest: str
    guarantee: str
    bound: Bound
    declared: Mapping[str, str]
    about: str
    head: tuple[str, ...] = ()
    lines: tuple[Line, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def plain(self) -> str:
        """The guarantee in plain English."""
        return plain(self.bound)

    @property
    def assumptions(self) -> list[tuple[str, str]]:
        """What it assumes, by name, each in a sentence."""
        found = self.bound.assumptions
        names = (one.name.lower().replace("_", " ") for one in found)
        return list(zip(names, facts(found), strict=True))

    @property
    def member(self) -> str:
        """What anybody tells about who is in the table; "" if no public number says it."""
        if self.bound.kind is not Kind.WORST_CASE or not self.bound.reliable:
            return ""
        words = self.bound.membership.in_one_sentence(self.bound.unit)
        return words[0].upper() + words[1:]

    def html(self) -> str:
        """Return the page."""
        template = Path(__file__).with_name("statement.html.j2")
        return page.render(
            template, title=TITLE, facts=self, version=__version__, not_said=NOT_SAID
        )


def plain(bound: Bound) -> str:
    """Return a guarantee in sentences that need no other; of rarer kinds as the receipt has it.

    >>> worst = Bound(kind=Kind.WORST_CASE, epsilon=0.5, delta=1e-5, by="")
    >>> plain(worst).partition(".")[0]
    'Everything released would have come out almost as likely without one record'
    """
    if bound.kind is Kind.WORST_CASE and bound.reliable:
        ratio, it = (
            math.exp(min(bound.epsilon, 700.0)),
            "it" if bound.unit.startswith("one ") else "them",
        )
        return (
            f"Everything released would have come out almost as likely without {bound.unit}. "
            f"Almost means: whatever is looked for in the release, its chance with {it} is at most "
            f"{ratio:.3g} times its chance without {it}, plus 1 in {1 / bound.delta:,.0f}; and the "
            "reverse."
        )
    if bound.kind is Kind.BAYESIAN and bound.reliable:
        return (
            "For a random person like those in this table, everything released would have come "
            "out almost as likely without their record. This is a mean over such people and not a "
            "worst case: somebody unlike the others may be fully exposed, and it holds for this "
            "table only."
        )
    words = meaning(bound.kind, bound.relation, bound.unit, bound.share, bound.confidence)
    return words.rstrip(".") + "."


def of_release(content: bytes, file: str = "release.json") -> StatementPage:
    """Return the facts of a release's file."""
    from bdpvi.releases.received import release_of

    made = release_of(content)
    summary = made.summary(odds=True)
    rows = [row for row in summary.coefficients if row.note != LEFT_OUT]
    effect = summary.ratio or "coefficient"
    target: Any = made.preprocessing.get("target")
    column = f" of {target['column']!r}" if isinstance(target, dict) and "column" in target else ""
    kind = getattr(made.model, "kind", "logistic" if _is_logistic(made.model) else "")
    declared: Any = made.preprocessing.get(DECLARED, {})
    listed = basis.about({DECLARED: declared})
    return StatementPage(
        what=f"A {kind} regression{column}".replace("  ", " ") if kind else "A posterior",
        file=file,
        digest=hashlib.sha256(content).hexdigest(),
        guarantee=str(made.receipt),
        bound=made.receipt.bound,
        declared=declared,
        about=made.receipt.about.replace(listed, "").strip(" .") if listed else made.receipt.about,
        head=("", effect, "from", "to", ""),
        lines=tuple(_line(row, bool(summary.ratio)) for row in rows),
        notes=tuple(summary.notes()[:-1]),
    )


def _is_logistic(model: object) -> bool:
    from bdpvi.models.logistic import BayesianLogisticRegression

    return isinstance(model, BayesianLogisticRegression)


def _line(row: Coefficient, ratio: bool) -> Line:
    """Return a coefficient as a line of 100, whose middle is no effect, and its numbers."""
    values = row.ratio() if ratio else (row.mean, row.low, row.high)
    middle, low, high = values
    if row.low is None or row.high is None or low is None or high is None:
        cells = ("", "", "") if row.note == BASE else (*rounded(middle), "", "")
        return Line((one_line(row.label), *cells, one_line(row.note)))
    scale = 48 / (max(abs(row.low), abs(row.high)) or 1.0)
    ends = 50 + scale * row.low, 50 + scale * row.mean, 50 + scale * row.high
    numbers = rounded(middle, low, high, width=high - low)
    return Line((one_line(row.label), *numbers, one_line(row.note)), ends)


def write(folder: Path, made: StatementPage) -> None:
    """Write the statement of what was published in a folder, unless there is one."""
    if store.nothing_at(folder / NAME):
        store.write(folder / NAME, made.html().encode())
