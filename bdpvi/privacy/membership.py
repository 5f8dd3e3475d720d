"""How well anybody tells whether a record is in the table.

An attacker knows all other records, the settings and the record x, and sees what was released. P
and Q are its laws with and without x, δ(ε) = sup_S P(S) − e^ε Q(S), the larger of both orders.

- At even odds the best guess is right with probability (1 + δ(0))/2 (Neyman and Pearson: the best
  test of P against Q adds their total variation distance δ(0)). Any other ε gives the bound
  (e^ε + δ)/(1 + e^ε) (Kairouz, Oh and Viswanath, "The composition theorem for differential
  privacy", ICML 2015, Theorem 2.1), as Triastcyn (EPFL 2020, Table 5.2) prints at δ = 0.
- A test that wrongly accuses a share α of those who are not in the table finds at most
  min_ε e^ε α + δ(ε) of those who are.

A curve δ(ε) is asked at public ε only (:data:`EPSILONS`). Each gives valid bounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from bdpvi.privacy.loss_bounds import Array, Deltas
from bdpvi.privacy.perturbed_loss import gaussian_delta
from bdpvi.privacy.rounding import rounding_delta

EPSILONS = np.concatenate([[0.0], np.geomspace(0.01, 30.0, 80)])
"""Every ε at which a worst-case curve is asked; true-positive rates lose less than 1 % by it."""
RATES = (0.01, 0.001)
"""Shares of wrongly accused."""


@dataclass(frozen=True)
class Membership:
    """How well anybody tells whether a record is in the table, after everything charged.

    In the worst case it follows from public numbers as ε does. Means over the population were
    computed from the records, and are for the table's owner.

    Attributes:
        accuracy: how often the best guess is right at even odds: for any conceivable record, or as
            a mean over the population.
        anyone: the same for any conceivable record.
        rates: for false-positive rates of 1 % and 0.1 %, the largest true-positive rate, as
            ``accuracy``.
        failure_probability: of all means together; 0 in the worst case.
        own: whether the table's own records stand for fresh ones, which duplicates violate.

    >>> Membership.of([(0.0, 0.2), (0.5, 0.05), (1.0, 0.01)])
    Membership(accuracy=0.6, anyone=0.6, rates=((0.01, 0.037...), (0.001, 0.012...)), ...)
    """

    accuracy: float
    anyone: float
    rates: tuple[tuple[float, float], ...]
    failure_probability: float = 0.0
    own: bool = False

    @classmethod
    def of(cls, curve: Iterable[tuple[float, float]]) -> Membership:
        """Return the worst case, from pairs of ε and δ that all hold."""
        pairs = list(curve)
        most = accuracy(pairs)
        return cls(most, most, true_positive_rates(pairs))

    def in_one_sentence(self, whose: str = "one person's record") -> str:
        """Return it in words, and what an attacker finds.

        Args:
            whose: what may be in the table.
        """
        shares = " and ".join(
            f"at most {_above(true)} in 100 members while wrongly accusing {_above(false)} in 100 "
            "outsiders"
            for false, true in self.rates
        )
        it = "it" if whose.startswith("one ") else "them"
        right, last = f"{_above(self.accuracy)} of 100 cases, whatever the values are", ""
        if self.failure_probability:
            stand = ", if the table's own records can serve as fresh ones" * self.own
            right = (
                f"{_above(self.accuracy)} of 100 cases, as an average over people like those in "
                f"this population{stand}; for no person whatever in more than {_above(self.anyone)}"
            )
            last = (
                ". This is for this table and one record a person. It was read from the records "
                "and is the owner's"
            )
        return (
            f"somebody who knows {whose}, all others and how this was computed, and for whom it is "
            f"an even bet whether the table has {it}, guesses right after seeing everything that "
            f"was released in at most {right}; without it in 50. An attacker finds {shares}{last}"
        )

    def __str__(self) -> str:
        words = self.in_one_sentence()
        return words[0].upper() + words[1:]


def accuracy(curve: Sequence[tuple[float, float]]) -> float:
    """Return the best guess's accuracy at even odds, from pairs of ε and δ that all hold.

    >>> accuracy([(math.log(3), 0.0)])
    0.75
    """
    shrunk = [(delta, math.exp(-epsilon)) for epsilon, delta in curve]
    return min(1.0, *((1 + delta * one) / (1 + one) for delta, one in shrunk))


def true_positive_rates(curve: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Return the largest true-positive rate at each of :data:`RATES`, from such pairs."""
    pairs = [(math.exp(min(epsilon, 700.0)), delta) for epsilon, delta in curve]
    return tuple((one, min(1.0, *(ratio * one + delta for ratio, delta in pairs))) for one in RATES)


def of_curve(deltas: Deltas) -> list[tuple[float, float]]:
    """Return pairs of ε and δ on the public grid."""
    return list(zip(EPSILONS.tolist(), deltas(EPSILONS).tolist(), strict=True))


def of_gaussian(
    variance: float, rounding: float = 0.0, spare: float = 0.0
) -> list[tuple[float, float]]:
    """Return them for a Gaussian mechanism of this μ², within rounding and more δ."""

    def deltas(epsilons: Array) -> Array:
        exact = gaussian_delta(epsilons, variance)
        return exact + spare + [rounding_delta(rounding, one) for one in epsilons.tolist()]

    return of_curve(deltas)


def _above(share: float) -> str:
    """Return a share in per cent, rounded up to two digits after the point."""
    return f"{math.ceil(1e4 * share - 1e-9) / 100:g}"
