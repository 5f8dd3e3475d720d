"""The paper cites printed outputs: each number is in its file, each command and file is there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from program import files
from test_pages_against_program import in_shell

ROOT = Path(__file__).parents[1]
PAPER = ROOT / "docs" / "paper" / "bdpvi.tex"
CITED = re.compile(r"\\fromfile\{([^{}]*)\}\{([^{}]*)\}")
SOURCES = ("docs/benchmarks/", "docs/studies/", "docs/reliability.md", "docs/explanation/")


def text() -> str:
    """Return the paper without comments and definitions."""
    return re.sub(r"(?m)^%.*\n", "", PAPER.read_text("utf-8").partition("\\maketitle")[2])


def stands_in(number: str, output: str) -> bool:
    """Return whether a number stands in a text by itself, not as a part of another one."""
    found = re.escape(number).replace(r"\-", "[-−]")
    return re.search(rf"(?<![\d.]){found}(?![\d]|\.\d|e[-+]?\d)", output) is not None


def test_numbers_are_found_whole() -> None:
    assert stands_in("-0.38", "| 1 | −0.38 ± 0.00")
    assert stands_in("0 of 16", "**0 of 16**. The")
    assert not stands_in("0.10", "0.103 10.10 0.10e-5")


def test_every_number_is_in_the_output_that_it_names() -> None:
    cited = CITED.findall(text())
    assert len(cited) > 100
    missing = [
        (number, name)
        for number, name in cited
        if not name.startswith(SOURCES)
        or not stands_in(number, (ROOT / name).read_text(encoding="utf-8"))
    ]
    assert missing == []


def test_no_result_stands_without_its_output() -> None:
    """In the abstract, the problem and the experiments each decimal is cited, or a setting."""
    paper = text()
    parts = [
        paper.partition("\\begin{abstract}")[2].partition("\\section{Guarantees}")[0],
        paper.partition("\\section{Experiments}")[2].partition("\\section{Limits}")[0],
    ]
    assert all(len(part) > 1000 for part in parts)
    for part in parts:
        bare = re.sub(r"\\given\{[^{}]*\}|\\cmd\{[^{}]*\}", "", CITED.sub("", part))
        assert re.findall(r"\d*\.\d+", bare) == []


def test_commands_and_files_are_there() -> None:
    paper = text()
    commands = re.findall(r"\\cmd\{([^{}]*)\}", paper)
    assert len(commands) > 15
    assert [wrong for one in commands for wrong in in_shell(" ".join(one.split()), False)] == []
    named = re.findall(r"\\(?:file|proofin)\{([^{}]*)\}", paper)
    known = {*files()} | {str(Path(one).parent) for one in files()}
    assert {*named} - known == set()


def test_the_command_of_every_cited_output_is_named() -> None:
    paper = text()
    for name in {name for _, name in CITED.findall(paper)}:
        head = (ROOT / name).read_text(encoding="utf-8")[:400]
        if found := re.search(r"benchmarks/\w+\.py|bdpvi compare|make reliability", head):
            assert found[0] in paper, name
        else:
            assert name.startswith("docs/explanation/"), name


@pytest.mark.whole
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex")
def test_it_compiles(tmp_path: Path) -> None:
    here, out = tmp_path / "docs" / "paper", tmp_path / "build" / "paper"
    here.mkdir(parents=True)
    shutil.copy(PAPER, here)
    script = [sys.executable, str(ROOT / "docs" / "draw_figures.py"), "--printed", "--as", "pdf"]
    places = os.pathsep.join(map(str, (ROOT, ROOT / "benchmarks")))
    environment = {**os.environ, "PYTHONPATH": places}
    subprocess.run([*script, "--out", str(out)], check=True, env=environment)
    for _ in range(3):
        subprocess.run(
            ["pdflatex", "-interaction=batchmode", "-halt-on-error", "-output-directory", str(out),
             PAPER.name],
            check=True, cwd=here, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    log = (out / "bdpvi.log").read_text(encoding="latin-1")
    assert "undefined" not in log
    assert "Overfull" not in log
    pages = re.search(r"\((\d+) pages", log)
    assert pages is not None
    assert 6 <= int(pages[1]) <= 10
