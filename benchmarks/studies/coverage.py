"""How often do the bounds fall below the truth, and does the reliability rule tell when?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pyro.ops.stats import fit_generalized_pareto
from scipy import special, stats
from torch import Tensor

from bdpvi._ground.progress import Track
from bdpvi.bayesian.accounting.betting import betting
from bdpvi.bayesian.accounting.estimators import SampleMoments, log_student_t_bound
from bdpvi.bayesian.accounting.quantiles import quantile_certificate
from bdpvi.bayesian.accounting.reliability import tolerable
from studies.coverage_report import coverage_figure, coverage_text, tilted_figure, upper_limit
from studies.estimators import empirical_bernstein
from studies.populations import POPULATIONS, Population, gaussian_square, weibull
from studies.study import Finding, publish, sized
from studies.tilting import miss_rate

SIZES = (16, 64, 256, 1024, 10_000)
GAMMAS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
RARE_GAMMAS = (1e-2, 1e-4, 1e-6, 1e-9, 1e-12, 1e-15)
RARE_SIZES = (64, 256, 1024, 10_000)
FRACTION = 0.9
KHAT = 0.7
"""The usual limit on k̂, for comparison (Vehtari et al. 2024)."""

BOUNDED = {"empirical_bernstein": empirical_bernstein, "betting": betting}
"""Estimators for values with a known range; all see the same samples."""

_NUMBERS = 20_000_000
_RARE_NUMBERS = 2_000_000
_BATCH = 1_000_000
_KEPT = 100


def run(out: Path, *, seed: int, track: Track[Any], scale: float) -> Finding:
    """Draw samples of every population and size, and count the bounds that miss."""
    rng = np.random.default_rng(seed)
    numbers = sized(_NUMBERS, scale)
    cells = [(population, m) for population in POPULATIONS for m in SIZES]
    rows = []
    for population, m in track(cells, "Student's t"):
        rows += student_t_rows(population, m, numbers, rng)
    rare = [(p, m, gamma) for p in POPULATIONS for m in RARE_SIZES for gamma in RARE_GAMMAS]
    for population, m, gamma in track(rare, "tilted"):
        rows.append(_tilted_row(population, m, gamma, sized(_RARE_NUMBERS, scale), rng))
    bounded = [cell for cell in cells if math.isfinite(cell[0].log_upper)]
    for population, m in track(bounded, "bounded"):
        rows += bounded_rows(population, m, numbers // 10, rng)
    for m in SIZES:
        rows += [_binary_row(m, gamma) for gamma in GAMMAS]
        for population in (gaussian_square(0.4), weibull(0.5)):
            rows += _quantile_rows(population, m, numbers // 2, rng)
    table = pd.DataFrame(rows)
    figures = [coverage_figure(table), tilted_figure(table)]
    title = "How often a bound falls below the truth"
    return publish(out, "coverage", title, table, figures, coverage_text(table))


@dataclass
class _Count:
    """What happened to the bound at one γ."""

    misses: int = 0
    reliable: int = 0
    reliable_misses: int = 0
    deepest: float = 0.0
    kept: list[Tensor] = field(default_factory=list)


def student_t_rows(
    population: Population, m: int, numbers: int, rng: np.random.Generator
) -> list[dict[str, Any]]:
    """Simulate Student's t for one population and sample size; a row for each γ."""
    repeats = max(20, numbers // m)
    counts = {gamma: _Count() for gamma in GAMMAS}
    typical = torch.empty(0, m, dtype=torch.float64)
    for log_values in _samples(population, m, repeats, rng):
        if len(typical) < _KEPT:
            typical = torch.cat([typical, log_values[:_KEPT]])
        sample = SampleMoments.of(log_values, least=3)
        for gamma, count in counts.items():
            gap = population.log_mean - log_student_t_bound(sample, gamma)
            missed = gap > 0
            reliable = tolerable(sample.skewness, m, gamma)
            count.misses += int(missed.sum())
            count.reliable += int(reliable.sum())
            count.reliable_misses += int((missed & reliable).sum())
            count.deepest = max(count.deepest, float(gap.max()))
            if len(count.kept) < _KEPT:
                count.kept += list(log_values[missed][: _KEPT - len(count.kept)])
    usual = _usual_share(typical)
    return [
        {
            **_plain_row("student_t", population.name, m, gamma, repeats, count.misses),
            "visible": population.visible,
            "reliable": count.reliable,
            "reliable_misses": count.reliable_misses,
            "khat_share": usual,
            "khat_misses": count.misses * _usual_share(count.kept),
            "largest_factor": math.exp(count.deepest),
        }
        for gamma, count in counts.items()
    ]


def _samples(
    population: Population, m: int, repeats: int, rng: np.random.Generator
) -> Iterator[Tensor]:
    """Yield log y of ``repeats`` samples of m records, some at a time, (n, m)."""
    for batch in torch.arange(repeats).split(max(1, _BATCH // m)):
        yield torch.tensor(population.log_value(rng.standard_normal((len(batch), m))))


def _usual_share(rows: Tensor | list[Tensor]) -> float:
    """Return the fraction of samples that k̂ ≤ 0.7 accepts."""
    if len(rows) == 0:
        return 0.0
    log_values = rows if isinstance(rows, Tensor) else torch.stack(rows)
    size = log_values.shape[-1]
    tail = math.ceil(min(size / 5, 3 * math.sqrt(size)))
    fits = []
    for row in torch.expm1(log_values - log_values.amax(-1, keepdim=True)):
        top = row.topk(tail + 1).values
        excess = (top - top[-1])[:-1].flip(0)
        known = tail >= 5 and bool((excess > 0).all())
        fits.append(known and fit_generalized_pareto(excess / excess[-1])[0] <= KHAT)
    return float(np.mean(fits))


def _tilted_row(
    population: Population, m: int, gamma: float, numbers: int, rng: np.random.Generator
) -> dict[str, Any]:
    repeats = max(20, numbers // m)
    found = miss_rate(population, m, gamma, repeats, rng)
    plain = torch.cat(list(_samples(population, m, min(repeats, 2000), rng)))
    reliable = tolerable(SampleMoments.of(plain, least=3).skewness, m, gamma)
    return {
        "estimator": "student_t",
        "method": "tilted",
        "population": population.name,
        "visible": population.visible,
        "records": m,
        "failure_probability": gamma,
        "repeats": repeats,
        "miss_rate": found.rate,
        "miss_rate_upper": found.rate + 1.645 * found.standard_error,
        "reliable_share": float(reliable.double().mean()),
    }


def bounded_rows(
    population: Population, m: int, numbers: int, rng: np.random.Generator
) -> list[dict[str, Any]]:
    """Simulate the estimators for a known range; a row for each of them and each γ."""
    repeats = min(3000, max(20, numbers // m))
    log_values = torch.cat(list(_samples(population, m, repeats, rng)))
    rows = []
    for name, estimator in BOUNDED.items():
        for gamma in GAMMAS:
            gap = estimator(log_values, gamma, population.log_upper).log_bound - population.log_mean
            row = _plain_row(name, population.name, m, gamma, repeats, int((gap < 0).sum()))
            rows.append({**row, "median_gap": float(gap.median())})
    return rows


def binary(hits: NDArray[np.int64], m: int, gamma: float) -> NDArray[np.float64]:
    """Return a bound on the probability of an event that happened to some of m records.

    The 1−γ quantile of Beta(N₁+1, N₀+1), the posterior under a flat prior (Triastcyn and
    Faltings 2020, eq. 12).
    """
    return np.asarray(special.betainccinv(hits + 1, m - hits + 1, gamma))


def _binary_row(m: int, gamma: float) -> dict[str, Any]:
    """Return the largest miss rate over all probabilities, which is exact.

    The bound after k hits misses a probability just above it whenever k hits or fewer occur.
    """
    hits = sorted({0, 1, 2, 5, 10, *(round(m * share) for share in (0.1, 0.3, 0.5, 0.9))})
    hits = [k for k in hits if k < m]
    bounds = binary(np.array(hits), m, gamma)
    rate = float(np.max(stats.binom.cdf(hits, m, bounds)))
    row = _plain_row("binary", "any, the worst probability", m, gamma, 0, 0)
    return {**row, "method": "exact", "miss_rate": rate, "miss_rate_upper": rate}


def _quantile_rows(
    population: Population, m: int, numbers: int, rng: np.random.Generator
) -> list[dict[str, Any]]:
    repeats = max(20, numbers // m)
    misses = dict.fromkeys(GAMMAS, 0)
    # log y is a function of z: of |z| for the squares, of z itself for Weibull.
    square = population.name.startswith("exp(")
    z = stats.norm.ppf((1 + FRACTION) / 2 if square else FRACTION)
    truth = float(population.log_value(np.array([z]))[0])
    for values in _samples(population, m, repeats, rng):
        for gamma in GAMMAS:
            misses[gamma] += int((quantile_certificate(values, gamma, FRACTION) < truth).sum())
    return [
        _plain_row("quantile_certificate", population.name, m, gamma, repeats, misses[gamma])
        for gamma in GAMMAS
    ]


def _plain_row(
    estimator: str, population: str, m: int, gamma: float, repeats: int, misses: int
) -> dict[str, Any]:
    return {
        "estimator": estimator,
        "method": "simulated",
        "population": population,
        "visible": True,
        "records": m,
        "failure_probability": gamma,
        "repeats": repeats,
        "misses": misses,
        "miss_rate": misses / max(repeats, 1),
        "miss_rate_upper": upper_limit(misses, max(repeats, 1)),
    }
