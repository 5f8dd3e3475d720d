"""PrivateSVI: what is drawn is what is charged, and scripts written for SVI go on working."""

from __future__ import annotations

import copy
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.optim import SGD
from scipy.stats import norm
from steps import made, model, table
from torch import Tensor

from bdpvi import Ledger, PrivacyUtilityWarning, PrivateSVI
from bdpvi.privacy.entry import Entry
from bdpvi.releases.noisy_sum import NoisySum

pytestmark = pytest.mark.usefixtures("fresh_store")
DELTA = 1e-5


WIDE = 20_000


def silent(x: Tensor) -> None:
    """A model whose records say nothing of its many latents."""
    w = pyro.sample("w", dist.Normal(torch.zeros(WIDE), 1e6).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("x", dist.Normal(0.0 * w.sum(), 1.0), obs=x)


def silent_guide(x: Tensor) -> None:
    pyro.sample("w", dist.Normal(pyro.param("loc", torch.zeros(WIDE)), 1.0).to_event(1))


def test_the_noise_is_what_is_charged() -> None:
    clip, noise, rate, steps = 0.7, 3.0, 0.25, 20
    x = torch.randn(8)
    svi = made(
        silent, SGD({"lr": 1.0}), guide=silent_guide, clip=clip, noise_multiplier=noise, rate=rate
    )
    moved, before = [], torch.zeros(WIDE)
    for _ in range(steps):
        svi.step(x)
        now = pyro.param("loc").detach().clone()
        moved.append(now - before)
        before = now
    spread = float(torch.stack(moved).double().std())
    wanted = noise * clip / rate
    assert spread == pytest.approx(wanted, rel=5 / math.sqrt(2 * steps * WIDE))
    descent = svi._descent
    assert descent is not None
    assert descent.deviation == pytest.approx(wanted, rel=1e-3)  # what intervals are widened by
    event = NoisySum(rate=rate, clip=1.0, noise_multiplier=noise, size=WIDE, records=1).event(steps)
    own = Ledger()
    own.charge(Entry(kind="steps", of="one", events=(event,)))
    found, alone = svi.get_epsilon(DELTA), own.worst_case(DELTA)
    assert alone is not None
    assert found == pytest.approx(alone.epsilon, rel=1e-3)


def moved(records: int) -> dict[str, Tensor]:
    """Return where the parameters are after two steps of equal coins and (hardly) no noise."""
    pyro.clear_param_store()
    torch.manual_seed(3)
    x, y = table(records)
    svi = made(optim=SGD({"lr": 1e-3}), noise_multiplier=1e-6, clip=0.5, rate=0.5, seed=4)
    for _ in range(2):
        svi.step(x, y)
    return {name: value.detach().clone() for name, value in pyro.get_param_store().items()}


def test_the_number_of_records_has_no_part_in_a_step() -> None:
    # Without noise a step is a sum over the batch alone: one record more moves the location by
    # lr C/q at most, in each of two steps, and not by a share of all that N scales.
    some, more = moved(400), moved(401)
    name = next(one for one in some if "locs" in one)
    assert float((some[name] - more[name]).norm()) <= 2 * 1e-3 * 0.5 / 0.5 * 1.05


def scalar(x: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.tensor(0.0, dtype=x.dtype), 1e3))
    with pyro.plate("records", len(x)):
        pyro.sample("x", dist.Normal(w, 1.0), obs=x)


def scalar_guide(x: Tensor) -> None:
    pyro.sample("w", dist.Normal(pyro.param("loc", torch.zeros((), dtype=x.dtype)), 1e-9))


def hockey_stick(sums: Any, others: Any, noise: float, epsilon: float) -> float:
    """Return ∫ max(0, p − e^ε r) by a fine grid, of mixtures of normals at weighted points."""
    grid = np.linspace(-8 - 10 * noise, 8 + 10 * noise, 40_001)
    p, r = (
        sum(weight * norm.pdf(grid, at, noise) for at, weight in points)
        for points in (sums, others)
    )
    return float(np.clip(p - math.exp(epsilon) * r, 0, None).sum() * (grid[1] - grid[0]))


