r"""The posterior of a linear mixed model from noisy second moments of rows and their groups.

With z a row's features and 1, β = (w, u), u_g ~ N(0, τ²) the effects of groups, and the weights ω
of rows, the moments are A = Σ ωzzᵀ, S_g = Σ_g ωz, whose last entry is n_g, and t = Σ ωyz, t_g =
Σ_g ωy. So t = Mβ + ε with the matrix M of A, S and n, and Var ε ≤ σ²M (as ω ≤ 1). What is released
has noise of known variance; for one group's n and S it may exceed the truth's spread over the
groups. So these are shrunk to what the groups share by an empirical Bayes prior (Efron and Morris,
JASA 68, 1973), and what stays unknown of them, V, is added to the variance of t, at the posterior's
mean of w and the prior's variance of u. Given τ and σ everything is then normal:

    t̂ ~ N(M(w, 0), Ω), Ω = σ²M + noise + V + τ² M_u M_uᵀ,

which has w and u in closed form (Gelman et al., Bayesian Data Analysis, ch. 15), by a Schur
complement of the diagonal block of groups, O(G d²). τ is integrated over a grid of its marginal
likelihood; σ² is the mean of E(y − zᵀw − u_g)², in which the posterior of u_g and of the group's
sampling error are those of three independent normals with a known noisy sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from bdpvi.models.contract import Prior
from bdpvi.regression.score_posterior import at_least

WHOLE = 300
"""The most weights and effects whose whole covariance is computed."""
_GRID, _REACH = 25, 4.0
"""Values of log τ, and their reach in standard deviations: of its prior at first, then of its
posterior."""
_ROUNDS = 5
"""Repetitions in which w, σ and the unknown of M settle."""
_LEAST = 1e-4
"""The smallest σ², in the square of the target's bound."""


@dataclass(frozen=True, eq=False)
class GroupMoments:
    """Noisy moments, and the standard deviations of their noise.

    Attributes:
        features: A, (p, p), with noise on the diagonal, and 1/√2 of it off it.
        sums: S, (G, p), the last column n.
        products, by_group: t, (p,), and t_g, (G,).
        square: Σ ωy².
        feature_noise, sum_noise, product_noise, group_noise, square_noise: of each of these.
        count_noise: of n.
        relative: what n is in proportion to, as far as is known, (G,); None if nothing is.
        away: the mean square of effects' distance from where the moments were taken, if it is less
            than τ²; an error of n moves t by so much.
    """

    features: Tensor
    sums: Tensor
    products: Tensor
    by_group: Tensor
    square: float
    feature_noise: float
    sum_noise: float
    count_noise: float
    product_noise: float
    group_noise: float
    square_noise: float
    relative: Tensor | None = None
    away: float = math.inf

    @property
    def rows(self) -> float:
        """The noisy number of rows, at least 1."""
        return max(float(self.features[-1, -1]), 1.0)


class Shrunk(NamedTuple):
    """S without most of its noise, (G, p), and the variance that is left in a column, (p,)."""

    sums: Tensor
    variance: Tensor


def shrunk(made: GroupMoments) -> Shrunk:
    """Return the groups' sums, shrunk to what they share: n to its mean, Σ x to the mean of x."""
    counts, size = made.sums[:, -1], made.rows
    relative = torch.ones_like(counts) if made.relative is None else made.relative
    n, left = _shrink(counts, counts.mean() * relative / relative.mean(), made.count_noise)
    columns, variances = [], []
    for at, mean in enumerate((made.features[-1, :-1] / size).tolist()):
        one, rest = _shrink(made.sums[:, at], mean * n, made.sum_noise)
        columns.append(one)
        variances.append(rest)
    sums = torch.stack([*columns, n.clamp(min=0.0)], 1)
    return Shrunk(sums, torch.tensor([*variances, left]).double())


def _shrink(given: Tensor, middle: Tensor, noise: float) -> tuple[Tensor, float]:
    """Return values that are normal around their middles, given them with noise; their variance."""
    away = given - middle
    spread = max(float(away.square().mean()) - noise**2, 0.0)
    share = spread / max(spread + noise**2, 1e-300)
    return middle + share * away, share * noise**2


