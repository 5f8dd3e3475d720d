"""A separate search for a neighbour's optimum, where faster methods prove nothing."""

from __future__ import annotations

from dataclasses import replace

import torch

from bdpvi.bayesian.optimum.displacements import Moves, norm, reach
from bdpvi.bayesian.optimum.expansion import Expansion
from bdpvi.bayesian.optimum.newton import climb
from bdpvi.bayesian.optimum.weighted import Changed, Weighted

FARTHEST = 0.01
"""Largest distance of a search's result from the optimum, in standard deviations: beyond it, a
record's cost would be meaningless."""


def search(expansion: Expansion, record: Weighted, sign: float, name: str) -> Moves:
    """Return the optimum of one neighbour by a separate search, started at the fit.

    The negative ELBO is strongly convex in (μ, L), by the prior alone, so the last gradient bounds
    the distance of the optimum (:attr:`bdpvi.bayesian.optimum.elbo.Point.distance`).

    Args:
        expansion: expansion of the ELBO at the fit.
        record: the removed or added record.
        sign: 1 or -1.
        name: the record's name in messages.

    Raises:
        FloatingPointError: if the distance may be more than :data:`FARTHEST`.
    """
    point = expansion.point
    objective = replace(point.objective, records=Changed(point.objective.records, record, sign))
    best = climb(objective.at(point.mean, point.metric), expansion.tolerance)[-1]
    m, y = expansion.coordinates.locate(best)
    # For the neighbour's actual fit, whose gradient may be as large as the tolerance.
    granted = 2 * expansion.tolerance * norm(torch.linalg.inv(best.root)) / objective.precision
    back = torch.linalg.inv(point.root)
    far = expansion.unit * (best.distance + granted)
    error = float(reach(far, norm(back @ best.root)))
    if not error <= FARTHEST:
        raise FloatingPointError(
            f"the optimum of the data with record{name} {'added' if sign > 0 else 'removed'} "
            f"cannot be certified, it is only known to {error:.3g} standard deviations; use a "
            "smaller prior scale or smaller features"
        )
    return Moves(m, y, m.new_tensor([error]))
