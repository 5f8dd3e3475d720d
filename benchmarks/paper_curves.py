"""Curves and remarks of the papers, computed anew; a minute of one core.

    python benchmarks/paper_curves.py [--only steps epochs draws activations students]

- *steps*: δ over training steps at a fixed ε (Triastcyn and Faltings, arXiv 1901.09697v1).
- *epochs*: ε over epochs, at the rate published for MNIST, and on scikit-learn's digits with the
  path that ran.
- *draws*: ε over the number of released draws: what a limit on generated samples would be.
- *activations*: noise on a critic's activations (the same authors, arXiv 1803.03148).
- *students*: accuracy of a model that learns from generated rows alone, without privacy.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from numpy.typing import NDArray
from printed import command
from published import RENYI_ORDERS
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.mixture import GaussianMixture
from studies import networks
from studies.accountants import unsound_generic_cost
from torch import Tensor, nn
from torch.nn import functional as F

import bdpvi
from bdpvi import guides
from bdpvi.networks.deep import DPSGDSettings, make_private
from bdpvi.privacy import Charge
from bdpvi.privacy.conversions import INTEGER_ORDERS, minimise_delta
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.gaussian_dp import gaussian_epsilon
from bdpvi.privacy.loss_distribution import composed
from bdpvi.privacy.sampled_moments import subsampled_gaussian_cost
from bdpvi.privacy.sampled_steps import PrivacyLossAccountant

DELTA = 1e-5
EPSILON, RATE, COUNTS = 0.5, 64 / 60_000, (1, 10, 100, 1000, 3000, 10_000, 30_000)
"""Of δ over steps; noise multiplier 1. The rate is the published one."""
MNIST_RATE, MNIST_NOISE, EPOCHS = 1024 / 60_000, 2.331, (1, 2, 4, 8, 12, 16, 20)
"""Of ε over epochs; the noise is that of docs/benchmarks/mnist-runs.txt."""
DRAWS = (1, 2, 5, 10, 20, 50, 100)
PASSES = (1, 100, 400)
ACTIVATION_NOISES = (0.5, 5.0, 50.0)
Rows = NDArray[np.float64]
Labels = NDArray[np.int64]
Maker = Callable[[Rows, Labels, int], tuple[Rows, Labels]]


def markdown(head: str, rows: Iterator[str]) -> str:
    """Return a table, with all rows found before its head is printed."""
    return "\n".join([f"| {head} |", "| --- " * (head.count("|") + 1) + "|", *rows])


def deltas(noise: float, rate: float, steps: int, epsilon: float) -> tuple[float, ...]:
    """Return δ at ε: by the generic accountant, which is no bound, by moments, Rényi DP and PLD.

    The moments accountant is min over λ of exp(c(λ) − λε) (Abadi et al. 2016, Theorem 2).

    >>> generic, *sound = deltas(0.5, 0.01, 100, 1.0)
    >>> generic < min(sound)
    True
    """

    def generic(order: Tensor) -> Tensor:
        return steps * unsound_generic_cost(1.0, noise, rate, order)

    def moments(order: Tensor) -> Tensor:
        return steps * subsampled_gaussian_cost(1.0, noise, rate, order).flatten()

    step = PoissonSampledDpEvent(rate, GaussianDpEvent(noise))
    renyi = RdpAccountant(RENYI_ORDERS).compose(step, steps).get_delta(epsilon)
    losses = composed([SampledGaussian(noise_multiplier=noise, rate=rate, steps=steps)])
    by_moments = (
        min(1.0, minimise_delta(cost, epsilon, INTEGER_ORDERS, rule="chernoff").value)
        for cost in (generic, moments)
    )
    return (*by_moments, float(renyi), float(losses.get_delta_for_epsilon(epsilon)))


def steps() -> str:
    """Return δ over training steps."""
    rows = (
        f"| {count:,} | " + " | ".join(f"{d:.3g}" for d in deltas(1.0, RATE, count, EPSILON)) + " |"
        for count in COUNTS
    )
    return f"δ over steps at ε = {EPSILON:g}; noise multiplier 1, q = 64/60000\n" + markdown(
        "steps | generic, no bound | moments | Rényi DP | PLD", rows
    )


def digits(epochs: int = 30) -> Iterator[tuple[int, float, float, float]]:
    """Train on scikit-learn's digits; yield epoch, worst-case ε, ε of the path, and accuracy."""
    data, module = networks._digits(0), networks._network(0)
    private = make_private(
        module, torch.optim.SGD(module.parameters(), lr=1.0), loss=F.cross_entropy,
        data=data.train, rate=0.1, max_grad_norm=1.0, noise_multiplier=2.0,
        settings=DPSGDSettings(panel=data.panel, seed=0, records=len(data.train[0])),
    )  # fmt: skip
    for epoch in range(1, epochs + 1):
        for _ in range(10):
            private.step()
        if epoch in (1, 2, 5, 10, 20, 30):
            path = private.cost(DELTA).path
            assert path is not None
            with torch.no_grad():
                right = float((module(data.test[0]).argmax(1) == data.test[1]).double().mean())
            yield epoch, private.worst_case(DELTA).epsilon, path.epsilon, right


