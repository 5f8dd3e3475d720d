"""What Bayesian accounting of objective perturbation could buy at most: its exact mean δ.

    python benchmarks/bayesian_limit.py --data abalone [--settings FILE]

A Bayesian accountant has to cover the mean over the records of δ(ε), each record held against the
rest. Here that mean is estimated by Monte Carlo, with nothing bounded: θ is the private mode of all
records, b its slope, and with g the record's gradient and H the second derivative at θ

    L = log p(θ)/p(θ | without the record) = −log(1 − f″ xᵀH⁻¹x) + (2 bᵀg + ‖g‖²)/2σ²,

δ(ε) is the mean of (1 − e^{ε − L})₊ where the record is added, of (e^{−L} − e^ε)₊ where it is
removed (:mod:`bdpvi.accounting.objective_perturbation`). The table has the worst-case ε, the one at
which the larger of the two means is 1e-5, and their ratio, the factor that no accountant of this
mechanism can exceed on this table at these settings.
"""

from __future__ import annotations

import argparse
import math
import platform
import sys
from pathlib import Path
from statistics import fmean, stdev

import torch
from defaults import of_file
from scipy.optimize import brentq
from torch import Tensor

from bdpvi import Dataset, datasets
from bdpvi.bench.hyperparameters import FILE, load
from bdpvi.bench.methods.objective_perturbation import ObjectivePerturbation
from bdpvi.dp.objective_perturbation import Objective, largest_gradient

DELTA = 1e-5
DRAWS, BATCHES = 1_000, 10


def losses(method: ObjectivePerturbation, train: Dataset, noise: float) -> tuple[Tensor, float]:
    """Return L of every draw and record, (R, N), and the share of gradients at the bound."""
    objective = Objective(method.model, train, method.radius)
    signed, largest = objective.signed, largest_gradient(method.model.clip, method.radius)
    ridge, sd = method.accountant(method.model).ridge_at(noise), largest * noise
    generator = torch.Generator().manual_seed(0)
    slopes = sd * torch.randn(DRAWS, signed.shape[1], generator=generator, dtype=torch.float64)
    ridges, ends = (torch.full((50,), value).double() for value in (ridge, 1e-9 * sd))
    modes = torch.cat([objective.minima(ridges, some, ends) for some in slopes.split(50)])
    eye, found, at_bound = torch.eye(signed.shape[1], dtype=torch.float64), [], 0.0
    for w, slope in zip(modes, slopes, strict=True):
        chance = torch.sigmoid(-signed @ w)
        free = chance < objective.bound
        gradient = -torch.minimum(chance, objective.bound).unsqueeze(1) * signed
        bends = torch.where(free, chance * (1 - chance), 0.0)
        second = objective.curvature(w) + ridge * eye
        lever = bends * (signed * torch.linalg.solve(second, signed.T).T).sum(1)
        squared = (gradient**2).sum(1)
        found.append(-torch.log1p(-lever) + (2 * gradient @ slope + squared) / (2 * sd**2))
        at_bound += float((squared > (0.99 * largest) ** 2).double().mean()) / DRAWS
    return torch.stack(found), at_bound


def smallest(loss: Tensor, worst: float) -> float:
    """Return the ε at which the larger direction's mean δ is DELTA."""

    def excess(epsilon: float) -> float:
        added = (-torch.expm1(epsilon - loss)).clamp(min=0).mean()
        removed = ((-loss).exp() - math.exp(epsilon)).clamp(min=0).mean()
        return float(torch.maximum(added, removed)) - DELTA

    return float(brentq(excess, 0.0, 2 * worst)) if excess(0.0) > 0 else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--settings", type=Path, default=FILE)
    options = parser.parse_args()
    if options.data in datasets.LOADERS:
        name, train = options.data, datasets.LOADERS[options.data]().train
    else:
        name, train = Path(options.data).stem, of_file(Path(options.data))
    print(f"python {sys.argv[0]} --data {Path(options.data).name}")
    print(f"Python {platform.python_version()}, torch {torch.__version__}")
    print(f"{name}: {len(train)} records; δ = 1e-5, {DRAWS} draws\n")
    print("| worst-case ε | clip | gradients at it | ε of the mean δ | at most |")
    print("| --- " * 5 + "|")
    for worst, method in sorted(
        load(name, options.settings).at[ObjectivePerturbation.name].items()
    ):
        assert isinstance(method, ObjectivePerturbation)
        noise = method.prepare(train, DELTA).calibrate(worst)
        loss, at_bound = losses(method, train, noise)
        each = [smallest(part, worst) for part in loss.chunk(BATCHES)]
        error = stdev(each) / math.sqrt(BATCHES)
        shown = f"{fmean(each):.4g} ± {error:.2g} | {worst / fmean(each):.2f} times |"
        print(f"| {worst:g} | {method.model.clip} | {at_bound:.0%} | {shown}", flush=True)


if __name__ == "__main__":
    main()
