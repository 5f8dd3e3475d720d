"""Federated variational inference: the pooled fit however records are divided, and its bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import dp_accounting
import pyro
import pyro.distributions as dist
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2
from simulated import logistic_data
from torch import Tensor

from bdpvi import BayesianLogisticRegression, Budget, BudgetExceededError, Dataset
from bdpvi.dp.dpvi import DPVISettings, train
from bdpvi.dp.federated import Federation
from bdpvi.dp.federated_vi import Client, FederatedFit, Server, fit_federated, seed_of
from bdpvi.dp.noise import Run
from bdpvi.dp.updates import Rounds
from bdpvi.guides import FullRank, LowRank, MeanField
from bdpvi.inference.svi import default_optimiser
from bdpvi.models.contract import Model

LOGISTIC = BayesianLogisticRegression(intercept=True)
NOISELESS = {"clip": 1e4, "noise_multiplier": 1e-14}


def linear(x: Tensor, y: Tensor | None = None) -> None:
    """Linear regression with prior N(0, 4) and noise N(0, 1/4): its posterior is Gaussian."""
    w = pyro.sample("w", dist.Normal(x.new_zeros(()), 2.0).expand([x.shape[1]]).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)


def divided(data: Dataset, clients: int) -> list[Dataset]:
    return [data.select(rows) for rows in torch.arange(len(data)).tensor_split(clients)]


def fitted(
    tables: Sequence[Dataset],
    kind: Any = MeanField,
    model: Model = LOGISTIC,
    rounds: int = 5,
    optim: Any = None,
    budget: Budget | None = None,
    **options: Any,
) -> FederatedFit:
    size = tables[0].x.shape[1] + (model is LOGISTIC)
    options = {"clients": len(tables), "size": size, "seed": 7, **NOISELESS, **options}
    federation = Federation(Rounds(**options), budget=budget)
    return fit_federated(
        model, kind(model), tables, federation, rounds=rounds, optim=optim, progress=False
    )


@pytest.mark.parametrize("kind", [MeanField, FullRank])
@pytest.mark.parametrize("clients", [1, 3, 40])
def test_without_noise_any_division_gives_the_pooled_fit(kind: Any, clients: int) -> None:
    """The pooled fit is DPVI's, whose gradient is tested against autograd."""
    data = logistic_data(40, 3)
    clipped = BayesianLogisticRegression(intercept=True, clip=0.6)
    pooled = train(
        clipped, kind(clipped), data,
        runs=[Run(noise_multiplier=0.0, seed=seed_of(7, 0))],
        settings=DPVISettings(steps=25, rate=1.0, clip=None, optim=default_optimiser(25, 0.1)),
    )  # fmt: skip
    fit = fitted(divided(data, clients), kind, rounds=25, record_clip=0.6, record_rate=1.0)
    for name, value in fit.parameters.items():
        torch.testing.assert_close(value, pooled[name][0], rtol=1e-7, atol=1e-9)


class Placed(Server):
    """A server whose base noise is given."""

    noise: Tensor

    @property
    def _noise(self) -> Tensor:
        return self.noise[None]


