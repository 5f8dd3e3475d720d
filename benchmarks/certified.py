"""What draws from the posterior itself cost under a certified Bayesian ε, and what they keep.

    python benchmarks/certified.py [--names simulated5_1e4 … adult abalone …] [--data FILE ...]
        [--delta 1e-5] [--draws 1 10] [--guide FullRank | MeanField]
    python benchmarks/certified.py --curve adult | --rule | --speed 1e6 20
    python benchmarks/certified.py --whitened [--names …] [--data …]
    python benchmarks/certified.py --sweep [1e3 1e4 1e5 1e6]
    python benchmarks/certified.py --groups [simulated5_1e4 … adult]
    python benchmarks/certified.py --model poisson multinomial linear negative_binomial
        [--sizes …] [--columns …]

One row a table: N, d, the certified ε of one draw and of ten at temperature 1, the worst-case ε of
one that holds for all tables, the share of the gain in log score that one draw keeps (mean of 100
draws, held-out rows) of that of scikit-learn's logistic regression over the base rate, and CPU
seconds of fit and certificate. Defaults throughout. ``simulatedD_N`` are exactly logistic; Adult,
Abalone, breast cancer and ``fair`` (a survey; it needs statsmodels) are found as ``bdpvi compare``
finds them; of a FILE the last column is the target, its most frequent value 1. With ``--guide``
the last column is the ε of one draw over that of Laplace; a mean-field guide has none for all
tables. ``--whitened`` gives the model uncorrelated features of unit variance,
by the means and covariances of the held-out rows, as from an earlier table: directions with under a
twentieth of a column's variance are left out.
``--curve`` prints ε and log score of one draw at public temperatures. ``--rule`` prints for 12
simulated populations the temperature that the rule plans for ε = 0.2 and 1, whether it is
certified, the share, and (as an experiment) the least temperature in hindsight. ``--sweep`` takes
tables of these sizes, 5 and 20 columns, as ``default_release.py`` simulates them: the share there
is of the truth's own gain. Its last line is how much worse anything ever gets with ten times the
records or a larger ε. ``--speed N d`` times a table of that size. ``--groups`` prints for one draw
the ε of the mean and of every group of at least some shares. In tables named ``minorityD_N`` a
twentieth of the records lies elsewhere and behaves otherwise; the last column is the minority's own
mean of δ at the ε of the mean over everybody. ``--model`` prints tables that other regressions
simulate, of 10,000 and 100,000 records with 5 and 20 columns, beside logistic regression of the
same size.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
import torch
from default_release import Simulated, gain
from default_release import simulated as correlated
from printed import command
from sklearn.linear_model import LogisticRegression

import bdpvi
from bdpvi import Dataset, Fit, datasets, guides
from bdpvi.bayesian.accounting.accountant import Account
from bdpvi.bayesian.accounting.draws import GuideDraws
from bdpvi.bayesian.mode.influence import of_any_table
from bdpvi.bayesian.mode.plan import planned_temperature
from bdpvi.bayesian.optimum.influence import of_any_table as of_any_optimum
from bdpvi.privacy import mode_draws
from bdpvi.privacy.entry import Charge
from bdpvi.privacy.mode_draws import ModeDraws

NAMES = (
    "simulated5_1e4", "simulated5_1e5", "simulated8_2e4", "simulated20_1e4", "simulated20_1e5",
    "adult", "abalone", "breast_cancer", "fair",
)  # fmt: skip
EPSILONS = (0.2, 1.0)
SHARES = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
GROUPS = ("simulated5_1e4", "minority5_1e4", "minority5_1e5", "adult")
MINORITY = 0.05
POPULATIONS = [
    (d, n, kind)
    for d, n in ((8, 4_000), (5, 20_000), (20, 20_000))
    for kind in ("weak", "usual", "correlated", "rare")
]
TEMPERATURES = (1.0, 3.0, 10.0, 30.0, 100.0)
Table = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def simulated(d: int, n: int, kind: str = "usual") -> Table:
    """Return train and test parts of an exactly logistic table."""
    w = np.random.default_rng(d).standard_normal(d)
    w *= {"weak": 0.4, "usual": 1.3, "correlated": 1.3, "rare": 1.3}[kind] / np.linalg.norm(w)
    centre = -3.0 if kind == "rare" else -0.4

    def draw(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        random = np.random.default_rng(seed)
        x = random.standard_normal((rows, d))
        if kind == "correlated":
            x = np.sqrt(0.2) * x + np.sqrt(0.8) * random.standard_normal((rows, 1))
        y = random.random(rows) < 1 / (1 + np.exp(-x @ w - centre))
        return torch.tensor(x), torch.tensor(y.astype(float))

    return *draw(n, 0), *draw(8000, 99)


def minority(d: int, n: int) -> Table:
    """Return an exactly logistic table whose first twentieth lies elsewhere, with other weights."""
    w = np.random.default_rng(d).standard_normal(d)
    w *= 1.3 / np.linalg.norm(w)

    def draw(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        random = np.random.default_rng(seed)
        x, few = random.standard_normal((rows, d)), np.arange(rows) < MINORITY * rows
        x[few, 1] = 2 + 0.3 * x[few, 1]
        logit = np.where(few, -3 * x[:, 0], x @ w - 0.4)
        y = random.random(rows) < 1 / (1 + np.exp(-logit))
        return torch.tensor(x), torch.tensor(y.astype(float))

    return *draw(n, 0), *draw(8000, 99)


def split(frame: pd.DataFrame, y: np.ndarray) -> Table:
    """Return four fifths and the rest of a table, in columns of mean 0 and deviation 1."""
    x = pd.get_dummies(frame).astype(float).to_numpy()
    x = x[:, x.std(0) > 0]
    x = (x - x.mean(0)) / x.std(0)
    order, cut = np.random.default_rng(0).permutation(len(y)), int(0.8 * len(y))
    rows, target = torch.tensor(x[order]), torch.tensor(y[order].astype(float))
    return rows[:cut], target[:cut], rows[cut:], target[cut:]


def table(name: str) -> Table:
    """Return a table by its name, or that of a file."""
    for kind, made in (("simulated", simulated), ("minority", minority)):
        if name.startswith(kind):
            d, n = name.removeprefix(kind).split("_")
            return made(int(d), int(float(n)))
    if name.endswith(".csv"):
        frame = pd.read_csv(name)
        target = frame.pop(frame.columns[-1]).astype(str)
        return split(frame, (target == target.mode()[0]).to_numpy())
    found = datasets.LOADERS[name.replace("_", "-")]()
    return (found.train.x, found.train.y, found.test.x, found.test.y)


def whitened(data: Table) -> Table:
    """Return features in which the held-out rows are uncorrelated, with unit variance."""
    seen = data[2].double().clamp(-2, 2)
    sizes, axes = torch.linalg.eigh(torch.cov(seen.T))
    kept = sizes > 0.05
    made = (axes[:, kept] / sizes[kept].sqrt()).T
    old, new = ((x.double().clamp(-2, 2) - seen.mean(0)) @ made.T for x in (data[0], seen))
    return old, data[1], new, data[3]


def score(fit: Fit, data: Table, temperature: float = 1.0) -> float:
    """Return the mean log score of one draw on the held-out rows, in nats."""
    assert isinstance(fit.model, bdpvi.BayesianLogisticRegression)
    design = fit.model.design(data[2].double())
    noise = torch.randn(100, design.shape[1], generator=torch.Generator().manual_seed(1)).double()
    scale = fit.parameters.get("scale_tril", fit.parameters.get("scale"))
    assert scale is not None
    scale = scale if scale.ndim == 2 else scale.diag()
    w = fit.parameters["loc"] + temperature**0.5 * noise @ scale.T
    sign = 2 * data[3].double() - 1
    return float(torch.nn.functional.logsigmoid(sign * (w @ design.T)).mean())


def levels(data: Table) -> tuple[float, float]:
    """Return the log scores of the base rate and of logistic regression without privacy."""
    x, y, fresh, truth = data
    plain = LogisticRegression(max_iter=3000).fit(x.numpy().clip(-4, 4), y.numpy())
    p = torch.tensor(plain.predict_proba(fresh.numpy().clip(-4, 4))[:, 1]).clamp(1e-12, 1 - 1e-12)
    best = float(torch.where(truth == 1, p, 1 - p).log().mean())
    return float(torch.where(truth == 1, y.mean(), 1 - y.mean()).log().mean()), best


def share(fit: Fit, data: Table, temperature: float = 1.0) -> float:
    """Return what one draw keeps of the gain of logistic regression without privacy."""
    base, best = levels(data)
    return (score(fit, data, temperature) - base) / (best - base)


def fitted(data: Table, guide: str = "Laplace") -> Fit:
    model = bdpvi.BayesianLogisticRegression()
    made = getattr(guides, guide)(model)
    return bdpvi.fit(model, made, Dataset(data[0], data[1]), progress=False)


def price(fit: Fit, draws: int, delta: float, temperature: float = 1.0) -> float:
    """Return the certified ε, inf where there is none."""
    event = GuideDraws(fit.panels, draws, temperature)
    try:
        found = Account([event], fit.accounting).cost(delta).bayesian
    except ValueError:
        return float("inf")
    return found.epsilon if found is not None else float("inf")


def for_all_tables(columns: int, delta: float, guide: str = "Laplace") -> float:
    """Return the worst-case ε of one draw, for all tables."""
    if guide == "MeanField":
        return float("inf")
    bound = of_any_table if guide == "Laplace" else of_any_optimum
    found = bound(bdpvi.BayesianLogisticRegression(), columns, added=True)
    assert found is not None
    return mode_draws.epsilon([ModeDraws(influence=found)], delta)


def row(name: str, draws: list[int], delta: float, guide: str, whiten: bool = False) -> None:
    data = whitened(table(name)) if whiten else table(name)
    begun = time.process_time()
    fit = fitted(data, guide)
    found = [price(fit, k, delta) for k in draws]
    spent = time.process_time() - begun
    n, d = data[0].shape
    prices = " | ".join(f"{one:.3g}" for one in found)
    beside = "" if guide == "Laplace" else f" {found[0] / price(fitted(data), 1, delta):.3f} |"
    print(
        f"| {Path(name).stem} | {n} | {d} | {prices} | {for_all_tables(d + 1, delta, guide):.3g} | "
        f"{share(fit, data):.3f} | {spent:.1f} |{beside}",
        flush=True,
    )


def curve(name: str, delta: float) -> None:
    data = table(name)
    base, best = levels(data)
    print(f"base rate {base:.4f}, logistic regression without privacy {best:.4f}")
    print("| temperature | ε of one draw | log score |\n| --- | --- | --- |")
    fit = fitted(data)
    for tau in TEMPERATURES:
        epsilon = price(fit, 1, delta, tau)
        print(f"| {tau:g} | {epsilon:.3g} | {score(fit, data, tau):.4f} |", flush=True)


def kept(fit: Fit, data: Simulated, temperature: float) -> float:
    """Return what one draw keeps of the truth's gain, as a mean of 100."""
    assert isinstance(fit.model, bdpvi.BayesianLogisticRegression)
    design = fit.model.design(data.fresh)
    noise = torch.randn(100, design.shape[1], generator=torch.Generator().manual_seed(1)).double()
    w = fit.parameters["loc"] + temperature**0.5 * noise @ fit.parameters["scale_tril"].T
    most = gain(data.chance, data.chance)
    return fmean(gain(torch.sigmoid(design @ one), data.chance) / most for one in w)


