"""What a logistic regression makes of the features before any weight meets them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.linalg import fractional_matrix_power
from simulated import logistic_data

import bdpvi
from bdpvi import BayesianLogisticRegression, Coupled, Dataset, Optimum
from bdpvi.guides import FullRank

X = torch.randn(20, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3


def root(metric: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return metric^-½, which scipy gives as complex numbers on some machines."""
    power = np.asarray(fractional_matrix_power(metric, -0.5))
    assert np.abs(power.imag).max() < 1e-12
    return power.real


def test_correlation_is_a_change_of_metric() -> None:
    rho = 0.8
    metric = (1 - rho) * np.eye(4) + rho * np.ones((4, 4))
    expected = X.numpy() @ root(metric)
    found = BayesianLogisticRegression.unweighted(correlation=rho).design(X)
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=1e-12, atol=1e-12)


def test_features_are_correlated_with_those_of_their_group_alone() -> None:
    rho = 0.8
    metric = np.eye(4)
    for i, j in ((0, 2), (2, 0), (1, 3), (3, 1)):
        metric[i, j] = rho
    whole = BayesianLogisticRegression.unweighted(correlation=rho, groups=((0, 2), (3, 1))).design(
        X
    )
    expected = torch.from_numpy(X.numpy() @ root(metric))
    torch.testing.assert_close(whole, expected, rtol=1e-12, atol=1e-12)
    part = BayesianLogisticRegression.unweighted(correlation=rho, groups=((0, 2),)).design(X)
    torch.testing.assert_close(part[:, [0, 2]], expected[:, [0, 2]], rtol=1e-12, atol=1e-12)
    assert torch.equal(part[:, [1, 3]], X[:, [1, 3]])
    single = BayesianLogisticRegression.unweighted(correlation=rho, groups=((0,), (1,))).design(X)
    torch.testing.assert_close(single, X)


def test_the_limit_acts_before_the_correlation_and_the_intercept_after() -> None:
    model = BayesianLogisticRegression.unweighted(limit=1.5, correlation=0.5, intercept=True)
    plain = BayesianLogisticRegression.unweighted(correlation=0.5).design(X.clamp(-1.5, 1.5))
    assert torch.equal(model.design(X), torch.cat([plain, torch.ones(20, 1).double()], 1))


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_a_score_is_bounded_whatever_the_features(rho: float) -> None:
    model = BayesianLogisticRegression(clip=0.3, limit=2.0, correlation=rho, intercept=True)
    design = model.design(X * 100)
    assert bool((model.slope_bound(design) * design.norm(dim=1) <= 0.3 * (1 + 1e-12)).all())


def test_every_route_sees_the_same_design() -> None:
    """A fit with these arguments is the plain fit of the features that they make."""
    data = logistic_data(60, 3)
    data = Dataset(data.x * 2, data.y)
    model = BayesianLogisticRegression(
        clip=0.4, limit=1.5, correlation=0.7, groups=((0, 2),), intercept=True
    )
    plain = BayesianLogisticRegression(clip=0.4)
    made = Dataset(model.design(data.x), data.y)
    for neighbours, steps in ((Optimum(), 1), (Coupled(), 15)):
        one, two = (
            bdpvi.fit(
                m,
                FullRank(m),
                d,
                training=bdpvi.Training(steps=steps, seed=0),
                neighbours=neighbours,
                progress=False,
            )
            for m, d in ((model, data), (plain, made))
        )
        for name, value in one.parameters.items():
            torch.testing.assert_close(value, two.parameters[name], rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(one.panels[0].pairs.b2, two.panels[0].pairs.b2)


@pytest.mark.parametrize(
    ("argument", "value"),
    [("limit", 0.0), ("limit", float("nan")), ("correlation", 1.0), ("correlation", -0.1),
     ("correlation", float("nan")), ("groups", ((0, 1), (1, 2))), ("groups", ((),)),
     ("groups", ((-1, 2),)), ("groups", ((0.5, 1),))],
)  # fmt: skip
def test_bad_arguments(argument: str, value: object) -> None:
    with pytest.raises(ValueError, match=argument):
        BayesianLogisticRegression.unweighted(**{argument: value})
