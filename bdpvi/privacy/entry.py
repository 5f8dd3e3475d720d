"""One charge of a ledger: its price, what it was for, and the key that it stands for."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any

from bdpvi._ground import validate
from bdpvi._ground.outputs import several
from bdpvi.privacy.event import Event, read_event

RESERVED, ENDED = "reserved", "ended"
_ORIGINS = ("owner", "constants", "data")
KINDS = ("draws", "constants", "release", "steps", "rounds", RESERVED, ENDED)
_TEXT = {"purpose": re.compile("[a-z0-9 ]{0,80}"), "seal": re.compile("[0-9a-f]{0,64}")}
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_NOUNS = {
    "compare_models": "comparison",
    "describe": "Table 1",
    "synthesize": "synthetic table",
}
"""What is made by each call that releases something else than a model."""
_LONGEST = 300
"""The most characters of a text."""


@dataclass(frozen=True, kw_only=True)
class Note:
    """When a charge was made, and what for. No key and no price depends on it.

    Attributes:
        time: in UTC, to the second, such as 2026-01-31T23:59:00Z.
        what: command or function, and what it makes.
        out: the file or folder that gets the result; "" if none.

    >>> Note(time="2026-01-31T23:59:00Z", what="private: logistic regression of 'sick'").out
    ''
    """

    time: str
    what: str = ""
    out: str = ""

    def __post_init__(self) -> None:
        validate.text("time", self.time, _TIME.fullmatch, "be like 2026-01-31T23:59:00Z")
        for name in ("what", "out"):
            short = lambda text: len(text) <= _LONGEST and text.isprintable()  # noqa: E731
            rule = f"be at most {_LONGEST} printable characters"
            validate.text(name, getattr(self, name), short, rule)

    @classmethod
    def now(cls, what: str = "", out: str = "") -> Note:
        """Return the note of a charge made now; what cannot be printed is left out.

        >>> Note.now("a\\x1bb").what
        'ab'
        """
        what, out = (
            "".join(one for one in text if one.isprintable())[:_LONGEST] for text in (what, out)
        )
        time = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        return cls(time=time, what=what, out=out)

    def to_dict(self) -> dict[str, str]:
        """Return it as JSON types, without empty texts."""
        return {name: text for name, text in asdict(self).items() if text}


@dataclass(frozen=True)
class Charge:
    """``draws`` samples at ``temperature``, a public number τ.

    >>> Charge(10, 5)
    Charge(draws=10, temperature=5.0)
    """

    draws: int
    temperature: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "draws", validate.positive_int("draws", self.draws))
        object.__setattr__(self, "temperature", validate.positive("temperature", self.temperature))


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One charge.

    Attributes:
        kind: one of :data:`KINDS`.
        of: id of the work it belongs to: a fit, a network, a federation, a call.
        charge: the draws, if it is a charge for draws.
        events: the parts that the worst case needs; None if nothing bounds a record.
        count: number of repetitions, each at this price.
        purpose: the step of the work. After an interruption the same command repeats it from the
            same key, at no further price.
        seal: hash of the key that all its randomness follows from. A ledger never contains the key
            itself.
        note: when it was made and what for; two charges that differ in it alone are equal. None in
            ledgers of earlier versions.
    """

    kind: str
    of: str = ""
    charge: Charge | None = None
    events: tuple[Event, ...] | None = ()
    count: int = 1
    purpose: str = ""
    seal: str = ""
    note: Note | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        validate.choice("kind", self.kind, KINDS)
        validate.positive_int("count", self.count)
        for name, pattern in _TEXT.items():
            rule = f"match {pattern.pattern}"
            validate.text(name, getattr(self, name), pattern.fullmatch, rule)

    @property
    def purchase(self) -> str:
        """The public name of a charge for private preprocessing; "" for other charges."""
        return digest_of(self.seal) if self.kind == "constants" and self.seal else ""

    @property
    def once(self) -> str:
        """One of its ``count`` repetitions, in words."""
        if self.charge is None:
            call = self.note.what.partition(":")[0] if self.note else ""
            return self.kind if self.kind != "release" else _NOUNS.get(call, self.kind)
        tau = f"{self.charge.temperature:.4g}"
        return f"{several(self.charge.draws, 'draw')} at temperature {tau}"

    def __str__(self) -> str:
        return self.once + (f" × {self.count}" if self.count > 1 else "")

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON types, without the fields that are not set."""
        content: dict[str, Any] = {"kind": self.kind, "of": self.of}
        if self.charge is not None:
            content["draws"] = self.charge.draws
            content["temperature"] = self.charge.temperature
        content["events"] = self.events and [event.to_dict() for event in self.events]
        content |= {"count": self.count, "purpose": self.purpose, "seal": self.seal}
        return content | ({"note": self.note.to_dict()} if self.note else {})

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Entry:
        """Read what :meth:`to_dict` returned.

        Earlier versions wrote where a temperature came from. Draws at one that was computed from
        the records are a release without any guarantee.

        Raises:
            ValueError, KeyError, TypeError: if it is anything else.
        """
        rest = dict(content)
        charge = None
        if "draws" in rest:
            charge = Charge(rest.pop("draws"), rest.pop("temperature"))
            origin = validate.choice("origin", rest.pop("origin", "owner"), _ORIGINS)
            if origin == "data":
                charge = rest["events"] = None
        events, note = rest.pop("events"), rest.pop("note", None)
        return cls(
            charge=charge,
            events=None if events is None else tuple(map(read_event, events)),
            note=None if note is None else Note(**note),
            **rest,
        )


def digest_of(seal: str) -> str:
    """Return a public name of a charge, which does not occur in the ledger."""
    return hashlib.sha256(b"bdpvi purchase" + seal.encode()).hexdigest()
