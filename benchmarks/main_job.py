"""The main task on public tables: accuracy and cost of private draws.

    python benchmarks/main_job.py [--data FOLDER] [--seeds 10] [--select]

Every number is the mean over seeds of the training plan, ± their standard deviation. A draw's
accuracy is the expectation over simulated releases, so it does not depend on a particular draw.
With ``--select`` test rows are not used: it shows how the settings below were chosen.
"""

from __future__ import annotations

import argparse
import multiprocessing
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from statistics import fmean, stdev

import torch
from printed import command
from pyro.optim import PyroOptim

import bdpvi
from bdpvi import datasets
from bdpvi.bayesian.inference.svi import default_optimiser
from bdpvi.bench.methods.temperature import bayesian
from bdpvi.guides import FullRank, GaussianGuide, MeanField
from bdpvi.models.predictions import predictive_means
from bdpvi.privacy.ledger import Charge
from bdpvi.tables.metrics import accuracy, correct

DELTA = 1e-5
FINAL = 5e-5
"""Learning rate at the end. At a higher one θ still jitters, and the jitter costs ε."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How to fit, and how hot to release."""

    guide: type[GaussianGuide]
    clip: float | None
    lr: float
    steps: int = 1000
    rate: float = 0.1
    temperature: float = 1.0
    optimum: bool = False

    def __str__(self) -> str:
        svi = f"SVI, {self.steps} steps, q = {self.rate:g}, lr {self.lr:g}"
        return f"{self.guide.__name__}, C = {self.clip}, τ = {self.temperature:g}, " + (
            "at the optimum" if self.optimum else svi
        )

    @property
    def optimiser(self) -> PyroOptim:
        """Adam whose learning rate falls from ``lr`` to ``FINAL``."""
        return default_optimiser(self.steps, self.lr, FINAL / self.lr)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A table, what is asked of it, and the settings that answer.

    Attributes:
        load: the table.
        limit: ε that one draw may cost.
        records: how many are left out in turn; None is all.
        folds: how many fifths of the training rows are held out, in turn, to choose ``private``.
        rates, guides, clips: to choose from.
        private: guide, clip, learning rate and temperature chosen by ``--select``; steps and q by
            the time they take.
        public: unclipped; learning rate and steps by the ELBO on the training rows.
    """

    load: Callable[[Path | None], bdpvi.datasets.Split]
    limit: float
    records: int | None
    folds: int
    rates: tuple[float, ...]
    private: Setting
    public: Setting
    guides: tuple[type[GaussianGuide], ...] = (MeanField, FullRank)
    clips: tuple[float, ...] = (0.5, 1.0, 2.0)


JOBS = {
    "abalone": Job(
        load=datasets.abalone.load_abalone,
        limit=0.5,
        records=None,
        folds=3,
        rates=(0.05, 0.1),
        private=Setting(guide=MeanField, clip=0.5, lr=0.05, temperature=5.0),
        public=Setting(guide=MeanField, clip=None, lr=0.1, steps=2000, rate=1.0),
    ),
    "adult": Job(
        load=datasets.adult.load_adult,
        limit=0.1,
        records=500,
        folds=1,
        rates=(0.1, 0.3),
        private=Setting(guide=MeanField, clip=0.5, lr=0.3, temperature=10.0),
        public=Setting(guide=MeanField, clip=None, lr=0.3, rate=1.0),
    ),
}
OPTIMUM = Setting(guide=FullRank, clip=0.5, lr=0.1, rate=1.0, temperature=10.0, optimum=True)
JOBS |= {
    f"{name}, optimum": replace(
        JOBS[name],
        records=None,
        rates=(0.1,),
        guides=(FullRank,),
        clips=(0.25, 0.5, 1.0),
        private=replace(OPTIMUM, clip=clip, temperature=temperature),
    )
    for name, clip, temperature in (("abalone", 0.25, 2.0), ("adult", 0.5, 10.0))
}
"""The fit at the optimum has no randomness: there the seeds are those of the draws alone."""


def train(setting: Setting, data: bdpvi.Dataset, records: int | None, seed: int) -> bdpvi.Fit:
    model = bdpvi.BayesianLogisticRegression.unweighted(clip=setting.clip)
    return bdpvi.fit(
        model,
        setting.guide(model),
        data,
        training=bdpvi.Training(
            steps=setting.steps, rate=setting.rate, seed=seed, optim=setting.optimiser
        ),
        neighbours=(bdpvi.Optimum if setting.optimum else bdpvi.Coupled)(
            bdpvi.bayesian.Remove(records)
        ),
        progress=False,
    )


# What is measured: one row a seed, averaged.


@dataclass(frozen=True)
class Row:
    """One seed's numbers."""

    public: float
    one: float
    ten: float
    epsilon_one: float
    epsilon_ten: float
    reliable: tuple[bool, bool]
    seconds: float
    """Wall time of the private fit and all its neighbours, in one thread."""


