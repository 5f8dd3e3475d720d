"""What a charge was for, in public words: when, by which command, into which file."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from datetime import datetime, timezone

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
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
        if not isinstance(self.time, str) or not _TIME.fullmatch(self.time):
            raise ValueError(f"time must be like 2026-01-31T23:59:00Z, got {self.time!r:.80}")
        for name in ("what", "out"):
            text = getattr(self, name)
            if not isinstance(text, str) or len(text) > _LONGEST or not text.isprintable():
                raise ValueError(
                    f"{name} must be at most {_LONGEST} printable characters, got {text!r:.80}"
                )

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
