"""Put faults into a copy of the tree, one at a time, and see that a test fails.

    python tests/sabotage/run.py [NAME ...]

Each named test passes on a clean copy first. Names are those of the patches; all by default. The
exit code is 1 if a fault is not caught, or a patch does not apply.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from fault import faults

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGES = ("guides", "datasets")
"""Folders at the root that are installed inside ``bdpvi``."""
FAILED = 1
"""Pytest's exit code where tests ran and some failed; others are mistakes of ours."""
IMPORTED = """
import bdpvi, bdpvi.datasets, bdpvi.guides
for module in (bdpvi, bdpvi.datasets, bdpvi.guides):
    print(module.__file__)
"""


def main(names: Sequence[str]) -> int:
    """Run the faults of these names; return the exit code."""
    caught = {one.name: one.tests for one in faults()}
    if unknown := set(names) - set(caught):
        print(f"no such patch: {', '.join(sorted(unknown))}; there are {', '.join(caught)}")
        return 2
    chosen = {name: caught[name] for name in names or caught}
    with tempfile.TemporaryDirectory(prefix="sabotage-") as folder:
        clean = copied(Path(folder) / "clean")
        began = time.monotonic()
        every = sorted({test for tests in chosen.values() for test in tests})
        code, said = tested(clean, every)
        if code:
            print(f"the tests fail without any fault:\n{said}")
            return 1
        print(f"{'without a fault':36}{time.monotonic() - began:6.1f} s  {len(every)} tests pass")
        missed = sum(not tried(name, tests, Path(folder)) for name, tests in chosen.items())
    print(f"{len(chosen) - missed} of {len(chosen)} faults are caught")
    return int(missed > 0)


def tried(name: str, tests: Sequence[str], folder: Path) -> bool:
    """Put one fault into a fresh copy, print what became of it, and return whether it is caught."""
    began, tree = time.monotonic(), folder / "faulty"
    shutil.copytree(folder / "clean", tree, symlinks=True)
    try:
        patch = ["git", "apply", str(HERE / f"{name}.patch")]
        applied = subprocess.run(patch, cwd=tree, capture_output=True, text=True, check=False)
        if applied.returncode:
            result, found = "the patch does not apply:\n" + applied.stderr, False
        else:
            placed(tree)
            code, said = tested(tree, tests)
            lines = [line for line in said.splitlines() if line.startswith("FAILED ")]
            failed = [line.removeprefix("FAILED ").partition(" - ")[0] for line in lines]
            found = code == FAILED and bool(failed)
            result = failed[0] if found else f"NOT CAUGHT (pytest's exit code {code})\n{said}"
    finally:
        shutil.rmtree(tree)
    print(f"{name:36}{time.monotonic() - began:6.1f} s  {result}", flush=True)
    return found


def copied(tree: Path) -> Path:
    """Copy the files that git knows or would take, as they are now, and check what is imported."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, names.decode().split("\0")):
        if (source := ROOT / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, tree / name, follow_symlinks=False)
    subprocess.run(["git", "init", "-q"], cwd=tree, check=True)  # or patches are of a tree above
    placed(tree)
    printed = python(tree, "-c", IMPORTED)
    files = [Path(line).resolve() for line in printed.stdout.splitlines()]
    if len(files) != 3 or not all(file.is_relative_to(tree.resolve()) for file in files):
        raise SystemExit(
            f"the copy does not import its own code:\n{printed.stdout}{printed.stderr}"
        )
    return tree


def placed(tree: Path) -> None:
    """Put the packages of the root where Python finds them before those that are installed."""
    for name in PACKAGES:
        inside = tree / "bdpvi" / name
        if not inside.is_symlink():
            shutil.copytree(tree / name, inside, dirs_exist_ok=True)


def tested(tree: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Run tests of a tree up to the first that fails; return pytest's exit code and its output."""
    plain = ("-x", "-q", "-rf", "--tb=short", "-p", "no:cacheprovider")
    run = python(tree, "-m", "pytest", *plain, "-m", "", *tests)
    return run.returncode, run.stdout + run.stderr


def python(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a tree, with that tree's code."""
    own = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=tree,
        env={**os.environ, **own},
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
