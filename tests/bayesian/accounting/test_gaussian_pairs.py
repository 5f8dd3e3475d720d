"""Rényi divergences between Gaussians, against mpmath, quadrature and torch's own KL."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from torch import Tensor
from torch.distributions import (
    Distribution,
    Exponential,
    Independent,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Normal,
    kl_divergence,
)

from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs, summarise

F64 = torch.float64


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=F64)


def textbook(r: list[float], b2: list[float], order: Any) -> Any:
    """D_α as printed for a diagonal pair, Σ₁ = diag(r), Σ₂ = 1, at 60 digits."""
    a = mpmath.mpmathify(order)
    total = mpmath.mpf(0)
    for r_j, b2_j in zip(map(mpmath.mpf, r), map(mpmath.mpf, b2), strict=True):
        mixed = a + (1 - a) * r_j
        if a == 1:
            total += (b2_j + r_j - 1 - mpmath.log(r_j)) / 2
        else:
            total += a * b2_j / mixed / 2
            total -= mpmath.log(mixed / r_j ** (1 - a)) / (2 * (a - 1))
    return total


def covariances(count: int, d: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    root = torch.eye(d, dtype=F64) + 0.2 * torch.randn(count, d, d, generator=generator, dtype=F64)
    return root @ root.mT


def means(count: int, d: int, seed: int) -> Tensor:
    return torch.randn(count, d, generator=torch.Generator().manual_seed(seed), dtype=F64)


@pytest.fixture(params=["torch", "machine code"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """By torch, and as for many pairs."""
    if request.param == "machine code":
        pytest.importorskip("numba")
        monkeypatch.setattr("bdpvi._ground.machine_code._NUMBERS", 0)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("gap", [0.0, 1e-9, -1e-9, 1e-6, -1e-3, 1e-3, 0.05, -0.2, 0.3, -0.999, 1e3])
@pytest.mark.parametrize("b2", [0.0, 1e-12, 1e-4, 3.0])
def test_renyi_and_moments_agree_with_60_digits(gap: float, b2: float) -> None:
    r = [1 + gap, 1 - gap / 3 if gap < 3 else 0.5]
    b2s = [b2, b2 / 7]
    pairs = GaussianPairs(tensor([r]), tensor([b2s]))
    edge = 1 / (max(r) - 1) if gap else math.inf
    orders = [1e-9, 1e-3, 0.3, 0.5, 0.7, 1 - 1e-9, 1.0, 1 + 1e-12, 1 + 1e-6, 2.0, 33.0, 1e4]
    orders += [1 + 0.5 * edge, 1 + 0.99 * edge, 1 + 0.999999 * edge] if gap else []
    with mpmath.workdps(60):
        for order in orders:
            if not 0 < order < 1 + edge:
                continue
            exact = textbook(r, b2s, order)
            # At the edge α + (1-α) r itself cancels: no digits are promised that r does not hold.
            w = min(abs(1 - (order - 1) * (v - 1)) for v in r)
            tolerance = 1e-12 + 1e-15 / w
            if order < 0.5 and gap:  # computed from 1/r, which is rounded
                tolerance += 1e-15 / abs(gap)
            assert abs(float(pairs.renyi(order)) - exact) <= tolerance * exact
            if order > 1:
                moment = float(pairs.log_moment(order - 1))
                assert abs(moment - (order - 1) * textbook(r, b2s, 1 + (order - 1))) <= (
                    (tolerance + 2e-16 * order / (order - 1)) * moment
                )


@pytest.mark.parametrize(("r", "b", "order"), [(0.5, 0.7, 3.0), (1.3, -0.4, 2.5), (2.0, 1.0, 0.4)])
def test_renyi_is_the_integral_that_defines_it(r: float, b: float, order: float) -> None:
    p, q = stats.norm(b, math.sqrt(r)), stats.norm(0, 1)
    integral, _ = integrate.quad(
        lambda z: math.exp(order * p.logpdf(z) + (1 - order) * q.logpdf(z)), -40, 40, limit=200
    )
    pairs = GaussianPairs(tensor([[r]]), tensor([[b * b]]))
    expected = math.log(integral) / (order - 1)
    assert float(pairs.renyi(order)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("r", "b"), [(0.5, 0.7), (1.3, -0.4), (1.0, 0.3)])
@pytest.mark.parametrize("s", [0.7 + 0.0j, 0.7 + 2.0j, 1.5 - 5.0j])
def test_log_mgf_is_the_integral_that_defines_it(r: float, b: float, s: complex) -> None:
    p, q = stats.norm(b, math.sqrt(r)), stats.norm(0, 1)

    def integrand(z: float) -> complex:
        return complex(np.exp(p.logpdf(z) + s * (p.logpdf(z) - q.logpdf(z))))

    real, _ = integrate.quad(lambda z: integrand(z).real, -30, 30, limit=400)
    imag, _ = integrate.quad(lambda z: integrand(z).imag, -30, 30, limit=400)
    pairs = GaussianPairs(tensor([[r]]), tensor([[b * b]]))
    value = pairs.log_mgf(torch.tensor([s], dtype=torch.complex128)).exp().item()
    assert abs(value - complex(real, imag)) < 1e-9


@pytest.mark.parametrize("x", [1e-9, -1e-6, 1e-3, 0.04, -0.3, 1.5])
@pytest.mark.parametrize("b2", [0.0, 1e-4, 2.0])
def test_log_mgf_agrees_with_60_digits_at_complex_points(x: float, b2: float) -> None:
    c = 0.6 / max(abs(x), 1e-3)
    points = [c, complex(c, 0.1 * c), complex(c, -c), complex(c, 10 * c), complex(0.01, 3.0)]
    pairs = GaussianPairs(tensor([[1 + x]]), tensor([[b2]]))
    values = pairs.log_mgf(torch.tensor(points, dtype=torch.complex128))[:, 0]
    with mpmath.workdps(60):
        r = mpmath.mpf(1 + x)
        for point, value in zip(points, values.tolist(), strict=True):
            s = mpmath.mpmathify(point)
            w = 1 - s * (r - 1)
            exact = (s * (s + 1) * b2 / w - mpmath.log(w) - s * mpmath.log(r)) / 2
            # What the inversion allows for: 1e-13 of log M here and on the real axis.
            size = abs(exact) + abs(values[0].item()) + 1e-3 * abs(point) * abs(x)
            assert abs(mpmath.mpc(value) - exact) < 1e-13 * size


def test_full_covariances_agree_with_the_matrix_formula() -> None:
    d, m = 4, 6
    s1, s2, delta = covariances(m, d, 0), covariances(m, d, 1), means(m, d, 2)
    p = MultivariateNormal(delta, s1)
    q = MultivariateNormal(torch.zeros(m, d, dtype=F64), s2)
    for order in (0.2, 0.9, 1.3):
        mixed = order * s2 + (1 - order) * s1
        exists = torch.linalg.eigvalsh(mixed)[:, 0] > 0
        logs = torch.logdet(mixed[exists]) - (1 - order) * torch.logdet(s1[exists])
        logs -= order * torch.logdet(s2[exists])
        solved = torch.linalg.solve(mixed[exists], delta[exists].unsqueeze(-1)).squeeze(-1)
        expected = order / 2 * (delta[exists] * solved).sum(-1) - logs / (2 * (order - 1))
        value = summarise(p, q).renyi(order)
        assert exists.any()
        torch.testing.assert_close(value[exists], expected, rtol=1e-11, atol=0)
        assert bool((value[~exists] == math.inf).all())
    torch.testing.assert_close(summarise(p, q).renyi(1.0), kl_divergence(p, q), rtol=1e-11, atol=0)


def test_nearly_singular_covariances_agree_with_60_digits() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(3, 6, 6, generator=generator, dtype=torch.float64)
    graded = torch.logspace(0, -8, 6, dtype=torch.float64)
    white = torch.eye(6, dtype=torch.float64) + noise[0].tril(-1) / 4
    narrow = white @ (torch.diag(graded) + noise[1].tril(-1) * graded)
    mean = noise[2, 0]
    p = MultivariateNormal(mean, scale_tril=narrow)
    q = MultivariateNormal(torch.zeros_like(mean), scale_tril=white)
    pairs = summarise(p, q)
    with mpmath.workdps(60):
        back = mpmath.inverse(mpmath.matrix(white.tolist()))
        root = back * mpmath.matrix(narrow.tolist())
        values, axes = mpmath.eigsy(root * root.T)
        b = axes.T * back * mpmath.matrix(mean.tolist())
        r = torch.tensor([float(value) for value in values], dtype=torch.float64)
        b2 = torch.tensor([float(value**2) for value in b], dtype=torch.float64)
    assert float(r[0] / r[-1]) < 1e-17
    order = pairs.r[0].argsort()
    torch.testing.assert_close(pairs.r[0, order], r, rtol=1e-7, atol=0)
    torch.testing.assert_close(pairs.b2[0, order], b2, rtol=1e-7, atol=0)


def test_every_pair_of_types_agrees_with_full_covariances() -> None:
    d, m = 3, 5
    scale = 1 + 0.1 * torch.rand(m, d, dtype=F64, generator=torch.Generator().manual_seed(3))
    diagonal = Independent(Normal(means(m, d, 0), scale), 1)
    full = MultivariateNormal(means(m, d, 1), covariances(m, d, 2))
    low_rank = LowRankMultivariateNormal(means(m, d, 4), 0.3 * means(m, d, 5)[..., None], scale)
    families: list[tuple[Distribution, MultivariateNormal]] = [
        (diagonal, MultivariateNormal(diagonal.mean, torch.diag_embed(scale**2))),
        (full, full),
        (low_rank, MultivariateNormal(low_rank.mean, low_rank.covariance_matrix)),
    ]
    orders = tensor([0.3, 1.0, 1.2])
    for p, dense_p in families:
        for q, dense_q in families:
            expected = summarise(dense_p, dense_q).renyi(orders)
            torch.testing.assert_close(
                summarise(p, q).renyi(orders), expected, rtol=1e-9, atol=1e-12
            )
            torch.testing.assert_close(summarise(p, q).renyi(1.0), kl_divergence(dense_p, dense_q))


def test_one_posterior_meets_many_neighbours_either_way() -> None:
    many = MultivariateNormal(means(5, 3, 0), covariances(5, 3, 1))
    one = MultivariateNormal(means(1, 3, 2)[0], covariances(1, 3, 3)[0])
    for p, q in ((one, many), (many, one)):
        singles = [
            kl_divergence(p if p is one else MultivariateNormal(p.mean[i], p.covariance_matrix[i]),
                          q if q is one else MultivariateNormal(q.mean[i], q.covariance_matrix[i]))
            for i in range(5)
        ]  # fmt: skip
        torch.testing.assert_close(summarise(p, q).renyi(1.0), torch.stack(singles))


@pytest.mark.parametrize("exponent", [-20, -10, -3, 0.9, 1.1, 3, 10, 20])
@pytest.mark.parametrize("order", [1e-6, 0.01, 0.3, 0.49, 0.51, 0.99, 1.0, 1.01, 2.0, 50.0])
def test_renyi_of_variances_of_very_different_size(
    exponent: float, order: float, either_way: None
) -> None:
    r, b2 = 10.0**exponent, 0.3
    with mpmath.workdps(60):
        exists = order + (1 - order) * r > 0
        exact = float(textbook([r], [b2], order)) if exists else math.inf
    found = float(GaussianPairs(tensor([[r]]), tensor([[b2]])).renyi(order))
    assert found == pytest.approx(exact, rel=1e-11)


positive = st.floats(1e-3, 1e3)
pair_lists = st.lists(st.tuples(positive, st.floats(0, 100)), min_size=1, max_size=4)


def pair(values: list[tuple[float, float]]) -> GaussianPairs:
    return GaussianPairs(tensor([[r for r, _ in values]]), tensor([[b2 for _, b2 in values]]))


@given(values=pair_lists, order=st.floats(1e-3, 50), more=st.floats(0, 3))
@settings(deadline=None, max_examples=100)
def test_laws(values: list[tuple[float, float]], order: float, more: float) -> None:
    pairs = pair(values)
    value, later = pairs.renyi(tensor([order, order + more])).flatten().tolist()
    assert value >= 0  # never NaN
    # Non-decreasing in the order, but for the rounding of α + (1 - α) r as it cancels.
    edge = min(order + more + (1 - order - more) * r for r, _ in values)
    largest = max(1.0, *(r for r, _ in values))
    rounding = 1e-12 + 8 * 2.0**-53 * (1 + order + more) * largest / edge if edge > 0 else 0.0
    assert later >= value * (1 - rounding)
    exists = all(order + (1 - order) * r > 0 for r, _ in values)
    assert math.isfinite(value) == exists
    back = pairs.reverse()
    torch.testing.assert_close(back.reverse().r, pairs.r, rtol=1e-15, atol=0)
    if order < 0.999:
        mirrored = order / (1 - order) * float(back.renyi(1 - order))
        assert value == pytest.approx(mirrored, rel=1e-9, abs=1e-14)
    hot = float(pairs.renyi(order, temperature=2.0))
    assert hot <= value * (1 + 1e-14) or math.isinf(value)
    bare = GaussianPairs(pairs.r, torch.zeros_like(pairs.b2))
    assert hot >= float(bare.renyi(order)) * (1 - 1e-14)  # r is a floor


def test_temperature_is_the_divergence_of_heated_posteriors() -> None:
    s1, s2, delta = covariances(3, 2, 0), covariances(3, 2, 1), means(3, 2, 2)
    zero = torch.zeros(3, 2, dtype=F64)
    cold = summarise(MultivariateNormal(delta, s1), MultivariateNormal(zero, s2))
    hot = kl_divergence(MultivariateNormal(delta, 5 * s1), MultivariateNormal(zero, 5 * s2))
    torch.testing.assert_close(cold.renyi(1.0, temperature=5.0), hot)


def test_nothing_depends_on_coordinates() -> None:
    s1, s2, delta = covariances(3, 4, 0), covariances(3, 4, 1), means(3, 4, 2)
    change = covariances(1, 4, 7)[0] + means(4, 4, 8)
    before = summarise(MultivariateNormal(delta, s1), MultivariateNormal(0 * delta, s2))
    after = summarise(
        MultivariateNormal(delta @ change.T + 3, change @ s1 @ change.T),
        MultivariateNormal(0 * delta + 3, change @ s2 @ change.T),
    )
    torch.testing.assert_close(before.renyi(1.1), after.renyi(1.1), rtol=1e-9, atol=0)


@pytest.mark.parametrize("order", [0.0, -1.0, math.nan, math.inf])
def test_orders_are_checked(order: float) -> None:
    pairs = pair([(1.0, 1.0)])
    for method in (pairs.renyi, pairs.log_moment):
        with pytest.raises(ValueError, match="order"):
            method(order)
        with pytest.raises(ValueError, match="order"):
            method(tensor([2.0, order]))
    with pytest.raises(ValueError, match="s "):
        pairs.log_mgf(torch.tensor([complex(order - 1, 0)], dtype=torch.complex128))


def test_bad_input_is_named() -> None:
    one = MultivariateNormal(torch.zeros(2), torch.eye(2))
    with pytest.raises(ValueError, match="q has dimension 3, p has 2"):
        summarise(one, MultivariateNormal(torch.zeros(3), torch.eye(3)))
    with pytest.raises(ValueError, match=r"q has batch shape \(3,\), p has \(2,\)"):
        summarise(one.expand(torch.Size([2])), one.expand(torch.Size([3])))
    flat = torch.diag(torch.tensor([1.0, 0.0]))
    with pytest.raises(ValueError, match=r"p must have a positive definite covariance, got 0\.0"):
        summarise(MultivariateNormal(torch.zeros(2), scale_tril=flat, validate_args=False), one)
    minus = Normal(torch.zeros(2), -torch.ones(2), validate_args=False)
    with pytest.raises(ValueError, match=r"q must have a positive definite covariance, got -1\.0"):
        summarise(one, Independent(minus, 1, validate_args=False))
    nan = Normal(tensor(math.nan), tensor(1.0), validate_args=False)
    with pytest.raises(ValueError, match="the mean of p has a value that is not finite: nan"):
        summarise(nan, Normal(0.0, 1.0))
    with pytest.raises(ValueError, match="p is not a Gaussian"):
        summarise(Exponential(torch.ones(2)), one)
    for r, b2, message in (
        ([[0.0]], [[1.0]], "r must be positive, got 0"),
        ([[1.0]], [[-1.0]], "b2 must be at least 0, got -1"),
        ([[math.nan]], [[1.0]], "r has a value that is not finite"),
        ([[1.0]], [[1.0, 2.0]], r"b2 has shape \(1, 2\)"),
        ([1.0], [1.0], r"r must have shape \(records, dimensions\)"),
    ):
        with pytest.raises(ValueError, match=message):
            GaussianPairs(tensor(r), tensor(b2))
    with pytest.raises(ValueError, match=r"temperature must be finite and positive, got 0\.0"):
        pair([(1.0, 1.0)]).renyi(2.0, temperature=0.0)
