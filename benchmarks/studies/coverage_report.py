"""The figures and the text of the coverage study, from its table alone."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from bdpvi.bayesian.accounting.reliability import LEAST_RECORDS, TOLERANCE

CONFIDENCE = 0.95
RULES = {"all": "all results", "khat": "k̂ ≤ 0.7", "rule": "called reliable"}
_COLORS = {"all": "0.45", "khat": "C1", "rule": "C0"}


def upper_limit(misses: float, repeats: float) -> float:
    """Return the Clopper–Pearson upper 95 % limit on a rate.

    >>> round(upper_limit(0, 3000), 6)
    0.000998
    """
    if misses == repeats:
        return 1.0
    return float(stats.beta.isf(1 - CONFIDENCE, misses + 1, repeats - misses))


def pooled(table: pd.DataFrame) -> pd.DataFrame:
    """Pool the simulated populations whose tail a sample shows, each with the same weight.

    Returns:
        A row for each number of records and γ: the miss rate among all results, among those with
        k̂ ≤ 0.7 and among those called reliable, their numbers, and the fraction of harmless
        results, whose bound holds, that each rule turns away.
    """
    rows = []
    part = table[_is(table, "simulated") & table["visible"]]
    pairs = part[["records", "failure_probability"]].drop_duplicates()
    for m, gamma in pairs.itertuples(index=False, name=None):
        cell = part[(part["records"] == m) & (part["failure_probability"] == gamma)]
        n, misses = cell["repeats"], cell["misses"]
        khat = cell["khat_share"] * n
        kept = {
            "all": (n.sum(), misses.sum()),
            "khat": (khat.sum(), cell["khat_misses"].sum()),
            "rule": (cell["reliable"].sum(), cell["reliable_misses"].sum()),
        }
        row = {"records": m, "failure_probability": gamma}
        for rule, (results, missed) in kept.items():
            row[f"{rule}_results"] = results
            row[f"{rule}_misses"] = missed
            row[f"{rule}_rate"] = missed / results if results else float("nan")
            row[f"{rule}_price"] = 1 - (results - missed) / (n.sum() - misses.sum())
        sound = cell[cell["miss_rate"] <= 2 * gamma]
        row["price_of_sound"] = 1 - sound["reliable"].sum() / max(1, sound["repeats"].sum())
        seen = cell["reliable_misses"].where(cell["reliable_misses"] >= 10, 0)
        row["worst_joint"] = (seen / n).max() / gamma
        rows.append(row)
    return pd.DataFrame(rows)


def coverage_figure(table: pd.DataFrame) -> Figure:
    """Miss rates by population, miss rates by rule, and what the rules turn away."""
    part = table[_is(table, "simulated")]
    pool = pooled(table)
    sizes = sorted(part["records"].unique())
    figure = Figure(figsize=(13, 8.5), dpi=120, layout="constrained")
    grid = figure.subplots(3, len(sizes), sharex=True, sharey="row", squeeze=False)
    names = list(dict.fromkeys(part["population"]))
    colors = _population_colors(names)
    for column, m in enumerate(sizes):
        top, middle, bottom = grid[:, column]
        for name in names:
            cell = part[(part["records"] == m) & (part["population"] == name)]
            seen = cell[cell["misses"] > 0]
            top.plot(
                seen["failure_probability"],
                seen["miss_rate"],
                ls="-" if cell["visible"].all() else ":",
                marker=".",
                color=colors[name],
                lw=1.2,
                label=name,
            )
        cell = pool[pool["records"] == m]
        for rule, label in RULES.items():
            style = {"color": _COLORS[rule], "marker": "o", "ms": 4, "label": label}
            seen = cell[cell[f"{rule}_misses"] > 0]
            middle.plot(seen["failure_probability"], seen[f"{rule}_rate"], **style)
            if rule != "all":
                bottom.plot(cell["failure_probability"], cell[f"{rule}_price"], **style)
        unseen = cell[(cell["rule_misses"] == 0) & (cell["rule_results"] > 0)]
        limits = [upper_limit(0, n) for n in unseen["rule_results"]]
        middle.plot(
            unseen["failure_probability"],
            limits,
            "v",
            mfc="white",
            color=_COLORS["rule"],
            label="no miss seen: 95 % limit",
        )
        for axes in (top, middle):
            _diagonal(axes, cell["failure_probability"])
        bottom.set(ylim=(-0.03, 1.03), xlabel="γ")
        top.set_title(f"m = {m:,}", fontsize=10)
        for axes in (top, middle, bottom):
            axes.set_xscale("log")
            axes.grid(alpha=0.3)
        bottom.invert_xaxis()
    grid[0, 0].set(ylabel="bound below the truth,\nby distribution of y", yscale="log")
    grid[1, 0].set(ylabel="bound below the truth,\nby rule, distributions pooled", yscale="log")
    grid[2, 0].set(ylabel="harmless results\nthat the rule turns away")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    grid[0, -1].legend(handles, labels, fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    grid[1, -1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.suptitle("Student's t bound on E y, one bound per sample of m records", fontsize=12)
    return figure


def tilted_figure(table: pd.DataFrame) -> Figure:
    """Miss rates down to γ = 1e-15 by tilted sampling; filled where most samples are reliable."""
    part = table[_is(table, "tilted")]
    sizes = sorted(part["records"].unique())
    figure = Figure(figsize=(13, 4.6), dpi=120, layout="constrained")
    grid = figure.subplots(1, len(sizes), sharex=True, sharey=True, squeeze=False)[0]
    names = list(dict.fromkeys(part["population"]))
    colors = _population_colors(names)
    for axes, m in zip(grid, sizes, strict=True):
        for name in names:
            cell = part[(part["records"] == m) & (part["population"] == name)]
            x, y = cell["failure_probability"], cell["miss_rate"]
            style = "-" if cell["visible"].all() else ":"
            axes.plot(x, y, ls=style, lw=1.0, color=colors[name], label=name)
            most = cell["reliable_share"] >= 0.5
            axes.plot(x[most], y[most], "o", ms=5, color=colors[name])
            axes.plot(x[~most], y[~most], "o", ms=3.5, mfc="white", color=colors[name])
        _diagonal(axes, part["failure_probability"].drop_duplicates())
        axes.set(xscale="log", yscale="log", ylim=(1e-16, 2), xlabel="γ")
        axes.set_title(f"m = {m:,}", fontsize=10)
        axes.grid(alpha=0.3)
    grid[0].invert_xaxis()
    grid[0].set_ylabel("bound below the truth")
    grid[-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    title = "Student's t far out, by tilted sampling; filled: most samples are called reliable"
    figure.suptitle(title, fontsize=12)
    return figure


def coverage_text(table: pd.DataFrame) -> str:
    """Say what was found, every number from the table."""
    pool = pooled(table)
    t = table[_is(table, "simulated")]
    tilted = table[_is(table, "tilted") & table["visible"]]
    known = t[
        (t["population"] == "exp(0.3 g²)")
        & (t["records"] == 256)
        & (t["failure_probability"] == 1e-6)
    ].iloc[0]
    lines = [
        "Each row of the table draws samples of m records from a distribution whose mean is known "
        "in closed form and counts how often the bound on log E y lies below the truth.",
        "",
        "**Student's t misses far more often than γ unless y is nearly symmetric or m large.** "
        f"For exp(0.3 g²), which has a mean and no variance, at m = 256 and γ = 1e-6 it misses "
        f"{known['miss_rate']:.2%} of the time ({known['misses']:,.0f} of "
        f"{known['repeats']:,.0f}).",
        "",
        "**The rule.** A result is called reliable when the miss rate that skewness and size "
        f"predict, γ exp((κ + √(6/m)) h(t)/√m), is at most γ^{TOLERANCE:g} "
        "(`bdpvi.bayesian.accounting.reliability`). "
        "Skewness does not change when y is shifted or scaled, and neither does a miss, so the "
        "rule reads tiny costs, where every y is almost 1, as well as large ones; shares of Σy do "
        "not. k̂ does not separate: at small γ moderate skewness is enough to miss, at any k̂.",
        "",
        "| γ | miss rate, all | miss rate, k̂ ≤ 0.7 | miss rate, called reliable | "
        "95 % upper limit | harmless results turned away | sound ones turned away |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    large = pool[pool["records"] >= 64].sort_values("failure_probability", ascending=False)
    for gamma, cell in large.groupby("failure_probability", sort=False):
        sums = cell.sum()
        limit = upper_limit(sums["rule_misses"], sums["rule_results"])
        rates = [sums[f"{rule}_misses"] / max(1, sums[f"{rule}_results"]) for rule in RULES]
        shown = " | ".join(f"{rate:.1e}" for rate in rates)
        prices = " | ".join(f"{cell[c].mean():.0%}" for c in ("rule_price", "price_of_sound"))
        lines.append(f"| {gamma:g} | {shown} | {limit:.1e} | {prices} |")
    lines += [
        "",
        "Samples of 64 to 10,000 records, distributions pooled. *Harmless* results are all whose "
        "bound holds, by luck or not. *Sound* ones come from distributions seen to miss at most "
        "twice as often as γ, which at small γ includes some whose misses are too rare to be seen "
        "here, so that the last column is too high there.",
        "",
        f"Fewer than {LEAST_RECORDS} records are never called reliable: too often they look "
        "symmetric by luck. A result of 64 records or more is both called reliable and wrong with "
        f"a probability of at most {large['worst_joint'].max():.2g} γ in each of these "
        "distributions (where ten such misses or more were seen).",
    ]
    lines += [*_tilted(tilted), *_hidden(t)]
    lines += ["", "The other estimators:", "", *_others(table)]
    return "\n".join(lines)


def _tilted(tilted: pd.DataFrame) -> list[str]:
    """Say what tilted sampling found."""
    worst = tilted[tilted["reliable_share"] >= 0.5].copy()
    worst["excess"] = worst["miss_rate"] / worst["failure_probability"]
    bad = tilted[tilted["miss_rate"] > 10 * tilted["failure_probability"] ** TOLERANCE]
    deepest = _largest(worst, "excess") if len(worst) else None
    lines = [
        "",
        "**Below what simulation can see.** Tilted sampling gives the miss rate itself down to "
        f"γ = {tilted['failure_probability'].min():g} (second figure).",
    ]
    if deepest is not None:
        lines[-1] += (
            f" Over the {len(worst)} of {len(tilted)} cases where most samples are called "
            f"reliable, the true rate is at most about {deepest['excess']:.2g} γ "
            f"({deepest['population']}, m = {deepest['records']:,}, "
            f"γ = {deepest['failure_probability']:g})."
        )
    if len(bad):
        lines[-1] += (
            f" Of the {len(bad)} cases that miss ten times more often than tolerated, at most "
            f"{bad['reliable_share'].max():.1%} of the samples are called reliable."
        )
    return lines


def _hidden(t: pd.DataFrame) -> list[str]:
    """Say what no rule on a sample can see."""
    hidden = t[~t["visible"] & (t["failure_probability"] == t["failure_probability"].min())]
    fooled = hidden.assign(rate=hidden["reliable_misses"] / hidden["repeats"])
    if not len(fooled):
        return []
    fooled = _largest(fooled, "rate")
    return [
        "",
        "**What no rule can see.** Where the mean is made by records of which most samples "
        f"have none ({fooled['population']}, dotted), a sample looks harmless: at "
        f"m = {fooled['records']:,} and γ = {fooled['failure_probability']:g}, "
        f"{fooled['rate']:.1%} of all results are called reliable and are wrong, the bound "
        f"too small by a factor of up to {fooled['largest_factor']:.2f}. This distribution is "
        "left out of the pooled numbers. Only a bound on y that is known beforehand (betting, "
        "empirical Bernstein) or a certificate about a fraction of the records helps.",
    ]


def _others(table: pd.DataFrame) -> list[str]:
    lines = []
    for estimator, name in (
        ("quantile_certificate", "quantile certificate of the 0.9 quantile"),
        ("empirical_bernstein", "empirical Bernstein, y bounded"),
        ("betting", "betting, y bounded"),
    ):
        part = table[table["estimator"] == estimator]
        ratio = _excess(part).where(part["misses"] > 4)
        total = part[part["failure_probability"] == part["failure_probability"].min()]
        counted = ratio.notna().any()
        rate = f"at a rate of up to {ratio.max():.2g} γ" if counted else "too seldom to count"
        lines.append(
            f"- {name}: misses {rate}; at γ = "
            f"{part['failure_probability'].min():g}, {total['misses'].sum():,.0f} misses in "
            f"{total['repeats'].sum():,.0f} samples."
        )
    keys = ["population", "records", "failure_probability"]
    gaps = table.pivot_table("median_gap", keys, "estimator")
    ratio = gaps["betting"] / gaps["empirical_bernstein"]
    lines.append(
        "- On the same samples betting's bound on log E y lies "
        f"{ratio.min():.2f} to {ratio.max():.2f} times as far above the truth as empirical "
        f"Bernstein's (medians; {ratio.median():.2f} in the middle case)."
    )
    exact = table[table["estimator"] == "binary"]
    exact = exact.assign(ratio=_excess(exact))
    most = _largest(exact, "ratio")
    many = exact[exact["records"] == exact["records"].max()]
    lines.append(
        "- binary: over probabilities drawn from its flat prior the bound misses with probability "
        "γ exactly. A fixed probability it can miss more often, the most where hits are many and "
        f"records few: up to {most['ratio']:.3g} γ at m = {most['records']:,}, "
        f"γ = {most['failure_probability']:g}, and {many['ratio'].max():.3g} γ at "
        f"m = {many['records'].max():,} "
        "(exact). Clopper and Pearson's limit, Beta(N₁+1, N₀), never does."
    )
    return lines


def _is(table: pd.DataFrame, method: str) -> pd.Series:
    return (table["estimator"] == "student_t") & (table["method"] == method)


def _excess(table: pd.DataFrame) -> pd.Series:
    return table["miss_rate"] / table["failure_probability"]


def _largest(table: pd.DataFrame, column: str) -> dict[str, Any]:
    row = table.sort_values(column).iloc[-1]
    return {str(name): value for name, value in row.items()}


def _diagonal(axes: Axes, gammas: pd.Series) -> None:
    axes.plot(gammas, gammas, color="k", lw=1, ls="--", label="γ", zorder=0)


def _population_colors(names: list[str]) -> dict[str, object]:
    colors = mpl.colormaps["tab20"].colors  # type: ignore[attr-defined]
    return {name: colors[i % len(colors)] for i, name in enumerate(names)}
