"""Sums over all clients' records from which ε follows: no client shows a record's value.

A client turns the values v of its own panel, in [0, 1], into whole numbers that only have to be
added up: their number, the sums of v, v² and v³, log-wealths of bets on their mean, and how many
lie below fixed edges. Whole numbers are added modulo 2⁶⁴, so that masks which cancel in the sum
hide every client's own (Bonawitz et al., CCS 2017, without its recovery of lost clients).

The total is not hidden, and is computed from the panels: it is as secret as they are.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import add

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bdpvi._runtime import validate
from bdpvi.accounting.estimators import Moments
from bdpvi.accounting.quantiles import certified_fractions

BITS = 30
"""Binary places of all sums. 2³⁰ records fit in 64 bits."""
FRACTIONS = (1 - 2.0**-10, *(2.0**-j for j in range(1, 13)))
"""Of the wealth, that are bet; below 1, so that no record can take all of it."""
MEANS = tuple((torch.logspace(-5, 0, 97, dtype=torch.float64)[:-1] * (1 - 2.0**-10)).tolist())
"""Hypotheses about the mean, 13 % apart."""
Words = NDArray[np.uint64]


@dataclass(frozen=True)
class Grids:
    """What is summed, fixed before anybody looks at a record. Public.

    Attributes:
        columns: number of values of each record, K.
        edges: increasing, of one more number per record, whose quantiles are certified.
        fractions: c_j in (0, 1), decreasing.
        means: ν_k in (0, 1), increasing.
    """

    columns: int
    edges: tuple[float, ...] = ()
    fractions: tuple[float, ...] = FRACTIONS
    means: tuple[float, ...] = MEANS

    def __post_init__(self) -> None:
        validate.positive_int("columns", self.columns, least=0)
        for name, values in (("fractions", self.fractions), ("means", self.means)):
            for one in values:
                validate.probability(name, one)
        for name, values in (
            ("fractions", self.fractions[::-1]), ("means", self.means), ("edges", self.edges)
        ):  # fmt: skip
            if any(not a < b for a, b in pairwise(values)):
                raise ValueError(f"{name} must be in order and differ, got {values!r}")

    @property
    def length(self) -> int:
        """Whole numbers in all."""
        each = 3 + len(self.fractions) * len(self.means)
        return 1 + self.columns * each + len(self.edges)


@dataclass(frozen=True, eq=False)
class SecureSums:
    """Sums over records, as whole numbers; of a client, or with ``+`` of several.

    Attributes:
        grids: what was summed.
        records: n.
        powers: Σv, Σv², Σv³, (3, K) int64, rounded up, with :data:`BITS` binary places.
        wealth: Σ log(1 + c_j (ν_k − v)/(1 − ν_k)), (K, J, M) int64, rounded down.
        below: number of records at or below each edge, (E,) int64.

    >>> grids = Grids(columns=1, edges=(1.0, 2.0))
    >>> one = SecureSums.of(grids, torch.full((1, 500), 0.1), torch.full((500,), 0.5))
    >>> two = SecureSums.of(grids, torch.full((1, 500), 0.2), torch.full((500,), 1.5))
    >>> total = one + two
    >>> total.records, round(float(total.moments().log_mean.exp()), 6), total.below.tolist()
    (1000, 0.15, [500, 1000])
    """

    grids: Grids
    records: int
    powers: Tensor
    wealth: Tensor
    below: Tensor

    @classmethod
    def of(cls, grids: Grids, values: Tensor, own: Tensor | None = None) -> SecureSums:
        """Return the sums of one client's records.

        Args:
            grids: what to sum.
            values: in [0, 1], (K, m).
            own: of which quantiles are wanted, (m,); needed if there are edges.

        Raises:
            ValueError: if a shape is another, or a value is NaN or out of its range.
        """
        if values.ndim != 2 or len(values) != grids.columns:
            raise ValueError(
                f"values must have shape (columns, records) with {grids.columns} columns, got "
                f"{tuple(values.shape)}"
            )
        values = values.detach().cpu().double()
        validate.every("values", values, (values >= 0) & (values <= 1), "lie in [0, 1]")
        count = values.shape[1]
        below = torch.zeros(len(grids.edges), dtype=torch.int64)
        if grids.edges:
            if own is None or own.shape != (count,):
                raise ValueError(f"own must have shape ({count},), as grids has edges")
            validate.every("own", own, ~own.isnan(), "not be NaN")
            edges = torch.tensor(grids.edges, dtype=torch.float64)
            below = (own.detach().cpu().double()[:, None] <= edges).sum(0)
        powers = torch.stack([_up(values**n).sum(1) for n in (1, 2, 3)])
        return cls(grids, count, powers, _wealth(grids, values), below)

    def __add__(self, other: SecureSums) -> SecureSums:
        """Return the sums over the records of both."""
        if self.grids != other.grids:
            raise ValueError("grids differ: all clients sum on the same ones, fixed beforehand")
        return SecureSums.from_vector(self.grids, self.vector() + other.vector())

    def vector(self) -> Tensor:
        """Return all sums as (grids.length,) int64."""
        parts = (torch.tensor([self.records]), self.powers, self.wealth, self.below)
        return torch.cat([part.flatten() for part in parts])

    @classmethod
    def from_vector(cls, grids: Grids, vector: Tensor) -> SecureSums:
        """Return the sums of :meth:`vector`.

        Raises:
            ValueError: if it has another length, or its number of records cannot be.
        """
        if vector.shape != (grids.length,) or vector.dtype != torch.int64:
            raise ValueError(
                f"vector must have {grids.length} whole numbers (int64), got "
                f"{tuple(vector.shape)} of {vector.dtype}"
            )
        shape = (grids.columns, len(grids.fractions), len(grids.means))
        sizes = [1, 3 * grids.columns, math.prod(shape), len(grids.edges)]
        records, powers, wealth, below = vector.split(sizes)
        count = int(records)
        if not 0 <= count <= 2**BITS:
            raise ValueError(f"vector counts {count} records: masks do not cancel, or are others")
        return cls(grids, count, powers.view(3, -1), wealth.view(shape), below)

    def moments(self) -> Moments:
        """Return the moments of v, over the columns, without their tails.

        Raises:
            ValueError: with fewer than 3 records.
        """
        if self.records < 3:
            raise ValueError(f"records={self.records}; an estimate needs at least 3")
        first, second, third = self.powers.double() * 2.0**-BITS / self.records
        sd = (second - first**2).clamp(min=0).sqrt()
        central = third - 3 * first * second + 2 * first**3
        # Tails are not summed: none is fitted where fewer than five values stand.
        zero = torch.zeros_like(first)
        return Moments(self.records, zero, first - 1, sd, central / sd**3, zero[:, None])

    def betting(self, failure_probability: float) -> Tensor:
        """Return bounds on E v by betting, (K,), whatever the distribution.

        As :func:`bdpvi.accounting.betting.betting`, with the grid's fractions: the least ν_k whose
        wealth is above 1/γ, or 1. Wealth rises with ν, so that the whole grid is one bet.
        """
        gamma = validate.probability("failure_probability", failure_probability)
        gains = self.wealth.double() * 2.0**-BITS
        k = torch.arange(len(self.grids.fractions), dtype=torch.float64)
        weights = torch.cat([1 / ((k + 1) * (k + 2)), 1 / (k[-1:] + 2)])
        unbet = gains.new_zeros(len(gains), 1, gains.shape[2])
        log_wealth = torch.logsumexp(torch.cat([gains, unbet], 1) + weights.log()[:, None], 1)
        rejected = log_wealth >= -math.log(gamma)
        first = torch.where(rejected.any(1), rejected.int().argmax(1), rejected.shape[1])
        return torch.tensor([*self.grids.means, 1.0], dtype=torch.float64)[first]

    def quantile(self, fraction: float, failure_probability: float) -> float:
        """Return an edge that at least ``fraction`` of all records stay at or below.

        As :func:`bdpvi.accounting.quantiles.quantile_certificate`, rounded up to an edge; +inf
        where no edge is certified.
        """
        validate.probability("fraction", fraction)
        certified = certified_fractions(max(1, self.records), failure_probability)
        needed = int(torch.searchsorted(certified, fraction)) + 1
        enough = (self.below >= needed).nonzero()
        return float(self.grids.edges[int(enough[0])]) if len(enough) else math.inf


def _up(values: Tensor) -> Tensor:
    return torch.ceil(values * 2.0**BITS).long()


def _wealth(grids: Grids, values: Tensor) -> Tensor:
    """Return log-wealths (K, J, M), record by record rounded down."""
    c = torch.tensor(grids.fractions, dtype=torch.float64)[:, None]
    means = torch.tensor(grids.means, dtype=torch.float64)
    total = torch.zeros(len(values), len(c), len(means), dtype=torch.int64)
    for record in values.T:
        gain = torch.log1p(c * ((means - record[:, None, None]) / (1 - means)))
        # A little less, as the logarithm is itself rounded.
        total += torch.floor(gain * 2.0**BITS - 2.0**-10).long()
    return total


def together(sums: Sequence[SecureSums]) -> SecureSums:
    """Return the sums over all clients, in plain sight of who adds them.

    Raises:
        ValueError: if there is none, or grids differ.
    """
    if not sums:
        raise ValueError("sums has no client")
    return reduce(add, sums)


def masked(sums: SecureSums, client: int, secrets: Mapping[int, bytes], tag: str) -> Words:
    """Return a client's sums under masks that cancel in the total of all, modulo 2⁶⁴.

    To anybody without the secrets a message is uniform, as far as SHAKE-256 is, whatever the sums.
    Every client has to answer: if one is lost, the rest start again among themselves, under a
    new tag. What the total says is left: with few clients it says much about each.

    Args:
        sums: of the client.
        client: its number.
        secrets: at least 16 secret bytes shared with each of the others, which the server must not
            know; at least two others, as one would subtract its own.
        tag: of the report and its set of clients; a tag is used once, or messages betray changes.

    Raises:
        ValueError: if there are fewer than two others, or a secret is too short.
    """
    if len(secrets) < 2 or client in secrets:
        raise ValueError(f"secrets must be of at least 2 clients other than {client}")
    words = sums.vector().numpy().view(np.uint64).copy()
    for other, secret in secrets.items():
        if len(secret) < 16:
            raise ValueError(f"secrets[{other}] has {len(secret)} bytes; at least 16 are needed")
        mask = _mask(secret, tag, len(words))
        words = words + mask if client < other else words - mask
    return words


def _mask(secret: bytes, tag: str, length: int) -> Words:
    # The secret's length keeps secret and tag apart.
    key = len(secret).to_bytes(8, "little") + secret + tag.encode()
    return np.frombuffer(hashlib.shake_256(key).digest(8 * length), dtype="<u8").astype(np.uint64)


def unmasked(grids: Grids, messages: Sequence[Words]) -> SecureSums:
    """Return the sums over all clients from everybody's :func:`masked` message.

    Raises:
        ValueError: if masks do not cancel, as when a client's message is missing.
    """
    if not messages:
        raise ValueError("messages has no client's")
    total = reduce(add, messages)
    return SecureSums.from_vector(grids, torch.from_numpy(total.view(np.int64)))
