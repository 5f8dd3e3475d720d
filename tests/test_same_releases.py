"""What releases said, written down: a change of the code behind them changes none of it.

Only :meth:`bdpvi.noise.keys.Key.fresh`, the ids of ledgers and what keys follow from are fixed,
as the last bit of a price differs between processors: so noise is the same each time. All else goes
through public doors. Tables follow from whole numbers, so no generator has a part in them.
``python tests/test_same_releases.py`` writes answers down that are meant to change.
"""

from __future__ import annotations

import json
import secrets
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import flat
import pandas as pd
import pytest
import torch

import bdpvi
from bdpvi.datasets import ColumnType, Schema, constants_of
from bdpvi.guides import FullRank, LowRank, MeanField
from bdpvi.noise.keys import Key
from bdpvi.releases.transaction import Transaction

WRITTEN = Path(__file__).with_name("same_releases.json")
PUBLIC = constants_of({"source": "By law.", "age": [20, 80], "dose": [0, 4], "sex": ["F", "M"]})
SCHEMA = Schema(
    {
        "age": ColumnType(low=0, high=110, whole=True),
        "dose": ColumnType(low=0, high=10),
        "sex": ColumnType(levels=("F", "M")),
        "sick": ColumnType(levels=("no", "yes")),
    },
    "By law.",
)
DPVI = bdpvi.DPVI(rows=600, steps=60, batch=60)


