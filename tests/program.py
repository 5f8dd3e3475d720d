"""What there is to name: the program's commands, options, classes, functions, values and files."""

from __future__ import annotations

import ast
import keyword
import pkgutil
import re
from collections import defaultdict
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import typer

ROOT = Path(__file__).parents[1]
PACKAGES = ("bdpvi", "datasets", "guides")
SHORT = {
    "datasets": "bdpvi.datasets",
    "dist": "pyro.distributions",
    "guides": "bdpvi.guides",
    "models": "bdpvi.models",
    "nn": "torch.nn",
    "parametrizations": "torch.nn.utils.parametrizations",
    "poutine": "pyro.poutine",
    "synthesis": "bdpvi.synthesis",
} | {
    name: name for name in ("bdpvi", "dp_accounting", "numpy", "opacus", "pyro", "studies", "torch")
}
"""Modules that pages name, by the word that they use."""
THEIRS = "builtins numpy pandas pyro pyro.distributions pyro.infer pyro.infer.autoguide "
THEIRS += "pyro.infer.reparam pyro.poutine sklearn.base sklearn.model_selection torch torch.nn"
"""Modules of others whose names are said without a prefix."""
NOWHERE = "D_k DataTree GradClipScheduler InferenceData NoiseScheduler SecAggPlusWorkflow Sampled "
NOWHERE += "aim approximate_sigma check_estimator cv_results_ fraction_train importlinter "
NOWHERE += "minorityD_N mst secaggplus_mod simulatedD_N"
"""Names of others that no code here says."""
VARIABLES = {"cost": "Cost", "encoding": "Encoding", "fit": "Fit", "ledger": "Ledger"}
VARIABLES |= {"private": "Private", "receipt": "Receipt", "release": "Release"}
"""Classes of which pages have an object of this name."""


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
    inside = tuple(f"{one}/" for one in folders)
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

    found: dict[str, Any] = {}

    def add(words: str, command: Any) -> None:
        found[words] = command
        for name, one in getattr(command, "commands", {}).items():
            add(f"{words} {name}".strip(), one)

    add("", typer.main.get_command(app))
    return found


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


