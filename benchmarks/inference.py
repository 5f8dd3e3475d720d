"""Coverage of intervals where the model is wrong, and how many coefficients each route measures.

    OMP_NUM_THREADS=1 python benchmarks/inference.py coverage [--tables 200]
    OMP_NUM_THREADS=1 python benchmarks/inference.py measured [--tables 10]
    OMP_NUM_THREADS=1 python benchmarks/inference.py exports [--tables 100]
    OMP_NUM_THREADS=1 python benchmarks/inference.py levels [--tables 200] [--shapes 3%]

``coverage``: 95 % intervals of noisy scores over simulated tables; the truth is the model's best
fit to 2,000,000 records. ``measured``: tables of numbers and categories with rare levels (each .6
times as frequent as the one before), by noisy scores, by DPVI, and by the route that
:class:`bdpvi.tables.setup.Intervals` takes. Strong coefficients are those whose estimate
without privacy is over 4 standard errors from 0. ``exports``: files of a hospital
(``benchmarks/hospital.py``), with declared types, by :func:`bdpvi.private`; the truth is that of
four slopes. ``levels``: two numbers and a category with rare levels by :func:`bdpvi.private` with
``intervals=True``: coverage of contrasts with the base level (of levels with one coefficient, of
their mean) and of the intercept. δ = 1e-5, priors have a scale of 5, and N is known except in
``exports`` and ``levels``.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import hospital
import numpy as np
import pandas as pd
import torch
from intervals import FAMILIES, bernoulli, features, overdispersed, truth, without_privacy
from printed import command
from torch import Tensor

import bdpvi
from bdpvi import BayesianLogisticRegression, Dataset, fit_private
from bdpvi.datasets import Schema, constants_of
from bdpvi.datasets.cells import read_columns
from bdpvi.datasets.columns import Numeric, OneHot
from bdpvi.datasets.encoding import Encoding
from bdpvi.datasets.formats import FileFormat
from bdpvi.datasets.records import Held
from bdpvi.datasets.table import Table as Tables
from bdpvi.models.poisson import PoissonScores
from bdpvi.noise.keys import Key
from bdpvi.privacy.gaussian import largest_variance
from bdpvi.regression import NoisyScores
from bdpvi.regression.score_posterior import NormalPrior
from bdpvi.regression.score_release import ScorePlan, measure
from bdpvi.releases.estimate import BASE, LEFT_OUT, POOLED
from bdpvi.tables import Public, Unit
from bdpvi.tables.setup import Intervals

Table = Callable[[int, int], tuple[Tensor, Tensor]]
"""Design and targets, for a number of rows and a seed."""
LARGE = 2_000_000
_COMMON = {"a": (0.5, 0.0), "b": (0.3, 0.5)}
WARDS: dict[str, dict[str, tuple[float, float]]] = {
    "3%": {**_COMMON, "c": (0.17, -0.5), "d": (0.03, 1.5)},
    "1%": {
        **_COMMON,
        "c": (0.15, -0.5),
        **{name: (0.01, effect) for name, effect in zip("defgh", (1.5, 1.5, 1, 2, 1), strict=True)},
    },
}
"""Shares of levels and their log-odds, by the share of the rarest."""


def logistic(columns: int, correlation: float, intercept: float) -> Table:
    """Return tables of which logistic regression is true."""
    place = torch.arange(columns)
    spread = correlation ** (place[:, None] - place).abs().double()
    w = truth("logistic", columns)
    w[-1] = intercept

    def made(rows: int, seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
        x = torch.cat([x @ torch.linalg.cholesky(spread).T, x.new_ones(rows, 1)], 1)
        return x, bernoulli(x @ w, generator)

    return made


def curved(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return a table whose logit has a square and a product that the model leaves out."""
    generator = torch.Generator().manual_seed(seed)
    x = features(rows, 5, generator)
    more = 0.3 * (x[:, 0] ** 2 - 1) + 0.3 * x[:, 0] * x[:, 1]
    return x, bernoulli(x @ truth("logistic", 5) + more, generator)


