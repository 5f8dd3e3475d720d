"""What a step shows of its loss: nothing, or what is charged."""

from __future__ import annotations

import math
import pickle
from typing import Any

import dp_accounting
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from pyro.infer import JitTrace_ELBO, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.optim import SGD, Adam
from steps import made, model, table
from torch import Tensor
from torch.utils.data import DataLoader, Subset, TensorDataset

from bdpvi import Ledger, PrivacyUtilityWarning, PrivateSVI
from bdpvi.noise.keys import Key
from bdpvi.programs.shown_loss import Undisclosed
from bdpvi.releases.noisy_sum import NoisySum

pytestmark = pytest.mark.usefixtures("fresh_store")
DELTA = 1e-5


def test_a_script_that_uses_the_loss_runs_as_it_is() -> None:
    x, y = table()
    svi, losses, total = made(), [], 0.0
    for epoch in range(3):
        loss = svi.step(x, y)
        total += loss / len(x)
        losses.append(loss)
        assert f"[{epoch}] loss: {loss:.4f} {loss / 2**epoch:8.2f}".endswith(
            "loss: undisclosed undisclosed"
        )
    assert isinstance(loss, float)
    kept = (total, sum(losses) / len(losses), -loss, 3 - loss, 1 / loss, round(loss), abs(loss))
    assert all(type(one) is Undisclosed for one in (*kept, round(loss, 3), loss % 2, loss // 1))
    assert math.isnan(loss)
    assert not loss < 1e9
    assert "%.3f" % loss == "nan"  # noqa: UP031
    assert str(pickle.loads(pickle.dumps(loss))) == str(Undisclosed(3.0)) == "undisclosed"
    assert np.isnan(np.mean(losses))
    assert np.isnan(loss * np.ones(2)).all()
    with pytest.raises(ValueError, match="NaN"):
        int(loss)
    with pytest.raises(TypeError):
        loss + "1"  # type: ignore[operator]


@pytest.mark.parametrize("loss", [Trace_ELBO, JitTrace_ELBO])
def test_without_noise_and_bound_it_is_the_loss_of_svi(loss: Any) -> None:
    x, y = table()
    svi = made(loss=loss(), rate=1.0, seed=5, noise_multiplier=1e-3, noisy_loss=(1e4, 1e-9))
    found = svi.step(x, y)
    draws = svi._mechanism.seed_of(0)
    pyro.clear_param_store()
    torch.manual_seed(0)
    guide = AutoNormal(model)
    guide(x, y)
    torch.manual_seed(draws)
    assert found == pytest.approx(Trace_ELBO().loss(model, guide, x, y), rel=1e-3)


def gaussian(*noises: float) -> Any:
    return dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(one) for one in noises])


@pytest.mark.parametrize("noises", [(3.0, 3.0), (3.0, 12.0), (5.0, 1.5)])
def test_a_step_costs_both_mechanisms(noises: tuple[float, float]) -> None:
    """At rate 1 as if one came after the other; in a sample by what dp_accounting says of both."""
    x, y = table()
    svi = made(rate=1.0, noise_multiplier=noises[0], noisy_loss=(2.0, noises[1]), ledger=Ledger())
    svi.step(x, y)
    wanted = PLDAccountant().compose(gaussian(*noises)).get_epsilon(DELTA)
    assert svi.get_epsilon(DELTA) == pytest.approx(wanted, rel=2e-3)
    pyro.clear_param_store()
    svi = made(noise_multiplier=noises[0], noisy_loss=(2.0, noises[1]), ledger=Ledger())
    for _ in range(10):
        svi.step(x, y)
    sampled = dp_accounting.PoissonSampledDpEvent(0.1, gaussian(*noises))
    ours = svi.get_epsilon(DELTA)
    rdp = RdpAccountant().compose(sampled, 10).get_epsilon(DELTA)
    single = dp_accounting.GaussianDpEvent((sum(one**-2 for one in noises)) ** -0.5)
    pld = PLDAccountant().compose(dp_accounting.PoissonSampledDpEvent(0.1, single), 10)
    assert ours <= rdp
    assert ours == pytest.approx(pld.get_epsilon(DELTA), rel=5e-3)


