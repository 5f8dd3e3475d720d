"""What is bought and what is released after it cost together what Gaussian mechanisms cost."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bdpvi.accounting.bought import gaussian_distance, with_bought
from bdpvi.accounting.ledger import Bought, Ledger
from bdpvi.accounting.worst_case import gaussian_guarantee
from bdpvi.types import WorstCase

DELTA = 1e-5


def delta_of(epsilon: float, distance: mpmath.mpf) -> mpmath.mpf:
    """Return δ(ε) of a Gaussian mechanism in 50 digits (Balle and Wang 2018, Theorem 8)."""
    epsilon = mpmath.mpf(epsilon)
    above = mpmath.ncdf(distance / 2 - epsilon / distance)
    return above - mpmath.exp(epsilon) * mpmath.ncdf(-distance / 2 - epsilon / distance)


def released(distance: float, rounding: float = 0.0) -> WorstCase:
    found = gaussian_guarantee(distance**2, DELTA, rounding)
    assert found is not None
    return found


@given(
    st.lists(st.floats(0.01, 1.0), min_size=1, max_size=4),
    st.floats(0.01, 1.0),
    st.floats(0.0, 5e-6),
)
def test_the_total_is_the_exact_composition(
    distances: list[float], last: float, names: float
) -> None:
    bought = [Bought(one, names / len(distances)) for one in distances]
    total = with_bought(released(last), bought, DELTA)
    assert total is not None
    with mpmath.workdps(50):
        distance = mpmath.sqrt(sum(mpmath.mpf(one) ** 2 for one in (*distances, last)))
        spent = delta_of(total.epsilon, distance)
        assert spent == pytest.approx(DELTA - names, rel=1e-9)
        # A total that is 1 % lower is not the truth.
        assert delta_of(0.99 * total.epsilon, distance) > 1.01 * spent


def test_every_order_and_a_restart_cost_the_same(tmp_path: Path) -> None:
    bought = [Bought(0.1, 1e-7, 1e-12), Bought(0.2), Bought(0.05, 3e-7)]
    totals = []
    for number, order in enumerate(itertools.permutations(bought)):
        file = tmp_path / f"{number}.jsonl"
        for one in order:
            Ledger.at(file).charge(one)  # a process of its own would read the same file
        total = with_bought(released(0.3, 1e-12), Ledger(file).bought(), DELTA)
        assert total is not None
        totals.append(total.epsilon)
    assert max(totals) == pytest.approx(min(totals), rel=1e-12, abs=0)
    assert totals[0] > released(0.3, 1e-12).epsilon


@given(st.floats(0.01, 10.0), st.sampled_from([1e-9, 1e-5]))
def test_a_distance_costs_what_it_was_asked_for(epsilon: float, delta: float) -> None:
    with mpmath.workdps(50):
        found = delta_of(epsilon, mpmath.mpf(gaussian_distance(epsilon, delta)))
    assert found == pytest.approx(delta, rel=1e-6)
    assert found <= delta


def test_nothing_is_promised_where_nothing_is_known() -> None:
    assert with_bought(replace(released(0.1), distance=None), [Bought(0.1)], DELTA) is None
    assert with_bought(released(0.1), [Bought(0.1, DELTA)], DELTA) is None
