"""An analyst's afternoon: from an Excel export to a table, a model, rows, a statement, a score."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pytest

import bdpvi

pytestmark = pytest.mark.whole
EFFECTS = {"age": 0.04, "hba1c": 0.35, "smoker=yes": 0.7}


def export(file: Path, rows: int = 12_000) -> pd.DataFrame:
    """Write a clinic's export of 14 columns, with known effects; return it as it was meant."""
    rng = np.random.default_rng(1)
    age = rng.normal(58, 15, rows).clip(18, 100).round()
    hba1c = (5 + rng.gamma(2, 0.5, rows)).round(1)
    smokes = rng.random(rows) < 0.3
    logit = 0.04 * (age - 58) + 0.35 * (hba1c - 6) + 0.7 * smokes - 0.9
    ward = rng.choice(["north", "south", "west"], rows)
    frame = pd.DataFrame(
        {
            "patient_id": 10_000 + rng.permutation(rows),
            "age": age.astype(int),
            "sex": rng.choice(["F", "M"], rows),
            "ward": ward,
            "bmi": rng.normal(26, 4, rows).clip(15, 50).round(1),
            "hba1c": [f"{one:.1f} %" for one in hba1c],
            "systolic": rng.normal(130, 15, rows).clip(80, 220).round().astype(int),
            "sport": np.where(rng.random(rows) < 0.9, rng.poisson(3, rows).clip(0, 20), 9999),
            "smoker": np.where(smokes, "yes", "no"),
            "visits": rng.poisson(2, rows).clip(0, 20),
            "insured": rng.choice(["public", "private"], rows, p=[0.8, 0.2]),
            "cost": [f"${one:,.2f}" for one in rng.gamma(3, 800, rows).clip(0, 20_000)],
            "admitted": pd.Timestamp("2022-01-01")
            + pd.to_timedelta(rng.integers(0, 1000, rows), "D"),
            "sick": np.where(rng.random(rows) < 1 / (1 + np.exp(-logit)), "yes", "no"),
        }
    )
    frame.to_excel(file, index=False)
    return frame


def declare(file: Path) -> None:
    """Edit the draft as the clinic's form says: public bounds and levels, and no marks."""
    declared = json.loads(file.read_text(encoding="utf-8"))
    declared["source"] = "The clinic's form."
    public = {
        "age": {"low": 18, "high": 110},
        "bmi": {"low": 10, "high": 60},
        "hba1c": {"low": 4, "high": 14},
        "systolic": {"low": 60, "high": 260},
        "sport": {"low": 0, "high": 20, "missing": {"9999": "not asked"}},
        "visits": {"low": 0, "high": 20},
        "cost": {"low": 0, "high": 20_000},
        "admitted": {"low": "2022-01-01", "high": "2024-12-31"},
        "sex": {"levels": ["F", "M"]},
        "ward": {"levels": ["north", "south", "west"]},
        "smoker": {"levels": ["no", "yes"]},
        "insured": {"levels": ["public", "private"]},
        "sick": {"levels": ["no", "yes"]},
    }
    for name, entry in declared["columns"].items():
        entry.pop("from_data", None)
        entry |= public.get(name, {})
    file.write_text(json.dumps(declared, indent=1), encoding="utf-8")


def test_from_an_export_to_what_is_published_in_eight_commands(tmp_path: Path) -> None:
    frame, ran = export(tmp_path / "export.xlsx"), 0

    def run(*command: object, module: str = "bdpvi") -> str:
        nonlocal ran
        ran += 1
        words = [sys.executable, "-m", module, *map(str, command)]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, encoding="utf-8")
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("table", "export.xlsx", "--one-row-per-person", "--budget", 4)
    declare(tmp_path / "export.xlsx.table.json")
    plan = run("account", "export.xlsx", "--budget", 4, "--plan", "table1,model,synthetic")
    table1, model, rows = re.findall(r"ε = ([\d.]+) by itself; ([\d.]+) with", plan)
    data = ("--data", "export.xlsx", "--quiet")
    run("describe", *data, "--by", "ward", "--epsilon", table1[0], "--out", "table1")
    formula = "sick ~ age * sex + hba1c + smoker + bs(bmi, df=3) + ward"
    ask = ("--formula", formula, "--positive", "yes", "--for", "intervals", "--no-scores")
    run("private", *data, *ask, "--epsilon", model[1], "--out", "model")
    effects = run("summary", "model/release.json", "--odds", "--per", "age=10", "--out", "t.tex")
    run("synthesize", *data, "--target", "sick", "--epsilon", rows[0], "--out", "rows")
    select = run("model/release.json", "patients", "patient_id", module="bdpvi.score")
    account = run("account", "export.xlsx")
    assert ran == 8

    one = pd.read_csv(tmp_path / "table1" / "table_one.csv")
    assert len(one) > 13
    assert "age (per 10)" in effects
    assert (tmp_path / "t.tex").read_text(encoding="utf-8").count("\\hline") == 3
    release = bdpvi.load_release(tmp_path / "model" / "release.json")
    found = {row.name: row for row in release.summary().coefficients}
    found["smoker=yes"] = release.summary(reference={"smoker": "no"}).coefficients[
        [row.name for row in release.summary().coefficients].index("smoker=yes")
    ]
    for name, truth in EFFECTS.items():
        assert abs(found[name].mean - truth) < 5 * (found[name].sd or 0.0), name
    for folder in ("model", "rows", "table1"):
        assert "worst-case DP" in (tmp_path / folder / "statement.html").read_text("utf-8")
    assert len(pd.read_csv(tmp_path / "rows" / "synthetic.csv").columns) == 13
    assert re.search(r"All together: worst-case DP: ε = (3\.\d+|4\.?0*) at δ = 1e-05", account)
    read = frame.assign(
        hba1c=frame.hba1c.str.rstrip(" %").astype(float),
        cost=frame.cost.str.strip("$").str.replace(",", "").astype(float),
        sport=frame.sport.where(frame.sport != 9999),
    )
    database = duckdb.connect()
    database.register("patients", read)
    scored = database.sql(select).df().set_index("patient_id").probability
    wanted = release.predict_proba(frame)[1].set_axis(frame.patient_id)
    np.testing.assert_allclose(scored[wanted.index], wanted, atol=1e-9)
