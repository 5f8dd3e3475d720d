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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bdpvi.coordinates import Coordinates, DiagonalCovariance, FullCovariance, largest
from bdpvi.monomials import indices, moments, powers, taylor_weights
from bdpvi.objective import Point, Records
from bdpvi.quadrature import derivatives
from bdpvi.series import changes, heat, left_out

_SERIES = 11
"""Degree of a single record's Taylor series; odd."""
_DEGREES = (4, 3)
"""Degrees of the polynomial; the first that is small enough."""
_COLUMNS = 512
_ROWS = 256
_ENTRIES = 1 << 26
"""Largest size of a tensor of the polynomial."""
_PARAMETERS = 6000
_STEPS = 20
_FORMS = 9
"""Degree of the terms of the data that bounds take one by one; odd, at most _SERIES."""
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

    @classmethod
    def join(cls, blocks: Sequence[Moves]) -> Moves:
        """Return the columns of all blocks."""
        return cls(
            torch.cat([b.m for b in blocks], 1),
            torch.cat([b.y for b in blocks], 1),
            torch.cat([b.error for b in blocks]),
        )

    def select(self, columns: Tensor) -> Moves:
        """Return these columns."""
        return Moves(self.m[:, columns], self.y[:, columns], self.error[columns])

    def put(self, columns: Tensor, other: Moves) -> Moves:
        """Return a copy with the columns of ``other`` in these places."""
        return Moves(
            self.m.index_copy(1, columns, other.m),
            self.y.index_copy(1, columns, other.y),
            self.error.index_copy(0, columns, other.error),
        )


class Hessian:
    """The negative Hessian J of the ELBO at a point, and how fast it can change around it."""

    def __init__(self, point: Point) -> None:
        self.point = point
        d = len(point.mean)
        parameters = 2 * d if point.objective.diagonal else d * (d + 3) // 2
        if parameters > _PARAMETERS:
            raise ValueError(
                f"the guide over {d} variables has {parameters} parameters, more than the "
                f"{_PARAMETERS} that this route can handle"
            )
        kind = DiagonalCovariance if point.objective.diagonal else FullCovariance
        self.coordinates: Coordinates = kind(point)
        self.data = data = self.terms(point.objective.records)
        frame, precision = self.coordinates.frame, point.objective.precision
        prior = precision * frame.T @ frame
        cross = (data.x * data.slopes[3]) @ data.e.T
        #: The part of J that does not come from the data: of the prior and the entropy.
        self.fixed = torch.block_diag(prior, torch.eye(len(data.e)).to(prior))
        self.jacobian = self.fixed - torch.cat(
            [
                torch.cat([(data.x * data.slopes[2]) @ data.x.T, cross], 1),
                torch.cat([cross.T, (data.e * data.slopes[4]) @ data.e.T], 1),
            ]
        )
        self.gradient = torch.cat(
            [
                data.x @ data.slopes[1] - precision * frame.T @ point.mean,
                data.e @ data.slopes[2] - self.coordinates.vector(prior) + self.coordinates.level,
            ]
        )
        self.least = float(torch.linalg.eigvalsh(self.jacobian)[0])
        self.longest = float(data.x.norm(dim=0).max())
        size = data.slopes.abs()
        weights = [size[2 + k] + size[3 + k] + size[4 + k] for k in range(1, _BENDS + 1)]
        self.bends = [
            max(largest(data.x, weight), self.coordinates.spread(data.x, weight))
            for weight in (*weights, data.variance / 4)
        ]

    def terms(self, records: Records) -> Terms:
        """Return records, of the data or not, as the expansion sees them."""
        mean = records.x @ self.point.mean
        variance = (records.x @ self.point.root).square().sum(1)
        x = (records.x @ self.coordinates.frame).T / variance.sqrt().clamp(min=1e-150)
        slopes = derivatives(mean, variance, records.bound, _SERIES + 2)
        return Terms(x, self.coordinates.features(x), variance, slopes)

    def strength(self, m: Tensor, y: Tensor, own: Terms | None = None) -> Tensor:
        """Return a lower bound on the smallest eigenvalue of J between 0, z and what is near z.

        With p and r the components of a unit vector along x_j and e_j, record j changes its
        quadratic form by at most |ΔD_2| p² + 2 |ΔD_3| p r + |ΔD_4| r², and the sum of the three
        |ΔD_n| is bounded by their Taylor series in absolute values.
        """
        a = self.longest * (m.norm(dim=0) + _BALL)
        s = math.sqrt(2) * (y.norm(dim=0) + _BALL)
        beyond = sum(left_out(a, s, _BENDS, n) for n in (2, 3, 4))
        moves = [*heat(a, s, _BENDS)[1:], beyond]
        change = sum(bend * move for bend, move in zip(self.bends, moves, strict=True))
        change += (1 - s).clamp(min=0.01) ** -2 - 1
        if own is not None:
            a = torch.maximum(a, own.x.norm(dim=0) * (m.norm(dim=0) + _BALL))
            size = own.slopes.abs()
            d2, d3, d4 = (
                sum(size[n + k] * h for k, h in enumerate(heat(a, s, _BENDS)))
                + left_out(a, s, _BENDS, n) * own.variance / 4
                for n in (2, 3, 4)
            )
            change += torch.maximum(
                (d2 + d3) * own.x.square().sum(0), (d3 + d4) * own.e.square().sum(0)
            )
        return torch.where(s < 0.5, self.least - change, -math.inf)


