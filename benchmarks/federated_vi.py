"""Adult divided among clients: federated variational inference compared with pooled fits.

    BDPVI_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/federated_vi.py [--seeds 1 2 3]

Test rows are used once, by the last line of a fit. ε is worst-case, add or remove, for the public.
Coins and noise are seeded, so that the table repeats: these fits protect nobody.
"""

from __future__ import annotations

import argparse
import math
import platform
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from statistics import fmean, pstdev
from typing import Any

import torch
from printed import command
from torch import Tensor

from bdpvi import BayesianLogisticRegression, Dataset, datasets
from bdpvi.bayesian.inference.svi import default_optimiser
from bdpvi.bench.methods.runs import Run
from bdpvi.bench.methods.variational import DPVISettings, dpvi_runs
from bdpvi.federated.federated import Federation
from bdpvi.federated.federated_vi import FederatedFit, fit_federated
from bdpvi.federated.rounds import Rounds
from bdpvi.guides import MeanField
from bdpvi.models.predictions import predictive_means
from bdpvi.privacy.sampled_steps import PrivacyLossAccountant, calibrate

MODEL = BayesianLogisticRegression.unweighted(intercept=True, limit=1.0)
ROUNDS, RATE, RECORD_CLIP, DELTA, EPSILON = 100, 0.3, 2.0, 1e-5, 0.5
"""Of rounds, learning rates and record clips two or three values were tried, of clients' clips
four, on training rows alone (31,073 to fit, 8,000 to compare)."""
CLIENTS = {10: (8.0, 1e-2), 100: (8.0, 1e-3), 1000: (3.0, 1e-5)}
"""Clients and the (ε, δ) of a whole one; δ is below 1/clients."""
HEAD = f"{'what':<40}  {'accuracy':<15}  {'log score':<16}  {'ε, record':<9}  ε, client (δ)"
POOLED = "pooled VI, not private"


def tables(train: Dataset, clients: int, by_education: bool, seed: int) -> list[Dataset]:
    """Return equal parts of the rows, shuffled, or shuffled and then sorted by education."""
    rows = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    if by_education:
        column = train.x[:, train.feature_names.index("education-num")]
        rows = rows[torch.argsort(column[rows], stable=True)]
    return [train.select(part) for part in rows.tensor_split(clients)]


def row(what: str, scores: Iterable[tuple[float, float]], record: str, client: str) -> None:
    """Print the means over seeds, and the standard deviations."""
    accuracy, log_score = zip(*scores, strict=True)
    right = f"{fmean(accuracy):.4f} ± {pstdev(accuracy):.4f}"
    mean = f"{fmean(log_score):.4f} ± {pstdev(log_score):.4f}"
    print(f"{what:<40}  {right:<15}  {mean:<16}  {record:<9}  {client}", flush=True)


def scored(test: Dataset, probabilities: Tensor) -> tuple[float, float]:
    """Return accuracy and mean log-probability of the targets."""
    p = torch.where(test.y > 0.5, probabilities, 1 - probabilities)
    return float((p > 0.5).double().mean()), float(p.clamp(min=1e-12).log().mean())


def dpvi(train: Dataset, test: Dataset, epsilon: float | None, seeds: list[int]) -> None:
    """Print pooled DPVI at a record's ε, or without privacy for None."""
    # Default steps, rate and optimiser. Its clip is on gradients in all of the guide's parameters.
    settings = DPVISettings(clip=RECORD_CLIP if epsilon else None)
    noise = 0.0
    if epsilon:
        noise = calibrate(
            PrivacyLossAccountant(),
            epsilon=epsilon,
            delta=DELTA,
            rate=settings.rate,
            steps=settings.steps,
        )
    runs = [Run(noise_multiplier=noise, seed=seed) for seed in seeds]
    outcomes = dpvi_runs(MODEL, train, runs=runs, settings=settings)
    scores = [
        scored(test, predictive_means(MODEL, outcome.latents, test.x).mean(0))
        for outcome in outcomes
    ]
    what = f"pooled DPVI, ε = {epsilon:.3g}" if epsilon else POOLED
    row(what, scores, f"{epsilon:.3f}" if epsilon else "none", "none")


def federated(
    data: tuple[Dataset, Dataset],
    clients: int,
    by_education: bool,
    seeds: list[int],
    settings: Callable[[int], Rounds],
) -> FederatedFit:
    """Print fits with these settings; return the last."""
    (train, test), scores = data, []
    for seed in seeds:
        fit = fit_federated(
            MODEL,
            MeanField(MODEL),
            tables(train, clients, by_education, seed),
            Federation(settings(seed)),
            rounds=ROUNDS,
            optim=default_optimiser(ROUNDS, RATE),
            progress=False,
        )
        generator = torch.Generator().manual_seed(seed)
        scores.append(scored(test, fit.predict_mean(test.x, generator=generator)))
    delta = CLIENTS[clients][1]
    whole = fit.cost(delta).worst_case
    told = "none" if whole is None or whole.epsilon > 100 else f"{whole.epsilon:.2f}"
    split = "by education" if by_education else "i.i.d."
    kept = "records" if settings(0).clip * clients >= len(train) else "clients"
    row(
        f"{clients:,} clients {split}, {kept} protected",
        scores,
        f"{fit.worst_case(DELTA, 'record').epsilon:.3f}",
        f"{told} ({delta:g})",
    )
    return fit


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    seeds = parser.parse_args().seeds
    split = datasets.adult.load_adult()
    data = train, test = split.train, split.test
    shared: dict[str, Any] = {
        "size": train.x.shape[1] + 1,
        "record_rate": 1.0,
        "record_clip": RECORD_CLIP,
    }
    print("command:", command())
    print(f"machine: {platform.platform()}; python {platform.python_version()}", end=" ")
    print(f"torch {torch.__version__} pyro {version('pyro-ppl')}")
    print(f"{len(train)} training rows, {len(test)} test rows, {shared['size']} weights; mean ± sd")
    print(f"of seeds {seeds}; {ROUNDS} rounds; records' ε at δ = {DELTA:g}\n")
    print(HEAD)
    dpvi(train, test, None, seeds)
    dpvi(train, test, EPSILON, seeds)
    sigma = calibrate(PrivacyLossAccountant(), epsilon=EPSILON, delta=DELTA, rate=1.0, steps=ROUNDS)
    for clients, (epsilon, delta) in CLIENTS.items():

        def records(seed: int, clients: int = clients) -> Rounds:
            # No client's sum can be longer than all its records' clips: its own clip does nothing.
            clip = RECORD_CLIP * math.ceil(len(train) / clients)
            noise = sigma * RECORD_CLIP / clip
            return Rounds(clients=clients, clip=clip, noise_multiplier=noise, seed=seed, **shared)

        clip = max(RECORD_CLIP, 0.05 * len(train) / clients)
        noise = Rounds.calibrated(
            epsilon=epsilon, delta=delta, rounds=ROUNDS, clients=clients, clip=clip, **shared
        ).noise_multiplier

        def whole(
            seed: int, clients: int = clients, clip: float = clip, noise: float = noise
        ) -> Rounds:
            return Rounds(clients=clients, clip=clip, noise_multiplier=noise, seed=seed, **shared)

        print()
        for settings in (records, whole):
            for by_education in (False, True):
                fit = federated(data, clients, by_education, seeds, settings)
        dpvi(train, test, fit.worst_case(DELTA, "record").epsilon, seeds)
    print(f"\n{time.process_time() / 60:.1f} core-minutes")


if __name__ == "__main__":
    main()
