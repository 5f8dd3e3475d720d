"""What an (ε, δ) says of attacks, and of several records together."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from bdpvi.bayesian.accounting.answer import nothing
from bdpvi.privacy import group
from bdpvi.privacy.cost import Bound, Kind
from bdpvi.privacy.gaussian_dp import gaussian_guarantee, worst

PRINTED = [
    (2.18, 0.898), (0.62, 0.650), (0.95, 0.721), (8.0, 0.9997), (0.51, 0.625), (0.76, 0.681),
]  # fmt: skip
"""ε and P(A) of the thesis of Triastcyn (EPFL 2020), Table 5.2."""


@pytest.mark.parametrize(("epsilon", "success"), PRINTED)
def test_the_success_of_attacks_is_the_printed_one(epsilon: float, success: float) -> None:
    found = worst(epsilon, 1e-10, "").attack_success
    assert found == pytest.approx(success, abs=10 ** -len(str(success)[2:]))


@given(st.floats(0, 20), st.floats(1e-12, 0.99))
def test_no_test_beats_it_and_one_reaches_it(epsilon: float, delta: float) -> None:
    """The mechanism that gives all away with probability δ, and is a biased coin otherwise."""
    found = worst(epsilon, delta, "").attack_success
    coin = 1 / (1 + math.exp(-epsilon))
    assert found == pytest.approx(delta + (1 - delta) * coin, rel=1e-12)
    assert 0.5 <= found <= 1


def test_it_is_met_by_no_gaussian_mechanism() -> None:
    for variance in (0.01, 1.0, 9.0):
        for delta in (1e-9, 1e-3, 0.1):
            bound = gaussian_guarantee(variance, delta)
            assert bound is not None
            assert bound.attack_success >= norm.cdf(math.sqrt(variance) / 2)


def test_an_infinite_epsilon_leaves_no_doubt_and_a_path_bounds_nothing() -> None:
    assert worst(math.inf, 0.0, "").attack_success == 1
    assert worst(5000.0, 1e-5, "").attack_success == 1
    with pytest.raises(ValueError, match="does not bound an attack"):
        _ = Bound(kind=Kind.PATH, epsilon=1.0, delta=1e-5, by="").attack_success


@given(st.floats(0, 3), st.integers(2, 20), st.floats(1e-30, 1e-4))
def test_a_chain_of_changes(epsilon: float, size: int, delta: float) -> None:
    """From one table to the next: P₀ ≤ e^ε P₁ + δ ≤ e^ε (e^ε P₂ + δ) + δ, and so on."""
    total = 0.0
    for _ in range(size):
        total = math.exp(epsilon) * total + delta
    found = group(worst(epsilon, delta, ""), size)
    if found is None:
        assert total >= 1 - 1e-9
        return
    assert found.epsilon == pytest.approx(size * epsilon)
    assert found.delta == pytest.approx(total, rel=1e-9)
    assert found.delta <= size * math.exp(size * epsilon) * delta * (1 + 1e-9)


def test_a_gaussian_mechanism_costs_groups_exactly_its_distance() -> None:
    one = gaussian_guarantee(0.01, 1e-5)
    assert one is not None
    for size in (2, 5, 30):
        found = group(one, size)
        assert found is not None
        mu, epsilon = size * 0.1, found.epsilon
        delta = norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        assert delta == pytest.approx(1e-5, rel=1e-6)
        chained = group(replace(one, distance=None), size)
        if chained is not None:  # what it says is true, and less
            eps = chained.epsilon
            exact = norm.cdf(mu / 2 - eps / mu) - np.exp(eps) * norm.cdf(-mu / 2 - eps / mu)
            assert exact < chained.delta


def test_groups_of_none_of_one_and_of_clients() -> None:
    free = nothing(1e-5).worst_case
    assert free is not None
    found = group(free, 7)
    assert found is not None
    assert (found.epsilon, found.delta) == (0, 1e-5)
    one = replace(worst(1.0, 1e-6, "a proof"), unit="one client")
    assert group(one, 1) is one
    three = group(one, 3)
    assert three is not None
    assert "3 clients" in str(three)
    assert "up to 3 clients added or removed" in three.meaning
    assert group(worst(300.0, 1e-6, ""), 3) is None
    assert group(worst(1.0, 1e-6, ""), 20) is None


def test_what_groups_are_refused() -> None:
    one = worst(1.0, 1e-6, "a proof")
    two = group(one, 2)
    assert two is not None
    with pytest.raises(ValueError, match="already one for a group"):
        group(two, 2)
    with pytest.raises(ValueError, match="size"):
        group(one, 0)
    for kind in (Kind.BAYESIAN, Kind.PATH):
        with pytest.raises(ValueError, match="no guarantee for groups"):
            group(replace(one, kind=kind), 2)
