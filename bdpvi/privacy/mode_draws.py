"""Worst-case privacy of draws at a posterior's mode or an ELBO's optimum, by Rényi divergences.

**A pair.** Neighbours are D and D ∪ {x}. :class:`.ModeDraws` bounds how far any x moves the
Gaussian of any D, so :meth:`.Influence.log_moment` bounds the log-moments of every pair, in both
orders.

**Composition.** Log-moments add up over draws, even if later settings follow from earlier outputs,
and with the ½λ(λ + 1)μ² of Gaussian mechanisms (Mironov, CSF 2017, Proposition 1). ε follows from
Canonne, Kamath and Steinke (2020), Proposition 12, at the best λ of a fixed grid.

**With other mechanisms**, sampled steps or objective perturbation, basic composition applies: ε of
the draws at δ/2 plus ε of the rest at δ/2. This holds even if both alternate and depend on each
other's outputs. Each of the rest is dominated by a fixed pair of laws (Zhu, Dong and Wang 2022), so
it may be drawn first; whatever its outcome, the draws then have their ε at δ/2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi.privacy import conversions
from bdpvi.privacy.assumptions import Assumption
from bdpvi.privacy.conceivable import Influence
from bdpvi.privacy.conversions import REAL_ORDERS
from bdpvi.privacy.event import MOMENTS, WITH, WITHOUT, Event

if TYPE_CHECKING:  # takes a while
    from bdpvi.privacy.loss_bounds import Array


@dataclass(frozen=True, kw_only=True)
class ModeDraws(Event):
    """Samples from N(m, τH⁻¹) at a posterior's mode, or an ELBO's optimum, for any table.

    Attributes:
        influence: how far any added record moves m and H of any table. Over all tables this covers
            each pair of neighbours, in both orders; public.
        draws: number of samples k.
        temperature: τ.
        rounding: total variation between the k samples and exact ones, jointly.

    Raises:
        ValueError: if a number is out of range, or the influence is for a removed record.
    """

    influence: Influence
    draws: int = 1
    temperature: float = 1.0
    rounding: float = 0.0

    form: ClassVar[str] = MOMENTS
    squared_distance: ClassVar[float] = 0.0
    what: ClassVar[str] = "draws at a posterior mode have no known worst-case cost"

    def __post_init__(self) -> None:
        if not isinstance(self.influence, Influence):  # as in a ledger
            object.__setattr__(self, "influence", Influence(**self.influence))
        if self.influence.added is not True:
            raise ValueError(f"influence must be of an added record, got {self.influence}")
        validate.positive_int("draws", self.draws)
        validate.positive("temperature", self.temperature)
        validate.non_negative("rounding", self.rounding)

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """Bounds that a model's author states, if it follows from them."""
        return (Assumption.STATED_BOUNDS,) * self.influence.stated

    def log_moment(self, order: Tensor, direction: str) -> Tensor:
        """Return the log-moments of all samples."""
        weight = self.draws / self.temperature
        return self.influence.log_moment(order, direction, self.draws, weight)

    def times(self, count: int) -> tuple[Event, ...]:
        """Return as many samples in one event."""
        return (replace(self, draws=count * self.draws, rounding=count * self.rounding),)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return {**super().to_dict(), "influence": self.influence.to_dict()}


def epsilon(events: Sequence[Event], delta: float, variance: float = 0.0) -> float:
    """Return the joint ε of all draws, without rounding; +inf where no log-moment is known.

    Args:
        events: at least one.
        delta: δ in (0, 1), without the part used by rounding.
        variance: total μ² of the Gaussian mechanisms composed with them.

    >>> from bdpvi.privacy.conceivable import Influence
    >>> one = Influence(added=True, columns=6, shift=0.318, spread=0.288, share=0.0625)
    >>> round(epsilon([ModeDraws(influence=one)], 1e-5), 1)
    6.7
    """
    validate.probability("delta", delta)
    order = REAL_ORDERS.values
    every = _log_moments(events, variance)
    return max(float(conversions.epsilon(one, order, delta).min()) for one in every)


def deltas(events: Sequence[Event], epsilons: Array, variance: float = 0.0) -> Array:
    """Return the joint δ of all draws at every ε, of which :func:`epsilon` is the inverse.

    Args:
        events, variance: as there.
        epsilons: ε, at least 0, (E,).
    """
    order, at = REAL_ORDERS.values, torch.from_numpy(epsilons)[:, None]
    every = _log_moments(events, variance)
    found = [conversions.delta(one, order, at).amin(1) for one in every]
    return np.asarray(torch.stack(found).amax(0).numpy())


def _log_moments(events: Sequence[Event], variance: float) -> list[Tensor]:
    """Return the log-moments of all draws at :data:`.REAL_ORDERS`, in both directions."""
    order = REAL_ORDERS.values
    gaussian = order * (order + 1) / 2 * validate.non_negative("variance", variance)
    return [
        sum((one.log_moment(order, direction) for one in events), gaussian)
        for direction in (WITH, WITHOUT)
    ]
