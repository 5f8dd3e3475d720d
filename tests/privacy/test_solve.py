"""The search for the smallest argument that suffices: power laws, jumps and what has no answer."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bdpvi.privacy.solve import smallest


@given(
    power=st.floats(0.3, 6),
    root=st.floats(-8, 8),
    off=st.floats(-4, 4),
    target=st.floats(-3, 3),
    slack=st.floats(-6, -1),
)
def test_a_power_law_is_met_from_below_in_few_evaluations(
    power: float, root: float, off: float, target: float, slack: float
) -> None:
    goal, asked = 10**target, 0

    def falling(x: float) -> float:
        nonlocal asked
        asked += 1
        return float(goal * (10**root / x) ** power)

    x = smallest(falling, goal, 10 ** (root + off), slack=10**slack)
    assert asked <= 20
    assert goal * (1 - 10**slack) <= falling(x) <= goal


def test_the_answer_at_a_jump_is_its_upper_side() -> None:
    x = smallest(lambda x: 2.0 if x < 3 else 0.1, 1.0, 0.01, slack=0.005)
    assert x == pytest.approx(3.0, rel=1e-10)
    assert x >= 3
    x = smallest(lambda x: math.inf if x < 3 else 0.0, 1.0, 50.0, slack=0.005)
    assert x == pytest.approx(3.0, rel=1e-10)
    assert x >= 3


def test_what_cannot_be_reached_says_what_is_left() -> None:
    with pytest.raises(ArithmeticError) as error:
        smallest(lambda x: 2 + 1 / x, 1.0, 1.0, slack=0.1, most=1e3)
    assert error.value.args[0] == pytest.approx(2, rel=1e-2)
