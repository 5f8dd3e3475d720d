"""Releases in the hands of Pyro and ArviZ."""

from __future__ import annotations

import sys
from pathlib import Path

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Predictive
from simulated import logistic_data
from torch import Tensor

import bdpvi
from bdpvi import Coupled, Release
from bdpvi.guides import MeanField
from bdpvi.models.contract import Model
from bdpvi.releases.shared_file import load_release, save_release

DRAWS = 400


def positive_scale(x: Tensor, y: Tensor | None = None) -> None:
    """A user's own model: a line whose noise is a latent scalar."""
    w = pyro.sample("w", dist.Normal(x.new_zeros(()), 1.0).expand([x.shape[1]]).to_event(1))
    noise = pyro.sample("noise", dist.LogNormal(x.new_zeros(()), 0.1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(x @ w, noise), obs=y)


@pytest.fixture(scope="module", params=["logistic", "own"])
def released(request: pytest.FixtureRequest) -> Release:
    logistic = bdpvi.BayesianLogisticRegression(clip=0.3, intercept=True)
    model: Model = logistic if request.param == "logistic" else positive_scale
    fit = bdpvi.fit(
        model,
        MeanField(model),
        logistic_data(60, 3),
        training=bdpvi.Training(steps=20, seed=0),
        neighbours=Coupled(),
        progress=False,
    )
    return bdpvi.release(fit, DRAWS, temperature=1e4)


def test_predictive_takes_a_release(released: Release) -> None:
    x = logistic_data(5, 3, seed=1).x
    pyro.set_rng_seed(0)
    predictive = Predictive(released.model, posterior_samples=released.latents)
    found = predictive(x)["y"]
    assert found.shape == (DRAWS, 5)
    weights = released.latents["w"]
    own = getattr(released.model, "model", None) is positive_scale
    means = weights @ x.T if own else torch.sigmoid(weights[:, :3] @ x.T + weights[:, 3:])
    assert ((found - means).mean(0).abs() < 5 * found.std(0) / DRAWS**0.5).all()


def test_arviz_reads_a_release(released: Release, tmp_path: Path) -> None:
    arviz = pytest.importorskip("arviz")
    save_release(released, tmp_path / "release.json")
    shared = load_release(tmp_path / "release.json", released.model)
    x = logistic_data(5, 3, seed=1).x.float()
    for one in (released, shared):
        found = one.to_inference_data(x)
        assert set(found["posterior"].data_vars) == set(one.latents)
        for name, values in one.latents.items():
            assert (found["posterior"][name].values == values.numpy()[None]).all()
        assert found["posterior_predictive"]["y"].shape == (1, DRAWS, 5)
        assert len(arviz.summary(found, kind="stats")) == sum(
            values[0].numel() for values in one.latents.values()
        )
        attributes, bound = found["posterior"].attrs, one.receipt.bound
        name = bound.kind.name.lower()
        assert attributes[f"{name}_epsilon"] == bound.epsilon
        assert attributes["draws"] == DRAWS
        assert all(x.value in attributes[f"{name}_assumptions"] for x in bound.assumptions)
        assert all(type(value) in (str, int, float) for value in attributes.values())
    assert "posterior_predictive" not in shared.to_inference_data()


def test_bad_features_and_a_missing_arviz_are_named(
    released: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"x must have shape \(records, 3\), got \(2, 4\)"):
        released.to_inference_data(torch.zeros(2, 4))
    with pytest.raises(ValueError, match="x has a value that is not finite"):
        released.to_inference_data(torch.full((2, 3), float("nan")))
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(ImportError, match="pip install 'bdpvi"):
        released.to_inference_data()
