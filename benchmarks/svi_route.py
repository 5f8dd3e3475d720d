"""When the SVI route is reliable: three models, each released with its own covariance.

    python benchmarks/svi_route.py [--records 2000] [--steps 300] [--models poisson,linear]

Every record is left out once and trained beside the fit by SVI on full batches. For each number of
draws k and temperature τ: the smallest ε of all orders, the smallest by the hockey-stick
conversion, and the smallest whose estimate is reliable. Extreme records are joined to the data one
by one, with features at the limit or beyond and targets far off; the fifth column is the reliable
ε with the most exposed of them put into the panel. Errors are mean absolute ones on test records,
averaged over 50 previewed releases.
"""

from __future__ import annotations

import argparse
import runpy
from collections.abc import Callable, Mapping
from pathlib import Path

import pyro
import pyro.distributions as dist
import torch
from printed import command
from torch import Tensor

import bdpvi
from bdpvi import Coupled, Dataset
from bdpvi.bayesian import Accounting, Add, Remove, cost_of
from bdpvi.bayesian.accounting.draws import GuideDraws
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bayesian.accounting.panel import Panel
from bdpvi.bayesian.inference.svi import default_optimiser
from bdpvi.guides import FullRank

MODELS = Path(__file__).parents[1] / "examples" / "models"
DELTA, GAMMA = 1e-5, 1e-30
SMALLEST = Accounting(failure_probability=GAMMA)
HOCKEY_STICK = Accounting(failure_probability=GAMMA, conversion="hockey-stick")
RELIABLE = Accounting(failure_probability=GAMMA, only_reliable=True)
RELEASES = ((1, 1.0), (10, 1.0), (1, 10.0), (10, 10.0), (1, 100.0))
PREVIEWS = 50
Predicted = Callable[[Mapping[str, Tensor], Tensor], Tensor]
TARGETS = {"poisson": (0.0, 1e3), "student_t": (1.0, 1e6), "linear": (1.0, 1e6)}
"""Targets of the extreme records, whose features are at the limit or far beyond it."""


def linear(x: Tensor, y: Tensor | None = None) -> None:
    """Regression with Gaussian noise of unknown scale: a target far off has a score without end."""
    x = x.clamp(-2.0, 2.0)
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    intercept = pyro.sample("intercept", dist.Normal(x.new_zeros(()), 1.0))
    scale = pyro.sample("scale", dist.LogNormal(x.new_zeros(()), 1.0))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(intercept + x @ w, scale), obs=y)


def price(panel: Panel, rule: Accounting, draws: int, tau: float) -> str:
    """Return ε, at which λ, and whether it is reliable."""
    try:
        found = cost_of([GuideDraws((panel,), draws, tau)], DELTA, rule).bayesian
    except ValueError:
        return "none"
    assert found is not None
    known = found.evidence
    assert known is not None
    order = "" if known.order is None else f", λ {known.order:.1f}"
    trust = "reliable" if found.reliable else "no"
    return f"{found.epsilon:.3f} ({trust}{order}, skewness {known.skewness:.1f})"


def report(name: str, records: int, steps: int) -> None:
    """Fit one model and print what its releases cost and are worth."""
    source = runpy.run_path(str(MODELS / f"{'student_t' if name == 'linear' else name}.py"))
    model, predicted = linear if name == "linear" else source["model"], source["predicted"]
    train, test = source["simulated"](records), source["simulated"](10_000, seed=1)
    corner = torch.tensor([[2.0, -2.0, 2.0, 2.0], [-2.0, 2.0, 2.0, -2.0], [1e6] * 4])
    features = corner.double().repeat(2, 1)
    targets = torch.tensor(TARGETS[name]).double().repeat_interleave(3)
    extreme = Dataset(features, targets, torch.arange(records, records + 6))
    guide = FullRank(model, init_scale=0.05)
    fit = bdpvi.fit(
        model,
        guide,
        train,
        training=bdpvi.Training(steps=steps, optim=default_optimiser(steps, lr=0.1, decay=0.05)),
        neighbours=Coupled(Remove(), Add(extreme), chunk=256),
        progress=False,
    )
    panel, added = fit.panels
    moved, far = panel.pairs.b2.sum(1), added.pairs.b2.sum(1)
    print(f"\n{name}: {records} records, {guide.dim} latents; {fit.convergence}")
    one = moved.mean()
    print(
        f"squared distance: mean {one * records / guide.dim:.2f} latents / N; largest "
        f"{moved.max() / one:.1f} times the mean, of an extreme record {far.max() / one:.1f} times"
    )
    covariance = (panel.pairs.r - 1).abs().amax(1) * records
    print(f"covariance |r − 1| × N: median {covariance.median():.2f}, max {covariance.max():.2f}")
    worst = added.pairs.reverse().select(far.argmax()[None])
    pairs = GaussianPairs(
        torch.cat([panel.pairs.r, worst.r]), torch.cat([panel.pairs.b2, worst.b2])
    )
    joined = Panel("remove", torch.arange(records + 1), pairs)
    mean = {n: v[None] for n, v in guide.unpack(fit.posterior.mean).items()}
    print("| k | τ | smallest ε | hockey-stick | reliable | with the extreme record | error |")
    print("| --- " * 7 + "|")
    for draws, tau in RELEASES:
        costs = [price(panel, rule, draws, tau) for rule in (SMALLEST, HOCKEY_STICK, RELIABLE)]
        costs.append(price(joined, RELIABLE, draws, tau))
        found = previewed(predicted, fit, draws, tau, test)
        print(f"| {draws} | {tau:g} | {' | '.join(costs)} | {found:.4f} |", flush=True)
    own = (predicted(mean, test.x) - test.y).abs().mean()
    nothing = (test.y - train.y.median()).abs().mean()
    print(f"error of the secret mean {own:.4f}, of the median target {nothing:.4f}", flush=True)


def previewed(predicted: Predicted, fit: bdpvi.Fit, draws: int, tau: float, test: Dataset) -> float:
    """Return the mean absolute error of predictions, averaged over previewed releases."""
    errors = []
    for seed in range(PREVIEWS):
        generator = torch.Generator().manual_seed(seed)
        latents = bdpvi.bayesian.preview(fit, draws, temperature=tau, generator=generator)
        errors.append(float((predicted(latents, test.x) - test.y).abs().mean()))
    return sum(errors) / len(errors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--models", default="poisson,student_t,linear")
    options = parser.parse_args()
    print("$", command())
    print(f"full-rank guide, δ = {DELTA:g}, γ = {GAMMA:g}")
    for name in options.models.split(","):
        report(name, options.records, options.steps)


if __name__ == "__main__":
    main()
