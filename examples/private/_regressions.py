"""Linear, Poisson and multinomial regression, models of the library, as examples by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from _example import Draws, most_likely, summed_out
from matplotlib.axes import Axes
from pyro.infer import ELBO, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor

import bdpvi
from bdpvi import Dataset
from bdpvi.models.contract import Model

COLUMNS = 10
Law = Callable[[Tensor], Any]


@dataclass(frozen=True)
class Regression:
    """A regression of ten features, by the route that ``fit_private`` takes for its model.

    Attributes:
        name: of the example.
        model: of the library.
        law: from linear predictors, (N, K), to the targets' distribution.
        outputs: K.
        least: from parameters, all 0 at first, to the distribution of everybody's target.
        parameters: how many.
    """

    name: str
    model: Model
    law: Law
    outputs: int
    least: Law
    parameters: int

    LOSS: ClassVar[ELBO] = Trace_ELBO()
    __file__: ClassVar[str | None] = None

    @property
    def __name__(self) -> str:
        return self.name

    def simulated(self, records: int, seed: int) -> Dataset:
        """Return records; the weights are the same for every seed."""
        truth = torch.randn(COLUMNS, self.outputs, generator=torch.Generator().manual_seed(5))
        x = torch.randn(records, COLUMNS, generator=torch.Generator().manual_seed(seed))
        law = self.law(x @ truth / COLUMNS**0.5)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return Dataset(x.double(), law.sample().double())

    def fresh(self) -> tuple[Model, AutoNormal]:
        """Return the model and an untrained guide, for the fit without privacy."""
        return self.model, AutoNormal(self.model)

    def baseline(self, train: Dataset, test: Dataset) -> float:
        """Return the mean log density under one distribution for everybody."""
        return most_likely(lambda p, x, y: self.least(p).log_prob(y), self.parameters, train, test)

    def log_density(
        self, model: Model, guide: Any, latents: Mapping[str, Tensor], x: Tensor, y: Tensor
    ) -> Tensor:
        """Return each record's log predictive density, (N,)."""
        return summed_out(model, guide, latents, x, y)

    def figure(self, draws: Draws, axes: Axes) -> None:
        """Draw the weights' means."""
        axes.plot(draws.latents["w"].mean(0))


REGRESSIONS = (
    Regression(
        "linear",
        bdpvi.BayesianLinearRegression(largest=20.0),
        lambda eta: dist.Normal(3 * eta[:, 0] + 1, 2.0),
        1,
        lambda p: dist.Normal(p[0], p[1].exp()),
        2,
    ),
    Regression(
        "poisson",
        bdpvi.BayesianPoissonRegression(largest=50.0),
        lambda eta: dist.Poisson((0.6 * eta[:, 0] + 0.5).exp()),
        1,
        lambda p: dist.Poisson(p[0].exp()),
        1,
    ),
    Regression(
        "multinomial",
        bdpvi.BayesianMultinomialRegression(classes=4),
        lambda eta: dist.Categorical(logits=1.5 * eta),
        4,
        lambda p: dist.Categorical(logits=p),
        4,
    ),
)
