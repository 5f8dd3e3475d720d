"""Compilation by numba, and exponential and softplus functions for compiled kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numba import njit
from numba.extending import overload
from numpy.polynomial import Chebyshev, Polynomial

Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract"}}
"""Division by zero gives inf, as in torch; a product and a sum may become one instruction."""


def compiled(function: Function) -> Function:
    """Return a function in machine code, cached for later processes if possible."""
    try:
        result: Function = njit(cache=True, nogil=True, **_OPTIONS)(function)
    except RuntimeError:  # there is no folder for cached machine code
        result = njit(nogil=True, **_OPTIONS)(function)
    return result


def _series(taylor: Sequence[float], domain: tuple[float, float], *terms: int) -> Any:
    """Return a shortened power series for numba: its truncated Chebyshev series on a domain.

    Args:
        taylor: the coefficients.
        domain: interval where the truncation error is below rounding.
        terms: numbers of terms kept in single and in double precision. Loops with more than about
            15 terms are not unrolled, and so not vectorised.
    """

    def polynomial(x: Any) -> Any:
        raise NotImplementedError

    @overload(polynomial, jit_options=_OPTIONS)  # type: ignore[untyped-decorator]
    def typed(x: Any) -> Any:
        number, count = (np.float64, terms[1]) if x.bitwidth == 64 else (np.float32, terms[0])
        series = Polynomial(taylor).convert(kind=Chebyshev, domain=domain).truncate(count)
        powers = series.convert(kind=Polynomial).coef
        coefficients = tuple(number(c) for c in reversed(powers))

        def horner(x: Any) -> Any:
            total = coefficients[0]
            for c in coefficients[1:]:
                total = total * x + c
            return total

        return horner

    return polynomial


_HALF = math.log(2) / 2
_exp = _series([1 / math.factorial(k) for k in range(20)], (-_HALF, _HALF), 7, 12)
_two_artanh = _series([2 / (2 * k + 1) for k in range(24)], (0, 1 / 9), 5, 11)
"""2 artanh(√x)/√x."""


def exponential(x: float, fraction: float) -> float:
    """Return exp(x) = 2ⁿ exp(r), |r| ≤ log(2)/2; for numba, in the precision of x.

    |x| is clipped at a fraction of the representable range. NaN stays NaN.
    """
    raise NotImplementedError


@overload(exponential, jit_options=_OPTIONS)  # type: ignore[untyped-decorator]
def _exponential(x: Any, fraction: Any) -> Any:
    double = x.bitwidth == 64
    number: Any = np.float64 if double else np.float32
    whole: Any = np.int64 if double else np.int32
    digits = 52 if double else 23
    largest = number(700 if double else 86)
    log_two, per_log_two = number(math.log(2)), number(1 / math.log(2))
    # the last bits of a number as large as 1.5 · 2^digits are its integer part
    shift = number(1.5 * 2**digits)

    def typed(x: Any, fraction: Any) -> Any:
        limit = fraction * largest
        x = -limit if x < -limit else x
        x = limit if x > limit else x
        shifted = number(x * per_log_two + shift)
        # log(2) in one piece: r errs by n roundings of it, no more than x does by its own rounding
        power = number(_exp(x - (shifted - shift) * log_two))
        # the last bits are n, and are added to the exponent
        bits = power.view(whole) + whole(shifted.view(whole) << digits)
        return whole(bits).view(number)

    return typed


@compiled
def softplus(x: float) -> tuple[float, float]:
    """Return log(1 + exp(x)) and its derivative, the sigmoid, by one division.

    With u = exp(−|x|) they are max(x, 0) + 2 artanh(u / (2 + u)) and 1/(1 + u) or, where x < 0,
    u/(1 + u).
    """
    number = type(x)
    zero, one, two = number(0), number(1), number(2)
    u = exponential(-x if x > zero else x, one)
    inverse = one / ((one + u) * (two + u))
    s = u * (one + u) * inverse
    value = (zero if x < zero else x) + s * _two_artanh(s * s)
    return value, (u if x < zero else one) * ((two + u) * inverse)
