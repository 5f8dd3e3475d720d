"""Post-processing of a released sample before prediction: log score and calibration error.

    python benchmarks/after_release.py [--data FILE ...]

Releases of one sample of a mean-field guide with public noise and a worst-case ε, on a quarter
of each table's training rows, held out from the fit; mean of 12 releases. The rows are

- unchanged;
- noise integrated: the mean prediction under the posterior of the guide's mean m, given the sample
  and the public noise N(0, v I), with the model's prior for m: N(g w, g v I), g = s²/(s² + v);
- rescaled: the sample scaled to length 1.5 √(1 − d v/‖w‖²), which shrinks a length of 1.5 by the
  direction's uncertainty due to noise;
- Platt: the sample at 0.9 ε, then a slope and an offset at 0.1 ε (and a tenth of δ) by objective
  perturbation on the held-in rows: the feature is t = clip(2 xᵀw/B, ± 1), B the largest |xᵀw| that
  features within the model's limit can have, the ridge is centred at a slope of 4;
- objective perturbation, with its settings by rule.

The last column of a FILE is the target.
"""

from __future__ import annotations

import argparse
import math
import platform
from collections.abc import Iterator
from pathlib import Path

import torch
from defaults import with_files
from printed import command
from torch import Tensor

import bdpvi
from bdpvi import Dataset, datasets
from bdpvi.bench.methods.objective_perturbation import PerturbedMinimum
from bdpvi.bench.methods.posterior import MeanFieldWorstCase
from bdpvi.datasets import Split
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.regression.objective_plan import Facts, plan
from bdpvi.regression.perturbed_objective import WeightedObjective
from bdpvi.tables.metrics import expected_calibration_error, log_score

EPSILONS = (0.05, 0.2, 1.0)
DELTA = 1e-5
RELEASES = 12
LENGTH = 1.5
SLOPE = 4.0
FEW = bdpvi.Optimum(bdpvi.bayesian.Remove(3))
"""A worst-case ε does not depend on the neighbours, so a few are enough."""


class Released:
    """Samples of a worst-case release, (R, d), the model, and the variance of their noise."""

    def __init__(self, train: Dataset, epsilon: float, delta: float = DELTA) -> None:
        settings = MeanFieldWorstCase().at(epsilon, delta, len(train))
        fitted = settings.fitted(train, 3)
        promise = bdpvi.WorstCaseDP()
        tau = bdpvi.bayesian.calibrate(
            fitted, epsilon=epsilon, delta=delta, guarantee=promise
        ).temperature
        generator = torch.Generator().manual_seed(0)
        latents = bdpvi.bayesian.preview(fitted, RELEASES, temperature=tau, generator=generator)
        assert settings.noise_scale is not None
        self.model, self.variance = settings.model, tau * settings.noise_scale**2
        self.samples = latents["w"].double()

    def logits(self, data: Dataset) -> Tensor:
        """Return xᵀw of every sample and record, (R, N)."""
        return self.samples @ self.model.design(data.x.double()).T

    def integrated(self, data: Dataset, draws: int = 200) -> Tensor:
        """Return the chances of 1 with the noise integrated, (R, N)."""
        design = self.model.design(data.x.double())
        assert isinstance(self.model, BayesianLogisticRegression)
        kept = 1 / (1 + self.model.precision(design.shape[1]) * self.variance)
        spread = math.sqrt(kept * self.variance) * torch.linalg.vector_norm(design, dim=1)
        normal = torch.distributions.Normal(0.0, 1.0)
        points = normal.icdf((torch.arange(draws).double() + 0.5) / draws)
        chances = [torch.sigmoid(kept * self.logits(data) + z * spread) for z in points]
        return torch.stack(chances).mean(0)

    def rescaled(self, data: Dataset) -> Tensor:
        """Return the chances of 1 by samples of a public length, (R, N)."""
        squared = (self.samples**2).sum(1, keepdim=True)
        left = (1 - self.samples.shape[1] * self.variance / squared).clamp(min=0.01)
        return torch.sigmoid(LENGTH * (left / squared).sqrt() * self.logits(data))

    def feature(self, data: Dataset) -> Tensor:
        """Return t of every sample and record, (R, N), within ± 1."""
        assert self.model.limit is not None
        box = torch.full((self.samples.shape[1],), self.model.limit).double()
        box[-1] = 1.0  # the intercept's
        return (2 * self.logits(data) / (self.samples.abs() @ box).unsqueeze(1)).clamp(-1, 1)


def platt(train: Dataset, test: Dataset, epsilon: float) -> Tensor:
    """Return the chances of 1 after a private slope and offset, (R, N)."""
    release = Released(train, 0.9 * epsilon, 0.9 * DELTA)
    facts = Facts(columns=1, rows=max(10, len(train)))
    settings = plan(facts, epsilon=0.1 * epsilon, delta=0.1 * DELTA)
    generator, chances = torch.Generator().manual_seed(1), []
    for t, shown in zip(release.feature(train), release.feature(test), strict=True):
        objective = WeightedObjective(settings, t[:, None], train.y)
        slope = settings.sigma * torch.randn(2, generator=generator, dtype=torch.float64)
        slope[0] -= settings.ridge * SLOPE
        found = objective.minimum(slope)
        chances.append(torch.sigmoid(found[0] * shown + found[1]))
    return torch.stack(chances)


def perturbed(train: Dataset, test: Dataset, epsilon: float) -> Tensor:
    """Return the chances of 1 by objective perturbation, (R, N)."""
    method = PerturbedMinimum()
    prepared = method.prepare(train, DELTA)
    setting = prepared.calibrate(epsilon)
    outcomes = prepared.outcomes([setting] * RELEASES, range(RELEASES))
    weights = torch.cat([one.latents["w"] for one in outcomes]).double()
    return torch.sigmoid(weights @ method.model.design(test.x.double()).T)


def ways(split: Split, epsilon: float) -> Iterator[Tensor]:
    """Yield the chances of 1 on the test records in each of the ways, (R, N)."""
    release = Released(split.train, epsilon)
    yield torch.sigmoid(release.logits(split.test))
    yield release.integrated(split.test)
    yield release.rescaled(split.test)
    yield platt(split.train, split.test, epsilon)
    yield perturbed(split.train, split.test, epsilon)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, nargs="*", default=[], metavar="FILE")
    files = parser.parse_args().data
    tables = with_files(files)
    print(command())
    print(f"Python {platform.python_version()}, torch {torch.__version__}")
    print("Log score / calibration error; worst-case DP, δ = 1e-5, one sample a release\n")
    heads = "as it is | noise integrated | rescaled | Platt for ε/10 | objective perturbation"
    print(f"| table | ε | {heads} |")
    print("| --- " * 7 + "|")
    every: dict[float, list[list[float]]] = {epsilon: [] for epsilon in EPSILONS}
    for name, data in tables.items():
        split = datasets.split.shuffled(data, 0.25)
        for epsilon in EPSILONS:
            chances = list(ways(split, epsilon))
            scores = [float(log_score(p, split.test.y).mean()) for p in chances]
            errors = [float(expected_calibration_error(p, split.test.y).mean()) for p in chances]
            cells = (f"{s:.3f} / {e:.3f}" for s, e in zip(scores, errors, strict=True))
            print(f"| {name} | {epsilon:g} | " + " | ".join(cells) + " |", flush=True)
            every[epsilon].append(scores)
    for epsilon, rows in every.items():
        means = torch.tensor(rows).mean(0).tolist()
        print(f"| mean | {epsilon:g} | " + " | ".join(f"{one:.3f}" for one in means) + " |")


if __name__ == "__main__":
    main()
