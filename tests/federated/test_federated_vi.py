"""Federated variational inference: the pooled fit, what leaves a client, what the rounds cost."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from dp_accounting.pld import privacy_loss_distribution
from scipy.optimize import brentq
from scipy.stats import binom
from simulated import logistic_data
from torch import Tensor

import bdpvi
from bdpvi import BayesianLogisticRegression, Dataset, Ledger, Optimum
from bdpvi._ground.types import Budget, BudgetExceededError, PrivacyUtilityWarning
from bdpvi.bayesian.inference.svi import default_optimiser
from bdpvi.bench.methods.runs import Run, Streams
from bdpvi.bench.methods.variational import DPVISettings, train
from bdpvi.datasets.dataset import People
from bdpvi.federated.federated import Federation, Message, Released
from bdpvi.federated.federated_vi import FederatedFit, fit_federated, seed_of
from bdpvi.federated.parties import Client, Server, blank
from bdpvi.federated.rounds import SERVER_OF_UPDATES, Rounds
from bdpvi.guides import FullRank, LowRank, MeanField
from bdpvi.releases.clipping import MARGIN

MODEL = BayesianLogisticRegression.unweighted()
DATA = logistic_data(200, 3)
UNEVEN = [
    DATA.select(torch.arange(a, b)) for a, b in [(0, 120), (120, 120), (120, 150), (150, 200)]
]
EXACT: dict[str, Any] = {"clip": 1e6, "noise_multiplier": 1e-14}
"""No clip is reached, and the noise is 1e-8."""
PRIVATE: dict[str, Any] = {
    "clip": 8.0,
    "noise_multiplier": 3.0,
    "record_rate": 0.5,
    "record_clip": 1.0,
}


def settings(clients: int = 4, **given: Any) -> Rounds:
    return Rounds(**{"clients": clients, "size": 3, "seed": 0, **PRIVATE, **given})


def fitted(tables: list[Dataset], rounds: Rounds, steps: int = 20, **given: Any) -> FederatedFit:
    return fit_federated(
        MODEL,
        given.pop("guide", MeanField(MODEL)),
        tables,
        given.pop("federation", Federation(rounds)),
        rounds=steps,
        progress=False,
        **given,
    )


@pytest.mark.parametrize("kind", [MeanField, LowRank, FullRank])
def test_without_clip_and_noise_it_is_the_pooled_optimum(
    kind: type[MeanField] | type[LowRank] | type[FullRank],
) -> None:
    exact = settings(clients=1, record_rate=None, record_clip=None, **EXACT)
    fit = fitted([DATA], exact, 600, guide=kind(MODEL)).posterior
    like = FullRank if kind is LowRank else kind  # two factors are enough for three latents
    found = bdpvi.fit(MODEL, like(MODEL), DATA, neighbours=Optimum(), progress=False)
    # The maximum of the ELBO by Gauss-Hermite and Newton. A fit by single draws is near it.
    best = found.guide.posterior()
    assert ((fit.mean - best.mean).abs() < 0.2 * best.stddev).all()
    assert ((fit.stddev / best.stddev).log().abs() < 0.2).all()


def test_an_answer_is_the_gradient_of_the_log_likelihood() -> None:
    point = torch.tensor([0.5, -2.0, 1.0], dtype=torch.float64, requires_grad=True)
    logits = DATA.x @ point
    (DATA.y * logits - torch.nn.functional.softplus(logits)).sum().backward()
    exact = settings(record_rate=None, record_clip=None, **EXACT)
    torch.testing.assert_close(Client(MODEL, DATA, exact).answer(1, point.detach()), point.grad)


def test_how_records_are_divided_makes_no_difference() -> None:
    exact = {**EXACT, "record_rate": None, "record_clip": None}
    apart = fitted(UNEVEN, settings(**exact)).posterior
    pooled = fitted([DATA], settings(clients=1, **exact)).posterior
    torch.testing.assert_close(apart.mean, pooled.mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(apart.stddev, pooled.stddev, rtol=0, atol=1e-6)


def test_clipped_scores_give_the_pooled_fit_of_the_clipped_likelihood() -> None:
    """That fit is DPVI's, whose gradient is tested against autograd; step by step, no optimum."""
    clipped = BayesianLogisticRegression(clip=0.6 * (1 - MARGIN))
    runs = [Run(noise_multiplier=0.0, seed=seed_of(0, 0))]
    settings_ = DPVISettings(steps=25, rate=1.0, clip=None, optim=default_optimiser(25, 0.1))
    pooled = train(clipped, DATA, Streams(runs, DATA, steps=25, rate=1.0), settings_)
    exact = settings(record_rate=1.0, record_clip=0.6, **EXACT)
    fit = fitted(UNEVEN, exact, 25, guide=MeanField(MODEL))
    for name, value in fit.parameters.items():
        torch.testing.assert_close(value, getattr(pooled, name)[0], rtol=1e-7, atol=1e-8)
    assert not list(pyro.get_param_store().keys())


