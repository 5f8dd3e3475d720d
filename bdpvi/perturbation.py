"""The optimum of every neighbour, from the optimum of the data, with a proven error.

In the coordinates z = (m, y) of :mod:`bdpvi.coordinates` the gradient of a neighbour's ELBO is

    G(z) = g - J z + rest of the data's term + rest of the entropy's ± the record's own term

and the chord iteration z ← z + J⁻¹ G(z) converges in a few steps, as one record hardly changes J.
What would cost a pass over the data for every neighbour is the rest of the data's term. Instead:

- Taylor's polynomial of degree K in z. Its coefficients are moments of the data, formed once; a
  neighbour then costs the same whatever N is. (∂/∂v = ½ ∂²/∂m² makes the derivatives in m and S
  the same symmetric tensors: the data's term is Σ_j Σ_k D_k(j) E (x_jᵀu)^k/k!, u ~ N(m, S).)
- Where that is not certified to be accurate, passes over the data in matrix products, every record
  of the data with a Taylor series of its own.

The certificate: on the segment to the neighbour's optimum the negative Hessian is at least
λ_min(J) - κ, where κ bounds what the step and the record itself can change; a gradient of norm γ
then leaves an error of at most γ/(λ_min(J) - κ), by strong monotonicity. γ includes a bound on all
that the series leave out: the next terms in absolute value, and for what follows
``|v^{k/2} D_k| ≤ ¼ v √(k-2)!`` (:func:`bdpvi.quadrature.derivatives`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bdpvi.coordinates import Coordinates, DiagonalCovariance, FullCovariance, weighted
from bdpvi.monomials import moments, powers, taylor_weights
from bdpvi.narrow import derivatives
from bdpvi.objective import Point, Records, total
from bdpvi.series import changes, heat, left_out

_SERIES = 11
"""Degree of a single record's Taylor series; odd."""
_HIGHER = (3, 4)
"""Degrees of the polynomial that are tried, where they are small enough, after degree 2."""
_COLUMNS = 1024
_ROWS = 256
_ENTRIES = 1 << 26
"""Largest size of a tensor of the polynomial."""
_PARAMETERS = 6000
_STEPS = 20
_SETTLED = 1e-6
"""How little an iteration still moves, relative to the distance, where it ends."""
_FORMS = 9
"""Degree of the terms of the data that bounds take one by one; odd, at most _SERIES."""
_SHARP = (4, 5, 6)
"""Degrees of those that the bounds of a polynomial of degree 3 or 4 sum over the data exactly."""
_ROUNDING = 1e-14
_BENDS = 9
"""Degree of the series that bound the change of J; odd, at most _SERIES - 2."""
_BALL = 1e-6
"""Radius around an approximate optimum in which the certificate looks for the true one."""


@dataclass(frozen=True, eq=False)
class Terms:
    """Records as the expansion sees them, one a column.

    Attributes:
        x: directions in the frame, over the standard deviation of the logit, (d, n).
        e: the features that go with y, (q, n).
        variance: of the logit, (n,).
        slopes: derivatives of the expected log-likelihood in units of that standard deviation.
    """

    x: Tensor
    e: Tensor
    variance: Tensor
    slopes: Tensor

    def __len__(self) -> int:
        return len(self.variance)

    def select(self, columns: Tensor | slice) -> Terms:
        """Return the records in these columns."""
        return Terms(
            self.x[:, columns], self.e[:, columns], self.variance[columns], self.slopes[:, columns]
        )

    def blocks(self, size: int) -> Iterator[Terms]:
        """Iterate over blocks of columns."""
        for start in range(0, len(self), size):
            yield self.select(slice(start, start + size))


@dataclass(frozen=True, eq=False)
class Moves:
    """Where the neighbours' optima are, one a column.

    Attributes:
        m: means, (d, n).
        y: covariances, (q, n).
        error: bound on the distance of (m, y) from the neighbour's optimum, (n,); inf where none
            is proven.
    """

    m: Tensor
    y: Tensor
    error: Tensor

    def select(self, columns: Tensor) -> Moves:
        """Return these columns."""
        return Moves(self.m[:, columns], self.y[:, columns], self.error[columns])

    @classmethod
    def none(cls, parameters: int, of: Terms) -> Moves:
        """Return a place for the moves of these records: nothing is proven yet."""
        z = of.x.new_zeros(parameters, len(of))
        d = len(of.x)
        return cls(z[:d], z[d:], of.variance.new_full((len(of),), math.inf))

    def put(self, columns: Tensor, other: Moves) -> None:
        """Set these columns to those of ``other``."""
        self.m[:, columns], self.y[:, columns] = other.m, other.y
        self.error[columns] = other.error


