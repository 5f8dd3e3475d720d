"""MNIST split among clients: accuracy against worst-case ε, and where a Bayesian ε is smaller.

    OMP_NUM_THREADS=1 python benchmarks/federated.py --data FOLDER [--runs RUNS] [--only TEXT]
    python benchmarks/federated_report.py RUNS > docs/benchmarks/federated.txt

Every finished run is a JSON file in RUNS, and is not repeated. The test images are used once, at
the end of a run. Settings were chosen on 10,000 of the training images by other runs: that choice
and the accuracies are not covered by ε. A seed determines only the clients' tables and initial
weights: noise and coins are secret, so accuracies vary from run to run.
"""

from __future__ import annotations

import argparse
import json
import math
import runpy
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from studies.estimators import known_population
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from bdpvi import datasets
from bdpvi._ground.types import Relation
from bdpvi.bayesian.accounting.accountant import Account, cost_of
from bdpvi.bayesian.accounting.settings import Accounting
from bdpvi.datasets import mnist
from bdpvi.federated.federated import Federation, Message
from bdpvi.federated.rounds import Rounds
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.norms import LEVELS, NormCounts
from bdpvi.privacy.sampled_steps import GaussianAccountant, PrivacyLossAccountant, calibrate

EXAMPLE = Path(__file__).parents[1] / "examples" / "mnist.py"
RECORDS, SHARDS, PANEL, CHUNK = 600, 2, 100, 100
"""Records and shards a client; clients in the panel; clients whose updates are found at a time."""
RECORD_DELTA = 1e-5

