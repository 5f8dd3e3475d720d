"""The panel: the same records, followed through everything that is released."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bdpvi._runtime import validate
from bdpvi.accounting.gaussian_pairs import GaussianPairs


@dataclass(frozen=True, eq=False)
class Panel:
    """How far each of m records moves the posterior.

    Attributes:
        kind: "remove" (records of the data, left out) or "add" (held-out records, joined).
        ids: record identities, (m,); none or few are enough where ``largest`` is known, for the
            worst case alone.
        pairs: the posterior against that of each neighbour, m pairs. Secret.
        largest: upper bound on Σb² over all conceivable records, in these data or any others,
            where covariances are equal and one is known; see
            :func:`bdpvi.neighbours.optimum.route.largest`.
    """

    kind: str
    ids: Tensor
    pairs: GaussianPairs
    largest: float | None = None

    def __post_init__(self) -> None:
        validate.same_length("ids", self.ids, "pairs.r", self.pairs.r)
        if len(self.ids) < 3 and self.largest is None:
            raise ValueError(f"ids has {len(self.ids)} records; an estimate needs at least 3")
