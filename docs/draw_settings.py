"""Draw the pictures of docs/explanation/settings.md and guide-settings.md, on simulated patients.

    python docs/draw_settings.py [--out docs/figures]

All randomness follows fixed seeds. Draws are previews: nothing is charged for simulated records.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.ticker
import numpy as np
import torch
from draw_figures import BLUE, DELTA, GREY, RED, save, style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch.nn.functional import binary_cross_entropy

import bdpvi
from bdpvi import Dataset, Fit
from bdpvi.bayesian.pricing import worst_case
from bdpvi.guides import MeanField
from bdpvi.models.predictions import predictive_means
from bdpvi.privacy.ledger import Charge
from bdpvi.privacy.sampled_steps import GaussianAccountant, calibrate
from bdpvi.tables.recipe import Recipe

FEW = bdpvi.Optimum(bdpvi.bayesian.Remove(3))
"""A worst-case ε does not depend on the neighbours, so a few are enough."""
RELEASES = 100
COLOURS = {0.1: RED, 1.0: BLUE}
"""The ε that most pictures compare."""


def patients(records: int, seed: int) -> Dataset:
    """Return simulated records: eight standardised features, one of them with a heavy tail."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(records, 8, generator=generator, dtype=torch.float64)
    x[:, 0] = x[:, 0].sinh() / 1.8  # standard deviation 1, but values of ±8 occur
    weights = torch.tensor([0.8, -0.6, 0.5, 0.3, 0.2, 0, 0, 0], dtype=torch.float64)
    chance = torch.sigmoid(x @ weights - 1)
    return Dataset(x, torch.bernoulli(chance, generator=generator))


TRAIN, TEST = patients(3000, 1), patients(3000, 2)


def fitted(settings: Recipe) -> Fit:
    """Return the fit of the simulated records with these settings."""
    return settings.fit_guide(TRAIN, neighbours=FEW, progress=False)


def log_scores(fit: Fit, temperature: float, draws: int = 1) -> list[float]:
    """Return the log scores of simulated releases of some draws each, on other records."""
    generator = torch.Generator().manual_seed(3)
    latents = bdpvi.bayesian.preview(
        fit, draws * RELEASES, temperature=temperature, generator=generator
    )
    chances = predictive_means(fit.model, latents, TEST.x).reshape(RELEASES, draws, len(TEST))
    return [-float(binary_cross_entropy(chance, TEST.y)) for chance in chances.mean(1)]


def band(
    axes: Axes, values: Sequence[float], scores: Sequence[Sequence[float]], **style: Any
) -> None:
    """Draw the median release and the range of nine in ten."""
    low, median, high = np.quantile(scores, [0.05, 0.5, 0.95], axis=1)
    axes.fill_between(values, low, high, color=style["color"], alpha=0.2, lw=0)
    axes.plot(values, median, "o-", ms=4, **style)


def plain(axes: Axes, ticks: Sequence[float], name: str | None = None, axis: str = "x") -> None:
    """Make an axis logarithmic, with plain numbers, and name it."""
    one = axes.xaxis if axis == "x" else axes.yaxis
    axes.set(**{f"{axis}scale": "log"})
    one.set_ticks(ticks, [f"{value:g}" for value in ticks])
    one.set_minor_locator(mpl.ticker.NullLocator())
    if name is not None:
        one.set_label_text(name)


def frame(axes: Axes, values: Sequence[float], name: str) -> None:
    """Name the axes of log scores, and draw the base rate's."""
    base = torch.full_like(TEST.y, float(TRAIN.y.mean()))
    axes.axhline(-float(binary_cross_entropy(base, TEST.y)), color=GREY, ls=":", label="base rate")
    axes.set(ylabel="log score, held out", ylim=(-0.9, -0.4))
    plain(axes, values, name)
    axes.legend(frameon=False, fontsize=9)


def two() -> tuple[Figure, Axes, Axes]:
    """Return a figure of two panels."""
    figure = Figure(figsize=(5.8, 2.7), layout="constrained")
    left, right = figure.subplots(1, 2)
    return figure, left, right


def epsilon() -> Figure:
    """Draw what ε lets an attacker know, and what it leaves of the model."""
    figure, left, right = two()
    values = np.geomspace(0.01, 10, 200)
    # Kairouz, Oh and Viswanath 2015: from even odds no test is right more often.
    left.plot(values, (np.exp(values) + DELTA) / (1 + np.exp(values)), color=BLUE)
    left.set(ylabel="best guess is right", ylim=(0.45, 1.02))
    left.set_title("was this record in the table?", fontsize=10)
    plain(left, [0.01, 0.1, 1, 10], "ε")
    some = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0]
    fits = {value: fitted(bdpvi.recommended(value, guide=MeanField)) for value in some}
    scores = [
        log_scores(fit, bdpvi.bayesian.calibrate(fit, epsilon=e).temperature)
        for e, fit in fits.items()
    ]
    band(right, some, scores, color=BLUE, label="recommended settings")
    frame(right, some, "ε")
    return figure


