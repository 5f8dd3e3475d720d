"""What SVI trains, PrivateSVI trains along the same path: every distribution, guide and handler."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.distributions import stable
from pyro.infer.autoguide import AutoGuideList
from pyro.infer.reparam import SplitReparam
from torch import Tensor

import bdpvi
from bdpvi.programs import effects


def _benchmark() -> ModuleType:
    folder = Path(__file__).parents[2] / "benchmarks"
    sys.path.append(str(folder))
    try:
        spec = importlib.util.spec_from_file_location("pyro_features", folder / "pyro_features.py")
        assert spec is not None
        assert spec.loader is not None
        result = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = result  # dataclasses look their module up
        spec.loader.exec_module(result)
    finally:
        sys.path.remove(str(folder))
    return result


features = _benchmark()
ROWS = {f"{row.kind}: {row.name}": row for row in features.rows()}
OTHERWISE = {
    "guide: AutoGaussian, dense": features.OTHER,
}
NOT_RECORDED = {
    "target: SineBivariateVonMises",
    "target: SineSkewed",
    "target: Wishart",
    "reparam: LatentStableReparam",
    "reparam: ProjectedNormalReparam",
    "reparam: SymmetricStableReparam",
}
NOT_BY_SVI = {
    "site: plate in sequence",
    "latent: ImproperUniform",
    "latent: Wishart",
    "guide: AutoGaussian, funsor",
    *(f"target: {name}" for name in ("GeneralizedPareto",) if not hasattr(dist, name)),
}
"""The last one is newer than the oldest torch."""


@pytest.mark.parametrize("name", ROWS)
def test_parameters_are_those_of_svi_to_1e_6(name: str) -> None:
    how, why = features.compared(ROWS[name], steps=2)
    if how == features.NOT_BY_SVI:
        assert name in NOT_BY_SVI, why
    else:
        assert how == OTHERWISE.get(name, features.AS_SVI), why


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_recorded_steps_are_those_of_svi_and_few_fall_back(name: str) -> None:
    how, why = features.compared(ROWS[name], steps=3, recorded=True)
    if how == features.NOT_BY_SVI:
        assert name in NOT_BY_SVI, why
    else:
        assert how == OTHERWISE.get(name, features.AS_SVI), why
    if how == features.AS_SVI:
        assert ("cannot be recorded" in why) == (name in NOT_RECORDED), why


def test_all_features_but_one_are_trained() -> None:
    able = len(ROWS) - len(NOT_BY_SVI)
    assert len(OTHERWISE) == 1
    assert able - len(OTHERWISE) >= 139


N = 3000


def private(model: Any, x: Any, y: Any, **given: Any) -> bdpvi.Release:
    route = bdpvi.DPVI(rows=N, steps=200, progress=False)
    return bdpvi.fit_private(model, (x, y), epsilon=5.0, route=route, **given)


def wards(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(w[x[:, 0]], 0.5), obs=y)


def test_whole_numbers_stay_indices_in_training_draws_and_predictions(tmp_path: Path) -> None:
    ward = torch.arange(N)[:, None] % 3
    y = torch.tensor([0.0, 1.0, 1.5])[ward[:, 0]] + 0.1 * torch.sin(torch.arange(N))
    made = private(wards, ward, y)
    means = torch.tensor([0.0, 1.0, 1.5])
    assert torch.allclose(made.predict_mean(ward[:3]), means, atol=0.15)
    assert made.with_draws(7).latents["w"].shape == (7, 3)
    bdpvi.save_release(made, tmp_path / "wards.json")
    again = bdpvi.load_release(tmp_path / "wards.json", wards)
    assert torch.allclose(again.predict_mean(ward[:3]).float(), made.predict_mean(ward[:3]))
    assert again.with_draws(7).latents["w"].shape == (7, 3)


def test_indices_in_an_array_are_refused_with_the_remedy() -> None:
    ledger = bdpvi.Ledger()
    ward = (torch.arange(N)[:, None] % 3).numpy()
    with pytest.raises(ValueError, match="hand indices over as a torch tensor of whole numbers"):
        private(wards, ward, ward[:, 0] * 1.0, ledger=ledger)
    assert not ledger.book().entries
    private(wards, torch.from_numpy(ward), torch.from_numpy(ward[:, 0] * 1.0), ledger=ledger)


def test_a_guide_in_parts_is_copied_and_stays_as_it_was() -> None:
    guide = features.in_parts(features.groups)
    assert isinstance(guide, AutoGuideList)
    x = torch.sin(torch.arange(2.0 * N)).reshape(N, 2)
    y = x @ torch.tensor([0.5, -0.5])
    made = private(features.groups, x, y, guide=guide)
    assert made.latents["w"].shape == (1000, 2)
    assert all(part.master() is guide and callable(part.model) for part in guide)
    assert private(features.groups, x, y, guide=guide).latents.keys() == made.latents.keys()


def test_a_stable_density_is_pyros_everywhere() -> None:
    """Also where Pyro interpolates, near α = 1 and near 0, with the gradient."""
    alpha = torch.tensor([0.6, 0.97, 1.0, 1.02, 1.5, 1.9]).double()[:, None, None]
    beta = torch.tensor([-0.7, 0.0, 0.4]).double()[:, None]
    value = torch.tensor([-4.0, -0.02, 0.0, 0.005, 0.3, 5.0]).double()
    alpha, beta, value = (one.clone() for one in torch.broadcast_tensors(alpha, beta, value))
    value.requires_grad_()
    expected = stable._stable_log_prob(alpha, beta, value, "S0")
    found = effects._stable(alpha, beta, value, "S0")
    torch.testing.assert_close(found, expected)
    slopes = [torch.autograd.grad(one.sum(), value)[0] for one in (expected, found)]
    torch.testing.assert_close(slopes[1], slopes[0])


def test_split_and_conditioned_latents_are_released_as_any_others() -> None:
    x = torch.sin(torch.arange(2.0 * N)).reshape(N, 2)
    y = x @ torch.tensor([0.5, -0.5])

    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
        scale = pyro.sample("scale", dist.LogNormal(x.new_zeros(()), 1.0))
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Normal(x @ w, scale), obs=y)

    fixed = pyro.poutine.condition(model, data={"scale": torch.ones(())})
    apart = pyro.poutine.reparam(fixed, {"w": SplitReparam([1, 1], -1)})
    made = private(apart, x, y)
    assert set(made.latents) == {"w_split_0", "w_split_1"}
    assert torch.allclose(made.predict_mean(x[:5]), y[:5], atol=0.3)
