"""The two bounds on what any record changes: rows within their box, and the third derivative."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.optimize import minimize
from test_ranges import MODELS, table
from torch import Tensor

import bdpvi
from bdpvi import BayesianLogisticRegression, Dataset, guides
from bdpvi.bayesian.mode.classes import weigh
from bdpvi.bayesian.mode.expansion import ModeExpansion
from bdpvi.bayesian.mode.influence import _change, of_mode
from bdpvi.bayesian.mode.objective import EXACT, LogPosterior, Peak, search_mode
from bdpvi.bayesian.optimum.box import widest
from bdpvi.models.family import within

LOGISTIC = BayesianLogisticRegression(one_hot=((1, 2, 3),))
CLASSES = replace(MODELS["multinomial"], levels=((1, 2, 3),))


def covariance(n: int, seed: int) -> Tensor:
    """Return a covariance with a long weak axis."""
    g = torch.Generator().manual_seed(seed)
    axes = torch.linalg.qr(torch.randn(n, n, generator=g).double())[0]
    result: Tensor = (axes * torch.logspace(0, -3, n).double()) @ axes.T
    return result


@pytest.mark.parametrize(("model", "predictors"), [(LOGISTIC, 1), (CLASSES, 2)])
def test_no_row_of_the_box_is_longer(model: Any, predictors: int) -> None:
    """The bound is reached; for several predictors it leaves out that rows are v ⊗ z."""
    ratios = [longest_over_bound(model, predictors, seed) for seed in range(6)]
    assert max(ratios) <= 1 + 1e-9
    assert max(ratios) >= (0.999 if predictors == 1 else 0.8)


def longest_over_bound(model: Any, predictors: int, seed: int) -> float:
    """Return the longest row over its bound: of rows at corners, in categories, by search."""
    d, n = 5, 6
    a = covariance(n * predictors, seed)
    bound = widest(model, a)
    assert bound <= float(torch.linalg.eigvalsh(a)[-1]) * (1 + 1e-9)
    g = torch.Generator().manual_seed(seed)

    def length(x: Tensor, v: Tensor) -> Tensor:
        z = torch.cat([within(x, 2.0, [torch.tensor([1, 2, 3])]), torch.full((len(x), 1), 2.0)], 1)
        row = (z[:, :, None] * v[:, None, :]).flatten(1)
        result: Tensor = ((row @ a) * row).sum(1) / row.square().sum(1)
        return result

    x = 2 * torch.randn(4000, d, generator=g).sign().double() * torch.rand(4000, 1, generator=g)
    v = torch.nn.functional.normalize(torch.randn(4000, predictors, generator=g).double(), dim=1)
    found = length(x, v)
    assert float(found.max()) <= bound
    best = 0.0
    for at in found.argsort(descending=True)[:8]:
        start = torch.cat([x[at], v[at]]).numpy()

        def less(flat: Any) -> tuple[float, Any]:
            both = torch.tensor(flat, requires_grad=True)
            value = -length(both[None, :d], both[None, d:])[0]
            value.backward()
            assert both.grad is not None
            return float(value.detach()), both.grad.numpy()

        ends = [(-2.0, 2.0)] * d + [(-1.0, 1.0)] * predictors
        best = max(best, -minimize(less, start, jac=True, bounds=ends).fun)
    return best / bound


def test_without_a_box_the_longest_axis_counts() -> None:
    unlimited = replace(MODELS["poisson"], limit=None, prior_scale=0.2, weight_norm=1.0)
    assert widest(unlimited, covariance(4, 0)) == pytest.approx(1.0)


@pytest.mark.parametrize("rows", [12, 200])
@pytest.mark.parametrize("name", [*MODELS, "logistic"])
def test_no_shift_changes_the_curvature_more(name: str, rows: int) -> None:
    """F″ after random and worst shifts of a length, by automatic differentiation."""
    if name == "logistic":
        model: Any = BayesianLogisticRegression()
        data = table("poisson", rows, 2, 3)
        data = Dataset(data.x, (data.y > 1).double())
    else:
        model, data = MODELS[name], table(name, rows, 2, 3)
    peak = mode(model, data)
    expansion = ModeExpansion.around(peak, torch.zeros(1).double())
    smooth = math.isinf(peak.none.loss.kink)
    third = expansion.bends[0] if smooth else None
    g, closest = torch.Generator().manual_seed(0), 0.0
    for t in (0.02, 0.2, 0.5):
        bound = _change(peak, third, t)
        for _ in range(6):
            away = torch.randn(len(peak.point), generator=g).double()
            moved = peak.point + peak.root @ (t * away / away.norm())
            change = float((curvatures(peak, moved) - 1).abs().max())
            assert change <= bound + 1e-9
            closest = max(closest, change / bound)
    assert closest > 0.3


def test_rows_at_a_kink_change_it_too() -> None:
    """Counts of mean Y/2 put every row of a narrow table at the kink."""
    g = torch.Generator().manual_seed(0)
    x = 0.01 * torch.randn(400, 1, generator=g).double()
    model, data = MODELS["poisson"], Dataset(x, 1.0 + 2.05 * (torch.arange(400) % 2))
    peak, closest = mode(model, data), 0.0
    for t in (0.3, 0.6):
        assert len(peak.posterior.near(peak.point, peak.root, t)) > 200
        bound = _change(peak, None, t)
        for axis in torch.eye(2).double():
            for side in (t, -t):
                moved = peak.point + side * peak.root @ axis
                change = float((curvatures(peak, moved) - 1).abs().max())
                assert change <= bound
                closest = max(closest, change / bound)
    assert closest > 0.5


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_of_one_weight_the_change_is_its_bound(side: float) -> None:
    model = BayesianLogisticRegression(intercept=False)
    x = torch.linspace(0.5, 2, 40, dtype=torch.float64)[:, None]
    peak = mode(model, Dataset(x, torch.ones(40)))
    third = ModeExpansion.around(peak, torch.zeros(1).double()).bends[0]
    t = side * 1e-3
    change = abs(float(curvatures(peak, peak.point + t * peak.root[0])[0]) - 1)
    assert change == pytest.approx(_change(peak, third, abs(t)), rel=3e-3)


@pytest.mark.parametrize("added", [True, False])
def test_the_influence_by_hand(added: bool) -> None:
    data = table("poisson", 300, 2, 3)
    data, model = Dataset(data.x, (data.y > 1).double()), BayesianLogisticRegression()
    peak = mode(model, data)
    third = ModeExpansion.around(peak, torch.zeros(1).double()).bends[0]
    found = of_mode(model, peak, third, added=added)
    assert found is not None
    limit, size = model.weighted_norm(3), widest(model, peak.root @ peak.root.T)
    share, pull = limit * model.longest(3) * size / 4, limit * size**0.5 + 10 * EXACT
    h = peak.longest
    shift = -math.log(1 - h * pull / (1 if added else 1 - share)) / h
    change = _change(peak, third, shift)
    assert found.shift == pytest.approx(shift, rel=1e-9)
    assert found.spread == pytest.approx(-math.log(1 - change), rel=1e-9)
    assert found.spread < h * shift
    assert found.share == pytest.approx(share if added else share / (1 - change), rel=1e-9)


def curvatures(peak: Peak, point: Tensor) -> Tensor:
    """Return the eigenvalues of F″ at a point, in units of F″ at the mode."""
    away = torch.linalg.solve(peak.root, peak.posterior.at(point).root)
    result: Tensor = torch.linalg.svdvals(away) ** -2
    return result


def mode(model: Any, data: Dataset) -> Peak:
    """Return the mode of a table."""
    records = data.parts.map(weigh, model)
    n = weigh((data.x, data.y), model).directions(_zeros(model, data)[1]).shape[2]
    centre = torch.zeros(n, dtype=torch.float64)
    columns = model.design(data.x).shape[1]
    return search_mode(LogPosterior(records, len(data), model.precision(columns), centre), centre)[
        -1
    ]


def _zeros(model: Any, data: Dataset) -> tuple[Tensor, Tensor]:
    n = model.design(data.x).shape[1] * (2 if getattr(model, "classes", 0) == 3 else 1)
    return torch.zeros(n).double(), torch.eye(n).double()


def test_a_guide_with_a_law_of_its_own_has_no_certificate() -> None:
    class Narrow(guides.Laplace):
        pass

    data, model = Dataset(torch.randn(30, 2), torch.arange(30) % 2.0), BayesianLogisticRegression()
    with pytest.raises(ValueError, match="Laplace, and no subclass"):
        bdpvi.fit(model, Narrow(model), data, progress=False)