def epochs() -> str:
    """Return ε over epochs."""

    def mnist() -> Iterator[str]:
        for epoch in EPOCHS:
            run = SampledGaussian(
                noise_multiplier=MNIST_NOISE, rate=MNIST_RATE, steps=round(epoch / MNIST_RATE)
            )
            found = PrivacyLossAccountant().together((run,), DELTA)
            step = PoissonSampledDpEvent(MNIST_RATE, GaussianDpEvent(MNIST_NOISE))
            renyi = RdpAccountant(RENYI_ORDERS).compose(step, run.steps).get_epsilon(DELTA)
            yield f"| {epoch} | {renyi:.3f} | {found:.3f} |"

    rows = (f"| {e} | {w:.3f} | {p:.3f} | {a:.3f} |" for e, w, p, a in digits())
    return (
        f"ε over epochs at δ = {DELTA:g}; noise multiplier {MNIST_NOISE:g}, q = 1024/60000, as for "
        "MNIST\n"
        + markdown("epoch | worst-case ε, Rényi DP | worst-case ε, PLD", mnist())
        + "\n\nDP-SGD on scikit-learn's digits: noise multiplier 2, q = 0.1, clip 1, one run. ε of "
        "the path guarantees nothing\n"
        + markdown("epoch | worst-case ε | ε of the path that ran | accuracy", rows)
    )


