"""What there is to name: the program's commands, options, modules and files."""

from __future__ import annotations

import ast
import pkgutil
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

ROOT = Path(__file__).parents[1]
PACKAGES = ("bdpvi", "datasets", "guides")


@cache
def files() -> frozenset[str]:
    """Return the paths of files and folders of the tree, without what was built."""
    found, left = set(), [ROOT]
    while left:
        for one in left.pop().iterdir():
            kept = one.name in (".github", ".ci") or one.name[0] != "."
            if kept and one.name not in ("build", "__pycache__"):
                found.add(one.relative_to(ROOT).as_posix())
                left += [one] if one.is_dir() else []
    return frozenset(found)


def modules(*folders: str) -> list[str]:
    """Return the paths of the modules of some folders."""
    inside = tuple(f"{folder}/" for folder in folders)
    return sorted(one for one in files() if one.startswith(inside) and one.endswith(".py"))


@cache
def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@cache
def tree(path: str) -> ast.Module:
    return ast.parse(text_of(path))


@cache
def commands() -> dict[str, Any]:
    """Return every command and group by its words: ``""``, ``"private"``, ``"ledger show"``."""
    from bdpvi.cli import app

    result: dict[str, Any] = {}

    def add(words: str, command: Any) -> None:
        result[words] = command
        for name, one in getattr(command, "commands", {}).items():
            add(f"{words} {name}".strip(), one)

    add("", typer.main.get_command(app))
    return result


def run(*arguments: object) -> str:
    """Run a command in this process; return what it prints, and raise what it raises."""
    from bdpvi.cli import app

    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*(?!\w)")


def of_others(arguments: list[str], said: list[str]) -> set[str]:
    """Return the options in what a command printed that it does not have.

    Those behind the name of a command are that one's.
    """
    name = next((one for n in (2, 1) if (one := " ".join(arguments[:n])) in commands()), "")
    own = re.sub(r"\bbdpvi [a-z]+( [^`;:,.)]+)?", "", " ".join(said))
    return {*OPTION.findall(own)} - options(name)


@cache
def options(command: str) -> frozenset[str]:
    """Return the options of a command of the program, or of a script by its path."""
    found = {"-h", "--help"}
    if command in commands():
        given = commands()[command].params
        return frozenset(found.union(*((*one.opts, *one.secondary_opts) for one in given)))
    left, read = [command], set()
    while left:
        path = left.pop()
        read.add(path)
        found.update(re.findall(r"add_argument\(\s*\"(--?[\w-]+)\"", text_of(path)))
        for name in re.findall(r"^from (?:\w+\.)*(\w+) import", text_of(path), re.MULTILINE):
            for folder in {Path(path).parent, Path("benchmarks"), Path("examples/models")}:
                beside = (folder / f"{name}.py").as_posix()  # a parser that scripts share
                left += [beside] if beside in files() and beside not in read else []
    return frozenset(found)


@cache
def missing(name: str) -> str:
    """Return why a dotted name is wrong, or nothing."""
    try:
        if Path(ROOT, *name.split(".")).with_suffix(".py").exists():
            import_module(name)  # resolve_name does not say why it cannot be imported
        pkgutil.resolve_name(name)
    except ImportError as error:
        absent = getattr(error.__cause__ or error, "name", None)  # an extra that is not installed
        return "cannot be imported" if (absent or "bdpvi").startswith(("bdpvi", "studies")) else ""
    except AttributeError:
        owner, _, member = name.rpartition(".")
        fields = getattr(pkgutil.resolve_name(owner), "__dataclass_fields__", {})
        return "" if member in fields else "no such name"
    return ""
