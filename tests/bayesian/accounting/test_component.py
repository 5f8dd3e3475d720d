"""The accountant by itself: what it charges is what the library's own events cost."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from simulated import logistic_data
from torch import Tensor
from torch.distributions import Independent, LowRankMultivariateNormal, MultivariateNormal, Normal

import bdpvi
from bdpvi import BayesianAccountant, guides
from bdpvi._ground.types import Scope
from bdpvi.bayesian.accounting.accountant import cost_of
from bdpvi.bayesian.accounting.draws import GuideDraws
from bdpvi.bayesian.accounting.gaussian_pairs import summarise
from bdpvi.bayesian.accounting.panel import Panel
from bdpvi.privacy import Assumption, Influence
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.norms import NormCounts

M, D = 300, 2


def conjugate(rows: int = M) -> tuple[MultivariateNormal, Tensor, Tensor, Influence]:
    """Return a linear regression's posterior, its means and covariances without each row, and how
    far any row within ‖x‖ ≤ 1, |y − xᵀm| ≤ 2 moves it."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, D, generator=generator, dtype=torch.float64)
    x = x / x.norm(dim=1, keepdim=True).clamp(min=1)
    y = x.sum(1) + torch.randn(rows, generator=generator, dtype=torch.float64).clamp(-1.5, 1.5)
    precision = 10 * torch.eye(D).double() + x.T @ x
    mean = torch.linalg.solve(precision, x.T @ y)
    without = precision - x[:, :, None] * x[:, None, :]
    means = torch.linalg.solve(without, (x.T @ y - x * y[:, None]).unsqueeze(2)).squeeze(2)
    least = float(torch.linalg.eigvalsh(precision)[0])
    share = 1 / least
    bound = Influence(
        added=False, columns=D, shift=2 / math.sqrt(least) / (1 - share), spread=0.0, share=share
    )
    posterior = MultivariateNormal(mean, precision_matrix=precision)
    return posterior, means, torch.linalg.inv(without), bound


def added(accountant: BayesianAccountant, **more: Any) -> BayesianAccountant:
    posterior, means, covariances, bound = conjugate()
    accountant.add(posterior, (means, covariances), **{"influence": bound, **more})
    return accountant


@pytest.mark.usefixtures("quick")
def test_it_is_the_cost_of_the_same_events_and_a_certificate() -> None:
    posterior, means, covariances, bound = conjugate()
    accountant = added(BayesianAccountant(), draws=2, temperature=1.5)
    pairs = summarise(posterior, MultivariateNormal(means, covariances))
    panel = Panel("remove", torch.arange(M), pairs, influence=bound)
    expected = cost_of([GuideDraws((panel,), 2, 1.5)], 1e-2).bayesian
    found = accountant.cost(1e-2).bayesian
    assert expected is not None
    assert found is not None
    assert found.epsilon == expected.epsilon
    assert found.evidence is not None
    assert found.evidence.estimator == "betting"
    assert found.reliable
    for one in (pairs, pairs.reverse()):  # one draw is below what two cost
        assert float(one.hockey_stick(found.epsilon, 1.5).mean()) < 1e-2
    found_delta = accountant.account.get_delta(found.epsilon, near=1e-2)
    assert found_delta <= 1e-2 * (1 + 1e-9)


@pytest.mark.parametrize("form", ["torch", "pyro", "pair", "list", "of guides", "one covariance"])
def test_gaussians_of_any_origin_cost_the_same(form: str) -> None:
    mean, spread = torch.tensor([0.5, -1.0]).double(), torch.tensor([0.2, 0.4]).double()
    means = mean + 0.01 * torch.randn(40, 2, generator=torch.Generator().manual_seed(1)).double()
    diagonal = torch.diag(spread.square())
    forms: dict[str, tuple[Any, Any]] = {
        "torch": (Independent(Normal(mean, spread), 1), Independent(Normal(means, spread), 1)),
        "pyro": (dist.Normal(mean, spread).to_event(1), dist.MultivariateNormal(means, diagonal)),
        "pair": ((mean, diagonal), (means, diagonal.expand(40, 2, 2))),
        "one covariance": ((mean.float(), diagonal), (means, diagonal)),
        "list": (
            LowRankMultivariateNormal(mean, torch.zeros(2, 1).double(), spread.square()),
            [(one, diagonal) for one in means],
        ),
        "of guides": (guide(mean, spread), [guide(one, spread) for one in means]),
    }
    accountant = BayesianAccountant()
    p, q = forms[form]
    accountant.add(p, q)
    expected = ((means - mean) / spread).square().sum(1)
    pairs = accountant.account.events[0][0].pairs("remove D‖D′")  # type: ignore[attr-defined]
    torch.testing.assert_close(pairs.b2.sum(1), expected, rtol=1e-6, atol=1e-12)
    assert pairs.b2.device.type == "cpu"