@dataclass(frozen=True, eq=False)
class MixedPosterior:
    """The posterior of the weights, the groups' effects, and the logarithms of σ and τ.

    Attributes:
        mean: of w and u, (p + G,).
        variances: of each, (p + G,).
        covariance: of all, (p + G, p + G); None if there are more than :data:`WHOLE`.
        log_scale, log_spread: mean and standard deviation.
        near: the standard deviation below which a weight's step to here is short enough for what is
            linear only near a point; 0 if the step was too long.
        uncertain: the mean variance of the intercept and an effect together.
    """

    mean: Tensor
    variances: Tensor
    covariance: Tensor | None
    log_scale: tuple[float, float]
    log_spread: tuple[float, float]
    near: float = math.inf
    uncertain: float = 0.0

    def among(self, seen: Tensor, prior: Prior) -> MixedPosterior:
        """Return the posterior of more weights, (p,), of which the others have their prior."""
        known = torch.cat([seen, seen.new_ones(len(self.mean) - int(seen.sum()))])
        mean = self.mean.new_zeros(len(known))
        mean[: len(seen)] = prior.mean
        variances = prior.sd.square().expand(len(known)).clone()
        whole = None
        if self.covariance is not None:
            whole = variances.diag()
            whole[torch.outer(known, known)] = self.covariance.flatten()
        mean[known], variances[known] = self.mean, self.variances
        return replace(self, mean=mean, variances=variances, covariance=whole)


class _Given(NamedTuple):
    """The posterior given τ and σ.

    Attributes:
        w, cov: mean and covariance of w.
        u, slope: the mean of u at w's, and its derivative in w, (G, p).
        own, turn: the covariance of u given w is diag(own) − turnᵀ turn.
        evidence: ln p(t̂), up to a constant.
    """

    w: Tensor
    cov: Tensor
    u: Tensor
    slope: Tensor
    own: Tensor
    turn: Tensor
    evidence: float

    @property
    def joint(self) -> Tensor:
        """The derivative of w and the mean of u in w, (p + G, p)."""
        return torch.cat([torch.eye(len(self.w), dtype=torch.float64), self.slope])

    @property
    def variances(self) -> Tensor:
        """The variances of w and u, (p + G,)."""
        of_w = (self.joint @ self.cov * self.joint).sum(1)
        of_w[len(self.w) :] += self.own - self.turn.square().sum(0)
        return of_w

    @property
    def uncertain(self) -> float:
        """The mean variance of the last weight, of ones, and u together."""
        both = self.slope.clone()
        both[:, -1] += 1
        left = (both @ self.cov * both).sum(1) + self.own - self.turn.square().sum(0)
        return float(left.mean())

    @property
    def covariance(self) -> Tensor:
        """The covariance of w and u, (p + G, p + G)."""
        made, p = self.joint @ self.cov @ self.joint.T, len(self.w)
        made[p:, p:] += self.own.diag() - self.turn.T @ self.turn
        return made


def _given(
    made: GroupMoments, known: Shrunk, prior: Prior, w: Tensor, tau2: float, sigma2: float
) -> _Given:
    """Return the posterior of w and u given τ² and σ², and the evidence."""
    p, s = len(made.products), known.sums
    n, left = s[:, -1], known.variance
    eye = torch.eye(p, dtype=torch.float64)
    a = at_least(made.features, 1e-3 * made.rows)
    of_a = made.feature_noise**2 / 2 * (w @ w * eye + torch.outer(w, w))
    fixed = sigma2 * a + made.product_noise**2 * eye + of_a
    away = min(made.away, tau2)
    fixed = fixed + len(n) * away * left.diag()
    own = sigma2 * n + made.group_noise**2 + left @ w.square() + left[-1] * away
    block = own + tau2 * n.square()  # of groups, diagonal
    top = fixed + tau2 * s.T @ s
    across = sigma2 * s + tau2 * n[:, None] * s  # (G, p)
    schur = top - (across / block[:, None]).T @ across
    # Of a variance it has at least the noise; noise in A, S and n alone can make it less.
    root = torch.linalg.cholesky(at_least(schur, made.product_noise**2))

    def whiten(upper: Tensor, lower: Tensor) -> Tensor:
        """Return L⁻¹ of the part of (p, …) that does not follow from that of (G, …)."""
        rest = upper - (across / block[:, None]).T @ lower
        found: Tensor = torch.linalg.solve_triangular(root, rest, upper=False)
        return found

    x_top, x_low, spread = whiten(a, s), s, block[:, None]
    y_top, y_low = whiten(made.products[:, None], made.by_group[:, None]), made.by_group[:, None]
    precision = (1 / prior.sd.square()).expand(p).diag()
    information = x_top.T @ x_top + (x_low / spread).T @ x_low + precision
    pull = x_top.T @ y_top + (x_low / spread).T @ y_low + (precision @ prior.mean)[:, None]
    cov = torch.linalg.inv((information + information.T) / 2)
    mean = (cov @ pull)[:, 0]
    r_top, r_low = y_top - x_top @ mean[:, None], y_low - x_low @ mean[:, None]
    rest = s.T - (across / block[:, None]).T * n
    turn = torch.linalg.solve_triangular(root, rest, upper=False)
    u = tau2 * (turn.T @ r_top + (n / block)[:, None] * r_low)[:, 0]
    slope = -tau2 * (turn.T @ x_top + (n / block)[:, None] * x_low)
    away = mean - prior.mean
    quadratic = r_top.square().sum() + (r_low.square() / spread).sum() + away @ precision @ away
    logs = block.log().sum() + 2 * root.diagonal().log().sum() + torch.logdet(information)
    own = tau2 - tau2**2 * n.square() / block
    return _Given(mean, cov, u, slope, own, tau2 * turn, float(-(quadratic + logs) / 2))