class Names:
    """Every name that the packages define, by what it is."""

    def __init__(self) -> None:
        self.keywords: dict[str, set[str]] = defaultdict(set)
        """Of functions and classes, by their names; ``**`` stands for any."""
        self.members: dict[str, set[str]] = defaultdict(set)
        """Of classes, and of modules under the empty name."""
        self.types: dict[tuple[str, str], str] = {}
        """What a member of a class is, or returns."""
        self.bases: dict[str, set[str]] = defaultdict(set)
        self.passed: set[str] = set()
        """Keywords of calls, also of others' functions."""
        self.texts: set[str] = set()
        self.patterns: set[str] = set()
        """Of texts with values in them, which are stars."""
        for path in modules(*PACKAGES):
            self.members[""].update(Path(path).with_suffix("").parts)
            self._read(tree(path), "", True)
        long = {one for one in self.patterns if re.fullmatch(r"[\w*-]{9,}", one)}
        self.pattern = re.compile("|".join(one.replace("*", r"\w+") for one in long))
        self.taken = self.passed.union(*self.keywords.values())
        self.all = {*self.keywords, *self.texts}.union(self.taken, *self.members.values())

    def _read(self, node: ast.AST, owner: str, outside: bool) -> None:
        for one in ast.iter_child_nodes(node):
            if isinstance(one, ast.ClassDef):
                bases = {ast.unparse(base).partition("[")[0] for base in one.bases}
                self.bases[one.name] |= {base.rpartition(".")[2] for base in bases}
                self.members[owner].add(one.name)
                self._read(one, one.name, True)
                continue
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                given = one.args
                names = {a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
                name = owner if one.name == "__init__" else one.name
                self.keywords[name] |= names | ({"**"} if given.kwarg else set())
                self.members[owner].add(one.name)
                self.types[owner, one.name] = ast.unparse(one.returns) if one.returns else ""
                self._read(one, owner, False)
                continue
            if isinstance(one, ast.Assign | ast.AnnAssign):
                for target in one.targets if isinstance(one, ast.Assign) else [one.target]:
                    if isinstance(target, ast.Name) and outside:
                        self.members[owner].add(target.id)
                        if owner and isinstance(one, ast.AnnAssign):
                            self.keywords[owner].add(target.id)
                            self.types[owner, target.id] = ast.unparse(one.annotation)
                    elif isinstance(target, ast.Attribute):
                        self.members[owner].add(target.attr)
            elif isinstance(one, ast.Constant) and isinstance(one.value, str):
                self.texts.add(one.value)
            elif isinstance(one, ast.JoinedStr):
                some = [p.value if isinstance(p, ast.Constant) else "*" for p in one.values]
                self.patterns.add("".join(map(str, some)))
            elif isinstance(one, ast.keyword) and one.arg:
                self.passed.add(one.arg)
            self._read(one, owner, outside)

    def line(self, name: str) -> set[str]:
        """Return a class with all its bases."""
        found, left = set(), {name}
        while left:
            found.add(one := left.pop())
            left |= self.bases.get(one, set()) - found
        return found

    def takes(self, name: str, word: str) -> bool:
        """Say whether a function, method or class of this name takes a keyword."""
        return any({word, "**"} & self.keywords.get(one, set()) for one in self.line(name))

    def has(self, name: str, member: str) -> bool:
        """Say whether a class of this name has a member."""
        line = self.line(name)
        others = map(theirs, line - {*self.bases})
        mine = any(member in self.members.get(one, ()) for one in line)
        return mine or any(hasattr(one, member) for one in others if one)

    def kind(self, name: str, member: str) -> str:
        """Return the class of a member, if it is one of ours."""
        for one in self.line(name):
            found = self.types.get((one, member), "").strip("'\"").removesuffix(" | None")
            if found in self.bases:
                return found
        return ""


@cache
def ours() -> Names:
    return Names()


@cache
def used() -> frozenset[str]:
    """Return the names that tests, benchmarks and examples call, import, read or pass."""
    found: set[str] = set()
    for path in modules("tests", "benchmarks", "examples", "docs"):
        if path == "tests/test_pages_against_program.py":  # it has names that must not be there
            continue
        for line in text_of(path).splitlines():
            if " import " in line or line.startswith("import "):
                found.update(re.findall(r"\w+", line))
            found.update(re.findall(r"(?<=\.)\w+|\w+(?=[=(])", line))
            found.update(re.findall(r"(?<=\")[\w-]+(?=\")", line))
    return frozenset(found)


@cache
def extras() -> frozenset[str]:
    """Return the names of the extras with which the package can be installed."""
    return frozenset(metadata("bdpvi").get_all("Provides-Extra") or ())


@cache
def theirs(name: str) -> Any:
    """Return what other libraries call by a name; None if nothing is."""
    for module in THEIRS.split():
        with suppress(ImportError, AttributeError):
            return getattr(import_module(module), name)
    return None


@cache
def known(name: str) -> Any:
    """Say whether anything has this name: ours, an option's value, or others' that is used."""
    return (
        name in ours().all
        or name in used()
        or name in commands()
        or name in NOWHERE.split()
        or name in extras()
        or ours().pattern.fullmatch(name)
        or keyword.iskeyword(name)
        or theirs(name) is not None
    )


@cache
def fault(chain: tuple[str, ...]) -> str:
    """Return why a dotted name is wrong, or nothing. ``()`` is a call, ``?`` anything."""
    root, *rest = chain
    rest = [one for one in rest if one != "()"]
    owner = VARIABLES.get(root, root)
    if root in SHORT and "()" not in chain[:-1]:
        try:
            pkgutil.resolve_name(".".join((SHORT[root], *rest)))
        except ImportError as error:
            absent = error.__cause__ or error  # an extra that is not installed
            missing = getattr(absent, "name", None) or "bdpvi"
            return "cannot be imported" if missing.startswith(("bdpvi", "studies")) else ""
        except AttributeError:
            return "" if len(rest) > 1 and ours().has(*rest[-2:]) else "no such name"
        return ""
    some = rest if rest or root == "?" else [root]
    for one in rest:
        if owner in ours().bases:
            if not ours().has(owner, one):
                return f"{owner} has no {one}"
            owner, some = ours().kind(owner, one), some[1:]
    return ", ".join(f"nothing is called {one}" for one in some if not known(one))
