"""Federated variational inference on Adult, beside the pooled fits.

    BDPVI_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/federated_vi.py [--search]

Mean-field logistic regression, the training rows divided among 10, 100 or 1,000 clients: at random,
or sorted by education, so that most clients know one kind of school only. A run is calibrated by
one unit, record or client, to the worst case; the same rounds have an ε for the other unit too. The
clip of clients is √(N/K) for K clients, that of records 4.

With --search the clips are tried, on rows held out of the training rows; test rows are not read
then, and without --search they are read once, at the end of each fit. That search is not private.
2,000 training rows are kept out of all fits: the panel of the Bayesian ε. Whatever the weights, a
record's score is no longer than its features, intercept included, so what records like these pay
does not depend on the path. Noise is seeded: these are experiments, not releases.
"""

from __future__ import annotations

import argparse
import math
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import torch
from torch import Tensor

from bdpvi import BayesianLogisticRegression, Dataset, datasets, fit_federated
from bdpvi.accounting.bayesian import BayesianAccountant
from bdpvi.accounting.events import SampledGaussianSteps
from bdpvi.accounting.levels import LEVELS, counted
from bdpvi.accounting.worst_case import GaussianAccountant, calibrate
from bdpvi.compare.metrics import fraction_correct, log_score
from bdpvi.datasets.split import permutation
from bdpvi.dp.dpvi import DPVISettings, dpvi_runs
from bdpvi.dp.federated import Federation
from bdpvi.dp.noise import Run
from bdpvi.dp.updates import Rounds
from bdpvi.guides import MeanField
from bdpvi.inference.svi import default_optimiser
from bdpvi.models.contract import predictive_means
from bdpvi.types import Scope

DELTA = 1e-5
CLIENTS = (10, 100, 1000)
PARTITIONS = ("at random", "by education")
ROUNDS, SEEDS, PANEL = 100, 3, 2000
RECORD_CLIP = 4.0
UNREACHED = 1e6
"""Clip of clients, in clips of records, where only records are protected: none is that large."""
MODEL = BayesianLogisticRegression(intercept=True)


@dataclass(frozen=True)
class Job:
    """K clients, how records come to them, the unit and ε that noise is calibrated to, clips."""

    clients: int
    partition: str
    unit: str
    epsilon: float
    record_clip: float = RECORD_CLIP
    stretch: float = 1.0

    @property
    def delta(self) -> float:
        """δ of a client: a tenth of one over their number."""
        return 0.1 / self.clients

    def rounds(self, records: int, seed: int) -> Rounds:
        """Return the settings of all rounds."""
        delta = DELTA if self.unit == "record" else self.delta
        z = calibrate(
            GaussianAccountant(), epsilon=self.epsilon, delta=delta, rate=1.0, steps=ROUNDS
        )
        clip = self.stretch * math.sqrt(records / self.clients)
        if self.unit == "record":
            clip, z = UNREACHED * self.record_clip, z / UNREACHED
        return Rounds(
            clients=self.clients, size=15, clip=clip, noise_multiplier=z, seed=seed,
            record_rate=1.0, record_clip=self.record_clip,
        )  # fmt: skip

    def divided(self, data: Dataset, seed: int) -> list[Dataset]:
        """Return the table of each client."""
        order = permutation(len(data), seed)
        if self.partition == "by education":
            education = data.x[:, data.feature_names.index("education-num")]
            order = order[education[order].argsort(stable=True)]
        return [data.select(rows) for rows in order.tensor_split(self.clients)]


def scored(probability: Tensor, data: Dataset) -> tuple[float, float]:
    return float(fraction_correct(probability, data.y)), float(log_score(probability, data.y))


def run(job: Job, train: Dataset, test: Dataset, seed: int) -> tuple[float, float, Federation]:
    """Return accuracy, log score and the account of one fit."""
    federation = Federation(job.rounds(len(train), seed))
    tables = job.divided(train, seed)
    fit = fit_federated(MODEL, MeanField(MODEL), tables, federation, rounds=ROUNDS, progress=False)
    generator = torch.Generator().manual_seed(seed)
    return *scored(fit.predict_mean(test.x, generator=generator), test), federation


def mean(values: Sequence[float]) -> str:
    return f"{fmean(values):.4f} ± {stdev(values):.4f}"


def bayesian(panel: Dataset, record_clip: float, noise_multiplier: float) -> str:
    """Return the Bayesian ε of records like the panel's, on any path."""
    norms = torch.linalg.vector_norm(MODEL.design(panel.x), dim=1) / record_clip
    one = counted(torch.zeros(len(panel), len(LEVELS), dtype=torch.int64), LEVELS, norms)
    accountant = BayesianAccountant(conversion="hockey-stick", failure_probability=1e-12)
    accountant.step(
        SampledGaussianSteps(
            torch.arange(len(panel)), LEVELS, ROUNDS * one, noise_multiplier, 1.0, ROUNDS,
            scope=Scope.STATIC,
        )
    )  # fmt: skip
    return f"{accountant.spent(DELTA).epsilon:.3f}"


