"""The panel: reference records, the same for all releases, each with a pair of posteriors."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi._ground.host import HOST
from bdpvi._ground.outputs import several
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.privacy.conceivable import Influence

OCTAVE = 512
"""Levels per factor of 2 of the public grid that Σb² is rounded up to."""
_LEAST, _MOST = -128, 128
"""The grid's ends, as powers of 2."""
LEVELS = (_MOST - _LEAST) * OCTAVE + 1


@dataclass(frozen=True, eq=False)
class Panel:
    """Reference records: m records, and how far each moves the posterior.

    Attributes:
        kind: "remove" (records of the data are left out) or "add" (held-out records are added).
        ids: record ids, (m,); if ``largest`` is known, none or few suffice for the worst case.
            With ``counts``, indices of levels.
        pairs: the posterior and each neighbour's posterior, m pairs. Secret.
        largest: upper bound on Σb² over all conceivable records, in these data or any others, if
            covariances are equal and a bound is known; see
            :func:`bdpvi.bayesian.optimum.sensitivity.largest`.
        influence: how far any conceivable record, added or removed as in ``kind``, moves the
            Gaussian, if covariances differ and a bound is known.
        error: bound on the total variation between each pair's Gaussians and the true ones, (m,).
        counts: how many records each pair stands for, (m,) int64; None is one each. Secret. Counts
            do not identify records: they price releases of one fit only.
        marks: hashes of each record's features and target, (m, 2) int64, which show whether an id
            is the same record in two tables; None if unknown. Secret.
    """

    kind: str
    ids: Tensor
    pairs: GaussianPairs
    largest: float | None = None
    counts: Tensor | None = None
    influence: Influence | None = None
    error: Tensor | None = None
    marks: Tensor | None = None

    def __post_init__(self) -> None:
        validate.same_length("ids", self.ids, "pairs.r", self.pairs.r)
        if self.counts is not None:
            validate.same_length("counts", self.counts, "ids", self.ids)
            validate.every("counts", self.counts, self.counts > 0, "be positive")
            if not bool((self.pairs.r == 1).all()):
                raise ValueError("counts need pairs of equal covariances, r = 1")
        if self.records < 3 and not self.ranged:
            raise ValueError(
                f"ids has {several(self.records, 'record')}; an estimate needs at least 3"
            )

    @property
    def ranged(self) -> bool:
        """Whether the cost of every conceivable record is bounded."""
        return self.largest is not None or self.influence is not None

    @property
    def constant(self) -> bool:
        """Whether all records cost the same, so that their ids do not matter."""
        return all(bool((value == value[:1]).all()) for value in (self.pairs.r, self.pairs.b2))

    @property
    def records(self) -> int:
        """The number of records."""
        return len(self.ids) if self.counts is None else int(self.counts.sum())

    def with_marks(self, ids: Tensor, x: Tensor, y: Tensor) -> Panel:
        """Return the panel with :attr:`marks` of its records, which are among the given ones.

        Args:
            ids, x, y: ids, features and targets of the training data, (N,), (N, …) and (N, …).
        """
        ids, order = ids.cpu().sort()
        at = torch.searchsorted(ids, self.ids).clamp(max=max(len(ids) - 1, 0))
        if self.kind != "remove" or self.counts is not None or not torch.equal(ids[at], self.ids):
            return self
        rows = order[at].to(x.device)
        return replace(self, marks=torch.stack([_mark(x[rows]), _mark(y[rows])], 1))

    def select(self, ids: Tensor) -> Panel:
        """Return the panel of these of its records; itself if ``ids`` are all of them, in order."""
        if torch.equal(ids, self.ids):
            return self
        known, order = self.ids.sort()
        at = order[torch.searchsorted(known, ids)]
        counts, error, marks = (
            None if one is None else one[at] for one in (self.counts, self.error, self.marks)
        )
        return replace(
            self, ids=ids, pairs=self.pairs.select(at), counts=counts, error=error, marks=marks
        )

    @classmethod
    def of_counts(cls, kind: str, counts: Tensor, largest: float | None = None) -> Panel:
        """Return the panel with ``counts`` records on each of :data:`LEVELS` levels.

        For pairs with equal covariances, which one number Σb² describes. Rounding it up, by at most
        0.14 %, makes no record cheaper, and a few thousand counts describe the costs of any number
        of records.

        >>> some = GaussianPairs(torch.ones(4, 1), torch.tensor([[1.0], [1.001], [0.5], [1.001]]))
        >>> panel = Panel.of_counts("remove", on_levels(some.b2.sum(1)))
        >>> panel.counts.tolist(), [round(float(b2), 5) for b2 in panel.pairs.b2]
        ([1, 1, 2], [0.5, 1.0, 1.00135])
        """
        ids = counts.nonzero()[:, 0]
        b2 = _grid(ids).clamp(max=math.inf if largest is None else largest).unsqueeze(1)
        return cls(kind, ids, GaussianPairs(torch.ones_like(b2), b2), largest, counts[ids])


def on_levels(b2: Tensor) -> Tensor:
    """Return how many of the numbers (n,) lie on each level, rounded up, (LEVELS,) int64.

    Raises:
        FloatingPointError: if one lies above the last level.
    """
    level = (OCTAVE * (b2.log2() - _LEAST)).ceil().nan_to_num(LEVELS, LEVELS).clamp(min=0).long()
    level += b2 > _grid(level)  # the logarithm has a rounding error
    if len(level) and int(level.max()) >= LEVELS:
        raise FloatingPointError(f"Σb² = {b2.max().item():.3g} is more than 2^{_MOST}")
    return torch.bincount(level, minlength=LEVELS)


def _mark(values: Tensor) -> Tensor:
    """Return a hash of each row, (m,) int64."""
    rows = values.reshape(len(values), math.prod(values.shape[1:]))
    bits = (rows.cpu().double() + 0.0).view(torch.int64)
    generator = torch.Generator().manual_seed(0)
    odd = torch.randint(2**62, (bits.shape[1],), generator=generator, device=HOST)
    return (bits * (2 * odd + 1)).sum(1)


def _grid(level: Tensor) -> Tensor:
    return torch.exp2(level.double() / OCTAVE + _LEAST)


def relation_of(kinds: Iterable[str]) -> str:
    """Return the relation for panels of these kinds.

    >>> relation_of(["remove", "add"]), relation_of(["add-or-remove"]), relation_of(["replace"])
    ('add or remove', 'add or remove', 'replace')
    """
    return " or ".join(sorted({kind.replace("-", " ") for kind in kinds}))
