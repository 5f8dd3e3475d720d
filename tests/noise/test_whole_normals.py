"""Whole normal numbers: their exact law, number by number, and the draws themselves."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

import fake_cuda
import mpmath
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from bdpvi._ground.host import HOST
from bdpvi.noise.keys import Key
from bdpvi.noise.secure import gaussian_sum
from bdpvi.noise.whole_normals import BLOCK, LAW, OPEN, Law, TableOn, WholeNormals, table

CHANCE = 1e-6


def exact_total_variation(law: Law) -> mpmath.mpf:
    """Return it by the probabilities of all numbers, in 50 digits: the laws of K are convolved."""
    with mpmath.workdps(50):
        ends = [*law.borders(), 1 << law.bits]
        one = [mpmath.mpf(b - a) / (1 << law.bits) for a, b in pairwise(ends)]
        found = {k - law.cut: p for k, p in enumerate(one)}
        for _ in range(law.levels - 1):
            more: dict[int, mpmath.mpf] = {}
            for y, weight in found.items():
                for k, p in enumerate(one):
                    at = law.base * y + k - law.cut
                    more[at] = more.get(at, mpmath.mpf(0)) + weight * p
            found = more
        square = law.spread**2 * sum(law.base ** (2 * i) for i in range(law.levels))
        s = mpmath.sqrt(square - mpmath.mpf(1) / 12)
        half = mpmath.mpf(1) / 2
        apart, left = mpmath.mpf(0), mpmath.mpf(1)
        for at, p in found.items():
            if at < 0:
                cell = mpmath.ncdf((at + half) / s) - mpmath.ncdf((at - half) / s)
            else:
                cell = mpmath.ncdf((half - at) / s) - mpmath.ncdf((-half - at) / s)
            apart, left = apart + abs(p - cell), left - cell
        return (apart + left) / 2


@pytest.mark.parametrize(
    "law",
    [
        Law(8, 8, 2, 60, 14),  # few bits
        Law(8, 8, 2, 20, 90),  # an early cut
        Law(4, 8, 2, 40, 90),  # numbers that hardly overlap
        Law(3, 2, 3, 36, 90),  # a coarse lattice
        Law(2, 1, 1, 24, 120),
        Law(5, 3, 2, 50, 40),
    ],
)
def test_the_bound_is_never_below_the_exact_total_variation(law: Law) -> None:
    exact, bound = exact_total_variation(law), law.total_variation(1)
    assert exact <= bound
    assert bound <= 40 * exact
    assert law.total_variation(7) == pytest.approx(7 * bound, rel=1e-12)


def test_a_long_run_of_a_large_network_can_pay() -> None:
    """10⁴ steps of 10⁶ weights at ε = 8: what the draws take of δ is far below 1e-5."""
    assert LAW.total_variation(10**10) * (1 + np.exp(8.0)) < 1e-19
    assert 0.99 < LAW.deviation / 2**33 < 1.01


def test_a_table_is_the_discrete_normal_law() -> None:
    ends = [*LAW.borders(), 1 << LAW.bits]
    with mpmath.workdps(60):
        ratio = mpmath.exp(-mpmath.mpf(1) / (2 * LAW.spread**2))
        total = mpmath.fsum(ratio ** (k * k) for k in range(-LAW.cut, LAW.cut + 1))
        for k in (-6400, -5000, -513, -1, 1, 2, 700, 6399, 6400):
            own = ends[k + LAW.cut + 1] - ends[k + LAW.cut]
            assert abs(own - ratio ** (k * k) / total * (1 << LAW.bits)) <= 1
        middle = ends[LAW.cut + 1] - ends[LAW.cut]
        assert 0 <= middle - (1 << LAW.bits) / total <= 2 * LAW.cut


def words(values: list[int]) -> NDArray[np.uint64]:
    return np.array(values, dtype=np.uint64)


def test_numbers_follow_from_bits_as_the_borders_say() -> None:
    borders, made = LAW.borders(), table(LAW)
    short = made.by_16_bits(np.arange(1 << 16, dtype=np.uint16))
    for at, number in enumerate(short.tolist()):
        ends = [bisect_right(borders, u) - 1 - LAW.cut for u in (at << 112, ((at + 1) << 112) - 1)]
        assert ends == [number, number] if number != OPEN else ends[0] < ends[1]
    assert 0.02 < (short == OPEN).mean() < 0.06
    asked = [u for border in borders[1::97] for u in (border - 1, border, border + 1)]
    asked += [0, (1 << 128) - 1, borders[1], borders[2], borders[-1]]
    low = words([u % (1 << 64) for u in asked])
    found = made.by_128_bits(words([u >> 64 for u in asked]), low)
    expected = [bisect_right(borders, u) - 1 - LAW.cut for u in asked]
    assert found.tolist() == expected
    there = TableOn(made, HOST)
    every = torch.arange(-(1 << 15), 1 << 15).short()
    assert there.by_16_bits(every).tolist() == np.roll(short, 1 << 15).tolist()
    bits = [words([u >> 64 for u in asked]), low]
    high, rest = (torch.from_numpy(bit.view(np.int64)) for bit in bits)
    assert there.by_128_bits(high, rest).tolist() == expected


def test_a_draw_is_made_of_its_own_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[NDArray[np.unsignedinteger]] = []
    whole = WholeNormals._words

    def kept(self: WholeNormals, size: int, count: int) -> NDArray[np.unsignedinteger]:
        seen.append(whole(self, size, count))
        return seen[-1]

    monkeypatch.setattr(WholeNormals, "_words", kept)
    drawn = WholeNormals(Key.of_seed(3)).take(3000).tolist()
    borders, expected = LAW.borders(), [0] * 3000
    for level in range(LAW.levels):
        short, high, low = seen[3 * level : 3 * level + 3]
        rest = iter(zip(high.tolist(), low.tolist(), strict=True))
        for i, top in enumerate(short.tolist()):
            uniform = top << 112
            if table(LAW).by_16_bits(short[i : i + 1])[0] == OPEN:
                more, least = next(rest)
                uniform |= (more >> 16) << 64 | least
            k = bisect_right(borders, uniform) - 1 - LAW.cut
            expected[i] = LAW.base * expected[i] + k
    assert drawn == expected
    assert len({tuple(one.tolist()) for one in seen if len(one) > 9}) == len(seen)


def test_draws_are_normal_and_a_percent_shows() -> None:
    n = 4 * BLOCK + 17
    drawn = WholeNormals(Key.of_seed(5)).take(n).numpy()
    assert (drawn == drawn.round()).all()
    own = drawn / LAW.deviation
    low, high = stats.chi2(n).ppf([CHANCE / 2, 1 - CHANCE / 2])
    assert low < (own**2).sum() < high
    for wrong in (0.99, 1.01):
        assert not low < ((wrong * own) ** 2).sum() < high
    assert stats.kstest(own, "norm").pvalue > CHANCE
    for gap in (1, 2, 64, 4096, BLOCK):
        assert abs((own[gap:] * own[:-gap]).sum()) < 5 * n**0.5
    last = np.bincount(drawn.astype(np.int64) & 255, minlength=256)
    assert stats.chisquare(last).pvalue > CHANCE


def test_draws_follow_from_the_key_and_are_used_once() -> None:
    one, same, other = (WholeNormals(Key.of_seed(seed)) for seed in (1, 1, 2))
    sizes = (3, 500, 1, BLOCK + 5, 0, 40)
    first = [one.take(size) for size in sizes]
    assert all(bool((a == same.take(len(a))).all()) for a in first)
    assert not bool((first[1] == other.take(500)).any())
    assert [len(a) for a in first] == list(sizes)
    together = np.concatenate([a.numpy() for a in first])
    assert len(np.unique(together)) > len(together) - 10


def test_draws_are_the_same_on_every_device_and_used_once() -> None:
    here, there = WholeNormals(Key.of_seed(1)), WholeNormals(Key.of_seed(1))
    with fake_cuda.pretended():
        cuda = torch.device("cuda:0")
        for count, device in ((5, HOST), (BLOCK + 7, cuda), (3, HOST), (9000, cuda), (9001, HOST)):
            drawn = there.take(count, device)
            assert drawn.device == device
            assert drawn.tolist() == here.take(count).tolist()


def test_noise_of_a_large_total_is_drawn_where_the_total_is() -> None:
    total = torch.linspace(-1, 1, BLOCK + 5, dtype=torch.float64)
    expected = gaussian_sum(total, 2.0, Key.of_seed(1))
    with fake_cuda.pretended():
        on_device = total.to("cuda:0")
        gaussian_sum(on_device, 2.0)  # makes the tables
        with fake_cuda.waits() as waits:
            noisy = gaussian_sum(on_device, 2.0, Key.of_seed(1))
        assert noisy.device == on_device.device
        assert len(waits) <= 2 * 2 * LAW.levels + 4  # in each block; for the cipher's tables
        assert bool((noisy.cpu() == expected).all())