def sweep(sizes: list[float], delta: float) -> None:
    print("| d, N | ε of one draw at τ = 1 | share | τ by rule at ε = .2 / 1 | certified | share |")
    print("| --- | --- | --- | --- | --- | --- |")
    falls = [0.0]
    for d in (5, 20):
        before: list[float] = []
        for n in sizes:
            each = []
            for seed in range(max(1, min(3, round(3e4 / n)))):
                data = correlated(int(n), d, seed)
                fit = fitted((data.x, data.y, data.x, data.y))
                taus = [planned(fit, n, epsilon, delta) for epsilon in EPSILONS]
                prices = {tau: price(fit, 1, delta, tau) for tau in {1.0, *taus}}
                shares = [kept(fit, data, tau) for tau in (1.0, *taus)]
                holds = [prices[tau] <= e for tau, e in zip(taus, EPSILONS, strict=True)]
                each.append((-prices[1.0], *shares, *holds))
            now = [fmean(one) for one in zip(*each, strict=True)]
            falls += [a - b for a, b in zip(before, now, strict=False)] + [now[2] - now[3]]
            before = now
            print(
                f"| {d}, {n:g} | {-now[0]:.3g} | {now[1]:.3f} | {taus[0]:g} / {taus[1]:g} | "
                f"{now[4]:.0%} / {now[5]:.0%} | {now[2]:.3f} / {now[3]:.3f} |",
                flush=True,
            )
    print(f"worse by at most: {max(falls):.4f}")