def linear(x: Tensor, y: Tensor | None = None) -> None:
    """Linear regression with prior N(0, 4) and noise N(0, 1/4): its posterior is Gaussian."""
    w = pyro.sample("w", dist.Normal(x.new_zeros(()), 2.0).expand([x.shape[1]]).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)


def test_the_conjugate_posterior_in_closed_form_is_the_fixed_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its natural parameters are the prior's plus every client's own, XᵀX/σ² and Xᵀy/σ².

    Base noise ±√d e_j has the mean 0 and the covariance I, which is all that the gradient of a
    Gaussian model takes from it.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=generator, dtype=torch.float64)
    x[:, 1] += 0.5 * x[:, 0]
    y = x @ torch.tensor([1.0, -2.0]).double() + 0.5 * torch.randn(60, generator=generator).double()
    tables = [Dataset(x[k::4], y[k::4]) for k in range(4)]
    precision, shift = torch.eye(2, dtype=torch.float64) / 4, torch.zeros(2, dtype=torch.float64)
    for table in tables:
        precision += table.x.T @ table.x / 0.25
        shift += table.x.T @ table.y / 0.25
    covariance = precision.inverse()
    rounds = Rounds(clients=4, size=2, clip=1e6, noise_multiplier=1.0)
    clients = [Client(linear, table, rounds) for table in tables]
    signs = torch.cat([torch.eye(2), -torch.eye(2)]).double() * math.sqrt(2)

    def gradient(mean: Tensor, factor: Tensor) -> float:
        """Return the norm of the mean gradient, in units of what one deviation off would give."""
        moved = []
        for noise in signs:
            guide = FullRank(linear, start={"loc": mean, "scale_tril": factor})
            monkeypatch.setattr(
                "torch.distributions.multivariate_normal._standard_normal",
                lambda *_, noise=noise, **__: noise,
            )
            server = Server(linear, guide, tables[0], optim=pyro.optim.SGD({"lr": 1.0}))
            free = server._program.parameters
            before = {name: value.detach().clone() for name, value in free.items()}
            point = server.point()
            server.update(torch.stack([client.answer(1, point) for client in clients]).sum(0))
            change = [(free[name].detach() - value).flatten() for name, value in before.items()]
            moved.append(torch.cat(change))
        return float(torch.stack(moved).mean(0).norm() / precision.diagonal().sqrt().max())

    mean, factor = covariance @ shift, torch.linalg.cholesky(covariance)
    off = factor @ torch.tensor([0.01, 0.0]).double()
    assert gradient(mean, factor) < 1e-9
    assert gradient(mean + off, factor) > 1e-3
    assert gradient(mean, 1.01 * factor) > 1e-3


def test_a_record_of_a_traced_model_is_clipped_in_the_latents() -> None:
    data = Dataset(torch.tensor([[1.0, 2.0]] * 5).double(), torch.tensor([1e6, 9, 8, 7, -3e5]))
    rounds = Rounds(
        clients=1, size=2, clip=99.0, noise_multiplier=1.0, record_rate=1.0, record_clip=0.5
    )
    point = torch.tensor([0.3, 0.1]).double()
    found = Client(linear, data, rounds).answer(1, point)
    score = (data.y - data.x @ point)[:, None] * data.x / 0.25
    clip = 0.5 * (1 - MARGIN)
    expected = (score * (clip / score.norm(dim=1)).clamp(max=1)[:, None]).sum(0)
    torch.testing.assert_close(found, expected)


