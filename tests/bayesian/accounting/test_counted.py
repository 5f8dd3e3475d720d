"""Panels with counts against the same records one by one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from accounts import Accountant, bayes, evidence_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from torch import Tensor

from bdpvi.bayesian.accounting.betting import betting
from bdpvi.bayesian.accounting.draws import GuideDraws
from bdpvi.bayesian.accounting.estimators import MeanEstimate, student_t
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bayesian.accounting.panel import LEVELS, OCTAVE, Panel, on_levels
from bdpvi.bayesian.accounting.quantiles import exposure_of, quantile_certificate, within

CONVERSIONS = ("hockey-stick", "cks", "chernoff")


def sample(size: int, records: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return values, their counts, and each value as often as its count."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(2, size, generator=generator, dtype=torch.float64) ** 3
    counts = torch.randint(1, max(2, records), (size,), generator=generator)
    return values, counts, values.repeat_interleave(counts, 1)


def same(one: MeanEstimate, other: MeanEstimate) -> None:
    for name, value in vars(one).items():
        expected = getattr(other, name)
        if isinstance(value, Tensor) and value.is_floating_point():
            torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-8)  # betting: 1e-9
        elif isinstance(value, Tensor):
            assert torch.equal(value, expected)
        else:
            assert value == expected


@settings(max_examples=30)
@given(size=st.integers(3, 60), records=st.sampled_from([1, 2, 30]), seed=st.integers(0, 9999))
def test_counts_are_records_that_are_repeated(size: int, records: int, seed: int) -> None:
    values, counts, whole = sample(size, records, seed)
    same(student_t(values, 1e-6, counts), student_t(whole, 1e-6))
    same(betting(values, 1e-6, 1.0, counts=counts), betting(whole, 1e-6, 1.0))
    same(
        betting(values.log(), 1e-6, 0.0, -math.inf, counts=counts),
        betting(whole.log(), 1e-6, 0.0, -math.inf),
    )
    for fraction in (0.01, 0.5, 0.9, 0.999):
        found = quantile_certificate(values, 1e-2, fraction, counts)
        assert torch.equal(found, quantile_certificate(whole, 1e-2, fraction))
        levels = (fraction, 1.0)
        assert within(values[0], float, levels, counts) == within(whole[0], float, levels)
    one, other = (
        exposure_of(own, float, 1e-5, 1e-2, counts=often)
        for own, often in ((values[0], counts), (whole[0], None))
    )
    assert one == other


@given(exponent=st.floats(-127, 127), near=st.integers(-3, 3))
def test_levels_are_the_next_of_a_public_grid(exponent: float, near: int) -> None:
    value = torch.tensor([2.0**exponent], dtype=torch.float64)
    for _ in range(abs(near)):  # about the level itself
        value = torch.nextafter(value, torch.tensor(math.inf if near > 0 else 0.0).double())
    counts = on_levels(value)
    assert counts.shape == (LEVELS,)
    assert int(counts.sum()) == 1
    (level,) = Panel.of_counts("remove", counts, largest=2.0**128).pairs.b2.flatten().tolist()
    assert float(value) <= level <= float(value) * 2 ** (1 / OCTAVE) * (1 + 1e-12)


def test_the_grid_has_ends() -> None:
    lowest = Panel.of_counts("remove", on_levels(torch.zeros(3)))
    assert lowest.pairs.b2.tolist() == [[2.0**-128]]
    for value in (2.0**128 * 1.01, math.inf, math.nan):
        with pytest.raises(FloatingPointError, match="more than 2"):
            on_levels(torch.tensor([1.0, value]).double())


def skewed(records: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(records, generator=generator, dtype=torch.float64)).exp() * 1e-8


def panels(b2: Tensor, largest: float | None) -> tuple[Panel, Panel]:
    pairs = GaussianPairs(torch.ones(len(b2), 1), b2.unsqueeze(1))
    each = Panel("remove", torch.arange(len(b2)), pairs, largest)
    return each, Panel.of_counts("remove", on_levels(b2), largest)


def charged(panel: Panel, conversion: str, draws: int, count: int = 1) -> Accountant:
    accountant = Accountant(conversion=conversion, failure_probability=1e-10)
    accountant.step(GuideDraws((panel,), draws), count=count)
    return accountant


@pytest.mark.parametrize("conversion", CONVERSIONS)
@pytest.mark.parametrize("ranged", [True, False])
@pytest.mark.parametrize("records", [300, 20_000])
def test_epsilon_is_never_below_the_uncounted_and_at_most_0_2_percent_above(
    conversion: str, ranged: bool, records: int
) -> None:
    b2 = skewed(records)
    each, counted = panels(b2, float(b2.max() * 1.5) if ranged else None)
    assert counted.records == records
    if records > 10_000:
        assert len(counted.ids) < records / 2
    for draws in (1, 40):
        one, other = (charged(panel, conversion, draws) for panel in (each, counted))
        price, dearer = bayes(one.cost(1e-5)), bayes(other.cost(1e-5))
        # ε of the hockey-stick conversion is on a grid of 0.5 %: its δ is not.
        grid = 0.006 if conversion == "hockey-stick" else 0.0
        assert price.epsilon * (1 - 1e-12) <= dearer.epsilon <= price.epsilon * (1.002 + grid)
        assert evidence_of(dearer).sample_size == records
        assert dearer.reliable == price.reliable
        delta, larger = (a.get_delta(price.epsilon) for a in (one, other))
        assert delta * (1 - 1e-12) <= larger <= delta * 1.05
        exposed, more = one.exposure(1e-5), other.exposure(1e-5)
        for name in ("largest", "most", "median", "certified"):
            assert getattr(exposed, name) <= getattr(more, name) <= getattr(exposed, name) * 1.002
        assert one.worst_case(1e-5) == other.worst_case(1e-5)


def test_counts_do_not_know_who_is_who() -> None:
    _, counted = panels(skewed(1000), 1.0)
    accountant = charged(counted, "hockey-stick", 1)
    accountant.step(GuideDraws((counted,), 3))
    for other in (replace(counted), panels(skewed(1000), 1.0)[1]):
        with pytest.raises(ValueError, match="do not identify them"):
            accountant.step(GuideDraws((other,)))


def test_what_is_no_count_is_refused() -> None:
    pairs = GaussianPairs(torch.ones(2, 1), torch.ones(2, 1))
    ids = torch.arange(2)
    with pytest.raises(ValueError, match="counts must be positive"):
        Panel("remove", ids, pairs, 1.0, torch.tensor([1, 0]))
    with pytest.raises(ValueError, match="counts has 3"):
        Panel("remove", ids, pairs, 1.0, torch.tensor([1, 1, 1]))
    unequal = GaussianPairs(torch.full((2, 1), 1.1), torch.ones(2, 1))
    with pytest.raises(ValueError, match="equal covariances"):
        Panel("remove", ids, unequal, 1.0, torch.tensor([2, 2]))


def test_own_epsilons_are_those_of_the_records() -> None:
    # Of 40 equal covariances, against the exact δ of a Gaussian pair by the normal distribution.
    variances = torch.linspace(0.01, 0.4, 40, dtype=torch.float64)[:, None]
    panel = Panel("remove", torch.arange(40), GaussianPairs(torch.ones(40, 1), variances))
    accountant = Accountant(conversion="hockey-stick")
    accountant.step(GuideDraws((panel,)))
    levels = (0.05, 0.5, 1.0)
    found = within(*accountant.account().own_price(1e-3), levels)
    for level, epsilon in zip(levels, found, strict=True):
        s = math.sqrt(float(variances[round(level * 40) - 1]))
        delta = norm.cdf(s / 2 - epsilon / s) - math.exp(epsilon) * norm.cdf(-s / 2 - epsilon / s)
        assert delta == pytest.approx(1e-3, rel=0.01)
    with pytest.raises(ValueError, match="levels"):
        within(*accountant.account().own_price(1e-3), [0.0])