@contextmanager
def fixed_key() -> Iterator[None]:
    """Every secret key is the same one, and so is every ledger's id: for tests alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Key, "fresh", classmethod(lambda cls: Key(bytes(range(32)))))
        patch.setattr(secrets, "token_hex", lambda size: "0f" * size)
        patch.setattr(Transaction, "_key", lambda work, _, one: work.secret.child(one.purpose))
        yield


def patients(rows: int) -> pd.DataFrame:
    """Return people of whom the older and the men are sick more often, and no two columns agree."""
    table = []
    for i in range(rows):
        age, dose, man, luck = 20 + i * 37 % 61, i * 29 % 41, i * 17 % 5 < 2, i * 53 % 97
        sick = luck < age + 10 * man - dose / 2
        table.append((age, dose / 10, "FM"[man], "yes" if sick else "no", (i * 7 + age) % 9))
    return pd.DataFrame(table, columns=["age", "dose", "sex", "sick", "visits"])


def records(rows: int, target: str = "sick") -> bdpvi.Dataset:
    """Return the same people as records of three features of about unit size."""
    frame = patients(rows)
    x = torch.tensor([(frame.age - 50) / 17, frame.dose - 2, frame.sex == "M"]).double().T
    y = frame.sick == "yes" if target == "sick" else frame[target]
    return bdpvi.Dataset(x.contiguous(), torch.tensor(y.to_numpy(), dtype=torch.float64))


def said(release: bdpvi.Release) -> dict[str, Any]:
    """Return what the public and the owner see of a release."""
    result: dict[str, Any] = {
        "receipt": release.receipt.to_dict(),
        "cost": release.cost.to_dict() if release.secret is not None else None,
        "features": list(release.feature_names),
        "draws": len(release.samples),
    }
    if release.encoding is not None:
        result["encoding"] = release.encoding.to_dict()
    if release.estimate is None and release.guide is None:
        result["latents"] = {name: one.tolist() for name, one in release.latents.items()}
    else:  # not the draws, which turn with the eigenvectors of equal eigenvalues
        result["summary"] = release.summary().to_dict()
    return result


def private(**options: Any) -> dict[str, Any]:
    """Return what the file of :func:`bdpvi.private` and its ledger say."""
    options = dict[str, Any](target="sick", epsilon=2.0, progress=False) | options
    if options["target"] == "sick":
        options["positive"] = "yes"
    table = patients(3000).drop(columns="visits" if options["target"] == "sick" else "sick")
    with tempfile.TemporaryDirectory() as folder:
        out, ledger = Path(folder) / "shared", Path(folder) / "ledger.jsonl"
        made = flat.private(table, out=out, ledger=ledger, **options)
        read = bdpvi.load_release(out / "release.json")
        book = bdpvi.Ledger.at(ledger)
        total, kinds = book.worst_case(1e-5), [entry.kind for entry in book.entries()]
    assert total is not None
    rows = pd.DataFrame({"age": [30, None], "dose": [1.5, 4.0], "sex": ["F", "?"]})
    more: dict[str, Any] = {"cost": made.cost.to_dict(), "spent": total.epsilon, "kinds": kinds}
    if read.estimate is None:
        more["predicted"] = read.predict_mean(rows).tolist()
    return said(read) | more


def fitted(model: Any, route: Any, target: str = "sick", rows: int = 600) -> dict[str, Any]:
    """Return what a release of :func:`bdpvi.fit_private` says."""
    return said(bdpvi.fit_private(model, records(rows, target), epsilon=1.0, route=route))


def from_guide(kind: type[Any], **options: Any) -> dict[str, Any]:
    """Return what two draws from a guide say; the noise scale makes them worst-case."""
    model = bdpvi.BayesianLogisticRegression(clip=0.5, intercept=True)
    training = bdpvi.Training(steps=30, rate=0.5, seed=Key(bytes(32))) if kind is LowRank else None
    fit = bdpvi.fit(model, kind(model, **options), records(60), training=training, progress=False)
    return said(bdpvi.release(fit, 2, temperature=20.0))


def synthetic(schema: Schema | None = SCHEMA, target: str | None = "sick") -> dict[str, Any]:
    """Return the counts of :func:`bdpvi.synthesize`, and rows from them."""
    table = patients(1500).drop(columns="visits")
    made = bdpvi.synthesize(table, schema, target, epsilon=1.0, delta=1e-6)
    rows = made.sample(5, seed=3)
    return {
        "receipt": str(made.receipt),
        "epsilon": made.receipt.worst_case.epsilon,
        "single": [one.tolist() for one in made.counts.single],
        "bins": [one.tolist() for one in made.counts.bins],
        "joint": {str(at): one.sum(1).tolist() for at, one in made.counts.joint.items()},
        "deviations": {str(at): one for at, one in made.counts.deviations.items()},
        "columns": list(made.schema.columns),
        "records": made.counts.records,
        "rows": json.loads(rows.to_json(orient="records")),
    }


def logistic(**options: Any) -> bdpvi.BayesianLogisticRegression:
    return bdpvi.BayesianLogisticRegression.unweighted(intercept=True, limit=2.0, **options)


LINEAR = bdpvi.BayesianLinearRegression.of_bounds(0, 8)
POISSON = bdpvi.BayesianPoissonRegression(largest=8)
PERTURBED, SCORES = bdpvi.regression.ObjectivePerturbation, bdpvi.regression.NoisyScores
ANSWERS: dict[str, Callable[[], dict[str, Any]]] = {
    "private, bought": lambda: private(drop=("sex",)),
    "private, all bought": lambda: private(epsilon=4.0),
    "private, public constants": lambda: private(constants=PUBLIC),
    "private, declared rows": lambda: private(constants=PUBLIC, expected_rows=3000, draws=2),
    "private, intervals": lambda: private(constants=PUBLIC, intervals=True),
    "private, linear": lambda: private(constants=PUBLIC, model=LINEAR, target="visits"),
    "private, poisson": lambda: private(constants=PUBLIC, model=POISSON, target="visits"),
    "objective perturbation": lambda: fitted(logistic(), PERTURBED(rows=600)),
    "objective perturbation, counted": lambda: fitted(logistic(), PERTURBED()),
    "noisy scores, logistic": lambda: fitted(logistic(), SCORES(rows=2000), rows=2000),
    "noisy scores, linear": lambda: fitted(LINEAR, SCORES(rows=3000), "visits", 3000),
    "noisy scores, poisson": lambda: fitted(POISSON, SCORES(), "visits", 3000),
    "dpvi, logistic": lambda: fitted(logistic(), DPVI),
    "dpvi, linear": lambda: fitted(LINEAR, DPVI, "visits"),
    "mean-field guide": lambda: from_guide(MeanField),
    "mean-field guide, public noise": lambda: from_guide(MeanField, noise_scale=0.1),
    "full-rank guide": lambda: from_guide(FullRank),
    "full-rank guide, public noise": lambda: from_guide(FullRank, noise_scale=0.1),
    "low-rank guide, trained": lambda: from_guide(LowRank, rank=1),
    "synthesis": synthetic,
    "synthesis, no target": lambda: synthetic(target=None),
    "synthesis, bought": lambda: synthetic(None),
}


def answer(name: str) -> dict[str, Any]:
    """Return the leaves of one answer, as JSON has them."""
    with fixed_key(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return dict(leaves(json.loads(json.dumps(ANSWERS[name]()))))


def leaves(found: object, at: str = "") -> Iterator[tuple[str, object]]:
    """Return all numbers and names with their places; sentences may change."""
    if isinstance(found, dict | list):
        for key, one in found.items() if isinstance(found, dict) else enumerate(found):
            yield from leaves(one, f"{at}/{key}")
    elif not (isinstance(found, str) and " " in found):
        yield at, found


@pytest.mark.parametrize("name", ANSWERS)
def test_a_release_is_what_it_was(name: str) -> None:
    expected, found = json.loads(WRITTEN.read_text("utf-8"))[name], answer(name)
    assert found.keys() == expected.keys()
    for at, one in expected.items():
        close = pytest.approx(one, rel=1e-9, abs=1e-12) if isinstance(one, float) else one
        assert found[at] == close, at


if __name__ == "__main__":
    text = json.dumps({name: answer(name) for name in ANSWERS}, indent=0, ensure_ascii=False)
    WRITTEN.write_text(text + "\n", "utf-8")
