"""Average-case privacy compared with its control, and the guarantee of the published GAN's noise.

Published: Triastcyn and Faltings, "Generating Artificial Data for Private Deep Learning" and
"Federated Generative Privacy", 2019; thesis of Triastcyn (EPFL 2020), chapters 3, 4 and 7. Faces
and networks are out of reach here: rows are scikit-learn's, features are principal components, and
generators are mixtures of normals without any privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from published import RenyiAccountant
from scipy import stats
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.decomposition import PCA
from sklearn.metrics import roc_auc_score
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import NearestNeighbors

from bdpvi._ground.progress import Track
from bdpvi.privacy.gaussian import equal_covariance
from bdpvi.privacy.sampled_steps import PrivacyLossAccountant
from bdpvi.privacy.solve import root
from studies.study import DP, Finding, publish, sized

Rows = NDArray[np.float64]
NONE = "none"
CHEBYSHEV, STUDENT = "Chebyshev", "Student"
GAMMAS: Mapping[str, float] = {CHEBYSHEV: 1e-5, STUDENT: 1e-15}
"""Rules of chapters 3 and 4, with their γ."""
VERBATIM, FRESH = "the training rows, verbatim", "fresh rows"
CLIENTS, COMPONENTS = 10, 20
DELTA, IMAGES, EPOCHS, GAN_CLIP, GAN_NOISE = 1e-5, 60_000, 400, 0.5, 0.01
"""The published WGAN: bound on the critic's gradients, noise; chapter 7."""
PROMISED = 0.02
"""Noise multiplier below which privacy loss distributions promise nothing."""


class Part(NamedTuple):
    """Rows to train with, as many others that are released, and as many that nobody sees."""

    train: Rows
    fresh: Rows
    outside: Rows
    labels: NDArray[np.int64]


def generative(out: Path, *, seed: int, track: Track[Any], scale: float) -> Finding:
    """The average-case statistic of generators and controls, and ε of the published settings."""
    rows: list[dict[str, object]] = []
    for data in track(("digits, 8 features", "digits, 30 features", "breast cancer"), "tables"):
        part = _part(data, seed)
        checked = part.train[: sized(len(part.train), scale, least=50)]
        for what, release in RELEASES.items():
            released = release(part, np.random.default_rng(seed))
            losses = expected_losses(released, checked)
            for rule, bound in RULES.items():
                rows.append(
                    {"part": "average", "data": data, "what": what, "rule": rule,
                     "gamma": GAMMAS[rule], "mean": losses.mean(),
                     "mu": bound(losses, GAMMAS[rule]), "attack": attack(released, part),
                     "guarantee": NONE}
                )  # fmt: skip
    table = pd.DataFrame([*rows, *settings()])
    text = f"{_average_text(table)}\n\n{_settings_text(table)}"
    title = "Average-case privacy of generators"
    return publish(out, "generative", title, table, [_figure(table)], text)


def expected_losses(released: Rows, records: Rows) -> Rows:
    """Return the estimated expected privacy loss of each record. NO GUARANTEE FOLLOWS FROM IT.

    The divergence of the released rows from those without the row nearest to the record, by nearest
    neighbours: (d/n) Σ log(ν/ρ) with ρ the distance of a row to the nearest other one, and ν to the
    nearest other one that is left (Wang, Kulkarni and Verdú 2009, eq. 5, for n and n − 1 rows). It
    can differ for those rows alone whose neighbour was taken out.

    Args:
        released: (n, d), all different.
        records: (m, d).

    Returns:
        (m,).

    >>> expected_losses(np.array([[0.0], [1.0], [3.0]]), np.array([[0.9]])).round(6)
    array([0.597253])
    """
    distances, nearest = NearestNeighbors(n_neighbors=3).fit(released).kneighbors(released)
    ratio = np.log(distances[:, 2] / distances[:, 1])  # the first neighbour of a row is itself
    each = np.bincount(nearest[:, 1], weights=ratio, minlength=len(released))
    taken = NearestNeighbors(n_neighbors=1).fit(released).kneighbors(records)[1][:, 0]
    return np.asarray(released.shape[1] / len(released) * each[taken])


def chebyshev(losses: Rows, gamma: float) -> float:
    """Return mean + sd/√γ: with probability γ at most a loss is larger, if both were known."""
    return float(losses.mean() + losses.std(ddof=1) / math.sqrt(gamma))


def student(losses: Rows, gamma: float) -> float:
    """Return the upper limit of the mean by Student's t at confidence 1 − γ."""
    m = len(losses)
    spread = losses.std(ddof=1) / math.sqrt(m)
    return float(losses.mean() - stats.t.ppf(gamma, m - 1) * spread)


RULES: Mapping[str, Callable[[Rows, float], float]] = {CHEBYSHEV: chebyshev, STUDENT: student}


