"""Models of several arguments: by position, by name, by index, and as a pair are one training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset as Whole
from torch.utils.data import TensorDataset

import bdpvi
from bdpvi.datasets.named import by_argument
from bdpvi.models.misfits import MisfitError
from bdpvi.noise.keys import Key
from bdpvi.programs.training import SuitedDPVI
from bdpvi.regression.objective import ObjectivePerturbation
from bdpvi.releases.route import Allowance

N = 3000
WARD = torch.arange(N) % 3
X = torch.sin(torch.arange(2.0 * N)).reshape(N, 2)
Y = X @ torch.tensor([0.5, -0.5]) + torch.tensor([0.0, 1.0, 1.5])[WARD]
ROUTE = bdpvi.DPVI(rows=N, steps=60, progress=False)
PACKED = torch.cat([X, WARD[:, None].float()], 1)
BY_NAME = {"y": Y, "ward": WARD, "x": X}


def wards(x: Tensor, ward: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    effect = pyro.sample("effect", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(x @ w + effect[ward], 0.5), obs=y)


def packed(x: Tensor, y: Tensor | None = None) -> None:
    wards(x[:, :2], x[:, 2].long(), y)


def guide(x: Tensor, ward: Tensor, y: Tensor | None = None) -> None:
    for name, size in (("w", 2), ("effect", 3)):
        loc = pyro.param(f"{name}_loc", torch.zeros(size))
        scale = pyro.param(f"{name}_scale", 0.1 * torch.ones(size), dist.constraints.positive)
        pyro.sample(name, dist.Normal(loc, scale).to_event(1))


def packed_guide(x: Tensor, y: Tensor | None = None) -> None:
    guide(x, x, y)


class Rows(Whole):  # type: ignore[type-arg]
    """The records as mappings."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, at: int) -> dict[str, Tensor]:
        return {name: one[at] for name, one in BY_NAME.items()}


def trained(model: Any, data: Any, guide: Any) -> dict[str, Tensor]:
    """Return a training with the noise of one key."""
    route = SuitedDPVI.of(ROUTE, model, data, guide)
    allowance = Allowance(5.0, 1e-5, 0.0)
    plan = route.plan(model, 1, allowance)
    with pyro.get_param_store().scope():
        return dict(route.draw(model, data, plan.with_noise(1.0), Key(b"k" * 32)).latents)


@pytest.fixture(scope="module")
def as_a_pair() -> dict[str, Tensor]:
    return trained(packed, bdpvi.Dataset(PACKED, Y), packed_guide)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param((X, WARD, Y), id="position"),
        pytest.param((X.numpy(), WARD.numpy(), Y.numpy()), id="arrays"),
        pytest.param(BY_NAME, id="name"),
        pytest.param(TensorDataset(X, WARD, Y), id="items"),
        pytest.param(Rows(), id="mappings"),
    ],
)
def test_a_training_is_that_of_the_pair_to_the_bit(
    given: Any, as_a_pair: dict[str, Tensor]
) -> None:
    if isinstance(given, tuple) and isinstance(given[0], np.ndarray):
        data = by_argument(wards, given)
        assert [one.dtype for one in data.like] == [torch.float64, torch.int64, torch.float64]
        return
    found = trained(wards, by_argument(wards, given), guide)
    assert found.keys() == as_a_pair.keys()
    assert all(torch.equal(found[name], as_a_pair[name]) for name in found)


@pytest.mark.parametrize("given", [(X, WARD, Y), BY_NAME, Rows()], ids=["tuple", "name", "items"])
def test_a_saved_release_predicts_as_before(given: Any, tmp_path: Path) -> None:
    route = bdpvi.DPVI(rows=N, steps=200, progress=False)
    made = bdpvi.fit_private(wards, given, epsilon=5.0, route=route)
    assert made.feature_names == ("x", "ward")
    x, ward = X[:6], WARD[:6]
    found = made.predict_mean({"ward": ward, "x": x})
    assert torch.allclose(found, Y[:6], atol=0.25)
    assert torch.equal(made.predict_mean((x, ward)), found)
    bdpvi.save_release(made, tmp_path / "wards.json")
    again = bdpvi.load_release(tmp_path / "wards.json", wards)
    assert torch.allclose(again.predict_mean((x, ward)).float(), found)
    arrays = again.predict_mean({"ward": ward.numpy(), "x": x.numpy()})
    assert isinstance(arrays, np.ndarray)
    assert np.allclose(arrays, found)
    assert again.with_draws(7).latents["effect"].shape == (7, 3)
    with pytest.raises(ValueError, match="x has no feature 'x'"):
        made.predict_mean({"ward": ward})
    with pytest.raises(ValueError, match=r"x must have shape \(records, 2\)"):
        made.predict_mean({"ward": ward, "x": x[:, :1]})
    with pytest.raises(ValueError, match="ward"):
        made.predict_mean({"ward": ward[:2], "x": x})


