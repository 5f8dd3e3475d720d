"""Log-moments of pairs side by side, by torch and in machine code, against many digits."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bdpvi.accounting.log_moments import LogMoments, log_moments_for

pytest.importorskip("numba")
compiled = pytest.importorskip("bdpvi.accounting.log_moments_compiled")

BOTH: Sequence[LogMoments] = [LogMoments(), compiled.CompiledLogMoments()]
both = pytest.mark.parametrize("log_moments", BOTH, ids=["torch", "machine code"])


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@both
@pytest.mark.parametrize(("d", "m"), [(1, 1), (3, 17), (14, 40)])
def test_divergences_equal_those_of_many_digits(log_moments: LogMoments, d: int, m: int) -> None:
    """Logarithms of every size, from what is nearly the same to what has no divergence."""
    sizes = 10.0 ** torch.linspace(-12, 0.5, m, dtype=torch.float64)
    x = (normal(d, m) * sizes).clamp(min=-0.99)
    b2 = normal(d, m, seed=1).square() * sizes
    points = torch.tensor([0.0, -0.4, 1e-3, 0.3, 1.0, 7.0, 1e3, 1e5], dtype=torch.float64)
    found = log_moments.divergences(points.unsqueeze(1), 1 + x, b2)
    with mpmath.workdps(50):
        for k, i in itertools.product(range(len(points)), range(m)):
            s = mpmath.mpf(float(points[k]))
            r = [mpmath.mpf(float(v)) for v in (1 + x)[:, i]]
            w = [1 - s * (v - 1) for v in r]
            if min(w) <= 0:
                assert float(found[k, i]) == math.inf
                continue
            means = sum((s + 1) * float(b) / v for b, v in zip(b2[:, i], w, strict=True))
            # at s = 0 the limit of log(w)/s is 1 - r
            slopes = [1 - v if s == 0 else mpmath.log(u) / s for u, v in zip(w, r, strict=True)]
            exact = (means - sum(slopes) - sum(mpmath.log(v) for v in r)) / 2
            allowed = 1e-13 + 1e-15 / min(w)
            assert abs(float(found[k, i]) - exact) <= allowed * exact


@both
def test_a_divergence_ends_where_the_mixed_covariance_does(log_moments: LogMoments) -> None:
    s = torch.tensor([[1.99], [2 - 1e-9], [2.0], [2.01]], dtype=torch.float64)
    found = log_moments.divergences(s, torch.tensor([[1.5]]).double(), torch.ones(1, 1).double())
    w = 1 - s[:2] / 2
    exact = ((s[:2] + 1) / w - w.log() / s[:2] - math.log(1.5)) / 2
    torch.testing.assert_close(found[:2], exact, rtol=1e-6, atol=0)
    assert found[2:].flatten().tolist() == [math.inf, math.inf]


@both
@pytest.mark.parametrize("rows_alike", [True, False])
@pytest.mark.parametrize("imaginary", [0.0, 3.0])
@pytest.mark.parametrize(("d", "m"), [(1, 1), (5, 16), (14, 19)])
def test_fractions_equal_those_of_many_digits(
    log_moments: LogMoments, rows_alike: bool, imaginary: float, d: int, m: int
) -> None:
    x, b2 = normal(d, m) / 3, normal(d, m, seed=1).square()
    points = normal(4, 1 if rows_alike else m, seed=2).abs() / 2
    s = torch.complex(points, imaginary * points) if imaginary else points
    totals, products = log_moments.fractions(s, x, b2)
    assert totals.dtype == products.dtype == s.dtype
    for k, i in itertools.product(range(4), {0, m - 1}):
        with mpmath.workdps(40):
            point = mpmath.mpmathify(s[k, 0 if rows_alike else i].item())
            w = [1 - point * mpmath.mpf(float(v)) for v in x[:, i]]
            total = sum(mpmath.mpf(float(b)) / v for b, v in zip(b2[:, i], w, strict=True))
            product = mpmath.fprod(w)
            size = sum(float(b) / abs(v) for b, v in zip(b2[:, i], w, strict=True))
            assert abs(mpmath.mpmathify(totals[k, i].item()) - total) < 1e-13 * size
            assert abs(mpmath.mpmathify(products[k, i].item()) - product) < 1e-13 * abs(product)


@both
@pytest.mark.parametrize("point", [1.99, 1.99 + 1e-3j])
def test_tiny_products_divide_what_is_as_tiny(log_moments: LogMoments, point: complex) -> None:
    x, b2 = torch.full((90, 1), 0.5).double(), torch.ones(90, 1).double()
    s = torch.tensor([[point]], dtype=torch.complex128)
    s = s if s.imag.any() else s.real
    total, product = log_moments.fractions(s, x, b2)
    w = 1 - point / 2
    assert abs(complex(product) / w**90 - 1) < 1e-10  # about 1e-207
    assert abs(complex(total) * w / 90 - 1) < 1e-10


def test_divergences_at_points_of_each_pairs_own_are_torchs() -> None:
    r, b2 = 1 + normal(3, 5).square(), normal(3, 5, seed=1).square()
    log_moments = compiled.CompiledLogMoments()
    for s in (-normal(2, 5).abs() / 5, torch.complex(r[:2] / 100, r[:2])[:, :1]):
        assert torch.equal(log_moments.divergences(s, r, b2), LogMoments().divergences(s, r, b2))


@settings(max_examples=25)
@given(d=st.integers(1, 7), seed=st.integers(0, 1000), pair=st.integers(0, 36))
def test_a_pair_is_the_same_whatever_is_beside_it(d: int, seed: int, pair: int) -> None:
    log_moments, alone = compiled.CompiledLogMoments(), slice(pair, pair + 1)
    point = torch.tensor([[0.3]], dtype=torch.float64)
    # Beside one that machine code hands to torch, a pair may differ in the last bit.
    r, b2 = (
        (1 + normal(d, 37, seed=seed).square()).clamp(max=9),
        normal(d, 37, seed=seed + 1).square(),
    )
    cost = log_moments.divergences(point, r, b2)
    assert torch.equal(cost[:, alone], log_moments.divergences(point, r[:, alone], b2[:, alone]))
    parts = log_moments.fractions(point * 1j, r - 1, b2)
    own = log_moments.fractions(point * 1j, r[:, alone] - 1, b2[:, alone])
    for part, one in zip(parts, own, strict=True):
        assert torch.equal(part[:, alone], one)


def test_machine_code_is_for_many_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert type(log_moments_for(30_000, 8, cpu)) is compiled.CompiledLogMoments
    assert type(log_moments_for(3_000, 8, cpu)) is LogMoments
    assert type(log_moments_for(30_000, 8, torch.device("meta"))) is LogMoments
    monkeypatch.setitem(sys.modules, "bdpvi.accounting.log_moments_compiled", None)
    assert type(log_moments_for(30_000, 8, cpu)) is LogMoments
