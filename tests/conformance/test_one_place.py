"""One module spends, and one issues the keys of what was spent for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import bdpvi
from bdpvi import datasets, guides

ROOMS = {name: Path(str(one.__file__)).parent for name, one in
         (("bdpvi", bdpvi), ("datasets", datasets), ("guides", guides))}  # fmt: skip
SPENDS = "bdpvi/releases/transaction.py"
WORKS = {"work", "self", "transaction"}
"""What a transaction is called; its own ``charge`` may be called anywhere."""


@lru_cache
def sources() -> tuple[tuple[str, ast.Module], ...]:
    return tuple(_parsed())


def _parsed() -> Iterator[tuple[str, ast.Module]]:
    for name, folder in ROOMS.items():
        for file in sorted(folder.rglob("*.py")):
            place = f"{name}/{file.relative_to(folder).as_posix()}"
            yield place, ast.parse(file.read_text(encoding="utf-8"))


def calls(tree: ast.Module, method: str) -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls of a method, with what it is called on."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=value, attr=name)) if name == method:
                yield ast.unparse(value), node


def test_only_a_transaction_charges_a_ledger() -> None:
    found = {
        (place, on)
        for place, tree in sources()
        for on, node in calls(tree, "charge")
        if on.rpartition(".")[2] not in WORKS
    }
    mine = {(SPENDS, on) for place, on in found if place == SPENDS}
    assert mine == {(SPENDS, "ledger"), (SPENDS, "self.ledger")}
    # A ledger in memory, of what an audit claims; and how draws are asked for.
    others = {
        ("bdpvi/audits/doors.py", "ledger"),
        ("bdpvi/bayesian/drawing.py", "asked"),
        ("bdpvi/bayesian/gated_samples.py", "asked"),
    }
    assert found - mine == others


def test_only_a_ledger_writes_its_lines() -> None:
    found = {place for place, tree in sources() for _ in calls(tree, "_write")}
    assert found <= {"bdpvi/privacy/ledger.py"} | {
        place for place in found if "commands" in place or "bench" in place
    }
    for place, tree in sources():
        names = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == "bdpvi._ground.chain"
            for alias in node.names
        }
        if "append" in names:
            assert place == "bdpvi/privacy/stored.py"  # the ledger's file


def test_only_a_transaction_makes_the_key_of_a_charge() -> None:
    found = {
        place
        for place, tree in sources()
        for _, node in calls(tree, "child")
        if node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value == "charge"
    }
    assert found == {SPENDS}
