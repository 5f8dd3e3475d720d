"""The one place where norms of contributions are taken, and contributions are clipped and added.

The norm is taken in float64 of the very numbers that are then added, over all parts together. What
one record moves the computed sum by is at most the bound, rounding included. With D numbers for a
record, in any order of the operations, and a unit of 2⁻⁵³ (Higham, "Accuracy and Stability of
Numerical Algorithms", 2nd ed., section 3.1):

- the computed norm is at most D/2 + 2 units below the true one, and a factor, and each product with
  it, are off by four more: the bound is lowered by D units;
- the sum of B contributions is off by at most B (r + B/r) units of the bound, as they are added in
  blocks of r; of two sums, with and without a record, each. The bound is lowered by
  :data:`MARGIN` for it, which is enough for 10⁶ records in blocks of 1,024.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bdpvi._ground import validate

MARGIN = 2.0**-20
"""Contributions are shorter than the bound by this share of it at least, if they are clipped."""
_UNIT = 2.0**-53
_BLOCK, _MOST_ROWS = 2**18, 1024
"""Most numbers in a block, 2 MB as the caches of processors have, and most of its records."""
_LEAST = 1e-100
"""The smallest bound: squares of much smaller numbers vanish in float64."""


def clip_of(name: str, value: float) -> float:
    """Return a bound on norms, or raise ValueError naming it."""
    if validate.positive(name, value) < _LEAST:
        raise ValueError(
            f"{name}={value!r} must be at least {_LEAST:g}, as squares of much smaller numbers "
            "vanish in float64; multiply the loss, and with it every gradient, by a constant"
        )
    return value


def shortened(bound: float, size: int) -> float:
    """Return what contributions of ``size`` numbers are clipped to; see the module."""
    return bound * (1 - MARGIN - size * _UNIT)


def clipped_sum(
    parts: Sequence[Tensor], bound: float, length: float | None = None
) -> tuple[Tensor, Tensor]:
    """Return Σ g · min(1, C/‖g‖) over records, (D,), and the norms ‖g‖, (B,), both float64.

    A contribution that is not finite counts as zero; its norm is returned as it is.

    Args:
        parts: the parts of each contribution g, (B, ...) each.
        bound: C.
        length: contributions are multiplied by length/C as well, so it is their greatest length; C
            by default.

    >>> parts = torch.tensor([[3.0, 0.0], [0.0, 0.5]]), torch.tensor([4.0, 0.0])
    >>> total, norms = clipped_sum(parts, 1.0)
    >>> total.round(decimals=3).tolist(), norms.tolist()
    ([0.6, 0.5, 0.8], [5.0, 0.5])
    """
    flat = [part.detach().unsqueeze(-1).flatten(1) for part in parts]
    size, like = sum(one.shape[1] for one in flat), flat[0]
    below = shortened(bound, size)
    scale = (bound if length is None else length) / bound
    rows = max(1, min(len(like), _MOST_ROWS, _BLOCK // max(size, 1)))
    total = torch.zeros(size, dtype=torch.float64, device=like.device)
    block = total.new_empty((rows, size)) if len(flat) > 1 else None
    norms = [total.new_zeros(0)]
    for some in zip(*(one.split(rows) for one in flat), strict=True):
        wide = some[0].double() if block is None else torch.cat(some, 1, out=block[: len(some[0])])
        norm = torch.linalg.vector_norm(wide, dim=1)
        bad = ~norm.isfinite()
        if bad.is_cuda or bool(bad.any()):  # a device would be waited for
            wide = wide.masked_fill(bad.unsqueeze(1), 0.0)  # 0 · NaN would be NaN
        factors = scale * below / norm.clamp(min=below)
        total.addmv_(wide.T, factors.masked_fill_(bad, 0.0))
        norms.append(norm)
    return total, torch.cat(norms)
