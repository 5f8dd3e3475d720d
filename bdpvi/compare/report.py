"""The figure and the report of a comparison."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from rich.box import MARKDOWN
from rich.table import Table

from bdpvi._runtime.store import replacing
from bdpvi.compare.methods import BAYESIAN, NONE, SENTENCES, WORST_CASE, Method
from bdpvi.studies.study import plain_ticks
from bdpvi.types import Split

STYLES: Mapping[str, Mapping[str, Any]] = {
    BAYESIAN: {"ls": "-", "lw": 1.9, "marker": "o"},
    WORST_CASE: {"ls": "--", "lw": 1.3, "marker": "s"},
    NONE: {"ls": ":", "lw": 1.2, "color": "0.4"},
}
"""No two guarantees share a line style or a marker."""
HEADINGS = {
    BAYESIAN: "Bayesian DP (hollow: not reliable)",
    WORST_CASE: "worst-case DP",
    NONE: "no privacy",
}


def write(
    out: Path,
    split: Split,
    methods: Sequence[Method],
    table: pd.DataFrame,
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


def curve(methods: Sequence[Method], summary: pd.DataFrame) -> Figure:
    """Return accuracy against ε, whole and near the top; the legend goes by guarantee."""
    figure = Figure(figsize=(13, 5), dpi=120, layout="constrained")
    whole, near = figure.subplots(1, 2)
    reached = summary[summary["accuracy"].notna()]
    legend: dict[str, list[Any]] = {}
    for number, method in enumerate(methods):
        rows = reached[reached["method"] == method.name]
        if len(rows):
            lines = [_line(axes, method, rows, f"C{number % 10}") for axes in (whole, near)]
            legend.setdefault(method.guarantee, []).append(lines[0])
    deltas = sorted(set(reached["delta"].dropna()))
    for axes in (whole, near):
        if deltas:
            axes.set_xscale("log")
            plain_ticks(axes.xaxis)
            axes.set_xlabel(f"ε at δ = {deltas[0]:g}: Bayesian DP solid, worst-case DP dashed")
        axes.set_ylabel("test accuracy, mean ± standard error over seeds")
        axes.grid(alpha=0.3)
    if len(reached):
        top = reached["accuracy"].max()
        near.set_ylim(top - _NEAR, top + _NEAR / 10)
        near.set_title(f"within {_NEAR:g} of the best", fontsize=10)
    handles = [
        handle
        for guarantee, lines in legend.items()
        for handle in (Line2D([], [], ls="", label=f"{HEADINGS[guarantee]}:"), *lines)
    ]
    figure.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=8)
    return figure


_NEAR = 0.05


def _line(axes: Axes, method: Method, rows: pd.DataFrame, colour: str) -> Any:
    style = STYLES[method.guarantee]
    if method.guarantee == NONE:
        return axes.axhline(rows["accuracy"].iloc[0], label=method.label, **style)
    drawn = axes.errorbar(
        rows["epsilon"],
        rows["accuracy"],
        yerr=rows["accuracy_error"].fillna(0),
        color=colour,
        ms=5,
        elinewidth=0.8,
        label=method.label,
        **style,
    )
    if method.guarantee == BAYESIAN:
        doubtful = rows[~rows["reliable"].astype(bool)]
        axes.plot(
            doubtful["epsilon"], doubtful["accuracy"], "o", ms=5, mfc="white", c=colour, zorder=5
        )
    return drawn


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
    title = f"Privacy and accuracy on {split.train.name}"
    guarantees = list(dict.fromkeys(method.guarantee for method in methods))
    sections = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{len(split.train)} training records, accuracy on {len(split.test)} test records. "
        "Mean over seeds ± standard error over seeds.</p>",
        f'<img alt="Test accuracy against ε" src="data:image/png;base64,'
        f'{base64.b64encode(picture).decode("ascii")}">',
        "<h2>What each guarantee means</h2>",
        _definitions({name: f"{SENTENCES[name]}." for name in guarantees}),
        "<p>A Bayesian-DP ε and a worst-case ε are different promises: equal numbers do not mean "
        "equal protection. Solid lines with circles are Bayesian DP, dashed lines with squares "
        "worst-case DP.</p>",
        "<h2>Results</h2>",
        "<p>Behind the best: difference of mean accuracy to the best method at the same target, "
        "whatever its guarantee, ± its standard error over test records (paired). Methods whose "
        "difference is not well above that, and above what the seeds leave open, are not told "
        "apart by this comparison.</p>",
        _results(methods, summary),
        "<h2>Assumptions</h2>",
        _list(_assumptions(settings["chosen"])),
        "<h3>By method, ξ being what training draws at random</h3>",
        _definitions({f"{m.label} ({m.name})": m.note for m in methods}),
        "<h3>Public constants</h3>",
        f"<pre>{escape(json.dumps(split.train.preprocessing, indent=1, ensure_ascii=False))}</pre>",
        "<h2>Settings</h2>",
        _table(
            ["method@ε", "hyper-parameters"],
            [[n, json.dumps(e, ensure_ascii=False)] for n, e in settings["methods"].items()],
        ),
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}'
        f"</title><style>{_STYLE}</style></head><body>\n" + "\n".join(sections) + "\n</body></html>"
    )


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


def _assumptions(chosen: Mapping[str, Any]) -> list[str]:
    found = json.dumps(dict(chosen), ensure_ascii=False) if chosen else "not recorded"
    return [
        "Constants of the preprocessing count as public. The number of training records does not: "
        "a neighbour has one more or less. A method that divides its step by it says so below; its "
        "ε takes that quotient for a public constant, which neighbours share.",
        f"How the hyper-parameters were chosen, for which nothing is charged: {found}",
        "Each ε is that of one run alone. This comparison as a whole, many runs on the same "
        "records and their accuracies, is not private: keep it where the records are kept, "
        "unless those are public.",
        "A Bayesian ε rests on the training records being a sample of the distribution that it "
        "speaks of; 'reliable' says whether the diagnostics support the estimate.",
        "Runs are repeatable by seed; what is really released draws from a secure source instead.",
    ]


def _results(methods: Sequence[Method], summary: pd.DataFrame) -> str:
    labels = {method.name: method.label for method in methods}
    head = [
        "method", "guarantee", "target ε", "ε", "δ", "reliable", "accuracy", "behind the best",
        "NLL", "ECE", "AUC", "seconds", "remark",
    ]  # fmt: skip
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
    return _table(head, rows)


def _spread(mean: Any, error: Any) -> str:
    if pd.isna(mean):
        return ""
    return f"{mean:.4f}" if pd.isna(error) else f"{mean:.4f} ± {error:.4f}"


def _number(value: Any) -> str:
    return f"{value:.4g}" if pd.notna(value) else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>\n"
        for row in rows
    )
    return f"<table><thead><tr>{cells}</tr></thead><tbody>\n{body}</tbody></table>"


def _definitions(terms: Mapping[str, str]) -> str:
    items = "".join(f"<dt>{escape(t)}</dt><dd>{escape(text)}</dd>\n" for t, text in terms.items())
    return f"<dl>{items}</dl>"


def _list(items: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(item)}</li>\n" for item in items) + "</ul>"


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75em; margin: 2em auto; padding: 0 1em }
img { max-width: 100% }
table { border-collapse: collapse; font-size: 13px }
th, td { text-align: left; padding: .2em .7em; border-bottom: 1px solid #ddd; vertical-align: top }
dt { font-weight: 600 } pre { white-space: pre-wrap; font-size: 12px }
"""