Data = tuple[Tensor, Tensor]
LocalWork = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From the common weights (D,) and tables (k, n, ...), (k, n) of k clients to updates (k, D)."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row: what is trained, how, and on whose data. Noise 0 is for none.

    With ``record_clip`` a client sends the sum of its records' gradients, each clipped to that;
    with ``own_epsilon`` it adds noise that protects its records even from the server.
    """

    name: str
    clients: int
    split: str
    model: str
    rounds: int
    delta: float
    clip: float
    epsilon: float | None = None
    noise: float | None = None
    client_rate: float = 1.0
    local_steps: int = 1
    local_rate: float = 1.0
    rate: float = 1.0
    momentum: float = 0.0
    record_clip: float | None = None
    own_epsilon: float | None = None
    seeds: int = 3

    @property
    def noise_multiplier(self) -> float:
        """z of the sum."""
        if self.noise is not None or self.epsilon is None:
            return self.noise or 0.0
        accountant = GaussianAccountant() if self.client_rate == 1 else PrivacyLossAccountant()
        return calibrate(
            accountant, epsilon=self.epsilon, delta=self.delta, rate=self.client_rate,
            steps=self.rounds,
        )  # fmt: skip


IID, SORTED = "i.i.d.", "shards"
PATTERN = Case(
    name="pattern", clients=100, split=IID, model="pixels", rounds=60, delta=1e-3, clip=1.0,
    noise=3.725, rate=1.5,
)  # fmt: skip
ROW = Case(
    name="row", clients=100, split=IID, model="orientations", rounds=30, delta=1e-3, epsilon=8.0,
    clip=3.0, local_steps=10, local_rate=10.0,
)  # fmt: skip
ROW_SORTED = replace(
    ROW, split=SORTED, rounds=100, clip=0.5, local_steps=1, local_rate=5.0, rate=2.0, momentum=0.5
)
MANY = replace(
    ROW, clients=10_000, epsilon=1.0, delta=1e-6, rounds=50, client_rate=0.02, local_steps=5,
    rate=1.5,
)  # fmt: skip
MANY_SORTED = replace(
    ROW_SORTED, clients=10_000, epsilon=1.0, delta=1e-6, client_rate=0.02, clip=1.0, local_steps=2
)
JOINT = replace(
    ROW_SORTED, name="joint", clip=60.0, record_clip=1.0, local_rate=1.0, rate=2.0 / 120, seeds=2
)
FIGURE = replace(
    ROW_SORTED, name="figure: client only", clients=1000, split=IID, epsilon=1.0, delta=1e-5,
    rounds=60, seeds=2,
)  # fmt: skip
JOINT_FIGURE = replace(
    FIGURE, name="figure: joint", clip=60.0, record_clip=1.0, local_rate=1.0, rate=2.0 / 120
)
CNN = Case(
    name="cnn", clients=1000, split=IID, model="cnn", rounds=100, delta=1e-5, epsilon=3.0,
    client_rate=0.2, clip=1.0, rate=0.2, seeds=1,
)  # fmt: skip
CASES = (
    PATTERN, replace(PATTERN, split=SORTED), replace(PATTERN, clip=0.3, rate=5.0),
    ROW,
    ROW_SORTED,
    replace(MANY, clients=1000, epsilon=3.0, delta=1e-5, client_rate=0.2),
    replace(MANY_SORTED, clients=1000, epsilon=3.0, delta=1e-5, client_rate=0.2),
    MANY,
    MANY_SORTED,
    *(replace(one, name="no noise", epsilon=None, seeds=1) for one in (ROW, ROW_SORTED)),
    replace(JOINT, split=IID, epsilon=2.0), replace(JOINT, epsilon=4.0),
    FIGURE, replace(FIGURE, name="figure: no noise", epsilon=None, seeds=1),
    JOINT_FIGURE, replace(JOINT_FIGURE, name="figure: split", own_epsilon=1.0),
    replace(CNN, clients=100, client_rate=1.0, epsilon=8.0, delta=1e-3, rounds=60, rate=0.1),
    CNN, replace(CNN, clients=10_000, client_rate=0.02, epsilon=1.0, delta=1e-6, rate=0.4),
)  # fmt: skip
"""The settings of "pattern" are those of a run whose pattern is to be found again; its learning
rate is the one at which norms fall as they did."""


def orientations(images: Tensor) -> Tensor:
    """Return histograms of gradient orientations, (n, 201), with a constant last.

    Eight orientations on 5 x 5 cells of 8 x 8 pixels that overlap, square roots, norm 1 (after
    Dalal and Triggs 2005); less a constant, times 2. No number in it was learned.
    """
    x = F.pad(images.view(-1, 1, 28, 28), (1, 1, 1, 1))
    across = (x[:, :, 1:-1, 2:] - x[:, :, 1:-1, :-2]) / 2
    down = (x[:, :, 2:, 1:-1] - x[:, :, :-2, 1:-1]) / 2
    turned = torch.atan2(down, across) / (2 * math.pi) * 8 - torch.arange(8).view(1, 8, 1, 1)
    apart = (turned.remainder(8) - 4).abs()  # 4 where the orientation is the bin's own
    energy = across.hypot(down) * (apart - 3).clamp(min=0)
    found = F.avg_pool2d(energy, 8, 5).flatten(1).sqrt()
    found = found / found.norm(dim=1, keepdim=True).clamp(min=1e-6)
    found = 2 * (found - 0.9 / math.sqrt(found.shape[1]))
    return torch.cat([found, torch.full((len(found), 1), 0.5)], 1)


def inputs(model: str, images: Tensor) -> Tensor:
    """Return what a model reads: all from public constants."""
    if model == "cnn":
        return images
    pixels = images * mnist.SCALE + mnist.MEAN
    if model == "pixels":
        return pixels.flatten(1)
    return torch.cat([orientations(part) for part in pixels.split(2000)])


def tables(labels: Tensor, clients: int, split: str, generator: torch.Generator) -> Tensor:
    """Return the records of each client, (clients, 600): disjoint among each 100 of them.

    In shards: images sorted by digit, cut into 200 pieces of 300, two a client. Beyond 100 clients
    records repeat.
    """
    found = []
    for _ in range(math.ceil(clients / 100)):
        order = torch.randperm(len(labels), generator=generator)
        if split == SORTED:
            order = order[labels[order].argsort(stable=True)].view(100 * SHARDS, -1)
            order = order[torch.randperm(len(order), generator=generator)]
        found.append(order.reshape(100, RECORDS))
    return torch.cat(found)[:clients]


def softmax_regression(case: Case) -> LocalWork:
    """Return full local gradient steps on a linear classifier, for many clients at a time."""

    def slope(x: Tensor, wrong: Tensor) -> Tensor:
        # Three times as fast as with the other factor transposed.
        return (wrong.transpose(1, 2) @ x).transpose(1, 2)

    def updates(weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
        targets = F.one_hot(y, 10).float()
        start = weights.view(-1, 10)
        local = start.expand(len(x), *start.shape)
        for _ in range(case.local_steps):
            wrong = torch.softmax(x @ local, -1) - targets
            if case.record_clip is not None:  # a record's gradient is x ⊗ wrong
                norms = x.norm(dim=-1) * wrong.norm(dim=-1)
                wrong = wrong * (case.record_clip / norms).clamp(max=1)[..., None]
                return -slope(x, wrong).flatten(1)
            local = local - case.local_rate / x.shape[1] * slope(x, wrong)
        result: Tensor = (local - start).flatten(1)
        return result

    return updates


def network(case: Case, module: torch.nn.Module) -> LocalWork:
    """Return one gradient step of a module on 50 random records of each client."""
    shapes = {name: weight.shape for name, weight in module.named_parameters()}

    def loss(weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
        parts = weights.split([shape.numel() for shape in shapes.values()])
        named = {name: part.view(shapes[name]) for name, part in zip(shapes, parts, strict=True)}
        return F.cross_entropy(functional_call(module, named, (x,)), y)

    each = vmap(grad(loss), in_dims=(None, 0, 0))

    def updates(weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
        some = torch.randperm(x.shape[1])[:50]
        found: Tensor = each(weights, x[:, some], y[:, some])
        return -case.local_rate * found

    return updates


class Paid:
    """What clients paid on the path that ran, to add or remove one and to replace one.

    Args:
        clients: m; replaced in disjoint pairs.
    """

    def __init__(self, clients: int) -> None:
        self.alone = NormCounts.none(torch.arange(clients))
        self.pairs = NormCounts.none(torch.arange(clients // 2), 2 * LEVELS)
        self.apart: list[float] = []
        self.norms: list[float] = []

    def add(self, updates: Tensor, clip: float) -> None:
        """Count a round, of these clients' updates (m, D)."""
        scaled = updates.double() / clip
        scaled = scaled / scaled.norm(dim=1, keepdim=True).clamp(min=1)
        norms, apart = scaled.norm(dim=1), (scaled[0::2] - scaled[1::2]).norm(dim=1)
        self.alone = self.alone.add(norms)
        self.pairs = self.pairs.add(apart)
        self.norms.append(float(norms.mean()))
        self.apart.append(float(apart.mean()))


