"""The table of faults is up to date: patches apply, and tests that must catch them exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from faults import FAULTS
from page import PAGE, ROOMS, page, room_of

ROOT = Path(__file__).parents[1]
PATCHES = sorted((ROOT / "tests" / "sabotage").glob("*.patch"))
CAUGHT = {name: tests for fault in FAULTS for name, tests in fault.caught.items()}


def hunks(patch: Path) -> list[tuple[Path, str]]:
    """Return the file and the text that each hunk of a patch takes the place of."""
    found: list[tuple[Path, str]] = []
    file = ROOT
    for line in patch.read_text("utf-8").splitlines(keepends=True):
        if line.startswith("+++ b/"):
            file = ROOT / line[len("+++ b/") :].strip()
        elif line.startswith("@@"):
            found.append((file, ""))
        elif found and line[0] in " -" and not line.startswith("--- a/"):
            found[-1] = (file, found[-1][1] + line[1:])
    return found


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_patch_applies_to_the_code_as_it_is(patch: Path) -> None:
    for file, before in hunks(patch):
        assert file.read_text("utf-8").count(before) == 1, f"make {patch.name} anew for {file.name}"


@pytest.mark.parametrize("name", CAUGHT)
def test_the_tests_that_must_catch_a_fault_exist(name: str) -> None:
    assert CAUGHT[name]
    for test in CAUGHT[name]:
        file, _, function = test.partition("::")
        tree = ast.parse((ROOT / file).read_text("utf-8"))
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert function.partition("[")[0] in names


def test_every_fault_has_a_patch_or_a_hole_and_every_patch_a_fault() -> None:
    assert all(fault.caught or fault.hole for fault in FAULTS)
    assert set(CAUGHT) == {patch.stem for patch in PATCHES}
    assert len(CAUGHT) == sum(len(fault.caught) for fault in FAULTS)


def test_the_page_is_that_of_the_faults() -> None:
    assert PAGE.read_text("utf-8") == page(), "run python tests/sabotage/page.py"
    assert {room_of(name) for name in CAUGHT} <= set(ROOMS)
