"""Coverage and width of noisy scores' intervals, and how often results are refused.

    BDPVI_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/intervals.py [--tables 200] [PART ...]

Parts: logistic, linear, poisson, adult, wrong, bounds, nuts; all by default. Simulated features are
normal, correlated .3^|i − j|, with the weights 1, −.5, .25, 0 … and an intercept (halved for
counts). δ = 1e-5, N is known, priors have a scale of 5. Reported for 95 % intervals: coverage over
all coefficients, and of the coefficient with the lowest coverage, among tables that pass the gate;
median width over that of the fit without privacy; largest mean error of a coefficient over its
standard deviation.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyro
import torch
from printed import command
from pyro import distributions as dist
from pyro.infer import MCMC, NUTS
from torch import Tensor

from bdpvi import datasets
from bdpvi.datasets.records import Held
from bdpvi.models.linear import LinearScores
from bdpvi.models.logistic import LogisticScores
from bdpvi.models.poisson import PoissonScores
from bdpvi.models.scores import ScoreParts
from bdpvi.noise.keys import Key
from bdpvi.privacy.gaussian import largest_variance
from bdpvi.regression.score_posterior import NormalPrior, Pooled, Round, combined
from bdpvi.regression.score_release import Measured, ScorePlan, measure

FAMILIES: dict[str, ScoreParts] = {
    "logistic": LogisticScores(),
    "linear": LinearScores(5.0),
    "poisson": PoissonScores(10.0),
}
CELLS: dict[str, list[tuple[int, int, tuple[float, ...]]]] = {
    "logistic": [
        (5, 1_000, (0.2, 1.0, 3.0)),
        (5, 5_000, (0.2, 1.0, 3.0)),
        (5, 100_000, (0.2, 1.0, 3.0)),
        (10, 1_000, (0.2,)),
        (10, 10_000, (0.2, 1.0, 3.0)),
    ],
    "linear": [(5, 10_000, (0.2, 1.0, 3.0))],
    "poisson": [(3, 10_000, (0.2, 1.0, 3.0))],
}
NOISE = 0.7
"""Standard deviation of the noise of linear regression."""


@dataclass(frozen=True)
class Table:
    """A design, targets, and what intervals should hold."""

    x: Tensor
    y: Tensor
    truth: Tensor


Draw = Callable[[Tensor, torch.Generator], Tensor]
"""Targets for linear predictors."""


def bernoulli(predictor: Tensor, generator: torch.Generator) -> Tensor:
    """Return labels."""
    return (torch.rand(len(predictor), generator=generator) < predictor.sigmoid()).double()


def counts(predictor: Tensor, generator: torch.Generator) -> Tensor:
    """Return Poisson counts."""
    return torch.poisson(predictor.exp(), generator=generator)


def normal(predictor: Tensor, generator: torch.Generator) -> Tensor:
    """Return numbers with normal noise."""
    noise = torch.randn(len(predictor), generator=generator, dtype=torch.float64)
    return predictor + NOISE * noise


USUAL: dict[str, Draw] = {"logistic": bernoulli, "linear": normal, "poisson": counts}


def features(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Return correlated normal features and a column of ones."""
    place = torch.arange(columns)
    spread = 0.3 ** (place[:, None] - place).abs().double()
    x = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    return torch.cat([x @ torch.linalg.cholesky(spread).T, x.new_ones(rows, 1)], 1)


def truth(name: str, columns: int) -> Tensor:
    """Return the weights."""
    w = torch.zeros(columns + 1, dtype=torch.float64)
    w[:3] = torch.tensor([1.0, -0.5, 0.25]) / (2 if name == "poisson" else 1)
    w[-1] = -0.5 if name == "logistic" else 0.5
    return w


def simulated(name: str, rows: int, columns: int, seed: int) -> Table:
    """Return a table of which the model is true."""
    generator = torch.Generator().manual_seed(seed)
    x, w = features(rows, columns, generator), truth(name, columns)
    return Table(x, USUAL[name](x @ w, generator), w)