def planned(fit: Fit, rows: float, epsilon: float, delta: float) -> float:
    """Return the temperature by the rule."""
    assert isinstance(fit.model, bdpvi.BayesianLogisticRegression)
    weights = len(fit.parameters["loc"])
    return planned_temperature(fit.model, weights, rows=rows, epsilon=epsilon, delta=delta)


def rule(delta: float) -> None:
    print("| population | N | d | ε | τ by rule | certified | share | τ in hindsight |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    successes = []
    for d, n, kind in POPULATIONS:
        data = simulated(d, n, kind)
        fit = fitted(data)
        for epsilon in EPSILONS:
            tau = planned(fit, n, epsilon, delta)
            holds = price(fit, 1, delta, tau) <= epsilon
            successes.append(holds)
            grid = [float(t) for t in np.geomspace(0.1, 300, 60)]
            least = next((t for t in grid if price(fit, 1, delta, t) <= epsilon), float("inf"))
            print(
                f"| {kind} | {n} | {d} | {epsilon:g} | {tau:.3g} | {'yes' if holds else 'no'} | "
                f"{share(fit, data, tau):.3f} | {least:.3g} |",
                flush=True,
            )
    print(f"certified: {fmean(successes):.0%} of {len(successes)}")


def groups(name: str, delta: float) -> None:
    data = table(name)
    fit = fitted(data)
    found = bdpvi.cost(fit, delta=delta, planned=Charge(1, 1.0), for_groups_of=SHARES)
    (_, mean), *rest = found.curve
    own = "–"
    if name.startswith("minority"):
        account = Account([GuideDraws(fit.panels)], fit.accounting)
        few = fit.panels[0].ids < MINORITY * len(data[0])  # ids are places in the table
        each = [account.deltas(name, delta).at(mean)[few].mean() for name in account.directions]
        own = f"{float(max(each)):.1e}"
    prices = " | ".join(f"{epsilon:.3g}" for _, epsilon in rest)
    print(f"| {name} | {len(data[0])} | {mean:.3g} | {prices} | {own} |", flush=True)


def speed(rows: float, columns: float, delta: float) -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(int(rows), int(columns), generator=random, dtype=torch.float64)
    w = torch.randn(int(columns), generator=random, dtype=torch.float64)
    y = (torch.rand(int(rows), generator=random) < torch.sigmoid(x @ w * 0.3)).double()
    begun = time.process_time()
    fit = fitted((x, y, x, y))
    at = time.process_time()
    epsilon = price(fit, 1, delta)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"N = {int(rows):,}, d = {int(columns)}: fit and neighbours {at - begun:.1f} CPU s, "
        f"certificate {time.process_time() - at:.1f} CPU s, ε = {epsilon:.3g}, peak {peak:.2f} GiB"
    )


