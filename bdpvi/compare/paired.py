"""How far methods can be told apart by the test records that all of them were measured on."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def behind(right: Sequence[Tensor]) -> list[tuple[float, float]]:
    """Return how far each method's accuracy lies below the best one's, and the standard error.

    The error is that of a mean of differences between pairs, one for every record: records that all
    methods get right, or none, tell nothing apart. It speaks of further records from where these
    come from; seeds are taken as they are. The best of many is partly the luckiest, so that on
    further records it is expected to be less ahead.

    Args:
        right: for every method the share of seeds that are right about each record, (N,), N ≥ 2.

    >>> import torch
    >>> best, other = torch.tensor([1.0, 1.0, 0.5, 1.0]), torch.tensor([1.0, 0.0, 0.5, 1.0])
    >>> behind([other, best])
    [(0.25, 0.25), (0.0, 0.0)]
    """
    best = max(right, key=lambda shares: float(shares.double().mean()))
    differences = [best.double() - shares.double() for shares in right]
    return [(float(d.mean()), float(d.std() / len(d) ** 0.5)) for d in differences]
