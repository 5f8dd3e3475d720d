"""Draw the pictures of ε in docs/explanation, and of the default release.

    PYTHONPATH=benchmarks python docs/draw_figures.py [--out docs/figures] [--printed] [--as pdf]

All randomness follows fixed seeds, and every number comes from the library's own functions. With
--printed only those are drawn that need nothing but the outputs in docs/benchmarks.
"""

from __future__ import annotations

import argparse
import re
from contextlib import AbstractContextManager
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure
from studies.populations import Population, rare, uniform
from torch import Tensor

from bdpvi import BayesianLogisticRegression, Dataset, Fit, Optimum, fit
from bdpvi.bayesian import Accounting, cost_of
from bdpvi.bayesian.accounting.draws import GuideDraws
from bdpvi.bayesian.accounting.estimators import student_t
from bdpvi.bayesian.accounting.reliability import reliable
from bdpvi.bayesian.curve import label_shares
from bdpvi.bench.curves import COLOURS, Curve, draw, plain_ticks
from bdpvi.guides import MeanField
from bdpvi.privacy.gaussian import equal_covariance
from bdpvi.privacy.gaussian_dp import gaussian_epsilon

DELTA = 1e-5
DATES = {".pdf": "CreationDate", ".png": "Software"}
"""What would differ from one drawing to the next, or from one version of matplotlib."""
DRAW = "posterior draw, certified Bayesian ε"
GATED = "draw behind a gate, worst-case ε"
BLUE, RED, GREY = "#1f77b4", "#d62728", "#555555"
REAL = {
    "breast_cancer": ("breast cancer", "left", 0), "abalone": ("Abalone", "right", -4),
    "spambase": ("Spambase", "right", 5), "fair": ("survey", "right", -5),
    "phoneme": ("Phoneme", "right", -4), "magic": ("MAGIC", "left", 0),
    "adult": ("Adult", "left", 0),
}  # fmt: skip
"""Labels of real tables, how these are aligned, and by how much they are moved up."""


def hidden() -> Figure:
    """Draw what ε and δ say of one release: two densities and what e^ε leaves uncovered."""
    distance, epsilon = 1.0, 1.0
    w = np.linspace(-3.2, 4.2, 800)
    without, seen = (np.exp(-((w - mean) ** 2) / 2) / np.sqrt(2 * np.pi) for mean in (0, distance))
    delta = float(equal_covariance(torch.tensor([distance**2], dtype=torch.float64), epsilon))
    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    axes = figure.subplots()
    cover = np.exp(epsilon) * without
    axes.plot(w, seen, color=BLUE, label="with the record")
    axes.plot(w, without, color=RED, label="without it")
    below = np.where(cover < 0.46, cover, np.nan)  # the rest of it would cross the legend
    axes.plot(w, below, color=RED, ls=":", label=f"without it, times e^ε (ε = {epsilon:g})")
    axes.fill_between(w, cover, seen, where=seen > cover, color=BLUE, alpha=0.35, lw=0)
    axes.annotate(
        f"δ = {delta:.2f}: what the\ndotted line leaves over", (2.05, 0.2), (2.5, 0.3), color=BLUE,
        arrowprops={"arrowstyle": "-", "color": BLUE},
    )  # fmt: skip
    axes.set(ylim=(0, 0.62), xlabel="released sample", ylabel="density", yticks=[])
    axes.legend(frameon=False, loc="upper left", fontsize=9)
    return figure


def simulated(records: int = 20_000) -> Fit:
    """Return the fit of simulated records, most of them typical and a few far out."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(records, 3, generator=generator, dtype=torch.float64)
    x[: records // 1000] *= 6
    chance = torch.sigmoid(x @ torch.tensor([1.0, -0.5, 0.3], dtype=torch.float64))
    y = torch.rand(records, generator=generator, dtype=torch.float64) < chance
    model = BayesianLogisticRegression(clip=3.0, prior_scale=0.008)
    guide = MeanField(model, noise_scale=3.2e-4)
    return fit(model, guide, Dataset(x, y.double()), neighbours=Optimum(), progress=False)


def variances(fitted: Fit) -> Tensor:
    """Return the variance of each record's privacy loss in one draw, (m,)."""
    return fitted.panels[0].pairs.b2.sum(1)


def worst_case(fitted: Fit, draws: int = 1) -> float:
    """Return the worst-case ε of some draws at temperature 1."""
    largest = fitted.panels[0].largest
    assert largest is not None
    return gaussian_epsilon(draws * largest, DELTA)


