"""Audits by exact privacy losses, without guesses: what is shared is Gaussian, or has a density.

Two tables that differ in one record give two Gaussians, and no test is better than the ratio of
their densities (Neyman and Pearson): δ(ε) has a closed form where the covariances agree, and a
certified bound within 1 % where they do not (:mod:`bdpvi.bayesian.accounting.gaussian_pairs`). The
neighbour is fitted again from its own rows; no bound of the library enters.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from bdpvi._ground.host import HOST
from bdpvi.audits import doors, minima, transcripts
from bdpvi.audits.doors import counting_inputs
from bdpvi.audits.found import Audit, Door
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs, summarise
from bdpvi.bayesian.fit import Fit, fit
from bdpvi.bayesian.mode.route import Mode
from bdpvi.bayesian.neighbours.route import Remove
from bdpvi.bayesian.optimum.route import Optimum
from bdpvi.bayesian.releases import release
from bdpvi.datasets.dataset import Dataset
from bdpvi.datasets.records import Held
from bdpvi.guides import Laplace, MeanField
from bdpvi.models.logistic import BayesianLogisticRegression, LogisticScores
from bdpvi.noise.keys import Key
from bdpvi.privacy import worst_case
from bdpvi.privacy.gaussian_dp import gaussian_distance, gaussian_epsilon
from bdpvi.privacy.solve import root
from bdpvi.regression.score_posterior import NormalPrior
from bdpvi.regression.score_release import ScorePlan, measure
from bdpvi.regression.score_rounds import Place, summed
from bdpvi.releases.exact_sums import SLACK
from bdpvi.synthesis.counts import count

Rows = tuple[Tensor, Tensor]
_FAR = 2.0
_FRESH = 100
"""Records that the Bayesian claim is audited with: no row of the table."""
_TRANSCRIPTS = 5
_MOST = 2000
"""Rows of the table that are fitted again and again."""
_OUTPUTS = 100_000
"""Of a network whose gradients are long."""
ROWS = 200
"""Rows of a table that are used in runs: a claim holds for each table, and noise hides small ones
no better than large ones."""


def audits(data: Dataset, epsilon: float, delta: float) -> list[tuple[str, Callable[[], Audit]]]:
    """Return every exact audit by its name.

    Args:
        data: encoded features of about unit size, and labels 0 and 1.
        epsilon, delta: what each release may cost.
    """
    some = first(data, ROWS)
    tables = {
        "guide draws": guide,
        "noisy scores, rounds": noisy_scores,
        "synthetic counts, exact": counts,
        "Bayesian draws": random_records,
    }
    steps: dict[str, Callable[[], Door]] = {
        "DPVI, steps": partial(doors.dpvi, some, epsilon, delta),
        "DP-SGD, steps": partial(doors.dp_sgd, some, epsilon, delta),
        "DP-SGD, long gradients": partial(doors.dp_sgd, some, epsilon, delta, _OUTPUTS),
        "federation, rounds": partial(doors.federation, epsilon, delta),
    }
    name, many = "objective perturbation, minima", first(data, _MOST)
    minimum = partial(doors.minimum, many, epsilon, delta)
    return [
        *((name, partial(one, name, data, epsilon, delta)) for name, one in tables.items()),
        *((name, partial(transcripts.audited, name, one, delta)) for name, one in steps.items()),
        (name, partial(minima.audited, name, minimum, delta)),
    ]


def extreme_records(features: int) -> Iterator[Rows]:
    """Yield records among which the worst is searched: ends of each axis, and of the diagonals."""
    axes = torch.eye(features, dtype=torch.float64) * _FAR
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64)
    ends = torch.cat([axes, torch.full((1, features), _FAR, dtype=torch.float64)])
    for x in ends:
        for sign in signs:
            for y in (0.0, 1.0):
                yield (sign * x)[None], torch.tensor([y], dtype=torch.float64)


def steep_table(rows: int = 500, features: int = 8, size: float = 0.02) -> Dataset:
    """Return a table on which a record moves a guide almost as far as its bound allows.

    Many small records move the mean, and hardly curve what is maximised.
    """
    sign = torch.ones(rows, dtype=torch.float64)
    sign[::2] = -1
    return Dataset(size * sign[:, None].expand(rows, features), (sign > 0).double())


def simulated(generator: torch.Generator, rows: int = 500, features: int = 3) -> Dataset:
    """Return records of a logistic regression with weights from -1 to 1."""
    x = torch.randn(rows, features, generator=generator, dtype=torch.float64, device=HOST)
    chance = torch.sigmoid(x @ torch.linspace(-1, 1, features, dtype=torch.float64))
    y = torch.rand(rows, generator=generator, dtype=torch.float64, device=HOST) < chance
    return Dataset(x, y.double())


def first(data: Dataset, rows: int) -> Dataset:
    """Return at most the first rows, with a ledger of their own."""
    return Dataset(data.x[:rows].double(), data.y[:rows].double())


def digest(data: Dataset) -> str:
    """Return the hash of the records, which tells whether stored runs are of the same."""
    content = hashlib.sha256(data.x.numpy().tobytes())
    content.update(data.y.numpy().tobytes())
    return content.hexdigest()


def guide(name: str, data: Dataset, epsilon: float, delta: float) -> Audit:
    """Audit the worst-case claim of a draw from a guide with public noise."""
    begun, spread = time.monotonic(), round(math.sqrt(0.1 * gaussian_distance(epsilon, delta)), 2)
    model = BayesianLogisticRegression(clip=1.0, prior_scale=spread, limit=2.0, intercept=True)

    def fitted(table: Dataset) -> Fit:
        near = Optimum(Remove(0))
        return fit(model, MeanField(model, noise_scale=0.1), table, neighbours=near, progress=False)

    found, claim = 0.0, 0.0
    for table in (first(data, _MOST), steep_table()):
        whole = fitted(table)
        receipt = release(whole, epsilon=epsilon, delta=delta).receipt
        claim, noise = receipt.bound.epsilon, receipt.noise_scale
        assert noise is not None
        for row in extreme_records(table.x.shape[1]):
            more = fitted(_and(table, row))
            moved = float((more.posterior.mean - whole.posterior.mean).norm())
            found = max(found, moved / noise)
    return Audit.exact(name, claim, gaussian_epsilon(found**2, delta), delta, begun)


def noisy_scores(name: str, data: Dataset, epsilon: float, delta: float) -> Audit:
    """Audit the rounds of noisy scores: the shift of all sums by a record, in their noise."""
    begun, k = time.monotonic(), data.x.shape[1] + 1
    plan = ScorePlan.of(LogisticScores(), k, gaussian_distance(epsilon, delta), float(len(data)))
    prior = NormalPrior(torch.zeros(k).double(), torch.eye(k).double())
    some = first(data, _MOST)
    rows = _design((some.x, some.y))
    found = 0.0
    for _ in range(_TRANSCRIPTS):
        beside = _Beside(rows, [_design(one) for one in extreme_records(k - 1)])
        measure(plan, beside, prior, Key.fresh())  # type: ignore[arg-type]
        noise = torch.tensor(plan.multipliers(), dtype=torch.float64)
        moved = torch.tensor(beside.moved, dtype=torch.float64) / noise[:, None]
        found = max(found, float(moved.square().sum(0).max()))
    claim = worst_case.epsilon(plan.events, delta)
    assert claim is not None
    return Audit.exact(name, claim.epsilon, gaussian_epsilon(found, delta), delta, begun)


@dataclass(frozen=True, eq=False)
class _Beside:
    """Records of which sums are needed, and how far each of some others would move each sum."""

    rows: Rows
    others: Sequence[Rows]
    moved: list[list[float]] = field(default_factory=list)
    in_memory: ClassVar[bool] = False  # sums are asked for

    def map(self, f: Callable[..., Rows], *public: Any) -> _Beside:
        others = [f(other, *public) for other in self.others]
        return _Beside(f(self.rows, *public), others, self.moved)

    def sum(self, f: Callable[..., Any], place: Place) -> Any:
        each = [(x, place.parts(x, y)) for x, y in self.others]
        self.moved.append(
            [float(summed(one, x).norm()) / one.bound / (1 + SLACK) for x, one in each]
        )
        return f(self.rows, place)


def counts(name: str, data: Dataset, epsilon: float, delta: float) -> Audit:
    """Audit noisy counts: the noise of one key is the same, so their difference is the record's."""
    begun = time.monotonic()
    codes, plan, canary = counting_inputs(data, epsilon, delta)
    more, tables = np.concatenate([codes, canary]), None
    while tables is None:  # what the noisy counts merge, they rarely merge otherwise
        key = Key.fresh()
        one, two = (count(Held(rows), plan, key) for rows in (codes, more))
        if all(np.array_equal(a, b) for a, b in zip(one.bins, two.bins, strict=True)):
            tables = [(a, b, one.deviation) for a, b in zip(one.single, two.single, strict=True)]
            tables += [(a, two.joint[at], one.deviations[at]) for at, a in one.joint.items()]
    total = sum(float(((a - b) ** 2).sum()) / noise**2 for a, b, noise in tables)
    claim = gaussian_epsilon(gaussian_distance(epsilon, delta) ** 2, delta)
    return Audit.exact(name, claim, gaussian_epsilon(total, delta), delta, begun)


