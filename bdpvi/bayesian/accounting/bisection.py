"""The smallest ε that passes a test of every direction, by bisection of a public grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache

from torch import Tensor

from bdpvi.bayesian.accounting.answer import estimate
from bdpvi.bayesian.accounting.betting import betting
from bdpvi.bayesian.accounting.estimators import MeanEstimate
from bdpvi.bayesian.accounting.losses import Deltas
from bdpvi.privacy.conversions import EPSILONS

_HOPELESS = 20.0
"""Quicker bounds are up to about 5 times the truth."""

Test = Callable[[float, bool], MeanEstimate | None]
"""Bounds a number that decreases in ε. None fails at once, but not at the last ε of the grid."""
Bounded = Callable[[Sequence[Deltas], float], MeanEstimate]
"""Bounds that number from δ(ε) of the records and its range."""


def bisected(tests: Mapping[str, Test], beta: float) -> tuple[float, dict[str, MeanEstimate]]:
    """Return the smallest sufficient ε of :data:`EPSILONS` that a bisection finds, and why.

    At every ε tried, each direction's test compares its number with β; all must pass. The numbers
    decrease in ε. So an answer that is too small requires a wrong pass at an ε on the path that
    the bisection takes when no test errs. At such an ε some number exceeds β, and that direction's
    own test has to err: a probability of at most :data:`TESTS` · γ, with γ that of one test. A
    quicker bound over conceivable records adds a second test at each ε, and either may pass. A test
    that fails where it could have passed leads to a larger ε.

    Args:
        tests: by direction, see :func:`of_bound`.
        beta: the largest allowed number.

    Returns:
        ε, +inf where none suffices; and the estimates there, or at the largest ε.
    """

    @cache
    def at(index: int) -> dict[str, MeanEstimate] | None:
        epsilon, result, last = float(EPSILONS[index]), {}, index == len(EPSILONS) - 1
        for name, test in tests.items():
            one = test(epsilon, last)
            if one is None:
                return None
            result[name] = one
            if not last and not _passes(one, beta):
                return None
        return result

    low, high = -1, len(EPSILONS)
    while high - low > 1:
        middle = (low + high) // 2
        found = at(middle)
        passes = found is not None and all(_passes(one, beta) for one in found.values())
        low, high = (low, middle) if passes else (middle, high)
    last = at(min(high, len(EPSILONS) - 1))
    assert last is not None  # all directions are known at the largest ε
    return (float(EPSILONS[high]) if high < len(EPSILONS) else math.inf), last


def of_mean(deltas: Deltas, beta: float, failure_probability: float) -> Test:
    """Return the test of E_x′ δ_x′(ε), by betting.

    Args:
        deltas: δ_x′(ε) of every record, with a bound over conceivable records.
        beta: the largest allowed mean.
        failure_probability: γ of each test.
    """
    return of_bound(
        [deltas], beta, lambda fixed, e: estimate(fixed[0], e, betting, failure_probability)
    )


def of_bound(parts: Sequence[Deltas], beta: float, bounded: Bounded) -> Test:
    """Return the test of a number that is at least each part's mean.

    It uses the quicker range if that decides: if even the largest observed δ as the range gives a
    bound above β, the exact range is not computed. If the mean of the quicker bound exceeds
    :data:`_HOPELESS` times β, it fails at once.

    Args:
        parts: δ_x′(ε) of records of one or several populations, with bounds over conceivable ones.
        beta: the largest allowed number.
        bounded: bounds the number; larger ranges never give a smaller bound.
    """

    def test(epsilon: float, last: bool) -> MeanEstimate | None:
        for part in parts:
            if not last and part.guide and float(part.guide(epsilon).mean()) > _HOPELESS * beta:
                return None
        deltas = [part.at(epsilon) for part in parts]

        def within(uppers: Sequence[float]) -> MeanEstimate:
            return bounded([*map(_fixed, parts, deltas, uppers)], epsilon)

        rough = [_range(part.rough or part.bound, epsilon) for part in parts]
        quick = within(rough)
        if _passes(quick, beta) or not any(part.rough for part in parts):
            return quick
        seen = [
            min(float(delta.max()), upper) if len(delta) else upper
            for delta, upper in zip(deltas, rough, strict=True)
        ]
        if not _passes(within(seen), beta):
            return quick
        return within([_range(part.bound, epsilon) for part in parts])

    return test


def _fixed(one: Deltas, delta: Tensor, upper: float) -> Deltas:
    return replace(one, at=lambda _: delta, bound=lambda _: upper)


def _range(bound: Callable[[float], float] | None, epsilon: float) -> float:
    assert bound is not None
    return bound(epsilon)


def _passes(one: MeanEstimate, beta: float) -> bool:
    return float(one.log_bound) <= math.log(beta)
