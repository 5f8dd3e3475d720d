"""How often intervals of mixed models hold, on simulated tables.

    OMP_NUM_THREADS=1 python benchmarks/mixed.py [--tables 24] [--records 8] [--of linear poisson]

Rows have two features of their own, one of their group, and the effect of their group, τ = 0.5;
the sizes of groups are uniform between half and all of the number shown. Errors of numbers have a
standard deviation of 1 and the targets the bounds ± 6; counts have the bound 10, as records 30.
Each table goes through `fit_private` with groups as features, or, with the default settings of
training, with groups as records. δ = 1e-5. Reported of 95 % intervals: the share that holds the
coefficients called measured, and τ where it is; the share of either that is; the mean of τ; and, of
features, the share that holds the groups' effects. "t" has effects with a t-distribution of 5
degrees of freedom and the same variance. Of 2,000 groups there are half as many tables.
"""

from __future__ import annotations

import argparse
import itertools
import math
import warnings
from typing import Any

import numpy as np
import torch
from printed import command
from pyro.infer import JitTrace_ELBO
from torch import Tensor

import bdpvi
from bdpvi.datasets.dataset import Dataset, People
from bdpvi.models.mixed import MixedRegression
from bdpvi.regression import NoisyGroups
from bdpvi.tables import mixed
from bdpvi.tables.prepared import Prepared

SPREAD = 0.5
W = torch.tensor([0.5, -0.3, 0.2, -0.2], dtype=torch.float64)
OF: dict[str, Any] = {
    "linear": bdpvi.BayesianLinearRegression(largest=6.0, prior_scale=15.0),
    "logistic": bdpvi.BayesianLogisticRegression.unweighted(intercept=True, prior_scale=5.0),
    "poisson": bdpvi.BayesianPoissonRegression(largest=30),
}
FEATURES = [(20, 100), (20, 500), (200, 20), (200, 100), (2000, 20)]
RECORDS = [
    ("logistic", 200), ("logistic", 2000), ("linear", 2000), ("poisson", 2000),
]  # fmt: skip
ROWS = 20
"""Rows of the largest groups that are records."""


def simulated(kind: str, groups: int, rows: int, seed: int, tail: bool) -> tuple[Tensor, ...]:
    """Return features, the number of each row's group, targets and the groups' effects."""
    random = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), random.integers(max(rows // 2, 1), rows + 1, groups))
    x = random.normal(size=(len(group), 3))
    x[:, 2] = random.normal(size=groups)[group]
    effects = (
        random.standard_t(5, groups) * math.sqrt(3 / 5) if tail else random.normal(size=groups)
    )
    eta = x @ W[:3].numpy() + float(W[3]) + SPREAD * effects[group]
    targets = {
        "linear": lambda: eta + random.normal(size=len(eta)),
        "logistic": lambda: random.random(len(eta)) < 1 / (1 + np.exp(-eta)),
        "poisson": lambda: random.poisson(np.exp(eta)),
    }
    made = (x, group, np.asarray(targets[kind](), dtype=float), SPREAD * effects)
    return tuple(torch.from_numpy(one) for one in made)


def by_features(kind: str, groups: int, rows: int, epsilon: float, seed: int, tail: bool) -> Any:
    """Return a release of groups that are features, and their effects."""
    x, group, y, effects = simulated(kind, groups, rows, seed, tail)
    one_hot = torch.nn.functional.one_hot(group, groups).double()
    of = bdpvi.BayesianPoissonRegression(largest=10) if kind == "poisson" else OF[kind]
    model = MixedRegression(of=of, groups=tuple(range(3, 3 + groups)))
    data = Dataset(torch.cat([x, one_hot], 1), y)
    route = NoisyGroups(draws=20)
    return bdpvi.fit_private(model, data, epsilon=epsilon, route=route), effects


def by_records(kind: str, groups: int, epsilon: float, seed: int, tail: bool) -> Any:
    """Return a release of groups that are records."""
    x, group, y, effects = simulated(kind, groups, ROWS, seed, tail)
    model = MixedRegression(of=OF[kind])
    people = People(unit="group", rows_per_unit=ROWS)
    data = mixed.grouped(Dataset(x, y, people=people), group.numpy(), model, ROWS)
    route = bdpvi.DPVI(loss=JitTrace_ELBO(), draws=20)
    prepared = Prepared.of(mixed.of_records(model, ROWS), data, route)
    made = prepared.release(epsilon=epsilon)
    return mixed.of_rows(made, model, ("a", "b", "c")), effects


def facts(release: Any, effects: Tensor) -> list[list[float]]:
    """Return for coefficients, τ and groups' effects how many are held and measured, and there."""
    guide = release.guide
    sizes = {name: math.prod(shape) for name, shape in guide.sites.items()}
    parts = {
        name: torch.tensor(one, dtype=torch.float64).split([*sizes.values()])
        for name, one in (("mean", guide.mean), ("variance", guide.variances))
    }
    seen = torch.tensor(guide.measured).split([*sizes.values()])
    at, last = [*sizes].index("w"), [*sizes].index("log_spread")
    mean, sd = parts["mean"][at], parts["variance"][at].sqrt()
    own = torch.ones(len(mean), dtype=torch.bool)
    own[3:-1] = False
    held = (mean[own] - W).abs() < 1.96 * sd[own]
    known = seen[at][own]
    log, width = float(parts["mean"][last]), float(parts["variance"][last].sqrt())
    tau = abs(log - math.log(SPREAD)) < 1.96 * width
    measured = bool(seen[last])
    result = [
        [float((held & known).sum()), float(known.sum()), 4.0],
        [float(tau and measured), float(measured), 1.0],
        [math.exp(log), 1.0, 1.0],
    ]
    if len(mean) > 4:
        inside = (mean[~own] - effects).abs() < 1.96 * sd[~own]
        result.append([float(inside.sum()), len(effects), len(effects)])
    return result


def line(name: str, made: list[Any]) -> str:
    """Return a line of the table."""
    weights, tau, spread, *others = np.array([facts(*one) for one in made]).sum(0)

    def share(one: Any) -> str:
        return "  —  " if not one[1] else f"{one[0] / one[1]:.3f}"

    held = share(others[0]) if others else "  —  "
    return (
        f"{name:44} {len(made):3}  {share(weights)} ({weights[1] / weights[2]:.2f})  "
        f"{share(tau)} ({tau[1] / tau[2]:.2f})  {spread[0] / spread[1]:.2f}  {held}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=24)
    parser.add_argument("--records", type=int, default=8)
    parser.add_argument("--of", nargs="+", choices=OF, default=[*OF])
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    print(command())
    print(f"{'':44} tables  coefficients  τ (measured)  mean τ  effects")
    cells = itertools.product(asked.of, FEATURES, (1.0, 3.0), (False, True))
    for cell, (kind, (groups, rows), epsilon, tail) in enumerate(cells if asked.tables else ()):
        if tail and groups != 200:
            continue
        number = asked.tables // (2 if groups > 1000 else 1)
        seeds = range(1000 * cell, 1000 * cell + number)
        made = [by_features(kind, groups, rows, epsilon, one, tail) for one in seeds]
        name = f"features, {kind}, {groups} × {rows}, ε = {epsilon:g}{', t' * tail}"
        print(line(name, made), flush=True)
    for kind, groups in RECORDS if asked.records else ():
        for epsilon in (1.0, 3.0):
            made = [by_records(kind, groups, epsilon, one, False) for one in range(asked.records)]
            print(line(f"records, {kind}, {groups}, ε = {epsilon:g}", made), flush=True)


if __name__ == "__main__":
    main()
