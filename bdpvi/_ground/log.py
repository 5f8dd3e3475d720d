"""Names and durations of the steps of long work, on the standard logger ``bdpvi``.

No level logs the number of records or a number computed from them. Only durations depend on the
data; because of them a log is for the owner.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

LOGGER = logging.getLogger("bdpvi")


@contextmanager
def step(name: str) -> Iterator[None]:
    """Log at INFO that a step begins, and how long it took; ``name`` must be public.

    >>> with step("fit"):
    ...     pass
    """
    LOGGER.info("%s begins", name)
    start = time.perf_counter()
    yield
    LOGGER.info("%s took %.1f s", name, time.perf_counter() - start)


@contextmanager
def shown() -> Iterator[None]:
    """Show log lines on standard error, above a progress bar if there is one."""
    from bdpvi._ground.progress import CONSOLE

    handler: logging.Handler
    if CONSOLE.is_terminal:
        from rich.logging import RichHandler

        handler = RichHandler(console=CONSOLE, show_path=False)
    else:  # one line each, for any width
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    before = LOGGER.level
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(before)
