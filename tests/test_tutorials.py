"""Pyro's own tutorials, written anew: each trains privately, and comes near to the truth."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pyro
import pytest

FOLDER = Path(__file__).parents[1] / "examples" / "tutorials"
FILES = sorted(FOLDER.glob("*.py"))
NUMBER = re.compile(r"-?\d+\.\d+")


def numbers(text: str) -> list[float]:
    return [float(one) for one in NUMBER.findall(text)]


@pytest.mark.whole
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_tutorial_trains_and_says_what_it_guarantees(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runpy.run_path(str(path))["main"]()
    pyro.clear_param_store()
    *before, guarantee, learned = capsys.readouterr().out.strip().splitlines()[:4]
    if path.stem == "baseball":
        assert "worst-case DP ε = 2 (target)" in before[0]
        found, truth = (numbers(part)[-2:] for part in guarantee.split("] of "))
        assert found == pytest.approx(truth, abs=0.15)
        assert found[0] < found[1]
        return
    if path.stem == "svi_part_4":
        guarantee, learned = before[0], guarantee
    assert re.search(r"worst-case DP: ε = [0-3]\.\d+ at δ = 1e-05", guarantee)
    _near(path.stem, learned)
    refused = {"svi_part_3": "loss=TraceGraph_ELBO"}
    assert refused.get(path.stem, "") in "".join(before)


def _near(name: str, learned: str) -> None:
    """Compare what was learned with the truth, both in one line."""
    if name == "vae":
        assert int(re.findall(r"(\d+) %", learned)[0]) >= 80
    elif name == "dmm":
        first, last = (float(one) for one in re.findall(r"-?\d+", learned))
        assert last < 0.8 * first
    elif name == "inducing_points":
        assert numbers(learned)[0] < 0.2
    elif name == "enumeration":
        assert numbers(learned) == pytest.approx([0.85, 0.85, -1, 1, 0.85, -1, 1], abs=0.2)
    else:
        found, truth = (numbers(part) for part in learned.rsplit(" of ", 1))
        assert found == pytest.approx(truth, abs=0.25)


def test_each_is_short_and_says_what_was_changed() -> None:
    assert len(FILES) == 11
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 60, path.stem
        assert f"python examples/tutorials/{path.name}" in text
