"""A distance that is bought costs what it was asked for."""

from __future__ import annotations

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bdpvi.privacy.gaussian_dp import gaussian_distance


def delta_of(epsilon: float, distance: mpmath.mpf) -> mpmath.mpf:
    """Return δ(ε) of a Gaussian mechanism in 50 digits (Balle and Wang 2018, Theorem 8)."""
    epsilon = mpmath.mpf(epsilon)
    above = mpmath.ncdf(distance / 2 - epsilon / distance)
    return above - mpmath.exp(epsilon) * mpmath.ncdf(-distance / 2 - epsilon / distance)


@given(st.floats(0.01, 10.0), st.sampled_from([1e-9, 1e-5]))
def test_a_distance_costs_what_it_was_asked_for(epsilon: float, delta: float) -> None:
    with mpmath.workdps(50):
        found = delta_of(epsilon, mpmath.mpf(gaussian_distance(epsilon, delta)))
    assert found == pytest.approx(delta, rel=1e-6)
    assert found <= delta
