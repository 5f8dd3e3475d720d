"""Baselines without privacy: the base rate, and logistic regression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import torch
from sklearn.linear_model import LogisticRegression as Fitted
from torch import Tensor

from bdpvi.bench.methods.method import NONE, WithoutNoise
from bdpvi.datasets.dataset import Dataset
from bdpvi.models.logistic import BayesianLogisticRegression


def constant(x: Tensor, y: Tensor | None = None) -> None:
    """Observe targets that are 1 with the same probability for all features."""
    rate = pyro.sample("rate", dist.Uniform(x.new_zeros(()), x.new_ones(())))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Bernoulli(rate.expand(len(x))), obs=y)


@dataclass(frozen=True)
class BaseRate:
    """The training records' frequency of class 1, predicted for every record."""

    name: ClassVar[str] = "base-rate"
    label: ClassVar[str] = "base rate"
    guarantee: ClassVar[str] = NONE
    note: ClassVar[str] = (
        "Predicts for every record the training records' frequency of class 1, which is not made "
        "private. A method that does no better has learnt nothing from the features."
    )
    space: ClassVar[Mapping[str, Sequence[Any]]] = {}

    @property
    def model(self) -> Any:
        """Return :func:`constant`; the logistic model's rounding would break ties between records.

        With broken ties the AUC would not be ½.
        """
        return constant

    def prepare(self, train: Dataset, delta: float) -> WithoutNoise:
        """Count.

        >>> data = Dataset(torch.zeros(4, 1), torch.tensor([1.0, 0.0, 0.0, 0.0]))
        >>> BaseRate().prepare(data, 1e-5).latents["rate"]
        tensor([0.2500], dtype=torch.float64)
        """
        return WithoutNoise({"rate": train.y.double().mean()[None]})


@dataclass(frozen=True, kw_only=True)
class LogisticRegression:
    """The maximum of the posterior density; the default prior is a ridge with one record's weight.

    Args:
        model: what is fitted.
    """

    model: BayesianLogisticRegression = field(
        default_factory=lambda: BayesianLogisticRegression.unweighted(intercept=True)
    )

    name: ClassVar[str] = "logistic-regression"
    label: ClassVar[str] = "logistic regression, not private"
    guarantee: ClassVar[str] = NONE
    note: ClassVar[str] = (
        "Maximum likelihood with a ridge of 1/prior_scale², nothing clipped, no noise; no seed "
        "matters. The gain that others keep is measured from it."
    )
    space: ClassVar[Mapping[str, Sequence[Any]]] = {
        "model.prior_scale": (0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
        "model.limit": (None, 4.0, 2.0, 1.0),
    }

    def prepare(self, train: Dataset, delta: float) -> WithoutNoise:
        """Fit by scikit-learn, with the ridge on the intercept too.

        >>> data = Dataset(torch.zeros(8, 1), torch.tensor([1.0] * 2 + [0.0] * 6))
        >>> model = BayesianLogisticRegression.unweighted(intercept=True, prior_scale=1e4)
        >>> LogisticRegression(model=model).prepare(data, 1e-5).latents["w"]
        tensor([[ 0.0000, -1.0986]])
        """
        self.model.check(train)
        design, y = self.model.design(train.x.cpu().double()), train.y.cpu()
        if len(torch.unique(y)) < 2:  # scikit-learn refuses this
            raise ValueError("train.y has one class; logistic regression needs both")
        # The intercept is a column of ones, so scikit-learn must not add another.
        c, weights = 1 / self.model.precision(design.shape[1]), self.model.record_weights(design)
        fitted = Fitted(C=c, fit_intercept=False, max_iter=10_000, tol=1e-8)
        w = torch.from_numpy(fitted.fit(design.numpy(), y.numpy(), weights.numpy()).coef_[0])
        return WithoutNoise({"w": w.to(train.x)[None]})
