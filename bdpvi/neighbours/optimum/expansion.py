"""The optimum of every neighbour, from the optimum of the data, with a proven error.

In the coordinates z = (m, y) of :mod:`bdpvi.neighbours.optimum.coordinates` the gradient of a
neighbour's ELBO is

    G(z) = g - J z + rest of the data's term + rest of the entropy's ± the record's own term

and the chord iteration z ← z + J⁻¹ G(z) converges in a few steps, as one record hardly changes J.
What would cost a pass over the data for every neighbour is the rest of the data's term. Instead:

- Taylor's polynomial of degree 3 in z. Its coefficients are moments of the data, formed once; a
  neighbour then costs the same whatever N is. (∂/∂v = ½ ∂²/∂m² makes the derivatives in m and S
  the same symmetric tensors: the data's term is Σ_j Σ_k D_k(j) E (x_jᵀu)^k/k!, u ~ N(m, S).)
- Where that is not certified to be accurate, passes over the data in matrix products, every record
  of the data with a Taylor series of its own.

The certificate: on the segment to the neighbour's optimum the negative Hessian is at least
λ_min(J) - κ, where κ bounds what the step and the record itself can change; a gradient of norm γ
then leaves an error of at most γ/(λ_min(J) - κ), by strong monotonicity. γ includes a bound on all
that the series leave out: the next terms in absolute value, and for what follows
``|v^{k/2} D_k| ≤ ¼ v √(k-2)!`` (:func:`bdpvi.neighbours.optimum.quadrature.derivatives`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from bdpvi._runtime.progress import Track, silent
from bdpvi._runtime.threads import each, slices
from bdpvi.neighbours.optimum.coordinates import (
    Coordinates,
    DiagonalCovariance,
    FullCovariance,
    weighted,
)
from bdpvi.neighbours.optimum.displacements import NUMERICS, Moves, Terms
from bdpvi.neighbours.optimum.elbo import Point, Records, total
from bdpvi.neighbours.optimum.packed import monomials, taylor_weights, third_moments
from bdpvi.neighbours.optimum.quadrature import derivatives
from bdpvi.neighbours.optimum.series import changes, heat, left_out


class Expansion:
    """The ELBO of neighbours near the maximum of the ELBO of the data.

    It takes one pass over the records, and another one if a tensor of degree 3 is worth forming.

    Args:
        point: that maximum.
        tolerance: norm of the gradient that a fit of the neighbour itself may leave. Twice that is
            added to what is proven, for this and for rounding.

    Attributes:
        coordinates: z = (m, y).
        jacobian: J, the negative Hessian of the ELBO.
        tensors: coefficients of the data's polynomial by degree, (p, n): 2, and 3 where it is
            neither too large nor negligible.
        columns: how many neighbours are best treated together.
        count: number of records.
        typical: mean distance that a record moves the optimum, to first order.
    """

    def __init__(self, point: Point, tolerance: float = 0.0) -> None:
        self.point, self.reduction, self.tolerance = point, point.objective.reduction, tolerance
        diagonal, d = point.objective.diagonal, len(point.mean)
        parameters = 2 * d if diagonal else d * (d + 3) // 2
        if parameters > NUMERICS.parameters:
            raise ValueError(
                f"the guide over {d} variables has {parameters} parameters, more than the "
                f"{NUMERICS.parameters} that this route can handle"
            )
        self.columns = min(4096, max(256, NUMERICS.cells // parameters))
        self.coordinates: Coordinates = (DiagonalCovariance if diagonal else FullCovariance)(point)
        self.slack = 2 * tolerance * self.coordinates.stretch
        self.data: Iterable[Terms] = point.objective.records.each(self._terms)
        lengths: list[Tensor] = []

        def sums_of(block: Terms) -> tuple[Tensor, ...]:
            lengths.append(torch.stack([_norms(block.x).max(), _norms(block.e).max()]))
            return self._sums(block)

        sums = total(each(sums_of, self._blocks(self.columns)), self.reduction)
        gradient, mm, my, yy, along, around, quadratic, totals = sums
        frame, precision = self.coordinates.frame, point.objective.precision
        prior = precision * frame.T @ frame
        # The part of J that does not come from the data: of the prior and the entropy.
        self.fixed = torch.block_diag(prior, torch.eye(len(yy)).to(prior))
        self.jacobian = self.fixed - torch.cat([torch.cat([mm, my], 1), torch.cat([my.T, yy], 1)])
        self.inverse = torch.linalg.inv(self.jacobian)
        self.least = float(torch.linalg.eigvalsh(self.jacobian)[0])
        in_covariance = self.coordinates.level - self.coordinates.vector(prior)
        self.gradient = gradient + torch.cat([-precision * frame.T @ point.mean, in_covariance])
        longest = self.reduction.max(torch.stack(lengths).amax(0)).tolist()
        self.longest: float = longest[0]
        # Largest eigenvalues of Σ w x xᵀ and of Σ w e eᵀ, w being bounds on derivatives.
        widest = torch.linalg.eigvalsh(along)[:, -1].tolist()
        spread = [self.coordinates.spread(some) for some in around]
        self.bends = [max(a, b) for a, b in zip(widest, spread, strict=True)]
        # Of degree n, see missed(): w of degree n - 1 has the derivatives n + 1 and n + 2.
        self.sizes = {
            n: max(longest) * max(widest[n - 2] / self.longest**2, 2 * spread[n - 2])
            for n in range(3, NUMERICS.bends + 1)
        }
        # Sums of v/4 that what series leave out is multiplied by.
        self.totals = float(totals[0]), float(totals[1])
        self.count, self.typical = int(totals[2]), float(totals[3] / totals[2])
        self.tensors = {2: quadratic * taylor_weights(d, 2).to(quadratic)}
        if self._cubic_pays(math.comb(d + 2, 3), parameters):
            self.tensors[3] = self.cubic()

    def _sums(self, data: Terms) -> tuple[Tensor, ...]:
        """Return what these records add to the gradient, to J, to the polynomial and to bounds."""
        size, x, e, v = data.slopes.abs(), data.x, data.e, data.variance / 4
        weights = [size[2 + k] + size[3 + k] + size[4 + k] for k in range(1, NUMERICS.bends + 1)]
        bends = torch.stack([*weights, v])
        norm, around = _norms(x), _norms(e)
        typical = (norm * size[1] + around * size[2]).sum()
        return (
            data.coefficients(0).sum(1),
            (x * data.slopes[2]) @ x.T,
            (x * data.slopes[3]) @ e.T,
            (e * data.slopes[4]) @ e.T,
            weighted(x, bends),
            self.coordinates.growth(x, bends),
            data.coefficients(2) @ monomials(x, 2).T,
            torch.stack([norm @ v, around @ v, v.new_tensor(len(data)), typical]),
        )

    def _cubic_pays(self, columns: int, parameters: int) -> bool:
        """Return whether to form the tensor of degree 3, of this size."""
        fits = columns * parameters <= NUMERICS.entries and columns * NUMERICS.scarce <= self.count
        missed = self.sizes[3] * (self.longest * self.typical) ** 3 / 6
        return fits and missed > NUMERICS.negligible * self.typical

    def cubic(self) -> Tensor:
        """Return the polynomial's tensor of degree 3, by a pass over the data."""
        d = len(self.point.mean)
        rows = max(64, NUMERICS.cells // math.comb(d + 2, 3))

        def sums(data: Terms) -> tuple[Tensor]:
            return (data.coefficients(3) @ monomials(data.x, 3).T,)

        (tensor,) = total(each(sums, self._blocks(rows)), self.reduction)
        return tensor * taylor_weights(d, 3).to(tensor)

    def _blocks(self, size: int) -> Iterator[Terms]:
        """Iterate over the data in blocks of this size."""
        for block in self.data:
            yield from block.blocks(size)

    def terms(self, records: Records) -> Terms:
        """Return records, of the data or not, as the expansion sees them."""
        if records is self.point.objective.records and isinstance(self.data, list):
            return Terms.joined(self.data)
        return self._terms(records)

    def _terms(self, records: Records) -> Terms:
        return Terms.joined(
            list(each(self._block, map(records.select, slices(len(records), 4096))))
        )

    def _block(self, records: Records) -> Terms:
        mean, variance = self.point.logit(records)
        x = (records.x @ self.coordinates.frame).T / variance.sqrt().clamp(min=1e-150)
        slopes = derivatives(mean, variance, records.bound, NUMERICS.series + 2)
        return Terms(x, self.coordinates.features(x), variance, slopes)

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
            return torch.stack(moves[:-1]), [left_out(moves[-1], s, degree, n) for n in (2, 3, 4)]

        moves, beyond = series(self.longest)
        bends = moves.new_tensor(self.bends)
        bent = moves[1:].T @ bends[:-1] + bends[-1] * torch.stack(beyond).sum(0)
        bent += (1 - s).clamp(min=0.01) ** -2 - 1
        length, size = _norms(own.x), own.slopes.abs()
        moves, beyond = series(length.clamp(min=self.longest))
        d2, d3, d4 = (
            (size[n : n + len(moves)] * moves).sum(0) + rest * own.variance / 4
            for n, rest in zip((2, 3, 4), beyond, strict=True)
        )
        bent += torch.maximum((d2 + d3) * length.square(), (d3 + d4) * own.e.square().sum(0))
        return torch.where(s < 0.5, self.least - bent, -math.inf)

    def solve(self, neighbours: Terms, sign: float) -> Moves:
        """Return the optima with ``sign`` times one record each, by the data's polynomial.

        A column stops when it has settled, so that it does not depend on its neighbours in the
        matrix.

        Args:
            neighbours: the records, no more than about ``columns``.
            sign: 1 or -1.
        """
        d = len(neighbours.x)
        # At 0 there is only what the record itself adds.
        z = self.inverse @ (self.gradient.unsqueeze(1) + sign * neighbours.coefficients(0))
        moves = Moves(z[:d], z[d:], z.new_full((len(neighbours),), math.inf))
        moving = torch.arange(len(neighbours), device=z.device)
        for _ in range(NUMERICS.steps):
            own, here = neighbours.select(moving), moves.select(moving)
            z = torch.cat([here.m, here.y])
            gradient = self.polynomial(z) + self._rest(z, own, sign) - self.jacobian @ z
            found, chord = self._certify(z, gradient, own, self.missed(z))
            moves.put(moving, found)
            moving = moving[self._moving(found, chord)]
            if not len(moving):
                break
        return moves

    def solve_all(self, neighbours: Terms, sign: float, track: Track[Any] = silent) -> Moves:
        """Return what :meth:`solve` returns, for any number of records."""
        parts = slices(len(neighbours), self.columns)
        found = each(lambda part: self.solve(neighbours.select(part), sign), parts)
        shown = zip(track(parts, "polynomial"), found, strict=True)
        return Moves.joined([moves for _, moves in shown])

    def rough(self, moves: Moves, precision: float) -> Tensor:
        """Return the columns that are not proven to ``precision``, see :class:`bdpvi.Optimum`."""
        allowed = precision * _norms(moves.m).clamp(min=self.typical) + 2 * self.slack / self.least
        # A column whose iteration diverged is infinitely far away: any error is small beside that.
        return (~((moves.error <= allowed) & moves.error.isfinite())).nonzero()[:, 0]

    def refine(self, neighbours: Terms, sign: float, moves: Moves) -> tuple[Moves, Tensor]:
        """Return better optima, with better bounds, by one pass over the data.

        All workers must call it together, each with neighbours of its own or with none.

        Args:
            neighbours: the records.
            sign: 1 or -1.
            moves: what was found before.

        Returns:
            The optima, and which of them another pass may still improve.
        """
        own = torch.cat([moves.m, moves.y])
        counts = self.reduction.join(torch.tensor([len(neighbours)], device=own.device)).tolist()
        everyone = self.reduction.join(own.T.contiguous()).T
        first = sum(counts[: self.reduction.rank])
        mine = slice(first, first + len(neighbours))
        data, left = self.exact(everyone)
        gradient = data[:, mine] + self._rest(own, neighbours, sign) - self.fixed @ own
        found, chord = self._certify(own, gradient, neighbours, left[mine])
        return found, self._moving(found, chord)

    def _moving(self, found: Moves, chord: Tensor) -> Tensor:
        return chord > NUMERICS.settled * _norms(found.m) + NUMERICS.rounding

    def _certify(
        self, z: Tensor, gradient: Tensor, own: Terms, left: Tensor
    ) -> tuple[Moves, Tensor]:
        """Take a step and bound the error after it; ``left`` bounds the error of the gradient.

        By strong monotonicity, as long as the optimum is in the ball in which :meth:`strength`
        looks for it. (The gradient on its sphere then points inwards, so it is.)

        Returns:
            The optima, and the part of their errors that another step would make smaller.
        """
        d, degree = len(own.x), NUMERICS.series
        step = self.inverse @ gradient
        new = z + step
        move, change = _norms(z[:d]), _norms(z[d:])
        strength = self.strength(
            torch.maximum(move, _norms(new[:d])), torch.maximum(change, _norms(new[d:])), own
        )
        norm, size, v = _norms(own.x), _norms(own.e), own.variance / 4
        s = math.sqrt(2) * change
        left = left + _left_out(heat(norm * move, s, degree + 1), s, degree, norm * v, size * v)
        # In G(z + step) = G(z) - J step + (J - J') step the first two terms cancel.
        chord = (self.least - strength) * _norms(step)
        error = (left + chord + self.slack) / strength
        strong = strength > NUMERICS.strength
        error = torch.where(strong & (error <= NUMERICS.ball), error, math.inf)
        return Moves(new[:d], new[d:], error), torch.where(strong, chord / strength, 0)

    def _rest(self, z: Tensor, own: Terms, sign: float) -> Tensor:
        """Return G(z) without what depends on the move and the data."""
        d = len(own.x)
        a, s = (own.x * z[:d]).sum(0), 2 * (own.e * z[d:]).sum(0)
        first, second = changes(own.slopes, a, s, NUMERICS.series)
        first.add_(own.slopes[1]).mul_(sign)
        second.add_(own.slopes[2]).mul_(sign)
        rest = torch.cat([own.x * first, own.e * second]).add_(self.gradient.unsqueeze(1))
        rest[d:] += self.coordinates.entropy(z[d:])
        return rest

    def polynomial(self, z: Tensor) -> Tensor:
        """Return the data's polynomial in the gradient, (p, n), but for the linear part in J.

        Of degree 2 these are the terms in m alone, as those in y are linear.
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
        return self.longest * _norms(z[:d]), math.sqrt(2) * _norms(z[d:])

    def missed(self, z: Tensor) -> Tensor:
        """Bound what the polynomial leaves out of the gradient.

        |a_j| = |x_jᵀm| and |s_j| = |2 e_jᵀy| are at most a and s. Every monomial of h_n has at
        least two factors, and Σ w a_j² ≤ a² α/max ‖x‖², α being the largest eigenvalue of Σ w x xᵀ;
        for s_j likewise, and for a_j s_j by Cauchy and Schwarz. So the terms of degree n are at
        most ``sizes[n]`` times h_n(a, s). That is less than the sum of all w by about the factor d.
        What follows is bounded by :func:`~bdpvi.neighbours.optimum.series.left_out`.
        """
        a, s = self._farthest(z)
        degree = NUMERICS.bends
        terms = heat(a, s, degree + 1)
        bound = _left_out(terms, s, degree, *self.totals)
        for n in range(max(self.tensors) + 1, degree + 1):
            bound += self.sizes[n] * terms[n]
        return bound

    def exact(self, z: Tensor, allowed: float = NUMERICS.settled) -> tuple[Tensor, Tensor]:
        """Return what the data add to the gradient, summed over their own series, and its error.

        The series are as long as it takes for the error to be ``allowed``, relative to the
        displacement, if they can be.
        """
        d = len(self.coordinates.frame)
        a, s = self._farthest(z)
        for degree in range(5, NUMERICS.series + 1, 2):
            left = _left_out(heat(a, s, degree + 1), s, degree, *self.totals)
            if bool((left <= allowed * _norms(z)).all()):
                break

        def sums(block: Terms) -> tuple[Tensor]:
            shift, grow = block.x.T @ z[:d], 2 * block.e.T @ z[d:]
            first, second = changes(block.slopes.unsqueeze(2), shift, grow, degree)
            return (torch.cat([block.x @ first, block.e @ second]),)

        rows = max(64, NUMERICS.cells // 4 // max(1, z.shape[1]))
        (added,) = total(each(sums, self._blocks(rows)), self.reduction)
        return added, left


def _norms(columns: Tensor) -> Tensor:
    # Several times as fast as torch's norm over a leading dimension.
    return columns.square().sum(0).sqrt_()


def _left_out(
    terms: Sequence[Tensor],
    s: Tensor,
    degree: int,
    in_mean: Tensor | float,
    in_covariance: Tensor | float,
) -> Tensor:
    """Return what series of D_1 and D_2 leave out, for records with these sums of v/4."""
    one, other = (left_out(terms[degree + 1], s, degree, n) for n in (1, 2))
    return in_mean * one + in_covariance * other
