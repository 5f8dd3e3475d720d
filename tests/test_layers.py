"""The architecture as a table: what each module may import from bdpvi."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EDGE = {"cli", "cli_comparison", "cli_ledger", "distributed", "demonstration", "__init__"}
"""Modules that put the pieces together, and may import anything."""

ALLOWED = {
    "_validate": set[str](),
    "secure": set[str](),
    "store": set[str](),
    "progress": set[str](),
    "reduction": set[str](),
    "types": {"_validate"},
    "plan": {"_validate"},
    "chain": set[str](),
    "ledger_file": {"_validate", "chain", "types"},
    "ledger": {"chain", "ledger_file", "store", "types"},
    "hockey_stick": {"_validate"},
    "parallel": set[str](),
    "machine_code": set[str](),
    "monomials": set[str](),
    "series": set[str](),
    "vectors": set[str](),
    "columns": {"compiled_columns", "machine_code", "monomials", "series"},
    "compiled_columns": {"columns", "monomials", "vectors"},
    "log_moments": {"compiled_log_moments", "machine_code"},
    "compiled_log_moments": {"log_moments", "vectors"},
    "products": {"log_moments"},
    "divergences": {"_validate", "hockey_stick", "log_moments", "parallel", "products"},
    "conversions": {"_validate"},
    "estimators": {"_validate"},
    "betting": {"_validate", "estimators"},
    "mechanisms": {"_validate", "divergences"},
    "close": {"divergences", "mechanisms"},
    "panel": {"_validate", "divergences"},
    "events": {"_validate", "conversions", "divergences", "mechanisms", "panel"},
    "reliability": {"_validate", "estimators"},
    "composition": {"_validate", "estimators"},
    "dp_accountants": {"_validate", "conversions", "events", "mechanisms", "types"},
    "totals": {"composition", "conversions", "estimators", "events"},
    "pointwise": {"conversions", "estimators", "hockey_stick"},
    "accountants": {
        "_validate", "betting", "composition", "conversions", "estimators", "events",
        "hockey_stick", "panel", "pointwise", "reliability", "totals", "types", "worst_case",
    },
    "models": {"_validate", "types"},
    "svi": {"models", "plan", "progress", "secure", "types"},
    "compiled": {"guides", "models", "vectors"},
    "rows": {"compiled", "models", "plan", "svi", "types"},
    "memory": set[str](),
    "checkpoint": {"store"},
    "identity": {"svi"},
    "training": {"accountants", "composition", "conversions", "events", "panel"},
    "neighbours": {
        "_validate", "checkpoint", "divergences", "identity", "memory", "panel", "plan", "progress",
        "reduction", "rounding", "rows", "secure", "svi", "training", "types",
    },
    "quadrature": set[str](),
    "narrow": {"quadrature"},
    "objective": {"models", "narrow", "reduction", "types"},
    "coordinates": {"columns", "divergences", "monomials", "objective"},
    "perturbation": {
        "columns", "coordinates", "monomials", "narrow", "objective", "parallel", "series",
    },
    "cavity": {"_validate", "divergences", "objective", "quadrature", "rows"},
    "optimum": {
        "_validate", "divergences", "models", "neighbours", "objective", "panel", "parallel",
        "perturbation", "progress", "reduction", "rows", "svi", "types",
    },
    "statistics": {"estimators"},
    "tables": {"_validate", "models", "objective", "progress"},
    "stream": {
        "_validate", "accountants", "checkpoint", "close", "composition", "conversions",
        "divergences", "estimators", "events", "models", "objective", "optimum", "perturbation",
        "progress", "rounding", "secure", "statistics", "store", "svi", "tables", "types",
    },
    "fit": {
        "ledger", "models", "neighbours", "panel", "plan", "progress", "svi", "training",
        "types",
    },
    "sharding": {
        "fit", "identity", "neighbours", "progress", "reduction", "rows", "svi", "types",
    },
    "rounding": {"divergences", "secure", "svi"},
    "guarantees": {"_validate", "accountants", "events", "fit", "ledger", "rounding", "types"},
    "release": {
        "_validate", "accountants", "fit", "guarantees", "ledger", "models", "secure", "store",
        "types",
    },
    "worst_case": {"_validate", "conversions", "hockey_stick", "mechanisms", "types"},
    "scores": {"models", "types"},
    "dp_noise": {"_validate", "plan", "scores", "secure", "types"},
    "dpvi": {
        "_validate", "dp_noise", "models", "rows", "scores", "svi", "types", "worst_case",
    },
    "dp_gd": {"_validate", "dp_noise", "models", "scores", "svi", "types", "worst_case"},
    "dp_sgld": {"_validate", "dp_noise", "models", "scores", "svi", "types", "worst_case"},
    "populations": set[str](),
    "tilting": {"_validate", "estimators", "populations"},
    "study": {"_validate", "progress"},
    "study_coverage_report": {"reliability"},
    "study_coverage": {
        "betting", "estimators", "populations", "progress", "reliability", "study",
        "study_coverage_report", "tilting",
    },
    "study_gaussian": {
        "accountants", "composition", "conversions", "estimators", "events", "mechanisms",
        "progress", "reliability", "study", "worst_case",
    },
    "studies": {"study", "study_coverage", "study_gaussian"},
    "evaluate": {"fit", "models", "release", "types"},
    "plots": set[str](),
    "metrics": set[str](),
    "cells": {"store"},
    "hyperparameters": {"_validate", "methods", "models", "store"},
    "compare": {
        "_validate", "cells", "compare_report", "hyperparameters", "methods", "metrics", "models",
        "paired", "progress", "store", "types",
    },
    "tuning": {
        "_validate", "cells", "compare", "datasets", "hyperparameters", "methods", "progress",
        "store", "types",
    },
    "paired": set(),
    "compare_report": {"methods", "store", "study", "types"},
    "saved": {"_validate", "divergences", "panel", "plan", "svi"},
    "storage": {
        "_validate", "fit", "guarantees", "ledger", "models", "release", "saved", "store", "svi",
        "types",
    },
}  # fmt: skip


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "bdpvi":
                found |= {alias.name for alias in node.names}
            elif node.module.startswith("bdpvi."):
                found.add(node.module.split(".")[1])
    return found


CORE = sorted(p for p in (ROOT / "bdpvi").glob("*.py") if p.stem not in EDGE)


@pytest.mark.parametrize("path", CORE, ids=lambda p: p.stem)
def test_core_imports_only_what_its_row_allows(path: Path) -> None:
    assert imports(path) <= ALLOWED[path.stem]


def test_datasets_know_only_records() -> None:
    for path in (ROOT / "datasets").glob("*.py"):
        assert imports(path) <= {"_validate", "types", "datasets"}, path.name


def test_guides_know_only_models() -> None:
    for path in (ROOT / "guides").glob("*.py"):
        assert imports(path) <= {"_validate", "models", "secure", "guides"}, path.name
