"""Files made by an earlier version are read, say and predict the same, or are refused by format.

``expected.json`` has what they said when they were made. To write it anew, for a change of words or
numbers that is intended: ``python tests/golden/test_golden.py``.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import bdpvi
from bdpvi import Ledger, load_release
from bdpvi._ground.chain import link, save
from bdpvi.guides import Laplace, MeanField
from bdpvi.synthesis import load

HERE = Path(__file__).parent
EXPECTED = HERE / "expected.json"
ROWS = {
    "age": [20, 51.5, "80", None, "x"],
    "dose": [0.0, -1.25, 3, "0.5", ""],
    "ward": ["a", "north", "?", 7, "zz top"],
}
"""Raw rows: numbers, text for numbers, blanks, and wards that no list names."""
FEATURES = [[0.0, 0.0], [1.0, -1.0], [3.0, 0.5]]
FORMS, NUMBERS = HERE / "forms", HERE / "numbers.json"
"""A file of each kind of release, fit and ledger, and the numbers that they had when made."""
CLIPPED = bdpvi.BayesianLogisticRegression(clip=0.5, intercept=True)
BOUNDED = bdpvi.BayesianLogisticRegression.unweighted(intercept=True, limit=2.0)
FITS: dict[str, tuple[Any, Any]] = {
    "laplace": (BOUNDED, Laplace),
    "meanfield": (CLIPPED, MeanField),
}
RECORDS = [[0.0, 0.0, 1.0], [1.0, -1.0, 0.0]]
ROWS_OF_PEOPLE = pd.DataFrame({"age": [30, None], "dose": [1.5, 4.0], "sex": ["F", "?"]})
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
        "ledger.jsonl": {"says": ledger(folder).history(), "spent": spent.epsilon},
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
    kinds = [entry.kind for entry in old.entries()]
    assert kinds == ["reserved", "constants", "constants", "release", "ended"]
    old.bind(64 * "0")
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


def numbers(name: str, folder: Path) -> dict[str, Any]:
    """Return the numbers of a file of :data:`FORMS`: what it cost, and what it predicts."""
    if name.endswith(".jsonl"):
        for file in FORMS.glob(f"{name}*"):
            shutil.copy(file, folder / file.name)
        book = Ledger(folder / name)
        spent = [book.worst_case(delta) for delta in (1e-6, 1e-4)]
        steps = [f"{entry.kind} {entry.purpose}" for entry in book.entries()]
        return {"spent": [bound and bound.epsilon for bound in spent], "steps": steps}
    if name in FITS:
        shutil.copytree(FORMS / name, folder / name)
        model, guide = FITS[name]
        cost = bdpvi.cost(bdpvi.load_fit(folder / name, model, guide(model)))
        return {"spent": cost.bayesian and cost.bayesian.epsilon}
    if name == "synthesis.json":
        made = load(FORMS / name)
        rows = json.loads(made.sample(3, seed=1).to_json(orient="records"))
        return {"epsilon": made.receipt.worst_case.epsilon, "rows": rows}
    release = load_release(FORMS / name)
    x = ROWS_OF_PEOPLE if release.encoding is not None else torch.tensor(RECORDS).double()
    bounds = [getattr(release.receipt, kind) for kind in ("worst_case", "bayesian", "typical")]
    cuts = getattr(release.model, "cuts", ())
    curves = release.predict_survival(x, cuts) if cuts else ()
    return {
        **({"curves": [np.asarray(one).tolist() for one in curves]} if cuts else {}),
        "epsilon": [bound and bound.epsilon for bound in bounds],
        "features": list(release.feature_names),
        "predicts": _predicted(release, name, x),
        "draws": {latent: list(draws.shape) for latent, draws in release.latents.items()},
    }


@pytest.mark.parametrize("name", sorted(json.loads(NUMBERS.read_text("utf-8"))))
def test_each_kind_of_file_has_its_numbers(name: str, tmp_path: Path) -> None:
    expected = json.loads(NUMBERS.read_text("utf-8"))[name]
    if name in FITS:  # a fit knows the code that trained it
        with suppress(ValueError):
            assert numbers(name, tmp_path) == pytest.approx(expected, rel=1e-9)
        return
    now = numbers(name, tmp_path)
    for leaf, value in leaves(expected).items():
        close = pytest.approx(value, rel=1e-9) if isinstance(value, float) else value
        assert leaves(now)[leaf] == close, leaf
    assert leaves(now).keys() == leaves(expected).keys()


def _predicted(release: bdpvi.Release, name: str, x: Any) -> Any:
    classes = name in ("classes.json", "ordinal.json")
    means = release.predict_proba(x) if classes else release.predict_mean(x)
    return np.asarray(means).tolist()


def leaves(value: Any, at: str = "") -> dict[str, Any]:
    """Return the numbers and words of nested lists and mappings, by place."""
    if not isinstance(value, dict | list):
        return {at: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return {k: v for key, part in items for k, v in leaves(part, f"{at}/{key}").items()}


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as given:
        kinds = sorted(
            file.name for file in FORMS.iterdir() if file.suffix in ("", ".json", ".jsonl")
        )
        written = {name: numbers(name, Path(given)) for name in kinds}
        NUMBERS.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
        text = json.dumps(found(Path(given)), indent=2, ensure_ascii=False)
    EXPECTED.write_text(text + "\n", encoding="utf-8")
