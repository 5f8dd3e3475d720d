"""Groups with an effect that is integrated out: against quadrature, closed forms, a whole fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from bdpvi._ground.types import PrivacyUtilityWarning
from bdpvi.datasets.groups import padded
from bdpvi.models.grouped import RandomIntercept

LAWS: dict[str, Callable[[Tensor], Any]] = {
    "bernoulli": lambda a: dist.Bernoulli(logits=a),
    "poisson": lambda a: dist.Poisson(a.exp()),
    "normal": lambda a: dist.Normal(a, 0.7),
    "negative binomial": lambda a: dist.NegativeBinomial(3.0, logits=a - math.log(3.0)),
}


def groups(rows: int, seed: int = 0) -> Tensor:
    return torch.randn(6, rows, generator=torch.Generator().manual_seed(seed)).double()


@pytest.mark.parametrize("spread", [0.05, 0.6, 1.5])
@pytest.mark.parametrize("rows", [1, 4, 60])
@pytest.mark.parametrize("name", LAWS)
def test_the_effect_is_integrated_out(name: str, rows: int, spread: float) -> None:
    """Against scipy's adaptive quadrature of each group alone."""
    eta, law, tau = groups(rows), LAWS[name], torch.tensor(spread).double()
    torch.manual_seed(1)
    y = law(eta + tau * torch.randn(6, 1).double()).sample().double()
    found = RandomIntercept(law, eta, tau).log_prob(y)
    grid = np.linspace(-9, 9, 40_001)
    for one, at in enumerate(eta):
        z = torch.from_numpy(grid)[:, None]
        inside = law(at + tau * z).log_prob(y[one]).sum(1).numpy() + stats.norm.logpdf(grid)
        most = inside.max()
        wanted = most + math.log(integrate.simpson(np.exp(inside - most), x=grid))
        assert float(found[one]) == pytest.approx(wanted, abs=2e-4)


def test_normal_rows_have_a_normal_law_whatever_is_padded() -> None:
    eta, y = groups(5), groups(5, 2)
    present = torch.rand(6, 5, generator=torch.Generator().manual_seed(3)) < 0.6
    found = RandomIntercept(LAWS["normal"], eta, torch.tensor(1.3).double(), present)
    filled = torch.where(present, y, 1e3)
    for at, there in enumerate(present):
        n = int(there.sum())
        cov = 0.49 * torch.eye(n).double() + 1.69
        law = dist.MultivariateNormal(eta[at, there], cov) if n else None
        wanted = float(law.log_prob(y[at, there])) if law else 0.0
        assert float(found.log_prob(filled)[at]) == pytest.approx(wanted, abs=1e-6)


def test_gradients_are_those_of_the_integral() -> None:
    eta, tau = groups(8).requires_grad_(), torch.tensor(0.9).double().requires_grad_()
    y = (groups(8, 4) > 0).double()

    def value(eta: Tensor, tau: Tensor) -> Tensor:
        return RandomIntercept(LAWS["bernoulli"], eta, tau).log_prob(y)

    assert torch.autograd.gradcheck(value, (eta, tau), atol=1e-5)


def test_means_and_draws_are_those_of_the_mixture() -> None:
    """The mean against quadrature by scipy; draws by Monte Carlo, within four errors."""
    eta = torch.tensor([[-1.0, 0.5, 9.0]]).double().expand(40_000, 3)
    present = torch.tensor([True, True, False])
    law = RandomIntercept(LAWS["bernoulli"], eta, torch.tensor(1.5).double(), present)
    wanted = [
        integrate.quad(lambda z: stats.norm.pdf(z) / (1 + math.exp(-a - 1.5 * z)), -9, 9)[0]  # noqa: B023
        for a in (-1.0, 0.5)
    ]
    assert law.mean[0].tolist() == pytest.approx([*wanted, 0.0], abs=1e-4)
    torch.manual_seed(0)
    drawn = law.sample()
    assert drawn[:, 2].sum() == 0
    assert drawn.mean(0)[:2].tolist() == pytest.approx(wanted, abs=4 * 0.5 / 200)

    def both(z: float) -> float:
        return float(
            stats.norm.pdf(z) / (1 + math.exp(1 - 1.5 * z)) / (1 + math.exp(-0.5 - 1.5 * z))
        )

    together = float((drawn[:, 0] * drawn[:, 1]).mean())
    assert together == pytest.approx(integrate.quad(both, -9, 9)[0], abs=0.01)


def test_a_mask_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="present has the shape"):
        RandomIntercept(LAWS["normal"], groups(5), torch.tensor(1.0), torch.ones(6, 4))


def test_padding_keeps_each_group_s_first_rows_and_tells_of_the_others() -> None:
    values = {"x": torch.arange(12.0).reshape(6, 2), "ward": torch.arange(6)}
    values["x"][4, 0] = math.nan
    names = ["b", "a", "b", "b", "a", None]
    with pytest.warns(PrivacyUtilityWarning) as told:
        found = padded(names, rows_per_unit=2, **values)
    assert sorted(str(one.message).split(":")[1] for one in told) == [
        " 1 row left out", " 2 rows left out",
    ]  # fmt: skip
    assert found["x"].tolist() == [[[0.0, 1.0], [4.0, 5.0]], [[2.0, 3.0], [0.0, 0.0]]]
    assert found["ward"].tolist() == [[0, 2], [1, 0]]
    assert found["ward"].dtype == torch.int64
    assert found["present"].tolist() == [[True, True], [True, False]]


def test_the_padded_size_is_public() -> None:
    """It does not follow from the longest group."""
    assert padded(["a", "b"], rows_per_unit=7, x=[1.0, 2.0])["x"].shape == (2, 7)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"group": [1, 2], "rows_per_unit": 0, "x": [1.0, 2.0]}, "rows_per_unit must be a whole"),
        ({"group": [1, 2], "rows_per_unit": 2, "x": [1.0]}, "x"),
        ({"rows_per_unit": 2, "x": [1.0]}, "give one of them"),
        ({"group": [1], "lengths": [1], "rows_per_unit": 2, "x": [1.0]}, "give one of them"),
        ({"lengths": [2, 0], "rows_per_unit": 2, "x": [1.0, 2.0]}, "lengths must be whole numbers"),
        ({"lengths": [2, 1], "rows_per_unit": 2, "x": [1.0, 2.0]}, "x"),
        ({"group": [1.5, 2.5], "rows_per_unit": 2, "x": [1.0, 2.0]}, "dtype float64"),
        ({"group": [1], "rows_per_unit": 2, "present": [1.0]}, "is the mask's"),
        ({"group": [1], "rows_per_unit": 2}, "name those of the model"),
    ],
)
def test_bad_groups_are_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        padded(**given)