def train(case: Case, data: Data, seed: int) -> tuple[Tensor, Paid, Federation | None, float]:
    """Run all rounds; return the weights, what clients paid, the charges, and seconds a round."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    everybody = case.client_rate == 1 and case.clients == PANEL
    others = 0 if everybody else PANEL
    owned = tables(data[1], case.clients + others, case.split, generator)
    if case.model == "cnn":
        module = runpy.run_path(str(EXAMPLE))["network"]()
        weights = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
        work = network(case, module)
    else:
        weights, work = torch.zeros(data[0].shape[1] * 10), softmax_regression(case)

    def updates(clients: Sequence[int]) -> Tensor:
        parts = [owned[list(clients[i : i + CHUNK])] for i in range(0, len(clients), CHUNK)]
        found = [work(weights, data[0][part], data[1][part]) for part in parts]
        return torch.cat(found) if found else weights.new_zeros(0, len(weights))

    z, path, federation = case.noise_multiplier, Paid(PANEL), None
    if z:
        settings = Rounds(
            clients=case.clients, size=len(weights), clip=case.clip, noise_multiplier=z,
            client_rate=case.client_rate, record_clip=case.record_clip,
            record_rate=None if case.record_clip is None else 1.0,
        )  # fmt: skip
        federation = Federation(settings)
    panel = range(case.clients, case.clients + PANEL)
    speed, begun = torch.zeros_like(weights), time.monotonic()
    for _ in range(case.rounds):
        if federation is None:
            total = updates(range(case.clients)).mean(0)
        else:
            number = federation.next_round
            asked = federation.sampled(number)
            sent = updates(asked)
            if case.own_epsilon is None:
                path.add(sent if everybody else updates(panel), case.clip)
            else:
                sent = sent + own_noise(case) * torch.randn(sent.shape)
            answers = [Message(c, number, one) for c, one in zip(asked, sent, strict=True)]
            released = federation.aggregate(number, answers).update
            assert released is not None
            total = released.float()
        speed = case.momentum * speed + total
        weights = weights + case.rate * speed
    return weights, path, federation, (time.monotonic() - begun) / case.rounds


def own_noise(case: Case) -> float:
    """Return the noise with which a client's own messages cost each of its records own_epsilon."""
    return (case.record_clip or 0.0) * calibrate(
        GaussianAccountant(), epsilon=case.own_epsilon or 0.0, delta=RECORD_DELTA, rate=1.0,
        steps=case.rounds,
    )  # fmt: skip


