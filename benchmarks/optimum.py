"""Fit, neighbours and accounting on the optimum route, in seconds, and against refits.

python benchmarks/optimum.py --data FOLDER_OF_THE_UCI_FILES [--refits 500]
"""

from __future__ import annotations

import argparse
import platform
import time

import torch
from printed import command

from bdpvi import BayesianLogisticRegression, Bound, datasets
from bdpvi.bayesian import cost_of
from bdpvi.bayesian.accounting.draws import GuideDraws
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs, summarise
from bdpvi.bayesian.accounting.panel import Panel
from bdpvi.bayesian.optimum.elbo import Objective, Point, start
from bdpvi.bayesian.optimum.expansion import Expansion
from bdpvi.bayesian.optimum.newton import climb
from bdpvi.bayesian.optimum.panels import pairs
from bdpvi.bayesian.optimum.route import Optimum
from bdpvi.bayesian.optimum.weighted import Changed, Weighted
from bdpvi.datasets.dataset import Dataset
from bdpvi.guides import FullRank
from bdpvi.models.quadrature import derivatives

SETTINGS = (("abalone", 0.25, 10.0), ("adult", 1.0, 20.0))
DELTA = 1e-5
TOLERANCE = 1e-12
ROUNDS = 3
KNOWN = 1e-9
"""Relative error of a refit's divergence up to which it is compared with."""
ROUNDING = 1e-14
"""What rounding costs a refit's mean and covariance, in standard deviations."""


def cavity(point: Point, records: Weighted) -> GaussianPairs:
    """Return the full-rank fit against, approximately, the posterior without each record.

    Every other record's term stays as it was at the fit (the cavity of expectation propagation).
    Everything then happens in the direction Σx, so the pairs have one dimension.
    """
    mean, variance = point.logit(records)
    slopes = derivatives(mean, variance, records.mark, 2)
    kept = (1 + slopes[2]).unsqueeze(1)
    return GaussianPairs(kept, slopes[1].square().unsqueeze(1) / kept)


def epsilon(panel: Panel, temperature: float) -> Bound:
    result = cost_of([GuideDraws((panel,), 1, temperature)], DELTA).bayesian
    assert result is not None
    return result


def refit(point: Point, records: Weighted, record: int) -> Point:
    """Return the optimum without the record, to where rounding keeps the gradient from halving."""
    removed = Changed(point.objective.records, records.select(slice(record, record + 1)), -1.0)
    changed = Objective(removed, 1.0, diagonal=False)
    here = climb(changed.at(point.mean, point.metric), TOLERANCE)[-1]
    while (there := here.step(1.0)).gradient_norm < here.gradient_norm / 2:
        here = there
    return here


def gaussian(point: Point) -> torch.distributions.MultivariateNormal:
    return torch.distributions.MultivariateNormal(point.mean, point.root @ point.root.T)


def compare(words: str, found: GaussianPairs, exact: GaussianPairs, missed: torch.Tensor) -> None:
    """Print how far divergences are from those of the refits, ``missed`` by these distances.

    The square root of a divergence is about proportional to the distance that the guide moves.
    """
    order = torch.tensor([2.0, 30.0], dtype=torch.float64).unsqueeze(1)
    one, other = (pairs.renyi(order.squeeze(1)) for pairs in (found, exact))
    distance = (2 * other / order).sqrt()
    known = (2 * missed <= KNOWN * distance).all(0)
    error = (one / other - 1).abs()[:, known].amax(0)
    middle, high = torch.quantile(error, torch.tensor([0.5, 0.99], dtype=torch.float64)).tolist()
    print(
        f"  relative error of the divergence {words} the proven error: median {middle:.1e}, 99 % "
        f"{high:.1e}, largest {float(error.max()):.1e}"
    )
    if not bool(known.all()):
        apart = ((2 * one / order).sqrt() - distance).abs()[:, ~known]
        print(
            f"    without {int((~known).sum())} that move the fit by less than "
            f"{float(distance[:, ~known].max()):.0e} standard deviations, which no refit knows to "
            f"{KNOWN:g}: they are at most {float(apart.max()):.1e} standard deviations off"
        )


