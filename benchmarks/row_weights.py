"""Coverage of intervals from rows with unequal weights, drawn with chances that depend on targets.

    OMP_NUM_THREADS=1 python benchmarks/row_weights.py [--tables 200] [--settings]

A population follows the model of ``benchmarks/intervals.py``. A person's weight is
2 exp(0.8z + c/2) with a normal z, clipped to 1 to 8, where c is 1 or −1 with the target's label, or
the sign of its error; the person is in the table with chance 1/weight. So rows without their
weights have another law. The largest weight is declared as 8, or as 4, by which some are clipped;
δ = 1e-5. Reported for 95 % intervals, over all coefficients with standard errors, among tables that
pass the gate: their coverage, that of the coefficient with the lowest, and that of the same release
without the weights; of all tables, coverage of the weighted fit without privacy, by its sandwich;
the median width over its.

With ``--settings``: by how much the loss of objective perturbation is less if its settings are for
the sum of weights over the largest instead of N. Weights are exp(z), cut at 5, and say nothing.
"""

from __future__ import annotations

import argparse
import math
from itertools import product

import torch
from intervals import FAMILIES, USUAL, features, truth
from printed import command
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from bdpvi.datasets.records import Held
from bdpvi.datasets.weights import shares_of
from bdpvi.noise.keys import Key
from bdpvi.privacy.gaussian import largest_variance
from bdpvi.regression import objective_plan
from bdpvi.regression.objective import improved
from bdpvi.regression.objective_plan import Facts
from bdpvi.regression.perturbed_objective import Signed, SummedObjective, minima_of
from bdpvi.regression.score_posterior import NormalPrior, Posterior
from bdpvi.regression.score_release import ScorePlan, measure

CELLS = (
    ("logistic", 5, 5_000, 1.0, 8.0),
    ("logistic", 5, 5_000, 3.0, 8.0),
    ("logistic", 5, 20_000, 1.0, 8.0),
    ("logistic", 5, 20_000, 1.0, 4.0),
    ("linear", 5, 10_000, 1.0, 8.0),
    ("linear", 5, 10_000, 3.0, 8.0),
    ("linear", 5, 10_000, 3.0, 4.0),
    ("poisson", 3, 20_000, 1.0, 8.0),
    ("poisson", 3, 20_000, 3.0, 8.0),
    ("poisson", 3, 20_000, 3.0, 4.0),
)
LARGEST = 8.0


