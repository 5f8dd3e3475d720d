"""The case studies run, and what is stored in them says nothing of a machine."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

ROOT = Path(__file__).parents[1]
STUDIES = sorted((ROOT / "examples" / "case_studies").glob("*.ipynb"))
DATA = {"survey": ROOT.parent / "shared/data/uci", "words": ROOT.parent / "shared/data/keel"}
"""Folders of raw tables; those of others come with statsmodels."""
CELLS, TEXT, FIGURE = 12, 20_000, 60_000
PLACE = re.compile(r"(?<![\w.])/(home|tmp|work|root|Users|usr|opt|var)/|[A-Z]:\\|site-packages")


def cells_of(study: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(study.read_text(encoding="utf-8"))["cells"]
    return found


def outputs_of(study: Path) -> list[dict[str, Any]]:
    return [one for cell in cells_of(study) for one in cell.get("outputs", [])]


@pytest.mark.whole
@pytest.mark.parametrize("study", STUDIES, ids=lambda one: one.stem)
def test_a_case_study_runs(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("statsmodels")
    if (folder := DATA.get(study.stem)) is not None:
        if not folder.is_dir():
            pytest.skip(f"{folder.name}, the table's folder, is not on this machine")
        monkeypatch.setenv("BDPVI_DATA", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)  # and back
    plt.switch_backend("agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells_of(study), start=1):
        if cell["cell_type"] == "code":
            code = "".join(cell["source"])
            exec(compile(code, f"{study.name}, cell {number}", "exec"), names)
    plt.close("all")
    assert list(tmp_path.rglob("release.json"))
    assert list(tmp_path.rglob("statement.html"))


def test_there_are_three() -> None:
    assert [one.stem for one in STUDIES] == ["counts", "survey", "words"]


@pytest.mark.parametrize("study", STUDIES, ids=lambda one: one.stem)
def test_what_is_stored_is_small_and_says_nothing_of_a_machine(study: Path) -> None:
    cells, outputs = cells_of(study), outputs_of(study)
    assert len(cells) <= CELLS
    assert not PLACE.search(study.read_text(encoding="utf-8"))
    assert {one["output_type"] for one in outputs} <= {"stream", "display_data", "execute_result"}
    assert not [one for one in outputs if one.get("name") == "stderr"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == [*range(1, len(code) + 1)]
    figures = 0
    for one in outputs:
        data = {"text/plain": one.get("text", ""), **one.get("data", {})}
        for kind, content in data.items():
            size = len("".join(content))
            if kind == "image/png":
                figures += 1
                assert 0.75 * size <= FIGURE  # base64
            else:
                assert size <= TEXT
    assert figures == 1
