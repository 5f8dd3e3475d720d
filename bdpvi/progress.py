"""Progress bars for long work, which can be switched off."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

T = TypeVar("T")
Track = Callable[[Sequence[T], str], Iterable[T]]


def silent(items: Sequence[T], description: str) -> Iterable[T]:
    """Iterate without a word."""
    return items


def bar(items: Sequence[T], description: str) -> Iterable[T]:
    """Iterate with a bar on standard error: items done and time remaining."""
    columns = (
        TextColumn("{task.description:>12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=Console(stderr=True), transient=False) as progress:
        yield from progress.track(items, description=description)
