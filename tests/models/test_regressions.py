"""Regressions of classes and counts: their likelihoods, and that every route can use them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import Tensor

import bdpvi
from bdpvi import (
    DPVI,
    BayesianLinearRegression,
    BayesianMultinomialRegression,
    BayesianNegativeBinomialRegression,
    BayesianOrdinalRegression,
    BayesianPoissonRegression,
    BayesianSurvivalRegression,
    Dataset,
    Release,
    fit_private,
    guides,
)
from bdpvi.models.traces import log_likelihood
from bdpvi.regression import NoisyScores
from bdpvi.releases.released import flat

MODELS: dict[str, Any] = {
    "multinomial": BayesianMultinomialRegression(classes=3),
    "ordinal": BayesianOrdinalRegression(classes=4, limit=2.0),
    "negative binomial": BayesianNegativeBinomialRegression(largest=9, exposure=1),
    "poisson": BayesianPoissonRegression(largest=9, exposure=1),
    "linear": BayesianLinearRegression(largest=2.0),
}
CLASSES = ("multinomial", "ordinal")
COUNTS = ("negative binomial", "poisson")


def table(name: str, n: int = 30) -> Dataset:
    """Return records; the second column is an exposure, the largest count is above 9."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, generator=g, dtype=torch.float64)
    x[:, 1] = 0.2 + 3 * torch.rand(n, generator=g, dtype=torch.float64)
    most = getattr(MODELS[name], "classes", 20)
    y = torch.randint(most, (n,), generator=g).double()
    y[0] = most - 1
    return Dataset(x, y, feature_names=("a", "time", "b"))


def latents(name: str, draws: int = 5) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(1)
    shapes = {"multinomial": (4, 3), "ordinal": (4,), "linear": (4,)}
    result = {"w": torch.randn(draws, *shapes.get(name, (3,)), generator=g).double()}
    beside = {"ordinal": "log_gaps", "linear": "log_scale", "negative binomial": "log_dispersion"}
    if name in beside:
        shape = (draws, 2) if name == "ordinal" else (draws,)
        result[beside[name]] = torch.randn(shape, generator=g).double()
    return result


def by_scipy(name: str, values: dict[str, Any], x: Any, y: Any) -> Any:
    """Return each record's log-likelihood, by scipy's functions and definitions of textbooks."""
    w, one = values["w"], np.ones((len(x), 1))
    if name in COUNTS:
        mean = x[:, 1] * np.exp(np.hstack([x[:, ::2], one]) @ w)
        if name == "poisson":
            return stats.poisson(mean).logpmf(y.clip(max=9))
        alpha = np.exp(values["log_dispersion"])
        return stats.nbinom(1 / alpha, 1 / (1 + alpha * mean)).logpmf(y.clip(max=9))
    predictor = np.hstack([x.clip(-2, 2) if name == "ordinal" else x, one]) @ w
    if name == "multinomial":
        return special.log_softmax(predictor, axis=1)[np.arange(len(y)), y.astype(int)]
    if name == "ordinal":
        cuts = np.array([-np.inf, 0, *np.exp(values["log_gaps"]).cumsum(), np.inf])
        above = special.expit(predictor - cuts[:, None])  # P(y > k), from k = −1 on
        return np.log(-np.diff(above, axis=0)).T[np.arange(len(y)), y.astype(int)]
    return stats.norm(predictor, np.exp(values["log_scale"])).logpdf(y.clip(-2, 2))


@pytest.mark.parametrize("name", MODELS)
def test_likelihoods_are_the_textbooks(name: str) -> None:
    data = table(name)
    for draw in range(5):
        values = {key: value[draw] for key, value in latents(name).items()}
        found = log_likelihood(MODELS[name], values, data.x, data.y)
        plain = {key: value.numpy() for key, value in values.items()}
        expected = by_scipy(name, plain, data.x.numpy(), data.y.numpy())
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)


@pytest.fixture(scope="module")
def made() -> Release:
    data = table("linear", 2000)
    route = NoisyScores(rows=2000, draws=5)
    return fit_private(MODELS["linear"], data, epsilon=5.0, route=route)


@pytest.mark.parametrize("name", MODELS)
def test_releases_are_kept_whole_and_say_what_weights_are(
    name: str, made: Release, tmp_path: Path
) -> None:
    values = latents(name, 40)
    found = replace(made, model=MODELS[name], latents=values, samples=flat(values), estimate=None)
    bdpvi.save_release(found, tmp_path / "release.json")
    back = bdpvi.load_release(tmp_path / "release.json")
    assert back.model == MODELS[name]
    x = table(name).x
    if name in CLASSES:
        chances = back.predict_proba(x)
        torch.testing.assert_close(chances, found.predict_proba(x))
        torch.testing.assert_close(chances.sum(1), torch.ones(len(x)).double())
        assert torch.equal(back.predict(x), chances.argmax(1))
        with pytest.raises(ValueError, match="one of several classes, which have no mean"):
            back.predict_mean(x)
    else:
        torch.testing.assert_close(back.predict_mean(x), found.predict_mean(x))
        with pytest.raises(ValueError, match="not 0 or 1 or one of several classes"):
            back.predict_proba(x)
    said = [coefficient.name for coefficient in back.summary().coefficients]
    expected = ["a", "b", "intercept"] if name in COUNTS else ["a", "time", "b", "intercept"]
    if name == "multinomial":
        expected = [f"{one}[{label}]" for one in expected for label in (1, 2)]
    assert said == expected
    assert ("Classes are compared with the first" in back.summary().reason) == (len(said) == 8)
    w = values["w"]
    if name == "multinomial":  # classes are compared with the first
        w = w[:, :, 1:] - w[:, :, :1]
    middle = w.flatten(1).mean(0)
    assert [coefficient.mean for coefficient in back.summary().coefficients] == pytest.approx(
        middle.tolist()
    )


