"""The report of a comparison: one HTML page, and tables for the terminal."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.box import MARKDOWN
from rich.table import Table

from bdpvi._runtime.store import replacing
from bdpvi.compare.figures import curve
from bdpvi.compare.methods import NONE, SENTENCES, Method
from bdpvi.types import Split

TEMPLATE = Path(__file__).with_name("report.html.j2")
COLUMNS = (
    "method", "guarantee", "target ε", "ε", "δ", "reliable", "accuracy", "behind the best",
    "NLL", "ECE", "AUC", "seconds", "remark",
)  # fmt: skip


def write(
    out: Path,
    split: Split,
    methods: Sequence[Method],
    summary: pd.DataFrame,
    settings: Mapping[str, Any],
) -> None:
    """Write ``curve.png``, ``curve.svg`` and ``report.html``, which needs no other file."""
    figure = curve(methods, summary)
    for kind in ("png", "svg"):
        with replacing(out / f"curve.{kind}") as temporary:
            figure.savefig(temporary, format=kind)
    page = report(split, methods, summary, settings, (out / "curve.png").read_bytes())
    with replacing(out / "report.html") as temporary:
        temporary.write_text(page, encoding="utf-8")


def report(
    split: Split,
    methods: Sequence[Method],
    summary: pd.DataFrame,
    settings: Mapping[str, Any],
    picture: bytes,
) -> str:
    """Return the report as one HTML page.

    Args:
        split: what was compared on.
        methods: that were compared.
        summary: the results.
        settings: "methods", the hyper-parameters by name@ε, and "chosen", how they were found.
        picture: of the results, PNG.
    """
    from jinja2 import Environment, StrictUndefined

    page = Environment(autoescape=True, undefined=StrictUndefined)
    return page.from_string(TEMPLATE.read_text("utf-8")).render(
        title=f"Privacy and accuracy on {split.train.name}",
        train=len(split.train),
        test=len(split.test),
        picture=base64.b64encode(picture).decode("ascii"),
        methods=methods,
        guarantees=list(dict.fromkeys(method.guarantee for method in methods)),
        sentences=SENTENCES,
        columns=COLUMNS,
        rows=_rows(methods, summary),
        chosen=settings["chosen"],
        preprocessing=split.train.preprocessing,
        settings=_settings(settings["methods"]),
    )


def _settings(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return for each method its targets, and each hyper-parameter's value at each of them.

    >>> _settings({"a@0.5": {"model": {"clip": 1}}, "a@1": {"model": {"clip": 2}}})
    {'a': {'targets': ['0.5', '1'], 'fields': {'model.clip': [1, 2]}}}
    """
    methods: dict[str, dict[str, dict[Any, Any]]] = {}
    for cell, entry in entries.items():
        name, _, target = cell.rpartition("@")
        methods.setdefault(name, {})[target] = pd.json_normalize(dict(entry)).to_dict("records")[0]
    tables = {}
    for name, at in methods.items():
        paths = dict.fromkeys(path for fields in at.values() for path in fields)
        fields = {path: [fields.get(path) for fields in at.values()] for path in paths}
        tables[name] = {"targets": list(at), "fields": fields}
    return tables


def overview(summary: pd.DataFrame, name: str) -> Table:
    """Return "accuracy" or "behind" of the summary, a row for each method, as a Markdown table."""
    spreads = summary.assign(target_epsilon=summary["target_epsilon"].fillna(math.inf))
    targets = sorted(set(spreads["target_epsilon"]))
    headings = ("ε ∞" if math.isinf(target) else f"ε {target:g}" for target in targets)
    table = Table("method", "guarantee", *headings, box=MARKDOWN)
    for (method, guarantee), rows in spreads.groupby(["method", "guarantee"], sort=False):
        found = {row["target_epsilon"]: row for row in rows.to_dict("records")}
        cells = (_cell(found[target], name) if target in found else "" for target in targets)
        table.add_row(str(method), str(guarantee), *cells)
    return table


def _cell(row: Mapping[Any, Any], name: str) -> str:
    if pd.isna(row["accuracy"]):
        return "not reached"
    trust = {True: ", reliable", False: ", not reliable"}.get(row["reliable"], "")
    return _spread(row[name], row[f"{name}_error"]) + trust


def _rows(methods: Sequence[Method], summary: pd.DataFrame) -> list[list[str]]:
    """Return the cells of the table of results, in the order of :data:`COLUMNS`."""
    labels = {method.name: method.label for method in methods}
    rows = []
    for row in summary.to_dict("records"):
        shown = [
            _spread(row[name], row[f"{name}_error"])
            for name in ("accuracy", "behind", "nll", "ece", "auc")
        ]
        private = row["guarantee"] != NONE
        rows.append(
            [
                labels[row["method"]],
                row["guarantee"],
                _number(row["target_epsilon"]),
                _number(row["epsilon"]),
                _number(row["delta"]) if private else "",
                {True: "yes", False: "no"}.get(row["reliable"], "–") if private else "",
                *shown,
                f"{row['seconds']:.1f}",
                row["reason"] if pd.notna(row["reason"]) else "",
            ]
        )
    return rows


def _spread(mean: Any, error: Any) -> str:
    if pd.isna(mean):
        return ""
    return f"{mean:.4f}" if pd.isna(error) else f"{mean:.4f} ± {error:.4f}"


def _number(value: Any) -> str:
    return f"{value:.4g}" if pd.notna(value) else ""
