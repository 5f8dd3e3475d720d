"""Curvatures of the records' loss, estimated from noisy gradients at noisy locations."""

from __future__ import annotations

import torch
from torch import Tensor

_SIGNAL, _FROM_START = 3.7, 2.8
"""Standard errors from 0 at which a slope counts as measured, and a slope of a line through the
start: about half a percent of random walks get to each."""
_LEAST = 0.15
"""Least eigenvalue of correlations: pairs widen no variance more than sevenfold. Errors of many
pairs together would else make directions of nothing."""


def slopes(moments: Tensor) -> tuple[Tensor, Tensor]:
    """Return each coordinate's curvature by weighted least squares, and its standard error, (d,).

    Latents u vary with the guide's draws and the noise of earlier steps, and gradients of all
    records follow them: g = F (u − w) + noise, with known variances. If F = 0, u is a random walk,
    and the estimate over its standard error has the distribution of Dickey and Fuller,
    "Distribution of the Estimators for Autoregressive Time Series With a Unit Root", 1979.

    Args:
        moments: as in :class:`~bdpvi.programs.course.Course`.

    >>> u, g = torch.tensor([[0.0, 1.0, 2.0]]).double(), torch.tensor([[-1.0, 2.0, 5.0]]).double()
    >>> sums = torch.stack([torch.ones_like(u), u, g, u * u, u * g]).sum(2) / 2  # variance 2
    >>> slopes(sums)  # 3, and √(2/2)
    (tensor([3.], dtype=torch.float64), tensor([1.], dtype=torch.float64))
    """
    weight, u, g, uu, ug = moments
    spread = (uu - u * u / weight).clamp(min=1e-300)
    return (ug - u * g / weight) / spread, spread.rsqrt()


def curvatures(moments: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return each coordinate's curvature, its standard error, and whether it is measured, (d,).

    All steps decide whether it is. An optimum that is far from the start shows by the way there,
    one that is near by a line through the start, which random walks follow less. The curvature is
    that near the optimum unless noise hides it.

    Args:
        moments: as in :class:`~bdpvi.programs.course.Course`.

    >>> late = torch.tensor([[4.0], [0.0], [0.0], [4.0], [40.0]]).double()
    >>> curvatures(torch.stack([late / 2, late]))  # the error is that of the later steps, √(1/4)
    (tensor([10.], dtype=torch.float64), tensor([0.5000], dtype=torch.float64), tensor([True]))
    """
    every = moments.sum(0)
    through_start = torch.stack([every[0], *torch.zeros_like(every[1:3]), *every[3:]])
    slope, error = slopes(through_start)  # without the sums of u and g no intercept is left
    far, near = slopes(every), slopes(moments[1])
    measured = (slope > _FROM_START * error) | (far[0] > _SIGNAL * far[1])
    for other, its in (far, near):
        seen = other > _SIGNAL * its
        slope, error = torch.where(seen, other, slope), torch.where(seen, its, error)
    return slope, error, measured


def correlations(later: Tensor, products: Tensor, slope: Tensor, measured: Tensor) -> Tensor:
    """Return curvatures between latents, in units of their own: R of F = diag(F)^½ R diag(F)^½.

    A guide of independent latents has the variances 1/Fⱼⱼ, which are too small where curvatures act
    on one another; by linear response it is F⁻¹ (Giordano, Broderick and Jordan, "Covariances,
    Robustness, and Variational Bayes", JMLR 2018). A pair's curvature is the mean of two
    coefficients of weighted least squares, of each one's gradient on all latents. Noise alone would
    look like pairs, so they are shrunk as by James and Stein: by τ²/(τ² + their error's variance),
    where τ² is the mean square of all pairs beyond that of their errors. None is left where these
    say it all.

    Args:
        later: sums of 1, u and g and others over steps, weighted by the inverse noise, (5, d).
        products: of uuᵀ and ugᵀ, (2, d, d).
        slope: curvature of each latent, (d,).
        measured: others are left alone, (d,).

    >>> u = torch.tensor([[100.0, 0.0], [-100.0, 0.0], [0.0, 100.0], [0.0, -100.0]]).double()
    >>> g, zero = u @ torch.tensor([[4.0, 3.0], [3.0, 9.0]]).double(), torch.zeros(5, 2).double()
    >>> zero[0] = 4
    >>> sums, both = torch.stack([u.T @ u, u.T @ g]), torch.tensor([True, True])
    >>> correlations(zero, sums, torch.tensor([4.0, 9.0]).double(), both)  # 3/√(4 · 9)
    tensor([[1.0000, 0.5000],
            [0.5000, 1.0000]], dtype=torch.float64)
    """
    (weight, u, g), alone = later[:3], torch.eye(len(slope), dtype=torch.float64)
    spread = products[0] - torch.outer(u, u) / weight[0]
    if torch.linalg.matrix_rank(spread) < len(slope):
        return alone
    inverse = torch.linalg.inv(spread)
    found = inverse @ (products[1] - torch.outer(u, g) / weight[0])  # of gradient j on latent i
    precise = 1 / inverse.diagonal()
    whole = precise.unsqueeze(1) + precise
    unit = slope.clamp(min=1e-300).sqrt()
    units = torch.outer(unit, unit)
    pairs = (found * precise.unsqueeze(1) + found.T * precise) / whole / units
    error = 1 / whole / units**2
    both = torch.outer(measured, measured) & (alone == 0)
    if not bool(both.any()):
        return alone
    beyond = (pairs.square() - error)[both].mean().clamp(min=0.0)
    values, vectors = torch.linalg.eigh(
        alone + torch.where(both, pairs * beyond / (beyond + error), 0.0)
    )
    result: Tensor = (vectors * values.clamp(min=_LEAST)) @ vectors.T
    return result
