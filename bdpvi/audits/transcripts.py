"""Doors that share many noisy sums, audited exactly by what a record adds to each of them.

A run without the record is written down. A run with it, in which its coin always shows heads, is
then shown the same noisy sums, so that it goes the same way: what its sums are more, before noise,
is what the record adds, by the code of the door itself. With its coin it is there with probability
q, so each sum is a sampled Gaussian of a known distance, and their composition has a known law of
losses. It is put on a lattice here, always downwards, without the library's accountants.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch
from scipy.fft import next_fast_len
from scipy.special import ndtr
from torch import Tensor

from bdpvi.audits.claims import Claim
from bdpvi.audits.found import Audit, Door
from bdpvi.noise.keys import Key
from bdpvi.privacy.solve import root
from bdpvi.releases.noisy_sum import NoisySum
from bdpvi.synthesis.counts import Floats

_STEP, _MOST = 5e-4, 15.0
"""Width of the lattice, and the largest loss of one sum; larger ones count as this."""


@dataclass(eq=False)
class Transcript:
    """The sums of a run without a record, and how far the record would have moved each.

    Attributes:
        canary: the record's number.
        rate: q.
        moved: what it adds to each sum, in standard deviations of the noise.
    """

    canary: int
    rate: float = 1.0
    moved: list[float] = field(default_factory=list)
    _batches: list[Tensor] = field(default_factory=list, init=False)
    _sums: list[Tensor] = field(default_factory=list, init=False)
    _shown: list[list[Tensor]] = field(default_factory=list, init=False)

    def without(self) -> Any:
        """Return a context in which a run without the record is written down."""
        batch, noisy = NoisySum.batch, NoisySum.noisy

        def sampled(mechanism: NoisySum, step: int) -> Tensor:
            found = batch(mechanism, step)
            self._batches.append(found[found != self.canary])
            return self._batches[-1]

        def summed(mechanism: NoisySum, totals: Sequence[Tensor], key: Key) -> list[Tensor]:
            self._sums.append(_flat(totals))
            self._shown.append(noisy(mechanism, totals, key))
            return [one.clone() for one in self._shown[-1]]

        return _hooked(sampled, summed)

    def with_it(self) -> Any:
        """Return a context in which a run with the record goes the same way."""

        def sampled(mechanism: NoisySum, step: int) -> Tensor:
            return torch.cat([self._batches[len(self.moved)], torch.tensor([self.canary])])

        def summed(mechanism: NoisySum, totals: Sequence[Tensor], key: Key) -> list[Tensor]:
            at, self.rate = len(self.moved), mechanism.rate
            added = float((_flat(totals) - self._sums[at]).norm())
            self.moved.append(added / mechanism.deviation)
            return [one.clone() for one in self._shown[at]]

        return _hooked(sampled, summed)


def audited(name: str, make: Callable[[], Door], delta: float) -> Audit:
    """Return the exact audit of a door by one transcript.

    Args:
        name: of the audit.
        make: returns what is gone through, without and with the record.
        delta: δ.
    """
    begun, door = time.monotonic(), make()
    seen = Transcript(door.record)
    with seen.without():
        claim = Claim.of(door.through(door.without)[1]).epsilon(delta)
    with seen.with_it():
        door.through(door.with_it)
    return Audit.exact(name, claim, epsilon(seen.moved, seen.rate, delta), delta, begun)


def epsilon(distances: Sequence[float], rate: float, delta: float) -> float:
    """Return a lower bound of the ε of sums over Poisson samples, within 5e-4 for each of them.

    Args:
        distances: what the record adds to each sum, in standard deviations of its noise.
        rate: q.
        delta: δ.

    >>> round(epsilon([1.0], 1.0, 1e-5), 2)  # the Gaussian mechanism: 4.3772
    4.38
    """
    some, result = [distance for distance in distances if distance > 0], 0.0
    for present in (True, False):
        law = _composed([_law(one, rate, present) for one in some])
        losses: Floats = np.arange(len(law), dtype=np.float64) * _STEP - len(some) * _MOST

        def excess(at: float, law: Floats = law, losses: Floats = losses) -> float:
            return float(law @ -np.expm1(np.minimum(at - losses, 0.0))) - delta

        if excess(result) > 0:
            result = root(excess, result, len(some) * _MOST)
    return result


def _law(d: float, rate: float, present: bool) -> Floats:
    """Return the law of a sum's loss with or without the record, on a lattice within ± _MOST.

    A loss in between counts as the next one below, and one below all is left out.
    """
    ends = round(_MOST / _STEP)
    loss = np.arange(-ends, ends + 1) * _STEP * (1 if present else -1)
    with np.errstate(divide="ignore"):  # where log(1 - q + q e^{dx - d²/2}) is this loss
        odds = np.log(np.maximum(np.expm1(loss) + rate, 0.0) / rate)
    x = (odds + d**2 / 2) / d
    above = (1 - rate) * ndtr(-x) + rate * ndtr(d - x) if present else ndtr(x)
    return np.asarray(-np.diff(above, append=0.0))


def _composed(laws: Sequence[Floats]) -> Floats:
    """Return the law of a sum of losses."""
    whole = sum(len(law) - 1 for law in laws) + 1
    size = next_fast_len(whole, real=True)
    total = np.ones(size // 2 + 1, dtype=np.complex128)
    for law in laws:
        total *= np.fft.rfft(law, size)
    return np.asarray(np.fft.irfft(total, size)[:whole])


def _flat(totals: Sequence[Tensor]) -> Tensor:
    return torch.cat([total.detach().cpu().double().flatten() for total in totals])


def _hooked(batch: Any, noisy: Any) -> Any:
    """Return a context with these samples and sums, where both runs draw all else alike."""
    return mock.patch.multiple(
        NoisySum, batch=batch, noisy=noisy, seed_of=lambda mechanism, step: step
    )