class Expansion(Hessian):
    """The ELBO of neighbours near the maximum of the ELBO of the data.

    Args:
        point: that maximum.
        tolerance: norm of the gradient that a fit of the neighbour itself may leave. Twice that is
            added to what is proven, for this and for rounding.
    """

    def __init__(self, point: Point, tolerance: float = 0.0) -> None:
        super().__init__(point)
        self.slack = 2 * tolerance * self.coordinates.stretch
        data, (d, n) = self.data, self.data.x.shape
        sizes = {k: math.comb(d + k - 1, k) for k in _DEGREES}
        most = min(n // 8, _ENTRIES // len(self.jacobian))
        affordable = (k for k in _DEGREES if sizes[k] <= most)
        self.degree = degree = next(affordable, 2)
        self.inverse = torch.linalg.inv(self.jacobian)
        self.tensors = [
            self.jacobian.new_zeros(len(self.jacobian), indices(d, k).shape[1])
            for k in range(2, degree + 1)
        ]
        for block in data.blocks(_COLUMNS):
            for k, monomials in enumerate(powers(block.x, degree)[1:], start=2):
                rows = torch.cat([block.x * block.slopes[k + 1], block.e * block.slopes[k + 2]])
                self.tensors[k - 2] += rows @ monomials.T
        for k, tensor in enumerate(self.tensors, start=2):
            tensor *= taylor_weights(d, k).to(tensor)

        # What the bounds need: sums of fourth powers of x_jᵀm and of squares of 2 e_jᵀy.
        norm, size = data.x.norm(dim=0), data.e.norm(dim=0)
        slopes, v = data.slopes.abs(), data.variance / 4
        self.totals = float((norm * v).sum()), float((size * v).sum())
        pairs = powers(data.x, 2)[1] * (2 * taylor_weights(d, 2)).to(data.x).unsqueeze(1)
        weights = [
            norm * slopes[n + 1] + size * slopes[n + 2] for n in range(degree + 1, _FORMS + 1)
        ]
        self.quartic = [(pairs * w) @ pairs.T for w in weights]
        self.quadratic = [4 * (data.e * w) @ data.e.T for w in weights]

    def solve(self, neighbours: Terms, sign: float) -> Moves:
        """Return the optima with ``sign`` times one of ``neighbours`` added each."""
        z = neighbours.x.new_zeros(len(self.jacobian), len(neighbours))
        high = torch.zeros_like(z)
        for accuracy, degree in ((1e-3, min(3, self.degree)), (1e-6, self.degree)):
            for _ in range(_STEPS):
                step = self.inverse @ (self._low(z) + high + self._rest(z, neighbours, sign))
                z = z + step
                if bool((step.norm(dim=0) <= accuracy * z.norm(dim=0) + _ROUNDING).all()):
                    break
            high = self._high(z, degree)
        gradient = self._low(z) + high + self._rest(z, neighbours, sign)
        return self._certify(z, gradient, neighbours, self._polynomial_left_out(z))

    def refine(self, neighbours: Terms, sign: float, moves: Moves) -> Moves:
        """Return better optima, with better bounds, by one pass over the data."""
        z = torch.cat([moves.m, moves.y])
        data, left_out = self._data(z)
        gradient = data - self.fixed @ z + self._rest(z, neighbours, sign)
        return self._certify(z, gradient, neighbours, left_out)

    def _certify(self, z: Tensor, gradient: Tensor, own: Terms, left: Tensor) -> Moves:
        """Take a step and bound the error after it; ``left`` bounds the error of the gradient."""
        d = len(own.x)
        step = self.inverse @ gradient
        new = z + step
        strength = torch.minimum(
            self.strength(z[:d], z[d:], own), self.strength(new[:d], new[d:], own)
        )
        norm, size, v = own.x.norm(dim=0), own.e.norm(dim=0), own.variance / 4
        a, s = norm * z[:d].norm(dim=0), math.sqrt(2) * z[d:].norm(dim=0)
        left = left + _left_out(a, s, _SERIES, norm * v, size * v)
        # In G(z + step) = G(z) - J step + (J - J') step the first two terms cancel.
        left += (self.least - strength) * step.norm(dim=0)
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
        """Return the terms up to degree 2, of degree 2 those in m alone."""
        products = powers(z[: len(self.data.x)], 2)[1]
        return torch.addmm(self.tensors[0] @ products, self.jacobian, z, alpha=-1)

    def _high(self, z: Tensor, degree: int) -> Tensor:
        """Return the terms of degree 3 and above of the data's polynomial."""
        d, total = len(self.data.x), torch.zeros_like(z)
        expected = moments(z[:d], self.coordinates.matrix(z[d:]), degree)
        for tensor, monomials in zip(self.tensors[1:], expected[2:]):  # noqa: B905
            total.addmm_(tensor, monomials)
        return total

    def _polynomial_left_out(self, z: Tensor) -> Tensor:
        """Bound what the polynomial leaves out of the gradient: the further terms up to degree 9
        in absolute value, then :func:`~bdpvi.series.left_out`.

        In every term of degree n > 3, |a|^{n-2b} s^b is at most a⁴, a² s or s² times powers of the
        largest a and s; those three are summed over the data exactly, a² s by Cauchy-Schwarz.
        """
        d, degree = len(self.data.x), self.degree
        monomials, y = powers(z[:d], 2)[1], z[d:]
        a, s = self.longest * z[:d].norm(dim=0), math.sqrt(2) * y.norm(dim=0)
        total = _left_out(a, s, _FORMS, *self.totals)
        if degree < 3:
            return torch.full_like(total, math.inf)
        for n, quartic, quadratic in zip(
            range(degree + 1, _FORMS + 1), self.quartic, self.quadratic, strict=True
        ):
            fourth = ((quartic @ monomials) * monomials).sum(0).clamp(min=0)
            second = ((quadratic @ y) * y).sum(0).clamp(min=0)
            total += a ** (n - 4) * fourth / math.factorial(n)
            total += a ** (n - 4) * (fourth * second).sqrt() / (2 * math.factorial(n - 2))
            for b in range(2, n // 2 + 1):
                share = s ** (b - 2) * a ** (n - 2 * b)
                total += second * share / (2**b * math.factorial(b) * math.factorial(n - 2 * b))
        return total

    def _data(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the data add to the gradient, summed over their own series, and its error."""
        d, total = len(self.data.x), torch.zeros_like(z)
        a, s = torch.zeros_like(z[0]), torch.zeros_like(z[0])
        for block in self.data.blocks(_ROWS):
            shift, grow = block.x.T @ z[:d], 2 * block.e.T @ z[d:]
            first, second = changes(block.slopes.unsqueeze(2), shift, grow, _SERIES)
            total[:d] += block.x @ first
            total[d:] += block.e @ second
            a = torch.maximum(a, shift.abs().amax(0))
            s = torch.maximum(s, grow.abs().amax(0))
        return total, _left_out(a, s, _SERIES, *self.totals)


def _left_out(
    a: Tensor, s: Tensor, degree: int, in_mean: Tensor | float, in_covariance: Tensor | float
) -> Tensor:
    """Return what series of D_1 and D_2 leave out, for records with these sums of v/4."""
    return in_mean * left_out(a, s, degree, 1) + in_covariance * left_out(a, s, degree, 2)