def without_privacy(name: str, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the maximum of the likelihood, and its standard deviations."""
    w = torch.zeros(x.shape[1], dtype=torch.float64)
    if name == "linear":
        w = torch.linalg.lstsq(x, y).solution
        variance = float((y - x @ w).square().sum()) / (len(x) - len(w))
        return w, (variance * torch.linalg.inv(x.T @ x).diagonal()).sqrt()
    for _ in range(25):
        predictor = x @ w
        mean = predictor.sigmoid() if name == "logistic" else predictor.clamp(max=6).exp()
        bend = mean * (1 - mean) if name == "logistic" else mean
        inverse = torch.linalg.inv((bend[:, None] * x).T @ x)
        step = inverse @ (x.T @ (y - mean))
        w = w + step * min(1.0, 2.0 / max(float(step.norm()), 1e-12))
    return w, inverse.diagonal().sqrt()


def measured(name: str, table: Table, epsilon: float, seed: int) -> Measured:
    """Return what the rounds release."""
    k = table.x.shape[1]
    distance = math.sqrt(largest_variance(epsilon, 1e-5))
    plan = ScorePlan.of(FAMILIES[name], k, distance, len(table.x))
    prior = NormalPrior(torch.zeros(k).double(), torch.eye(k).double() / 25)
    return measure(plan, Held((table.x, table.y)), prior, Key.of_seed(seed))


def cell(name: str, tables: Iterator[Table], epsilon: float) -> str:
    """Return one row of the report."""
    scores, widths, passed = [], [], []
    for seed, table in enumerate(tables):
        found = measured(name, table, epsilon, seed).of_features()
        sd = found.covariance.diagonal().sqrt()
        scores.append((found.mean - table.truth) / sd)
        widths.append(sd / without_privacy(name, table.x, table.y)[1])
        passed.append(found.passes)
    z, ratio, ok = torch.stack(scores), torch.stack(widths), torch.tensor(passed)
    inside = (z.abs() < 1.96).double()
    among = "–"
    if bool(ok.any()) and not bool(ok.all()):
        among = f"{float(inside[ok].mean()):.3f} ({float(inside[ok].mean(0).min()):.3f})"
    return (
        f"{float(inside.mean()):.3f} ({float(inside.mean(0).min()):.3f}) | {among} | "
        f"{float(ok.double().mean()):.3f} | {float(ratio.median()):.2f} | "
        f"{float(z.mean(0).abs().max()):.2f} | {len(z)}"
    )


HEAD = (
    "| cell | coverage (least) | of those that pass | pass | width | bias/sd | tables |\n"
    "| --- | --- | --- | --- | --- | --- | --- |"
)


def families(name: str, number: int) -> None:
    """Print the cells of a family."""
    print(HEAD)
    for columns, rows, epsilons in CELLS[name]:
        for epsilon in epsilons:
            many = (simulated(name, rows, columns, seed) for seed in range(number))
            said = cell(name, many, epsilon)
            print(
                f"| {name}, {columns} columns, N = {rows}, ε = {epsilon:g} | {said} |", flush=True
            )


def adult(number: int) -> None:
    """Print Adult's cells: its features with simulated labels, and its labels."""
    split = datasets.adult.load_adult()
    x, test = (
        torch.cat([one.x.double().clamp(-1, 1), one.x.new_ones(len(one.x), 1).double()], 1)
        for one in (split.train, split.test)
    )
    y, labels = split.train.y.double(), split.test.y.double()
    w, sd = without_privacy("logistic", x, y)
    print(HEAD)
    for epsilon in (0.2, 0.4, 1.0, 3.0):
        many = (
            Table(x, bernoulli(x @ w, torch.Generator().manual_seed(seed)), w)
            for seed in range(number)
        )
        said = cell("logistic", many, epsilon)
        print(f"| Adult's features, simulated labels, ε = {epsilon:g} | {said} |", flush=True)
    plain = score(test @ w, labels)
    print(f"| Adult | log score without privacy {plain:.4f} | lower by | width | pass |")
    print("| --- | --- | --- | --- | --- |")
    for epsilon in (0.2, 0.4, 1.0, 3.0):
        losses, widths, passed = [], [], 0
        for seed in range(20):
            found = measured("logistic", Table(x, y, w), epsilon, seed).of_features()
            spread = ((test @ found.covariance) * test).sum(1)
            logits = (test @ found.mean) / (1 + math.pi / 8 * spread).sqrt()
            losses.append(plain - score(logits, labels))
            widths.append(found.covariance.diagonal().sqrt() / sd)
            passed += found.passes
        lower, width = torch.tensor(losses), torch.stack(widths).median()
        print(
            f"| Adult, ε = {epsilon:g} | | {float(lower.mean()):.4f} "
            f"(most {float(lower.max()):.4f}) | {float(width):.2f} | {passed}/20 |",
            flush=True,
        )


def score(logits: Tensor, y: Tensor) -> float:
    """Return the mean log score."""
    return float(torch.nn.functional.logsigmoid((2 * y - 1) * logits).mean())


def overdispersed(predictor: Tensor, generator: torch.Generator) -> Tensor:
    """Return counts of negative binomial law: with variance μ + μ²/2."""
    shape = torch.full_like(predictor, 2.0)
    torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator)))
    gamma = torch.distributions.Gamma(shape, shape).sample()
    return torch.poisson(predictor.exp() * gamma, generator=generator)


def heteroscedastic(predictor: Tensor, generator: torch.Generator) -> Tensor:
    """Return numbers whose noise grows with the distance of the predictor from its middle."""
    noise = torch.randn(len(predictor), generator=generator, dtype=torch.float64)
    return predictor + NOISE * noise * (0.3 + (predictor - 0.5).abs())


