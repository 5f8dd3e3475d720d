"""Workers that read a table in blocks: processes of this machine, or a Dask cluster."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from threading import Thread
from typing import Annotated, Any

import typer

from bdpvi._ground import outputs, validate
from bdpvi.tables.request import Machine

_SECONDS = 10
"""How long to wait for a scheduler."""


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Who reads a table in blocks."""

    workers: Annotated[
        int | None,
        typer.Option(
            help="Read the table in blocks, which need not fit in memory, by this many processes."
        ),
    ] = None
    dask: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Read the table in blocks by the workers of a Dask scheduler, such as "
            "tcp://scheduler:8786; they must have this library and see the table's files. Workers "
            "see rows, never keys or noise.",
        ),
    ] = ""

    @property
    def is_given(self) -> bool:
        """Whether there are any."""
        return self.workers is not None or bool(self.dask)

    @contextmanager
    def machine(self, device: str = "auto", *, progress: bool = True) -> Iterator[Machine]:
        """Give the machine with these workers, which end afterwards.

        Raises:
            ValueError: if both are given, or there is no scheduler.
        """
        if self.workers is not None and self.dask:
            raise ValueError(
                f"workers={self.workers} and dask={self.dask!r} were both given; give one"
            )
        made = Machine(device=device, progress=progress)
        if self.dask:
            with closing(_client(self.dask)) as client:
                yield replace(made, executor=client.get_executor())
        elif self.workers is not None:
            from concurrent.futures import ProcessPoolExecutor
            from multiprocessing import get_context

            validate.positive_int("workers", self.workers)
            pool = ProcessPoolExecutor(
                self.workers, mp_context=get_context("spawn"), initializer=_follow_caller
            )
            try:
                yield replace(made, executor=pool)
            finally:
                pool.shutdown(cancel_futures=True)
        else:
            yield made


def _client(address: str) -> Any:
    """Return a client of a scheduler."""
    try:
        from distributed import Client
    except ImportError as error:
        raise ValueError(f"dask={address!r} needs Dask: pip install 'bdpvi[dask]'") from error
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # errors are said in a sentence
    try:
        client = Client(address, timeout=_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"dask={address!r}: no scheduler answers there: {error}") from error
    if not client.scheduler_info()["workers"]:
        outputs.complain(f"dask={address!r}: the scheduler has no worker yet; waiting for one")
    return client


def _follow_caller() -> None:
    """Let this worker end with the process that started it, even by a signal, and no sooner."""
    from multiprocessing import parent_process

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller is interrupted, and ends its workers
    caller = parent_process()
    assert caller is not None

    def follow() -> None:
        caller.join()
        os._exit(1)

    Thread(target=follow, daemon=True).start()
