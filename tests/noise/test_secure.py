"""Sums with Gaussian noise on a public lattice: exact arithmetic, the noise's law, devices."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.distributions import Independent, Normal

from bdpvi.noise import secure
from bdpvi.noise.keys import Key
from bdpvi.noise.secure import Lattice, gaussian_sum, sum_rounding, sum_slack, sum_step
from bdpvi.noise.whole_normals import BLOCK, LAW, WholeNormals

CHANCE = 1e-6
KEY = Key.of_seed(0)


def on_lattice(noisy: Tensor, deviation: float) -> Tensor:
    """Return the whole numbers of the lattice that these are, or fail."""
    step = sum_step(deviation)
    whole = (noisy / step).round()
    assert bool((whole * step == noisy).all())
    return whole


@pytest.mark.parametrize("deviation", [1e-3, 1.0, 0.7, 3e4])
def test_a_sum_is_rounded_and_then_moved_by_whole_numbers(deviation: float) -> None:
    total = torch.randn(500, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    total = total * deviation * torch.logspace(-12, 5, 500, dtype=torch.float64)
    moved = on_lattice(gaussian_sum(total, deviation, KEY), deviation)
    step = Fraction(float(sum_step(deviation)))
    drawn = WholeNormals(KEY).take(500)
    for value, at, noise in zip(total.tolist(), moved.tolist(), drawn.tolist(), strict=True):
        rounded = int(at) - int(noise)
        assert abs(rounded - Fraction(value) / step) <= 1
        if abs(value) < 1e3 * deviation:
            assert abs(rounded - Fraction(value) / step) <= Fraction(1, 2) + Fraction(1, 2**10)


def test_the_noise_is_no_less_than_it_should_be() -> None:
    for deviation in (1e-200, 0.1, 1.0, 7.3, 1e200):
        square = LAW.spread**2 * sum(LAW.base ** (2 * i) for i in range(LAW.levels))
        own = Fraction(sum_step(deviation)) ** 2 * (square - Fraction(1, 12))
        assert 1 <= own / Fraction(deviation) ** 2 <= 1 + Fraction(1, 2**48)


def test_neighbouring_sums_stay_neighbours() -> None:
    """What rounding adds to a distance, at the worst: every coordinate the other way."""
    n, deviation = 1000, 0.5
    step = sum_step(deviation)
    here = torch.full((n,), 0.4999 * step)
    there = torch.full((n,), 0.5001 * step) + torch.zeros(n).index_fill(0, torch.tensor([0]), 1.0)
    moved = gaussian_sum(there, deviation, KEY) - gaussian_sum(here, deviation, KEY)
    distance = float((there.double() - here.double()).norm())
    assert distance < float(moved.norm()) <= distance + sum_slack(deviation, n)
    assert sum_slack(deviation, n) == pytest.approx(2 * math.sqrt(n) * step)
    assert sum_slack(1.0, 10**6) < 1e-6


def test_noise_has_its_deviation_and_a_percent_shows() -> None:
    n, deviation = 500_000, 0.37
    total = torch.linspace(-3, 3, n, dtype=torch.float64)
    noise = (gaussian_sum(total, deviation) - total).numpy()
    low, high = stats.chi2(n).ppf([CHANCE / 2, 1 - CHANCE / 2])
    assert low < ((noise / deviation) ** 2).sum() < high
    for wrong in (0.99, 1.01):
        assert not low < ((noise / deviation * wrong) ** 2).sum() < high
    assert stats.kstest(noise / deviation, "norm").pvalue > CHANCE


def test_keys_decide_and_blocks_do_not() -> None:
    total = torch.ones(3, BLOCK - 7)
    first, same = gaussian_sum(total, 1.0, KEY), gaussian_sum(total, 1.0, KEY)
    assert torch.equal(first, same)
    assert first.shape == total.shape
    assert not torch.equal(first, gaussian_sum(total, 1.0))
    assert not torch.equal(gaussian_sum(total, 1.0), gaussian_sum(total, 1.0))


def test_sums_of_single_precision_and_of_odd_numbers() -> None:
    total = torch.tensor([1.5, math.nan, math.inf, -1e30, 0.0])
    noisy = gaussian_sum(total, 1.0, KEY)
    assert noisy.dtype == torch.float64
    assert noisy.isfinite().tolist() == [True, False, False, True, True]
    assert float(noisy[3]) == pytest.approx(-1e30, rel=1e-6)
    assert gaussian_sum(torch.zeros(0), 1.0).shape == (0,)
    with pytest.raises(ValueError, match="deviation"):
        gaussian_sum(total, 0.0)


def test_totals_keep_no_graph_and_stay_as_they_were() -> None:
    total = torch.ones(4, dtype=torch.float64, requires_grad=True)
    assert not gaussian_sum(total, 1.0).requires_grad
    assert total.tolist() == [1.0] * 4


def test_the_price_is_that_of_every_coordinate() -> None:
    assert sum_rounding(10**6) == pytest.approx(10**6 * LAW.total_variation(1))
    assert 0 < sum_rounding(10**6) * 10**4 < 1e-23


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_sum_on_a_device_is_that_of_the_processor() -> None:
    total = torch.linspace(-3, 3, 3 * BLOCK + 1)
    there = gaussian_sum(total.cuda(), 0.3, KEY)
    assert there.is_cuda
    assert torch.equal(there.cpu(), gaussian_sum(total, 0.3, KEY))


def test_draws_have_all_bits_of_their_normals() -> None:
    """What is charged for arithmetic is that of double precision."""
    wide = Independent(Normal(torch.zeros(4).double(), torch.full((4,), 2.0).double()), 1)
    drawn = secure.sample(wide, 3, temperature=4.0, key=KEY)
    assert torch.equal(drawn, 4 * secure.standard_normal((3, 4), KEY))
    assert not torch.equal(drawn, drawn.float().double())


def test_posteriors_have_their_own_lattice() -> None:
    assert secure.Lattice.beside(1.0).step > 1e6 * float(sum_step(1.0))
    assert np.isfinite(sum_step(1e-300))


@pytest.mark.parametrize("deviation", [1e-9, 1e-4, 0.3, 40.0])
@pytest.mark.parametrize("mean", [0.0, 1e-20, 0.12499, 0.375, -0.875000001, 1e6 + 0.06251, -3e12])
def test_a_sum_errs_by_no_more_than_its_noise_allows(mean: float, deviation: float) -> None:
    """Cells of exact sums: another one only within three roundings of the noise, if that."""
    lattice = Lattice.of(0.125)
    posterior = Independent(Normal(torch.tensor([mean], dtype=torch.float64), deviation), 1)
    drawn = secure.sample(posterior, 400, lattice=lattice, key=KEY)[:, 0]
    noise = secure.standard_normal((400, 1), KEY)[:, 0] * posterior.stddev
    for found, own in zip(drawn.tolist(), noise.tolist(), strict=True):
        exact = (Fraction(mean) + Fraction(own)) / Fraction(lattice.step)
        away = abs(exact - Fraction(found) / Fraction(lattice.step)) - Fraction(1, 2)
        assert away <= 3 * Fraction(abs(own)) / Fraction(lattice.step) / 2**53
