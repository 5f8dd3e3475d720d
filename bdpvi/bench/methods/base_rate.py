"""The base rate: a prediction that uses no features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
from torch import Tensor

from bdpvi.bench.methods.method import NONE, WithoutNoise
from bdpvi.datasets.dataset import Dataset


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

        >>> import torch
        >>> data = Dataset(torch.zeros(4, 1), torch.tensor([1.0, 0.0, 0.0, 0.0]))
        >>> BaseRate().prepare(data, 1e-5).latents["rate"]
        tensor([0.2500], dtype=torch.float64)
        """
        return WithoutNoise({"rate": train.y.double().mean()[None]})
