"""The private examples: a record alone has a gradient, densities are right, and models learn."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import _example
import autoencoder
import factors
import gaussian_process
import group_effects
import mixture
import numpy as np
import pytest
import robust
import spline
import survival
import torch
import two_layers
from _example import Draws, Example
from scipy import interpolate, stats

from bdpvi import Dataset
from bdpvi._ground.isolation import isolated

EXAMPLES: list[Example] = [
    group_effects, spline, robust, mixture, factors, autoencoder, two_layers, gaussian_process,
    survival,
]  # fmt: skip
every = pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: one.__name__)
RECORDS = 2000
STEPS = {autoencoder.__name__: 300, two_layers.__name__: 300}


@pytest.fixture(scope="module")
def fitted() -> Callable[[Example], _example.Fitted]:
    """Return a short fit without privacy, made once."""
    kept: dict[Example, _example.Fitted] = {}

    def of(example: Example) -> _example.Fitted:
        if example not in kept:
            steps = STEPS.get(example.__name__, 150)
            data = example.simulated(RECORDS, 0)
            kept[example] = _example.non_private(example, data, steps=steps, lr=0.1, draws=20)
        return kept[example]

    return of


@pytest.mark.whole
@every
def test_an_example_learns_more_than_its_baseline(
    example: Example, fitted: Callable[[Example], Draws]
) -> None:
    found, test = fitted(example), example.simulated(RECORDS, 1)
    baseline = example.baseline(example.simulated(RECORDS, 0), test)
    assert _example.score(example, found, test) > baseline + 0.08


def given(example: Example, latents: Mapping[str, Any], records: int = 40) -> tuple[Any, ...]:
    """Return the density of records at one draw of the latents, which is given, x and y."""
    data = example.simulated(records, 2).to("cpu", torch.float64)
    one = {name: torch.as_tensor(value).double()[None] for name, value in latents.items()}
    with isolated(data.x):
        model, guide = example.fresh()
        found = example.log_density(model, guide, one, data.x, data.y)
    return found.numpy(), data.x.numpy(), data.y.numpy()


def test_densities_of_regressions_are_scipy_s() -> None:
    w = np.array([0.5, -0.3, 0.2, 0.1])
    found, x, y = given(
        group_effects, {"w": w, "centre": 0.3, "spread": 0.7, "place": np.linspace(-1, 1, 12)}
    )
    p = stats.logistic.cdf(x[:, :4] @ w + 0.3 + 0.7 * np.linspace(-1, 1, 12)[x[:, 4].astype(int)])
    assert found == pytest.approx(stats.bernoulli.logpmf(y, p))

    five = np.array([*w, -0.2])
    found, x, y = given(robust, {"w": five, "intercept": 0.4, "scale": 0.6, "freedom": 3.5})
    assert found == pytest.approx(stats.t.logpdf(y, 3.5, 0.4 + x @ five, 0.6))

    found, x, y = given(survival, {"w": w, "intercept": 0.4, "shape": 1.3})
    weibull = stats.weibull_min(1.3, scale=np.exp(0.4 + x[:, :4] @ w))
    died = y < x[:, 4]
    assert 0 < died.sum() < len(y)
    assert found == pytest.approx(np.where(died, weibull.logpdf(y), weibull.logsf(y)))


def test_densities_of_curves_and_surfaces_are_those_of_their_definitions() -> None:
    w = np.sin(np.arange(spline.KNOTS))
    found, x, y = given(spline, {"w": w, "noise": 0.5})
    step = spline.HOURS / (spline.KNOTS - 3)
    knots = step * np.arange(-3, spline.KNOTS + 1)
    curve = interpolate.BSpline(knots, w, 3)(x[:, 0])
    assert found == pytest.approx(stats.norm.logpdf(y, curve, 0.5))

    u = np.cos(np.arange(16.0))
    found, x, y = given(gaussian_process, {"u": u, "height": 1.4, "noise": 0.3})
    points = gaussian_process.POINTS.double().numpy()

    def kernel(a: Any, b: Any) -> Any:
        squared = ((a[:, None] - b) ** 2).sum(-1)
        return 1.4**2 * np.exp(-squared / (2 * gaussian_process.LENGTH**2))

    inside = kernel(points, points) + 1.4**2 * gaussian_process.JITTER * np.eye(16)
    gain = np.linalg.solve(inside, kernel(points, x)).T
    there = 1.4 * np.linalg.cholesky(inside / 1.4**2) @ u  # the process at the points
    left = 1.4**2 - (gain * kernel(points, x).T).sum(1)
    assert found == pytest.approx(stats.norm.logpdf(y, gain @ there, np.sqrt(0.09 + left)))

    shapes = {f"{kind}{layer}": shape[at:] for layer, shape in enumerate(two_layers.SHAPES)
              for at, kind in enumerate("wb")}  # fmt: skip
    latents: dict[str, Any] = {
        name: np.cos(np.arange(np.prod(shape))).reshape(shape) for name, shape in shapes.items()
    }
    found, x, y = given(two_layers, {**latents, "noise": 0.4})
    first = np.tanh(x @ latents["w0"] + latents["b0"])
    second = np.tanh(first @ latents["w1"] + latents["b1"])
    output = (second @ latents["w2"] + latents["b2"])[:, 0]
    assert found == pytest.approx(stats.norm.logpdf(y, output, 0.4))


def test_densities_of_hidden_variables_are_sums_and_integrals() -> None:
    shares = np.array([0.5, 0.3, 0.2])
    locs, scales = mixture.LOCS.double().numpy(), mixture.SCALES.double().numpy()
    found, _, y = given(mixture, {"shares": shares, "locs": locs, "scales": scales})
    inside = stats.norm.pdf(y[:, None], locs, scales).prod(2)
    assert found == pytest.approx(np.log(inside @ shares))

    loadings, noise = factors.LOADINGS.T.double().numpy(), factors.NOISE.double().numpy()
    found, _, y = given(factors, {"loadings": loadings, "noise": noise})
    normal = stats.multivariate_normal(np.zeros(10), loadings.T @ loadings + np.diag(noise**2))
    assert found == pytest.approx(normal.logpdf(y))


@pytest.mark.whole
def test_an_example_prints_its_share_and_draws_its_figure(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def private(example: Example, data: Dataset, epsilon: float) -> tuple[str, Draws]:
        return "a release", _example.non_private(example, data, steps=20)

    monkeypatch.setattr(_example, "private", private)
    out = tmp_path / "figure.png"
    given = ["--records", "300", "--steps", "60", "--out", str(out)]
    _example.main(robust, given)
    printed = capsys.readouterr().out
    numbers = [float(one) for one in re.findall(r"(?:baseline|private) (-?[.\d]+)", printed)]
    least, found, most = numbers
    assert least < found < most
    left = float(printed.split("privacy leaves: ")[1].split()[0])
    assert left == pytest.approx((found - least) / (most - least), abs=0.01)
    assert out.stat().st_size > 1000
