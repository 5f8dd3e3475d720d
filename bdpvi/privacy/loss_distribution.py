"""δ(ε) of many compositions of the same few releases: certified privacy loss distributions, by FFT.

Every record of a run takes the same kinds of steps, but different numbers of each. One privacy
loss distribution for each kind, and one inverse Fourier transform for each record, give all δ(ε).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.fft import next_fast_len
from torch import Tensor

from bdpvi.privacy.conversions import EPSILONS, minimise_delta, minimise_epsilon
from bdpvi.privacy.event import WITH
from bdpvi.privacy.events import SampledGaussian

if TYPE_CHECKING:  # takes most of a second
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

_MARGIN = 24.0
"""At most e^-24 of the tilted mass lies outside the grid."""
_LARGEST_EXPONENT = 600.0
_ROUNDED = 1e-14
"""Probabilities below this are next to 0."""
_BLOCK = 1 << 21
"""The most numbers in memory at a time."""


@dataclass(frozen=True)
class Grid:
    """The grid of losses and its tilt, from public numbers only.

    Attributes:
        interval: h, the distance of neighbouring losses.
        tilt: c > 0: masses are stored times e^{c·loss}, so that they are precise where δ is small.
        lower: the smallest loss over h.
        size: number of losses.
    """

    interval: float
    tilt: float
    lower: int
    size: int

    @classmethod
    def around(
        cls, largest: Sequence[SampledGaussian], direction: str, beta: float, interval: float
    ) -> Grid:
        """Return a grid for every record that costs no more than the largest possible.

        The tilt is half the order c at which the moments of the largest give the smallest δ at the
        ε for β. Halving c costs little precision and keeps δ precise at smaller ε. The tilted mass
        beyond S = ε + 48/c, at most M(c)/M(c/2) e^{-cS/2}, is then about e^-24, so that a heavy
        tail does not wrap around. For bounded losses the order is unbounded; it is then limited to
        2 log(1/β)/ε, the order of a Gaussian loss.

        Args:
            largest: the most costly steps, as steps of sensitivity 1.
            direction: such as "add-or-remove D‖D′".
            beta: δ at which the grid is to be precise.
            interval: h.
        """

        def cost(orders: Tensor) -> Tensor:
            each = [run.steps * _log_mgf(run, direction, orders, interval) for run in largest]
            return torch.stack(each).sum(0)

        epsilon = minimise_epsilon(cost, beta).value
        tilt = minimise_delta(cost, epsilon).order
        if epsilon > 0:
            tilt = min(tilt, -2 * math.log(beta) / epsilon)
        tilt /= 2
        lower = math.floor(-_MARGIN / tilt / interval)
        upper = math.ceil((epsilon + _MARGIN / tilt) / interval)
        return cls(interval, tilt, lower, int(next_fast_len(upper - lower + 1, real=True)))

    @property
    def upper(self) -> float:
        """The end of the grid: larger losses are not stored."""
        return (self.lower + self.size) * self.interval


def _transforms(
    kinds: Sequence[SampledGaussian], direction: str, grid: Grid
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the tilted distributions of the loss of K kinds of step, as Fourier transforms.

    Returns:
        The characteristic functions φ, (K, frequencies); log of |φ| and its error together;
        log E e^{cL}, (K,); and log of the mass of finite losses, (K,).
    """
    tilted, mgfs, finite = [], [], []
    for kind in kinds:
        step = _connect_dots(kind.at(1.0), grid.interval)
        masses, lower, infinity = step[direction.endswith(WITH)]
        tilt = torch.tensor([grid.tilt], dtype=torch.float64)
        mgfs.append(float(_log_mgf(kind, direction, tilt, grid.interval)))
        places = np.arange(lower, lower + len(masses))
        weights = masses * np.exp(grid.tilt * grid.interval * places - mgfs[-1])
        tilted.append(torch.from_numpy(np.bincount(places % grid.size, weights, grid.size)))
        finite.append(math.log1p(-infinity))
    phi = torch.fft.rfft(torch.stack(tilted))
    error = _error(grid)
    log_mgf, log_finite = (torch.tensor(one, dtype=torch.float64) for one in (mgfs, finite))
    return phi, (phi.abs() * (1 + error) + error).log(), log_mgf, log_finite


