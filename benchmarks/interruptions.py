"""Kill ``private`` and ``synthesize`` wherever they touch a file, and go on.

    python benchmarks/interruptions.py [--kills 300]

A child process runs the command and is ended by SIGKILL before its n-th access to a file or folder
of the work; then the same command is run again. It counts commands that do not resume, leftover
files, samples without a charge, duplicate charges, and draws that differ from those first charged.
At every fifth point a full disk (ENOSPC) replaces the kill.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from bdpvi.privacy.entry import Entry

EVENTS = {"open", "os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
"""Audit events (PEP 578) at which a process is killed, besides each wait for the disk."""

TRIED = {"command", "points", "kills", "full disks", "ended before"}
"""What is counted besides faults."""


RELEASES = ("draws", "release")
"""Charges of samples: draws from a fit, what was solved for, or counts."""
WANTED = {"private": (1, 2), "synthesize": (1, 0)}
"""Releases and purchases that each command charges."""


def command(kind: str, folder: Path) -> list[str]:
    table = ["--data", str(folder.parent / "patients.csv"), "--target", "sick"]
    table += ["--ledger", str(folder / "people.jsonl")]
    if kind == "synthesize":
        given = ["--one-row-per-person", "--epsilon", "1", "--out", str(folder / "shared")]
        return [kind, *table, *given, "--quiet"]
    given = [
        "--positive",
        "yes",
        "--epsilon",
        "1",
        "--one-row-per-person",
        "--no-scores",
        "--quiet",
    ]
    return ["private", *table, *given, "--out", str(folder / "shared")]


def child(kind: str, folder: Path, at: int | None, full: bool = False) -> tuple[int, int]:
    """Run the command in a child; return its exit code, -9 if killed, and the points it passed."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        passed = len(os.read(reading, 1 << 20)) if at is None else 0
        while at is None and (more := os.read(reading, 1 << 20)):
            passed += len(more)
        os.close(reading)
        _, status = os.waitpid(pid, 0)
        return os.waitstatus_to_exitcode(status), passed
    os.close(reading)
    count = 0

    def point() -> None:
        nonlocal count
        count += 1
        if at is None:
            os.write(writing, b".")
        elif count == at and full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        elif count == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def watched(event: str, given: tuple[object, ...]) -> None:
        if event in EVENTS and any(isinstance(one, str | Path) and str(folder) in str(one)
                                   for one in given):  # fmt: skip
            point()

    plain = os.fsync

    def fsync(descriptor: Any) -> None:
        point()
        plain(descriptor)

    code = 1
    try:
        os.fsync = fsync  # type: ignore[assignment]
        sys.addaudithook(watched)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        from bdpvi import cli

        sys.argv = ["bdpvi", *command(kind, folder)]
        cli.main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    finally:
        os._exit(code)


def paid(folder: Path) -> tuple[int, int]:
    """Return the number of releases and of purchases that are charged."""
    entries = charged(folder)
    draws = sum(entry.kind in RELEASES for entry in entries)
    return draws, len(entries) - draws


def charged(folder: Path) -> tuple[Entry, ...]:
    """Return all charges."""
    from bdpvi import Ledger

    people = folder / "people.jsonl"
    return Ledger(people).book().charges if people.exists() else ()


def shared(kind: str, folder: Path) -> Path:
    return folder / "shared" / ("synthetic.json" if kind == "synthesize" else "release.json")


def attempt(kind: str, folder: Path, at: int, full: bool, found: Counter[str]) -> None:
    code, _ = child(kind, folder, at, full)
    if code == 0 and not full:
        found["ended before"] += 1
    out = shared(kind, folder)
    if out.exists() and out.stat().st_size and paid(folder)[0] == 0:
        found["sample without a charge"] += 1
    first, kept = charged(folder), [one.read_bytes() for one in folder.rglob("*.output")]
    before = out.read_bytes() if (finished := out.exists()) else None
    again, _ = child(kind, folder, None)
    if again not in ((0, 2) if finished else (0,)):  # it says what is there, or that it is there
        found["does not go on"] += 1
    if before is not None and before != out.read_bytes():  # what is finished is never overwritten
        found["another output"] += 1
    if paid(folder) != WANTED[kind]:
        found["charged twice, or not at all"] += 1
    if charged(folder)[: len(first)] != first:  # with the hashes of their keys
        found["another key"] += 1
    if kept and kept != [out.read_bytes()]:
        found["another output"] += 1
    left = [one for one in folder.rglob(".*") if not one.name.endswith(".lock")]
    if [*left, *folder.glob("*.unfinished")]:
        found["left behind"] += 1


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300, help="points in all, at least")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    from bdpvi import cli  # noqa: F401

    print(f"python benchmarks/interruptions.py --kills {given.kills}")
    print(f"Python {sys.version.split()[0]}, {platform.platform()}")
    rng = np.random.default_rng(0)
    age, rows = rng.normal(58, 14, 1500), []
    sick = rng.random(1500) < 1 / (1 + np.exp(-(age - 58) / 10))
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        frame = pd.DataFrame({"age": age, "dose": rng.normal(size=1500)})
        frame.assign(sick=np.where(sick, "yes", "no")).to_csv(root / "patients.csv", index=False)
        for kind in WANTED:
            work = fresh(root)
            code, points = child(kind, work, None)
            assert code == 0, (kind, code)
            turns = max(1, -(-given.kills // (len(WANTED) * points)))
            tried = [at for _ in range(turns) for at in range(1, points + 1)]
            if given.kills < len(WANTED) * points:
                tried = tried[:: max(1, len(WANTED) * points // given.kills)]
            found: Counter[str] = Counter()
            for number, at in enumerate(tried):
                full = number % 5 == 4
                found["full disks" if full else "kills"] += 1
                attempt(kind, fresh(root), at, full, found)
            rows.append({"command": kind, "points": points, **found})
            print(json.dumps(rows[-1]), flush=True)
    wrong = [name for row in rows for name in row if name not in TRIED]
    print("faults:", wrong or "none")
    sys.exit(bool(wrong))


def fresh(root: Path) -> Path:
    """Return a folder to work in, as it was at first."""
    work = root / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    return work


if __name__ == "__main__":
    main()