def test_a_record_without_a_score_counts_as_zero_and_the_owner_is_told() -> None:
    far = torch.tensor([[1e200, 0.0, 0.0], [1e100, 1.0, 0.0]], dtype=torch.float64)
    wild = Dataset(far, torch.zeros(2))
    joined = Dataset(torch.cat([DATA.x, wild.x]), torch.cat([DATA.y, wild.y]))
    point = torch.tensor([0.5, -2.0, 1.0], dtype=torch.float64)
    rounds = settings(record_rate=1.0, clip=99.0)
    with pytest.warns(PrivacyUtilityWarning, match="1 record left out: a score is not finite"):
        found = Client(MODEL, joined, rounds).answer(1, point)
    others = Client(MODEL, DATA, rounds).answer(1, point)
    expected = torch.tensor([MARGIN - 1, 0, 0]).double()
    torch.testing.assert_close(found - others, expected)


def test_sampled_answers_are_unbiased() -> None:
    """Over 400 rounds, within five standard errors of their own."""
    point = torch.tensor([0.5, -0.5, 0.2], dtype=torch.float64)
    whole = Client(MODEL, DATA, settings(record_rate=1.0, clip=99.0)).answer(1, point)
    client = Client(MODEL, DATA, settings(record_rate=0.3, clip=99.0), seed=3)
    assert client._plan.rate == 0.3
    each = torch.stack([client.answer(t, point) for t in range(400)]) / 0.3
    assert bool(((each.mean(0) - whole).abs() < each.std(0) / 4).all())
    assert bool((each.std(0) > 0).all())


class Recorded(Federation):
    """Keeps what was released."""

    def __init__(self, rounds: Rounds) -> None:
        super().__init__(rounds)
        self.released: list[Tensor | None] = []

    def aggregate(self, round: int, messages: Iterable[Message]) -> Released:
        result = super().aggregate(round, messages)
        self.released.append(result.update)
        return result


@pytest.mark.parametrize("shares", [None, 4])
def test_the_guide_is_made_of_released_sums_and_public_things_alone(shares: int | None) -> None:
    rounds = settings(noise_shares=shares)
    federation = Recorded(rounds)
    fit = fitted(UNEVEN, rounds, federation=federation)
    # Somebody without records repeats it: with the base noise, which may be public.
    server = Server(MODEL, MeanField(MODEL), blank(DATA), rounds=20, seed=seed_of(0, 0))
    for update in federation.released:
        assert update is not None
        server.update(update * 4 / 0.5)
    for name, value in fit.parameters.items():
        torch.testing.assert_close(server.parameters[name], value, rtol=0, atol=0)


def test_without_a_seed_coins_and_noise_are_secret() -> None:
    torch.manual_seed(0)
    first = fitted(UNEVEN, settings(seed=None)).posterior.mean
    torch.manual_seed(0)
    assert not torch.allclose(first, fitted(UNEVEN, settings(seed=None)).posterior.mean, atol=1e-3)


def reference(noise: float, rate: float, steps: int, delta: float, presence: float = 1.0) -> float:
    """Return ε of a binomial number of steps that whoever looks can count."""
    one = privacy_loss_distribution.from_gaussian_mechanism(noise, sampling_prob=rate)
    runs = [one.self_compose(count) for count in range(1, steps + 1)]
    chances = [float(binom.pmf(count, steps, presence)) for count in range(1, steps + 1)]

    def excess(epsilon: float) -> float:
        deltas = [run.get_delta_for_epsilon(epsilon) for run in runs]
        return float(sum(p * d for p, d in zip(chances, deltas, strict=True))) - delta

    return float(brentq(excess, 1e-3, 20.0, xtol=1e-6))


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_epsilon_of_both_units_is_that_of_dp_accounting(rate: float) -> None:
    tables = [one.of_people(People()) for one in UNEVEN]  # with ledgers of their own
    fit = fitted(tables, settings(client_rate=rate, record_rate=0.25))
    client, record = fit.worst_case(1e-2), fit.worst_case(1e-5, "record")
    assert client.epsilon == pytest.approx(reference(3.0, rate, 20, 1e-2), rel=5e-3)
    # One noise, of 3 * 8 / 1 record's clips; the client's coin is its other records' too.
    paid = reference(24.0, 0.25, 20, 1e-5, rate)
    assert paid <= record.epsilon == pytest.approx(paid, rel=8e-3)
    assert fit.cost(1e-5, "record").worst_case == record
    before = fit.federation.charged
    fit.draw(1000)
    fit.predict_mean(DATA.x, 10)
    assert fit.federation.charged == before
    assert fit.worst_case(1e-2).epsilon == client.epsilon


