"""The code on the documentation's pages runs, page by page."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from simulated import logistic_data
from test_cli import run

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN = {"python", "sh"}
"""Languages of fenced blocks that run; a command that is only to be read is indented."""


def blocks(page: Path) -> list[tuple[str, str, int]]:
    """Return language, code and first line of every fenced block that runs."""
    tokens = MarkdownIt().parse(page.read_text(encoding="utf-8"))
    return [
        (token.info.strip(), token.content, token.map[0] + 1)
        for token in tokens
        if token.type == "fence" and token.info.strip() in RUN and token.map
    ]


def in_shell(code: str) -> None:
    """Run a shell's lines; those of the command alone in this process, which has it loaded."""
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.split(line)
        if words and words[0] == "bdpvi" and not set("|&;<>$`*") & set(line):
            assert run(*words[1:]) == 0, line
        else:
            subprocess.run(["bash", "-euc", line], check=True)


def patients(folder: Path) -> None:
    """Write the tables that the pages' commands read."""
    data = logistic_data(2_000, 3)
    rows = [
        ",".join([*(f"{value:.3f}" for value in x), "yes" if y else "no"])
        for x, y in zip(data.x.tolist(), data.y.tolist(), strict=True)
    ]
    for name in ("patients.csv", "new-patients.csv", "clinic.csv"):
        (folder / name).write_text("\n".join(["age,weight,pressure,sick", *rows]) + "\n")


NUMBER = re.compile(r"\d+\.\d+")


def as_it_says(page: Path) -> Callable[..., None]:
    """Return ``print`` that holds a page to the numbers in the comment behind a call of it.

    Each must be printed, when it is rounded to as many digits.
    """
    lines = page.read_text(encoding="utf-8").splitlines()

    def printed(*values: object, sep: str = " ") -> None:
        frame = inspect.currentframe()
        assert frame is not None
        assert frame.f_back is not None
        said = sep.join(map(str, values))
        print(said)
        for number in NUMBER.findall(lines[frame.f_back.f_lineno - 1].partition("#")[2]):
            digits = len(number.partition(".")[2])
            found = {f"{float(one):.{digits}f}" for one in NUMBER.findall(said)}
            assert number in found, f"{page}: {number} is not in {said}"

    return printed


@pytest.mark.slow
def test_pictures_are_drawn(tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "docs" / "draw_figures.py"), "--out", str(tmp_path)]
    places = os.pathsep.join(map(str, (ROOT, ROOT / "benchmarks")))
    subprocess.run(script, check=True, env={**os.environ, "PYTHONPATH": places})
    shown = {path.name for path in (ROOT / "docs" / "figures").glob("epsilon-*.svg")}
    assert {path.name for path in tmp_path.glob("epsilon-*.svg")} == shown


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if blocks(page)],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_code_on_pages_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    patients(tmp_path)
    # The blocks of a page go on from another.
    shared: dict[str, object] = {"__name__": "__main__", "print": as_it_says(page)}
    for language, code, line in blocks(page):
        if language == "python":
            exec(compile("\n" * line + code, str(page), "exec"), shared)
        else:
            in_shell(code)