class Hessian:
    """The negative Hessian J of the ELBO at a point, and how fast it can change around it.

    It takes one pass over the records.
    """

    def __init__(self, point: Point) -> None:
        self.point, self.reduction = point, point.objective.reduction
        d = len(point.mean)
        parameters = 2 * d if point.objective.diagonal else d * (d + 3) // 2
        if parameters > _PARAMETERS:
            raise ValueError(
                f"the guide over {d} variables has {parameters} parameters, more than the "
                f"{_PARAMETERS} that this route can handle"
            )
        kind = DiagonalCovariance if point.objective.diagonal else FullCovariance
        self.coordinates: Coordinates = kind(point)
        self.data: Iterable[Terms] = point.objective.records.each(self.terms)
        frame, precision = self.coordinates.frame, point.objective.precision
        prior = precision * frame.T @ frame
        lengths: list[Tensor] = []

        def pass_over() -> Iterator[tuple[Tensor, ...]]:
            for block in self._blocks():
                lengths.append(_norms(block.x).max())
                yield self._sums(block)

        sums = total(pass_over(), self.reduction)
        in_mean, in_covariance, mm, my, yy, along, around, *self.extra = sums
        #: The part of J that does not come from the data: of the prior and the entropy.
        self.fixed = torch.block_diag(prior, torch.eye(len(yy)).to(prior))
        self.jacobian = self.fixed - torch.cat([torch.cat([mm, my], 1), torch.cat([my.T, yy], 1)])
        self.gradient = torch.cat(
            [
                in_mean - precision * frame.T @ point.mean,
                in_covariance - self.coordinates.vector(prior) + self.coordinates.level,
            ]
        )
        self.least = float(torch.linalg.eigvalsh(self.jacobian)[0])
        self.longest = float(self.reduction.max(torch.stack(lengths).max()))
        spread = map(self.coordinates.spread, around)
        self.bends = [max(float(a), b) for a, b in zip(largest(along), spread, strict=True)]

    def _blocks(self) -> Iterator[Terms]:
        """Iterate over the data in blocks that stay in the processor's cache."""
        for block in self.data:
            yield from block.blocks(_COLUMNS)

    def _sums(self, data: Terms) -> tuple[Tensor, ...]:
        """Return what these records add to the gradient, to J and to the bounds on its change."""
        size, x, e = data.slopes.abs(), data.x, data.e
        weights = [size[2 + k] + size[3 + k] + size[4 + k] for k in range(1, _BENDS + 1)]
        bends = torch.stack([*weights, data.variance / 4])
        return (
            x @ data.slopes[1],
            e @ data.slopes[2],
            (x * data.slopes[2]) @ x.T,
            (x * data.slopes[3]) @ e.T,
            (e * data.slopes[4]) @ e.T,
            weighted(x, bends),
            self.coordinates.growth(x, bends),
        )

    def terms(self, records: Records) -> Terms:
        """Return records, of the data or not, as the expansion sees them."""
        mean, variance = self.point.logit(records)
        x = (records.x @ self.coordinates.frame).T / variance.sqrt().clamp(min=1e-150)
        slopes = derivatives(mean, variance, records.bound, _SERIES + 2)
        return Terms(x, self.coordinates.features(x), variance, slopes)

    def strength(self, move: Tensor, change: Tensor, own: Terms | None = None) -> Tensor:
        """Return a lower bound on the smallest eigenvalue of J between 0, z and what is near z.

        With p and r the components of a unit vector along x_j and e_j, record j changes its
        quadratic form by at most |ΔD_2| p² + 2 |ΔD_3| p r + |ΔD_4| r², and the sum of the three
        |ΔD_n| is bounded by their Taylor series in absolute values.

        Args:
            move, change: norms of m and y, (n,).
            own: the records left out or added, if there are any.
        """
        a = self.longest * (move + _BALL)
        s = math.sqrt(2) * (change + _BALL)
        beyond = sum(left_out(a, s, _BENDS, n) for n in (2, 3, 4))
        moves = [*heat(a, s, _BENDS)[1:], beyond]
        bent = sum(bend * by for bend, by in zip(self.bends, moves, strict=True))
        bent += (1 - s).clamp(min=0.01) ** -2 - 1
        if own is not None:
            a = torch.maximum(a, _norms(own.x) * (move + _BALL))
            size = own.slopes.abs()
            d2, d3, d4 = (
                sum(size[n + k] * h for k, h in enumerate(heat(a, s, _BENDS)))
                + left_out(a, s, _BENDS, n) * own.variance / 4
                for n in (2, 3, 4)
            )
            bent += torch.maximum(
                (d2 + d3) * own.x.square().sum(0), (d3 + d4) * own.e.square().sum(0)
            )
        return torch.where(s < 0.5, self.least - bent, -math.inf)


