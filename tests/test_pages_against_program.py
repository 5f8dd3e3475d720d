"""Every option, command, name, keyword and file that a page or a message names is there."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from markdown_it import MarkdownIt
from program import OPTION, PACKAGES, commands, files, missing, modules, options, text_of, tree

SHELL = re.compile(r"^(?:\$ |command: )?(?:[A-Z_]+=\S+ )*((?:bdpvi|python|make) .*)$")
FILE = re.compile(r"[\w./-]*\.(?:md|rst|py|toml|patch|j2|cff|lock)|[\w.-]+/[\w./-]*")
OURS = re.compile(r"(?<![\w./-])(?:bdpvi|studies)(?:\.\w+)+")
SCRIPT = re.compile(r"(?<![\w./-])(?:benchmarks|examples)/[\w/-]+\.py")
MARKED = re.compile(r"``(.+?)``|(?::\w+:)+`~?\.?([^`]+)`|(?<!`)`([^`\n]+)`(?!`)", re.DOTALL)
LISTED = re.compile(r"`(bdpvi [a-z][^`]*)`((?:,? (?:or |and )?`--[^`]+`)+)")
"""A command, and the options that are listed behind it."""
ANOTHER = re.compile(r"\b(?:pip|pytest|flwr|flower-\w+|ruff|git) [^`\n]*")
"""A command of another program."""
FLOWER = {"--enable-supernode-auth", "--trusted-entities"}
BEFORE = ("CHANGELOG.md", "docs/how-to/from-other-libraries.md")
"""Pages whose tables have, on the left, names that are gone or of other libraries."""
OUTPUTS = (".txt", "Makefile", ".ci/run")
TABLES = (".csv", ".rst", ".j2")

Fault = tuple[str, str]
"""A word, and why it is wrong."""


class Said(NamedTuple):
    """A span of code, a block of lines, or the prose of a paragraph."""

    line: int
    text: str
    kind: str


def in_markdown(path: str) -> Iterator[Said]:
    text = text_of(path)
    if path in BEFORE:
        text = re.sub(r"^\| [^|]*\||`[^`]+`, which is gone", "| |", text, flags=re.MULTILINE)
    for token in MarkdownIt().parse(text):
        if token.type in ("fence", "code_block") and token.map:
            first = token.map[0] + 1 + (token.type == "fence")
            yield Said(first, token.content, "block")
        elif token.type == "inline" and token.map:
            line = token.map[0] + 1
            yield Said(line, token.content, "prose")
            for child in token.children or ():
                line += child.type in ("softbreak", "hardbreak")
                if child.type == "code_inline":
                    yield Said(line, child.content.strip(), "span")


def in_module(path: str) -> Iterator[Said]:
    """Read docstrings and texts of a module."""
    parts: set[int] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.JoinedStr):
            parts |= set(map(id, node.values))
            some = (
                value.value if isinstance(value, ast.Constant) else "{}" for value in node.values
            )
            text = "".join(map(str, some))
        elif isinstance(node, ast.Constant) and id(node) not in parts:
            text = str(node.value)
        else:
            continue
        if " " not in text.strip():
            continue
        text = re.sub(r"^ *>>>.*", "", text, flags=re.MULTILINE)
        yield Said(node.lineno, text, "prose")
        for one in MARKED.finditer(text):
            line = node.lineno + text[: one.start()].count("\n")
            yield Said(line, " ".join((one[1] or one[2] or one[3]).split()), "span")
        for number, row in enumerate(text.split("\n")):
            if row.startswith("    ") and SHELL.match(row.strip()):
                yield Said(node.lineno + number, f"{row} ...", "block")


def in_shell(line: str, whole: bool) -> Iterator[Fault]:
    """Yield what is wrong with a command line; a whole one has all that its command needs."""
    line = re.split(r" (?:[|>#&;]|\|\|)", line.replace("…", "..."))[0]
    try:
        words = shlex.split(line)
    except ValueError:  # a quotation goes on in the next line
        words = line.split()
    name = words[1] if words[1:] else ""
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE)
        for one in words[1:]:
            if one[0] not in "-." and "=" not in one and one not in targets:
                yield one, "no target of the Makefile"
    elif words[0] == "bdpvi":
        name, left = "", words[1:]
        while (
            left and re.fullmatch("[a-z][a-z-]*", left[0]) and hasattr(commands()[name], "commands")
        ):
            name, left = f"{name} {left[0]}".strip(), left[1:]
            if name not in commands():
                yield f"bdpvi {name}", "no such command"
                return
        yield from of_command(name, left)
        if whole and name and "..." not in left:
            try:
                commands()[name].make_context(name, left)
            except Exception as error:
                yield line, getattr(error, "format_message", error.__repr__)()
    elif words[1:3] == ["-m", "studies"]:
        yield from of_command("benchmarks/studies/__main__.py", words[3:])
    elif name.endswith(".py"):
        yield from of_command(name, words[2:]) if name in files() else [(name, "no such file")]


def of_command(name: str, arguments: list[str]) -> Iterator[Fault]:
    for argument in arguments:
        if OPTION.match(argument) and argument.partition("=")[0] not in options(name):
            yield argument, f"no option of {name or 'bdpvi'}"


def in_prose(text: str, scripts: set[str]) -> Iterator[Fault]:
    """Yield options that no command or script has, and modules and names that are gone."""
    for one in LISTED.finditer(" ".join(text.split())):
        yield from in_shell(f"{one[1]} {' '.join(OPTION.findall(one[2]))}", False)
    for word in {*OPTION.findall(ANOTHER.sub("", text))} - FLOWER:
        if not any(word in options(one) for one in (*commands(), *scripts)):
            yield word, "no option of any command"
    for word in {*SCRIPT.findall(text)} - files():
        yield word, "no such file"
    for word in {*OURS.findall(text)}:
        if why := missing(word):
            yield word, why


def in_code(text: str) -> Iterator[Fault]:
    """Yield what is wrong with a span of code: a command line, or a file's path."""
    if one := SHELL.match(text):
        yield from in_shell(one[1], False)
    elif FILE.fullmatch(text):
        path = text.rstrip("/")
        inside = path.partition("/")[0] in files() or path.endswith((".py", ".md", ".rst", ".toml"))
        if inside and not any(f"/{one}".endswith(f"/{path}") for one in files()):
            yield text, "no such file"