def test_the_conjugate_posterior_in_closed_form_is_the_fixed_point() -> None:
    """Its natural parameters are the prior's plus every client's own, XᵀX/σ² and Xᵀy/σ².

    Base noise ±√d e_j has the mean 0 and the covariance I, which is all that the gradient of a
    Gaussian model takes from it.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=generator, dtype=torch.float64)
    x[:, 1] += 0.5 * x[:, 0]
    y = x @ torch.tensor([1.0, -2.0]).double() + 0.5 * torch.randn(60, generator=generator).double()
    tables = divided(Dataset(x, y), 4)
    precision, shift = torch.eye(2, dtype=torch.float64) / 4, torch.zeros(2, dtype=torch.float64)
    for one in tables:
        precision += one.x.T @ one.x / 0.25
        shift += one.x.T @ one.y / 0.25
    covariance = precision.inverse()
    rounds = Rounds(clients=4, size=2, clip=1e6, noise_multiplier=1.0)
    clients = [Client(linear, one, rounds) for one in tables]
    signs = torch.cat([torch.eye(2), -torch.eye(2)]).double() * math.sqrt(2)

    def gradient(mean: Tensor, factor: Tensor) -> float:
        """Return the norm of the mean gradient, in units of what one deviation off would give."""
        moved = []
        for noise in signs:
            guide = FullRank(linear, start={"loc": mean, "scale_tril": factor})
            server = Placed(linear, guide, tables[0], optim=pyro.optim.SGD({"lr": 1.0}))
            server.noise = noise
            before = {name: value.clone() for name, value in server._free.items()}
            point = server.point()
            server.update(torch.stack([one.answer(1, point) for one in clients]).sum(0))
            change = [(server._free[name] - value).flatten() for name, value in before.items()]
            moved.append(torch.cat(change))
        return float(torch.stack(moved).mean(0).norm() / precision.diagonal().sqrt().max())

    mean, factor = covariance @ shift, torch.linalg.cholesky(covariance)
    off = factor @ torch.tensor([0.01, 0.0]).double()
    assert gradient(mean, factor) < 1e-9
    assert gradient(mean + off, factor) > 1e-3
    assert gradient(mean, 1.01 * factor) > 1e-3


def test_a_client_and_a_record_move_the_sum_by_their_clips() -> None:
    """Whatever the others hold, and wherever the guide is."""
    clip, record_clip = 3.0, 0.5
    rounds = Rounds(
        clients=3, size=4, clip=clip, noise_multiplier=1e-14, record_rate=1.0,
        record_clip=record_clip, seed=0,
    )  # fmt: skip

    @settings(max_examples=60, deadline=None)
    @given(
        scale=st.floats(-6, 6), far=st.integers(0, 99), flipped=st.booleans(), at=st.floats(-9, 9)
    )
    def check(scale: float, far: int, flipped: bool, at: float) -> None:
        data = logistic_data(100, 3, seed=far)
        x, y = data.x.clone(), data.y.clone()
        x[far] *= 10.0**scale
        y[far] = 1 - y[far] if flipped else y[far]
        data = Dataset(x, y)
        point = at * torch.linspace(-1, 1, 4, dtype=torch.float64)

        def answer(table: Dataset) -> Tensor:
            return Client(LOGISTIC, table, rounds, seed=0).answer(1, point)

        keep = torch.arange(100) != far
        moved = answer(data) - answer(data.select(keep))
        assert float(moved.norm()) <= record_clip * (1 + 1e-9)
        assert float(answer(data).norm()) <= clip
        alone = Client(LOGISTIC, data.select(~keep), rounds, seed=0).answer(1, point)
        assert float(alone.norm()) <= record_clip * (1 + 1e-9)

    check()


def test_a_record_of_a_traced_model_is_clipped_in_the_latents() -> None:
    data = Dataset(torch.tensor([[1.0, 2.0]] * 5).double(), torch.tensor([1e6, 9, 8, 7, -3e5]))
    rounds = Rounds(
        clients=1, size=2, clip=99.0, noise_multiplier=1.0, record_rate=1.0, record_clip=0.5
    )
    point = torch.tensor([0.3, 0.1]).double()
    found = Client(linear, data, rounds).answer(1, point)
    score = (data.y - data.x @ point)[:, None] * data.x / 0.25
    expected = (score * (0.5 / score.norm(dim=1)).clamp(max=1)[:, None]).sum(0)
    torch.testing.assert_close(found, expected)


class Heard(Server):
    """A server that keeps what it is told."""

    totals: list[Tensor]

    def update(self, total: Tensor) -> None:
        type(self).totals.append(total)
        super().update(total)


@pytest.mark.parametrize("shares", [None, 4])
@pytest.mark.parametrize("present", [4, 0])
def test_noise_depends_on_nobody(
    present: int, shares: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables may be full or empty, clients asked or not: the noise is that of the settings."""
    Heard.totals = []
    monkeypatch.setattr("bdpvi.dp.federated_vi.Server", Heard)
    full, clip, z = logistic_data(80, 3), 2.0, 3.0
    tables = divided(full, 4) if present else [full.select(torch.arange(0))] * 4
    rate = 1.0 if shares else 0.5
    fit = fitted(
        tables, rounds=300, clip=clip, noise_multiplier=z, noise_shares=shares, client_rate=rate,
        record_rate=0.5, record_clip=1e-9,
    )  # fmt: skip
    assert fit.federation.charged == 300
    # Divided by both rates; what the clients themselves say is at most 80 · 1e-9.
    heard = torch.stack(Heard.totals) * (rate * 0.5) / (z * clip)
    inside = chi2.cdf(float(heard.square().sum()), heard.numel())
    assert 1e-6 < inside < 1 - 1e-6


