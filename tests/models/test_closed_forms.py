"""Shapes and predictions of the regressions by formula are those of their Pyro models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from bdpvi import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianMultinomialRegression,
    BayesianNegativeBinomialRegression,
    BayesianOrdinalRegression,
    BayesianPoissonRegression,
    BayesianSurvivalRegression,
)
from bdpvi.models.kinds import Known, OfClasses, shapes
from bdpvi.models.predictions import class_probabilities, predictive_means
from bdpvi.models.traces import latent_sites, predicted

plain = BayesianLogisticRegression.unweighted
FEATURES = 4
MODELS: dict[str, Any] = {
    "logistic": BayesianLogisticRegression(),
    "logistic, rare": BayesianLogisticRegression(intercept_mean=-3.0),
    "logistic, no intercept": BayesianLogisticRegression(intercept=False),
    "logistic, weights": BayesianLogisticRegression(weight_norm=0.3, prior_scale=2.0, limit=1.0),
    "logistic, categories": BayesianLogisticRegression(one_hot=((0, 1), (2,))),
    "plain": plain(),
    "plain, intercept": plain(intercept=True, intercept_mean=0.5, limit=0.7),
    "plain, clip": plain(intercept=True, clip=0.4),
    "plain, correlation": plain(correlation=0.6),
    "plain, groups": plain(correlation=0.6, groups=((0, 2), (1,))),
    "linear": BayesianLinearRegression(largest=2.0, middle=7.0, limit=1.0, levels=((0, 1),)),
    "poisson": BayesianPoissonRegression(largest=9, limit=1.0),
    "poisson, exposure": BayesianPoissonRegression(largest=9, exposure=1),
    "negative binomial": BayesianNegativeBinomialRegression(largest=9),
    "negative binomial, exposure": BayesianNegativeBinomialRegression(largest=9, exposure=3),
    "multinomial, 2": BayesianMultinomialRegression(classes=2),
    "multinomial, 3": BayesianMultinomialRegression(classes=3, limit=1.0),
    "ordinal, 3": BayesianOrdinalRegression(classes=3),
    "ordinal, 5": BayesianOrdinalRegression(classes=5, limit=1.0, prior_scale=0.3),
    "survival": BayesianSurvivalRegression(cuts=(1, 2, 7), limit=1.0),
}


def records() -> Tensor:
    """Return features, the last of which are large; exposures among them may be negative."""
    g = torch.Generator().manual_seed(0)
    return (
        torch.randn(7, FEATURES, generator=g, dtype=torch.float64) * torch.arange(1.0, 8)[:, None]
    )


def latents(model: Known) -> dict[str, Tensor]:
    """Return 5 values of the latents, beyond where the models clip them."""
    g, x = torch.Generator().manual_seed(1), records()
    with torch.no_grad():
        found = latent_sites(model, x, torch.zeros(len(x), dtype=torch.float64))
    spread = torch.tensor([0.1, 1.0, 3.0, 10.0, 30.0], dtype=torch.float64)
    return {
        name: torch.randn(5, *site["value"].shape, generator=g, dtype=torch.float64)
        * spread.reshape(-1, *(1,) * site["value"].ndim)
        for name, site in found.items()
    }


@pytest.mark.parametrize("name", MODELS)
def test_shapes_are_those_of_the_trace(name: str) -> None:
    model, x = MODELS[name], records()
    sites = latent_sites(model, x, torch.zeros(len(x), dtype=torch.float64))
    assert shapes(model, FEATURES) == {n: tuple(s["value"].shape) for n, s in sites.items()}


@pytest.mark.parametrize("name", MODELS)
def test_predictions_are_those_of_the_trace(name: str) -> None:
    model, x = MODELS[name], records()
    if getattr(model, "exposure", None) is not None:
        x = x.abs()
    values = latents(model)
    if isinstance(model, OfClasses):
        by_pyro = predicted(model, values, x, lambda _, law: law.probs)
        by_formula = class_probabilities(model, values, x)
    else:
        by_pyro = predicted(model, values, x, lambda _, law: law.mean)
        by_formula = predictive_means(model, values, x)
    assert by_formula.shape[:2] == (5, len(x))
    assert len(by_pyro.unique()) > len(x)
    if not isinstance(model, OfClasses | BayesianLogisticRegression):
        low = -model.largest if isinstance(model, BayesianLinearRegression) else 0.0
        middle = getattr(model, "middle", 0.0)
        most = getattr(model, "largest", getattr(model, "horizon", 0.0))
        by_pyro = (by_pyro - middle).clamp(low, most) + middle
    torch.testing.assert_close(by_formula, by_pyro, rtol=1e-12, atol=1e-300)
    if isinstance(model, BayesianLogisticRegression):
        both = class_probabilities(model, values, x)
        assert torch.equal(both, torch.stack([1 - by_formula, by_formula], -1))


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (plain(correlation=0.5, groups=((0, 4),)), "groups has column 4 of 4 features"),
        (BayesianLogisticRegression(one_hot=((5,),)), "one_hot has column 5 of 4 features"),
        (BayesianPoissonRegression(largest=9, exposure=4), "exposure=4 is the number of no column"),
    ],
)
def test_shapes_refuse_columns_that_are_not_there(model: Known, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        shapes(model, FEATURES)


@dataclass(frozen=True, kw_only=True)
class Halved(BayesianLogisticRegression):
    """A regression of one's own: the target has half the logit."""

    def __call__(self, x: Tensor, y: Tensor | None = None) -> None:
        """Run the model on half of the features."""
        super().__call__(x / 2, y)


def test_a_subclass_is_predicted_by_its_own_model() -> None:
    values, x = {"w": torch.randn(3, FEATURES).double()}, records()
    own = Halved(weight_norm=float("inf"))
    assert torch.equal(predictive_means(own, values, x), predictive_means(plain(), values, x / 2))


def robust(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(x.new_zeros(FEATURES), 1.0).to_event(1))
    freedom = pyro.sample("freedom", dist.Gamma(x.new_tensor(2.0), 0.1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.StudentT(freedom, x @ w, 1.0), obs=y)


def mixture(x: Tensor, y: Tensor | None = None) -> None:
    means = pyro.sample("means", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
    with pyro.plate("records", len(x)):
        half = pyro.sample("half", dist.Categorical(x.new_tensor([0.5, 0.5])))
        pyro.sample("y", dist.Normal(means[half], 1.0), obs=y)


def test_a_mean_of_which_torch_has_no_batches_is_computed() -> None:
    x, w = records(), torch.linspace(-1, 1, 3 * FEATURES).double().reshape(3, FEATURES)
    found = predictive_means(robust, {"w": w, "freedom": torch.tensor([2.0, 3.0, 4.0]).double()}, x)
    torch.testing.assert_close(found, w @ x.T)


def test_latents_of_single_records_have_no_prediction() -> None:
    with pytest.raises(ValueError, match="sites 'half' and 'y' are drawn for each record, and a"):
        predictive_means(mixture, {"means": torch.zeros(3, 2).double()}, records())