def expected_accuracy(
    fit: bdpvi.Fit,
    data: bdpvi.Dataset,
    draws: int,
    temperature: float,
    *,
    repeats: int = 100,
    seed: int = 0,
) -> float:
    """Return the mean accuracy over ``repeats`` simulated releases of ``draws`` samples each.

    Nothing is charged. On held-out records it estimates the accuracy of a release; if ``data``
    were training records, neither the number nor a choice made by it may be published.

    Args:
        fit: where the samples come from.
        data: M records with targets in {0, 1}.
        draws: number k of samples of one release, over which predictions are averaged.
        temperature: τ of the samples.
        repeats: number of simulated releases.
        seed: of the samples.
    """
    generator = torch.Generator().manual_seed(seed)
    latents = bdpvi.bayesian.preview(
        fit, draws * repeats, temperature=temperature, generator=generator
    )
    means = predictive_means(fit.model, latents, data.x)
    means = means.reshape(repeats, draws, len(data)).mean(1)
    return float(correct(means, data.y).double().mean())


def measure(name: str, folder: Path | None, seed: int) -> Row:
    torch.set_num_threads(1)
    job = JOBS[name]
    split = job.load(folder)
    public = train(job.public, split.train, 3, seed)
    mean = public.guide.unpack(public.posterior.mean)["w"]
    start = time.perf_counter()
    private = train(job.private, split.train, job.records, seed)
    seconds = time.perf_counter() - start
    tau = job.private.temperature
    one, ten = (bayesian(bdpvi.cost(private, delta=DELTA, planned=Charge(k, tau))) for k in (1, 10))
    return Row(
        public=accuracy(public.model, {"w": mean[None]}, split.test),
        one=expected_accuracy(private, split.test, 1, tau, repeats=1000, seed=seed),
        ten=expected_accuracy(private, split.test, 10, tau, repeats=100, seed=seed),
        epsilon_one=one.epsilon,
        epsilon_ten=ten.epsilon,
        reliable=(one.reliable, ten.reliable),
        seconds=seconds,
    )


def measure_all(name: str, folder: Path | None, seeds: int, pool: ProcessPoolExecutor) -> list[Row]:
    if not JOBS[name].private.optimum:
        return list(pool.map(partial(measure, name, folder), range(seeds)))
    job = JOBS[name]
    first = measure(name, folder, 0)
    split, tau = job.load(folder), job.private.temperature
    private = train(job.private, split.train, 3, 0)
    return [first] + [
        replace(
            first,
            one=expected_accuracy(private, split.test, 1, tau, repeats=1000, seed=seed),
            ten=expected_accuracy(private, split.test, 10, tau, repeats=100, seed=seed),
        )
        for seed in range(1, seeds)
    ]


def spread(values: Sequence[float], digits: int) -> str:
    error = stdev(values) if len(values) > 1 else 0.0
    return f"{fmean(values):.{digits}f} ± {error:.{digits}f}"


def report(name: str, rows: Sequence[Row]) -> None:
    cells = [
        name,
        spread([row.public for row in rows], 4),
        spread([row.one for row in rows], 4),
        spread([row.epsilon_one for row in rows], 3),
        f"{sum(row.reliable[0] for row in rows)}/{len(rows)}",
        spread([row.ten for row in rows], 4),
        spread([row.epsilon_ten for row in rows], 3),
        f"{sum(row.reliable[1] for row in rows)}/{len(rows)}",
        spread([row.seconds for row in rows], 0),
    ]
    print("| " + " | ".join(cells) + " |", flush=True)


# How the settings were chosen: on training rows alone.

TEMPERATURES = (2.0, 5.0, 10.0, 20.0)
LEFT_OUT = 300
NEAR = 0.001
"""Accuracies this close count as equal, and the smaller ε decides."""


@dataclass(frozen=True)
class Candidate:
    """A setting, its validation accuracy, and its largest ε over the folds."""

    setting: Setting
    accuracy: float
    epsilon: float