def guide(mean: Tensor, scale: Tensor) -> guides.MeanField:
    made = guides.MeanField(lambda x, y=None: None)
    made.parameters = {"loc": mean.requires_grad_(), "scale": scale}
    return made


@pytest.mark.usefixtures("quick")
def test_a_fits_own_panel_has_the_same_price() -> None:
    """The records' neighbours as a Laplace fit found them, handed in as Gaussians."""
    model = bdpvi.BayesianLogisticRegression()
    data = logistic_data(400, 2)
    fit = bdpvi.fit(model, guides.Laplace(model), data, progress=False)
    panel = fit.panels[0]
    one = BayesianAccountant()
    # A pair has a standard Gaussian in the place of the fit, and r the precisions of the others.
    r, b = panel.pairs.r, (panel.pairs.b2 / panel.pairs.r).sqrt()
    standard = torch.zeros(r.shape[1]).double()
    others = Independent(Normal(b, r.rsqrt()), 1)
    one.add((standard, torch.eye(r.shape[1])), others, influence=panel.influence)
    expected = cost_of([GuideDraws((replace(panel, error=None),))], 1e-2).bayesian
    assert expected is not None
    assert one.get_epsilon(1e-2) == pytest.approx(expected.epsilon, rel=1e-9)


NORMS = torch.rand(50, generator=torch.Generator().manual_seed(3))


def test_steps_are_counted_and_merged() -> None:
    one, two = BayesianAccountant(), BayesianAccountant()
    for _ in range(10):
        one.step(2.0, 0.05, NORMS, scope="static")
    one.step(3.0, 0.05, NORMS, steps=5, scope="static")
    counts = NormCounts.none(torch.arange(50), scope=Scope.STATIC).add(NORMS, steps=10)
    two.step(2.0, 0.05, counts)
    two.step(3.0, 0.05, NORMS, 5, scope=Scope.STATIC)
    assert len(one.account.events) == 2
    expected = cost_of(
        [
            SampledGaussian(noise_multiplier=2.0, rate=0.05, steps=10, norms=counts),
            SampledGaussian(
                noise_multiplier=3.0,
                rate=0.05,
                steps=5,
                norms=NormCounts.none(torch.arange(50), scope=Scope.STATIC).add(NORMS, 5),
            ),
        ],
        1e-3,
    )
    for accountant in (one, two):
        found = accountant.cost(1e-3)
        assert found == expected.each(
            lambda one: one.assuming(Assumption.GIVEN_FEATURES, Assumption.POISSON_BATCHES)
        )
        assert found.bayesian is not None
        assert accountant.get_epsilon(1e-3) == found.bayesian.epsilon


def test_costs_of_a_path_are_no_bayesian_epsilon() -> None:
    accountant = BayesianAccountant()
    accountant.step(2.0, 0.05, NORMS, steps=10)
    cost = accountant.cost(1e-3)
    assert cost.bayesian is None
    assert cost.path is not None
    assert cost.worst_case is not None
    with pytest.raises(ValueError, match="on a training path, so there is no Bayesian"):
        accountant.get_epsilon(1e-3)
    with pytest.raises(ValueError, match="path"):
        accountant.get_delta(1.0)


@pytest.mark.parametrize("kind", ["remove", "add"])
def test_draws_and_steps_together_go_by_orders(kind: str) -> None:
    means = torch.linspace(-0.05, 0.05, 2000).double().unsqueeze(1)
    norms = torch.linspace(0, 0.5, 2000)
    both = BayesianAccountant(kind=kind)
    both.step(4.0, 0.01, norms, steps=100, scope="static")
    both.add((torch.zeros(1), torch.eye(1)), (means, torch.eye(1)), draws=3)
    found = both.cost(1e-2)
    assert found.worst_case is None
    assert found.bayesian is not None
    assert found.bayesian.by.startswith("cks")
    assert found.bayesian.relation == kind
    order = torch.tensor([5.0]).double()
    draws = 3 * 5 * 6 / 2 * means.square().T
    steps = BayesianAccountant()
    steps.step(4.0, 0.01, norms, steps=100, scope="static")
    alone = steps.account.each("add-or-remove D‖D′", order)
    together = both.account.each(f"{kind} D‖D′", order)
    torch.testing.assert_close(together, draws + alone, rtol=1e-9, atol=1e-12)


def test_an_estimate_that_is_not_reliable_is_no_bare_number() -> None:
    means = 0.01 * torch.ones(50, 1).double()
    means[0] = 3.0
    accountant = BayesianAccountant()
    accountant.add((torch.zeros(1), torch.eye(1)), (means, torch.eye(1)))
    found = accountant.cost(1e-3).bayesian
    assert found is not None
    assert not found.reliable
    with pytest.raises(ValueError, match="not certified"):
        accountant.get_epsilon(1e-3)
    with pytest.raises(ValueError, match="not certified"):
        accountant.get_delta(1.0)