def joined(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line, with the lines that it goes on in."""
    lines = text.splitlines()
    while lines:
        number = len(text.splitlines()) - len(lines)
        line = lines.pop(0)
        while line.endswith("\\") and lines:
            line = line[:-1] + lines.pop(0).strip()
        yield number, line.strip()


def faults(path: str, pieces: Iterator[Said]) -> list[str]:
    """Return place, word and reason of all that is wrong."""
    scripts = {*re.findall(r"(?:benchmarks|examples|docs|tests)/[\w/]+\.py", text_of(path))}
    scripts = (scripts & files()) | ({path} if path.endswith(".py") else set())
    result = []
    for piece in pieces:
        if piece.kind == "block":
            some = ((number, SHELL.match(line)) for number, line in joined(piece.text))
            wrong = [
                (number, *two)
                for number, line in some
                if line
                for two in in_shell(line[1], path.endswith(".md"))
            ]
        elif piece.kind == "prose":
            wrong = [(0, *two) for two in in_prose(piece.text, scripts)]
        else:
            wrong = [(0, *two) for two in in_code(piece.text)]
        result += [f"{path}:{piece.line + number}: {word}: {why}" for number, word, why in wrong]
    return result


def test_faults_are_found() -> None:
    assert not [*in_shell("bdpvi check FILE --target sick --json", True)]
    for line in ("bdpvi look FILE", "bdpvi fit --intervals", "make tea", "python docs/none.py"):
        assert [*in_shell(line, False)], line
    assert [*in_shell("bdpvi private --data patients.csv --out shared", True)]  # no ε
    assert [*in_prose("counts: `bdpvi private --model`, `--largest`, `--folds`", set())]
    assert not [*in_prose("`bdpvi tune` has `--folds`, pip install --no-deps", set())]
    assert [*in_prose("bdpvi.fits", set())]
    assert not [*in_prose("bdpvi.fit", set())]
    assert [*in_code("bdpvi/none.py")]
    assert not [*in_code("bdpvi/cli.py")]


def test_pages_name_what_is_there() -> None:
    found = []
    for path in sorted(files()):
        if path.endswith(".md"):
            found += faults(path, in_markdown(path))
    assert not found, "\n".join(found)


def test_docstrings_and_messages_name_what_is_there() -> None:
    found = []
    for path in modules(*PACKAGES, "benchmarks", "examples"):
        found += faults(path, in_module(path))
    assert not found, "\n".join(found)


def test_outputs_tables_and_templates_name_what_is_there() -> None:
    found = []
    for path in sorted(one for one in files() if one.endswith(OUTPUTS + TABLES)):
        text = re.sub(r"^(bdpvi|\w+ = )|\$\((BIN|PYTHON)\)/", "", text_of(path), flags=re.MULTILINE)
        kind = "prose" if path.endswith(TABLES) else "block"
        lines = (Said(number + 1, line, kind) for number, line in joined(text))
        found += faults(path, lines)
        found += [f"{path}: {one}: no such file" for one in {*SCRIPT.findall(text)} - files()]
    assert not found, "\n".join(found)