def random_records(name: str, data: Dataset, epsilon: float, delta: float) -> Audit:
    """Audit the Bayesian claim of a draw: δ(ε), a mean over records that are not in the table.

    The worst record found by search is named too; the claim says nothing of it.
    """
    begun, number = time.monotonic(), min(_FRESH, len(data) // 2)
    plain = first(data, _MOST)
    kept = Dataset(plain.x[number:], plain.y[number:])
    known = AuditedDraw.of(kept, delta)
    random = known.pairs((plain.x[at, None], plain.y[at, None]) for at in range(number))
    worst = known.pairs(extreme_records(plain.x.shape[1]))
    found = max(mean_epsilon(worst.select(slice(at, at + 1)), delta) for at in range(len(worst)))
    made = Audit.exact(name, known.claim, mean_epsilon(random, delta), delta, begun)
    return replace(made, worst=found)


@dataclass(frozen=True)
class AuditedDraw:
    """A draw from the posterior of a table, and the Bayesian ε that is claimed of it.

    Attributes:
        data: the records.
        released: the Gaussian of the draw.
        claim: ε.
    """

    data: Dataset
    released: Distribution
    claim: float

    @classmethod
    def of(cls, data: Dataset, delta: float) -> AuditedDraw:
        """Fit a table, and make the draw."""
        whole = cls._fitted(data, None)
        bound = release(whole, delta=delta).cost.bayesian
        assert bound is not None
        return cls(data, whole.released, bound.epsilon)

    @staticmethod
    def _fitted(data: Dataset, neighbours: Mode | None) -> Fit:
        model = BayesianLogisticRegression()
        return fit(model, Laplace(model), data, neighbours=neighbours, progress=False)

    def pairs(self, rows: Iterable[Rows]) -> GaussianPairs:
        """Return the draw's law with each of some more records, against the one without."""
        made = [
            summarise(self._fitted(_and(self.data, row), Mode(Remove(3))).released, self.released)
            for row in rows
        ]
        return GaussianPairs(torch.cat([p.r for p in made]), torch.cat([p.b2 for p in made]))


def mean_epsilon(pairs: GaussianPairs, delta: float) -> float:
    """Return the least ε at which the mean δ of pairs is at most ``delta``, in both directions."""
    ways = (pairs, pairs.reverse())

    def excess(epsilon: float) -> float:
        most = max(float(way.hockey_stick(epsilon).mean()) for way in ways)
        return math.log(max(most, 1e-300) / delta)

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    return root(excess, 0.0, high)


def _and(data: Dataset, row: Rows) -> Dataset:
    return Dataset(torch.cat([data.x, row[0]]), torch.cat([data.y, row[1]]))


def _design(rows: Rows) -> Rows:
    x, y = rows
    return torch.cat([x.clamp(-_FAR, _FAR), x.new_ones(len(x), 1)], 1), y
