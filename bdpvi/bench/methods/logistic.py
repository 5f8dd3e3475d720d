"""Logistic regression without privacy: an upper baseline for all methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from sklearn.linear_model import LogisticRegression as Fitted

from bdpvi.bench.methods.method import NONE, WithoutNoise
from bdpvi.datasets.dataset import Dataset
from bdpvi.models.logistic import BayesianLogisticRegression


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
