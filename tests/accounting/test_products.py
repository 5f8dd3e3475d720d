"""Log M by products over coordinates, against 50 digits and against the sum over coordinates."""

from __future__ import annotations

from collections.abc import Iterator

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bdpvi.accounting import products
from bdpvi.accounting.gaussian_pairs import GaussianPairs
from bdpvi.accounting.products import log_mgf_by_products

F64 = torch.float64


@pytest.fixture(autouse=True, scope="module", params=["torch", "machine code"])
def arithmetic(request: pytest.FixtureRequest) -> Iterator[None]:
    """By torch, and as for many pairs."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "machine code":
            fast = pytest.importorskip("bdpvi.accounting.log_moments_compiled").CompiledLogMoments()
            patch.setattr(products, "log_moments_for", lambda many, d, device: fast)
        yield


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


def test_no_moment_is_infinite() -> None:
    r, b2 = torch.tensor([[1.5, 0.9], [1.01, 0.9]], dtype=F64), torch.ones(2, 2, dtype=F64)
    for s in (torch.tensor([1.0, 2.0, 5.0]), torch.tensor([1 + 1j, 2 + 1j, 5 + 1j])):
        value = log_mgf_by_products(r, b2)(s).real
        assert value.isinf().tolist() == [[False, False], [True, False], [True, False]]


def test_very_many_coordinates_take_the_sum() -> None:
    generator = torch.Generator().manual_seed(0)
    r = 1 + 0.01 * torch.randn(3, 150, generator=generator, dtype=F64)
    pairs = GaussianPairs(r, torch.zeros_like(r))
    s = line(torch.tensor([5.0], dtype=F64), torch.tensor([3.0], dtype=F64), 9)
    assert torch.equal(pairs.log_mgf_for_inversion(2.0)(s[:, 0]), pairs.log_mgf(s[:, 0], 2.0))
