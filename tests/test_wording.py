"""Messages and pages use the terms of the field: words that stopped readers do not come back."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from program import commands

ROOT = Path(__file__).parents[1]
INSTEAD = {
    r"bought(?! here)|buys?|unpaid": "private preprocessing; to estimate privately",
    r"(public|private|exact|bought) constants|constants of": "preprocessing bounds",
    r"aimed at": "target",
    r"previews?": "simulated releases",
    r"(of|in|on) the panel|a panel of|panel's": "reference records",
    r"hardly measured": "dominated by privacy noise",
    r"the house|leaves the house": "outputs",
    r"your door|so many|besides(?! must)|all else|rests? on|no part in|no file here": "plain words",
}
WORDS = re.compile("|".join(rf"(?<![\w.-])({words})(?![\w=(])" for words in INSTEAD), re.IGNORECASE)
FREE = ("benchmarks.md", "changelog.md", "studies/")
"""Pages of numbers and of history; programs write those of studies."""
CODE = re.compile(r"^```.*?^```|``?[^`]+``?|\]\([^)]*\)", re.MULTILINE | re.DOTALL)


def spoken(file: Path) -> list[str]:
    """Return the texts of a module with more than a word that are no docstrings."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and id(node) not in silent
        if isinstance(node.value, str) and " " in node.value.strip()
    ]


def test_messages_and_reports_use_the_terms_of_the_field() -> None:
    found = []
    for folder in ("bdpvi", "datasets", "guides"):
        for file in (ROOT / folder).rglob("*.py"):
            found += [(file.name, t) for t in spoken(file) if WORDS.search(CODE.sub("", t))]
        for file in (ROOT / folder).rglob("*.j2"):
            lines = file.read_text(encoding="utf-8").splitlines()
            found += [(file.name, line) for line in lines if WORDS.search(line)]
    for name, command in commands().items():
        helps = [command.help, *(getattr(param, "help", "") for param in command.params)]
        found += [(name, text) for text in helps if WORDS.search(CODE.sub("", text or ""))]
    assert found == [], INSTEAD


def test_pages_use_the_terms_of_the_field() -> None:
    assert WORDS.search("scales that were bought")
    assert not WORDS.search("receipt.bought, --constants FILE, panel=(x, y)")
    found = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        name = page.relative_to(ROOT).as_posix().removeprefix("docs/")
        if not name.startswith(FREE):
            text = CODE.sub("", page.read_text(encoding="utf-8"))
            found += [(name, one[0]) for one in WORDS.finditer(text)]
    assert found == [], INSTEAD