def test_brute_force_on_six_records_never_costs_more_than_is_said() -> None:
    x = torch.tensor([-0.2, 0.1, 3.0, 0.3, 0.0, -0.1], dtype=torch.float64)
    noise, rate, clip = 1.5, 0.4, 1.0
    svi = made(
        scalar, SGD({"lr": 0.0}), guide=scalar_guide, noise_multiplier=noise, rate=rate, clip=clip
    )
    svi.step(x)
    program = svi._descent.program  # type: ignore[union-attr]
    each = program.gradients(program.draw(), (x,))
    parts = [float(svi._clip.parts(one.unsqueeze(0), clip)) for one in each]
    assert -1 <= parts[2] < -1 + 2e-6  # the third is beyond the clip

    def outcomes(values: list[float]) -> list[tuple[float, float]]:
        result = []
        for coins in itertools.product([0, 1], repeat=len(values)):
            chance = rate ** sum(coins) * (1 - rate) ** (len(values) - sum(coins))
            result.append((sum(c * v for c, v in zip(coins, values, strict=True)), chance))
        return result

    def largest(epsilon: float) -> float:
        whole, found = outcomes(parts), []
        for i in range(len(parts)):
            rest = outcomes(parts[:i] + parts[i + 1 :])
            found += [hockey_stick(a, b, noise, epsilon) for a, b in ((whole, rest), (rest, whole))]
        return max(found)

    epsilon = NoisySum(rate=rate, clip=1.0, noise_multiplier=noise, size=1, records=1)
    one = Ledger()
    one.charge(Entry(kind="steps", of="a", events=(epsilon.event(1),)))
    said = one.worst_case(0.01)
    assert said is not None
    assert largest(said.epsilon) <= 0.01


def test_a_step_shows_nothing_and_the_loss_is_pyros() -> None:
    x, y = table()
    svi = made()
    assert str(svi.step(x, y)) == "undisclosed"
    torch.manual_seed(7)
    found = svi.evaluate_loss(x, y)
    torch.manual_seed(7)
    assert found == pytest.approx(Trace_ELBO().loss(model, svi.guide, x, y), rel=1e-5)


def test_a_state_takes_no_charge_back(tmp_path: Path) -> None:
    x, y = table()
    svi = made()
    for _ in range(12):
        svi.step(x, y)
    state = svi.state_dict()
    torch.save(state, tmp_path / "state.pt")
    for _ in range(30):
        svi.step(x, y)
    spent, count = svi.get_epsilon(DELTA), svi.steps
    svi.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True), x, y)
    assert svi.steps == count
    assert svi.get_epsilon(DELTA) == spent
    for name, value in state["parameters"].items():
        assert torch.equal(dict(pyro.get_param_store().named_parameters())[name].detach(), value)

    pyro.clear_param_store()  # another process, with a ledger of its own
    there = made()
    there.load_state_dict(state, x, y)
    assert there.steps == 12
    there.step(x, y)
    assert there.get_epsilon(DELTA) > 0
    with pytest.raises(ValueError, match="state was changed"):
        there.load_state_dict({**state, "charged": 1}, x, y)


def test_an_experiment_repeats_and_goes_on_to_the_bit() -> None:
    x, y = table()

    def run(stop: int) -> list[Tensor]:
        pyro.clear_param_store()
        torch.manual_seed(0)
        svi = made(seed=3)
        for _ in range(stop):
            svi.step(x, y)
        if stop < 9:
            state = svi.state_dict()
            pyro.clear_param_store()
            torch.manual_seed(0)
            svi = made(seed=3)
            svi.load_state_dict(state, x, y)
            for _ in range(9 - stop):
                svi.step(x, y)
        assert not svi.worst_case(DELTA).reliable
        return [value.detach().clone() for value in pyro.get_param_store().values()]

    for one, other in zip(run(9), run(4), strict=True):
        assert torch.equal(one, other)