def bayesian(fitted: Fit, draws: int = 1) -> float:
    """Return the Bayesian ε of the same draws."""
    rule = Accounting(conversion="hockey-stick")
    found = cost_of([GuideDraws(fitted.panels, draws)], DELTA, rule).bayesian
    assert found is not None
    return found.epsilon


def records(fitted: Fit) -> Figure:
    """Draw each record's own ε, with the Bayesian and the worst-case one."""
    sizes = variances(fitted).numpy()
    some = np.geomspace(sizes.min(), sizes.max(), 200)  # ε is a smooth function of the variance
    own = np.interp(sizes, some, [gaussian_epsilon(v, DELTA) for v in some])
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.hist(own, bins=60, color=GREY, alpha=0.6)
    axes.set_yscale("log")
    top = axes.get_ylim()[1] * 6
    lines = (
        (float(np.median(own)), "half of the\nrecords", GREY, ":"),
        (bayesian(fitted), "Bayesian ε", BLUE, "-"),
        (own.max(), "costliest\nrecord here", GREY, ":"),
        (worst_case(fitted), "worst-case ε", RED, "--"),
    )
    for value, name, colour, style in lines:
        axes.axvline(value, color=colour, ls=style)
        axes.annotate(
            f"{name}\n{value:.2f}", (value, top), (-4, -4), ha="right", va="top", color=colour,
            fontsize=9, textcoords="offset points",
        )  # fmt: skip
    axes.set(ylim=(0.7, top), xlabel=f"a record's own ε (δ = {DELTA:g})", ylabel="records")
    return figure


def reliability() -> Figure:
    """Draw bounds on a mean from samples that show the tail, and from samples that do not."""
    figure = Figure(figsize=(7.2, 3.4), layout="constrained")
    random = np.random.default_rng(3)
    cases = ((uniform(), "all values are alike"), (rare(), "one record in 1,000 is dear"))
    for axes, (population, title) in zip(figure.subplots(1, 2), cases, strict=True):
        _bounds(axes, population, random)
        axes.set(title=title, xscale="log", xlabel="records in the panel")
    figure.axes[0].set_ylabel("bound ÷ true mean")
    for axes in figure.axes:
        axes.legend(frameon=False, fontsize=9)
    return figure


def _bounds(axes: mpl.axes.Axes, population: Population, random: np.random.Generator) -> None:
    failure, drawn = 1e-6, set()
    axes.axhline(1, color=GREY, lw=1)
    for size in (100, 300, 1000, 3000, 10_000):
        for spread in np.linspace(0.88, 1.14, 12):
            estimate = student_t(
                torch.as_tensor(population.log_value(random.standard_normal(size))), failure
            )
            ratio = float(torch.exp(estimate.log_bound - population.log_mean))
            trusted = bool(reliable(estimate, failure))
            colour = RED if ratio < 1 else BLUE
            label = ("too small" if ratio < 1 else "holds") + (
                ", reliable" if trusted else ", not reliable"
            )
            axes.plot(
                size * spread, ratio, "o", ms=4, color=colour, mfc=colour if trusted else "white",
                label=None if label in drawn else label,
            )  # fmt: skip
            drawn.add(label)