def test_sampled_answers_are_unbiased() -> None:
    """Over 400 rounds, within five standard errors of their own."""
    data = logistic_data(50, 3)
    settings_of = {"clients": 1, "size": 4, "clip": 99.0, "noise_multiplier": 1.0}
    some = Rounds(**settings_of, record_rate=0.3, record_clip=0.5)  # type: ignore[arg-type]
    point = torch.tensor([0.5, -0.5, 0.2, 0.1]).double()
    whole = Client(
        LOGISTIC,
        data,
        Rounds(**settings_of, record_rate=1.0, record_clip=0.5),  # type: ignore[arg-type]
    ).answer(1, point)
    client = Client(LOGISTIC, data, some, seed=3)
    each = torch.stack([client.answer(t, point) for t in range(400)]) / 0.3
    error = each.std(0) / 20
    assert bool(((each.mean(0) - whole).abs() < 5 * error).all())
    assert bool((each.std(0) > 0).all())


@pytest.mark.parametrize(
    ("client_rate", "record_rate", "unit"),
    [(1.0, 1.0, "client"), (1.0, 0.1, "record"), (0.2, 0.1, "client"), (1.0, 1.0, "record")],
)
def test_epsilon_of_each_view_against_dp_accounting(
    client_rate: float, record_rate: float, unit: str
) -> None:
    clip, record_clip, z, steps, delta = 4.0, 1.0, 5.0, 30, 1e-4
    tables = divided(logistic_data(80, 3), 4)
    fit = fitted(
        tables, rounds=steps, clip=clip, noise_multiplier=z, client_rate=client_rate,
        record_rate=record_rate, record_clip=record_clip,
    )  # fmt: skip
    noise, rate = (z, client_rate) if unit == "client" else (z * clip / record_clip, record_rate)
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    accountant = PLDAccountant(value_discretization_interval=1e-4).compose(event, steps)
    expected = accountant.get_epsilon(delta)
    found = fit.worst_case(delta, unit)
    assert found.epsilon == pytest.approx(expected, rel=0.005)
    assert unit in found.relation
    assert "experiment" in found.accountant
    assert fit.spent(delta, unit).worst_case == found


@pytest.mark.parametrize("shares", [None, 4])
def test_a_seed_repeats_and_nothing_is_left(shares: int | None) -> None:
    tables = divided(logistic_data(80, 3), 4)
    options: dict[str, Any] = {"noise_shares": shares}
    options |= {"clip": 2.0, "noise_multiplier": 2.0, "record_rate": 0.5, "record_clip": 1.0}
    state = torch.random.get_rng_state()
    one, two, other, secret = (fitted(tables, **options, seed=s) for s in (1, 1, 2, None))
    assert torch.equal(state, torch.random.get_rng_state())
    assert not list(pyro.get_param_store().keys())
    for name, value in one.parameters.items():
        assert torch.equal(value, two.parameters[name])
        assert not torch.equal(value, other.parameters[name])
        assert not torch.equal(value, secret.parameters[name])
    assert "experiment" not in secret.worst_case(1e-3).accountant
    draws = one.draw(3, torch.Generator().manual_seed(0))["w"]
    again = two.draw(3, torch.Generator().manual_seed(0))["w"]
    assert draws.shape == (3, 4)
    assert torch.equal(draws, again)


