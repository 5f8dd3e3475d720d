"""Hockey-stick divergences: the closed form, and that the bound is above the truth and near it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import integrate
from torch import Tensor
from torch.distributions import MultivariateNormal

from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs, summarise
from bdpvi.privacy.gaussian import equal_covariance
from bdpvi.privacy.inversion import (
    Contour,
    Inversion,
    contour_for,
    hockey_stick_bound,
)

F64 = torch.float64


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=F64)


def one_dimension(r: float, b2: float, epsilon: float, digits: int = 120) -> float:
    """δ(ε) of N(b, r) from N(0, 1) by the set {L > ε}, which two roots bound."""
    with mpmath.workdps(digits):
        rr, b, e = mpmath.mpf(r), mpmath.sqrt(b2), mpmath.mpf(epsilon)
        square, linear = (1 - 1 / rr) / 2, b / rr
        constant = -mpmath.log(rr) / 2 - b * b / (2 * rr) - e

        def mass(low: Any, high: Any) -> Any:
            p = mpmath.ncdf((high - b) / mpmath.sqrt(rr)) - mpmath.ncdf((low - b) / mpmath.sqrt(rr))
            return p - mpmath.exp(e) * (mpmath.ncdf(high) - mpmath.ncdf(low))

        inf = mpmath.mpf("inf")
        if square == 0:
            return float(mass(-constant / linear, inf))
        root = linear * linear - 4 * square * constant
        if root <= 0:
            return float(mass(-inf, inf)) if square > 0 else 0.0
        ends = [(-linear + sign * mpmath.sqrt(root)) / (2 * square) for sign in (-1, 1)]
        low, high = min(ends), max(ends)
        return float(mass(-inf, low) + mass(high, inf) if square > 0 else mass(low, high))


def is_certified(bound: float, truth: float, excess: float = 0.01) -> bool:
    return truth <= bound <= truth * (1 + excess) + 3e-308


def normal_loss(v: Tensor) -> Callable[[Tensor], Callable[[Tensor], Tensor]]:
    """Log M of the loss between Gaussians whose means alone differ."""
    return lambda rows: (
        lambda s: (s * (s + 1) if s.ndim == 2 else (s * (s + 1))[:, None]) * v[rows] / 2
    )


@given(log_v=st.floats(-16, 3), a=st.floats(-36, 8))
def test_equal_covariances_are_as_accurate_as_claimed(log_v: float, a: float) -> None:
    v = 10**log_v
    epsilon = (math.sqrt(v) / 2 - a) * math.sqrt(v)
    found = float(equal_covariance(tensor([v]), epsilon)[0])
    with mpmath.workdps(60):
        root, e = mpmath.sqrt(mpmath.mpf(v)), mpmath.mpf(epsilon)
        upper = root / 2 - e / root
        exact = float(mpmath.ncdf(upper) - mpmath.exp(e) * mpmath.ncdf(upper - root))
    if exact > 1e-290:
        nodes = 2e-11 if a > 2 else 2e-14  # the next term of eight Gauss nodes grows with a
        assert found == pytest.approx(exact, rel=1e-14 * (1 + min(a, 0) ** 2) + nodes)


def test_the_bound_meets_the_closed_form_over_many_scales_in_one_call() -> None:
    v = 10 ** torch.linspace(-8, 3, 45, dtype=F64)
    for epsilon in (0.0, 0.01, 0.3, 2.0):
        bound = hockey_stick_bound(normal_loss(v), len(v), epsilon)
        truth = equal_covariance(v, epsilon)
        matters = (truth > 1e-200) & (truth < 0.5)
        assert bool((bound >= truth * (1 - 1e-12)).all())
        assert bool((bound[matters] <= truth[matters] * 1.005).all())
        assert bool((bound <= 1).all())


def test_unequal_variances_agree_with_the_exact_set_over_many_scales_in_one_call() -> None:
    grid = [(r, b2) for r in (0.2, 0.9, 0.999, 1.0001, 1.01, 1.1, 2.0, 5.0)
            for b2 in (0.0, 1e-8, 1e-4, 1e-2, 1.0, 25.0)]  # fmt: skip
    pairs = GaussianPairs(tensor([[r] for r, _ in grid]), tensor([[b2] for _, b2 in grid]))
    close = 0
    for epsilon in (0.0, 1e-3, 0.1, 1.0, 8.0):
        for (r, b2), bound in zip(grid, pairs.hockey_stick(epsilon).tolist(), strict=True):
            truth = one_dimension(r, b2, epsilon)
            assert truth <= bound
            if 1e-30 < truth < 0.3:
                assert is_certified(bound, truth)
                close += truth > 1e-12
    assert close > 80


@given(
    r=st.one_of(st.floats(0.05, 20), st.floats(0.98, 1.02)),
    b2=st.one_of(st.just(0.0), st.floats(-16, 2).map(lambda x: 10**x)),
    k=st.floats(-1, 12),
)
@example(r=1.001953125, b2=0.0, k=-0.5)
@settings(deadline=None, max_examples=40)
def test_never_below_the_truth(r: float, b2: float, k: float) -> None:
    if abs(r - 1) < 1e-12:
        return
    epsilon = k * math.sqrt(b2 + (r - 1) ** 2 / 2)
    truth = one_dimension(r, b2, epsilon)
    bound = float(GaussianPairs(tensor([[r]]), tensor([[b2]])).hockey_stick(epsilon))
    assert truth <= bound
    if 1e-12 < truth < 1e-3:
        assert bound <= (1.01 if epsilon >= 0 else 1.02) * truth


@given(
    r=st.floats(0.3, 3),
    b2=st.floats(0, 4),
    share=st.floats(0.01, 0.99),
    step=st.floats(0.01, 30),
    nodes=st.integers(2, 40),
    smoothing=st.floats(0, 1),
    epsilon=st.floats(-1, 5),
)
@settings(deadline=None, max_examples=80)
def test_any_contour_gives_an_upper_bound(
    r: float, b2: float, share: float, step: float, nodes: int, smoothing: float, epsilon: float
) -> None:
    c = share / (r - 1) if r > 1.01 else 10 * share
    contour = Contour(tensor(c), tensor(step), nodes, tensor(smoothing))
    log_mgf = GaussianPairs(tensor([[r]]), tensor([[b2]])).log_mgf(contour.s)
    bound = float(Inversion.of(log_mgf, contour).bound(epsilon)[0])
    if abs(r - 1) > 1e-9 or b2 > 0:
        assert one_dimension(r, b2, epsilon, digits=60) <= bound


@given(
    values=st.lists(st.tuples(st.floats(0.2, 5), st.floats(0, 9)), min_size=1, max_size=4),
    share=st.floats(0.01, 0.98),
)
@settings(deadline=None, max_examples=50)
def test_the_modulus_of_m_falls_along_the_line(
    values: list[tuple[float, float]], share: float
) -> None:
    largest = max(r - 1 for r, _ in values)
    c = share / largest if largest > 0 else 5 * share
    s = torch.complex(torch.full((200,), c, dtype=F64), torch.linspace(0, 40 * c, 200, dtype=F64))
    pairs = GaussianPairs(tensor([[r for r, _ in values]]), tensor([[b for _, b in values]]))
    fall = pairs.log_mgf(s).real.diff(dim=0)
    assert bool((fall <= 1e-12 * (1 + pairs.log_mgf(s).real[1:].abs())).all())


def test_three_dimensions_agree_with_monte_carlo() -> None:
    generator = torch.Generator().manual_seed(0)
    root = torch.eye(3, dtype=F64) + 0.15 * torch.randn(3, 3, dtype=F64, generator=generator)
    p = MultivariateNormal(tensor([0.5, -0.2, 0.1]), root @ root.T)
    q = MultivariateNormal(torch.zeros(3, dtype=F64), torch.eye(3, dtype=F64))
    draws = torch.randn(1_000_000, 3, dtype=F64, generator=generator) @ root.T + p.mean
    loss = p.log_prob(draws) - q.log_prob(draws)
    for epsilon in (0.0, 0.5, 1.0, 2.0):
        gain = -torch.expm1((epsilon - loss).clamp(max=0))
        error = 4 * float(gain.std()) / math.sqrt(len(gain))
        value = float(summarise(p, q).hockey_stick(epsilon))
        assert error < 0.3 * float(gain.mean())  # the check has power
        assert float(gain.mean()) - error <= value <= (float(gain.mean()) + error) * 1.01


def test_two_releases_compose_to_the_integral_over_the_first() -> None:
    first, second = (1.2, 0.3), (0.8, 0.1)
    epsilon = 1.2

    def integrand(z: float) -> float:
        r, b = first[0], math.sqrt(first[1])
        loss = -math.log(r) / 2 - (z - b) ** 2 / (2 * r) + z * z / 2
        density = math.exp(-((z - b) ** 2) / (2 * r)) / math.sqrt(2 * math.pi * r)
        return density * one_dimension(*second, epsilon - loss, digits=40)

    truth, _ = integrate.quad(integrand, -12, 12, epsrel=1e-7, limit=100)
    pairs = [GaussianPairs(tensor([[r]]), tensor([[b2]])) for r, b2 in (first, second)]

    def log_mgf(s: Tensor) -> Tensor:
        return pairs[0].log_mgf(s) + pairs[1].log_mgf(s)

    bound = float(hockey_stick_bound(lambda rows: log_mgf, 1, epsilon))
    assert truth * (1 - 1e-6) <= bound <= 1.01 * truth
    both = GaussianPairs(tensor([[1.2, 0.8]]), tensor([[0.3, 0.1]]))
    assert float(both.hockey_stick(epsilon)) == pytest.approx(bound, rel=1e-9)


def test_one_line_may_serve_all_records_and_many_epsilons() -> None:
    v = tensor([1e-6, 0.05, 0.2, 1.0])
    contour = Contour(tensor(4.0), tensor(0.5), nodes=96)
    s = contour.s.unsqueeze(-1)
    for epsilon in (0.1, 1.0, 3.0):
        bound = Inversion.of(s * (s + 1) * v / 2, contour).bound(epsilon)[0]
        truth = equal_covariance(v, epsilon)
        assert bool((bound >= truth).all())
        if epsilon == 1.0:
            assert bool((bound[2:] <= 1.01 * truth[2:]).all())


@pytest.mark.parametrize("epsilon", [0.05, 0.5])
def test_the_two_directions_are_one_curve(epsilon: float) -> None:
    """δ_{P,Q}(ε) = 1 - e^ε + e^ε δ_{Q,P}(-ε)."""
    pairs = GaussianPairs(tensor([[1.3, 0.9]]), tensor([[0.4, 0.2]]))
    forth = float(pairs.hockey_stick(epsilon))
    back = float(pairs.reverse().hockey_stick(-epsilon))
    assert forth == pytest.approx(1 - math.exp(epsilon) * (1 - back), rel=0.02)


@pytest.mark.parametrize("epsilon", [math.nan, math.inf])
def test_bad_epsilon(epsilon: float) -> None:
    contour = Contour(tensor(1.0), tensor(1.0), nodes=4)
    log_mgf = contour.s.unsqueeze(-1)
    for call in (
        lambda: GaussianPairs(tensor([[1.1]]), tensor([[1.0]])).hockey_stick(epsilon),
        lambda: equal_covariance(tensor([1.0]), epsilon),
        lambda: Inversion.of(log_mgf, contour).bound(epsilon),
        lambda: contour_for(lambda s: s, epsilon),
    ):
        with pytest.raises(ValueError, match=f"epsilon has a value that is not finite: {epsilon}"):
            call()


def test_bad_input_is_named() -> None:
    one = tensor(1.0)
    contour = Contour(one, one, nodes=4)
    for arguments, message in (
        ((tensor(0.0), one, 4), r"abscissa must be positive, got 0\.0"),
        ((one, tensor(-1.0), 4), r"step must be positive, got -1\.0"),
        ((one, tensor(math.nan), 4), "step has a value that is not finite: nan"),
        ((one, one, 1), "nodes must be a whole number of at least 2, got 1"),
        ((one, one, 4, tensor(-1.0)), "smoothing must"),
    ):
        with pytest.raises(ValueError, match=message):
            Contour(*arguments)
    with pytest.raises(ValueError, match=r"log_mgf must have shape \(4, records\), got \(3, 1\)"):
        Inversion.of(contour.s[:3, None], contour)
    with pytest.raises(ValueError, match="log_mgf has a value that is nan"):
        Inversion.of(contour.s[:, None] * math.nan, contour)
    with pytest.raises(ValueError, match=r"variance must be at least 0, got -1\.0"):
        equal_covariance(tensor([-1.0]), 1.0)
    with pytest.raises(ValueError, match="smoothing must be finite and at least 0, got -1"):
        contour_for(lambda s: s, 1.0, smoothing=-1.0)
