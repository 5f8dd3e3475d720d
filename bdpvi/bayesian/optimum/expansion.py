"""The optimum of every neighbour, computed from the data's optimum with a proven error.

In the coordinates z = (m, y) of :mod:`bdpvi.bayesian.optimum.coordinates` the gradient of a
neighbour's ELBO is

    G(z) = g - J z + rest of the data's term + rest of the entropy's ± the record's own term

and the chord iteration z ← z + J⁻¹ G(z) converges in a few steps, as one record hardly changes J.
The rest of the data's term would need a pass over the data for every neighbour. Instead use:

- Taylor's polynomial of degree 3 in z. Its coefficients are moments of the data, formed once; a
  neighbour then costs the same whatever N is. (∂/∂v = ½ ∂²/∂m² makes the derivatives in m and S
  the same symmetric tensors: the data's term is Σ_j Σ_k D_k(j) E (x_jᵀu)^k/k!, u ~ N(m, S).)
- Where that is not certified to be accurate, or costs more, passes over the data in matrix
  products, with each record's own Taylor series or, if that fails, its integrals by quadrature.

The certificate: on the segment to the neighbour's optimum the negative Hessian is at least
λ_min(J) - κ, where κ bounds its change due to the step and the record itself. With a gradient of
norm γ the error is then at most γ/(λ_min(J) - κ), by strong monotonicity. γ includes a bound on the
truncation error of the series: the next terms in absolute value, and for all further terms
``|v^{k/2} D_k| ≤ κ v √(k-2)!`` (:meth:`.PredictorLoss.smoothed`), which
also holds with a weight of at most 1. If λ_min(J) - κ is not clearly positive, the prior bounds the
error, see :meth:`Expansion._by_prior`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bdpvi._ground.progress import Track, silent
from bdpvi._ground.threads import each, slices
from bdpvi.bayesian.optimum.coordinates import (
    Coordinates,
    DiagonalCovariance,
    FullCovariance,
    weighted,
)
from bdpvi.bayesian.optimum.displacements import NUMERICS, Moves, Terms, norm, norms, reach
from bdpvi.bayesian.optimum.elbo import Point
from bdpvi.bayesian.optimum.newton import Steps, settle
from bdpvi.bayesian.optimum.packed import monomials, taylor_weights, third_moments
from bdpvi.bayesian.optimum.series import heat, truncation_bound, truncation_bounds
from bdpvi.bayesian.optimum.sizes import parameters_of, pays
from bdpvi.bayesian.optimum.weighted import Weighted, total


class Expansion:
    """The ELBO of neighbours near the maximum of the ELBO of the data.

    It needs one pass over the records, and another if a tensor of degree 3 is worthwhile.

    Args:
        point: the maximum for the data.
        tolerance: norm of the gradient at which a fit of the neighbour itself may stop. Twice that
            is added to the proven error, for this and for rounding.

    Attributes:
        coordinates: z = (m, y).
        jacobian: J, the negative Hessian of the ELBO.
        tensors: coefficients of the data's polynomial by degree, (p, n): degrees 2 and 3 where they
            cost less than passes over the data, 3 only where it is not negligible.
        columns: best number of neighbours to treat together.
        count: number of records.
        typical: mean distance that a record moves the optimum, to first order.
    """

    def __init__(self, point: Point, tolerance: float = 0.0) -> None:
        self.point, self.tolerance = point, tolerance
        diagonal, d = point.objective.diagonal, len(point.mean)
        parameters = parameters_of(d, diagonal=diagonal)
        self.count = len(point.objective.records)
        self._quadratic = pays(2, d, parameters, self.count)
        self.columns = min(4096, max(256, NUMERICS.cells // parameters))
        self.coordinates: Coordinates = (
            DiagonalCovariance(point) if diagonal else FullCovariance(point)
        )
        self.slack = 2 * tolerance * self.coordinates.stretch
        self.unit = max(norm(torch.linalg.inv(m)) for m in (point.root, self.coordinates.frame))
        self.gain = math.sqrt(2) * self.unit**2 / point.objective.precision
        records = point.objective.records
        self._held = [*map(self._terms, records.rows())] if records.in_memory else None
        lengths: list[tuple[float, float]] = []  # long-lived tensors would fragment the heap

        def sums_of(block: Terms) -> tuple[Tensor, ...]:
            lengths.append((float(norms(block.x).max()), float(norms(block.e).max())))
            return self._sums(block)

        sums = total(each(sums_of, self._blocks(self.columns)))
        gradient, mm, my, yy, along, around, quadratic, totals = sums
        frame, precision = self.coordinates.frame, point.objective.precision
        prior = precision * frame.T @ frame
        # The part of J from the prior and the entropy, not from the data.
        self.fixed = torch.block_diag(prior, torch.eye(len(yy)).to(prior))
        self.jacobian = self.fixed - torch.cat([torch.cat([mm, my], 1), torch.cat([my.T, yy], 1)])
        self.inverse = torch.linalg.inv(self.jacobian)
        self.least = float(torch.linalg.eigvalsh(self.jacobian)[0])
        in_covariance = self.coordinates.level - self.coordinates.vector(prior)
        pull = -precision * frame.T @ point.departure
        self.gradient = gradient + torch.cat([pull, in_covariance])
        longest = torch.tensor(lengths).to(gradient).amax(0).tolist()
        self.longest: float = longest[0]
        # Largest eigenvalues of Σ w x xᵀ and of Σ w e eᵀ, w being bounds on derivatives.
        widest = torch.linalg.eigvalsh(along)[:, -1].tolist()
        spread = [self.coordinates.spread(some) for some in around]
        self.bound_sums = [max(a, b) for a, b in zip(widest, spread, strict=True)]
        # Of degree n, see missed(): w of degree n - 1 has the derivatives n + 1 and n + 2.
        square = self.longest**2 or 1.0  # 1 if all records are 0
        self.sizes = {
            n: max(longest) * max(widest[n - 2] / square, 2 * spread[n - 2])
            for n in range(3, NUMERICS.bends + 1)
        }
        # Sums of κv, factors in the bounds on the series' truncation errors.
        self.totals = float(totals[0]), float(totals[1])
        self.typical = float(totals[2]) / self.count
        self.tensors = {}
        if self._quadratic:
            self.tensors[2] = quadratic * taylor_weights(d, 2).to(quadratic)
        missed = self.sizes[3] * (self.longest * self.typical) ** 3 / 6
        if pays(3, d, parameters, self.count) and missed > NUMERICS.negligible * self.typical:
            self.tensors[3] = self.cubic()

    def _sums(self, data: Terms) -> tuple[Tensor, ...]:
        """Return these records' terms in the gradient, J, the polynomial and the bounds."""
        size, x, e, v = data.slopes.abs(), data.x, data.e, data.curved
        weights = [size[2 + k] + size[3 + k] + size[4 + k] for k in range(1, NUMERICS.bends + 1)]
        bends = torch.stack([*weights, v])
        length, around = norms(x), norms(e)
        typical = (length * size[1] + around * size[2]).sum()
        return (
            data.coefficients(0).sum(1),
            (x * data.slopes[2]) @ x.T,
            (x * data.slopes[3]) @ e.T,
            (e * data.slopes[4]) @ e.T,
            weighted(x, bends),
            self.coordinates.growth(x, bends),
            data.coefficients(2) @ monomials(x, 2).T if self._quadratic else x.new_zeros(0),
            torch.stack([length @ v, around @ v, typical]),
        )

    @property
    def bends(self) -> tuple[float, float]:
        """‖T₃‖ and ‖T₄‖ of a full-rank fit, see :mod:`bdpvi.bayesian.optimum.influence`.

        A change S of the covariance has ‖S‖ = √2 ‖y‖ and is twice that of the root, and the
        gradient in y of tr(MS)/2 is ‖M‖/√2 long.
        """
        d = len(self.point.mean)
        mixed, own = self.jacobian[:d, d:], (self.fixed - self.jacobian)[d:, d:]
        return math.sqrt(2) * norm(mixed), 2 * norm(own)

    def cubic(self) -> Tensor:
        """Return the polynomial's tensor of degree 3, by a pass over the data."""
        d = len(self.point.mean)
        rows = max(64, NUMERICS.cells // math.comb(d + 2, 3))

        def sums(data: Terms) -> tuple[Tensor]:
            return (data.coefficients(3) @ monomials(data.x, 3).T,)

        (tensor,) = total(each(sums, self._blocks(rows)))
        return tensor * taylor_weights(d, 3).to(tensor)

    def _blocks(self, size: int) -> Iterator[Terms]:
        """Iterate over the data in blocks of this size."""
        blocks = self._held or map(self._terms, self.point.objective.records.rows())
        for block in blocks:
            yield from map(block.select, slices(len(block), size)[: len(block)])

    def terms(self, records: Weighted) -> Terms:
        """Return records, in the data or not, in the coordinates of the expansion."""
        if records is self.point.objective.records and self._held:
            return self._held[0]
        return self._terms(records)

    def _terms(self, records: Weighted) -> Terms:
        return Terms.joined(
            list(each(self._block, map(records.select, slices(len(records), 4096))))
        )

    def _block(self, records: Weighted) -> Terms:
        mean, variance = self.point.logit(records)
        x = (records.x @ self.coordinates.frame).T / variance.sqrt().clamp(min=1e-150)
        slopes = records.smoothed(mean, variance, NUMERICS.series + 2)
        e, mark, weight = self.coordinates.features(x), records.mark, records.weight
        return Terms(x, e, mean, variance, mark, weight, slopes, records.loss)

    def strength(self, move: Tensor, change: Tensor, own: Terms) -> Tensor:
        """Return a lower bound on the smallest eigenvalue of J between 0, z and the ball around z.

        With p and r the components of a unit vector along x_j and e_j, record j changes its
        quadratic form by at most |ΔD_2| p² + 2 |ΔD_3| p r + |ΔD_4| r², and the sum of the three
        |ΔD_n| is bounded by their Taylor series in absolute values.

        Args:
            move, change: norms of m and y, (n,).
            own: the records left out or added.
        """
        s, degree = math.sqrt(2) * (change + NUMERICS.ball), NUMERICS.bends

        def series(length: Tensor | float) -> tuple[Tensor, list[Tensor]]:
            moves = heat(length * (move + NUMERICS.ball), s, degree + 1)
            return torch.stack(moves[:-1]), [
                truncation_bound(moves[-1], s, degree, n) for n in (2, 3, 4)
            ]

        moves, beyond = series(self.longest)
        bends = moves.new_tensor(self.bound_sums)
        bent = moves[1:].T @ bends[:-1] + bends[-1] * torch.stack(beyond).sum(0)
        bent += (1 - s).clamp(min=0.01) ** -2 - 1
        length, size = norms(own.x), own.slopes.abs()
        moves, beyond = series(length.clamp(min=self.longest))
        d2, d3, d4 = (
            (size[n : n + len(moves)] * moves).sum(0) + rest * own.curved
            for n, rest in zip((2, 3, 4), beyond, strict=True)
        )
        bent += torch.maximum((d2 + d3) * length.square(), (d3 + d4) * own.e.square().sum(0))
        return torch.where(s < 0.5, self.least - bent, -math.inf)

    def _first(self, own: Terms, sign: float) -> tuple[Tensor, Tensor]:
        """Return the first steps, (p, n), and the gradients at which displacements stay, (n,)."""
        # At 0 there is only the record's own term.
        z = self.inverse @ (self.gradient.unsqueeze(1) + sign * own.coefficients(0))
        return z, NUMERICS.settled * norms(z[: len(own.x)]) + NUMERICS.rounding

    def solve(self, own: Terms, sign: float) -> Moves:
        """Return the optima with one record added or removed each, by the data's polynomial.

        Args:
            own: the records, at most about ``columns``.
            sign: 1 to add a record, -1 to remove it.
        """
        z, enough = self._first(own, sign)
        if not self.tensors:
            return Moves(z[: len(own.x)], z[len(own.x) :], torch.full_like(enough, math.inf))

        def problem(at: Tensor) -> Steps:
            some = own.select(at)

            def falls(z: Tensor) -> Tensor:
                pull: Tensor = self.jacobian @ z - self.polynomial(z) - self._rest(z, some, sign)
                return pull

            return falls, some.newton(self.inverse, sign)

        z, size = settle(problem, z, enough, 0)
        return self._certified(
            z, size + self.truncation_error(z) + self._own_truncation_error(z, own), own
        )

    def solve_all(self, neighbours: Terms, sign: float, track: Track[Any] = silent) -> Moves:
        """Do :meth:`solve` for any number of records."""
        parts = slices(len(neighbours), self.columns)
        found = each(lambda part: self.solve(neighbours.select(part), sign), parts)
        shown = zip(track(parts, "polynomial"), found, strict=True)
        return Moves.joined([moves for _, moves in shown])

    def rough(self, moves: Moves, precision: float) -> Tensor:
        """Return the columns not proven to ``precision``, see :class:`bdpvi.Optimum`."""
        allowed = precision * norms(moves.m).clamp(min=self.typical) + 2 * self.slack / self.least
        # A column whose iteration diverged is infinitely far: relative to that any error is small.
        precise = (moves.error <= allowed) & moves.error.isfinite()
        return (~precise).nonzero()[:, 0]

    def refined(self, own: Terms, sign: float, moves: Moves, precision: float) -> Moves:
        """Return the optima with one record added or removed each, by passes over the data.

        Args:
            own: the records.
            sign: 1 or -1.
            moves: where to begin.
            precision: see :meth:`rough`.
        """
        _, enough = self._first(own, sign)
        z, weak = torch.cat([moves.m, moves.y]), self.strength(norms(moves.m), norms(moves.y), own)
        # With the bound by the prior alone, truncation errors weigh more.
        allowed = torch.where(
            weak <= NUMERICS.strength,
            min(NUMERICS.settled, 0.01 * precision / self.gain),
            NUMERICS.settled,
        )

        def problem(at: Tensor) -> Steps:
            some = own.select(at)

            def falls(z: Tensor) -> Tensor:
                data, _, far = self.exact(z, allowed[at])
                pull: Tensor = self.fixed @ z - data - self._rest(z, some, sign, far)
                return pull

            return falls, some.newton(self.inverse, sign)

        z, _ = settle(problem, z, enough, 0)
        # The series are as long as the farthest column needs: one evaluation gives both numbers.
        data, left, far = self.exact(z, allowed)
        size = norms(self.fixed @ z - data - self._rest(z, own, sign, far)) + left
        size = size + torch.where(far, 0, self._own_truncation_error(z, own))
        moves = self._certified(z, size, own)
        return replace(moves, error=torch.minimum(moves.error, self._by_prior(z, size)))

    def _certified(self, z: Tensor, gradient: Tensor, own: Terms) -> Moves:
        """Return displacements with their errors, by a bound on the norms of the gradients G.

        The bound is by strong monotonicity, valid if the optimum is in the ball of
        :meth:`strength`. (It is, because the gradient on the ball's sphere then points inwards.)
        """
        m, y = z[: len(own.x)], z[len(own.x) :]
        strength = self.strength(norms(m), norms(y), own)
        error = (gradient + self.slack) / strength
        proven = (strength > NUMERICS.strength) & (error <= NUMERICS.ball)
        return Moves(m, y, torch.where(proven, error, math.inf))

    def _by_prior(self, z: Tensor, gradient: Tensor) -> Tensor:
        """Bound the distance of z from the optimum by the norm of the gradient there.

        The negative ELBO is convex in (μ, L), by the prior with the constant 1/s² (Challis and
        Barber 2013), wherever z is. There the gradient is at most (F⁻ᵀG_m, √2 L⁻ᵀG_y (I + S)^½).
        """
        s = math.sqrt(2) * norms(z[len(self.coordinates.frame) :])
        wide = (1 + s).sqrt()
        far = self.gain * wide * (gradient + self.slack)
        return torch.where(s < 0.5, reach(far, wide), math.inf)

    def _own_truncation_error(self, z: Tensor, own: Terms) -> Tensor:
        """Bound the truncation error of the record's own series in the gradient."""
        d, degree, v = len(own.x), NUMERICS.series, own.curved
        length, size, s = norms(own.x), norms(own.e), math.sqrt(2) * norms(z[d:])
        terms = heat(length * norms(z[:d]), s, degree + 1)
        return truncation_bounds(terms, s, degree, length * v, size * v)

    def _rest(self, z: Tensor, own: Terms, sign: float, far: Tensor | None = None) -> Tensor:
        """Return G(z) without terms that depend on both z and the data; ``far`` as in exact()."""
        d = len(own.x)
        a, s = (own.x * z[:d]).sum(0), 2 * (own.e * z[d:]).sum(0)
        columns = z.new_empty(0) if far is None else far.nonzero()[:, 0]
        first, second = own.changes(a, s, NUMERICS.series, columns)
        first.add_(own.slopes[1]).mul_(sign)
        second.add_(own.slopes[2]).mul_(sign)
        rest = torch.cat([own.x * first, own.e * second]).add_(self.gradient.unsqueeze(1))
        rest[d:] += self.coordinates.entropy(z[d:])
        return rest

    def polynomial(self, z: Tensor) -> Tensor:
        """Return the data's polynomial in the gradient, (p, n), without the linear part in J.

        In degree 2 only terms in m occur, as terms in y are linear.
        """
        mean = z[: len(self.coordinates.frame)]
        value = self.tensors[2] @ monomials(mean, 2)
        if 3 in self.tensors:
            covariance = self.coordinates.matrix(z[len(mean) :])
            value.addmm_(self.tensors[3], third_moments(mean, covariance))
        return value

    def _farthest(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Bound |x_jᵀm| and |2 e_jᵀy| for all records."""
        d = len(self.coordinates.frame)
        return self.longest * norms(z[:d]), math.sqrt(2) * norms(z[d:])

    def truncation_error(self, z: Tensor) -> Tensor:
        """Bound the truncation error of the polynomial in the gradient.

        |a_j| = |x_jᵀm| and |s_j| = |2 e_jᵀy| are at most a and s. Every monomial of h_n has at
        least two factors, and Σ w a_j² ≤ a² α/max ‖x‖², where α is the largest eigenvalue of
        Σ w x xᵀ; likewise for s_j, and for a_j s_j by Cauchy and Schwarz. So the terms of degree n
        are at most ``sizes[n]`` times h_n(a, s), less than the sum of all w by about the factor d.
        Higher degrees are bounded by :func:`~bdpvi.bayesian.optimum.series.truncation_bound`.
        """
        a, s = self._farthest(z)
        degree = NUMERICS.bends
        terms = heat(a, s, degree + 1)
        bound = truncation_bounds(terms, s, degree, *self.totals)
        for n in range(max(self.tensors) + 1, degree + 1):
            bound += self.sizes[n] * terms[n]
        return bound

    def exact(
        self, z: Tensor, allowed: Tensor | float = NUMERICS.settled
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the data's term in the gradient by each record's series, its error, and ``far``.

        The series are long enough for an error ``allowed``, relative to the displacement. If none
        is, and s < ½, the integrals are computed by quadrature, and ``far`` is true.
        """
        a, s = self._farthest(z)
        for degree in range(5, NUMERICS.series + 1, 2):
            left = truncation_bounds(heat(a, s, degree + 1), s, degree, *self.totals)
            far = ~(left <= allowed * norms(z)) & (s < 0.5)
            if not bool(far.any()):
                break
        columns = far.nonzero()[:, 0]
        rows = max(64, NUMERICS.cells // 4 // max(1, z.shape[1]))
        sums = each(lambda block: (block.gradient_change(z, degree, columns),), self._blocks(rows))
        (added,) = total(sums)
        return added, torch.where(far, 0, left), far