def record_deltas(
    kinds: Sequence[SampledGaussian], direction: str, grid: Grid, counts: Tensor, epsilons: Tensor
) -> Tensor:
    r"""Return an upper bound on δ_i(ε) of every record.

    With p_i the distribution of the loss of all its steps and M_i(c) = E e^{cL}, the tilted
    p̃_i(s) = p_i(s) e^{cs}/M_i(c) is the composition of the steps' tilted distributions,

        δ_i(ε) = Pr[L = ∞] + M_i(c) Σ_{s>ε} p̃_i(s) e^{-cs} (1 - e^{ε-s}),

    and its Fourier transform Π_k φ_k^{n_ik} (Koskela, Jälkö and Honkela 2020; tilted as in
    Gopi, Lee and Wutschitz 2021, remark on precision). The bound adds

    - M_i(c) e^{-cS} for losses of at least S, the end of the grid (Markov's inequality). They
      wrap around and are counted again, as are those below the grid, which only adds;
    - the effect of rounding. Each φ has an error of at most η, so the product one of at most
      E = Π (|φ_k|(1+η) + η)^{n_ik} - Π |φ_k|^{n_ik} at each frequency; by the inequality of
      Cauchy and Schwarz and Parseval's identity the error of Σ_s w(s) p̃_i(s) is ‖E‖₂ max w,
      and max w = e^{-cε} c^c/(1+c)^{1+c} (Canonne, Kamath and Steinke 2020, Proposition 12).

    Args:
        kinds: the kinds of step, as steps of sensitivity 1.
        direction: such as "add-or-remove D‖D′".
        grid: the grid of losses.
        counts: how often each record takes each kind of step, (m, K).
        epsilons: ε ≥ 0, (E,), increasing.

    Returns:
        (m, E), at most 1; beyond the grid by moments: M_i(c) times that maximum.
    """
    phi, log_size_above, log_mgf, log_finite = _transforms(kinds, direction, grid)
    tiny, error, c = torch.finfo(torch.float64).tiny, _error(grid), grid.tilt
    log_sizes, angle = phi.abs().clamp(min=tiny).log(), phi.angle()
    s = grid.interval * (grid.lower + torch.arange(grid.size, dtype=torch.float64))
    above, s = s > 0, s[s > 0]
    first = torch.searchsorted(s, epsilons, right=True)
    # If e^ε overflows, the subtracted term is left out.
    factor = torch.where(epsilons < _LARGEST_EXPONENT, epsilons.exp(), 0)
    log_peak = c * math.log(c) - (1 + c) * math.log1p(c) - c * epsilons

    def of(counts: Tensor) -> Tensor:
        log_size = counts @ log_sizes
        total = torch.polar(log_size.exp(), counts @ angle)
        masses = torch.fft.irfft(total, n=grid.size).roll(-grid.lower, -1).clamp_(min=0)[:, above]
        tail = _from_above(masses * torch.exp(-c * s))
        tail_less = _from_above(masses * torch.exp(-(c + 1) * s))
        within = tail[:, first] - factor * tail_less[:, first]
        off = (counts @ log_size_above).exp() - log_size.exp()
        size = math.sqrt(2) * (off.norm(dim=1) + error * total.abs().norm(dim=1))
        kept = within + error * tail[:, first] + size[:, None] * log_peak.exp()
        kept = (kept + math.exp(-c * grid.upper)).clamp(min=tiny).log()
        kept[:, epsilons >= grid.upper] = math.inf
        mgf = (counts @ log_mgf)[:, None] + error * counts.sum(1, keepdim=True)
        infinite = -torch.expm1(counts @ log_finite)[:, None]
        return ((mgf + torch.minimum(kept, log_peak)).exp() + infinite).clamp(max=1)

    # Equal records, as with static sensitivities, are computed once.
    unlike, place = counts.unique(dim=0, return_inverse=True)
    rows = max(1, _BLOCK // grid.size)
    return torch.cat([of(n.double()) for n in unlike.split(rows)])[place]


def deltas_on_grid(
    kinds: Sequence[SampledGaussian],
    counts: Tensor,
    largest: Sequence[SampledGaussian],
    direction: str,
    beta: float,
    epsilons: Tensor = EPSILONS,
) -> Tensor:
    """Return an upper bound on δ of every record at every ε, (m, E).

    Args:
        kinds: the kinds of step, as steps of sensitivity 1.
        counts: how often each record takes each kind, (m, K).
        largest: the steps of the most costly record, as steps of sensitivity 1.
        direction: such as "add-or-remove D‖D′".
        beta: δ at which the answer is to be precise.
        epsilons: ε, at least 0, increasing.
    """
    met = counts.any(0)
    interval = min(map(loss_interval, largest))
    grid = Grid.around(largest, direction, beta, interval)
    used = [kind for kind, one in zip(kinds, met.tolist(), strict=True) if one]
    return record_deltas(used, direction, grid, counts[:, met], epsilons)


def step(run: SampledGaussian, interval: float) -> PrivacyLossDistribution:
    r"""Return the privacy loss distribution of one step, whose δ(ε) is never too small.

    Of k rows in a Poisson sample, vectors v_i of norm at most 1, a random subset S is added:
    v_S = Σ_{i∈S} v_i, and |S| is binomial. The worst case is k equal vectors, so that the step is
    N(|S|, z²) against N(0, z²), by Kahane's convexity inequality: the likelihood ratio is a mean of
    exp(g_S − E g_S²/2) with Gaussian g_S of covariance ⟨v_S, v_T⟩/z², and the mean of each convex
    function of it grows with the covariances, which are at most |S||T|/z² (Kahane, "Sur le chaos
    multiplicatif", 1985). Hockey-stick divergences in both directions are such means.

    Sources of this pair for groups: Schuchardt, Stoian, Kosmala and Günnemann, "Unified
    Mechanism-Specific Amplification by Subsampling and Group Privacy Amplification", NeurIPS 2024;
    dp_accounting computes it as a mixture of Gaussians.

    Args:
        run: sensitivity 1; its steps and coins that are seen are not counted.
        interval: the grid of losses.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld
    from scipy.stats import binom  # late: it is slow to import

    # Of a probability that none is sampled which is next to 0, dp_accounting rounds the logarithm.
    # All k rows in every sample cost no less: both divergences are convex in the pair of laws.
    if run.rows > 1 and (1 - run.rate) ** run.rows < _ROUNDED:
        noise = run.noise_multiplier / run.rows
        run = replace(run, noise_multiplier=noise, rate=1.0, rows=1)
    if run.rows == 1:
        return pld.from_gaussian_mechanism(
            run.noise_multiplier, value_discretization_interval=interval, sampling_prob=run.rate
        )
    sizes = np.arange(run.rows + 1)
    return pld.from_mixture_gaussian_mechanism(
        run.noise_multiplier,
        sizes.tolist(),
        binom.pmf(sizes, run.rows, run.rate).tolist(),
        value_discretization_interval=interval,
    )


def composed(runs: Sequence[SampledGaussian]) -> PrivacyLossDistribution:
    """Return the privacy loss distribution of all steps of several runs of sensitivity 1."""
    interval = min(map(loss_interval, runs))
    return reduce(
        lambda one, other: one.compose(other),
        (step(run, interval).self_compose(run.steps) for run in runs),
    )


def deltas_together(
    runs: Sequence[SampledGaussian],
) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """Return an upper bound on δ of several runs as a function of ε, of any sign.

    Args:
        runs: of sensitivity 1; a coin that decides whether a step involves a record counts as 1.
    """
    interval = min(map(loss_interval, runs))
    together = composed(runs)

    def exact(epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(together.get_delta_for_epsilon(epsilons), dtype=np.float64)

    grid: NDArray[np.float64] = np.empty(0)
    values: NDArray[np.float64] = np.empty(0)

    def deltas(epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
        nonlocal grid, values
        epsilons = np.minimum(epsilons, HIGHEST)
        low, high = float(epsilons.min()), float(epsilons.max())
        if not len(grid) or low < grid[0] or high > grid[-1]:
            room = (1 + high - low) / 2
            ends = round((low - room) / interval), round(min(high + room, HIGHEST) / interval)
            if ends[1] - ends[0] > _MOST_KNOWN:
                order = np.argsort(epsilons)
                found = np.empty_like(epsilons)
                found[order] = exact(epsilons[order])
                return found
            grid = np.asarray(interval * np.arange(ends[0], ends[1] + 1), dtype=np.float64)
            values = exact(grid)
        # Losses are multiples of the interval: between two losses δ is linear in e^ε.
        return np.asarray(np.interp(np.exp(epsilons), np.exp(grid), values), dtype=np.float64)

    return deltas


_MOST_KNOWN = 200_000
"""The most values of δ that are tabulated at once."""
HIGHEST = 300.0
"""A larger ε has the δ of this one, which is an upper bound."""


def least_epsilons(deltas: Tensor, delta: float) -> Tensor:
    """Return the least of ``EPSILONS`` that suffices for each record, (m,), or +inf.

    Args:
        deltas: δ at all of ``EPSILONS``, (directions, m, E).
        delta: δ.
    """
    exceed = (deltas > delta).any(0)
    # All ε after the last insufficient one suffice.
    first = (exceed * torch.arange(1, len(EPSILONS) + 1)).amax(1)
    return torch.cat([EPSILONS, EPSILONS.new_full((1,), math.inf)])[first]


def loss_interval(run: SampledGaussian) -> float:
    """Return the step of a grid of privacy losses, for a run of sensitivity 1.

    At most a tenth of the standard deviation of one release's loss: ε is then at most 0.2 % too
    large. The fixed step of dp_accounting, 1e-4, costs 2 % at ε = 0.005 and takes seconds at
    σ = 0.4.
    """
    precision = (run.noise_multiplier / run.rows) ** -2
    deviation = run.rate * math.sqrt(math.expm1(min(precision, 100.0)))
    return min(max(0.1 * deviation, 1e-7), 5e-4 * max(1.0, precision))


def _error(grid: Grid) -> float:
    """Return η, a bound on the error of a Fourier transform of total mass 1, and of log φ."""
    return 2.0**-49 * math.log2(grid.size)


def _log_mgf(kind: SampledGaussian, direction: str, orders: Tensor, interval: float) -> Tensor:
    """Return log Σ_s p(s) e^{cs} over the finite losses of one step, at orders c (K,)."""
    masses, lower, _ = _connect_dots(kind.at(1.0), interval)[direction.endswith(WITH)]
    s = interval * (lower + torch.arange(len(masses), dtype=torch.float64))
    return torch.logsumexp(torch.from_numpy(masses).log() + orders[:, None] * s, 1)


def _from_above(values: Tensor) -> Tensor:
    """Return Σ_{j≥k} of values (m, n) for k = 0 … n; the last is 0."""
    sums = values.flip(1).cumsum(1).flip(1)
    return torch.cat([sums, torch.zeros_like(sums[:, :1])], 1)


@lru_cache(maxsize=512)
def _connect_dots(
    kind: SampledGaussian, interval: float
) -> tuple[tuple[NDArray[np.float64], int, float], tuple[NDArray[np.float64], int, float]]:
    """Return masses, the first loss over h, and the infinite mass, in both directions.

    First the release without the record against the one with it, then the reverse.

    dp_accounting computes them; the δ(ε) of its distribution on the grid is never too small
    (Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022).
    """
    made = step(kind, interval)
    without, present = (
        _sometimes(pmf._probs, pmf._lower_loss, pmf._infinity_mass, kind.presence)
        for pmf in (made._pmf_add.to_dense_pmf(), made._pmf_remove.to_dense_pmf())
    )
    return without, present


def _sometimes(
    masses: NDArray[np.float64], lower: int, infinity: float, presence: float
) -> tuple[NDArray[np.float64], int, float]:
    """Return the distribution of a loss that is 0 if an observed coin leaves out the step."""
    if presence == 1:
        return masses, lower, infinity
    first, last = min(lower, 0), max(lower + len(masses), 1)
    mixed = np.zeros(last - first)
    mixed[lower - first : lower - first + len(masses)] = presence * masses
    mixed[-first] += 1 - presence
    return mixed, first, presence * infinity
