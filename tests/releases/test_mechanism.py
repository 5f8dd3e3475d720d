"""Noisy sums: every mechanism's draws lie on its lattice, and what was drawn is what is priced."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.stats import chi2
from simulated import logistic_data
from torch import Tensor, nn

from bdpvi import BayesianLogisticRegression
from bdpvi._ground.types import Budget
from bdpvi.bench.methods import Method
from bdpvi.bench.methods.dp_gd import DPGD, DPSGLDLosses
from bdpvi.bench.methods.dpvi import DPVILosses
from bdpvi.bench.methods.runs import Run, Streams
from bdpvi.federated.federated import Federation, Message
from bdpvi.federated.parties import Client
from bdpvi.federated.rounds import Rounds
from bdpvi.networks.deep import make_private
from bdpvi.networks.private import Private
from bdpvi.noise import secure
from bdpvi.noise.keys import Key
from bdpvi.noise.secure import sum_rounding, sum_slack, sum_step
from bdpvi.privacy.ledger import Ledger
from bdpvi.privacy.rounding import rounding_delta
from bdpvi.privacy.sampled_steps import GaussianAccountant, PrivacyLossAccountant
from bdpvi.regression.objective_plan import Facts, plan
from bdpvi.regression.perturbed_objective import perturbed_minima
from bdpvi.releases.noisy_sum import NoisySum, deviation_for

MODEL, DATA = BayesianLogisticRegression(clip=0.5), logistic_data(60, 3)
RUNS = [Run(noise_multiplier=2.0, seed=seed) for seed in (None, 3)]
SUM = NoisySum(rate=0.1, clip=0.5, noise_multiplier=3.0, size=4, records=100)


def dp_sgd() -> Private:
    module = nn.Linear(3, 2)
    private = make_private(
        module,
        torch.optim.SGD(module.parameters(), lr=0.1),
        loss=nn.functional.cross_entropy,
        data=(DATA.x.float(), DATA.y.long()),
        rate=0.5,
        max_grad_norm=1.0,
        noise_multiplier=2.0,
    )
    private.step()
    return private


def rounds(shares: int | None) -> None:
    one = Rounds(clients=3, size=3, clip=2.0, noise_multiplier=2.0, noise_shares=shares,
                 record_rate=0.5, record_clip=0.5)  # fmt: skip
    federation = Federation(one)
    clients = [Client(MODEL, DATA, one) for _ in federation.sampled(1)]
    answers = [Message(k, 1, c.answer(1, torch.zeros(3))) for k, c in enumerate(clients)]
    released = federation.aggregate(1, answers)
    assert released.update is not None
    shared = one.mechanism if shares is None else one.shared
    step = sum_step(shared.deviation)
    whole = released.update * 3 / step
    assert float((whole - whole.round()).abs().max()) < 1e-3


def compared(method: Method) -> None:
    """Train by a method of the comparison, as often as there are runs."""
    seeds: Any = [run.seed for run in RUNS]
    method.prepare(DATA, 1e-5).outcomes([run.noise_multiplier for run in RUNS], seeds)


MECHANISMS: dict[str, Callable[[], object]] = {
    "DP-SGD": dp_sgd,
    "DPVI": lambda: compared(DPVILosses(steps=3)),
    "DP-GD": lambda: compared(DPGD(steps=3)),
    "DP-SGLD": lambda: compared(DPSGLDLosses(steps=3, decay=0.3, draws=1)),
    "objective perturbation": lambda: perturbed_minima(
        plan(Facts(columns=DATA.x.shape[1], rows=len(DATA)), epsilon=1.0), DATA.x, DATA.y
    ),
    "rounds, server": lambda: rounds(None),
    "rounds, shares": lambda: rounds(3),
}


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_draw_lies_on_its_lattice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And there is no other source of normal numbers while a private sum is made."""
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    add = secure.add_whole

    def kept(total: Tensor, deviation: Any, whole: Tensor) -> Tensor:
        noisy = add(total, deviation, whole)
        step = sum_step(torch.as_tensor(deviation, dtype=torch.float64))
        seen.append((noisy / step, total.double() / step, whole))
        return noisy

    monkeypatch.setattr(secure, "add_whole", kept)
    MECHANISMS[name]()
    assert seen
    for noisy, total, whole in seen:
        at = noisy.round()
        assert float((noisy - at).abs().max()) <= 2.0**-52 * float(noisy.abs().max())
        assert bool(((at - whole - total).abs() <= 0.51 + 2.0**-52 * total.abs()).all())
        assert len(whole.unique()) == whole.numel()


@pytest.mark.parametrize("seed", [None, 5])
def test_noise_has_its_variance_and_a_percent_shows(seed: int | None) -> None:
    one = NoisySum(rate=0.2, clip=0.7, noise_multiplier=1.3, size=400_000, records=10, seed=seed)
    (noisy,) = one.noisy([torch.zeros(400_000).double()], one.key_of(1))
    low, high = chi2.interval(1 - 1e-6, one.size)
    square = float((noisy / (0.7 * 1.3)).square().sum())
    assert low < square < high
    assert not low < square * 0.99**2 < high
    assert not low < square * 1.01**2 < high