def test_noise_is_as_said_and_a_record_moves_both_sums_by_less_than_is_charged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sums in units of their noise: none moves by more than 1/z, and the longest by that."""
    x, y = table(12)
    x, clip, bound, z, its, rate = 20 * x, 0.3, 2.0, 3.0, 1.5, 0.5
    keep = torch.arange(12)
    monkeypatch.setattr(NoisySum, "batch", lambda mechanism, step: keep)

    def shifted(by: float) -> tuple[Tensor, float]:
        """Return the gradients that a step subtracts, and its loss, with constant noise."""
        pyro.clear_param_store()
        torch.manual_seed(0)
        settings: dict[str, Any] = {"noise_multiplier": z, "noisy_loss": (bound, its), "seed": 1}
        svi = made(optim=SGD({"lr": 1.0}), clip=clip, rate=rate, **settings)

        def noisy(mechanism: NoisySum, totals: list[Tensor], key: Key) -> list[Tensor]:
            return [total + by * mechanism.deviation for total in totals]

        monkeypatch.setattr(NoisySum, "noisy", noisy)
        found: list[Tensor] = []
        backward = type(svi)._prepare(svi, (x, y), {})[0].program.pull_back

        def seen(self: Any, draw: Any, total: Tensor) -> Any:
            found.append(total.clone())
            return backward(draw, total)

        with monkeypatch.context() as patch:
            patch.setattr("bdpvi.programs.program.Program.pull_back", seen)
            loss = svi.step(x, y)
        return found[-1], loss

    (none, plain), (some, more) = shifted(0.0), shifted(1.0)
    torch.testing.assert_close(
        some - none, torch.full_like(none, z * clip / rate), rtol=1e-5, atol=0.0
    )
    assert more - plain == pytest.approx(its * bound / rate, rel=1e-5)
    moved = []
    for left_out in range(12):
        keep = torch.tensor([one for one in range(12) if one != left_out])
        gradients, loss = shifted(0.0)
        part = (none - gradients).norm() * rate / (z * clip)
        moved.append(math.hypot(float(part), (plain - loss) * rate / (its * bound)))
    most = math.sqrt(z**-2 + its**-2)
    assert most * 0.9999 < max(moved) <= most


def test_a_loss_that_is_not_finite_counts_as_zero_and_only_the_owner_is_told() -> None:
    x, y = table(40)
    y = y.clone()
    y[3], y[5] = torch.nan, torch.inf
    settings: dict[str, Any] = {"rate": 1.0, "noise_multiplier": 1e-3, "noisy_loss": (1e4, 1e-9)}
    svi = made(seed=1, **settings)
    with pytest.warns(PrivacyUtilityWarning, match="for the owner only.*2 gradients of records"):
        found = svi.step(x, y)
    pyro.clear_param_store()
    torch.manual_seed(0)
    rest = torch.tensor([one for one in range(40) if one not in (3, 5)])
    assert found == pytest.approx(made(seed=1, **settings).step(x[rest], y[rest]), rel=1e-4)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (3.0, "noisy_loss=3.0: give a pair"),
        ((1.0, 2.0, 3.0), "give a pair"),
        ((0.0, 2.0), r"noisy_loss\[0\]"),
        ((1.0, -1.0), r"noisy_loss\[1\]"),
        ((math.inf, 1.0), r"noisy_loss\[0\]"),
        ((1.0, math.nan), r"noisy_loss\[1\]"),
    ],
)
def test_what_is_no_bound_or_no_noise_is_refused_by_name(given: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        made(noisy_loss=given)


def test_copies_are_understood_and_loaders_are_told_at_once() -> None:
    x, y = table()
    loader, ledger = DataLoader(TensorDataset(x, y), batch_size=50), Ledger()
    with pytest.raises(ValueError, match="argument 0 is DataLoader: hand over its records, as by"):
        made(ledger=ledger).step(loader)
    assert not ledger.entries()
    svi = made()
    svi.step(x, y)
    svi.step(x.clone(), y.clone())
    for again in (TensorDataset(x, y), TensorDataset(x.clone(), y.clone())):
        svi.step(DataLoader(again, batch_size=50).dataset)
    assert svi.steps == 4
    with pytest.raises(ValueError, match="other records than in the first call"):
        svi.step(TensorDataset(x + 1, y))
    with pytest.raises(ValueError, match="by one object if they are read by index"):
        svi.step(Subset(TensorDataset(x, y), range(len(x))))
    pyro.clear_param_store()
    svi = made()
    batches = iter(loader)
    svi.step(*next(batches))
    with pytest.raises(ValueError, match="and not the batches of a DataLoader"):
        svi.step(*next(batches))
    assert svi.steps == 1


def test_a_batch_that_is_smaller_than_its_plate_is_told_at_once() -> None:
    x, y = table()

    def scaled(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", 300, subsample=x):
            pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    def stepped(*records: Tensor) -> None:
        pyro.clear_param_store()
        guide, loss = AutoNormal(scaled), Trace_ELBO()
        svi = PrivateSVI(
            scaled, guide, Adam({"lr": 0.1}), loss, clip=1.0, noise_multiplier=2.0, rate=0.1
        )
        svi.step(*records)

    stepped(x, y)
    with pytest.warns(PrivacyUtilityWarning, match="'data' has the size 300, and 50 records were"):
        stepped(x[:50], y[:50])