def charged(
    norms: NormCounts, z: float, q: float, relation: Relation = Relation.ADD_OR_REMOVE
) -> SampledGaussian:
    """Return the rounds as an event."""
    return SampledGaussian(
        noise_multiplier=z, rate=q, steps=norms.steps, relation=relation, unit="client", norms=norms
    )


def prices(event: SampledGaussian, delta: float) -> dict[str, float | None]:
    """Return worst-case ε, and ε on the path that ran: a diagnostic, no guarantee.

    By the hockey-stick divergence with a certified mean (betting); by moments with Student's t, and
    with the plain mean, which is right where the clients counted are all there are.
    """
    by_losses = Account([event], Accounting(conversion="hockey-stick", failure_probability=1e-12))
    by_moments = Accounting(failure_probability=1e-6 if delta > 1e-4 else 1e-12)
    plain = Account([event], Accounting(failure_probability=1e-12), estimator=known_population)
    found = by_losses.cost(delta)
    paths = (found.path, cost_of([event], delta, by_moments).path, plain.cost(delta).path)
    names = ("path, hockey-stick", "path, moments", "path, moments, plain mean")
    epsilons = [math.inf if path is None else path.epsilon for path in paths]
    own = by_losses.per_record(delta)
    return {
        "worst case": None if found.worst_case is None else found.worst_case.epsilon,
        **dict(zip(names, epsilons, strict=True)),
        "median client": float(own.median()),
    }


def accuracy(case: Case, weights: Tensor, test: Data) -> float:
    """Return the fraction of images whose digit is found."""
    if case.model == "cnn":
        module = runpy.run_path(str(EXAMPLE))["network"]()
        torch.nn.utils.vector_to_parameters(weights, module.parameters())
        with torch.no_grad():
            found = torch.cat([module(part) for part in test[0].split(1000)])
    else:
        found = test[0] @ weights.view(-1, 10)
    return float((found.argmax(1) == test[1]).double().mean())


def run(case: Case, seed: int, train_on: Data, test: Data) -> dict[str, object]:
    """Return all that a row shows, as JSON types."""
    weights, path, federation, seconds = train(case, train_on, seed)
    result: dict[str, object] = {
        "case": asdict(case), "seed": seed, "accuracy": accuracy(case, weights, test),
        "weights": len(weights), "z": case.noise_multiplier, "seconds a round": seconds,
    }  # fmt: skip
    if federation is None:
        return result
    z, q = case.noise_multiplier, case.client_rate
    worst = federation.worst_case(case.delta)
    result["worst case"] = worst.epsilon
    if case.record_clip is not None:
        result["record"] = federation.worst_case(RECORD_DELTA, unit="record").epsilon
    if case.own_epsilon:
        return result
    result["norms"] = path.norms[0], path.norms[-1]
    result["add or remove"] = prices(charged(path.alone, z, q), case.delta)
    if q == 1:
        event = charged(path.pairs, z, q, Relation.REPLACE)
        result["apart"] = path.apart[0], path.apart[-1]
        result["replace"] = prices(event, case.delta)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", help="folder of the four gzipped IDX files")
    parser.add_argument("--runs", type=Path, default=Path("federated-runs"))
    parser.add_argument("--only", default="", help="do the cases whose name begins so")
    given = parser.parse_args()
    given.runs.mkdir(parents=True, exist_ok=True)
    (x, y), (test_x, test_y) = datasets.mnist.load_mnist(given.data)
    ready: dict[str, tuple[Data, Data]] = {}
    chosen = [case for case in CASES if case.name.startswith(given.only)]
    for case, seed in [(c, s) for s in range(3) for c in chosen if s < c.seeds]:
        named = f"{case.name}-{case.clients}-{case.split}-{case.clip:g}-{seed}.json"
        kept = given.runs / named.replace(" ", "_").replace(":", "")
        if kept.exists():
            continue
        if case.model not in ready:
            parts = inputs(case.model, x), inputs(case.model, test_x)
            ready[case.model] = (parts[0], y), (parts[1], test_y)
        found = run(case, seed, *ready[case.model])
        kept.write_text(json.dumps(found, indent=1), encoding="utf-8")
        print(
            kept.name, f"{found['accuracy']:.4f}", f"{found['seconds a round']:.2f} s", flush=True
        )


if __name__ == "__main__":
    main()