def test_a_record_that_model_or_guide_fail_on_counts_as_zero() -> None:
    """One label 7 of three, and one covariance that is not positive definite."""
    x, _ = table(40)
    x, y = x[:, :2], torch.arange(40) % 3
    more = torch.zeros(40, 2, 2)  # than the identity, of each record's covariance

    def model(x: Tensor, y: Tensor, more: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2, 3), 1.0).to_event(2))
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Categorical(logits=x @ w), obs=y)
            mean = w[:, 0].expand(len(x), 2)
            pyro.sample("x", dist.MultivariateNormal(mean, more + torch.eye(2)), obs=x)

    def trained(*odd: int) -> Tensor:
        pyro.clear_param_store()
        torch.manual_seed(0)
        given: Any = {"clip": 1.0, "noise_multiplier": 1e-3, "rate": 1.0, "seed": 0}
        svi = PrivateSVI(model, AutoNormal(model), SGD({"lr": 1e-3}), Trace_ELBO(), **given)
        keep = torch.tensor([one for one in range(40) if one not in odd])
        parts = (y, more) if odd else (bad, indefinite)
        data = tuple(one[keep] for one in (x, *parts))
        if odd:
            svi.step(*data)
        else:
            with pytest.warns(PrivacyUtilityWarning, match="2 gradients of records"):
                svi.step(*data)
            assert math.isfinite(svi.evaluate_loss(*data))
        return torch.cat([v.detach().flatten() for v in pyro.get_param_store().values()])

    bad, indefinite = y.clone(), more.clone()
    bad[7], indefinite[21, 0, 0] = 7, -2.0
    torch.testing.assert_close(trained(), trained(7, 21), rtol=1e-4, atol=1e-6)


def test_another_batch_is_refused_and_nothing_charged() -> None:
    x, y = table()
    svi = made()
    svi.step(x, y)
    with pytest.raises(
        ValueError, match=r"other records than in the first call, 100 and not 500: hand over all"
    ):
        svi.step(x[:100], y[:100])
    assert svi.steps == 1
    with pytest.raises(ValueError, match="other records than in the first call"):
        svi.step(x + 1, y)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip": 0.0}, "clip must be"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"rate": 1.5}, "rate"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(**settings)


def test_other_mistakes() -> None:
    x, y = table()
    with pytest.raises(ValueError, match=r"optim=Adam is none of pyro\.optim"):
        made(optim=torch.optim.Adam([torch.zeros(1, requires_grad=True)]))
    svi = made()
    for call in (lambda: svi.get_epsilon(DELTA), svi.state_dict, lambda: svi.ledger):
        with pytest.raises(ValueError, match="call step"):
            call()
    with pytest.raises(ValueError, match="the records are 0"):
        svi.step(x[:0], y[:0])
    with pytest.raises(ValueError, match="give the records, as tensors"):
        svi.step(3)
    with pytest.raises(ValueError, match=r"a tensor of the shape \(2,\) has not 500 rows"):
        svi.step(x, y[:2])
    with pytest.raises(ValueError, match="argument 1 is list, which may hold records"):
        svi.step(x, y.tolist())
    svi.step(x, y)
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.deepcopy(svi)
    broken = made(optim=SGD({"lr": math.inf}))
    pyro.clear_param_store()
    with pytest.raises(ValueError, match=r"use a lower learning rate.*Nothing was charged"):
        broken.step(x, y)


# A script as Pyro's tutorials write it; two lines change.


def test_a_site_that_is_gone_is_named() -> None:
    """A preflight cannot see what changes after it."""
    left = [1000]

    def model(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    def guide(x: Tensor, y: Tensor) -> None:
        loc = pyro.param("loc", torch.zeros(2))
        left[0] -= 1
        if left[0]:
            pyro.sample("w", dist.Normal(loc, 1.0).to_event(1))

    x = torch.randn(30, 2)
    made = PrivateSVI(
        model, guide, SGD({"lr": 0.01}), Trace_ELBO(), clip=1.0, noise_multiplier=2.0, rate=0.5
    )
    made.step(x, x[:, 0])
    left[0] = 1
    with pytest.raises(ValueError, match="latent site 'w' is not in this run of the guide"):
        made.step(x, x[:, 0])
    assert made.steps > 0
    pyro.clear_param_store()


def test_what_a_model_changes_in_place_stays_as_it_was() -> None:
    def model(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        x -= 1.0
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    x = torch.randn(30, 2)
    before, y = x.clone(), x[:, 0].clone()
    made = PrivateSVI(
        model,
        AutoNormal(model),
        SGD({"lr": 0.01}),
        Trace_ELBO(),
        clip=1.0,
        noise_multiplier=2.0,
        rate=1.0,
    )
    for _ in range(3):
        made.step(x, y)
    made.evaluate_loss(x, y)
    assert torch.equal(x, before)
    pyro.clear_param_store()