def test_predictions_average_over_draws() -> None:
    data = logistic_data(200, 3)
    fit = fitted(divided(data, 4), rounds=50)
    generator = torch.Generator().manual_seed(0)
    found = fit.predict_mean(data.x[:5].numpy(), draws=20_000, generator=generator)
    gaussian = fit.posterior
    design = LOGISTIC.design(data.x[:5])
    mean, deviation = design @ gaussian.mean, (design.square() @ gaussian.variance).sqrt()
    grid = torch.linspace(-8, 8, 2001, dtype=torch.float64)
    weight = torch.exp(-grid.square() / 2) * 0.008 / math.sqrt(2 * math.pi)
    expected = (torch.sigmoid(mean[:, None] + deviation[:, None] * grid) * weight).sum(1)
    torch.testing.assert_close(found, expected, rtol=0, atol=0.005)


def test_budget_ends_the_rounds() -> None:
    tables = divided(logistic_data(80, 3), 4)
    with pytest.raises(BudgetExceededError, match="would cost more"):
        fitted(tables, clip=1.0, noise_multiplier=2.0, rounds=9, budget=Budget(1.0, 1e-3))


def test_bad_input_is_named_before_anything_is_charged() -> None:
    tables = divided(logistic_data(80, 3), 4)
    rounds = Rounds(clients=4, size=4, clip=1.0, noise_multiplier=1.0, record_rate=1.0,
                    record_clip=0.5)  # fmt: skip
    federation = Federation(rounds)

    def fit(tables: list[Dataset], federation: Federation = federation, **options: Any) -> None:
        fit_federated(LOGISTIC, MeanField(LOGISTIC), tables, federation, progress=False, **options)

    with pytest.raises(ValueError, match="clients has 3 tables"):
        fit(tables[:3])
    with pytest.raises(ValueError, match=r"clients\[3\] has 4 columns"):
        fit([*tables[:3], logistic_data(20, 4)])
    renamed = Dataset(tables[0].x, tables[0].y, feature_names=("a", "b", "c"))
    with pytest.raises(ValueError, match=r"clients\[3\] has the columns \('a'"):
        fit([*tables[:3], renamed])
    with pytest.raises(ValueError, match="rounds must be a whole number"):
        fit(tables, rounds=0)
    with pytest.raises(ValueError, match=r"Rounds\(size=4"):
        fit(tables, Federation(Rounds(clients=4, size=3, clip=1.0, noise_multiplier=1.0)))
    with pytest.raises(ValueError, match="guide: LowRank does not know"):
        fit_federated(LOGISTIC, LowRank(LOGISTIC), tables, federation)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="y must be 0 or 1"):
        fit([*tables[:3], Dataset(tables[3].x, tables[3].y + 1)])
    with pytest.raises(ValueError, match="x must be below 1e"):
        fit([*tables[:3], Dataset(1e101 * tables[3].x.sign(), tables[3].y)])
    assert federation.charged == 0
    client, server = Client(LOGISTIC, tables[0], rounds), Server(LOGISTIC, MeanField(LOGISTIC),
                                                                 tables[0])  # fmt: skip
    with pytest.raises(ValueError, match="point must have shape"):
        client.answer(1, torch.zeros(3))
    with pytest.raises(ValueError, match="total must have shape"):
        server.update(torch.zeros(3))
    with pytest.raises(ValueError, match="total has a value that is not finite"):
        server.update(torch.full((4,), math.nan))
    assert server.updates == 0


def test_the_server_meets_no_record() -> None:
    """Made of one table or of another with the same columns, it is the same server."""
    points = []
    for seed in (0, 1):
        server = Server(LOGISTIC, FullRank(LOGISTIC), logistic_data(30, 3, seed=seed), seed=5)
        server.update(torch.linspace(-1, 1, 4, dtype=torch.float64))
        points.append(server.point())
    assert torch.equal(*points)