def test_rounding_moves_nobody_past_the_price() -> None:
    """Whoever moves a sum by c or more is hidden as its own noise multiplier says."""
    for size, smallest in ((4, None), (10**6, 0.01), (10**8, 0.2)):
        deviation = deviation_for(3.0, 0.5, size, smallest)
        for c in (smallest or 0.5, 0.3, 0.5):
            if c >= (smallest or 0.5):
                moved = c + sum_slack(deviation, size)
                assert deviation / moved >= 3.0 * 0.5 / c * (1 - 1e-12)
        assert 1.5 < deviation < 1.5 * 1.001
    both = deviation_for(torch.tensor([[1.0], [3.0]], dtype=torch.float64), 0.5, 4)
    assert both[1, 0] == SUM.deviation == deviation_for(3.0, 0.5, 4)


def test_more_noise_than_the_lattice_holds_is_refused() -> None:
    with pytest.raises(ValueError, match="noise_multiplier is too large for 100000000"):
        replace(SUM, noise_multiplier=1e7, size=10**8)
    with pytest.raises(ValueError, match="size"):
        replace(SUM, size=0)


def test_only_what_is_charged_is_drawn() -> None:
    with pytest.raises(ValueError, match="size=4 coordinates are charged, got 5"):
        SUM.noisy([torch.zeros(2).double(), torch.zeros(3).double()], SUM.key_of(1))
    zeros = [torch.zeros(2, 1).double(), torch.zeros(2).double()]
    assert SUM.noisy(zeros, SUM.key_of(1))[0].shape == (2, 1)


def test_seeds_repeat_and_secrets_do_not() -> None:
    seeded, zero = replace(SUM, seed=1), [torch.zeros(4).double()]
    assert torch.equal(seeded.means(zero, 3)[0], seeded.means(zero, 3)[0])
    assert not torch.equal(seeded.means(zero, 3)[0], seeded.means(zero, 4)[0])
    assert not torch.equal(SUM.means(zero, 3)[0], SUM.means(zero, 3)[0])
    assert not SUM.key_of(3).experiment
    assert seeded.key_of(3).experiment
    assert seeded.key_of(3) == Key.of_seed(1).child("noise", 3)


def test_parts_of_a_sum_have_noise_of_their_own() -> None:
    noise = NoisySum(rate=1.0, clip=1.0, noise_multiplier=3.0, size=20_000, records=1)
    one, other = noise.noisy([torch.zeros(10_000).double()] * 2, Key.of_seed(0))
    assert float((one - other).std()) == pytest.approx(3.0 * math.sqrt(2), rel=0.05)


def test_sums_of_several_noises_are_priced_at_the_least() -> None:
    streams = Streams(RUNS, DATA, steps=3, rate=0.5)
    for sigma in (4.0, 3.0, 5.0):
        streams.noisy(torch.zeros(2, 7).double(), 0.5, torch.full((2, 1), sigma).double())
    for price in streams.prices(PrivacyLossAccountant(), 1e-5):
        assert price is not None
        assert price.epsilon == PrivacyLossAccountant().epsilon(3.0, 0.5, 3, 1e-5)


def test_rounding_is_in_every_price() -> None:
    streams = Streams(RUNS, DATA, steps=5, rate=0.5)
    for clip in (0.5, 0.7):
        streams.noisy(torch.zeros(2, 7).double(), clip)
    assert streams.rounding == pytest.approx(sum_rounding(14))
    for price in streams.prices(PrivacyLossAccountant(), 1e-5):
        assert price is not None
        assert price.epsilon == PrivacyLossAccountant().epsilon(2.0, 0.5, 2, 1e-5)
        assert price.rounding == streams.rounding > 0
    event = SUM.event(10)
    assert event.rounding == pytest.approx(sum_rounding(40))
    assert (event.noise_multiplier, event.rate, event.steps) == (3.0, 0.1, 10)
    for shares, messages in ((None, 1), (3, 3)):
        one = Rounds(clients=3, size=5, clip=2.0, noise_multiplier=2.0, noise_shares=shares,
                     record_rate=0.5, record_clip=0.5)  # fmt: skip
        for unit in ("client", "record"):
            seen = one.event(7, unit)
            assert seen.rounding == pytest.approx(7 * messages * sum_rounding(5))


def test_a_budget_pays_for_rounding_too(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(budget=Budget(1.0))
    steps = ledger.affordable(SUM.event(1), 1000)
    monkeypatch.setattr(secure, "sum_rounding", lambda size: 1e-8 * size)
    assert 0 < ledger.affordable(SUM.event(1), 1000) < steps < 1000
    private = dp_sgd()
    price = private.worst_case(1e-5)
    assert price.rounding == pytest.approx(8e-8)
    rest = 1e-5 - rounding_delta(price.rounding, price.epsilon)
    assert price.epsilon == PrivacyLossAccountant().epsilon(2.0, 0.5, 1, rest)
    monkeypatch.setattr(secure, "sum_rounding", lambda size: 1e-5 * size)
    assert ledger.affordable(SUM.event(1), 1000) == 0


def test_runs_without_noise_stay_as_they_are() -> None:
    runs = [Run(noise_multiplier=sigma, seed=2) for sigma in (0.0, 1.0)]
    streams = Streams(runs, DATA, steps=1, rate=1.0)
    totals = torch.full((2, 3), math.pi, dtype=torch.float64)
    noisy = streams.noisy(totals, 1.0)
    assert torch.equal(noisy[0], totals[0])
    assert bool((noisy[1] != totals[1]).all())
    prices = streams.prices(GaussianAccountant(), 1e-5)
    assert prices[0] is None
    assert prices[1] is not None
