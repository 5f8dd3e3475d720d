"""Rényi and hockey-stick divergences between Gaussian posteriors.

Every divergence of a pair P = N(μ₁, Σ₁), Q = N(μ₂, Σ₂) depends on 2d numbers only. With
``Σ₂ = L₂L₂ᵀ`` and ``L₂⁻¹Σ₁L₂⁻ᵀ = U diag(r) Uᵀ`` they are r and the squares of
``b = Uᵀ L₂⁻¹ (μ₁ - μ₂)``. One decomposition serves every order, temperature and count.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, singledispatch

import numpy as np
import torch
from torch import Tensor
from torch.distributions import (
    Distribution,
    Independent,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Normal,
)

from bdpvi._ground import threads, validate
from bdpvi.bayesian.accounting.log_moments import divergences, log_mgf_by_products
from bdpvi.privacy.gaussian import equal_covariance
from bdpvi.privacy.inversion import hockey_stick_bound

# The most coordinates whose product is accurate to 1e-13.
_WIDEST = 100
# Smallest eigenvalue relative to the largest that a symmetric eigenproblem gives to 1e-12.
_GRADED = 1e-3
# Eigenproblems at a time, few enough to stay in cache.
_RECORDS = 8192


@dataclass(frozen=True, eq=False)
class GaussianPairs:
    """The numbers that determine all divergences of m pairs P_i, Q_i of Gaussians.

    Attributes:
        r: eigenvalues of P's covariance in the metric of Q's, (m, d), positive.
        b2: squared differences of the means along the same directions, (m, d), at least 0.

    Raises:
        ValueError: if the shapes differ, a value is not finite, r ≤ 0 or b2 < 0.

    >>> pairs = GaussianPairs(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.25, 0.0]]))
    >>> pairs.renyi(1.0)  # KL: (0.25 + 2 - 1 - log 2) / 2
    tensor([0.2784], dtype=torch.float64)
    >>> pairs.renyi(3.0)  # 3 Σ₂ - 2 Σ₁ is not positive definite
    tensor([inf], dtype=torch.float64)
    """

    r: Tensor
    b2: Tensor

    def __post_init__(self) -> None:
        if self.r.ndim != 2:
            raise ValueError(f"r must have shape (records, dimensions), got {tuple(self.r.shape)}")
        if self.r.shape != self.b2.shape:
            raise ValueError(f"b2 has shape {tuple(self.b2.shape)}, r has {tuple(self.r.shape)}")
        for name in ("r", "b2"):
            object.__setattr__(self, name, validate.finite(name, getattr(self, name).double()))
        if not bool((self.r > 0).all()):
            raise ValueError(f"r must be positive, got {self.r.min().item()}")
        if not bool((self.b2 >= 0).all()):
            raise ValueError(f"b2 must be at least 0, got {self.b2.min().item()}")

    def __len__(self) -> int:
        return len(self.r)

    def reverse(self) -> GaussianPairs:
        """Return the pairs Q_i, P_i: ``r -> 1/r``, ``b² -> b²/r``."""
        return GaussianPairs(self.r.reciprocal(), self.b2 / self.r)

    def select(self, index: Tensor | slice) -> GaussianPairs:
        """Return the pairs at ``index`` (positions, a boolean mask or a slice)."""
        return GaussianPairs(self.r[index], self.b2[index])

    def renyi(self, order: Tensor | float, temperature: float = 1.0) -> Tensor:
        """Return the Rényi divergence ``D_α(P_i‖Q_i)``, at α = 1 the Kullback-Leibler divergence.

        ``D_α = ½ Σ_j [α b_j²/w_j - (log w_j + (α-1) log r_j)/(α-1)]``, ``w = 1 - (α-1)(r-1)``
        (Gil, Alajaji & Linder 2013, Table 2), for the covariances τΣ₁ and τΣ₂: ``b² -> b²/τ``, r
        unchanged. Below α = ½ ``D_α(P‖Q) = α/(1-α) D_{1-α}(Q‖P)`` (van Erven & Harremoës 2014,
        Prop. 2) avoids cancellation. The relative error is about 1e-13; if αΣ₂ + (1-α)Σ₁ is nearly
        not positive definite, it is 1e-15/min w; for α < ½ and equal means it is 1e-15/|r-1|, as
        1/r is rounded. This holds for r from 1e-20 to 1e20.

        Args:
            order: α > 0, a number or (K,).
            temperature: τ > 0.

        Returns:
            (m,) or (K, m); +inf where the divergence does not exist.

        Raises:
            ValueError: if an order or the temperature is not finite and positive.
        """
        alpha = self._like(_positive_orders(order))
        flat = alpha.reshape(-1)
        low = (flat < 0.5).nonzero()[:, 0]
        value = self._per_order(torch.where(flat < 0.5, 1.0, flat) - 1, temperature)
        if len(low):
            mirrored = self.reverse()._per_order(-flat[low], temperature)
            value[low] = (flat[low] / (1 - flat[low])).unsqueeze(-1) * mirrored
        return value.reshape(*alpha.shape, len(self))

    def log_moment(self, order: Tensor | float, temperature: float = 1.0) -> Tensor:
        """Return ``λ D_{λ+1}(P_i‖Q_i) = log E_P (p/q)^λ``, the cost of a release at order λ.

        Args:
            order: λ > 0, a number, (K,), or (K, m) for separate orders of each pair.
            temperature: τ > 0.

        Returns:
            (m,) or (K, m); +inf where the moment does not exist.

        Raises:
            ValueError: if an order or the temperature is not finite and positive.

        >>> pairs = GaussianPairs(torch.ones(1, 1), torch.ones(1, 1))
        >>> pairs.log_moment(2.0)  # λ (λ+1) b²/2
        tensor([3.], dtype=torch.float64)
        """
        lam = self._like(_positive_orders(order))
        value = self.log_mgf(lam if lam.ndim else lam.reshape(1), temperature)
        return value if lam.ndim else value[0]

    def log_mgf(self, s: Tensor, temperature: float = 1.0) -> Tensor:
        """Return ``log E_P (p/q)^s``, the log moment generating function of the privacy loss.

        It adds up over releases of the same records; for k draws it is multiplied by k.

        Args:
            s: (K,), or (K, m) for separate points of each pair; real above -½, or complex with such
                a real part.
            temperature: τ > 0.

        Returns:
            (K, m), real or complex as s is; the branch is continuous and real on the real axis.
            +inf where it does not exist.

        Raises:
            ValueError: if a point is not finite or its real part not above -½, or the temperature
                is not finite and positive.
        """
        s = self._like(s)
        if s.ndim not in (1, 2) or (s.ndim == 2 and s.shape[1] != len(self)):
            raise ValueError(
                f"s must have shape (orders,) or (orders, {len(self)}), got {tuple(s.shape)}"
            )
        finite_s = validate.finite("s", s)
        if not bool((finite_s.real > -0.5).all()):
            raise ValueError(f"s must have a real part above -1/2, got {s.real.min().item()}")
        value = self._per_order(s, temperature)
        missing = value.real == math.inf
        return value.mul_(s if s.ndim == 2 else s.unsqueeze(-1)).masked_fill_(missing, math.inf)

    def log_mgf_for_inversion(self, temperature: float = 1.0) -> Callable[[Tensor], Tensor]:
        """Return :meth:`log_mgf` as a function of s, Re s > 0, to 1e-13 of 1 + |log M|.

        Several times as fast; `Inversion` allows for its error.
        """
        tau = validate.positive("temperature", temperature)
        if self.r.shape[1] > _WIDEST:
            return partial(self.log_mgf, temperature=tau)
        return log_mgf_by_products(self.r, self.b2, tau)

    def hockey_stick(self, epsilon: float, temperature: float = 1.0) -> Tensor:
        """Return ``δ_i(ε) = sup_S P_i(S) - e^ε Q_i(S)``, or a certified upper bound on it.

        The closed form if the covariances agree up to rounding (`equal_covariance`). Otherwise a
        bound that is not below the truth and, for δ from 1e-12 to 1e-3, within 1 % of it, or 2 %
        for ε below 0 (`hockey_stick_bound`).

        Args:
            epsilon: ε.
            temperature: τ > 0.

        Returns:
            (m,).

        Raises:
            ValueError: if ε is not finite, or the temperature not finite and positive.

        >>> pairs = GaussianPairs(torch.tensor([[1.0], [1.1]]), torch.tensor([[1.0], [1.0]]))
        >>> pairs.hockey_stick(1.0)
        tensor([0.1269, 0.1354], dtype=torch.float64)
        """
        tau = validate.positive("temperature", temperature)
        delta = equal_covariance(self.b2.sum(-1) / tau, epsilon)
        spread = (self.r - 1).abs().amax(-1)
        unequal = (spread > 8 * self.r.shape[1] * torch.finfo(self.r.dtype).eps).nonzero()[:, 0]
        pairs = GaussianPairs(self.r[unequal], self.b2[unequal] / tau)
        delta[unequal] = hockey_stick_bound(
            lambda rows: pairs.select(rows).log_mgf_for_inversion(), len(pairs), epsilon
        ).to(delta)
        return delta

    def _like(self, value: Tensor) -> Tensor:
        dtype = torch.complex128 if value.is_complex() else torch.float64
        return value.to(self.r.device, dtype)

    def _per_order(self, s: Tensor, temperature: float) -> Tensor:
        """Return ``log M(s)/s = D_{s+1}``, see :mod:`bdpvi.bayesian.accounting.log_moments`."""
        tau = validate.positive("temperature", temperature)
        return divergences(s.unsqueeze(-1) if s.ndim == 1 else s, self.r, self.b2 / tau)


def summarise(p: Distribution, q: Distribution) -> GaussianPairs:
    """Return the numbers that determine every divergence of p from q.

    Diagonal pairs need no decomposition, other pairs one symmetric eigenproblem (d, d) each.

    Args:
        p: Normal, Independent Normal, MultivariateNormal or LowRankMultivariateNormal. A plain
            Normal is a batch of Gaussians over one variable.
        q: as p; the two batch shapes broadcast, so one posterior can be paired with m neighbours.

    Returns:
        The pairs, flattened to (m, d); m = 1 for two single Gaussians.

    Raises:
        ValueError: if p or q is not Gaussian, has a value that is not finite or a covariance that
            is not positive definite, or if their dimensions or batches do not match.

    >>> p = MultivariateNormal(torch.zeros(2), torch.eye(2))
    >>> q = Independent(Normal(torch.zeros(3, 2), 2.0 * torch.ones(3, 2)), 1)
    >>> summarise(p, q).r
    tensor([[0.2500, 0.2500],
            [0.2500, 0.2500],
            [0.2500, 0.2500]], dtype=torch.float64)
    """
    one, two = _check_gaussians("p", p), _check_gaussians("q", q)
    if one.mean.shape[-1] != two.mean.shape[-1]:
        raise ValueError(f"q has dimension {two.mean.shape[-1]}, p has {one.mean.shape[-1]}")
    try:
        batch = torch.Size(np.broadcast_shapes(one.mean.shape[:-1], two.mean.shape[:-1]))
    except ValueError:
        raise ValueError(
            f"q has batch shape {tuple(two.mean.shape[:-1])}, p has {tuple(one.mean.shape[:-1])}"
        ) from None
    one, two = one.flat(batch), two.flat(batch)
    if one.is_diagonal and two.is_diagonal:
        r = (one.scale / two.scale).square()
        b2 = ((one.mean - two.mean) / two.scale).square()
        return GaussianPairs(r, b2.expand_as(r))
    difference = (one.mean - two.mean).unsqueeze(-1)

    def decompose(rows: slice) -> tuple[Tensor, Tensor]:
        gap = difference[rows]
        count = len(gap)
        factor_p = one.cholesky(rows).expand(count, -1, -1)
        white = torch.linalg.solve_triangular(
            two.cholesky(rows), torch.cat([factor_p, gap], -1), upper=False
        )
        root, mean = white[..., :-1], white[..., -1:]
        r, u = _axes(root)
        return r, (u.mT @ mean).squeeze(-1).square()

    # LAPACK uses one core for a batch of small matrices.
    size = max(1, min(_RECORDS, -(-batch.numel() // torch.get_num_threads())))
    parts = threads.each(decompose, threads.slices(batch.numel(), size))
    return GaussianPairs(*map(torch.cat, zip(*parts, strict=True)))


def _positive_orders(order: Tensor | float) -> Tensor:
    value = validate.finite("order", torch.as_tensor(order, dtype=torch.float64))
    if not bool((value > 0).all()):
        raise ValueError(f"order must be positive, got {value.min().item()}")
    return value


@dataclass(frozen=True, eq=False)
class _Gaussians:
    """Means (..., d) with standard deviations (..., d) or Cholesky factors (..., d, d)."""

    mean: Tensor
    scale: Tensor

    @property
    def is_diagonal(self) -> bool:
        return self.scale.ndim == self.mean.ndim

    def flat(self, batch: torch.Size) -> _Gaussians:
        """Return them with one batch dimension. A single one is not copied."""
        event = self.scale.shape[self.mean.ndim - 1 :]
        if self.mean.shape[:-1].numel() == 1:
            batch = torch.Size([1])
        mean = self.mean.expand(*batch, event[0]).reshape(-1, event[0])
        return _Gaussians(mean, self.scale.expand(*batch, *event).reshape(-1, *event))

    def cholesky(self, rows: slice) -> Tensor:
        """Return Cholesky factors (rows, d, d), or (1, d, d) for a single one."""
        scale = self.scale if len(self.scale) == 1 else self.scale[rows]
        return scale.diag_embed() if self.is_diagonal else scale


def _axes(root: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues and eigenvectors of ``root rootᵀ`` for every root (m, d, d).

    Rounding changes each eigenvalue by about 1e-16 of the largest one, which may destroy the
    smallest, even its sign. It changes singular values by about 1e-16 of the largest singular
    value, and their squares are positive. They take twice as long and are computed only if needed.
    """
    r, u = torch.linalg.eigh(root @ root.mT)
    graded = (r[:, 0] < _GRADED * r[:, -1]).nonzero()[:, 0]
    if len(graded):
        u[graded], singular, _ = torch.linalg.svd(root[graded])
        r[graded] = singular.square()
    return r, u


