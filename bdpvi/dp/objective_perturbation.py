"""Objective perturbation: the mode of a logistic regression whose log density has a random slope.

The noise enters once, before the search for the maximum, and what it costs does not depend on how
the maximum is found: :mod:`bdpvi.accounting.objective_perturbation` has the price and its proof.
Sources: Chaudhuri, Monteleoni and Sarwate (2011); Kifer, Smith and Thakurta (2012); Redberg,
Koskela and Wang (2023).

**Constants.** A record with features x, ‖x‖ = r ≤ R, adds f(a) = −log p(y | a), a = ± xᵀw, to the
objective. For the clipped likelihood (:class:`~bdpvi.models.logistic.ClippedBernoulli`) −f′ is
p = min(σ(−a), C/r): never negative, falling in a (so f is convex), Lipschitz with one kink. So the
gradient's norm is t = pr ≤ min(C, r), and f″r² is 0 beyond the kink, p(1 − p)r² = t(r − t)
elsewhere. That grows with r, and in t up to r/2: with L = min(C, R) it is at most
β = L(R − L) if 2L ≤ R, else R²/4. The intercept is one of the weights: its column is part of x and
the prior's precision 1/s² part of λ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bdpvi._runtime import secure, validate
from bdpvi.accounting.objective_perturbation import LAST, ObjectivePerturbationAccountant
from bdpvi.accounting.worst_case import guarantee
from bdpvi.dp.noise import Run, Streams
from bdpvi.models.logistic import BayesianLogisticRegression, likelihood_slope
from bdpvi.types import Dataset, Outcome


@dataclass(frozen=True, kw_only=True)
class ObjectivePerturbationSettings:
    """What the price of objective perturbation depends on, besides the model's clip and prior.

    Args:
        radius: R; longer rows of the design matrix, the column of ones among them, are shortened to
            this norm.
        share: ρ, how ε is split. The prior is made narrower than the model's until the
            determinant's part c of ε is at most ρ over the noise multiplier; at δ = 1e-5 the noise
            costs 2.5 (ε = 0.01) to 4 (ε = 1) over it.
        tolerance: τ, the gradient's norm at which the search ends, over the noise's standard
            deviation.
    """

    radius: float = 2.0
    share: float = 0.2
    tolerance: float = 1e-9

    def __post_init__(self) -> None:
        for name in ("radius", "share", "tolerance"):
            validate.positive(name, getattr(self, name))

    def accountant(self, model: BayesianLogisticRegression) -> ObjectivePerturbationAccountant:
        """Return the accountant for this model."""
        curvature = largest_curvature(model.clip, self.radius)
        return ObjectivePerturbationAccountant(curvature, model.prior_scale**-2, self.share)


def largest_gradient(clip: float | None, radius: float) -> float:
    """Return L, the largest norm of a record's gradient; see the module.

    Args:
        clip: C, None for none.
        radius: R.
    """
    return radius if clip is None else min(clip, radius)


def largest_curvature(clip: float | None, radius: float) -> float:
    """Return β, the largest eigenvalue of a record's second derivative; see the module.

    >>> largest_curvature(0.5, 2.0), largest_curvature(None, 2.0)
    (0.75, 1.0)
    """
    t = min(largest_gradient(clip, radius), radius / 2)
    return t * (radius - t)


def objective_perturbation_runs(
    model: BayesianLogisticRegression,
    data: Dataset,
    *,
    runs: Sequence[Run],
    settings: ObjectivePerturbationSettings | None = None,
    delta: float = 1e-5,
) -> tuple[Outcome, ...]:
    """Return private modes of logistic regression's posterior, and their exact prices.

    Args:
        model: logistic regression, clipped or not. N(0, I/λ) takes the place of its prior where
            ``settings.share`` asks for a narrower one.
        data: N records.
        runs: one or more, solved side by side. The noise multiplier is the slope's standard
            deviation σ over L; :func:`bdpvi.accounting.worst_case.calibrate` with
            ``settings.accountant(model)``, ``rate=1`` and ``steps=1`` finds it for an ε.
        settings: radius, split and tolerance.
        delta: δ of the price.

    Returns:
        For each run the weights, {"w": (1, d)}, and the price; None without noise.

    Raises:
        ValueError: if an argument is out of range.
        FloatingPointError: if rounding keeps a search from its tolerance.

    >>> from bdpvi import datasets
    >>> data = datasets.load_breast_cancer().train
    >>> model = BayesianLogisticRegression(clip=0.5, prior_scale=0.3)
    >>> runs = [Run(noise_multiplier=5.0)]
    >>> (outcome,) = objective_perturbation_runs(model, data, runs=runs)
    >>> outcome.latents["w"].shape, round(outcome.price.epsilon, 4)
    (torch.Size([1, 30]), 0.7656)
    """
    settings = settings or ObjectivePerturbationSettings()
    model.check(data)
    objective = Objective(model, data, settings.radius)
    dim, bound = objective.signed.shape[1], largest_gradient(model.clip, settings.radius)
    accountant = settings.accountant(model)
    streams = Streams(runs, data.to("cpu"), steps=1, rate=1.0)
    noise = streams.noisy(data.x.new_zeros(len(runs), dim).cpu().double(), bound)
    multipliers = [run.noise_multiplier for run in runs]
    ridge = noise.new_tensor([accountant.ridge_at(m) for m in multipliers])
    # λ‖w − m‖²/2 is λ‖w‖²/2 and the slope −λm, up to a constant.
    noise = noise + ridge.unsqueeze(1) * model.departure(torch.zeros_like(noise))
    end = noise.new_tensor([settings.tolerance * bound * (m or 1.0) for m in multipliers])
    parts = zip(*(t.split(_TOGETHER) for t in (ridge, noise, end)), strict=True)
    w = torch.cat([objective.minima(*part) for part in parts])
    # The slope is on a lattice: one of real numbers is at most a quarter of the slack away.
    slack = end.new_tensor([secure.sum_slack(bound * m, dim) / 4 for m in multipliers])
    apart = 2 * ((end + slack) / ridge).unsqueeze(1)
    w = streams.noisy(w, apart, streams.noise_multiplier / LAST).to(data.x)
    return tuple(
        Outcome({"w": w[i : i + 1]}, guarantee(accountant, m, 1.0, 1, delta, streams.rounding))
        for i, m in enumerate(multipliers)
    )


_TOGETHER = 64
"""Searches side by side: each keeps a matrix of its own and a number for every record."""
_MOST = 500
_SHORTEST = 2.0**-40


class Objective:
    """The negative log-likelihood of all records, in float64 on the CPU.

    Args:
        model: logistic regression.
        data: its records.
        radius: R.
    """

    def __init__(self, model: BayesianLogisticRegression, data: Dataset, radius: float) -> None:
        design = model.design(data.x.detach().cpu().double())
        norms = torch.linalg.vector_norm(design, dim=1, keepdim=True)
        design = design * (radius / norms).clamp(max=1)
        self.signed = (2 * data.y.detach().cpu().double() - 1).unsqueeze(1) * design
        self.bound = model.slope_bound(design)

    def gradient(self, w: Tensor) -> Tensor:
        """Return the gradient at each row of ``w``, (R, d)."""
        gradient: Tensor = -likelihood_slope(w @ self.signed.T, self.bound) @ self.signed
        return gradient

    def curvature(self, w: Tensor) -> Tensor:
        """Return the second derivative at one w, (d, d)."""
        p = torch.sigmoid(-self.signed @ w)
        weights = torch.where(p < self.bound, p * (1 - p), 0.0)
        second: Tensor = (self.signed * weights.unsqueeze(1)).T @ self.signed
        return second

    def minima(self, ridge: Tensor, slope: Tensor, tolerance: Tensor) -> Tensor:
        """Return the minima of objective + λ‖w‖²/2 + bᵀw, one for each row.

        Newton's method from 0, each row with the second derivative of some earlier step, of the
        last one where that did not halve the gradient. A step is halved until the derivative
        along it has not changed its sign, so that by convexity the objective falls by half as much
        as it can along the step, or until the gradient is half of the smallest so far.

        Args:
            ridge: λ, (R,).
            slope: b, (R, d).
            tolerance: τ, (R,). The search ends at half of it; the other half is for rounding.

        Raises:
            FloatingPointError: if there is no progress any more.
        """
        w, eye = torch.zeros_like(slope), torch.eye(slope.shape[1], dtype=slope.dtype)
        factor = torch.linalg.cholesky(self.curvature(w[0]) + ridge[:, None, None] * eye)
        gradient = self.gradient(w) + slope
        least = torch.linalg.vector_norm(gradient, dim=1)
        for _ in range(_MOST):
            rows = (least > tolerance / 2).nonzero()[:, 0]
            if len(rows) == 0:
                return w
            step = -torch.cholesky_solve(gradient[rows].unsqueeze(2), factor[rows]).squeeze(2)
            length, open_ = torch.ones(len(rows), dtype=w.dtype), torch.arange(len(rows))
            halved = torch.zeros(len(rows), dtype=torch.bool)
            while len(open_):
                at = rows[open_]
                there = w[at] + length[open_, None] * step[open_]
                new = self.gradient(there) + ridge[at, None] * there + slope[at]
                norm = torch.linalg.vector_norm(new, dim=1)
                halved[open_] = norm <= least[at] / 2
                good = halved[open_] | ((new * step[open_]).sum(1) <= 0)
                w[at[good]], gradient[at[good]] = there[good], new[good]
                least[at[good]] = torch.minimum(least[at[good]], norm[good])
                open_ = open_[~good]
                length[open_] /= 2
                if len(open_) and float(length.min()) < _SHORTEST:
                    raise FloatingPointError("tolerance is below what rounding allows")
            for row in rows[~halved].tolist():
                factor[row] = torch.linalg.cholesky(self.curvature(w[row]) + ridge[row] * eye)
        raise FloatingPointError(f"tolerance was not reached in {_MOST} steps")
