"""The parts of docs/benchmarks/reproduction.txt that papers.py writes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from papers import at_small_delta, descent, with_papers
from scipy import optimize, stats

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_has_the_printed_numbers() -> None:
    page = (DOCS / "benchmarks" / "reproduction.txt").read_text(encoding="utf-8")
    assert with_papers(page, DOCS / "benchmarks") == page


@pytest.mark.parametrize("epsilon", [0.00998, 0.02, 1.0])
def test_epsilon_at_a_small_delta_is_that_of_the_same_gaussian(epsilon: float) -> None:
    """By δ(ε) of Balle and Wang 2018, Theorem 8, solved for the distance and then for ε."""

    def delta(distance: float, at: float) -> float:
        tail = float(stats.norm.logcdf(-distance / 2 - at / distance))
        return float(stats.norm.cdf(distance / 2 - at / distance)) - math.exp(at + tail)

    distance = optimize.brentq(lambda d: delta(d, epsilon) - 1e-5, 1e-4, 10, xtol=1e-14)
    expected = optimize.brentq(
        lambda at: math.log(max(delta(distance, at), 1e-300) / 1e-10), epsilon, 20 * epsilon
    )
    assert at_small_delta(epsilon) == pytest.approx(expected, rel=1e-4)


def test_descent_is_read_from_table_one() -> None:
    page = (DOCS / "benchmarks" / "reproduction.txt").read_text(encoding="utf-8")
    assert descent(page) == {"abalone": (0.02, 0.7610), "adult": (0.00998, 0.8175)}