def spread(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return counts of variance μ + μ²/2."""
    generator = torch.Generator().manual_seed(seed)
    x = features(rows, 3, generator)
    return x, overdispersed(x @ truth("poisson", 3), generator)


CELLS: dict[str, tuple[str, Table, tuple[int, ...], tuple[float, ...]]] = {
    "logistic, squares and products left out, d = 5": (
        "logistic",
        curved,
        (10_000, 30_000),
        (0.5, 1, 3),
    ),
    "Poisson, variance μ + μ²/2, largest 30, d = 3": (
        "counts to 30",
        spread,
        (10_000, 30_000),
        (1, 3),
    ),
    "Poisson, variance μ + μ²/2, largest 10, d = 3": ("poisson", spread, (10_000,), (1,)),
    "logistic, correct, d = 15": ("logistic", logistic(15, 0.3, -0.5), (30_000,), (1, 3)),
    "logistic, correct, d = 15, 5 % positive": (
        "logistic",
        logistic(15, 0.3, -3.4),
        (30_000,),
        (1, 3),
    ),
    "logistic, correct, d = 15, correlation .9": (
        "logistic",
        logistic(15, 0.9, -0.5),
        (30_000,),
        (1, 3),
    ),
}


def coverage(tables: int) -> None:
    """Print a row for each cell."""
    families = FAMILIES | {"counts to 30": PoissonScores(30.0)}
    print(
        "| cell | N | ε | coverage | standard error | least | intercept | without privacy | width |"
    )
    print("| --- " * 9 + "|")
    for said, (name, made, sizes, epsilons) in CELLS.items():
        kind = "logistic" if name == "logistic" else "poisson"
        target = without_privacy(kind, *made(LARGE, 10**6))[0]
        for rows in sizes:
            for epsilon in epsilons:
                inside, plain, widths = [], [], []
                for seed in range(tables):
                    x, y = made(rows, seed)
                    k = x.shape[1]
                    distance = math.sqrt(largest_variance(epsilon, 1e-5))
                    plan = ScorePlan.of(families[name], k, distance, rows)
                    prior = NormalPrior(torch.zeros(k).double(), torch.eye(k).double() / 25)
                    found = measure(plan, Held((x, y)), prior, Key.of_seed(seed)).of_features()
                    sd = found.covariance.diagonal().sqrt()
                    usual, error = without_privacy(kind, x, y)
                    inside.append(((found.mean - target) / sd).abs() < 1.96)
                    plain.append(((usual - target) / error).abs() < 1.96)
                    widths.append(sd / error)
                hit, other = torch.stack(inside).double(), torch.stack(plain).double()
                of_it = float(hit.mean(1).std()) / math.sqrt(tables)
                print(
                    f"| {said} | {rows} | {epsilon:g} | {float(hit.mean()):.3f} | {of_it:.3f} | "
                    f"{float(hit.mean(0).min()):.3f} | {float(hit[:, -1].mean()):.3f} | "
                    f"{float(other.mean()):.3f} | {float(torch.stack(widths).median()):.2f} |",
                    flush=True,
                )


def messy(
    rows: int, numbers: int, sizes: tuple[int, ...], seed: int
) -> tuple[Dataset, tuple[tuple[int, ...], ...], Tensor]:
    """Return numbers and categories of these sizes, the places of their levels, and weights."""
    generator, chosen = (torch.Generator().manual_seed(one) for one in (seed, 1000 + seed))
    columns: list[Any] = [Numeric(f"n{at}", mean=0.0, sd=1.0) for at in range(numbers)]
    parts = [features(rows, numbers, generator)[:, :-1]]
    weights = [0.4 * torch.randn(numbers, generator=chosen, dtype=torch.float64)]
    groups, place = [], numbers
    for at, size in enumerate(sizes):
        chances = 0.6 ** torch.arange(size).double()
        levels = torch.multinomial(chances, rows, True, generator=generator)
        parts.append(torch.nn.functional.one_hot(levels, size).double())
        effects = 0.5 * torch.randn(size, generator=chosen, dtype=torch.float64)
        weights.append(effects - effects[0])
        groups.append(tuple(range(place, place + size)))
        columns.append(OneHot(f"c{at}", tuple("abcdefghij"[:size])))
        place += size
    x, w = torch.cat(parts, 1), torch.cat([*weights, torch.tensor([-0.8]).double()])
    encoding = Encoding(tuple(columns), "Simulated.")
    y = bernoulli(x @ w[:-1] + w[-1], generator)
    made = {"encoding": encoding.to_dict()}
    data = Dataset(x, y, feature_names=encoding.feature_names, preprocessing=made)
    return data, tuple(groups), w


def judged(
    release: bdpvi.Release, data: Dataset, groups: tuple[tuple[int, ...], ...], w: Tensor
) -> tuple[Tensor, ...]:
    """Return which coefficients are measured, strong, and covered, and their ratio of sds."""
    rows = release.summary().coefficients
    used = torch.tensor([row.note != BASE for row in rows])
    target = w.clone()
    for group in groups:  # as contrasts with the release's base level
        (base,) = (w[at] for at in group if not used[at])
        target[list(group)] -= base
        target[-1] += base
    design = torch.cat([data.x, data.x.new_ones(len(data.x), 1)], 1)[:, used]
    usual, error = without_privacy("logistic", design, data.y)
    shown = [row for row in rows if row.note != BASE]
    mean = torch.tensor([one.mean for one in shown], dtype=torch.float64)
    sd = torch.tensor([one.sd or 0.0 for one in shown], dtype=torch.float64)
    covered = (mean - target[used]).abs() < 1.96 * sd
    return (
        torch.tensor([one.measured for one in shown]),
        (usual / error).abs() > 4,
        covered,
        sd / error,
    )


def measured(tables: int) -> None:
    """Print a row for each shape of table and each route."""
    print(
        "| N | features | ε | signal | route | measured, of strong | of all | covered, of measured "
        "| of all | ratio of sds |"
    )
    print("| --- " * 10 + "|")
    many, few = (10, (2, 3, 4, 5, 6, 6)), (5, (3,))
    for rows, (numbers, sizes), epsilon in (
        (7500, many, 3.0),
        (10_000, many, 2.6),
        (7500, many, 2.6),
        (5000, many, 2.6),
        (1000, few, 3.0),
    ):
        width = numbers + sum(sizes)
        distance = math.sqrt(largest_variance(epsilon, 1e-5))
        size = numbers + len(sizes) + 1.0  # raw columns, and the intercept
        signal = ScorePlan.of(FAMILIES["logistic"], width + 1, distance, rows, size).signal(rows)
        scores, trained = NoisyScores(rows=rows, least=0.0), bdpvi.DPVI(rows=rows)
        routes: dict[str, Any] = {
            "noisy scores": scores,
            "DPVI": trained,
            "by public facts": Intervals(scores=scores, trained=trained),
        }
        for name, route in routes.items():
            found = []
            for seed in range(tables):
                data, groups, w = messy(rows, numbers, sizes, seed)
                model = BayesianLogisticRegression.unweighted(
                    intercept=True, prior_scale=5.0, one_hot=groups
                )
                release = fit_private(model, data, epsilon=epsilon, route=route)
                found.append(judged(release, data, groups, w))
            seen, strong, covered, ratio = (torch.cat(one) for one in zip(*found, strict=True))
            print(
                f"| {rows} | {width} | {epsilon:g} | {signal:.1f} | {name} | "
                f"{float(seen[strong].double().mean()):.2f} | {float(seen.double().mean()):.2f} | "
                f"{float(covered[seen].double().mean()):.3f} | "
                f"{float(covered.double().mean()):.3f} | {float(ratio[seen].median()):.2f} |",
                flush=True,
            )


def declared(folder: Path, public: bool) -> Schema:
    """Return what the owner declares: kinds and blanks, and public bounds and levels if asked."""
    types = copy.deepcopy(hospital.TYPES)
    if public:
        for name, (low, high) in hospital.BOUNDS.items():
            types["columns"][name] |= {"low": low, "high": high}
        for name, levels in hospital.CATEGORIES.items():
            types["columns"][name]["levels"] = [*levels]
    (folder / "types.json").write_text(json.dumps(types), encoding="utf-8")
    return Schema.load(folder / "types.json")


def plain(release: bdpvi.Release, path: Path, used: list[bool]) -> tuple[Tensor, Tensor]:
    """Return |z| and the standard error of each used coefficient without privacy, 0 if empty."""
    assert release.encoding is not None
    frame = Tables.of(path, file=FileFormat(separator=";", charset="latin-1", decimal=",")).frame(
        text=True
    )
    x = release.encoding.whole(read_columns(frame, release.encoding.types)).double()
    x = torch.cat([x, x.new_ones(len(x), 1)], 1)[:, torch.tensor(used)]
    some = (x != 0).sum(0) > 0
    sick = torch.tensor([cell.strip().lower()[0] == "y" for cell in frame[hospital.TARGET]])
    usual, error = without_privacy("logistic", x[:, some], sick.double())
    z, sd = torch.zeros(2, len(some), dtype=torch.float64)
    z[some], sd[some] = (usual / error).abs(), error
    return z, sd


def exported(path: Path, seed: int, epsilon: float, public: bool) -> bdpvi.Release:
    """Write an export, and return the release with intervals that it gives."""
    frame = hospital.hospital(7500, seed)
    frame.to_csv(path, sep=";", index=False, encoding="latin-1")
    return bdpvi.private(
        bdpvi.Table.of(path, file=FileFormat(**hospital.FILE)),
        target=hospital.TARGET,
        positive=hospital.POSITIVE,
        epsilon=epsilon,
        public=Public(types=declared(path.parent, public)),
        intervals=True,
        unit=Unit(),
    )


def exports(tables: int) -> None:
    """Print a row for each ε, and for public and private bounds and levels."""
    print(
        "| bounds and levels | ε | features | covered | standard error | not measured | "
        + "".join(f"{name} | " for name in hospital.EFFECTS)
        + "measured, of strong | reliable | ratio of sds, Alter |"
    )
    print("| --- " * (9 + len(hospital.EFFECTS)) + "|")
    for epsilon in (3.0, 1.0):
        for public in (True, False):
            hits, blind, seen, ratios, reliable = [], [], [], [], []
            for seed in range(tables):
                with tempfile.TemporaryDirectory() as folder:
                    path = Path(folder) / "export.csv"
                    release = exported(path, seed, epsilon, public)
                    summary = release.summary()
                    used = [coefficient.note != BASE for coefficient in summary.coefficients]
                    z, error = plain(release, path, used)
                shown = {
                    coefficient.name: coefficient
                    for coefficient in summary.coefficients
                    if coefficient.note != BASE
                }
                slopes = [shown[name] for name in ("Alter", "krea", "HbA1c")]
                truths = [hospital.EFFECTS[slope.name] for slope in slopes]
                sign = 1 if "Raucher=True" in shown else -1
                slopes.append(shown["Raucher=True" if sign > 0 else "Raucher=False"])
                truths.append(sign * hospital.EFFECTS["Raucher"])
                pairs = zip(slopes, truths, strict=True)
                hits.append([(one.low or 0) <= truth <= (one.high or 0) for one, truth in pairs])
                blind.append([not slope.measured for slope in slopes])
                found = torch.tensor([one.measured for one in shown.values()])
                seen.append(found[z > 4])
                age = [*shown].index("Alter")
                assert release.encoding is not None
                scale = dict(zip(release.feature_names, release.encoding.scales, strict=True))
                ratios.append((slopes[0].sd or 0.0) * scale["Alter"][1] / float(error[age]))
                reliable.append(bool(summary.reliable))
            hit = torch.tensor(hits).double()
            of_it = float(hit.mean(1).std()) / math.sqrt(tables)
            print(
                f"| {'public' if public else 'private'} | {epsilon:g} | "
                f"{len(release.feature_names)} | {float(hit.mean()):.3f} | {of_it:.3f} | "
                f"{float(torch.tensor(blind).double().mean()):.3f} | "
                + "".join(f"{one:.2f} | " for one in hit.mean(0).tolist())
                + f"{float(torch.cat(seen).double().mean()):.2f} | "
                f"{sum(reliable) / tables:.2f} | {float(torch.tensor(ratios).median()):.2f} |",
                flush=True,
            )


def a_ward(shape: str, seed: int) -> pd.DataFrame:
    """Return 8,000 patients of wards that are as frequent as :data:`WARDS` says."""
    g, wards = np.random.default_rng(seed), WARDS[shape]
    ward = g.choice([*wards], 8000, p=[share for share, _ in wards.values()])
    age, bmi = g.normal(50, 15, 8000), g.normal(25, 4, 8000)
    logit = -0.5 + 0.04 * (age - 50) - 0.075 * (bmi - 25) + [wards[one][1] for one in ward]
    sick = np.where(g.random(8000) < 1 / (1 + np.exp(-logit)), "yes", "no")
    return pd.DataFrame({"age": age, "bmi": bmi, "ward": ward, "sick": sick})


def of_wards(release: bdpvi.Release, wards: dict[str, tuple[float, float]]) -> tuple[Any, ...]:
    """Return the measured contrasts' coverage, the intercept's, and the number left out."""
    rows = {coefficient.name: coefficient for coefficient in release.summary().coefficients}
    of = {name: one for name in wards if (one := rows.get(f"ward={name}"))}
    (base,) = (wards[name][1] for name, one in of.items() if one.note == BASE)
    together = [wards[name] for name, one in of.items() if one.note == POOLED]
    mean = math.fsum(a * b for a, b in together) / max(math.fsum(a for a, _ in together), 1e-9)
    hits, seen = [], set()
    for name, one in of.items():
        target = (mean if one.note == POOLED else wards[name][1]) - base
        if one.measured and one.used and round(one.mean, 6) not in seen:
            hits.append((one.low or 0.0) <= target <= (one.high or 0.0))
            seen.add(round(one.mean, 6))
    assert release.encoding is not None
    (a, _), (b, _) = release.encoding.scales[0], release.encoding.scales[2]
    target, one = base - 0.5 + 0.04 * (a - 50) - 0.075 * (b - 25), rows["intercept"]
    return (
        hits,
        (one.low or 0.0) <= target <= (one.high or 0.0),
        sum(one.note == LEFT_OUT for one in of.values()),
    )


def levels(tables: int, shapes: list[str], epsilons: list[float]) -> None:
    """Print a row for each shape and ε, and for public and private bounds and levels."""
    print("| shares | ε | bounds and levels | contrasts | covered | intercept | left out |")
    print("| --- " * 7 + "|")
    for shape in shapes:
        known = {"source": "a form", "age": [5, 95], "bmi": [13, 37], "ward": [*WARDS[shape]]}
        kinds = {"numeric": ["age", "bmi"], "categorical": ["ward"]}
        for epsilon in epsilons:
            for name, more in (("private", kinds), ("public", {"constants": constants_of(known)})):
                found = []
                for seed in range(tables):
                    given: dict[str, Any] = {"target": "sick", "positive": "yes"}
                    given |= {"epsilon": epsilon, "intervals": True, "public": Public(**more)}
                    release = bdpvi.private(a_ward(shape, seed), **given)
                    found.append(of_wards(release, WARDS[shape]))
                hits = torch.tensor([one for each, _, _ in found for one in each]).double()
                of_intercept = sum(one for _, one, _ in found) / tables
                print(
                    f"| {shape} | {epsilon:g} | {name} | {len(hits)} | {float(hits.mean()):.3f} | "
                    f"{of_intercept:.3f} | {sum(one for _, _, one in found) / tables:.2f} |",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("coverage", "measured", "exports", "levels"))
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--shapes", nargs="+", choices=[*WARDS], default=[*WARDS])
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 2.0])
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    print(command())
    of_levels = partial(levels, shapes=chosen.shapes, epsilons=chosen.epsilons)
    parts: dict[str, Callable[[int], None]] = {}
    parts |= {"coverage": coverage, "measured": measured, "exports": exports, "levels": of_levels}
    parts[chosen.part](chosen.tables)


if __name__ == "__main__":
    main()