def row(job: Job, train: Dataset, test: Dataset, panel: Dataset) -> str:
    """Return a line of the table."""
    accuracies, logs, accounts = zip(
        *(run(job, train, test, seed) for seed in range(SEEDS)), strict=True
    )
    rounds = accounts[0].rounds
    record = accounts[0].worst_case(DELTA, "record").epsilon
    client = "none"
    if job.unit == "client":
        client = f"{accounts[0].worst_case(job.delta).epsilon:.3f} at {job.delta:g}"
    z = rounds.noise_multiplier * rounds.clip / job.record_clip
    return (
        f"| {job.clients:,} {job.partition} | {job.unit} | {mean(accuracies)} | {mean(logs)} | "
        f"{client} | {record:.3f} | {bayesian(panel, job.record_clip, z)} |"
    )


def pooled(train: Dataset, test: Dataset, clip: float | None, noise: float, steps: int) -> str:
    """Return accuracy and log score of DPVI, or of variational inference without privacy."""
    settings = DPVISettings(steps=steps, rate=1.0, clip=clip, optim=default_optimiser(steps, 0.1))
    runs = [Run(noise_multiplier=noise, seed=seed) for seed in range(SEEDS)]
    outcomes = dpvi_runs(MODEL, MeanField(MODEL), train, runs=runs, settings=settings, delta=DELTA)
    means = [predictive_means(MODEL, one.latents, test.x).mean(0) for one in outcomes]
    accuracies, logs = zip(*(scored(one, test) for one in means), strict=True)
    return f"{mean(accuracies)} | {mean(logs)}"


def search(train: Dataset) -> None:
    """Print accuracy and log score for several clips, on 8,000 rows that are not trained on."""
    order = permutation(len(train), 1)
    held, rest = train.select(order[:8000]), train.select(order[8000:])
    print("| run | C of records | C of clients over √(N/K) | accuracy | log score |")
    print("| --- | --- | --- | --- | --- |")
    z = calibrate(GaussianAccountant(), epsilon=1.0, delta=DELTA, rate=1.0, steps=ROUNDS)
    for clip in (1.0, 2.0, 4.0, 8.0):
        print(f"| DPVI, ε 1 | {clip:g} | | {pooled(rest, held, clip, z, ROUNDS)} |", flush=True)
    jobs = [Job(10, "at random", "record", 1.0, clip) for clip in (1.0, 2.0, 4.0, 8.0)]
    jobs += [
        Job(clients, partition, "client", 3.0, clip, stretch)
        for clients in CLIENTS[:2]
        for partition in PARTITIONS
        for clip in (2.0, 4.0, 8.0)
        for stretch in (0.5, 1.0, 2.0, 4.0)
    ]
    for job in jobs:
        found = [run(job, rest, held, seed)[:2] for seed in range(SEEDS)]
        accuracies, logs = zip(*found, strict=True)
        stretch = f"{job.stretch:g}" if job.unit == "client" else ""
        print(
            f"| {job.clients} {job.partition}, {job.unit} ε {job.epsilon:g} | {job.record_clip:g} "
            f"| {stretch} | {mean(accuracies)} | {mean(logs)} |",
            flush=True,
        )


def table(train: Dataset, test: Dataset) -> None:
    """Print the table."""
    order = permutation(len(train), 0)
    panel, train = train.select(order[:PANEL]), train.select(order[PANEL:])
    print(
        f"{len(train):,} training rows, {PANEL:,} of the panel, {len(test):,} test rows; "
        f"{ROUNDS} rounds, every client and record in each; δ = {DELTA:g} for records; mean and sd "
        f"of {SEEDS} seeds\n"
    )
    print(
        "| clients | calibrated for | accuracy | log score | ε of a client, at δ | ε of a record "
        "| Bayesian ε of a random record |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    print(f"| pooled, not private | | {pooled(train, test, None, 0.0, 1000)} | | | |")
    z = calibrate(GaussianAccountant(), epsilon=1.0, delta=DELTA, rate=1.0, steps=ROUNDS)
    epsilon = GaussianAccountant().epsilon(z, 1.0, ROUNDS, DELTA)
    score = pooled(train, test, RECORD_CLIP, z, ROUNDS)
    print(f"| pooled, DPVI | record | {score} | none | {epsilon:.3f} | |", flush=True)
    jobs = [Job(10, "at random", "record", 1.0), Job(1000, "by education", "record", 1.0)]
    jobs += [
        Job(clients, partition, "client", epsilon)
        for clients in CLIENTS
        for partition in PARTITIONS
        for epsilon in (1.0, 3.0)
    ]
    for job in jobs:
        print(row(job, train, test, panel), flush=True)


def main() -> None:
    """Print the table, or with --search what the settings were chosen by."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--search", action="store_true")
    arguments = parser.parse_args()
    begun = time.process_time()
    print(f"$ python {' '.join(sys.argv)}")
    print(
        f"{platform.machine()}, {torch.get_num_threads()} threads, Python "
        f"{platform.python_version()}, torch {torch.__version__}\n",
        flush=True,
    )
    split = datasets.load_adult()
    train, test = split.train.to("cpu"), split.test.to("cpu")
    if arguments.search:
        search(train)
    else:
        table(train, test)
    print(f"\n{time.process_time() - begun:.0f} s of processor time")


if __name__ == "__main__":
    main()
