"""The report of a comparison: one HTML page, figures, and tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.box import MARKDOWN
from rich.table import Table

from bdpvi._ground import page
from bdpvi._ground.store import replacing
from bdpvi.bayesian.guarantees import WORST_CASE
from bdpvi.bench import figures
from bdpvi.bench.headline import BEYOND, headline
from bdpvi.bench.methods import SENTENCES, Method
from bdpvi.bench.summary import BEST, PAIRED
from bdpvi.datasets.dataset import Split
from bdpvi.tables.metrics import MEASURES

TEMPLATE = Path(__file__).with_name("report.html.j2")
EXPERIMENT = "An experiment: its seeds are public, so nothing here may be released"
COLUMNS = (
    "method", "guarantee", "certified", "ε", "worst-case ε",
    "log score", "log score: sd", "log score: behind", "accuracy", "accuracy: sd",
    "accuracy: behind", "AUC", "calibration error", "above non-private", "gain kept",
)  # fmt: skip
RATIOS = (
    "method", "target ε", "certified", "worst-case ε", "measure", "against", "difference",
    "ratio of ε",
)  # fmt: skip


def write(
    out: Path,
    split: Split,
    methods: Sequence[Method],
    summary: pd.DataFrame,
    ratios: pd.DataFrame,
    settings: Mapping[str, Any],
) -> None:
    """Write the figure, ``curve.png``, and a self-contained ``report.html``.

    Args:
        out: the folder.
        split: the data of the comparison.
        methods: the methods in the order of tables and figures.
        summary: a row for each method and target, see :func:`bdpvi.bench.summary.summarise`.
        ratios: Bayesian rows compared with worst-case rows, see
            :func:`bdpvi.bench.summary.ratio_table`.
        settings: "methods", the hyper-parameters by name@ε, and "chosen", how they were found.
    """
    figure = figures.curve(methods, summary)
    with replacing(out / "curve.png") as temporary:
        figure.savefig(temporary, format="png")
    labels = {method.name: method.label for method in methods}
    whole = page.render(
        TEMPLATE,
        text=_text,
        flat=_flat,
        title=f"Privacy and prediction on {split.train.name}",
        experiment=EXPERIMENT,
        train=len(split.train),
        test=len(split.test),
        deltas=[f"{delta:g}" for delta in sorted(summary["delta"].dropna().unique())],
        picture=page.png(figure),
        methods=methods,
        guarantees=list(dict.fromkeys(method.guarantee for method in methods)),
        sentences=SENTENCES,
        columns=COLUMNS,
        tables=tables(summary, labels),
        headline=headline(summary, ratios),
        beyond=BEYOND,
        ratio_columns=RATIOS,
        ratios=ratio_rows(ratios, labels),
        remarks=_remarks(summary, labels),
        chosen=settings["chosen"],
        preprocessing=split.train.preprocessing,
        settings={labels.get(n, n): table for n, table in _settings(settings["methods"]).items()},
    )
    with replacing(out / "report.html") as temporary:
        temporary.write_text(whole, encoding="utf-8")


def tables(summary: pd.DataFrame, labels: Mapping[str, str]) -> dict[str, list[list[str]]]:
    """Return the results as text, a table for each target, with methods without privacy in each.

    Args:
        summary: the results.
        labels: labels of methods, where they differ from their names.

    Returns:
        Rows in the order of :data:`COLUMNS`, by the table's heading.
    """
    everywhere = summary["target_epsilon"].isna()
    targets = sorted(summary["target_epsilon"].dropna().unique())
    parts = {
        f"Target ε {t:g}": summary[everywhere | (summary["target_epsilon"] == t)] for t in targets
    }
    return {
        heading: [_row(row, labels) for row in rows.to_dict("records")]
        for heading, rows in (parts or {"Without privacy": summary}).items()
    }


def _row(row: Mapping[Any, Any], labels: Mapping[str, str]) -> list[str]:
    reached = pd.notna(row["accuracy"])
    shown = [
        labels.get(row["method"], row["method"]),
        _guarantee(row),
        _shown(row["certified"]),
        _shown(row["epsilon"], ".4g") if reached else "not reached",
        _worst_case(row),
    ]
    for name in PAIRED:
        shown += [_spread(row[name], row[f"{name}_error"]), _shown(row[f"{name}_spread"], ".4f")]
        shown.append(_interval(*(row[f"{name}_behind{end}"] for end in ("", "_low", "_high"))))
    shown += [_spread(row[name], row[f"{name}_error"]) for name in ("auc", "ece")]
    return [*shown, _shown(row["ece_above"], ".4f"), _shown(row["kept"], ".0%")]


def ratio_rows(ratios: pd.DataFrame, labels: Mapping[str, str]) -> list[list[str]]:
    """Return Bayesian rows against worst-case rows as text, in the order of :data:`RATIOS`."""
    shown = []
    for row in ratios.to_dict("records"):
        rival = f": {labels.get(row['rival'], row['rival'])}" if pd.notna(row["rival"]) else ""
        ends = (row[f"difference{end}"] for end in ("", "_low", "_high"))
        shown.append([
            labels.get(row["method"], row["method"]), f"{row['target_epsilon']:g}",
            _shown(row["certified"]), _worst_case(row), MEASURES[row["measure"]].label,
            BEST + rival, _interval(*ends), row["shown"],
        ])  # fmt: skip
    return shown


def _guarantee(row: Mapping[Any, Any]) -> str:
    """Return a row's guarantee, and whether a Bayesian ε is reliable."""
    trust = {True: ", reliable", False: ", not reliable"}.get(row["reliable"], "")
    return f"{row['guarantee']}{trust}"


