"""A simulated export of a hospital's system, with its faults, and known effects.

Semicolons, decimal commas, thousands points, German dates, several spellings of yes and of no,
words among numbers, an identifier for each row, codes that look like numbers, rare categories.
Cells are texts, as in a file. The log-odds of the target are linear in what the columns say,
so the effects are those of a logistic regression.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

EFFECTS = {"Alter": 0.04, "krea": 0.9, "HbA1c": 0.35, "Raucher": 0.7}
"""Log-odds for a year, for 1 mg/dl, for 1 %, and of smokers against others."""
TARGET, POSITIVE = "sick", "yes"
CATEGORIES: dict[str, dict[str, float]] = {
    "plz": {"01067": 0.5, "04109": 0.3, "80331": 0.2},
    "Geschlecht": {"w": 0.51, "m": 0.485, "d": 0.005},
    "Diagnose": {"I10": 0.4, "E11": 0.25, "J44": 0.15, "N18": 0.1, "C50": 0.07, "G20": 0.03},
    "Station": {"Innere": 0.45, "Chirurgie": 0.3, "Neurologie": 0.17, "Intensiv": 0.08},
    "Land": {"DE": 0.9, "NA": 0.06, "-": 0.04},
}
"""Levels, and how frequent they are."""
_OTHERS = {"E11": 0.4, "N18": 0.6, "C50": 0.3, "Chirurgie": -0.3, "Intensiv": 0.8, "m": 0.2}
"""Log-odds of levels; 0 of the others."""
_YES, _NO = ["yes", "Yes", "YES", "y "], ["no", "No", "n"]
FILE: dict[str, Any] = {
    "separator": ";",
    "charset": "latin-1",
    "decimal": ",",
    "date_format": "%d.%m.%Y",
}
"""The file's format."""
TYPES: dict[str, Any] = {
    "source": "The hospital's form.",
    "columns": {
        "Fallnummer": {"kind": "identifier"},
        "patient_id": {"kind": "identifier"},
        "Alter": {"kind": "integer"},
        "Größe": {"kind": "number", "step": 0.1},
        "Gewicht": {"kind": "number", "step": 0.1, "blank": ["", "?"]},
        "Blutdruck": {"kind": "integer", "blank": [""]},
        "krea": {"kind": "number", "step": 0.01, "blank": ["unbek."]},
        "HbA1c": {"kind": "number", "step": 0.1, "blank": [""]},
        "Kosten": {"kind": "number", "step": 0.01, "thousands": "."},
        "Aufnahme": {"kind": "date"},
        "plz": {"kind": "code"},
        "Geschlecht": {"kind": "category"},
        "Diagnose": {"kind": "code"},
        "Station": {"kind": "category"},
        "Land": {"kind": "category", "levels": ["DE", "NA", "-"]},
        "Raucher": {"kind": "boolean", "spellings": {"True": ["ja", "Ja"], "False": ["nein"]}},
        "sick": {
            "kind": "boolean",
            "levels": ["no", "yes"],
            "spellings": {"yes": ["Yes", "YES", "y"], "no": ["No", "n"]},
        },
    },
}
"""What the owner declares after ``bdpvi table``: kinds, and no bounds."""
BOUNDS: dict[str, tuple[float | str, float | str]] = {
    "Alter": (18, 100),
    "Größe": (140, 210),
    "Gewicht": (40, 160),
    "Blutdruck": (80, 220),
    "krea": (0, 4),
    "HbA1c": (4, 12),
    "Kosten": (0, 20_000),
    "Aufnahme": ("2010-01-01", "2020-12-31"),
}
"""Bounds that the owner knows without looking at the rows."""


def hospital(rows: int, seed: int, visits: int = 1) -> pd.DataFrame:
    """Return an export of this many rows, of persons with about ``visits`` rows each."""
    random = np.random.default_rng(seed)
    numbers = {
        "Alter": np.round(random.normal(58, 15, rows).clip(18, 100)),
        "krea": np.round(0.4 + random.gamma(3, 0.2, rows), 2),
        "HbA1c": np.round(5 + random.gamma(2, 0.5, rows), 1),
        "Gewicht": np.round(random.normal(78, 14, rows), 1),
    }
    pressure = np.round(100 + 0.5 * numbers["Alter"] + random.normal(0, 14, rows))
    levels = {
        name: random.choice([*given], rows, p=[*given.values()])
        for name, given in CATEGORIES.items()
    }
    smokes = random.random(rows) < 0.3
    known = {"krea": random.random(rows) < 0.92, "HbA1c": random.random(rows) < 0.85}
    logit = EFFECTS["Raucher"] * smokes - 0.9
    for name, middle in (("Alter", 58), ("krea", 1.0), ("HbA1c", 6.0)):
        logit += EFFECTS[name] * np.where(known.get(name, True), numbers[name] - middle, 0.0)
    logit += sum(np.array([_OTHERS.get(one, 0.0) for one in some]) for some in levels.values())
    sick = random.random(rows) < 1 / (1 + np.exp(-logit))
    days = pd.Timestamp("2010-01-01") + pd.to_timedelta(random.integers(0, 4000, rows), "D")
    persons = max(rows // visits, 1)
    which = random.permutation(rows) if visits == 1 else random.integers(0, persons, rows)
    return pd.DataFrame(
        {
            "Fallnummer": [f"{at:07d}" for at in random.permutation(rows)],
            "patient_id": [f"P{at:05d}" for at in which],
            "Alter": [f"{one:.0f}" for one in numbers["Alter"]],
            "Geschlecht": levels["Geschlecht"],
            "Größe": [_german(one, 1) for one in random.normal(170, 10, rows)],
            "Gewicht": _lacking(random, [_german(one, 1) for one in numbers["Gewicht"]], 0.05, "?"),
            "Blutdruck": _lacking(random, [f"{one:.0f}" for one in pressure], 0.06, ""),
            "krea": np.where(known["krea"], [_german(one, 2) for one in numbers["krea"]], "unbek."),
            "HbA1c": np.where(known["HbA1c"], [_german(one, 1) for one in numbers["HbA1c"]], ""),
            "Raucher": np.where(smokes, random.choice(["ja", "Ja"], rows), "nein"),
            "plz": levels["plz"],
            "Diagnose": levels["Diagnose"],
            "Station": levels["Station"],
            "Land": levels["Land"],
            "Aufnahme": days.strftime("%d.%m.%Y"),
            "Kosten": [_german(one, 2) for one in random.gamma(2, 1500, rows)],
            "sick": np.where(sick, random.choice(_YES, rows), random.choice(_NO, rows)),
        }
    )


def _german(number: float, digits: int) -> str:
    """Return a number with a decimal comma and thousands points."""
    return f"{number:,.{digits}f}".translate(str.maketrans(",.", ".,"))


def _lacking(random: np.random.Generator, cells: list[str], share: float, word: str) -> Any:
    """Return the cells, a share of them replaced by a word that stands for a blank."""
    return np.where(random.random(len(cells)) < share, word, cells)
