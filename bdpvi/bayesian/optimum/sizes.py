"""Estimates of the optimum route's time and memory, before it starts."""

from __future__ import annotations

import math
import os
import warnings
from dataclasses import dataclass

import torch

from bdpvi._ground.outputs import several
from bdpvi.bayesian.optimum.displacements import NUMERICS

PART = 512
"""Neighbours that share a pass: more need more memory, fewer need more passes."""
_STEPS, _PASSES, _SERIES = 50, 4, 200
"""Passes of a typical fit; passes for a typical neighbour; operations of a pair's series."""
_SPEED = 2e10
_LONG, _LARGE = 60.0, 2.0**31


def parameters_of(d: int, *, diagonal: bool) -> int:
    """Return the number of parameters of a guide over d variables.

    Raises:
        ValueError: if there are too many.
    """
    parameters = 2 * d if diagonal else d * (d + 3) // 2
    if parameters > NUMERICS.parameters:
        raise ValueError(
            f"the guide over {several(d, 'variable')} has {parameters} parameters, more than the "
            f"{NUMERICS.parameters} that this route can handle; use a mean-field guide or the "
            "neighbours Coupled()"
        )
    return parameters


def pays(degree: int, d: int, parameters: int, records: int) -> bool:
    """Return whether the polynomial's tensor of this degree fits and costs less than passes."""
    columns = math.comb(d + degree - 1, degree)
    fits = columns * parameters <= NUMERICS.entries
    return fits and columns * NUMERICS.scarce[degree - 2] <= records


@dataclass(frozen=True)
class Size:
    """The size of a job: floating-point operations, and peak memory in bytes.

    Both are orders of magnitude, without the separate searches for neighbours left by passes.
    """

    operations: float
    memory: float

    @classmethod
    def of(cls, records: int, neighbours: int, d: int, *, diagonal: bool) -> Size:
        """Return the size of a job with this many records and neighbours over d variables.

        >>> Size.of(2000, 2000, 500, diagonal=True).memory < 2**30
        True
        """
        p = parameters_of(d, diagonal=diagonal)
        fit = _STEPS * 4 * records * d**2
        # J over (m, y), the sums that bound its change, its inverse and its eigenvalues.
        expansion = 2 * records * ((3 if diagonal else 1) * p**2 + 20 * d**2) + 10 * p**3
        columns = sum(math.comb(d + n - 1, n) for n in (2, 3) if pays(n, d, p, records))
        polynomial = 2 * columns * p * (records + _PASSES * neighbours)
        a_pass = neighbours * (records * (4 * p + _SERIES) + 6 * p**2)
        numbers = 6 * p**2 + 20 * d**2 + 2 * columns * p + 2 * records * (p + NUMERICS.series)
        numbers += 3 * neighbours * p + 10 * PART * p + 20 * NUMERICS.cells
        return cls(fit + expansion + polynomial + _PASSES * a_pass, 8.0 * numbers)

    def check(self, d: int, *, diagonal: bool, available: float) -> None:
        """Warn of a long or large job over d variables.

        Args:
            d: number of variables.
            diagonal: whether the guide is a mean-field guide.
            available: bytes of memory.

        Raises:
            ValueError: if there is not enough memory.
        """
        seconds = self.operations / _SPEED / torch.get_num_threads()
        name, less = ("mean-field", "") if diagonal else ("full-rank", "a mean-field guide, ")
        job = f"the neighbours of a {name} guide over {d} variables need"
        less = f"{less}fewer records to leave out or neighbours=Coupled() need less"
        if self.memory > available:
            raise ValueError(
                f"{job} about {self.memory / 2**30:.1f} GiB of memory, more than the "
                f"{available / 2**30:.1f} GiB of this machine; {less}"
            )
        if seconds > _LONG or self.memory > _LARGE:
            warnings.warn(
                f"{job} about {self.memory / 2**30:.1f} GiB of memory and in the order of "
                f"{max(1, seconds / 60):.0f} minutes, more where single records stand out; {less}",
                RuntimeWarning,
                stacklevel=2,
            )


def memory() -> float:
    """Return the bytes of this machine's memory; inf on Windows, which does not say."""
    if not hasattr(os, "sysconf"):
        return math.inf
    return float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")
