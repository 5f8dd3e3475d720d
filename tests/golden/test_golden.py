"""Files made by an earlier version are read, say and predict the same, or are refused by format.

``expected.json`` has what they said when they were made. To write it anew, for a change of words or
numbers that is intended: ``python tests/golden/test_golden.py``.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import bdpvi
from bdpvi import Ledger, load_release
from bdpvi._ground.chain import link, save
from bdpvi.synthesis.synthetic import load

HERE = Path(__file__).parent
EXPECTED = HERE / "expected.json"
ROWS = {
    "age": [20, 51.5, "80", None, "x"],
    "dose": [0.0, -1.25, 3, "0.5", ""],
    "ward": ["a", "north", "?", 7, "zz top"],
}
"""Raw rows: numbers, text for numbers, blanks, and wards that no list names."""
FEATURES = [[0.0, 0.0], [1.0, -1.0], [3.0, 0.5]]
READERS: dict[str, Callable[[Path], Any]] = {
    "release.json": load_release,
    "certified.json": load_release,
    "synthetic.json": load,
    "ledger.jsonl": lambda path: Ledger(path).worst_case(1e-5),
}


def ledger(folder: Path) -> Ledger:
    """Return the ledger, copied: a lock is made beside it."""
    for name in ("ledger.jsonl", "ledger.jsonl.head"):
        shutil.copy(HERE / name, folder / name)
    return Ledger(folder / "ledger.jsonl")


def found(folder: Path) -> dict[str, Any]:
    """Return what the files say now."""
    raw, drawn = load_release(HERE / "release.json"), load_release(HERE / "certified.json")
    spent = ledger(folder).worst_case(1e-5)
    assert spent is not None
    return {
        "release.json": {
            "says": str(raw),
            "means": raw.receipt.meaning,
            "predicts": raw.predict_proba(pd.DataFrame(ROWS))[1].tolist(),
        },
        "certified.json": {
            "says": str(drawn),
            "means": drawn.receipt.meaning,
            "predicts": drawn.predict_proba(torch.tensor(FEATURES).double())[:, 1].tolist(),
        },
        "synthetic.json": {"says": str(load(HERE / "synthetic.json").receipt)},
        "ledger.jsonl": {"says": ledger(folder).said(), "spent": spent.epsilon},
    }


@pytest.mark.parametrize("name", READERS)
def test_a_file_says_what_it_said(name: str, tmp_path: Path) -> None:
    expected = json.loads(EXPECTED.read_text(encoding="utf-8"))[name]
    now = found(tmp_path)[name]
    assert now.pop("predicts", None) == pytest.approx(expected.pop("predicts", None), abs=1e-12)
    assert now.pop("spent", None) == pytest.approx(expected.pop("spent", None), abs=1e-9)
    assert now == expected


def test_a_ledger_has_its_charges_and_takes_another(tmp_path: Path) -> None:
    old = ledger(tmp_path)
    assert old.budget == bdpvi.Budget(2.0, 1e-5)
    kinds = [one.kind for one in old.entries()]
    assert kinds == ["reserved", "constants", "constants", "release", "ended"]
    old.mark(64 * "0")
    assert len(Ledger(old.path).entries()) == len(kinds)


def test_synthetic_rows_have_the_columns_and_domains() -> None:
    made = load(HERE / "synthetic.json")
    assert made.rows == 402
    rows = made.sample(300, seed=0)
    assert list(rows) == ["age", "dose", "ward", "sick"]
    assert len(rows) == 300
    assert rows["age"].between(20, 99).all()
    assert rows["dose"].between(-2, 2).all()
    assert set(rows["ward"]) == {"a", "b", "c"}
    assert set(rows["sick"]) == {"no", "yes"}


def newer(name: str, path: Path) -> None:
    """Write the file with its format number raised by one; a ledger's hashes are made anew."""
    content, last = b"", ""
    if name != "ledger.jsonl":
        whole = json.loads((HERE / name).read_text(encoding="utf-8"))
        path.write_text(json.dumps(whole | {"format": whole["format"] + 1}), encoding="utf-8")
        return
    for line in (HERE / name).read_text(encoding="utf-8").splitlines():
        one = {key: value for key, value in json.loads(line).items() if key != "hash"}
        one |= {"format": one["format"] + 1} if "format" in one else {}
        raw, last = link(last, one)
        content += raw
    save(path, content)


@pytest.mark.parametrize("name", READERS)
def test_a_file_of_the_next_format_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    newer(name, path)
    with pytest.raises(ValueError, match=r"format") as refused:
        READERS[name](path)
    said = str(refused.value)
    assert said.startswith(str(path))
    assert "\n" not in said
    assert "another version of bdpvi made it" in said


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as given:
        text = json.dumps(found(Path(given)), indent=2, ensure_ascii=False)
    EXPECTED.write_text(text + "\n", encoding="utf-8")
