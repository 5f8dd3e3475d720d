"""Tables in blocks, whose keys are known: files, and workers that are watched or lost."""

from __future__ import annotations

import pickle
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pandas as pd

from bdpvi.noise.keys import Key

ROWS, SECRET = 3_000, Key(bytes(range(32)))


def in_files(frame: pd.DataFrame, folder: Path) -> Path:
    """Return the folder, with the table as a file and, in ``parts``, as files of row groups."""
    frame.to_csv(folder / "all.csv", index=False)
    (folder / "parts").mkdir()
    for number, start in enumerate(range(0, len(frame), 1_000)):
        part = frame[start : start + 1_000]
        part.to_parquet(folder / "parts" / f"{number}.parquet", index=False, row_group_size=400)
    return folder


class Seen(Executor):
    """Workers that are handed no key and no noise."""

    def __init__(self, pool: Executor) -> None:
        self.pool = pool

    def submit(self, f: Any, /, *given: Any, **named: Any) -> Future[Any]:
        """Hand work in."""
        sent = pickle.dumps((f, given, named))
        assert b"bdpvi.noise" not in sent
        assert SECRET.secret not in sent
        return self.pool.submit(f, *given, **named)


class Dying(Executor):
    """This process, until a number of blocks is done; then a block cannot be read."""

    def __init__(self, blocks: float) -> None:
        self.left, self.done = blocks, 0

    def submit(self, f: Any, /, *given: Any, **named: Any) -> Future[Any]:
        """Do the work at once."""
        future: Future[Any] = Future()
        self.left -= 1
        self.done += 1
        if self.left < 0:
            future.set_exception(OSError("disk lost"))
        else:
            future.set_result(f(*given, **named))
        return future