def test_its_cost_has_what_the_process_spent_on_the_rows_too() -> None:
    rounds = settings(clients=3)
    for others in (False, True):
        tables = [Dataset(one.x.clone(), one.y.clone()) for one in UNEVEN if len(one.y)]
        fit = fitted(tables, rounds)
        alone, found = fit.federation.worst_case(1e-5, "record"), fit.worst_case(1e-5, "record")
        assert fit.cost(1e-5, "record").worst_case == found
        assert (found.epsilon > 1.2 * alone.epsilon) is others


def test_no_promise_where_there_is_none() -> None:
    fit = fitted(UNEVEN, settings(record_rate=None, record_clip=None))
    with pytest.raises(ValueError, match="record_clip"):
        fit.worst_case(1e-5, "record")
    with pytest.raises(ValueError, match="noise_shares"):
        fit.worst_case(1e-2, observer=SERVER_OF_UPDATES)


def narrow() -> Dataset:
    return logistic_data(10, 2)


@pytest.mark.parametrize(
    ("tables", "rounds", "given", "says"),
    [
        ([], settings(), {}, "clients has 0 tables"),
        (UNEVEN[:3], settings(), {}, "clients has 3 tables"),
        (UNEVEN, settings(size=4), {}, "size=4"),
        ([*UNEVEN[:3], narrow()], settings(), {}, r"clients\[3\]"),
        (UNEVEN, settings(), {"steps": 0}, "rounds"),
    ],
)
def test_what_does_not_fit_is_named_before_a_charge(
    tables: list[Dataset], rounds: Rounds, given: dict[str, Any], says: str
) -> None:
    federation = Federation(rounds)
    with pytest.raises(ValueError, match=says):
        fitted(tables, rounds, federation=federation, **given)
    assert federation.charged == 0


def test_the_tables_ledgers_are_charged_what_it_does_to_records() -> None:
    """Once for a table, however it is divided; where no clip of records is known, by 2C."""
    for clip, noise, rate in ((0.5, 3.0 * 4, 0.5), (None, 3.0 / 2, 1.0)):
        rounds = settings(clip=2.0, noise_multiplier=3.0, client_rate=0.5, record_clip=clip,
                          record_rate=None if clip is None else 0.5)  # fmt: skip
        table = Dataset(DATA.x, DATA.y)
        other = Dataset(DATA.x, DATA.y)
        tables = [table.select(torch.arange(20)), table.select(torch.arange(20, 40)), other]
        fitted([*tables, other], rounds)
        for own in (table, other):
            (event,) = own.ledger.book().events
            assert sum(entry.count for entry in own.ledger.entries()) == 20
            found = (event.noise_multiplier, event.rate, event.presence, event.unit)
            assert found == (noise, rate, 0.5, "record")
    limited = Dataset(DATA.x, DATA.y).of_people(People(Ledger(budget=Budget(0.1))))
    federation = Federation(settings())
    with pytest.raises(BudgetExceededError, match=r"round \d would bring the total"):
        fitted([limited] * 4, settings(), federation=federation)
    assert federation.charged == sum(one.count for one in limited.ledger.entries()) < 20


def test_bad_points_and_sums_are_named() -> None:
    with pytest.raises(ValueError, match="point"):
        Client(MODEL, DATA, settings()).answer(1, torch.zeros(2))
    server = Server(MODEL, MeanField(MODEL), DATA)
    with pytest.raises(ValueError, match="total"):
        server.update(torch.zeros(2))
    with pytest.raises(ValueError, match="total"):
        server.update(torch.full((3,), torch.nan))
    assert server.updates == 0