def validate(name: str, folder: Path | None, setting: Setting) -> list[Candidate]:
    """Return a candidate for each temperature.

    The rows, in file order, fall into fifths; the last ``job.folds`` are held out in turn.
    """
    torch.set_num_threads(1)
    job = JOBS[name]
    data = job.load(folder).train
    fifth = torch.arange(len(data)) * 5 // len(data)
    scores: dict[float, list[tuple[float, float]]] = {tau: [] for tau in TEMPERATURES}
    for fold in range(5 - job.folds, 5):
        left_out = None if setting.optimum else LEFT_OUT
        fitted = train(setting, data.select(fifth != fold), left_out, seed=fold)
        held_out = data.select(fifth == fold)
        for tau, pairs in scores.items():
            price = bayesian(bdpvi.cost(fitted, delta=DELTA, planned=Charge(1, tau)))
            pairs.append((expected_accuracy(fitted, held_out, 1, tau), price.epsilon))
    return [
        Candidate(
            replace(setting, temperature=tau),
            fmean(score for score, _ in pairs),
            max(epsilon for _, epsilon in pairs),
        )
        for tau, pairs in scores.items()
    ]


def choose(candidates: Iterable[Candidate], limit: float) -> Candidate:
    """Return the cheapest of those that are as good as the best within the limit."""
    within = [c for c in candidates if c.epsilon <= limit]
    if not within:
        raise ValueError(f"limit={limit}: no candidate costs so little")
    best = max(c.accuracy for c in within)
    return min((c for c in within if c.accuracy >= best - NEAR), key=lambda c: c.epsilon)


def select(name: str, folder: Path | None, pool: ProcessPoolExecutor) -> None:
    job = JOBS[name]
    grid = [
        replace(job.private, guide=guide, clip=clip, lr=lr)
        for guide, clip, lr in product(job.guides, job.clips, job.rates)
    ]
    print(
        f"\n{name}: one draw's accuracy on {job.folds} held-out fifth(s) of the training rows / "
        f"largest ε, {'all' if job.private.optimum else LEFT_OUT} records left out\n\n| setting | "
        + " | ".join(f"τ = {tau:g}" for tau in TEMPERATURES)
        + " |\n| --- |"
        + " --- |" * len(TEMPERATURES)
    )
    candidates = []
    for found in pool.map(partial(validate, name, folder), grid):
        candidates += found
        setting = found[0].setting
        cells = [f"{setting.guide.__name__}, C = {setting.clip}, lr {setting.lr:g}"]
        cells += [f"{c.accuracy:.4f} / {c.epsilon:.3f}" for c in found]
        print("| " + " | ".join(cells) + " |", flush=True)
    chosen = choose(candidates, job.limit)
    print(
        f"\nChosen, the smallest ε within {NEAR:g} of the best accuracy at ε ≤ {job.limit:g}: "
        f"{chosen.setting} ({chosen.accuracy:.4f}, ε = {chosen.epsilon:.3f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of the raw files")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--select", action="store_true", help="choose the settings and stop")
    parser.add_argument("--workers", type=int, default=2, help="processes, one thread each")
    parser.add_argument("--only", choices=JOBS, nargs="*", help="some of the tables")
    options = parser.parse_args()
    names = options.only or list(JOBS)
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "pyro-ppl", "numpy"))
    print("$", command())
    print(
        f"{platform.system()} {platform.machine()}, {multiprocessing.cpu_count()} cores, "
        f"{options.workers} processes of one thread; Python {platform.python_version()}, {packages}"
    )
    start = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, mp_context=context) as pool:
        if options.select:
            for name in names:
                select(name, options.data, pool)
        else:
            for name in names:
                records = JOBS[name].records or "all"
                print(f"{name}: private {JOBS[name].private}, {records} records left out")
                print(f"{name}: non-private {JOBS[name].public}")
            print(
                f"\nδ = {DELTA:g}, γ = 1e-15, CKS, Bayesian DP; {options.seeds} seeds\n\n"
                "| data | non-private accuracy | one draw | ε | reliable | ten draws | ε | "
                "reliable | seconds a fit |\n| --- |" + " --- |" * 8
            )
            for name in names:
                rows = measure_all(name, options.data, options.seeds, pool)
                report(name, rows)
    print(f"\n{time.perf_counter() - start:.0f} s in all")


if __name__ == "__main__":
    main()
