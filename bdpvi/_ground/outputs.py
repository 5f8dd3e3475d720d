"""Safe text for terminals and spreadsheets.

Names and values come from tables and other people's files, so they can contain anything: terminal
control sequences, marks that reverse the order of letters, formulas. Commands print with
:func:`say` and :func:`show`, and write tables with :func:`csv_text`. A closed or full output, or
one with a small character set, does not fail a command whose work is done.
"""

from __future__ import annotations

import codecs
import errno
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from decimal import ROUND_CEILING, Context
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    import pandas as pd

_OBEYED = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
"""C0 and C1, direction marks, line and paragraph separators, surrogates."""
_UNSAFE = re.compile(f"[{_OBEYED}]")
_UNSAFE_IN_LINE = re.compile(f"[\t\n{_OBEYED}]")
_BLANKS = "\\s\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
GUARDED = f"[{_BLANKS}']*[=+\\-@＝＋－＠]"
"""How a text begins that gets an apostrophe; for Python's and Arrow's regular expressions."""
_FORMULA = re.compile(GUARDED)
_CLOSED = (errno.EPIPE, errno.EINVAL)
"""Errors of a pipe without a reader; the second is on Windows."""
_ERRORS = "bdpvi.escaped"


def several(count: float, noun: str, plural: str = "") -> str:
    """Return a number with its noun.

    >>> several(1, "row"), several(0, "row"), several(2, "entry", "entries")
    ('1 row', '0 rows', '2 entries')
    """
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"


def _escaped(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


codecs.register_error(_ERRORS, _escaped)


def visible(text: str) -> str:
    r"""Return text with control characters escaped as in JSON, except line breaks.

    In JSON it is the same value.

    >>> print(visible("a\x1b[2Jb"))
    a\u001b[2Jb
    """
    return _UNSAFE.sub(_escape, text)


def one_line(text: str) -> str:
    r"""Return :func:`visible` text with line breaks and tabs escaped too.

    >>> print(one_line("a\nb"))
    a\u000ab
    """
    return _UNSAFE_IN_LINE.sub(_escape, text)


def cell(value: Any) -> Any:
    r"""Return a value for a CSV file: one line that no spreadsheet reads as a formula.

    Text that begins like a formula, after apostrophes too, is prefixed with an apostrophe, unless
    it is a number or a sign alone. Reading a table takes that one away again.

    >>> cell("=cmd()"), cell("-0.5"), cell("yes"), cell(-1), cell("-")
    ("'=cmd()", '-0.5', 'yes', -1, '-')
    >>> print(cell("\t@x"))
    '\u0009@x
    """
    if not isinstance(value, str):
        return value
    harmless = value in ("+", "-") or _is_number(value)
    if _FORMULA.match(value) and not harmless:
        value = f"'{value}"
    return one_line(value)


def csv_text(frame: pd.DataFrame) -> str:
    """Return a table as CSV, header and values as :func:`cell` writes them, without the index.

    >>> import pandas as pd
    >>> csv_text(pd.DataFrame({"=a": ["@b", None], "n": [-1.5, 2.0]}))
    "'=a,n\\n'@b,-1.5\\n,2.0\\n"
    """
    import pandas as pd

    columns = [
        one if one.dtype.kind in "biuf" else one.map(cell, na_action="ignore")
        for _, one in frame.items()
    ]
    names = [cell(str(name)) for name in frame.columns]
    safe = pd.concat(columns, axis=1).set_axis(names, axis=1)
    return safe.to_csv(index=False, lineterminator="\n")


def say(*lines: str, error: bool = False) -> None:
    """Print status lines, each as :func:`one_line` of text.

    Args:
        lines: the text.
        error: whether to print on standard error.
    """
    stream = sys.stderr if error else sys.stdout
    if stream is not None:  # None if it was closed before the program began
        print("".join(f"{one_line(line)}\n" for line in lines), end="", file=stream, flush=True)


def complain(text: str) -> None:
    """Print a warning or error on standard error, with further lines indented."""
    lines = (" ".join(line.split()) for line in text.splitlines())
    first, *more = [line for line in lines if line] or [""]
    say(f"bdpvi: {first}", *(f"  {line}" for line in more), error=True)


def show(*lines: str) -> None:
    """Print requested output, as :func:`say` does.

    Raises:
        OSError: if it is lost, unless the reader closed the pipe.
    """
    say(*lines)
    screen: Any = sys.stdout
    lost = screen.lost if isinstance(screen, _Screen) else None
    if lost is not None and lost.errno not in _CLOSED:
        screen.lost = None  # report it once
        raise OSError(lost.errno, os.strerror(lost.errno or 0), "standard output")


@contextmanager
def screens() -> Iterator[None]:
    """Make standard output and standard error accept everything until the end.

    Unsupported characters are escaped. Losses of a closed or full output are reported at the end if
    possible, and raise nothing.
    """
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", one and _Screen(one)) for one in before)
    try:
        yield
    finally:
        out = sys.stdout
        if isinstance(out, _Screen):
            out.flush()
            if out.lost is not None and out.lost.errno not in _CLOSED:
                complain(f"standard output: {out.lost.strerror}; the command itself finished")
        sys.stdout, sys.stderr = before


class _Screen:
    """A stream that does not raise errors.

    Attributes:
        stream: the stream.
        lost: why something was lost, if it was.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.lost = stream, cast("OSError | None", None)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=_ERRORS)

    def write(self, text: str) -> int:
        """Write text, or lose it."""
        with self._losing():
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Write the buffer, or lose it."""
        with self._losing():
            self.stream.flush()

    @contextmanager
    def _losing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.lost = self.lost or error
            # The stream's buffer is written again at exit: discard it.
            with suppress(OSError, ValueError), open(os.devnull, "wb") as nothing:
                os.dup2(nothing.fileno(), self.stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def two_digits(value: float) -> float:
    """Return the number rounded up to two digits.

    >>> two_digits(0.12345), two_digits(0.2), two_digits(1234.0), two_digits(0.0)
    (0.13, 0.2, 1300.0, 0.0)
    >>> two_digits(0.2000000000001)
    0.21
    """
    # In decimal, as binary products are inexact: never down, and 0.2 stays 0.2.
    return float(Context(prec=2, rounding=ROUND_CEILING).create_decimal(repr(value)))
