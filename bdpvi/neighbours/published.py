"""Publishing while training: one fresh sample of the guide after every step, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bdpvi.accounting.bayesian import BayesianAccountant
from bdpvi.accounting.conversions import Orders

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