def delta() -> Figure:
    """Draw the noise that δ costs."""
    figure = Figure(figsize=(5.0, 3.0), layout="constrained")
    axes = figure.subplots()
    values = np.geomspace(1e-10, 1e-3, 15)
    for e, colour in COLOURS.items():
        noise = [
            calibrate(GaussianAccountant(), epsilon=e, delta=d, rate=1.0, steps=1) for d in values
        ]
        at = calibrate(GaussianAccountant(), epsilon=e, delta=DELTA, rate=1.0, steps=1)
        axes.plot(values, np.array(noise) / at, color=colour, label=f"ε = {e:g}")
    axes.axvline(1 / len(TRAIN), color=GREY, ls=":", label=f"1/N, N = {len(TRAIN):,}")
    axes.set(xscale="log", xlabel="δ", ylabel="noise ÷ noise at δ = 1e-5", ylim=(0, None))
    axes.legend(frameon=False, fontsize=9)
    return figure


def of_model(name: str, values: Sequence[float], shown: str) -> Figure:
    """Draw what a setting of the model does, the others as recommended."""
    figure = Figure(figsize=(5.0, 3.0), layout="constrained")
    axes = figure.subplots()
    for e, colour in COLOURS.items():
        usual = bdpvi.recommended(e, guide=MeanField)
        scores = []
        for value in values:
            changed: dict[str, Any] = {name: value}
            fit = fitted(replace(usual, model=replace(usual.model, **changed)))
            scores.append(log_scores(fit, bdpvi.bayesian.calibrate(fit, epsilon=e).temperature))
        band(axes, values, scores, color=colour, label=f"ε = {e:g}")
        axes.axvline(getattr(usual.model, name), color=colour, ls="--", lw=1)
    frame(axes, values, shown)
    return figure


def temperature() -> Figure:
    """Draw ε and the log score against the temperature of one fit."""
    figure, left, right = two()
    fit = fitted(bdpvi.recommended(1.0, guide=MeanField))
    values = [0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0]
    left.plot(values, [cost(fit, value) for value in values], "o-", ms=4, color=BLUE)
    left.set(yscale="log", ylabel="worst-case ε")
    plain(left, values, "temperature")
    plain(left, [0.1, 0.3, 1, 3], axis="y")
    band(right, values, [log_scores(fit, value) for value in values], color=BLUE)
    frame(right, values, "temperature")
    return figure


def cost(fit: Fit, temperature: float) -> float:
    """Return the worst-case ε of one draw."""
    found = worst_case(fit, DELTA, Charge(1, temperature))
    assert found is not None
    return found.epsilon


def noise_scale() -> Figure:
    """Draw ε at temperature 1, and the noise at a given ε, against the noise scale."""
    figure, left, right = two()
    values = [0.03, 0.1, 0.3, 1.0, 3.0]
    usual = bdpvi.recommended(1.0, guide=MeanField)
    fits = [fitted(replace(usual, noise_scale=value)) for value in values]
    left.plot(values, [cost(fit, 1.0) for fit in fits], "o-", ms=4, color=BLUE)
    left.set(yscale="log", ylabel="ε at temperature 1")
    plain(left, [0.03, 0.1, 0.3, 1, 3], axis="y")
    for e, colour in COLOURS.items():
        taus = [bdpvi.bayesian.calibrate(fit, epsilon=e).temperature for fit in fits]
        spread = [value * tau**0.5 for value, tau in zip(values, taus, strict=True)]
        right.plot(values, spread, "o-", ms=4, color=colour, label=f"ε = {e:g}")
    right.set(ylabel="sd of the released noise", ylim=(0, None))
    right.legend(frameon=False, fontsize=9)
    for axes in (left, right):
        plain(axes, values, "noise scale")
    return figure


def draws() -> Figure:
    """Draw the log score against the number of draws that share one ε."""
    figure = Figure(figsize=(5.0, 3.0), layout="constrained")
    axes = figure.subplots()
    values = [1, 2, 5, 10, 30]
    for e, colour in COLOURS.items():
        fit = fitted(bdpvi.recommended(e, guide=MeanField))
        taus = [bdpvi.bayesian.calibrate(fit, k, epsilon=e).temperature for k in values]
        scores = [log_scores(fit, tau, k) for k, tau in zip(values, taus, strict=True)]
        band(axes, values, scores, color=colour, label=f"ε = {e:g} for all draws together")
    frame(axes, values, "draws")
    return figure


def main() -> None:
    """Write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "figures")
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    clips, scales = [0.03, 0.1, 0.3, 1.0, 3.0], [0.01, 0.03, 0.1, 0.16, 0.3, 1.0]
    limits = [0.3, 0.5, 1.0, 2.0, 3.0, 8.0]
    with style():
        figures = {
            "epsilon": epsilon(),
            "delta": delta(),
            "clip": of_model("clip", clips, "clip"),
            "prior-scale": of_model("prior_scale", scales, "prior scale"),
            "limit": of_model("limit", limits, "limit"),
            "temperature": temperature(),
            "noise-scale": noise_scale(),
            "draws": draws(),
        }
        for name, figure in figures.items():
            save(figure, folder / f"setting-{name}.svg")


if __name__ == "__main__":
    main()
