"""Log-moments of Gaussian pairs against many digits: by power sums, torch, numba and products."""

from __future__ import annotations

import itertools
import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bdpvi.bayesian.accounting import log_moments
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bayesian.accounting.log_moments import CLOSE, divergences, log_mgf_by_products

F64 = torch.float64


@pytest.fixture(params=["torch", "numba"])
def arithmetic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluate real orders as for few pairs, or as for many."""
    if request.param == "numba":
        pytest.importorskip("numba")
        monkeypatch.setattr("bdpvi._ground.machine_code._NUMBERS", 0)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.usefixtures("arithmetic")
@pytest.mark.parametrize(("d", "m"), [(1, 1), (3, 17), (14, 40)])
def test_divergences_equal_those_of_many_digits(d: int, m: int) -> None:
    """Logarithms of every size, from what is nearly the same to what has no divergence."""
    sizes = 10.0 ** torch.linspace(-12, 0.5, m, dtype=torch.float64)
    x = (normal(d, m) * sizes).clamp(min=-0.99)
    b2 = normal(d, m, seed=1).square() * sizes
    points = torch.tensor([0.0, -0.4, 1e-3, 0.3, 1.0, 7.0, 1e3, 1e5], dtype=torch.float64)
    found = divergences(points.unsqueeze(1), (1 + x).T, b2.T)
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
            logs = [1 - v if s == 0 else mpmath.log(u) / s for u, v in zip(w, r, strict=True)]
            exact = (means - sum(logs) - sum(mpmath.log(v) for v in r)) / 2
            allowed = 1e-13 + 1e-15 / min(w)
            assert abs(float(found[k, i]) - exact) <= allowed * exact


@pytest.mark.usefixtures("arithmetic")
def test_a_divergence_ends_where_the_mixed_covariance_does() -> None:
    s = torch.tensor([[1.99], [2 - 1e-9], [2.0], [2.01]], dtype=torch.float64)
    found = divergences(s, torch.tensor([[1.5]]).double(), torch.ones(1, 1).double())
    w = 1 - s[:2] / 2
    exact = ((s[:2] + 1) / w - w.log() / s[:2] - math.log(1.5)) / 2
    torch.testing.assert_close(found[:2], exact, rtol=1e-6, atol=0)
    assert found[2:].flatten().tolist() == [math.inf, math.inf]


@pytest.mark.parametrize("rows_alike", [True, False])
@pytest.mark.parametrize("imaginary", [0.0, 3.0])
@pytest.mark.parametrize(("d", "m"), [(1, 1), (5, 16), (14, 19)])
def test_fractions_equal_those_of_many_digits(
    rows_alike: bool, imaginary: float, d: int, m: int
) -> None:
    x, b2 = normal(d, m) / 3, normal(d, m, seed=1).square()
    points = normal(4, 1 if rows_alike else m, seed=2).abs() / 2
    s = torch.complex(points, imaginary * points) if imaginary else points
    sums, products = log_moments._fractions(s, x, b2)
    assert sums.dtype == products.dtype == s.dtype
    for k, i in itertools.product(range(4), {0, m - 1}):
        with mpmath.workdps(40):
            point = mpmath.mpmathify(s[k, 0 if rows_alike else i].item())
            w = [1 - point * mpmath.mpf(float(v)) for v in x[:, i]]
            total = sum(mpmath.mpf(float(b)) / v for b, v in zip(b2[:, i], w, strict=True))
            product = mpmath.fprod(w)
            size = sum(float(b) / abs(v) for b, v in zip(b2[:, i], w, strict=True))
            assert abs(mpmath.mpmathify(sums[k, i].item()) - total) < 1e-13 * size
            assert abs(mpmath.mpmathify(products[k, i].item()) - product) < 1e-13 * abs(product)


@pytest.mark.parametrize("point", [1.99, 1.99 + 1e-3j])
def test_tiny_products_divide_what_is_as_tiny(point: complex) -> None:
    x, b2 = torch.full((90, 1), 0.5).double(), torch.ones(90, 1).double()
    s = torch.tensor([[point]], dtype=torch.complex128)
    s = s if s.imag.any() else s.real
    total, product = log_moments._fractions(s, x, b2)
    w = 1 - point / 2
    assert abs(complex(product) / w**90 - 1) < 1e-10  # about 1e-207
    assert abs(complex(total) * w / 90 - 1) < 1e-10


@pytest.mark.usefixtures("arithmetic")
def test_a_pair_far_from_1_is_that_of_many_digits() -> None:
    r = torch.tensor([[1e-20, 3.0, 1.0], [1e20, 1e-3, 20.0]], dtype=F64)
    b2, points = torch.full_like(r, 0.1), torch.tensor([-0.4, 0.0, 1e-22, 0.3], dtype=F64)
    found = divergences(points.unsqueeze(1), r, b2)
    with mpmath.workdps(60):
        for k, i in itertools.product(range(len(points)), range(len(r))):
            s, exact = mpmath.mpf(float(points[k])), mpmath.mpf(0)
            for one, b in zip(r[i].tolist(), b2[i].tolist(), strict=True):
                w = 1 - s * (mpmath.mpf(one) - 1)
                if w <= 0:
                    exact = mpmath.inf
                    break
                log = 1 - mpmath.mpf(one) if s == 0 else mpmath.log(w) / s
                exact += ((s + 1) * b / w - log - mpmath.log(one)) / 2
            assert float(found[k, i]) == pytest.approx(float(exact), rel=1e-12)


def test_power_sums_are_what_the_coordinates_give() -> None:
    """At the largest |s x| that they serve, with or without a difference of the means."""
    x = normal(40, 6)
    x = x / x.abs().amax() * CLOSE
    for b2 in (torch.zeros_like(x), normal(40, 6, seed=1).square()):
        for points in (torch.tensor([[0.0], [-0.4], [0.5], [1.0]], dtype=F64),):
            found = log_moments._by_power_sums(points, 1 + x, b2)
            expected = log_moments._by_coordinates(points, 1 + x, b2)
            torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)
    x = x / 1e4
    points = torch.tensor([[1e3], [1e4]], dtype=F64)
    found = log_moments._by_power_sums(points, 1 + x, 0 * x)
    expected = log_moments._by_coordinates(points, 1 + x, 0 * x)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)


def line(c: Tensor, step: Tensor, nodes: int) -> Tensor:
    y = torch.arange(nodes, dtype=F64)[:, None] * step
    return torch.complex(c.expand_as(y).contiguous(), y)


def exact(r: list[float], b2: list[float], s: complex) -> mpmath.mpc:
    with mpmath.workdps(50):
        z, total = mpmath.mpmathify(s), mpmath.mpf(0)
        for rj, bj in zip(r, b2, strict=True):
            w = 1 - z * (mpmath.mpf(rj) - 1)
            total += z * (z + 1) * bj / w - mpmath.log(w) - z * mpmath.log(rj)
        return total / 2


@given(
    seed=st.integers(0, 10_000),
    d=st.integers(1, 60),
    nodes=st.integers(2, 130),
    spread=st.floats(-8, 0),
    shift=st.floats(-10, 2),
    share=st.floats(0.001, 0.999),
    step=st.floats(-3, 1),
)
@settings(deadline=None, max_examples=150)
def test_as_exact_as_inverting_takes(
    seed: int, d: int, nodes: int, spread: float, shift: float, share: float, step: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scale = 10 ** (spread - 3 * torch.rand(4, d, generator=generator, dtype=F64))
    r = (1 + scale * torch.randn(4, d, generator=generator, dtype=F64)).clamp(min=1e-3)
    b2 = 10**shift * torch.rand(4, d, generator=generator, dtype=F64)
    c = share / (r - 1).amax(1).clamp(min=1e-9)
    s = line(c, 10**step * c, nodes)
    value = log_mgf_by_products(r, b2, 3.0)(s)
    expected = GaussianPairs(r, b2).log_mgf(s, 3.0)
    error = (value - expected).abs() / (1 + expected.abs() + expected[0].abs())
    assert float(error.max()) < 1e-13
    real = log_mgf_by_products(r, b2, 3.0)(c.unsqueeze(0))
    torch.testing.assert_close(real[0], value[0].real, rtol=1e-12, atol=1e-12)


def test_many_turns_agree_with_50_digits() -> None:
    # Forty coordinates turn the product through several whole circles, on either side.
    for sign in (1.0, -1.0):
        r = [1 + sign * 0.01 * (1 + j / 40) for j in range(40)]
        b2 = [0.01 * (j % 3) for j in range(40)]
        s = line(torch.tensor([20.0], dtype=F64), torch.tensor([60.0], dtype=F64), 50)
        pairs = torch.tensor([r], dtype=F64), torch.tensor([b2], dtype=F64)
        values = log_mgf_by_products(*pairs)(s)[:, 0].tolist()
        for point, value in zip(s[:, 0].tolist(), values, strict=True):
            truth = exact(r, b2, point)
            assert abs(mpmath.mpc(value) - truth) < 1e-13 * (1 + abs(truth) + abs(values[0]))


def test_products_that_would_overflow_are_split() -> None:
    r, b2 = torch.full((1, 90), 0.5, dtype=F64), torch.full((1, 90), 0.1, dtype=F64)
    for s in (torch.tensor([1e14], dtype=F64), torch.tensor([1e14 + 1e15j])):
        expected = GaussianPairs(r, b2).log_mgf(s)
        torch.testing.assert_close(log_mgf_by_products(r, b2)(s), expected, rtol=1e-12, atol=0)


def test_very_many_coordinates_take_the_sum() -> None:
    generator = torch.Generator().manual_seed(0)
    r = 1 + 0.01 * torch.randn(3, 150, generator=generator, dtype=F64)
    pairs = GaussianPairs(r, torch.zeros_like(r))
    s = line(torch.tensor([5.0], dtype=F64), torch.tensor([3.0], dtype=F64), 9)
    assert torch.equal(pairs.log_mgf_for_inversion(2.0)(s[:, 0]), pairs.log_mgf(s[:, 0], 2.0))
