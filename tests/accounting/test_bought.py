"""What is bought and what is released after it cost together what Gaussian mechanisms cost."""

from __future__ import annotations

import itertools
from pathlib import Path

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bdpvi.accounting.bought import folded, gaussian_distance, together
from bdpvi.accounting.events import SampledGaussian
from bdpvi.accounting.ledger import Bought, Charge, Ledger, Line, Steps, Unit
from bdpvi.accounting.worst_case import PrivacyLossAccountant

DELTA = 1e-5


def delta_of(epsilon: float, distance: mpmath.mpf) -> mpmath.mpf:
    """Return δ(ε) of a Gaussian mechanism in 50 digits (Balle and Wang 2018, Theorem 8)."""
    epsilon = mpmath.mpf(epsilon)
    above = mpmath.ncdf(distance / 2 - epsilon / distance)
    return above - mpmath.exp(epsilon) * mpmath.ncdf(-distance / 2 - epsilon / distance)


def released(distance: float, rounding: float = 0.0) -> Charge:
    return Charge(1, 1.0, distance=distance, rounding=rounding)


@given(
    st.lists(st.floats(0.01, 1.0), min_size=1, max_size=4),
    st.floats(0.01, 1.0),
    st.floats(0.0, 5e-6),
)
def test_the_total_is_the_exact_composition(
    distances: list[float], last: float, names: float
) -> None:
    bought = [Bought(one, names / len(distances)) for one in distances]
    total = together([*bought, released(last)], DELTA)
    assert total is not None
    with mpmath.workdps(50):
        distance = mpmath.sqrt(sum(mpmath.mpf(one) ** 2 for one in (*distances, last)))
        spent = delta_of(total.epsilon, distance)
        assert spent == pytest.approx(DELTA - names, rel=1e-9)
        # A total that is 1 % lower is not the truth.
        assert delta_of(0.99 * total.epsilon, distance) > 1.01 * spent


def test_every_order_and_a_restart_cost_the_same(tmp_path: Path) -> None:
    lines: list[Line] = [
        Bought(0.1, 1e-7, 1e-12),
        released(0.2),
        Bought(0.05),
        released(0.3, 1e-12),
    ]
    totals = []
    for number, order in enumerate(itertools.permutations(lines)):
        file = tmp_path / f"{number}.jsonl"
        for one in order:
            Ledger.at(file).charge(one)  # a process of its own would read the same file
        for found in (Ledger(file).lines(), folded(Ledger(file).lines())):
            total = together(found, DELTA)
            assert total is not None
            totals.append(total.epsilon)
    assert max(totals) == pytest.approx(min(totals), rel=1e-12, abs=0)
    alone = together([released(0.3, 1e-12)], DELTA)
    assert alone is not None
    assert totals[0] > alone.epsilon


@given(st.floats(0.01, 10.0), st.sampled_from([1e-9, 1e-5]))
def test_a_distance_costs_what_it_was_asked_for(epsilon: float, delta: float) -> None:
    with mpmath.workdps(50):
        found = delta_of(epsilon, mpmath.mpf(gaussian_distance(epsilon, delta)))
    assert found == pytest.approx(delta, rel=1e-6)
    assert found <= delta


def test_nothing_is_promised_where_nothing_is_known() -> None:
    assert together([Charge(1, 1.0), Bought(0.1)], DELTA) is None
    assert together([Charge(1, 1.0, from_data=True, distance=0.1)], DELTA) is None
    assert together([released(0.1), Bought(0.1, DELTA)], DELTA) is None
    nothing = together([], DELTA)
    assert nothing is not None
    assert nothing.epsilon == 0.0


@given(st.floats(0.01, 0.5), st.integers(1, 5))
def test_the_rows_of_one_person_are_a_group(distance: float, rows: int) -> None:
    """Brute force: k rows move a Gaussian's mean by k times as much."""
    total = together([released(distance)], DELTA, Unit("patient", rows))
    assert total is not None
    with mpmath.workdps(50):
        assert delta_of(total.epsilon, mpmath.mpf(rows * distance)) == pytest.approx(
            DELTA, rel=1e-9
        )
    assert "one patient" in str(total)
    assert together([released(0.1), Bought(0.1, 1e-7)], DELTA, Unit("patient", 2)) is None


def test_training_and_samples_compose_by_privacy_loss_distributions() -> None:
    steps, sample = Steps(2.0, 0.05, 300, 1e-13), released(0.2, 1e-13)
    total = together([steps, sample], DELTA)
    runs = (
        SampledGaussian(noise_multiplier=2.0, rate=0.05, steps=300),
        SampledGaussian(noise_multiplier=5.0),
    )
    assert total is not None
    assert total.epsilon == pytest.approx(PrivacyLossAccountant().together(runs, DELTA), rel=1e-4)
    for part in (steps, sample):
        alone = together([part], DELTA)
        assert alone is not None
        assert alone.epsilon < total.epsilon