def test_a_state_goes_on_and_takes_no_charge_back() -> None:
    one = added(BayesianAccountant(), ids=range(M, 2 * M))
    one.step(4.0, 0.01, torch.rand(M), steps=7, ids=range(M, 2 * M))
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    two = BayesianAccountant()
    two.load_state_dict(state)
    for accountant in (one, two):
        added(accountant, draws=3)
        accountant.step(4.0, 0.01, torch.full((M,), 0.3))
    a, b = one.account, two.account
    order = torch.tensor([1.0, 8.0]).double()
    for name in a.directions:
        torch.testing.assert_close(a.each(name, order), b.each(name, order), rtol=0, atol=0)
    assert [n for _, n in a.events] == [n for _, n in b.events]
    with pytest.raises(ValueError, match="none is taken back"):
        two.load_state_dict(state)
    with pytest.raises(ValueError, match="its kind is 'remove'"):
        BayesianAccountant(kind="add").load_state_dict(state)
    with pytest.raises(ValueError, match="not the state of an accountant"):
        BayesianAccountant().load_state_dict({"kind": "remove"})


GUIDE = (torch.zeros(2), torch.eye(2))
SOME = (0.01 * torch.ones(5, 2), torch.eye(2))
RANGE = Influence(added=False, columns=2, shift=0.1, spread=0.0, share=0.0)
REFUSED: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "another kind": ((GUIDE, SOME), {"influence": replace(RANGE, added=True)}, "added=True"),
    "another size": ((GUIDE, SOME), {"influence": replace(RANGE, columns=3)}, "columns=3"),
    "less than a record": ((GUIDE, SOME), {"influence": replace(RANGE, shift=0.01)}, "but 5 ref"),
    "less in precision": (
        (GUIDE, (torch.zeros(5, 2), 1.01 * torch.eye(2))), {"influence": RANGE}, "exceed it",
    ),
    "other records": ((GUIDE, (torch.zeros(6, 2), torch.eye(2))), {}, "6 records, ids of 5"),
    "other ids": ((GUIDE, SOME), {"ids": [4, 3, 2, 1, 0]}, "ids differ from the ids"),
    "one twice": ((GUIDE, SOME), {"ids": [0, 1, 2, 3, 3]}, "more than once"),
    "not a Gaussian": ((GUIDE, dist.Gamma(torch.ones(5), 1.0)), {}, "q is not a Gaussian"),
    "no distribution": ((GUIDE, "neighbours"), {}, "neighbours is not a Gaussian"),
    "no covariance": ((GUIDE, (torch.zeros(5, 2), -torch.eye(2))), {}, "positive definite"),
    "lopsided": ((GUIDE, (torch.zeros(5, 2), torch.ones(2, 2).triu())), {}, "symmetric"),
    "not finite": (((torch.tensor([0, math.nan]), torch.eye(2)), SOME), {}, "guide as a pair"),
    "a triple": ((GUIDE, (*SOME, 1.0)), {}, "neighbours as a pair"),
    "other variables": ((GUIDE, (torch.zeros(5, 3), torch.eye(3))), {}, "dimension 3"),
    "a batch": ((SOME, GUIDE), {}, "guide must be one Gaussian"),
    "of single variables": ((Normal(torch.zeros(2), 1.0), SOME), {}, "to_event"),
    "none": ((GUIDE, []), {}, "neighbours is empty"),
    "temperature": ((GUIDE, SOME, 1, 0.0), {}, "temperature"),
    "draws": ((GUIDE, SOME, 0), {}, "draws"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_not_charged(name: str) -> None:
    accountant = BayesianAccountant()
    accountant.add(GUIDE, SOME)
    arguments, more, said = REFUSED[name]
    with pytest.raises(ValueError, match=said):
        accountant.add(*arguments, **more)
    assert len(accountant.account.events) == 1


def test_steps_that_are_refused() -> None:
    accountant = BayesianAccountant()
    accountant.add(GUIDE, SOME)
    counts = NormCounts.none(torch.arange(5)).add(torch.rand(5), steps=3)
    for arguments, said in (
        ((1.0, 0.1, torch.rand(4)), "4 records, ids of 5"),
        ((1.0, 0.1, counts, 2), "norms has 3 steps"),
        ((0.0, 0.1, torch.rand(5)), "noise_multiplier"),
        ((1.0, 1.5, torch.rand(5)), "rate"),
        ((1.0, 0.1, -torch.rand(5)), "norms"),
        ((1.0, 0.1, replace(counts, ids=torch.arange(5) + 1)), "ids differ from the ids"),
    ):
        with pytest.raises(ValueError, match=said):
            accountant.step(*arguments)
    assert len(accountant.account.events) == 1
    with pytest.raises(ValueError, match="kind"):
        BayesianAccountant(kind="replace")