def test_sizes_that_a_file_declares_take_no_memory(tmp_path: Path) -> None:
    made = bdpvi.fit_private(wards, BY_NAME, epsilon=5.0, route=ROUTE)
    bdpvi.save_release(made, tmp_path / "release.json")
    written = json.loads((tmp_path / "release.json").read_text())
    written["guide"]["arguments"][0]["shape"] = [2**40]
    (tmp_path / "large.json").write_text(json.dumps(written))
    with pytest.raises(ValueError, match="must be at most 1048576"):
        bdpvi.load_release(tmp_path / "large.json", wards).with_draws(3)


def test_columns_of_a_frame_are_arguments() -> None:
    def model(dose: Tensor, old: Tensor, *, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with pyro.plate("records", len(dose)):
            pyro.sample("y", dist.Bernoulli(logits=torch.where(old, w[0], w[1]) * dose), obs=y)

    frame = pd.DataFrame({"dose": np.ones(N), "old": np.arange(N) % 2 == 0})
    frame["y"] = frame["old"] * 1.0
    made = bdpvi.fit_private(model, frame, epsilon=5.0, route=ROUTE)
    assert made.predict(frame[:4]).tolist() == [1, 0, 1, 0]
    assert made.predict_mean(frame[:4]).index.equals(frame[:4].index)


def test_records_that_are_not_finite_are_left_out_one_by_one() -> None:
    y = Y.clone()
    y[3] = torch.nan
    x = X.clone()
    x[5, 1] = torch.inf
    with pytest.warns(bdpvi.PrivacyUtilityWarning, match="2 records"):
        data = by_argument(wards, (x, WARD, y))
    assert len(data) == N - 2
    keep = torch.ones(N, dtype=torch.bool)
    keep[[3, 5]] = False
    assert data.fingerprint() == by_argument(wards, (X[keep], WARD[keep], Y[keep])).fingerprint()


def test_check_tries_a_model_of_several_arguments() -> None:
    torch.set_default_dtype(torch.float32)
    for given in ((X, WARD, Y), BY_NAME, Rows(), TensorDataset(X, WARD, Y)):
        bdpvi.check(wards, guide, given)

    def centred(x: Tensor, ward: Tensor, y: Tensor | None = None) -> None:
        wards(x - x.mean(0), ward, y)

    with pytest.raises(MisfitError, match="depends on other records"):
        bdpvi.check(centred, guide, BY_NAME)
    bdpvi.check(packed, bdpvi.guides.MeanField(packed), TensorDataset(torch.zeros(5, 3), Y[:5]))


def no_target(x: Tensor, ward: Tensor, y: Tensor) -> None:
    wards(x, ward, y)


def target_in_use(x: Tensor, ward: Tensor, y: Tensor | None = None) -> None:
    assert y is not None
    wards(x + 0 * y.mean(), ward, y)


@pytest.mark.parametrize(
    ("model", "given", "said"),
    [
        (wards, (X, WARD[:5], Y), "ward has 5 entries, x has 3000"),
        (wards, {**BY_NAME, "ward": ["a"] * N}, "ward must be numbers"),
        (wards, {**BY_NAME, "age": Y}, "data has 'age', which is no argument of the model"),
        (wards, {"x": X, "y": Y}, "data has not 'ward'"),
        (wards, (X, WARD, Y, Y), "data has 4 tensors, and the model takes 3 arguments"),
        (wards, {**BY_NAME, "ward": torch.tensor(1)}, "ward must have a row for each record"),
        (wards, {}, "data has no argument"),
        (wards, {1: X}, "data must have different texts as names"),
        (lambda y=None: None, {"y": Y}, "observes no site"),
        (target_in_use, BY_NAME, "without its targets"),
    ],
)
def test_refused_before_a_charge(model: Any, given: Any, said: str) -> None:
    ledger = bdpvi.Ledger()
    with pytest.raises(ValueError, match=said):
        bdpvi.fit_private(model, given, epsilon=1.0, route=ROUTE, ledger=ledger)
    assert not ledger.book().entries


def test_a_secret_posterior_and_other_routes_need_a_pair() -> None:
    with pytest.raises(ValueError, match="fit_private takes a tensor for each argument"):
        bdpvi.fit(wards, bdpvi.guides.MeanField(wards), BY_NAME)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"route=ObjectivePerturbation needs a pair"):
        bdpvi.fit_private(wards, BY_NAME, epsilon=1.0, route=ObjectivePerturbation())
    with pytest.raises(ValueError, match=r"model=BayesianLogisticRegression needs a pair"):
        bdpvi.fit_private(bdpvi.BayesianLogisticRegression(), BY_NAME, epsilon=1.0)
