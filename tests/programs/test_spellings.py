"""A model of records without targets, as people write it: PrivateSVI and fit_private take it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor

import bdpvi

N = 3000
DATA = torch.randn(N, 2, generator=torch.Generator().manual_seed(1)) + torch.tensor([1.0, -0.5])
ROUTE = bdpvi.DPVI(rows=N, steps=100)


def centre() -> Tensor:
    w: Tensor = pyro.sample("w", dist.Normal(torch.zeros(2), 2.0).to_event(1))
    return w


def law(w: Tensor) -> Any:
    return dist.Normal(w, 1.0).to_event(1)


def plain(data: Tensor) -> None:
    w = centre()
    with pyro.plate("data", len(data)):
        pyro.sample("obs", law(w), obs=data)


def by_shape(data: Tensor) -> None:
    w = centre()
    with pyro.plate("d", data.shape[-2], dim=-2), pyro.plate("columns", data.shape[-1], dim=-1):
        pyro.sample("obs", dist.Normal(w, 1.0), obs=data)


def by_index(data: Tensor) -> None:
    w = centre()
    with pyro.plate("data", size=len(data), subsample_size=50) as i:
        pyro.sample("obs", law(w), obs=data[i])


def given_indices(data: Tensor) -> None:
    w = centre()
    with pyro.plate("data", size=len(data), subsample=torch.randint(len(data), (50,))) as i:
        pyro.sample("obs", law(w), obs=data[i])


def in_sequence(data: Tensor) -> None:
    w = centre()
    for i in pyro.plate("data", data.shape[0]):
        pyro.sample(f"obs_{i}", law(w), obs=data[i])


def by_default(data: Tensor | None = None) -> None:
    w = centre()
    with pyro.plate("data", 10 if data is None else data.size(0)):
        pyro.sample("obs", law(w), obs=data)


def by_factor(data: Tensor) -> None:
    w = centre()
    with pyro.plate("data", len(data)):
        pyro.factor("likelihood", law(w).log_prob(data))


TAKEN = (plain, by_shape, by_index, given_indices, in_sequence, by_default, by_factor)


def of_all(data: Tensor) -> None:
    w = centre()
    pyro.sample("obs", dist.Normal(w, 1.0).expand([len(data), 2]).to_event(2), obs=data)


def one_by_one(data: Tensor) -> None:
    w = centre()
    for i in range(len(data)):
        pyro.sample(f"obs_{i}", law(w), obs=data[i])


def one_factor(data: Tensor) -> None:
    pyro.factor("likelihood", law(centre()).log_prob(data).sum())


@pytest.mark.parametrize("model", TAKEN, ids=lambda model: str(model.__name__))
def test_each_spelling_is_the_same_model(model: Callable[..., None]) -> None:
    made = bdpvi.fit_private(model, DATA, epsilon=2.0, route=ROUTE)
    assert torch.allclose(made.latents["w"].mean(0), DATA.mean(0), atol=0.25)
    pyro.clear_param_store()
    optim: Any = pyro.optim.Adam({"lr": 0.05})
    settings: dict[str, Any] = {"noise_multiplier": 1.0, "rate": 0.02}
    svi = bdpvi.PrivateSVI(model, AutoNormal(model), optim, Trace_ELBO(), clip=3.0, **settings)
    svi.step(DATA)
    assert svi.steps == 1
    pyro.clear_param_store()


@pytest.mark.parametrize("model", [of_all, one_by_one, one_factor])
def test_a_site_in_no_plate_is_told_of_it(model: Callable[..., None]) -> None:
    ledger = bdpvi.Ledger()
    with pytest.raises(ValueError, match=re.escape('`with pyro.plate("records", len(x)):`')):
        bdpvi.fit_private(model, DATA, epsilon=1.0, route=ROUTE, ledger=ledger)
    assert not ledger.book().entries


def test_predictions_are_of_as_many_records_as_are_given(tmp_path: Path) -> None:
    made = bdpvi.fit_private(plain, (DATA,), epsilon=2.0, route=ROUTE)
    bdpvi.save_release(made, tmp_path / "centre.json")
    for one in (made, bdpvi.load_release(tmp_path / "centre.json", plain)):
        mean = one.predict_mean(DATA[:3])
        assert mean.shape == (3, 2)
        assert torch.allclose(mean[0].float(), made.latents["w"].mean(0).float(), atol=0.01)
    with pytest.raises(ValueError, match=r"shape \(records, 2\)"):
        made.predict_mean(DATA[:3, :1])


def test_a_factor_has_no_expected_target() -> None:
    made = bdpvi.fit_private(by_factor, DATA, epsilon=2.0, route=ROUTE)
    with pytest.raises(ValueError, match="has no target that is sampled"):
        made.predict_mean(DATA[:3])
