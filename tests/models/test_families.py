"""What every likelihood promises: derivatives, bounds, expectations, range; a row for each.

Derivatives are compared with automatic ones, expectations with mpmath and with sums over a grid,
losses with the Pyro model. Contributions to noisy scores are in ``tests/regression``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import mpmath
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from bdpvi import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianMultinomialRegression,
    BayesianNegativeBinomialRegression,
    BayesianOrdinalRegression,
    BayesianPoissonRegression,
    BayesianSurvivalRegression,
    Dataset,
)
from bdpvi.models.family import Family
from bdpvi.models.kinds import NAMED, Known
from bdpvi.models.losses import LossBound, PredictorLoss
from bdpvi.models.mixed import MixedRegression
from bdpvi.models.multinomial import Softmax
from bdpvi.models.own import OwnRegression
from bdpvi.models.poisson import ContinuedPoisson
from bdpvi.models.traces import log_likelihood

float64 = torch.float64
INF = math.inf


@dataclass(frozen=True)
class Row:
    """A family with weighted records.

    Attributes:
        model: it.
        targets: some that fit, the least and the largest among them.
        odd: one that does not fit.
        rule: what its refusal says.
        curvature: ℓ″ at a predictor and a target, from its definition, by mpmath; None if the
            family has no expectations.
        slope: the mark of every record, if it is not the target.
    """

    model: Any
    targets: tuple[float, ...]
    odd: float
    rule: str
    curvature: Callable[[Any, float], Any] | None = None
    slope: float | None = None

    def mark(self, y: Tensor) -> Tensor:
        return y if self.slope is None else torch.full_like(y, self.slope)


def bell(a: Any) -> Any:
    """Return the second derivative of ln(1 + e^a)."""
    return mpmath.sech(a / 2) ** 2 / 4


def of_counts(largest: int, dispersion: float) -> Row:
    model = BayesianNegativeBinomialRegression.bounded(largest=largest, dispersion=dispersion)
    return Row(
        model,
        (0.0, 1.0, float(largest)),
        -1.0,
        "be whole numbers of at least 0",
        lambda a, y: (y + 1 / dispersion) * bell(a + mpmath.log(dispersion)),
    )


ROWS = {
    "logistic": Row(
        BayesianLogisticRegression(), (0.0, 1.0), 2.0, "be 0 or 1", lambda a, y: bell(a), INF
    ),
    "linear": Row(
        BayesianLinearRegression.bounded(largest=3.5, middle=1.5, error_scale=0.7),
        (-2.0, 0.0, 5.0),
        INF,
        "be finite",
        lambda a, y: 2 * bell((a - y) / 0.7) / 0.7**2,
    ),
    "poisson": Row(
        BayesianPoissonRegression.bounded(largest=6),
        (0.0, 1.0, 3.0, 6.0),
        0.5,
        "be whole numbers of at least 0",
        lambda a, y: 3 * mpmath.exp(-abs(a - mpmath.log(3))),
    ),
    "negative binomial": of_counts(6, 0.3),
    "few counts": of_counts(2, 0.1),
    "own": Row(
        OwnRegression(
            family=lambda a: dist.Binomial(5, logits=a),
            targets=(0, 5),
            whole=True,
            bound=LossBound(score=5.0, curvature=5 / 4, concordance=1.0),
        ),
        (0.0, 2.0, 5.0),
        0.5,
        "be whole numbers",
    ),
}
SMOOTH = [name for name, row in ROWS.items() if row.curvature]
OTHERS: dict[str, Any] = {
    "multinomial": BayesianMultinomialRegression.bounded(classes=3),
    "ordinal": BayesianOrdinalRegression(classes=3),
    "survival": BayesianSurvivalRegression(cuts=(1, 3)),
    "mixed": MixedRegression(of=BayesianPoissonRegression(largest=8), groups=(0, 1)),
}


def test_every_family_is_here() -> None:
    models = [row.model for row in ROWS.values()] + [*OTHERS.values()]
    assert {*map(type, models)} == {*get_args(Known), OwnRegression}
    kinds = [getattr(one, "kind", "logistic") for one in get_args(Known)]
    assert len({*kinds}) == len(kinds)
    assert [name for name, row in ROWS.items() if row.model.smooth] == SMOOTH
    words = {type(one).__name__: one.ratio for one in models if one.ratio}
    assert words == {
        "BayesianLogisticRegression": "odds ratio",
        "BayesianPoissonRegression": "rate ratio",
        "BayesianNegativeBinomialRegression": "rate ratio",
        "BayesianOrdinalRegression": "odds ratio",
        "BayesianSurvivalRegression": "hazard ratio",
        "MixedRegression": "rate ratio",
    }


def test_a_command_asks_for_what_each_needs() -> None:
    given = {"target_bounds": (0, 8), "largest": 8, "classes": ("a", "b", "c"), "cuts": (1, 2)}
    for family in NAMED.values():
        model = family.of_option(given[family.option])
        assert getattr(model, "classes", 3) == 3
        assert getattr(model, "largest", 8) in (4, 8)


@pytest.mark.parametrize("name", ROWS)
def test_bounds_hold_everywhere_and_are_reached(name: str) -> None:
    row = ROWS[name]
    loss: PredictorLoss = row.model.loss
    a = torch.linspace(-30, 30, 200_001, dtype=float64)
    bound, most = loss.bound, torch.zeros(3, dtype=float64)
    for target in row.targets:
        every = loss.slopes(a, torch.full_like(a, target), 5)
        first, second, third = every[:3]
        sharpest = torch.stack([first.abs().max(), second.max(), (third.abs() / second).max()])
        most = torch.maximum(most, sharpest)
        for k, slope in enumerate(every[2:], 1):
            assert bool((slope.abs() <= bound.concordance**k * second * (1 + 1e-9) + 1e-18).all())
        y = torch.tensor(target, dtype=float64)
        some = a[::997].clone().requires_grad_()
        (slope,) = torch.autograd.grad(loss.value(some, y).sum(), some, create_graph=True)
        assert torch.allclose(slope, loss.slopes(some, y, 1)[0], atol=1e-12)
        (bend,) = torch.autograd.grad(slope.sum(), some)
        assert torch.allclose(bend, loss.slopes(some, y, 2)[1], atol=1e-12)
    allowed = torch.tensor([bound.score, bound.curvature, bound.concordance], dtype=float64)
    assert bool((most <= allowed * (1 + 1e-9)).all())
    assert bool((most >= 0.98 * allowed).all())


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize(("mean", "deviation"), [(1.3, 0.03), (0.4, 0.6), (3.5, 2.5)])
def test_expectations_agree_with_mpmath(name: str, mean: float, deviation: float) -> None:
    row, y, one = ROWS[name], 1.0, torch.ones(1, dtype=float64)
    loss: PredictorLoss = row.model.loss
    rows = loss.smoothed(mean * one, deviation**2 * one, row.mark(y * one), 5)[:, 0].tolist()
    kink = (loss.kink - mean) / deviation
    corners = sorted({-10.0, -2.0, 0.0, 2.0, 10.0} | ({kink} if abs(kink) < 10 else set()))
    hermite: list[Callable[[Any], Any]] = [
        lambda t: 1,
        lambda t: t,
        lambda t: t**2 - 1,
        lambda t: t**3 - 3 * t,
    ]

    def expected(order: int) -> float:
        def value(t: Any) -> Any:
            assert row.curvature is not None
            at = row.curvature(mean + deviation * t, y)
            return at * hermite[order - 2](t) * mpmath.npdf(t)

        with mpmath.workdps(18):
            return -float(deviation**2 * mpmath.quad(value, corners))

    most = loss.bound.curvature * deviation**2
    for order in (2, 3, 4, 5):
        assert rows[order] == pytest.approx(expected(order), abs=1e-13 * most, rel=1e-11)


@pytest.mark.parametrize("name", SMOOTH)
def test_lower_orders_agree_with_sums_over_a_grid(name: str) -> None:
    """Value and slope follow from the loss itself, by the trapezoidal rule."""
    row, t = ROWS[name], torch.linspace(-10, 10, 40_001, dtype=float64)
    loss, y = row.model.loss, torch.tensor(row.targets).double()
    density = torch.exp(-t * t / 2) * (t[1] - t[0]) / math.sqrt(2 * math.pi)
    for mean, deviation in ((-2.0, 0.3), (1.5, 0.02), (1.0, 3.0), (40.0, 1.0), (-30.0, 6.0)):
        m, v = torch.full_like(y, mean), torch.full_like(y, deviation**2)
        rows = loss.smoothed(m, v, row.mark(y), 1)
        a, targets = mean + deviation * t, y.unsqueeze(1)
        value = (loss.value(a, targets) * density).sum(-1)
        slope = (loss.slopes(a, targets, 1)[0] * density).sum(-1)
        assert torch.allclose(rows[1], -deviation * slope, rtol=1e-7, atol=1e-9)
        gap = rows[0] + value  # a constant of each target
        still = loss.smoothed(0 * m, 0 * v + 1e-20, row.mark(y), 1)[0] + loss.value(0 * m, y)
        assert torch.allclose(gap, still, rtol=1e-7, atol=1e-6)


@pytest.mark.parametrize("name", SMOOTH)
def test_expectations_are_within_the_bound_of_all_orders(name: str) -> None:
    row, g = ROWS[name], torch.Generator().manual_seed(0)
    m, v = torch.randn(500, generator=g).double() * 3, torch.rand(500, generator=g).double() * 9
    y = torch.tensor(row.targets).double()[torch.randint(len(row.targets), (500,), generator=g)]
    rows = row.model.loss.smoothed(m, v, row.mark(y), 17)
    for order in range(2, 18):
        most = row.model.loss.bound.curvature * v * math.sqrt(math.factorial(order - 2))
        assert bool((rows[order].abs() <= most * (1 + 1e-9)).all())


@pytest.mark.parametrize("name", ROWS)
def test_the_pyro_model_has_the_weighted_loss(name: str) -> None:
    """Up to a constant of each target, also for a target beyond the bounds."""
    row, g = ROWS[name], torch.Generator().manual_seed(1)
    model: Family = row.model
    y = torch.tensor([*row.targets, 9.0 if name != "logistic" else 1.0]).double()
    x = 2 * torch.randn(len(y), 2, generator=g).double()
    here, there = torch.randn(2, 3, generator=g).double()
    rows, target = model.terms(x, y)

    def weighted(w: Tensor) -> Tensor:
        loss: Tensor = model.loss.value(rows @ w, target)
        return model.record_weights(rows) * loss

    change = log_likelihood(model, {"w": here}, x, y) - log_likelihood(model, {"w": there}, x, y)
    torch.testing.assert_close(-change, weighted(here) - weighted(there), rtol=1e-9, atol=1e-9)


SIGNED = "be times, those of censored records with a minus sign, and not 0"
OTHER_RANGES: dict[str, tuple[tuple[float, ...], float, str]] = {
    "survival": ((-3.0, -0.5, 3.0), 0.0, SIGNED),
    "mixed": ((0.0, 1.0, 8.0), 0.5, "be whole numbers of at least 0"),
}
OF_CLASSES = ((0.0, 1.0, 2.0), 3.0, "be whole numbers from 0 to 2")
RANGES = {name: (row.model, row.targets, row.odd, row.rule) for name, row in ROWS.items()} | {
    name: (model, *OTHER_RANGES.get(name, OF_CLASSES)) for name, model in OTHERS.items()
}


@pytest.mark.parametrize("name", RANGES)
def test_targets_fit_or_are_refused_with_the_rule(name: str) -> None:
    model, targets, odd, rule = RANGES[name]
    y = torch.tensor([*targets, odd]).double()
    assert model.takes(torch.zeros(len(y), 2), y).tolist() == [True] * len(targets) + [False]
    assert model.cut(y[:-1]).tolist() == [*targets]
    if math.isfinite(odd):  # of other numbers no table is made
        with pytest.raises(ValueError, match=f"y must {rule}, got {odd}"):
            model.check(Dataset(torch.zeros(len(y), 2).double(), y))


# --- what one of them has alone -------------------------------------------------------------------


def test_the_poisson_loss_is_poissons_up_to_its_kink() -> None:
    loss, y = ContinuedPoisson(6.0), torch.tensor(2.0, dtype=float64)
    below = torch.linspace(-3, math.log(3.0), 50, dtype=float64)
    assert torch.allclose(loss.value(below, y), below.exp() - y * below, atol=1e-12)
    at = torch.tensor(loss.kink, dtype=float64)
    for k in (1, 2):
        before, after = (loss.slopes(at + by, y, k)[-1] for by in (-1e-9, 1e-9))
        assert float(before) == pytest.approx(float(after), abs=1e-7)


def test_bounds_of_the_softmax() -> None:
    """Scores and eigenvalues in any direction, third derivatives over the predictors' range."""
    loss, g = Softmax(4), torch.Generator().manual_seed(0)
    b = 4 * torch.randn(2000, 3, generator=g, dtype=torch.float64)
    y = torch.randint(4, (2000,), generator=g)
    sizes = torch.linalg.vector_norm(loss.score(b, y), dim=1)
    assert 0.99 * loss.bound.score < float(sizes.max()) <= loss.bound.score
    v = torch.randn(2000, 3, generator=g, dtype=torch.float64)
    a = b @ loss.basis.T
    move = v @ loss.basis.T
    length = torch.linalg.vector_norm(move, dim=1)
    spans = move.max(1).values - move.min(1).values
    assert bool((spans <= loss.bound.concordance * length * (1 + 1e-12)).all())

    def curvature(t: Tensor, x: Tensor) -> Tensor:
        p = (a + t * move).softmax(1)
        mean = (p * x).sum(1, keepdim=True)
        return (p * (x - mean).square()).sum(1)

    x = torch.randn(2000, 3, generator=g, dtype=torch.float64) @ loss.basis.T
    zero = torch.zeros((), dtype=torch.float64)
    still = curvature(zero, x)
    assert float((still / x.square().sum(1)).max()) <= loss.bound.curvature
    step, most = 0.02, [0.0] * 4
    for at, sizes_of in enumerate((1, 2, 3, 4)):
        weights = [(-1.0) ** (sizes_of - j) * math.comb(sizes_of, j) for j in range(sizes_of + 1)]
        shifted = [curvature(zero + step * (j - sizes_of / 2), x) for j in range(sizes_of + 1)]
        terms = [c * one for c, one in zip(weights, shifted, strict=True)]
        of_t = torch.stack(terms).sum(0) / step**sizes_of
        most[at] = float((of_t.abs() / (still * spans**sizes_of)).max())
    assert most[0] <= 1.02
    assert most[1] <= 1.02
    assert most[2] <= 3.4
    assert most[3] <= 8.4