def _variance(
    made: GroupMoments, known: Shrunk, found: _Given, tau2: float, sigma2: float
) -> float:
    """Return E Σ (y − zᵀw − u_g)² over the number of rows, given w."""
    w, n, left = found.w, known.sums[:, -1], known.variance
    whole = made.square - 2 * float(w @ made.products) + float(w @ made.features @ w)
    noise = made.group_noise**2 + left @ w.square() + left[-1] * tau2
    total = n.square() * tau2 + sigma2 * n + noise
    rest = made.by_group - known.sums @ w
    u, error = n * tau2 * rest / total, sigma2 * n * rest / total
    square = n * (u.square() + tau2 * (1 - n.square() * tau2 / total))
    both = u * error - n * tau2 * sigma2 * n / total
    return (whole - float((square + 2 * both).sum())) / made.rows


def mixed_posterior(
    made: GroupMoments,
    prior: Prior,
    spread: Prior,
    largest: float,
    given: Callable[[Tensor, float], Tensor] | None = None,
) -> MixedPosterior:
    """Return the posterior; see the module.

    Args:
        made: the moments.
        prior: of w, (p,).
        spread: of log τ.
        largest: the bound of targets.
        given: for scores, where σ is 1: w from its estimate and τ².
    """
    known, middle, sd = shrunk(made), float(spread.mean), float(spread.sd)
    steps = torch.linspace(-_REACH, _REACH, _GRID, dtype=torch.float64)
    at, width = middle, sd
    least = _LEAST * largest**2
    w = torch.zeros_like(made.products)
    sigma2 = max(made.square / made.rows, least) if given is None else 1.0
    for _ in range(_ROUNDS):
        grid, each, sigmas = at + width * steps, [], []
        for log in grid.tolist():
            tau2, own = math.exp(2 * log), sigma2
            for _ in range(2 if given is None else 0):
                one = _given(made, known, prior, w, tau2, own)
                own = max(_variance(made, known, one, tau2, own), least)
            if given is not None:
                one = _given(made, known, prior, w, tau2, own)
                one = one._replace(w=given(one.w, tau2))
            each.append(one)
            sigmas.append(own)
        logs = torch.tensor([one.evidence for one in each]).double()
        weight = torch.softmax(logs - ((grid - middle) / sd).square() / 2, 0)
        w = torch.stack([one.w for one in each]).T @ weight
        sigma2 = float(weight @ torch.tensor(sigmas).double())
        at = float(weight @ grid)
        found = math.sqrt(float(weight @ (grid - at).square()))
        width = min(found + width * float(steps[1] - steps[0]) / 4, sd)
    return _mixed(made, each, weight, grid, torch.tensor(sigmas).double())


def _mixed(
    made: GroupMoments, each: list[_Given], weight: Tensor, grid: Tensor, sigmas: Tensor
) -> MixedPosterior:
    """Return the mixture over τ as one normal."""
    means = torch.stack([torch.cat([one.w, one.u]) for one in each])
    mean, p = weight @ means, len(made.products)
    away = (means - mean) * weight.sqrt()[:, None]
    pairs = [*zip(weight.tolist(), each, strict=True)]
    variances = away.square().sum(0) + sum(share * one.variances for share, one in pairs)
    whole = None
    if len(mean) <= WHOLE:
        whole = away.T @ away + sum(share * one.covariance for share, one in pairs)
    log = float(weight @ grid)
    width = math.sqrt(float(weight @ (grid - log).square()))
    variance = float(weight @ sigmas)
    size = float(mean[:p].square().sum())
    noise = made.square_noise**2 + 4 * size * made.product_noise**2
    noise += (size * made.feature_noise) ** 2
    relative = 2 / made.rows + noise / (made.rows * variance) ** 2
    error = math.sqrt(relative + float(weight @ (sigmas / variance - 1).square())) / 2
    return MixedPosterior(
        mean=mean,
        variances=variances,
        covariance=whole,
        log_scale=(math.log(variance) / 2, error),
        log_spread=(log, width),
        uncertain=sum(share * one.uncertain for share, one in pairs),
    )
