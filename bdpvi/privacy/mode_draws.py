"""Worst-case privacy of draws at a posterior's mode, by Rényi divergences.

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

from bdpvi._ground import validate
from bdpvi.privacy import conversions
from bdpvi.privacy.conversions import REAL_ORDERS
from bdpvi.privacy.events import WITH, WITHOUT, ModeDraws

NAME = "Rényi divergences"


def epsilon(events: Sequence[ModeDraws], delta: float, variance: float = 0.0) -> float:
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
    gaussian = order * (order + 1) / 2 * validate.non_negative("variance", variance)
    found = []
    for direction in (WITH, WITHOUT):
        total = gaussian
        for one in events:
            weight = one.draws / one.temperature
            total = total + one.influence.log_moment(order, direction, one.draws, weight)
        found.append(float(conversions.epsilon(total, order, delta).min()))
    return max(found)
