"""The table of faults is up to date: patches apply, and tests that must catch them exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from fault import HERE, Fault, faults
from page import PAGE, page

ROOT = Path(__file__).parents[1]


def hunks(patch: Path) -> list[tuple[Path, str]]:
    """Return the file and the text that each hunk of a patch takes the place of."""
    result: list[tuple[Path, str]] = []
    file = ROOT
    for line in patch.read_text("utf-8").splitlines(keepends=True):
        if line.startswith("+++ b/"):
            file = ROOT / line[len("+++ b/") :].strip()
        elif line.startswith("@@"):
            result.append((file, ""))
        elif result and line[0] in " -" and not line.startswith("--- a/"):
            result[-1] = (file, result[-1][1] + line[1:])
    return result


@pytest.mark.parametrize("fault", faults(), ids=lambda fault: fault.name)
def test_a_patch_applies_to_the_code_as_it_is_and_its_tests_exist(fault: Fault) -> None:
    for file, before in hunks(HERE / f"{fault.name}.patch"):
        found = file.read_text("utf-8").count(before)
        assert found == 1, f"make {fault.name}.patch anew for {file.name}"
    assert fault.tests
    for test in fault.tests:
        name, _, function = test.partition("::")
        tree = ast.parse((ROOT / name).read_text("utf-8"))
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert function.partition("[")[0] in names, f"{test}, which {fault.name}.patch names"


def test_the_page_is_that_of_the_faults() -> None:
    assert PAGE.read_text("utf-8") == page(), "run python tests/sabotage/page.py"