MODELS: dict[str, Any] = {
    "logistic": bdpvi.BayesianLogisticRegression(),
    "poisson": bdpvi.BayesianPoissonRegression.bounded(largest=5),
    "negative_binomial": bdpvi.BayesianNegativeBinomialRegression.bounded(
        largest=5, dispersion=0.5
    ),
    "linear": bdpvi.BayesianLinearRegression.bounded(largest=5.0, error_scale=0.55),
    "multinomial": bdpvi.BayesianMultinomialRegression.bounded(classes=3),
}


def of_model(name: str, d: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a table that the model simulates: mean counts of about 1.5, errors of deviation 1."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, d, generator=g, dtype=torch.float64)
    w = torch.randn(d, 3, generator=g, dtype=torch.float64) / d**0.5
    a = x @ w
    if name == "multinomial":
        return x, torch.multinomial(a.softmax(1), 1, generator=g)[:, 0].double()
    if name == "linear":
        return x, a[:, 0] + torch.randn(n, generator=g, dtype=torch.float64)
    if name == "logistic":
        chance = torch.sigmoid(1.3 * a[:, 0] - 0.4)
        return x, (torch.rand(n, generator=g, dtype=torch.float64) < chance).double()
    rate = (0.5 * a[:, 0] + 0.3).exp()
    if name == "negative_binomial":
        random = np.random.default_rng(0)
        rate = rate * torch.tensor(random.gamma(2.0, 0.5, n))
    return x, torch.poisson(rate, generator=g)


def models(names: list[str], widths: list[int], sizes: list[float], delta: float) -> None:
    print("| model | N | d | ε of one draw | over logistic | ε for all tables | CPU s |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for d in widths:
        for n in map(int, sizes):
            usual = float("nan")
            for name in ["logistic", *names]:
                model, data = MODELS[name], Dataset(*of_model(name, d, n))
                begun = time.process_time()
                fit = bdpvi.fit(model, guides.Laplace(model), data, progress=False)
                found = price(fit, 1, delta)
                spent = time.process_time() - begun
                usual = found if name == "logistic" else usual
                known = of_any_table(model, fit.panels[0].pairs.r.shape[1], added=True)
                assert known is not None
                worst = mode_draws.epsilon([ModeDraws(influence=known)], delta)
                print(
                    f"| {name.replace('_', ' ')} | {n} | {d} | {found:.3g} | {found / usual:.2f} | "
                    f"{worst:.3g} | {spent:.1f} |",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", nargs="*", default=list(NAMES))
    parser.add_argument("--data", nargs="*", default=[])
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--draws", nargs="+", type=int, default=[1, 10])
    parser.add_argument("--whitened", action="store_true")
    parser.add_argument("--guide", choices=["Laplace", "FullRank", "MeanField"], default="Laplace")
    parser.add_argument("--curve", metavar="NAME")
    parser.add_argument("--rule", action="store_true")
    parser.add_argument("--sweep", nargs="*", type=float)
    parser.add_argument("--speed", nargs=2, type=float)
    parser.add_argument("--groups", nargs="*")
    parser.add_argument("--model", nargs="+", choices=list(MODELS)[1:])
    parser.add_argument("--columns", nargs="+", type=int, default=[5, 20])
    parser.add_argument("--sizes", nargs="+", type=float, default=[1e4, 1e5])
    given = parser.parse_args()
    print(command())
    if given.model:
        models(given.model, given.columns, given.sizes, given.delta)
        return
    if given.curve:
        curve(given.curve, given.delta)
        return
    if given.rule:
        rule(given.delta)
        return
    if given.sweep is not None:
        sweep(given.sweep or [1e3, 1e4, 1e5, 1e6], given.delta)
        return
    if given.groups is not None:
        print(f"| table | N | mean | {' | '.join(f'{100 * one:g} %' for one in SHARES)} | its δ |")
        print("| --- " * (4 + len(SHARES)) + "|")
        for name in given.groups or GROUPS:
            groups(name, given.delta)
        return
    if given.speed:
        speed(given.speed[0], given.speed[1], given.delta)
        return
    names = " | ".join(f"ε of {k}" for k in given.draws)
    beside = "" if given.guide == "Laplace" else " over Laplace |"
    print(f"| table | N | d | {names} | ε for all tables | share | CPU s |{beside}")
    print("| --- " * (6 + len(given.draws) + bool(beside)) + "|")
    for name in [*given.names, *given.data]:
        row(name, given.draws, given.delta, given.guide, given.whitened)


if __name__ == "__main__":
    main()
