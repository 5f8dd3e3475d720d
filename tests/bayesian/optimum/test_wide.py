"""Wide tables on the optimum route: passes instead of a polynomial, and what they take."""

from __future__ import annotations

import math

import pytest
import torch
from simulated import logistic_data
from test_route import GUIDES, brute, optimum, outlier, problem, records

from bdpvi._ground.progress import silent
from bdpvi.bayesian.optimum import route
from bdpvi.bayesian.optimum.elbo import Objective, start
from bdpvi.bayesian.optimum.expansion import Expansion
from bdpvi.bayesian.optimum.newton import climb
from bdpvi.bayesian.optimum.route import Optimum
from bdpvi.bayesian.optimum.sizes import Size, memory, parameters_of, pays
from bdpvi.bayesian.optimum.weighted import Weighted
from bdpvi.guides import FullRank, GaussianGuide, MeanField


def no_search(*_: object) -> None:
    raise AssertionError("a search of its own for one neighbour")


@pytest.mark.parametrize(
    ("guide", "clip", "size"),
    [(MeanField, None, 1.0), (MeanField, 0.5, 6.0), (FullRank, 0.2, 1.0)],
)
def test_wide_tables_are_answered_by_passes_alone(
    guide: type[GaussianGuide], clip: float | None, size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = outlier(logistic_data(90, 40), 3, size)
    here = optimum(data, guide, clip)
    expansion = Expansion(here, 1e-12)
    assert not expansion.tensors
    monkeypatch.setattr(route, "search", no_search)
    moves = Optimum().moves(expansion, records(here), -1.0)
    distance = (moves.m.square().sum(0) + moves.y.square().sum(0)).sqrt()
    order = distance.argsort().tolist()
    for record in {order[0], order[45], order[-1], 3}:
        m, y = expansion.coordinates.locate(brute(data.without(record), guide, clip, here))
        away = torch.cat([moves.m[:, [record]] - m, moves.y[:, [record]] - y]).norm()
        assert float(away) <= float(moves.error[record])
        assert float(moves.error[record]) <= 3e-5 * max(float(distance[record]), expansion.typical)


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_newton_steps_solve_with_the_records_own_curvature(
    guide: type[GaussianGuide], sign: float
) -> None:
    here = optimum(logistic_data(60, 3), guide, None)
    expansion = Expansion(here, 1e-12)
    own = expansion.terms(records(here).select(slice(5)))
    generator = torch.Generator().manual_seed(0)
    gradient = torch.randn(len(expansion.jacobian), 5, generator=generator, dtype=torch.float64)
    step = own.newton(expansion.inverse, sign)(gradient)
    for i in range(5):
        u = torch.block_diag(own.x[:, [i]], own.e[:, [i]])
        d2, d3, d4 = own.slopes[2:5, i].tolist()
        curvature = u @ torch.tensor([[d2, d3], [d3, d4]], dtype=torch.float64) @ u.T
        exact = torch.linalg.solve(expansion.jacobian - sign * curvature, gradient[:, i])
        torch.testing.assert_close(step[:, i], exact, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("diagonal", [False, True])
def test_the_priors_bound_holds_and_is_close_where_there_is_little_else(diagonal: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x = 1e-3 * torch.randn(20, 3, generator=generator, dtype=torch.float64)
    data = Weighted(x, torch.full((20,), math.inf, dtype=torch.float64), torch.ones_like(x[:, 0]))
    here = climb(start(Objective(data, 4.0, diagonal)), 1e-13)[-1]
    expansion = Expansion(here)
    z = torch.randn(len(expansion.jacobian), 30, generator=generator, dtype=torch.float64)
    z *= torch.logspace(-6, -1, 30, dtype=torch.float64) / z.norm(dim=0)
    gradient = expansion.exact(z)[0] + expansion.gradient.unsqueeze(1) - expansion.fixed @ z
    gradient[3:] += expansion.coordinates.entropy(z[3:])
    # The optimum of these records is 0.
    ratio = expansion._by_prior(z, gradient.norm(dim=0)) / z.norm(dim=0)
    assert bool(((ratio >= 1) & (ratio < 6)).all())


def test_a_long_or_large_job_is_told_of_before_it_starts() -> None:
    with pytest.warns(RuntimeWarning, match=r"full-rank .* 100 variables .* mean-field guide"):
        Size.of(10**6, 10**6, 100, diagonal=False).check(100, diagonal=False, available=math.inf)


def test_what_does_not_fit_is_refused_before_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory() > 2**20
    monkeypatch.setattr(route, "memory", lambda: 1e6)
    monkeypatch.setattr(route, "climb", no_search)
    with pytest.raises(ValueError, match=r"GiB of memory, more than .* mean-field guide"):
        Optimum().train(problem(logistic_data(60, 3), FullRank, 0.5), silent)
    monkeypatch.undo()
    monkeypatch.setattr(route, "climb", no_search)
    with pytest.raises(ValueError, match=r"121 variables .* 7502 parameters.* mean-field guide"):
        Optimum().train(problem(logistic_data(10, 120), FullRank, 0.5), silent)


def test_a_polynomial_is_formed_where_it_pays() -> None:
    wide = parameters_of(500, diagonal=True)
    assert not pays(2, 500, wide, 2000)
    assert not pays(2, 500, wide, 10**9)  # a GiB
    assert pays(2, 9, 18, 4177)
    assert pays(3, 9, 18, 4177)
    assert not pays(3, 30, 60, 500)
