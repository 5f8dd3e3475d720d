"""Publishing while training: one fresh sample of the guide after every step, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bdpvi.accounting.bayesian import BayesianAccountant
from bdpvi.accounting.composition import ByHolder
from bdpvi.accounting.conversions import Orders
from bdpvi.accounting.events import PosteriorDraws
from bdpvi.accounting.panel import Panel

ORDERS = Orders(torch.logspace(-1, 3, 97, dtype=torch.float64))
"""λ from 0.1 to 1,000, where the costs of all steps are added up."""


@dataclass(frozen=True, eq=False)
class Training:
    """Samples w^(t) ~ q(w; θ^(t)), one after every step, and the accountants that charged them.

    The samples are fresh: training does not use them, so given the plan (ξ) the guides with and
    without a record are fixed before anything is published, and the costs of all steps add up per
    record whatever was published before (Triastcyn & Faltings 2020, §IV).

    Attributes:
        samples: (T, d), flat and unconstrained. They may be published; all of them are charged.
        panel: charged with every sample, composed by panel: exact.
        holder: the same, composed by Hölder's inequality with T = steps.
    """

    samples: Tensor
    panel: BayesianAccountant
    holder: BayesianAccountant


class TrainingAccount:
    """Charges one sample a step to both accountants while the neighbours are trained."""

    def __init__(self, steps: int) -> None:
        self.panel = BayesianAccountant(orders=ORDERS)
        self.holder = BayesianAccountant(orders=ORDERS, composition=ByHolder(steps))

    def step(self, panel: Panel, rounding: float = 0.0) -> None:
        """Charge one sample from the guide that ``panel`` compares with its neighbours."""
        event = PosteriorDraws((panel,), rounding=rounding)
        self.panel.step(event)
        self.holder.step(event)
