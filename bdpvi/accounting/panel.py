"""The panel: the same records, followed through everything that is released."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bdpvi._runtime import validate
from bdpvi._runtime.outputs import several
from bdpvi.accounting.conceivable import Influence
from bdpvi.accounting.gaussian_pairs import GaussianPairs

OCTAVE = 512
"""Levels of the public grid that Σb² is rounded up to, between one and its double."""
_LEAST, _MOST = -128, 128
"""The grid's ends, as powers of 2."""
LEVELS = (_MOST - _LEAST) * OCTAVE + 1


@dataclass(frozen=True, eq=False)
class Panel:
    """How far each of m records moves the posterior.

    Attributes:
        kind: "remove" (records of the data, left out) or "add" (held-out records, joined).
        ids: record identities, (m,); none or few are enough where ``largest`` is known, for the
            worst case alone. With ``counts``, numbers of levels.
        pairs: the posterior against that of each neighbour, m pairs. Secret.
        largest: upper bound on Σb² over all conceivable records, in these data or any others,
            where covariances are equal and one is known; see
            :func:`bdpvi.neighbours.optimum.sensitivity.largest`.
        influence: how far any conceivable record moves the Gaussian, where covariances differ and
            it is known: of a record that is added, or removed, as ``kind`` says.
        error: total variation of each pair's Gaussians from the true ones, at most, (m,).
        counts: how many records each pair stands for, (m,) int64; None is one each. Secret. Counts
            do not know who is who: they price releases of one fit.
        marks: of each record's features and of its target, (m, 2) int64, by which two tables show
            whether one id is one record in both; None where it is not known. Secret.
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
        """Whether all records cost the same, so that it does not matter who is who."""
        return all(bool((value == value[:1]).all()) for value in (self.pairs.r, self.pairs.b2))

    @property
    def records(self) -> int:
        """The number of records."""
        return len(self.ids) if self.counts is None else int(self.counts.sum())

    def marked(self, ids: Tensor, x: Tensor, y: Tensor) -> Panel:
        """Return the panel with :attr:`marks` of its records, which are among these.

        Args:
            ids, x, y: of the training data, (N,), (N, …) and (N, …).
        """
        ids, order = ids.cpu().sort()
        at = torch.searchsorted(ids, self.ids).clamp(max=max(len(ids) - 1, 0))
        if self.kind != "remove" or self.counts is not None or not torch.equal(ids[at], self.ids):
            return self
        rows = order[at].to(x.device)
        return replace(self, marks=torch.stack([_mark(x[rows]), _mark(y[rows])], 1))

    def select(self, ids: Tensor) -> Panel:
        """Return the panel of these records, which are in it: itself, if they are all in order."""
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
    def counted(cls, kind: str, counts: Tensor, largest: float | None = None) -> Panel:
        """Return the panel of records of which ``counts`` lie on each of :data:`LEVELS` levels.

        For pairs of equal covariances, which are one number each, Σb². Rounded up by at most 0.14 %
        it makes no record cheaper, and whatever the number of records, some thousand numbers say
        how many cost how much.

        >>> some = GaussianPairs(torch.ones(4, 1), torch.tensor([[1.0], [1.001], [0.5], [1.001]]))
        >>> panel = Panel.counted("remove", on_levels(some.b2.sum(1)))
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
    level += b2 > _grid(level)  # the logarithm is itself rounded
    if len(level) and int(level.max()) >= LEVELS:
        raise FloatingPointError(f"Σb² = {b2.max().item():.3g} is more than 2^{_MOST}")
    return torch.bincount(level, minlength=LEVELS)


def _mark(values: Tensor) -> Tensor:
    """Return a number for each row, (m,) int64, that other rows do not have by chance."""
    rows = values.reshape(len(values), math.prod(values.shape[1:]))
    bits = (rows.cpu().double() + 0.0).view(torch.int64)
    odd = torch.randint(2**62, (bits.shape[1],), generator=torch.Generator().manual_seed(0))
    return (bits * (2 * odd + 1)).sum(1)


def _grid(level: Tensor) -> Tensor:
    return torch.exp2(level.double() / OCTAVE + _LEAST)
