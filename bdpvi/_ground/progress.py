"""Progress bars for long work, which can be switched off."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

CONSOLE = Console(stderr=True)
"""Shared by bars and log lines, so that they do not mix."""

T = TypeVar("T")
Track = Callable[[Sequence[T], str], Iterable[T]]


def silent(items: Sequence[T], description: str) -> Iterable[T]:
    """Iterate without a bar."""
    return items


def bar(items: Sequence[T], description: str) -> Iterable[T]:
    """Iterate with a bar on standard error: items done, items per second and time remaining.

    There is no bar without items, nor in a log for a single item.
    """
    if not items or (len(items) == 1 and not CONSOLE.is_terminal):
        yield from items
        return
    columns = (
        TextColumn("{task.description:>12}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=CONSOLE, transient=False) as progress:
        yield from progress.track(items, description=description)


class _Rate(ProgressColumn):
    """Recent items per second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.1f}/s")
