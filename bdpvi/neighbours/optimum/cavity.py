"""The cavity approximation: which records move the posterior most, at the price of one pass.

It takes the record's own term out of the natural parameters and leaves every other term as it was
at the fit. That is the first step towards the neighbour, not the neighbour: it is biased, and no ε
is ever computed from it. It proposes the records to look at;
:class:`bdpvi.neighbours.optimum.route.Optimum` finds their exact optima.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from bdpvi import _validate
from bdpvi.accounting.gaussian_pairs import GaussianPairs
from bdpvi.neighbours.optimum.elbo import Point, Records
from bdpvi.neighbours.optimum.quadrature import derivatives
from bdpvi.neighbours.rows import Rows


def cavity(point: Point, records: Records, sign: float) -> GaussianPairs:
    """Return, approximately, the fit against the posterior with ``sign`` times each record added.

    With g and -h the first two derivatives of the record's expected log-likelihood in the logit,
    the precision gets ``± h x xᵀ`` and the mean ``± C⁻¹ x g / (1 ± h xᵀC⁻¹x)``, C the curvature of
    the ELBO (Sherman and Morrison 1950). For a full-rank guide it all happens in the direction Σx.

    Args:
        point: the fit.
        records: m records, of the data where the sign is -1.
        sign: 1 or -1.

    Returns:
        m pairs of one dimension for a full-rank guide, of d for a mean-field one. Cost O(m d²).
    """
    logit, variance = records.x @ point.mean, (records.x @ point.root).square().sum(1)
    slopes = derivatives(logit, variance, records.bound, 2)
    if not point.objective.diagonal:
        kept = 1 - sign * slopes[2]
        return GaussianPairs(kept.unsqueeze(1), (slopes[1].square() / kept).unsqueeze(1))
    deviation = variance.sqrt().clamp(min=1e-150).unsqueeze(1)
    x = records.x / deviation
    solved = torch.linalg.solve(point.curvature, x.T).T
    kept = 1 - sign * slopes[2] * (x * solved).sum(1)
    shift = solved * (slopes[1] / kept).unsqueeze(1)
    scale = point.root.diagonal()
    r = 1 - sign * slopes[2].unsqueeze(1) * (x * scale).square()
    return GaussianPairs(r, (shift / scale).square() * r)


def propose(
    point: Point,
    records: Records,
    rows: Rows,
    count: int,
    *,
    order: float = 32.0,
    temperature: float = 1.0,
) -> Rows:
    """Return the ``count`` neighbours that cost most by :func:`cavity`, the costliest first.

    Args:
        point: the fit.
        records: those of ``rows`` as the model sees them.
        rows: the neighbours to choose from.
        count: how many.
        order: λ at which they are compared, in the costlier direction.
        temperature: τ of the release.

    Raises:
        ValueError: if there are not so many.
    """
    if not _validate.positive_int("count", count) <= len(records):
        raise ValueError(f"count={count} is more than the {len(records)} records that there are")
    pairs = cavity(point, records, rows.sign)
    cost = torch.maximum(
        pairs.log_moment(order, temperature), pairs.reverse().log_moment(order, temperature)
    )
    return replace(rows, records=rows.records.select(cost.topk(count).indices))