class Expansion(Hessian):
    """The ELBO of neighbours near the maximum of the ELBO of the data.

    Args:
        point: that maximum.
        tolerance: norm of the gradient that a fit of the neighbour itself may leave. Twice that is
            added to what is proven, for this and for rounding.

    Attributes:
        degrees: of the polynomials there are, from the cheapest to the most accurate.
        count: number of records.
        typical: mean distance that a record moves the optimum, to first order.
    """

    def __init__(self, point: Point, tolerance: float = 0.0) -> None:
        super().__init__(point)
        self.slack = 2 * tolerance * self.coordinates.stretch
        self.inverse = torch.linalg.inv(self.jacobian)
        quadratic, shares, left, (count, distance) = self.extra
        d = len(self.coordinates.frame)
        self.tensors = {2: quadratic * taylor_weights(d, 2).to(quadratic)}
        # Sums of v/4 that what series leave out is multiplied by, and of the size of every term.
        self.totals = float(shares[0]), float(shares[1])
        self.sizes = dict(zip(range(3, _FORMS + 1), left.tolist(), strict=True))
        self.forms: dict[int, tuple[Tensor, Tensor]] = {}
        self.count, self.typical = int(count), float(distance / count)
        most = min(self.count // 8, _ENTRIES // len(self.jacobian))
        higher = [k for k in _HIGHER if math.comb(d + k - 1, k) <= most]
        self.degrees = (2, *higher)

    def _sums(self, data: Terms) -> tuple[Tensor, ...]:
        """Return also what the polynomial of degree 2 and its bounds need."""
        norm, size = _norms(data.x), _norms(data.e)
        slopes, v = data.slopes.abs(), data.variance / 4
        lengths = torch.stack([torch.ones_like(norm), norm * slopes[1]])
        left = [norm * slopes[n + 1] + size * slopes[n + 2] for n in range(3, _FORMS + 1)]
        return (
            *super()._sums(data),
            _coefficients(data, 2) @ powers(data.x, 2)[1].T,
            torch.stack([norm @ v, size @ v]),
            torch.stack(left).sum(1),
            lengths.sum(1),
        )

    def prepare(self, degree: int) -> None:
        """Make what the polynomial of this degree needs, by a pass over the data."""
        if degree in self.tensors:
            return
        d = len(self.coordinates.frame)
        first = not self.forms

        def sums(data: Terms) -> tuple[Tensor, ...]:
            tensor = _coefficients(data, degree) @ powers(data.x, degree)[-1].T
            if not first:
                return (tensor,)
            norm, size, slopes = _norms(data.x), _norms(data.e), data.slopes.abs()
            pairs = powers(data.x, 2)[1] * (2 * taylor_weights(d, 2)).to(data.x).unsqueeze(1)
            forms = []
            for n in _SHARP:
                weight = norm * slopes[n + 1] + size * slopes[n + 2]
                forms += [(pairs * weight) @ pairs.T, 4 * (data.e * weight) @ data.e.T]
            return (tensor, *forms)

        tensor, *forms = total(map(sums, self._blocks()), self.reduction)
        self.tensors[degree] = tensor * taylor_weights(d, degree).to(tensor)
        if first:
            self.forms = dict(zip(_SHARP, zip(forms[::2], forms[1::2], strict=True), strict=True))

    def solve(
        self, neighbours: Terms, sign: float, degree: int = 2, near: Moves | None = None
    ) -> Moves:
        """Return the optima with ``sign`` times one of ``neighbours`` added each.

        Args:
            neighbours: the records.
            sign: 1 or -1.
            degree: of the data's polynomial, one of ``degrees`` that was prepared.
            near: what the degree before found, if this is not the first.
        """
        z = neighbours.x.new_zeros(len(self.jacobian), len(neighbours))
        if near is not None:
            z = torch.cat([near.m, near.y])
        # Of degree 4 and above the terms are too small to be worth another round.
        if degree < 4:
            z = self._settle(z, self._high(z, degree), neighbours, sign)
        gradient = self._low(z) + self._high(z, degree) + self._rest(z, neighbours, sign)
        gradient -= self.jacobian @ z
        return self._certify(z, gradient, neighbours, self._polynomial_left_out(z, degree))

    def rough(self, moves: Moves, precision: float) -> Tensor:
        """Return the columns that are not proven to ``precision``, see :class:`bdpvi.Optimum`."""
        distance = _norms(moves.m).clamp(min=self.typical)
        allowed = precision * distance + 2 * self.slack / self.least
        return (~(moves.error <= allowed)).nonzero()[:, 0]

    def _settle(self, z: Tensor, high: Tensor | float, own: Terms, sign: float) -> Tensor:
        """Return where the iteration ends with these terms of degree 3 and above, column by column.

        A column stops when it has settled, so that it does not depend on those it is solved with.
        """
        z, moving = z.clone(), torch.arange(len(own), device=z.device)
        for _ in range(_STEPS):
            here = z[:, moving]
            more = high if isinstance(high, float) else high[:, moving]
            new = self.inverse @ (self._low(here) + more + self._rest(here, own, sign))
            z[:, moving] = new
            step = _norms(new - here) - _ROUNDING
            still = step > _SETTLED * _norms(new)
            if not bool(still.any()):
                break
            if not bool(still.all()):
                moving, own = moving[still], own.select(still)
        return z

    def refine(self, neighbours: Terms, sign: float, moves: Moves) -> Moves:
        """Return better optima, with better bounds, by one pass over the data.

        All workers must call it together, each with neighbours of its own or with none.
        """
        own = torch.cat([moves.m, moves.y])
        counts = self.reduction.join(torch.tensor([len(neighbours)], device=own.device)).tolist()
        data, left_out = self._data(self.reduction.join(own.T.contiguous()).T)
        first = sum(counts[: self.reduction.rank])
        mine = slice(first, first + len(neighbours))
        gradient = data[:, mine] - self.fixed @ own + self._rest(own, neighbours, sign)
        return self._certify(own, gradient, neighbours, left_out[mine])

    def _certify(self, z: Tensor, gradient: Tensor, own: Terms, left: Tensor) -> Moves:
        """Take a step and bound the error after it; ``left`` bounds the error of the gradient."""
        d = len(own.x)
        step = self.inverse @ gradient
        new = z + step
        move, change = _norms(z[:d]), _norms(z[d:])
        strength = self.strength(
            torch.maximum(move, _norms(new[:d])),
            torch.maximum(change, _norms(new[d:])),
            own,
        )
        norm, size, v = _norms(own.x), _norms(own.e), own.variance / 4
        left = left + _left_out(norm * move, math.sqrt(2) * change, _SERIES, norm * v, size * v)
        # In G(z + step) = G(z) - J step + (J - J') step the first two terms cancel.
        left += (self.least - strength) * _norms(step)
        error = (left + self.slack) / strength
        proven = (strength > 0.05) & (error <= _BALL)
        return Moves(new[:d], new[d:], torch.where(proven, error, math.inf))

    def _rest(self, z: Tensor, own: Terms, sign: float) -> Tensor:
        """Return G(z) without what depends on the move and the data."""
        d = len(own.x)
        a, s = (own.x * z[:d]).sum(0), 2 * (own.e * z[d:]).sum(0)
        first, second = changes(own.slopes, a, s, _SERIES)
        total = self.gradient.unsqueeze(1).repeat(1, len(own))
        total[:d] += sign * (own.slopes[1] + first) * own.x
        total[d:] += sign * (own.slopes[2] + second) * own.e
        total[d:] += self.coordinates.entropy(z[d:])
        return total

    def _low(self, z: Tensor) -> Tensor:
        """Return the terms of degree 2 in m alone; those of degree 1 and 2 in y are in J."""
        return self.tensors[2] @ powers(z[: len(self.coordinates.frame)], 2)[1]

    def _high(self, z: Tensor, degree: int) -> Tensor | float:
        """Return the terms of degree 3 and above of the data's polynomial."""
        if degree < 3:
            return 0.0
        d, high = len(self.coordinates.frame), torch.zeros_like(z)
        expected = moments(z[:d], self.coordinates.matrix(z[d:]), degree)
        for k in range(3, degree + 1):
            high.addmm_(self.tensors[k], expected[k - 1])
        return high

    def _polynomial_left_out(self, z: Tensor, degree: int) -> Tensor:
        """Bound what the polynomial leaves out of the gradient: the further terms up to degree 9
        in absolute value, then :func:`~bdpvi.series.left_out`.

        |x_jᵀm| and |2 e_jᵀy| are at most a and s, so the term of degree n is at most h_n(a, s)
        times a sum of the data. That is all that degree 2 needs, as where it is used moves are
        tiny. For a higher one the first of the terms are bounded more sharply: in a term of degree
        n > 3, |a_j|^{n-2b} s_j^b is at most a_j⁴, a_j² s_j or s_j² times powers of a and s; those
        three are summed over the data exactly, a_j² s_j by Cauchy-Schwarz.
        """
        d = len(self.coordinates.frame)
        monomials, y = powers(z[:d], 2)[1], z[d:]
        a, s = self.longest * _norms(z[:d]), math.sqrt(2) * _norms(y)
        bound = _left_out(a, s, _FORMS, *self.totals)
        crude = heat(a, s, _FORMS)
        for n in range(degree + 1, _FORMS + 1):
            if n not in self.forms or degree < 3:
                bound += self.sizes[n] * crude[n]
                continue
            quartic, quadratic = self.forms[n]
            fourth = ((quartic @ monomials) * monomials).sum(0).clamp(min=0)
            second = ((quadratic @ y) * y).sum(0).clamp(min=0)
            bound += a ** (n - 4) * fourth / math.factorial(n)
            bound += a ** (n - 4) * (fourth * second).sqrt() / (2 * math.factorial(n - 2))
            for b in range(2, n // 2 + 1):
                share = s ** (b - 2) * a ** (n - 2 * b)
                bound += second * share / (2**b * math.factorial(b) * math.factorial(n - 2 * b))
        return bound

    def _data(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the data add to the gradient, summed over their own series, and its error."""
        d, added = len(self.coordinates.frame), torch.zeros_like(z)
        a, s = torch.zeros_like(z[0]), torch.zeros_like(z[0])
        for data in self.data:
            for block in data.blocks(_ROWS):
                shift, grow = block.x.T @ z[:d], 2 * block.e.T @ z[d:]
                first, second = changes(block.slopes.unsqueeze(2), shift, grow, _SERIES)
                added[:d] += block.x @ first
                added[d:] += block.e @ second
                a = torch.maximum(a, shift.abs().amax(0))
                s = torch.maximum(s, grow.abs().amax(0))
        a, s = self.reduction.max(a), self.reduction.max(s)
        return self.reduction.sum(added), _left_out(a, s, _SERIES, *self.totals)


def largest(matrices: Tensor) -> Tensor:
    """Return the largest eigenvalue of every symmetric matrix (k, d, d)."""
    values: Tensor = torch.linalg.eigvalsh(matrices)
    return values[:, -1]


def _norms(columns: Tensor) -> Tensor:
    # Several times as fast as torch's norm over a leading dimension.
    return columns.square().sum(0).sqrt_()


def _coefficients(data: Terms, degree: int) -> Tensor:
    """Return what a record's monomials of this degree are multiplied by in the gradient."""
    return torch.cat([data.x * data.slopes[degree + 1], data.e * data.slopes[degree + 2]])


def _left_out(
    a: Tensor, s: Tensor, degree: int, in_mean: Tensor | float, in_covariance: Tensor | float
) -> Tensor:
    """Return what series of D_1 and D_2 leave out, for records with these sums of v/4."""
    return in_mean * left_out(a, s, degree, 1) + in_covariance * left_out(a, s, degree, 2)
