"""The common result of all compared methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from bdpvi.privacy.cost import Cost


@dataclass(frozen=True, eq=False)
class Outcome:
    """A method's output and its cost.

    Attributes:
        latents: released values of the model's latent variables, each (k, ...): posterior samples,
            or the single iterate that a method publishes.
        cost: None if there is no guarantee.
    """

    latents: Mapping[str, torch.Tensor]
    cost: Cost | None