def sampled(name: str, columns: int, rows: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return features, targets and weights of the rows that were drawn from a population."""
    generator = torch.Generator().manual_seed(seed)
    x = features(4 * rows, columns, generator)
    predictor = x @ truth(name, columns)
    y = USUAL[name](predictor, generator)
    middle = {"logistic": torch.full_like(y, 0.5), "linear": predictor, "poisson": predictor.exp()}
    sign = torch.where(y > middle[name], 1.0, -1.0)
    spread = torch.randn(len(x), generator=generator, dtype=torch.float64)
    weights = (2 * (0.8 * spread + sign / 2).exp()).clamp(1.0, LARGEST)
    drawn = torch.rand(len(x), generator=generator) < 1 / weights
    x, y, weights = (one[drawn][:rows] for one in (x, y, weights))
    assert len(x) == rows
    return x, y, weights


def released(
    name: str, x: Tensor, y: Tensor, shares: Tensor | None, epsilon: float, seed: int
) -> Posterior:
    """Return the posterior of a release, with or without weights."""
    k = x.shape[1]
    distance = math.sqrt(largest_variance(epsilon, 1e-5))
    plan = ScorePlan.of(FAMILIES[name], k, distance, len(x))
    prior = NormalPrior(torch.zeros(k).double(), torch.eye(k).double() / 25)
    if shares is None:
        return measure(plan, Held((x, y)), prior, Key.of_seed(seed)).of_features()
    plan = ScorePlan(**{**vars(plan), "weighted": True})
    return measure(plan, Held((x, y, shares)), prior, Key.of_seed(seed)).of_features()


def without_privacy(name: str, x: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weighted maximum of the likelihood, and its sandwich's standard deviations."""
    w = torch.zeros(x.shape[1], dtype=torch.float64)
    for _ in range(30):
        eta = x @ w
        means = {"logistic": eta.sigmoid(), "poisson": eta.clamp(max=6).exp(), "linear": eta}
        mean = means[name]
        bends = {"logistic": mean * (1 - mean), "poisson": mean, "linear": torch.ones_like(mean)}
        inverse = torch.linalg.inv(((weights * bends[name])[:, None] * x).T @ x)
        step = inverse @ (x.T @ (weights * (y - mean)))
        w = w + step * min(1.0, 2.0 / max(float(step.norm()), 1e-12))
    middle = ((weights * (y - mean)).square()[:, None] * x).T @ x
    return w, (inverse @ middle @ inverse).diagonal().sqrt()


def cell(name: str, columns: int, rows: int, epsilon: float, largest: float, number: int) -> str:
    """Return one row of the report."""
    w = truth(name, columns)
    inside: dict[str, list[Tensor]] = {"weighted": [], "alike": [], "open": []}
    widths, passed = [], 0
    for seed in range(number):
        x, y, weights = sampled(name, columns, rows, seed)
        found = released(name, x, y, shares_of(weights, largest), epsilon, seed)
        plain, plain_sd = without_privacy(name, x, y, weights)
        inside["open"].append((plain - w).abs() < 1.96 * plain_sd)
        if not found.passes:
            continue
        passed += 1
        alike = released(name, x, y, None, epsilon, seed)
        for what, one in (("weighted", found), ("alike", alike)):
            inside[what].append((one.mean - w).abs() < 1.96 * one.covariance.diagonal().sqrt())
        widths.append(found.covariance.diagonal().sqrt() / plain_sd)
    if not passed:
        return f"– | – | – | – | – | 0/{number}"
    said = []
    for some in inside.values():
        each = torch.stack(some).double()
        error = float(each.mean(1).std()) / math.sqrt(len(each))
        said.append(f"{float(each.mean()):.3f} ± {error:.3f}")
    least = float(torch.stack(inside["weighted"]).double().mean(0).min())
    weighted, alike_said, plainly = said
    width = float(torch.stack(widths).median())
    return f"{weighted} | {least:.3f} | {alike_said} | {plainly} | {width:.2f} | {passed}/{number}"


def log_loss(minimum: Tensor, limit: float, columns: int) -> float:
    """Return the mean loss for 20,000 new records."""
    x, y = unweighted(20_000, columns, torch.Generator().manual_seed(10**6))
    design = torch.cat([x.clamp(-limit, limit), x.new_ones(len(x), 1)], 1)
    return float(binary_cross_entropy_with_logits(design @ minimum, y))


def unweighted(rows: int, columns: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return independent features and labels."""
    x = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    predictor = x[:, :3] @ torch.tensor([1.0, -0.5, 0.25], dtype=torch.float64) - 0.5
    return x, USUAL["logistic"](predictor, generator)


def settings(columns: int, epsilon: float, rows: int, number: int) -> str:
    """Return by how much settings for the sum of shares have less loss than those for N."""
    losses = []
    for seed in range(number):
        generator = torch.Generator().manual_seed(seed)
        x, y = unweighted(rows, columns, generator)
        weights = torch.randn(rows, generator=generator, dtype=torch.float64).exp()
        shares = shares_of(weights, 5.0)
        row = []
        for size in (float(rows), max(10.0, float(shares.sum()))):
            plan = objective_plan.plan(Facts(columns=columns, rows=size), epsilon=epsilon)
            objective = SummedObjective(plan, Held(Signed.of(plan, x, y, shares)))
            minimum = improved(plan, minima_of(objective, plan, Key.of_seed(seed))[0])[0]
            row.append(log_loss(minimum, plan.limit, columns))
        losses.append(row)
    found = torch.tensor(losses)
    less = found[:, 0] - found[:, 1]
    error = float(less.std()) / math.sqrt(number)
    return f"{float(found[:, 0].mean()):.4f} | {float(less.mean()):.4f} ± {error:.4f}"


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--settings", action="store_true")
    given = parser.parse_args()
    number = given.tables
    torch.set_num_threads(1)
    print(command())
    if given.settings:
        print("| cell | loss, settings for N | less for the sum of shares |\n| --- | --- | --- |")
        for columns, epsilon, rows in product((5, 20), (0.3, 1.0), (500, 2_000, 10_000)):
            said = settings(columns, epsilon, rows, number)
            print(f"| {columns} columns, ε = {epsilon:g}, N = {rows:,} | {said} |", flush=True)
        return
    print(
        "| cell | coverage | least | weights ignored | without privacy | width | pass |\n"
        "| --- | --- | --- | --- | --- | --- | --- |"
    )
    for name, columns, rows, epsilon, largest in CELLS:
        said = cell(name, columns, rows, epsilon, largest, number)
        print(
            f"| {name}, {columns} columns, N = {rows:,}, ε = {epsilon:g}, largest weight "
            f"{largest:g} | {said} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