def _worst_case(row: Mapping[Any, Any]) -> str:
    """Return a row's worst-case ε, "none" without such a guarantee, "" if its target was not
    reached."""
    promised = row.get("guarantee") == WORST_CASE
    return _shown(row["worst_case_epsilon"], ".4g") or ("" if promised else "none")


def console_tables(summary: pd.DataFrame) -> dict[str, Table]:
    """Return :func:`tables` as Markdown for a terminal, methods by their names."""
    shown = {}
    for heading, rows in tables(summary, {}).items():
        shown[heading] = Table(*COLUMNS, box=MARKDOWN)
        for row in rows:
            shown[heading].add_row(*row)
    return shown


def _remarks(summary: pd.DataFrame, labels: Mapping[str, str]) -> dict[str, list[str]]:
    """Return every remark, with its methods and targets."""
    remarks: dict[str, list[str]] = {}
    for row in summary.to_dict("records"):
        if pd.notna(row["reason"]) and row["reason"]:
            about = f"{labels.get(row['method'], row['method'])} at ε {row['target_epsilon']:g}"
            remarks.setdefault(row["reason"], []).append(about)
    return remarks


def _settings(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return for each method its targets, and each hyper-parameter's value at each of them.

    >>> _settings({"a@0.5": {"model": {"clip": 1}}, "a@1": {"model": {"clip": 2}}, "b@inf": {}})
    {'a': {'targets': ['0.5', '1'], 'fields': {'model.clip': [1, 2]}}}
    """
    methods: dict[str, dict[str, dict[Any, Any]]] = {}
    for cell, entry in entries.items():
        name, _, target = cell.rpartition("@")
        methods.setdefault(name, {})[target] = _flat(entry)
    shown = {}
    for name, at in methods.items():
        paths = dict.fromkeys(path for fields in at.values() for path in fields)
        fields = {path: [fields.get(path) for fields in at.values()] for path in paths}
        if fields:
            shown[name] = {"targets": list(at), "fields": fields}
    return shown


def _flat(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an object by their dotted paths.

    >>> _flat({"model": {"clip": 1.0, "groups": [[1, 2]]}, "steps": 5})
    {'steps': 5, 'model.clip': 1.0, 'model.groups': [[1, 2]]}
    """
    return pd.json_normalize(dict(entry)).to_dict("records")[0] if entry else {}  # type: ignore[return-value]


def _text(value: Any) -> str:
    """Return a value of a JSON file as readable text.

    >>> _text([[1, 2], [3]]), _text(None), _text(True), _text(1e-05), _text("as it is")
    ('(1, 2), (3)', '–', 'yes', '1e-05', 'as it is')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Iterable) and not isinstance(value, str):
        inner = (
            f"({_text(one)})" if isinstance(one, list | tuple) else _text(one) for one in value
        )
        return ", ".join(inner)
    return "–" if value is None else str(value)


def _spread(mean: Any, error: Any) -> str:
    return _shown(mean, ".4f") if pd.isna(error) else f"{mean:.4f} ± {error:.4f}"


def _interval(value: Any, low: Any, high: Any) -> str:
    """Return a difference with its interval.

    >>> _interval(0.01, -0.002, 0.022), _interval(0.0, 0.0, 0.0), _interval(float("nan"), 0.0, 0.0)
    ('0.0100 (-0.0020 to 0.0220)', 'the best', '')
    """
    if pd.isna(value):
        return ""
    if value == low == high == 0:
        return "the best"
    return f"{value:.4f} ({low:.4f} to {high:.4f})"


def _shown(value: Any, form: str = "") -> str:
    """Return a value in a format, "" for none."""
    return f"{value:{form}}" if pd.notna(value) else ""
