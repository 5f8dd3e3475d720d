"""All rows of one person in steps that sample rows one by one, against exact densities."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.integrate import trapezoid
from scipy.special import ndtr
from scipy.stats import norm

from bdpvi.privacy.dominating import steps_within
from bdpvi.privacy.event import WITH, WITHOUT, for_unit
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.gaussian_dp import gaussian_epsilon
from bdpvi.privacy.loss_distribution import deltas_together, loss_interval, step
from bdpvi.privacy.worst_case import epsilon as worst_case

Floats = NDArray[np.float64]


def densities(run: SampledGaussian, x: Floats) -> tuple[Floats, Floats]:
    """Return the densities of one step with and without a person of k equal rows."""
    sizes = np.arange(run.rows + 1)
    shares = [
        math.comb(run.rows, n) * run.rate**n * (1 - run.rate) ** (run.rows - n) for n in sizes
    ]
    z = run.noise_multiplier
    each = (share * norm.pdf(x, n, z) for share, n in zip(shares, sizes, strict=True))
    return np.asarray(sum(each)), np.asarray(norm.pdf(x, 0, z))


def exact(first: Floats, second: Floats, epsilon: float, x: Floats) -> float:
    return float(trapezoid(np.maximum(first - math.exp(epsilon) * second, 0.0), x))


def bounds(run: SampledGaussian, steps: int, epsilon: float, order: str) -> tuple[float, float]:
    """Return bounds on δ(ε) of steps, from losses in cells, rounded down and up, by convolution."""
    z = run.noise_multiplier
    x = np.linspace(-12 * z, 12 * z + run.rows, 400_001)
    cell, middle = x[1] - x[0], (x[1:] + x[:-1]) / 2
    present, absent = densities(run, middle)
    losses = np.log(present / absent) * (1 if order == WITH else -1)
    masses, width = cell * (present if order == WITH else absent), 1e-4
    found = []
    for rounded in (np.floor, np.ceil):
        places = rounded(losses / width).astype(int)
        low = int(places.min())
        once = np.bincount(places - low, masses)
        size = steps * (len(once) - 1) + 1
        whole = np.fft.irfft(np.fft.rfft(once, 2 * size) ** steps, 2 * size)[:size]
        loss = width * (steps * low + np.arange(size))
        there = loss > epsilon
        found.append(float(whole[there] @ -np.expm1(epsilon - loss[there])))
    return found[0], found[1]


STEPS = [
    SampledGaussian(noise_multiplier=noise, rate=rate, rows=rows)
    for noise, rate, rows in ((1.0, 0.1, 2), (3.0, 0.3, 3), (5.0, 0.02, 5), (2.0, 0.8, 4))
]


@pytest.mark.parametrize("run", STEPS)
def test_one_step_against_quadrature(run: SampledGaussian) -> None:
    made = step(run, loss_interval(run))
    x = np.linspace(-14 * run.noise_multiplier, 14 * run.noise_multiplier + run.rows, 400_001)
    present, absent = densities(run, x)
    largest = abs(np.log(present / absent)[abs(x) < 3 * run.noise_multiplier]).max()
    for share in (0.1, 0.3, 0.8):
        epsilon = share * largest
        for one, other, side in (
            (present, absent, made._pmf_remove),
            (absent, present, made._pmf_add),
        ):
            truth = exact(one, other, epsilon, x)
            found = side.get_delta_for_epsilon(epsilon)
            assert found >= truth * (1 - 1e-6)
            assert found <= 1.01 * truth + 1e-12


@pytest.mark.whole
@pytest.mark.parametrize(
    "run",
    [pytest.param(one, marks=[] if one.rows == 3 else pytest.mark.slow) for one in STEPS],
)
def test_many_steps_against_a_convolution(run: SampledGaussian) -> None:
    steps = 12
    found = worst_case([replace(run, steps=steps)], 1e-5)
    assert found is not None
    lower, upper = (
        max(bounds(run, steps, found.epsilon, order)[at] for order in (WITH, WITHOUT))
        for at in (0, 1)
    )
    assert 0.95e-5 < lower <= 1e-5
    assert upper <= 1.03e-5  # the cells' width


def test_no_person_costs_more_than_one_of_equal_rows() -> None:
    """Random rows of two coordinates with norms up to 1, in both orders."""
    rng = np.random.default_rng(0)
    axis = np.linspace(-12, 15, 541)
    x = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1)
    area = (axis[1] - axis[0]) ** 2
    for rate, noise in ((0.2, 1.0), (0.5, 2.0)):
        run = SampledGaussian(noise_multiplier=noise, rate=rate, rows=3)
        most = deltas_together((run,))
        absent = np.exp(-(x**2).sum(-1) / (2 * noise**2)) / (2 * math.pi * noise**2)
        shares = []
        for angle in (0.0, 0.3, 1.5, 3.0):
            at = angle * rng.standard_normal(3)
            rows = np.stack([np.cos(at), np.sin(at)], 1) * (1 if not angle else rng.random((3, 1)))
            present = np.zeros_like(absent)
            for coins in product((0, 1), repeat=3):
                chance = math.prod(rate if coin else 1 - rate for coin in coins)
                away = ((x - np.array(coins) @ rows) ** 2).sum(-1)
                present += chance * np.exp(-away / (2 * noise**2)) / (2 * math.pi * noise**2)
            for epsilon in (0.0, 0.2, 0.6, 1.2):
                e = math.exp(epsilon)
                costs = [
                    area * np.maximum(one - e * other, 0).sum()
                    for one, other in ((present, absent), (absent, present))
                ]
                shares.append(max(costs) / float(most(np.array([epsilon]))[0]))
        assert max(shares[:4]) > 0.99  # equal rows
        assert max(shares) <= 1 + 5e-4  # of the grid


def test_rows_are_what_a_unit_of_a_ledger_has() -> None:
    run = SampledGaussian(noise_multiplier=9.0, rate=0.1, steps=10, rounding=1e-9)
    assert [*for_unit({run: 2}, 3)] == [replace(run, steps=20, rows=3, rounding=2e-9)]
    assert [*for_unit({run: 1}, 1)] == [run]
    seen = replace(run, presence=0.5)
    with pytest.raises(ValueError, match="rows_per_unit=3: steps with seen coins of clients"):
        list(for_unit({seen: 1}, 3))
    with pytest.raises(ValueError, match="rows=3: at rate 1"):
        SampledGaussian(noise_multiplier=9.0, rows=3)
    with pytest.raises(ValueError, match="rows must be a whole number of at least 1"):
        replace(run, rows=0)


@pytest.mark.parametrize("rows", [2, 5])
def test_steps_of_persons_are_within_their_gaussian_mechanism(rows: int) -> None:
    mu, spare, rate = 0.27, 5e-7, 0.05
    price = SampledGaussian(noise_multiplier=rows / mu)
    run = SampledGaussian(noise_multiplier=rows * rate * 300**0.5 / mu, rate=rate, steps=300)
    made = steps_within(run, price, spare, rows)
    assert made.rows == 1  # as it counts for one row, like the price
    assert 1 < made.noise_multiplier / run.noise_multiplier < 1.05
    for delta in (1e-3, 1e-5, 1e-6):
        found = worst_case([replace(made, rows=rows)], delta)
        assert found is not None
        epsilon = found.epsilon
        gaussian = ndtr(-epsilon / mu + mu / 2) - math.exp(epsilon) * ndtr(-epsilon / mu - mu / 2)
        assert gaussian + spare >= 0.99 * delta
    whole = steps_within(replace(run, rate=1.0), price, spare, rows)
    assert whole.noise_multiplier == pytest.approx(300**0.5 * rows / mu)


def test_rows_of_an_event_and_of_a_unit_multiply() -> None:
    """Repeated or not, an event for several rows never counts as one for a single row."""
    run = SampledGaussian(noise_multiplier=6.0, rate=0.1, rows=2)
    for count, rows in ((1, 1), (2, 1), (1, 3)):
        (made,) = for_unit({run: count}, rows)
        assert made == replace(run, rows=2 * rows, steps=count)


@pytest.mark.parametrize(("rows", "rate", "noise"), [(50, 0.99, 10.0), (5, 0.999, 0.5)])
def test_rows_of_which_one_is_always_sampled_have_a_price(
    rows: int, rate: float, noise: float
) -> None:
    """The logarithm of the chance of an empty sample is beyond floats' precision."""
    found = worst_case([SampledGaussian(noise_multiplier=noise, rate=rate, rows=rows)], 1e-5)
    assert found is not None
    all_of_them = gaussian_epsilon((rows / noise) ** 2, 1e-5)
    nearly = gaussian_epsilon((rate * rows / noise) ** 2, 1e-5)
    assert 0.98 * nearly < found.epsilon < 1.01 * all_of_them