def panel(fitted: Fit, releases: int = 12) -> Figure:
    """Draw how costs add up record by record, and the ε that follows."""
    figure = Figure(figsize=(7.6, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.35))
    ranked = variances(fitted).sort(descending=True).values[:: len(fitted.panels[0].ids) // 15]
    grid = ranked[:, None] * torch.ones(4)
    image = left.pcolormesh(grid.flip(0).numpy(), cmap="Blues", edgecolors="white", norm="log")
    left.set(
        xticks=np.arange(4) + 0.5, xticklabels=range(1, 5), yticks=[], xlabel="release",
        ylabel="records of the panel", title="add along each row,\nthen take the mean",
    )  # fmt: skip
    figure.colorbar(image, ax=left, label="cost (logarithmic)", ticks=[], format="")
    counts = np.arange(1, releases + 1)
    right.plot(counts, counts * bayesian(fitted), color=BLUE, ls=":", label="adding up ε")
    right.plot(counts, [worst_case(fitted, int(k)) for k in counts], "s--", color=RED, ms=4,
               label="worst-case ε")  # fmt: skip
    right.plot(counts, [bayesian(fitted, int(k)) for k in counts], "o-", color=BLUE, ms=4,
               label="Bayesian ε, by the panel")  # fmt: skip
    right.set(xlabel="releases", ylabel=f"ε (δ = {DELTA:g})", ylim=(0, None))
    right.legend(frameon=False, fontsize=9)
    return figure


def printed(name: str) -> list[list[str]]:
    """Return the cells of every table's row in a benchmark's output."""
    lines = (Path(__file__).parent / "benchmarks" / name).read_text("utf-8").splitlines()
    return [
        [cell.strip() for cell in line.strip("| \n").split("|")] for line in lines if "|" in line
    ]


def headline() -> Figure:
    """Draw what the library is for: log score at certified ε on Adult, and ε against N."""
    figure = Figure(figsize=(9.6, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _scores(left)
    _prices(right)
    for axes in (left, right):
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False,
                    fontsize=9)  # fmt: skip
    for axis in (right.xaxis, right.yaxis):
        plain_ticks(axis)
    right.xaxis.set_major_formatter("{x:,.0f}")
    right.xaxis.set_major_locator(mpl.ticker.LogLocator())
    return figure


def _scores(axes: mpl.axes.Axes) -> None:
    lines = {}
    for name, file in ((DRAW, "certified-curve.txt"), (GATED, "worst-case-curve.txt")):
        rows = [row for row in printed(file) if row[0][0] in "0123456789"]
        lines[name] = [(float(row[1]), float(row[2])) for row in rows]
    names = {
        "objective-perturbation": "default release, worst-case ε",
        "dpvi-pld": "DPVI by PLD, worst-case ε",
        "dpvi-ma": "DPVI-MA, worst-case ε",
        "dp-sgld-pld": "DP-SGLD by PLD, worst-case ε",
    }
    for method, *cells in printed("headline.txt"):
        if method in names and "not reached" not in cells:
            point = (float(cells[2]), float(cells[4].split()[0]))
            lines.setdefault(names[method], []).append(point)
        elif method == "logistic-regression":
            plain = float(cells[4].split()[0])
    draw(
        axes, [Curve(name, points, bayesian=name == DRAW) for name, points in lines.items()], plain
    )
    axes.set(ylim=(-0.435, -0.375), xlabel=f"ε at δ = {DELTA:g}", ylabel="test log score",
             title="Adult, 39,073 records")  # fmt: skip


def _prices(axes: mpl.axes.Axes) -> None:
    for columns, colour in ((5, COLOURS[0]), (20, COLOURS[1])):
        rows = [row for row in printed("certified-sweep.txt") if row[0].startswith(f"{columns}, ")]
        x = [float(row[0].split(", ")[1]) for row in rows]
        axes.plot(x, [float(row[1]) for row in rows], "o-", ms=5, color=colour,
                  label=f"{columns} columns, Bayesian")  # fmt: skip
        gated = [
            row
            for row in printed("worst-case-sweep.txt")
            if row[0].startswith(f"simulated{columns}_")
        ]
        axes.plot([float(row[1]) for row in gated], [float(row[5]) for row in gated], "s--", ms=4,
                  color=colour, label=f"{columns} columns, worst case")  # fmt: skip
    real = {row[0]: row for row in printed("certified.txt") if row[0] in REAL}
    x, y = ([float(real[name][place]) for name in REAL] for place in (1, 3))
    axes.plot(x, y, "D", ms=5, color=COLOURS[2], label="real tables, Bayesian")
    for (name, side, up), one, other in zip(REAL.values(), x, y, strict=True):
        away = 7 if side == "left" else -7
        axes.annotate(name, (one, other), (away, up), color=COLOURS[2], fontsize=9, ha=side,
                      va="center", textcoords="offset points")  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="records", ylabel=f"ε at δ = {DELTA:g}",
             title="ε of one posterior draw")  # fmt: skip
    axes.grid(alpha=0.3)


def more_records() -> Figure:
    """Draw the share of the gain that the default release keeps, as it was printed."""
    found = printed("default-release.txt")
    cells = [row for row in found if re.match(r"\d+, ", row[0]) and len(row) == 4]
    figure = Figure(figsize=(7.6, 3.0), layout="constrained")
    columns = list(dict.fromkeys(cell[0].split(", ")[0] for cell in cells))
    for axes, width in zip(figure.subplots(1, len(columns), sharey=True), columns, strict=True):
        rows = [cell for cell in cells if cell[0].split(", ")[0] == width]
        sizes = [float(cell[0].split(", ")[1]) for cell in rows]
        shares = np.array([[float(share) for share in cell[1].split()] for cell in rows])
        for epsilon, share, colour in zip((0.05, 0.2, 1), shares.T, (RED, GREY, BLUE), strict=True):
            axes.plot(sizes, share, "o-", ms=4, color=colour, label=f"ε = {epsilon:g}")
        axes.axhline(0, color=GREY, lw=0.8, ls=":")
        axes.set(xscale="log", xlabel="records", title=f"{width} columns")
    figure.axes[0].set_ylabel("share of the gain in log score")
    figure.axes[-1].legend(frameon=False, fontsize=9)
    return figure


def groups() -> Figure:
    """Draw ε of every group of at least a share, as it was printed."""
    names = {
        "minority5_1e4": ("10,000 records, one in twenty of a minority", COLOURS[0]),
        "minority5_1e5": ("100,000 of them", COLOURS[1]),
        "adult": ("Adult, 39,073 records", COLOURS[2]),
    }
    head, _, *rows = printed("certified-groups.txt")
    shares = [1.0, *(float(cell.removesuffix(" %")) / 100 for cell in head[3:-1])]
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    axes = figure.subplots()
    for name, _, *cells in rows:
        if name in names:
            label, colour = names[name]
            axes.plot(shares, [float(one) for one in cells[:-1]], "o-", ms=5, color=colour,
                      label=label)  # fmt: skip
    label_shares(axes, shares, DELTA)
    axes.legend(frameon=False, fontsize=9)
    return figure


def curves() -> Figure:
    """Draw δ over steps, ε over epochs and ε over draws, as they were printed."""
    tables: dict[tuple[str, ...], list[list[float]]] = {}
    head: tuple[str, ...] = ()
    for row in printed("paper-curves.txt"):
        if row[0] in ("steps", "epoch", "draws"):
            head = tuple(row)
            tables[head] = []
        elif row[0][0].isdigit() and len(row) == len(head):
            tables[head].append([float(cell.replace(",", "")) for cell in row])
    figure = Figure(figsize=(9.6, 3.4), layout="constrained")
    shown = (
        ("steps", "δ at ε = 0.5", ("x", "--", "-.", ":"), "log", (1e-16, 1)),
        ("epoch", f"ε at δ = {DELTA:g}", ("--", ":"), "linear", (0, None)),
        ("draws", f"ε at δ = {DELTA:g}", ("o-", "s--"), "log", (None, None)),
    )
    for axes, (name, label, styles, scale, limits) in zip(
        figure.subplots(1, 3), shown, strict=True
    ):
        for head, cells in tables.items():
            if head[0] == name and (name != "epoch" or "accuracy" not in head):
                for place, line in enumerate(styles, start=1):
                    axes.plot([row[0] for row in cells], [row[place] for row in cells], line,
                              ms=4, label=head[place])  # fmt: skip
        axes.set(xscale="linear" if name == "epoch" else "log", yscale=scale, ylim=limits,
                 xlabel=name, ylabel=label)  # fmt: skip
        axes.legend(frameon=False, fontsize=8)
        axes.grid(alpha=0.3)
    return figure


def style() -> AbstractContextManager[None]:
    """Return the context in which figures look as they do on the site."""
    return mpl.rc_context(
        {
            "svg.hashsalt": "bdpvi",  # otherwise every drawing has other ids
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )


def save(figure: Figure, path: Path) -> None:
    """Write a figure, the same bytes every time."""
    figure.patch.set_facecolor("white")
    figure.savefig(path, metadata={DATES.get(path.suffix, "Date"): None})


def main() -> None:
    """Write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "figures")
    parser.add_argument("--printed", action="store_true", help="those of printed outputs alone")
    parser.add_argument("--as", dest="format", default="svg", help="svg, pdf or png")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with style():
        figures = {
            "epsilon-more-records": more_records(),
            "epsilon-groups": groups(),
            "headline": headline(),
            "paper-curves": curves(),
        }
        if not given.printed:
            fitted = simulated()
            figures |= {
                "epsilon-one-record": hidden(),
                "epsilon-all-records": records(fitted),
                "epsilon-reliable": reliability(),
                "epsilon-panel": panel(fitted),
            }
        for name, figure in figures.items():
            save(figure, given.out / f"{name}.{given.format}")


if __name__ == "__main__":
    main()
