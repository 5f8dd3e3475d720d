"""The gain from Bayesian accounting of objective perturbation, and its upper limit.

    python benchmarks/bayesian_limit.py [--data FILE ...]

Settings by rule for each worst-case ε. A Bayesian accountant covers the mean over the records of
δ(ε), each record held against the rest. "Certified" is
:func:`perturbed_records.bayesian_epsilon` of the training records: from
each one's ω‖z‖ and ω‖z‖² alone, for every distribution of the records. "Exact" is the mean itself
by Monte Carlo, with nothing bounded, so no accountant reports less: w is the minimum for all
records, b its slope, and with g the record's gradient, r its residual and H the second derivative
at w

    L = log p(w)/p(w | without the record) = −log(1 − r(1 − r)ω zᵀH⁻¹z) + (2 bᵀg + ‖g‖²)/2σ²,

the second term from b there; δ(ε) is the mean of (1 − e^{ε − L})₊ where the record is added, of
(e^{−L} − e^ε)₊ where it is removed (:mod:`bdpvi.privacy.perturbed_objective`). Adult and
Abalone are found as ``bdpvi compare`` finds them; of a FILE the last column is the target.
"""

from __future__ import annotations

import argparse
import math
import platform
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from perturbed_records import bayesian_epsilon
from printed import command
from scipy.optimize import brentq
from torch import Tensor

from bdpvi import Dataset, Table, datasets
from bdpvi.regression.objective_plan import Facts, ObjectivePlan, plan
from bdpvi.regression.perturbed_objective import SummedObjective

DELTA = 1e-5
EPSILONS = (0.05, 0.2, 1.0)
DRAWS, BATCHES, MOST = 400, 10, 4_000


def of_file(file: Path) -> Dataset:
    """Return a file's training records: the last column is the target."""
    frame = Table.of(file).frame()
    same = [str(name) for name in frame if frame[name].nunique() < 2]
    return datasets.from_frame(frame, frame.columns[-1], drop=same, name=file.stem).train


def losses(settings: ObjectivePlan, objective: SummedObjective) -> Tensor:
    """Return L of every draw and of at most MOST records, (R, N)."""
    generator = torch.Generator().manual_seed(0)
    records: Any = objective.parts.first()
    signed, weights = records.signed[:MOST], records.weights[:MOST]
    sigma, k, found = settings.sigma, settings.event.residual, []
    for _ in range(DRAWS):
        slope = sigma * torch.randn(
            settings.facts.weights, generator=generator, dtype=torch.float64
        )
        w = objective.minimum(slope)
        chance = torch.sigmoid(-signed @ w)
        gradient = -(weights * chance.clamp(max=k)).unsqueeze(1) * signed
        bends = torch.where(chance < k, weights * chance * (1 - chance), 0.0)
        lever = bends * (signed * torch.linalg.solve(objective.curvature(w), signed.T).T).sum(1)
        squared = (gradient**2).sum(1)
        found.append(-torch.log1p(-lever) + (2 * gradient @ slope + squared) / (2 * sigma**2))
    return torch.stack(found)


def smallest(loss: Tensor, worst: float) -> float:
    """Return the ε at which the larger direction's mean δ is DELTA."""

    def excess(epsilon: float) -> float:
        added = (-torch.expm1(epsilon - loss)).clamp(min=0).mean()
        removed = ((-loss).exp() - math.exp(epsilon)).clamp(min=0).mean()
        return float(torch.maximum(added, removed)) - DELTA

    return float(brentq(excess, 0.0, 2 * worst)) if excess(0.0) > 0 else 0.0


def certified(settings: ObjectivePlan, objective: SummedObjective) -> float:
    """Return the Bayesian ε of the training records."""
    records: Any = objective.parts.first()
    norms = torch.linalg.vector_norm(records.signed, dim=1)
    lengths = records.weights * norms / settings.clip
    bends = records.weights * norms**2 / (settings.bend * settings.clip**2)
    return bayesian_epsilon(settings.event, lengths, bends, DELTA)


def tables(files: list[Path]) -> Iterator[tuple[str, Dataset]]:
    for name in ("abalone", "adult"):
        yield name, datasets.LOADERS[name]().train
    for file in files:
        yield file.stem, of_file(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, nargs="*", default=[], metavar="FILE")
    files = parser.parse_args().data
    print(command())
    print(f"Python {platform.python_version()}, torch {torch.__version__}")
    print(f"δ = 1e-5; exact: {DRAWS} draws, the first {MOST} records\n")
    print("| table | records | worst-case ε | certified | ratio | exact | at most |")
    print("| --- " * 7 + "|")
    for name, train in tables(files):
        for worst in EPSILONS:
            settings = plan(Facts(columns=train.x.shape[1], rows=len(train)), epsilon=worst)
            objective = SummedObjective.of(settings, train.x, train.y)
            bayes = certified(settings, objective)
            each = [smallest(part, worst) for part in losses(settings, objective).chunk(BATCHES)]
            error = stdev(each) / math.sqrt(BATCHES)
            print(
                f"| {name} | {len(train)} | {worst:g} | {bayes:.4g} | {worst / bayes:.2f} | "
                f"{fmean(each):.4g} ± {error:.2g} | {worst / fmean(each):.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