def draws() -> str:
    """Return ε over the number of released draws; generated rows of a noisy table cost nothing."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(20_000, 5, generator=g, dtype=torch.float64)
    y = (torch.rand(20_000, generator=g) < torch.sigmoid(x[:, 0] - 0.4)).double()
    model = bdpvi.BayesianLogisticRegression()
    fit = bdpvi.fit(model, guides.Laplace(model), (x, y), progress=False)

    def rows() -> Iterator[str]:
        for count in DRAWS:
            planned = Charge(draws=count, temperature=1.0)
            bayesian = bdpvi.cost(fit, delta=DELTA, planned=planned).bayesian
            assert bayesian is not None
            assert bayesian.certified
            gated = bdpvi.PosteriorDraws(rows=2e4, draws=count).needed(5)
            yield f"| {count} | {bayesian.epsilon:.3f} | {gated:.3f} |"

    return (
        f"ε over draws at δ = {DELTA:g}; 20,000 simulated records, 5 columns, temperature 1\n"
        + markdown("draws | Bayesian ε, certified | worst-case ε behind a gate", rows())
    )


def activation_price(noise: float, passes: int) -> float:
    """Return ε of a record that is replaced, whose activations are released with noise.

    Activations are at most C long, noise is ``noise`` · C, each pass shows one noisy copy: a
    Gaussian mechanism of distance 2 √passes / noise. A batch hides nothing, as each record has a
    row of its own.

    >>> round(activation_price(2.0, 1), 4)
    4.3772
    """
    return gaussian_epsilon(passes * (2 / noise) ** 2, DELTA)


def recovered(noise: float) -> float:
    """Return the cosine between a record and what a step's gradient says of it.

    A critic v·tanh(Wx + noise) takes one step on one record. The gradient of W is (…)xᵀ whatever
    the noise is, so its rows are multiples of x.
    """
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        x = torch.randn(64, dtype=torch.float64)
        first = nn.Linear(64, 16, bias=False).double()
        head = torch.randn(16, dtype=torch.float64)
        hidden = first(x)
        (head @ torch.tanh((hidden + noise * torch.randn_like(hidden)) / (1 + noise))).backward()
    assert first.weight.grad is not None
    row = torch.linalg.svd(first.weight.grad).Vh[0]
    return float((row @ x).abs() / x.norm())


def activations() -> str:
    """Return what noise on a critic's activations hides."""
    rows = (
        f"| {noise:g} | {recovered(noise):.6f} | "
        + " | ".join(f"{activation_price(noise, count):.3g}" for count in PASSES)
        + " |"
        for noise in ACTIVATION_NOISES
    )
    names = " | ".join(f"ε above it at pass {count}" for count in PASSES)
    return (
        f"Noise on a critic's activations, over their clip; δ = {DELTA:g}, to replace a record\n"
        + markdown(f"noise | cosine of record and gradient below it | {names}", rows)
    )


def generated(x: Rows, labels: Labels, seed: int, clients: int = 1) -> tuple[Rows, Labels]:
    """Return as many rows, made by a mixture of normals for each class and client."""
    found, classes = [], []
    owner = np.random.default_rng(seed).permutation(len(x)) % clients
    for client in range(clients):
        for label in np.unique(labels):
            own = x[(owner == client) & (labels == label)]
            if len(own) < 2:
                continue
            mixture = GaussianMixture(
                min(5, len(own) // 5 + 1), covariance_type="diag", reg_covar=1e-2, random_state=seed
            )
            found.append(mixture.fit(own).sample(len(own))[0])
            classes.append(np.full(len(own), label))
    return np.concatenate(found), np.concatenate(classes)


def students(seeds: int = 5) -> str:
    """Return accuracies of models that learn from real and from generated rows."""
    x, labels = load_digits(return_X_y=True)

    def accuracies(make: Maker) -> list[float]:
        result = []
        for seed in range(seeds):
            order = np.random.default_rng(seed).permutation(len(x))
            train, test = order[:1200], order[1200:]
            turn = PCA(30, random_state=seed).fit(x[train])
            made = make(turn.transform(x[train]), labels[train], seed)
            student = LogisticRegression(max_iter=2000).fit(*made)
            result.append(float(student.score(turn.transform(x[test]), labels[test])))
        return result

    makers: dict[str, Maker] = {
        "real": lambda x, y, _: (x, y),
        "one generator": lambda x, y, seed: generated(x, y, seed),
        "ten clients' generators": lambda x, y, seed: generated(x, y, seed, clients=10),
    }
    rows = (
        f"| {name} | {np.mean(found):.3f} ± {np.std(found, ddof=1) / math.sqrt(seeds):.3f} |"
        for name, make in makers.items()
        for found in [accuracies(make)]
    )
    return (
        f"Students of generated rows, scikit-learn's digits, {seeds} seeds; no privacy, no "
        "guarantee\n" + markdown("1,200 rows to learn from | accuracy on real rows", rows)
    )


PARTS: dict[str, Callable[[], str]] = {
    "steps": steps,
    "epochs": epochs,
    "draws": draws,
    "activations": activations,
    "students": students,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    print(command())
    for name in parser.parse_args().only:
        print("\n" + PARTS[name](), flush=True)


if __name__ == "__main__":
    main()
