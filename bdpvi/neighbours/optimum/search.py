"""A neighbour's optimum by a search of its own, where nothing quicker proves it."""

from __future__ import annotations

from dataclasses import replace

import torch

from bdpvi.neighbours.optimum.displacements import Moves, norm, reach
from bdpvi.neighbours.optimum.elbo import Changed, Records, climb
from bdpvi.neighbours.optimum.expansion import Expansion

FARTHEST = 0.01
"""Distance of a search's end from the optimum, in standard deviations, from which on it is refused:
what a record costs would say little."""


def search(expansion: Expansion, record: Records | None, sign: float, name: str) -> Moves:
    """Return the optimum of one neighbour by a search of its own, from the fit.

    The negative ELBO is strongly convex in (μ, L), by the prior alone, so the last gradient bounds
    how far the optimum is (:attr:`bdpvi.neighbours.optimum.elbo.Point.distance`).

    Args:
        expansion: of the ELBO at the fit.
        record: what is left out or added; None at workers that have no part in the change.
        sign: 1 or -1.
        name: what messages call the record.

    Raises:
        FloatingPointError: if the distance may be more than :data:`FARTHEST`.
    """
    point = expansion.point
    changed = point.objective.records
    if record is not None:
        changed = Changed(changed, record, sign)
    objective = replace(point.objective, records=changed)
    best = climb(objective.at(point.mean, point.metric), expansion.tolerance)[-1]
    m, y = expansion.coordinates.locate(best)
    # Of the fit that the neighbour would have: its gradient may be as large as the tolerance.
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