def attack(released: Rows, part: Part) -> float:
    """Return the AUC of guessing who is in the training rows by the nearest released row."""
    tree = NearestNeighbors(n_neighbors=1).fit(released)
    distances = [tree.kneighbors(one)[0][:, 0] for one in (part.train, part.outside)]
    inside = np.repeat([1, 0], [len(distance) for distance in distances])
    return float(roc_auc_score(inside, -np.concatenate(distances)))


def _part(data: str, seed: int) -> Part:
    found = load_breast_cancer() if data == "breast cancer" else load_digits()
    x = found.data - found.data.mean(0)
    spread = x.std(0)
    x = x / np.where(spread > 0, spread, 1) if data == "breast cancer" else x
    x = PCA(30 if data.startswith("digits, 30") else 8, random_state=seed).fit_transform(x)
    order = np.random.default_rng(seed).permutation(len(x))
    third = len(x) // 3
    train, fresh, outside = order[: 3 * third].reshape(3, third)
    return Part(x[train], x[fresh], x[outside], found.target[train])


def _mixture(rows: Rows, size: int, rng: np.random.Generator) -> Rows:
    components = max(1, min(COMPONENTS, len(rows) // 20))
    fitted = GaussianMixture(
        components, covariance_type="diag", reg_covar=1e-3, random_state=int(rng.integers(2**31))
    ).fit(rows)
    return np.asarray(fitted.sample(size)[0])


def _generated(part: Part, rng: np.random.Generator) -> Rows:
    return _mixture(part.train, len(part.train), rng)


def _federated(part: Part, rng: np.random.Generator, *, by_class: bool) -> Rows:
    """Return rows of the generators of ten clients, with rows at random or in order of class."""
    order = np.argsort(part.labels, kind="stable") if by_class else np.arange(len(part.labels))
    owned = np.array_split(part.train[order], CLIENTS)
    return np.concatenate([_mixture(one, len(one), rng) for one in owned])


def _copied(part: Part, rng: np.random.Generator) -> Rows:
    noise = rng.standard_normal(part.train.shape)
    return np.asarray(part.train + 0.01 * part.train.std(0) * noise)


RELEASES: Mapping[str, Callable[[Part, np.random.Generator], Rows]] = {
    "a generator": _generated,
    "ten clients' generators, rows at random": lambda part, rng: _federated(
        part, rng, by_class=False
    ),
    "ten clients' generators, rows by class": lambda part, rng: _federated(
        part, rng, by_class=True
    ),
    "the training rows, 1 % noise": _copied,
    VERBATIM: lambda part, _: part.train,
    FRESH: lambda part, _: part.fresh,
}


def seen_coins(noise: float, rate: float, steps: int, delta: float = DELTA) -> float:
    """Return ε of a run of DP-SGD to whoever sees in which steps a record takes part.

    δ(ε) is the mean over their number K, a binomial one, of that of a Gaussian mechanism whose loss
    has the variance K/z². An upper bound for those who do not see the coins (joint convexity), and
    near the truth where the noise is so small that the sums show them.

    Args:
        noise: z.
        rate: q.
        steps: T.
        delta: δ.

    >>> round(seen_coins(1.0, 1.0, 1), 4)  # one Gaussian mechanism
    4.3768
    """
    law = stats.binom(steps, rate)
    counts = np.arange(law.isf(delta / 1e4) + 1)
    beyond = float(law.sf(counts[-1]))
    weights = torch.from_numpy(law.pmf(counts))
    variances = torch.from_numpy(counts / noise**2)

    def excess(epsilon: float) -> float:
        found = float((weights * equal_covariance(variances, epsilon)).sum())
        return found + beyond - delta

    largest = float(variances.max())
    top = largest / 2 + math.sqrt(-2 * math.log(delta) * largest) + 1
    return root(excess, 0.0, top) * (1 + 1e-11)  # the side on which δ holds


def settings() -> list[dict[str, object]]:
    """Return the published noise as it can be read, and what it guarantees."""
    result: list[dict[str, object]] = []
    for what, batch, noise in (
        (f"{GAN_NOISE:g} times the clip, on the sum", 64, GAN_NOISE),
        (f"sd {GAN_NOISE:g} on the sum", 64, GAN_NOISE / GAN_CLIP),
        (f"sd {GAN_NOISE:g} on the mean", 64, GAN_NOISE * 64 / GAN_CLIP),
        (f"sd {GAN_NOISE:g} on the mean", 1024, GAN_NOISE * 1024 / GAN_CLIP),
    ):
        rate, steps = batch / IMAGES, round(EPOCHS * IMAGES / batch)
        tight = (
            PrivacyLossAccountant().epsilon(noise, rate, steps, DELTA)
            if noise > PROMISED
            else seen_coins(noise, rate, steps)
        )
        result.append(
            {"part": "settings", "what": what, "batch": batch, "multiplier": noise, "steps": steps,
             "renyi": RenyiAccountant().epsilon(noise, rate, steps, DELTA), "epsilon": tight,
             "guarantee": DP}
        )  # fmt: skip
    return result


def _average_text(table: pd.DataFrame) -> str:
    rows = table[table["part"] == "average"]
    mu = rows.set_index(["what", "data", "rule"])["mu"]
    by_rule = [rows.loc[rows["rule"] == rule, "mu"] for rule in (CHEBYSHEV, STUDENT)]
    once = rows[rows["rule"] == STUDENT]
    listed = "\n".join(
        f"| {data} | {what} | {first:.3g} | {second:.3g} | {auc:.2f} |"
        for data, what, first, second, auc in zip(
            once["data"], once["what"], *by_rule, once["attack"], strict=True
        )
    )
    ratios = mu[VERBATIM] / mu[FRESH]
    return (
        "## The statistic, and its control\n\n"
        "Chapters 3 and 4 of Triastcyn's thesis (EPFL 2020) call a generator (μ, γ)-private on "
        "average if its expected privacy loss, a Kullback–Leibler divergence, is above μ with "
        "probability γ at most, and estimate that from what was released: by distances to nearest "
        "neighbours, over the records. μ is then mean + sd/√γ with γ = 1e-5 (Chebyshev) or an "
        "upper limit of the mean by Student's t with γ = 1e-15. The program is not on record; "
        "here, as we read it, what would be released without a record is what was released "
        "without the row nearest to it. The last two rows of each table are controls of the same "
        "size: the training rows published *verbatim*, and fresh rows that have nothing to do "
        "with them. The last column is an attack, with rows that nobody released as the other "
        "class: the AUC of guessing who was in the training rows by the distance to the nearest "
        "released row.\n\n"
        "| table | released | μ, Chebyshev | μ, Student's t | attack |\n"
        f"| --- | --- | --- | --- | --- |\n{listed}\n\n"
        f"μ of the verbatim copy is {ratios.min():.2f} to {ratios.max():.2f} times that of fresh "
        "rows: the statistic sees how rows lie among each other, and not whose they are. "
        "Publishing the training rows scores as private as publishing nothing about them. μ falls "
        "with the number of rows whatever they are, as one row of n moves a density by 1/n. **It "
        "is no guarantee**, and bdpvi gives none by it."
    )


def _settings_text(table: pd.DataFrame) -> str:
    rows = table[table["part"] == "settings"]
    listed = "\n".join(
        f"| {what} | {int(batch):,} | {noise:g} | {int(steps):,} | {renyi:.2g} | {epsilon:.3g} |"
        for what, batch, noise, steps, renyi, epsilon in zip(
            *(rows[name] for name in ("what", "batch", "multiplier", "steps", "renyi", "epsilon")),
            strict=True,
        )
    )
    return (
        "## Worst-case ε of the published GAN settings\n\n"
        f"Chapter 7 of the thesis clips the critic's gradients to {GAN_CLIP:g}, adds noise of "
        f"{GAN_NOISE:g} and trains for {EPOCHS} epochs on {IMAGES:,} images; a Bayesian ε of 1 at "
        "δ = 1e-10 is given. What the noise is relative to decides everything. Below, each reading "
        "as DP-SGD with every record's gradient clipped, which the worst case needs, at "
        f"δ = {DELTA:g}: by Rényi DP at orders from 1.1, and by the tightest there is: privacy "
        f"loss distributions, or, at multipliers of {PROMISED:g} and less, where sums show who "
        "takes part in a step, the number of such steps.\n\n"
        "| noise | batch | multiplier | steps | worst-case ε, Rényi DP | tightest |\n"
        f"| --- | --- | --- | --- | --- | --- |\n{listed}\n\n"
        "On the sum the noise protects nobody. On the mean of a batch it is a worst-case guarantee "
        "of a useful size, which larger batches improve."
    )


def _figure(table: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(6.5, 4.2), dpi=120, layout="constrained")
    axes = figure.subplots()
    rows = table[table["part"] == "average"]
    for at, (data, some) in enumerate(rows.groupby("data", sort=False)):
        for rule, marker in ((CHEBYSHEV, "o"), (STUDENT, "x")):
            one = some[some["rule"] == rule]
            axes.plot(
                one["attack"], one["mu"], marker, ls="", color=f"C{at}", label=f"{data}, {rule}"
            )
    axes.set(yscale="log", ylabel="μ: no guarantee")
    axes.set_xlabel("AUC of guessing who was in the training rows")
    axes.legend(frameon=False, fontsize=8)
    axes.grid(alpha=0.3)
    return figure