def wrong(number: int) -> None:
    """Print coverage where the model is wrong, with and without privacy."""
    print("| model, truth | coverage (least) | without privacy (least) | tables |")
    print("| --- | --- | --- | --- |")
    kinds: dict[str, tuple[str, int, Draw]] = {
        "linear, noise grows with the predictor": ("linear", 5, heteroscedastic),
        "Poisson, counts of variance μ + μ²/2": ("poisson", 3, overdispersed),
    }
    for said, (name, columns, draw) in kinds.items():
        w = truth(name, columns)
        rows: tuple[list[Tensor], list[Tensor]] = ([], [])
        for seed in range(number):
            generator = torch.Generator().manual_seed(seed)
            x = features(10_000, columns, generator)
            table = Table(x, draw(x @ w, generator), w)
            found = measured(name, table, 1.0, seed).of_features()
            plain, sd = without_privacy(name, x, table.y)
            rows[0].append((found.mean - w).abs() < 1.96 * found.covariance.diagonal().sqrt())
            rows[1].append((plain - w).abs() < 1.96 * sd)
        ours, theirs = (torch.stack(row).double() for row in rows)
        print(
            f"| {said}, ε = 1 | {float(ours.mean()):.3f} ({float(ours.mean(0).min()):.3f}) | "
            f"{float(theirs.mean()):.3f} ({float(theirs.mean(0).min()):.3f}) | {number} |",
            flush=True,
        )


def bounds(records: int = 1_000_000) -> None:
    """Print the longest part of adversarial records over its bound."""
    print(f"| family | first round | later rounds | of {records} records |\n" + "| --- " * 4 + "|")
    generator = torch.Generator().manual_seed(0)
    for name, family in FAMILIES.items():
        k, most = 6, [0.0, 0.0]
        for place in range(50):
            x = torch.randn(records // 50, k, generator=generator, dtype=torch.float64)
            size = 10 ** (torch.randn(len(x), generator=generator, dtype=torch.float64) / 2)
            x *= math.sqrt(k) * (size / x.norm(dim=1))[:, None]
            y = torch.randint(-12, 13, (len(x),), generator=generator).double()
            y = (y > 0).double() if name == "logistic" else y if name == "linear" else y.abs()
            point = torch.randn(k, generator=generator, dtype=torch.float64) * 10 ** (place % 4 - 2)
            radius = math.sqrt(k)
            made = family.first(x, y, radius), family.parts(x, y, radius, point, 1.3)
            most = [
                max(m, float((p.lengths(x) / p.bound).max()))
                for m, p in zip(most, made, strict=True)
            ]
        print(f"| {name} | {most[0]:.9f} | {most[1]:.9f} | |", flush=True)


def log_density(beta: Tensor, made: Pooled) -> Tensor:
    """Return log p(t | β) up to a constant, with the noise of the matrices integrated out."""
    a, eye = made.curvature, torch.eye(len(beta), dtype=torch.float64)
    v = made.sampling + made.score_variance * eye + made.noise_at(beta)
    law = dist.MultivariateNormal(a @ beta, v, validate_args=False)
    return law.log_prob(made.total)  # type: ignore[no-any-return]


def pyro_model(
    rounds: Sequence[Round], prior: NormalPrior, dispersion: float = 1.0
) -> Callable[[], Tensor]:
    """Return a Pyro model without data: a prior of β, ``beta``, and one factor; for NUTS."""
    made = combined(rounds, dispersion)

    def model() -> Tensor:
        normal = dist.MultivariateNormal(prior.mean, precision_matrix=prior.precision)
        beta: Tensor = pyro.sample("beta", normal)
        pyro.factor("scores", log_density(beta, made))
        return beta

    return model


def nuts() -> None:
    """Print how far NUTS is from the closed form."""
    print(
        "| cell | largest difference of means, sd | sds over the closed form's |\n"
        + "| --- " * 3
        + "|"
    )
    for name, columns, rows, epsilon in (
        ("logistic", 3, 5_000, 0.2),
        ("logistic", 3, 5_000, 1.0),
        ("linear", 3, 10_000, 1.0),
        ("poisson", 3, 10_000, 1.0),
    ):
        made = measured(name, simulated(name, rows, columns, 0), epsilon, 0)
        torch.manual_seed(0)
        kernel = NUTS(pyro_model(made.rounds, made.prior, made.dispersion))
        chain = MCMC(kernel, num_samples=3_000, warmup_steps=300, disable_progbar=True)
        chain.run()
        draws, sd = chain.get_samples()["beta"], made.posterior.covariance.diagonal().sqrt()
        away = float(((draws.mean(0) - made.posterior.mean) / sd).abs().max())
        ratio = draws.std(0) / sd
        print(
            f"| {name}, {columns} columns, N = {rows}, ε = {epsilon:g} | {away:.3f} | "
            f"{float(ratio.min()):.3f} to {float(ratio.max()):.3f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--tables", type=int, default=200)
    chosen = parser.parse_args()
    parts: dict[str, Callable[[], None]] = {
        **{name: lambda name=name: families(name, chosen.tables) for name in FAMILIES},  # type: ignore[misc]
        "adult": lambda: adult(chosen.tables),
        "wrong": lambda: wrong(chosen.tables),
        "bounds": bounds,
        "nuts": nuts,
    }
    for part in chosen.parts or parts:
        print(command([__file__, part, "--tables", str(chosen.tables)]))
        parts[part]()
        print()


if __name__ == "__main__":
    main()
