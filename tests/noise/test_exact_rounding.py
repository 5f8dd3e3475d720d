"""Samples are rounded as exact ones would be."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from pyro.distributions import MultivariateNormal, Normal
from scipy.stats import chisquare, norm
from torch import Tensor

from bdpvi.noise import exact_rounding, secure
from bdpvi.noise.exact_rounding import settle, uncertain_cells
from bdpvi.noise.keys import Key

KEY = Key.of_seed(3)
ROWS = 500
ROOT = torch.tensor([[2.0, 0.0, 0.0], [-1.5, 1.0, 0.0], [0.3, 0.0, 0.4]]).double()
MEAN = torch.tensor([0.3, -7.25, 1e6 + 0.4], dtype=torch.float64)


def drawn(bits: int, factor: Tensor, rows: int, temperature: float = 1.7) -> tuple[Tensor, Tensor]:
    """Return samples as computed from few bits, and settled."""
    words = KEY.words(rows * 3) >> np.uint64(64 - bits)
    noise = torch.from_numpy(norm.ppf((words.astype(float) + 0.5) / 2**bits)).reshape(rows, 3)
    scaled = math.sqrt(temperature) * (noise * factor if factor.ndim == 1 else noise @ factor.T)
    above = (MEAN - 0.5).round() + 1
    inside = MEAN - (above - 0.5) + scaled
    rough = inside.floor() + above
    cells = rough.clone()
    settle(cells, inside, MEAN, factor, temperature, noise, KEY, bits)
    return rough, cells


@pytest.mark.parametrize("factor", [ROOT, ROOT.diagonal()])
@pytest.mark.parametrize("bits", [3, 8])
def test_cells_are_those_of_three_hundred_bits(bits: int, factor: Tensor) -> None:
    rough, cells = drawn(bits, factor, 60)
    whole = torch.diag(factor) if factor.ndim == 1 else factor
    words, changed = KEY.words(180) >> np.uint64(64 - bits), 0
    with mpmath.workdps(120):
        root = mpmath.sqrt(mpmath.mpf(1.7))
        for k in range(60):
            xi = []
            for j in range(3):
                more = KEY.child("more bits", k, j).words(4)
                number = int(words[3 * k + j])
                for one in more:
                    number = number * 2**64 + int(one)
                u = (mpmath.mpf(number) + mpmath.mpf(1) / 2) / 2 ** (bits + 256)
                xi.append(mpmath.sqrt(2) * mpmath.erfinv(2 * u - 1))
            for i in range(3):
                parts = [mpmath.mpf(float(whole[i, j])) * xi[j] for j in range(3)]
                y = mpmath.mpf(float(MEAN[i])) + root * sum(parts)
                exact = int(mpmath.floor(y + mpmath.mpf(1) / 2))
                assert int(cells[k, i]) == exact
                changed += exact != int(rough[k, i])
    assert changed > 1  # of 180: few bits do not suffice


def test_of_three_bits_the_law_is_still_the_normal_one() -> None:
    """Rounding the middles of eight cells gives eight values."""
    rough, cells = drawn(3, torch.full((3,), 2.0).double(), ROWS, 1.0)
    values = (cells[:, :2] - MEAN[:2].round()).flatten()
    assert len((rough[:, 0]).unique()) <= 8
    centre = MEAN[:2] - MEAN[:2].round()
    places = np.arange(-5, 6)
    expected = np.zeros(13)
    for one in centre.tolist():
        ends = norm.cdf((np.arange(-5.5, 6) - one) / 2)
        expected += ROWS * np.diff(np.concatenate([[0.0], ends, [1.0]]))
    counts = [int((values < -5).sum()), *(int(values.eq(at).sum()) for at in places.tolist())]
    counts.append(int((values > 5).sum()))
    assert chisquare(counts, expected).pvalue > 1e-3


def test_what_float64_settles_no_further_bits_change() -> None:
    """At any bits of uⱼ the exact sample lies in the computed cell, to its ends."""
    bits, rows = 12, 4000
    words = KEY.words(rows * 3) >> np.uint64(64 - bits)
    share = words.astype(float).reshape(rows, 3)
    noise, *ends = (
        torch.from_numpy(norm.ppf((share + add) / 2**bits)) for add in (0.5, 1e-9, 1 - 1e-9)
    )
    for factor in (ROOT, ROOT.diagonal()):
        each = [factor * e if factor.ndim == 1 else e @ factor.T for e in (noise, *ends)]
        inside = MEAN.remainder(1.0) + each[0] + 0.5
        sure = ~uncertain_cells(inside, MEAN, factor, noise, bits)
        assert 0.5 < float(sure.double().mean()) < 0.9999
        if factor.ndim == 1:
            for one in each[1:]:
                other = MEAN.remainder(1.0) + one + 0.5
                assert bool((other.floor() == inside.floor())[sure].all())


def test_a_draw_in_the_tail_has_no_end() -> None:
    """The first 52 bits are all 0 once in 10¹⁵ draws; the quantile is then below −8.2."""

    class Low(Key):
        def words(self, count: int) -> Any:
            return np.zeros(count, dtype=np.uint64) if self.secret == KEY.secret else KEY.words(2)

        def child(self, *labels: str | int) -> Key:
            return KEY.child(*labels)

    one = Normal(torch.zeros(2).double(), 1.0).to_event(1)
    found = secure.sample(one, lattice=secure.Lattice(2.0**-20), key=Low(KEY.secret))
    assert bool((found < -8.2).all())
    assert found[0, 0] != found[0, 1]


def test_usual_draws_are_as_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """More bits are needed once in 10⁹ samples, so releases are as before."""
    posterior = MultivariateNormal(torch.randn(8).double(), torch.eye(8).double() + 0.3)
    lattice = secure.Lattice(2.0**-10)
    found = secure.sample(posterior, 2000, lattice=lattice, key=KEY)
    monkeypatch.setattr(exact_rounding, "settle", lambda *_: None)
    assert torch.equal(found, secure.sample(posterior, 2000, lattice=lattice, key=KEY))