def run(name: str, data: Dataset, clip: float, temperature: float, refits: int) -> None:
    model = BayesianLogisticRegression.unweighted(clip=clip)
    data = data.to("cpu")
    records = Weighted.of(model, data)
    guide, rounds = FullRank(model), []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        point = climb(start(Objective(records, 1.0, diagonal=False)), TOLERANCE)[-1]
        fitted = time.perf_counter()
        expansion = Expansion(point, TOLERANCE)
        moves = Optimum(tolerance=TOLERANCE).moves(expansion, records, -1.0)
        panel = Panel("remove", data.ids, pairs(expansion, moves, guide))
        rounds.append((fitted - began, time.perf_counter() - fitted))
    began = time.perf_counter()
    value = epsilon(panel, temperature)
    accounted = time.perf_counter() - began
    fit, neighbours = map(min, zip(*rounds, strict=True))
    size = f"N = {len(data)}, d = {data.x.shape[1]}"
    print(f"{name}: {size}, C = {clip:g}, temperature {temperature:g}")
    rate = f"{neighbours / fit:.1f} fits, {len(data) / neighbours:,.0f}/s"
    print(f"  fit {fit:.2f} s, all neighbours {neighbours:.2f} s ({rate}), fastest of {ROUNDS}")
    print("    in turn " + ", ".join(f"{a:.2f} and {b:.2f} s" for a, b in rounds))
    mark = "reliable" if value.reliable else "not reliable"
    print(f"  Bayesian-DP ε = {value.epsilon:.6f} at δ = {DELTA:g}, {mark}, in {accounted:.2f} s")
    print(f"  largest |log r| {float(panel.pairs.r.log().abs().max()):.4f}")
    bare = GaussianPairs(*zip_pairs(expansion, moves.m, moves.y))
    change = value.epsilon / epsilon(Panel("remove", data.ids, bare), temperature).epsilon - 1
    print(f"  the proven errors add {change:.1e} of ε")
    top = panel.pairs.renyi(32.0, temperature).topk(refits // 10).indices
    proposed = cavity(point, records).renyi(32.0, temperature).topk(refits // 5).indices
    share = float(torch.isin(top, proposed).double().mean())
    print(f"  the cavity's first {refits // 5} contain {share:.1%} of the costliest {refits // 10}")
    rest = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    chosen = torch.cat([top, rest[: refits - len(top)]])
    began = time.perf_counter()
    others = [refit(point, records, int(i)) for i in chosen]
    seconds = time.perf_counter() - began
    brute = [summarise(gaussian(point), gaussian(there)) for there in others]
    missed = torch.tensor([there.gradient_norm for there in others]) + ROUNDING
    exact = GaussianPairs(torch.cat([b.r for b in brute]), torch.cat([b.b2 for b in brute]))
    print(f"  {len(chosen)} refits, {seconds / len(chosen) * 1e3:.0f} ms each")
    for words, found in (("before", bare), ("after", panel.pairs)):
        compare(words, GaussianPairs(found.r[chosen], found.b2[chosen]), exact, missed)


def zip_pairs(
    expansion: Expansion, m: torch.Tensor, y: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = [
        expansion.coordinates.pairs(a, b)
        for a, b in zip(m.split(1024, 1), y.split(1024, 1), strict=True)
    ]
    return torch.cat([b.r for b in blocks]), torch.cat([b.b2 for b in blocks])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="folder with abalone.data, adult.data and adult.test")
    parser.add_argument("--refits", type=int, default=500)
    arguments = parser.parse_args()
    print("$", command())
    print(
        f"{platform.machine()}, {torch.get_num_threads()} threads, Python "
        f"{platform.python_version()}, torch {torch.__version__}"
    )
    loaders = {"abalone": datasets.abalone.load_abalone, "adult": datasets.adult.load_adult}
    for name, clip, temperature in SETTINGS:
        run(name, loaders[name](arguments.data).train, clip, temperature, arguments.refits)


if __name__ == "__main__":
    main()