def test_exact_where_a_class_is_rare() -> None:
    """Differences of probabilities would be 0 and their logarithms infinite."""
    model = BayesianOrdinalRegression(classes=3)
    values = {"w": torch.tensor([40.0]), "log_gaps": torch.tensor([-15.0])}
    found = log_likelihood(model, values, torch.zeros(3, 0), torch.tensor([0.0, 1.0, 2.0]))
    expected = [-40.0, -40.0 + np.log(np.expm1(np.exp(-15.0))), 0.0]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "change", "message"),
    [
        ("ordinal", {"y": 0.5}, "y must be whole numbers from 0 to 3, got 0.5"),
        ("poisson", {"x": 0.0}, "x must be positive in the exposure's column"),
    ],
)
def test_targets_that_a_model_is_not_of_are_named(
    model: str, change: dict[str, float], message: str
) -> None:
    data = table(model)
    for name, value in change.items():
        getattr(data, name)[0] = value
    with pytest.raises(ValueError, match=message):
        bdpvi.check(MODELS[model], guides.MeanField(MODELS[model]), data)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BayesianMultinomialRegression(classes=1), "classes must be a whole number of at"),
        (lambda: BayesianOrdinalRegression(classes=2), "classes must be a whole number of at"),
        (lambda: BayesianPoissonRegression(largest=3, exposure=-1), "exposure must be a whole"),
        (lambda: BayesianNegativeBinomialRegression(largest=0.5), "largest must be a whole"),
        (
            lambda: BayesianPoissonRegression(largest=1_000_001),
            "largest must be at most 1000000, got 1000001",
        ),
        (
            lambda: BayesianPoissonRegression(largest=3, exposure=3).check(table("poisson")),
            "exposure=3 is the number of no column: x has 3",
        ),
    ],
)
def test_bad_arguments_are_named(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_noisy_scores_have_no_exposure() -> None:
    with pytest.raises(ValueError, match=r"exposure=1: route=NoisyScores\(\) has none"):
        fit_private(MODELS["poisson"], table("poisson"), epsilon=1.0, route=NoisyScores())


@pytest.mark.parametrize("name", MODELS)
def test_levels_that_are_no_columns_are_refused_before_anything_is_charged(name: str) -> None:
    data, model = table(name), replace(MODELS[name], levels=((0, 7),))
    with pytest.raises(ValueError, match=r"levels=\(\(0, 7\),\): column 7 has no weight"):
        fit_private(model, data, epsilon=1.0, route=DPVI(rows=50, steps=5))
    assert not data.ledger.entries()


@pytest.mark.parametrize("classes", [0, 3, -2])
def test_sums_that_records_identify_do_not_change_where_predictions_do_not(classes: int) -> None:
    """Directions of the weights that no prediction changes with are those of the sums' null."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(n, (200,), generator=generator) for n in (3, 2))
    x = torch.randn(200, 7, generator=generator, dtype=torch.float64)
    x[:, 1:4], x[:, 5:] = torch.eye(3).double()[a], torch.eye(2).double()[b]
    x[:, 4] = 1.0  # the exposure, where there is one
    levels = ((1, 2, 3), (5, 6))
    model: Any = BayesianPoissonRegression(largest=9, exposure=4, levels=levels)
    design = model.design(x)
    if classes < 0:  # of times in two intervals
        x = x[:, [0, 1, 2, 3, 5, 6]]
        model = BayesianSurvivalRegression(cuts=(1, 2), levels=((1, 2, 3), (4, 5)))
        each = torch.eye(2).double()
        design = torch.cat([torch.cat([x, one.expand(len(x), 2)], 1) for one in each])
    if classes > 0:
        x = x[:, [0, 1, 2, 3, 5, 6]]
        model = BayesianMultinomialRegression(classes=classes, levels=((1, 2, 3), (4, 5)))
        # Of the logarithms of chances, which do not change where those of all classes do.
        design = torch.kron(model.design(x), torch.eye(classes).double() - 1 / classes)
    sums = model.identified(7 if not classes else 6)
    _, sizes, right = torch.linalg.svd(design, full_matrices=True)
    rank = int((sizes > 1e-9).sum())
    assert len(sums) - rank == (2 if classes <= 0 else 2 * (classes - 1) + 7)
    assert float((sums @ right[rank:].T).abs().max()) < 1e-9