@singledispatch
def _gaussians(distribution: Distribution) -> _Gaussians:
    raise ValueError(f"not a Gaussian with a known summary: {distribution!r}")


@_gaussians.register
def _(distribution: Normal) -> _Gaussians:
    return _Gaussians(distribution.loc.unsqueeze(-1), distribution.scale.unsqueeze(-1))


@_gaussians.register(Independent)
def _(distribution: Independent[Distribution]) -> _Gaussians:
    base = _gaussians(distribution.base_dist)
    if not base.is_diagonal:
        raise ValueError(f"an Independent needs a Normal inside, got {distribution!r}")
    shape = (*distribution.batch_shape, -1)
    return _Gaussians(base.mean.reshape(shape), base.scale.reshape(shape))


# Two low-rank covariances differ in every direction through their diagonals, so there is no shorter
# summary: use the Cholesky factor (which torch computes through the small capacitance matrix).
@_gaussians.register(MultivariateNormal)
@_gaussians.register(LowRankMultivariateNormal)
def _(distribution: MultivariateNormal | LowRankMultivariateNormal) -> _Gaussians:
    return _Gaussians(distribution.loc, distribution.scale_tril)


def _check_gaussians(name: str, distribution: Distribution) -> _Gaussians:
    try:
        gaussians = _gaussians(distribution)
    except ValueError as error:
        raise ValueError(f"{name} is {error}") from None
    mean = validate.finite(f"the mean of {name}", gaussians.mean.double())
    scale = validate.finite(f"the scale of {name}", gaussians.scale.double())
    roots = scale if gaussians.is_diagonal else scale.diagonal(dim1=-2, dim2=-1)
    if not bool((roots > 0).all()):
        raise ValueError(
            f"{name} must have a positive definite covariance, got {roots.min().item()} on the "
            "diagonal of its square root"
        )
    return _Gaussians(mean, scale)
