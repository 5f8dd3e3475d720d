"""The optimum of every neighbour, from the optimum of the data, with a proven error.

In the coordinates z = (m, y) of :mod:`bdpvi.neighbours.optimum.coordinates` the gradient of a
neighbour's ELBO is

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
``|v^{k/2} D_k| ≤ ¼ v √(k-2)!`` (:func:`bdpvi.neighbours.optimum.quadrature.derivatives`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bdpvi._runtime.threads import each, slices
from bdpvi.neighbours.optimum.columns import columns_for
from bdpvi.neighbours.optimum.coordinates import (
    Coordinates,
    DiagonalCovariance,
    FullCovariance,
    weighted,
)
from bdpvi.neighbours.optimum.elbo import Point, Records, total
from bdpvi.neighbours.optimum.monomials import (
    SUMMANDS,
    indices,
    number,
    places,
    powers,
    summed,
    taylor_weights,
)
from bdpvi.neighbours.optimum.narrow import derivatives
from bdpvi.neighbours.optimum.series import changes, heat, left_out

_SERIES = 15
"""Degree of a single record's Taylor series; odd."""
_HIGHER = (3, 4)
"""Degrees of the polynomial that are tried, where they are small enough, after degree 2."""
_SMALL = 1 << 19
"""Entries up to which a degree's tensor costs so little that no lower one is tried before it."""
_BEYOND = 7
"""Degree of the series that passes in single precision sum beyond the polynomial; odd."""
_RECORDS = 4096
_FEWEST, _COLUMNS = 256, 4096
_NUMBERS = 1 << 19
"""Entries of the coordinates of as many columns as are treated together, within these limits:
with fewer, calls cost more than what they compute."""
_GATHERED = 2048
_CELLS = 1 << 23
_ROWS = 1024
_PAIRS = 1 << 16
_ENTRIES = 1 << 26
"""Largest size of a tensor of the polynomial."""
_PARAMETERS = 6000
_STEPS = 20
"""Steps that an iteration takes at most."""
_LEAST_SERIES = 5
"""Degree of a pass's series where moves are small; odd."""
_LEFT = 1e-10
"""What a pass's series may leave out, relative to the distance, if its degree allows, and how much
of the proven error may be the iteration's after it."""
_SETTLED = 1e-7
"""How little the next step will move, relative to the distance, where an iteration ends."""
_UNSETTLED = 1e-8
"""How much of the proven error may be that of the iteration, relative to the distance."""
_OWN = 0.5
"""Share of the precision, relative to a neighbour's own distance, that cheap steps aim at."""
_HOPELESS = 1e-6
"""Error of degree 2, relative to the mean distance, from which on it is not tried at all."""
_SINGLE = 1.05 * 2.0**-24
"""Unit roundoff of single precision, and 5 % for the products of up to 10⁵ roundings."""
_NEGLIGIBLE = 2e-9
"""Error relative to the mean distance that single precision may cost."""
_LIGHT = 1e-4
"""Share of the size of the terms that records left out of single passes may have."""
_FORMS = 11
"""Degree of the terms of the data that bounds take one by one; odd, at most _SERIES."""
_SHARP = (4, 5, 6)
"""Degrees of those that the bounds of a polynomial of degree 3 or 4 sum over the data exactly."""
_ROUNDING = 1e-14
_BENDS = 9
"""Degree of the series that bound the change of J; odd, at most _SERIES - 2."""
_BALL = 1e-6
"""Radius around an approximate optimum in which the certificate looks for the true one."""
_LEAST_STRENGTH = 0.05
"""Smallest eigenvalue of J that is taken for more than 0."""


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

    def to(self, kind: torch.dtype) -> Terms:
        """Return the records in this precision."""
        return Terms(*(part.to(kind) for part in (self.x, self.e, self.variance, self.slopes)))

    @classmethod
    def joined(cls, blocks: Sequence[Terms]) -> Terms:
        """Return the records of all blocks."""
        if len(blocks) == 1:
            return blocks[0]
        fields = zip(*((b.x, b.e, b.variance, b.slopes) for b in blocks), strict=True)
        return cls(*(torch.cat(field, -1) for field in fields))

    def gradient(self) -> Tensor:
        """Return what each record adds to the gradient at 0."""
        return torch.cat([self.x * self.slopes[1], self.e * self.slopes[2]])

    def sizes(self, degrees: Iterable[int]) -> Tensor:
        """Return how large each record's terms of these degrees of the gradient can be, (k, n)."""
        slopes, first, second = self.slopes.abs(), _norms(self.x), _norms(self.e)
        return torch.stack([first * slopes[k + 1] + second * slopes[k + 2] for k in degrees])

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

    def select(self, columns: Tensor | slice) -> Moves:
        """Return these columns."""
        return Moves(self.m[:, columns], self.y[:, columns], self.error[columns])

    @classmethod
    def none(cls, parameters: int, of: Terms) -> Moves:
        """Return a place for the moves of these records: nothing is proven yet."""
        z = of.x.new_zeros(parameters, len(of))
        d = len(of.x)
        return cls(z[:d], z[d:], of.variance.new_full((len(of),), math.inf))

    def put(self, columns: Tensor | slice, other: Moves) -> None:
        """Set these columns to those of ``other``."""
        self.m[:, columns], self.y[:, columns] = other.m, other.y
        self.error[columns] = other.error


class Hessian:
    """The negative Hessian J of the ELBO at a point, and how fast it can change around it.

    It takes one pass over the records.

    Attributes:
        columns: how many are best treated together.
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
        self.columns = min(_COLUMNS, max(_FEWEST, _NUMBERS // parameters))
        kind = DiagonalCovariance if point.objective.diagonal else FullCovariance
        self.coordinates: Coordinates = kind(point)
        self.data: Iterable[Terms] = point.objective.records.each(self._terms)
        frame, precision = self.coordinates.frame, point.objective.precision
        prior = precision * frame.T @ frame
        lengths: list[Tensor] = []

        def sums_of(block: Terms) -> tuple[Tensor, ...]:
            lengths.append(_norms(block.x).max())
            return self._sums(block)

        sums = total(each(sums_of, self._blocks()), self.reduction)
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

    def _blocks(self, size: int = 0) -> Iterator[Terms]:
        """Iterate over the data in blocks of this size, by default of ``columns``."""
        for block in self.data:
            yield from block.blocks(size or self.columns)

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
        if records is self.point.objective.records and isinstance(self.data, list):
            return Terms.joined(self.data)
        return self._terms(records)

    def _terms(self, records: Records) -> Terms:
        blocks = map(records.select, slices(len(records), _RECORDS))
        return Terms.joined(list(each(self._block, blocks)))

    def _block(self, records: Records) -> Terms:
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
        s = math.sqrt(2) * (change + _BALL)

        def series(length: Tensor | float) -> tuple[Tensor, list[Tensor]]:
            moves = heat(length * (move + _BALL), s, _BENDS + 1)
            return torch.stack(moves[:-1]), [left_out(moves[-1], s, _BENDS, n) for n in (2, 3, 4)]

        moves, beyond = series(self.longest)
        bends = moves.new_tensor(self.bends)
        bent = moves[1:].T @ bends[:-1] + bends[-1] * torch.stack(beyond).sum(0)
        bent += (1 - s).clamp(min=0.01) ** -2 - 1
        if own is not None:
            length, size = _norms(own.x), own.slopes.abs()
            if bool((length > self.longest).any()):
                moves, beyond = series(length.clamp(min=self.longest))
            d2, d3, d4 = (
                (size[n : n + len(moves)] * moves).sum(0) + rest * own.variance / 4
                for n, rest in zip((2, 3, 4), beyond, strict=True)
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
        tolerance: as given.
        degrees: of the polynomials there are, from the cheapest to the most accurate.
        single: how many passes over the data are tried after that in single precision.
        count: number of records.
        typical: mean distance that a record moves the optimum, to first order.
        spread: the same of y alone.
    """

    def __init__(self, point: Point, tolerance: float = 0.0) -> None:
        super().__init__(point)
        self.tolerance = tolerance
        self.slack = 2 * tolerance * self.coordinates.stretch
        self.inverse = torch.linalg.inv(self.jacobian)
        quadratic, shares, left, (count, distance, spread) = self.extra
        d = len(self.coordinates.frame)
        self.tensors = {2: quadratic * taylor_weights(d, 2).to(quadratic)}
        # Frobenius norms of the tensors of higher degrees.
        self.lengths: dict[int, float] = {}
        # Sums of v/4 that what series leave out is multiplied by, and of the size of every term.
        self.totals = float(shares[0]), float(shares[1])
        self.sizes = dict(zip(range(3, _FORMS + 1), left.tolist(), strict=True))
        # Sums of the monomials of the data times D_n, each once.
        self.symmetric: dict[int, Tensor] = {}
        self.forms: dict[int, tuple[Tensor, ...]] = {}
        self.kept: dict[int, list[Terms]] = {}
        self.count, self.typical = int(count), float(distance / count)
        self.coordinates.arithmetic = columns_for(self.count, d, self.jacobian.device)
        self.spread = float(spread / count)
        most = min(self.count // 8, _ENTRIES // len(self.jacobian))
        higher = [k for k in _HIGHER if number(d, k) <= most]
        small = [k for k in higher if number(d, k) * len(self.jacobian) <= _SMALL]
        higher = [k for k in higher if k >= max(small, default=0)]
        missed = self.sizes[3] * (self.longest * self.typical) ** 3 / 6
        hopeless = bool(higher) and missed > _HOPELESS * self.typical
        self.degrees = (*higher,) if hopeless else (2, *higher)
        self.single = 2 if 4 in higher else 0

    def _sums(self, data: Terms) -> tuple[Tensor, ...]:
        """Return also what the polynomial of degree 2 and its bounds need."""
        norm, size = _norms(data.x), _norms(data.e)
        slopes, v = data.slopes.abs(), data.variance / 4
        lengths = torch.stack([torch.ones_like(norm), norm * slopes[1], size * slopes[2]])
        return (
            *super()._sums(data),
            _coefficients(data, 2) @ powers(data.x, 2)[1].T,
            torch.stack([norm @ v, size @ v]),
            data.sizes(range(3, _FORMS + 1)).sum(1),
            lengths.sum(1),
        )

    def prepare(self, degree: int) -> None:
        """Make what the polynomial of this degree needs, by a pass over the data.

        Its tensors in m and in y are sums of the same monomials, of one and of two degrees more, as
        the features that go with y are quadratic in x.
        """
        if degree in self.tensors:
            return
        d = len(self.coordinates.frame)
        first = not self.forms
        new = [n for n in range(4, degree + 3) if n not in self.symmetric]

        def sums(data: Terms) -> tuple[Tensor, ...]:
            highest = max(new)
            up, down = powers(data.x, highest // 2), powers(data.x.flip(0), highest - highest // 2)
            weights = {n: data.slopes[n : n + 1] for n in new}
            if first:
                weights[4] = torch.cat([weights[4], data.sizes(_SHARP)])
            return tuple(
                summed((up[n // 2 - 1], down[n - n // 2 - 1]), some, d, n)
                for n, some in weights.items()
            )

        # Blocks whose monomials take little memory.
        columns = min(_GATHERED, max(64, _CELLS // number(d, degree)))
        found = total(each(sums, self._blocks(columns)), self.reduction)
        self.symmetric |= {n: sums[0] for n, sums in zip(new, found, strict=True)}
        quadratic = self._quadratic()
        for k in range(3, degree + 1):
            if k not in self.tensors:
                rows = [
                    self.symmetric[k + 1][places(d, 1, k)],
                    quadratic @ self.symmetric[k + 2][places(d, 2, k)],
                ]
                tensor = torch.cat(rows) * taylor_weights(d, k).to(quadratic)
                self.lengths[k] = float(tensor.norm())
                self.tensors[k] = tensor.to(self._kind(k))
        if first:
            twice = (2 * taylor_weights(d, 2)).to(quadratic)
            for n, sharp in zip(_SHARP, found[0][1:], strict=True):
                form = sharp[places(d, 2, 2)]
                forms = (form * twice * twice.unsqueeze(1), 4 * quadratic @ form @ quadratic.T)
                self.forms[n] = tuple(form.to(_single()) for form in forms)

    def _quadratic(self) -> Tensor:
        """Return what the monomials of degree 2 are multiplied by in the features of y, (q, n)."""
        one, other = indices(len(self.coordinates.frame), 2).to(self.jacobian.device)
        eye = torch.eye(len(self.coordinates.frame)).to(self.jacobian)
        features = self.coordinates.features
        both = features(eye[:, one] + eye[:, other])
        # The features of the sum of two axes, less those of either; of twice an axis they are 4.
        return torch.where(
            one == other, both / 4, both - features(eye[:, one]) - features(eye[:, other])
        )

    def _heavy(self, data: Terms, degrees: range, share: float) -> Tensor:
        """Return which records have terms of these degrees that are worth summing.

        All the others together have at most ``share`` of the size of the terms of each degree.
        """
        allowed = [share * self.sizes[n] / self.count for n in degrees]
        sizes = data.sizes(degrees)
        return (sizes > sizes.new_tensor(allowed).unsqueeze(1)).any(0).nonzero()[:, 0]

    def settle(self, neighbours: Terms, sign: float) -> Moves:
        """Return where the iteration ends without the terms of degree 3 and above.

        Nothing is proven yet, so single precision does. A column stops when it has settled, so that
        it does not depend on those it is solved with.
        """
        d, own = len(neighbours.x), neighbours.to(_single())
        moving = torch.arange(len(own), device=own.variance.device)
        inverse = self.inverse.to(own.x)
        # At 0 there is only what the record itself adds.
        z = here = inverse @ (self.gradient.to(own.x).unsqueeze(1) + sign * own.gradient())
        before, entropy = _norms(z), self.coordinates.entropy(z[d:].double()).to(own.x)
        for _ in range(_STEPS):
            # The entropy's part hardly changes any more.
            new = inverse @ (self._low(here) + self._rest(here, own, sign, entropy))
            if len(moving) == len(neighbours):
                z = new
            else:
                z[:, moving] = new
            step = (_norms(new - here) - _ROUNDING).clamp(min=0)
            # Steps shrink by about the same factor each time.
            still = (step.square() > _SETTLED * before * _norms(new)).nonzero()[:, 0]
            if not len(still):
                break
            moving, own, before = moving[still], own.select(still), step[still]
            here, entropy = new[:, still], entropy[:, still]
        z = z.double()
        return Moves(z[:d], z[d:], z.new_full((len(neighbours),), math.inf))

    def hopeful(self, moves: Moves, degree: int, precision: float) -> Tensor:
        """Return the columns that the polynomial of this degree may be accurate enough for."""
        bound = self._polynomial_left_out(torch.cat([moves.m, moves.y]), degree)
        return (bound <= _OWN * precision * _norms(moves.m)).nonzero()[:, 0]

    def solve(
        self, neighbours: Terms, sign: float, degree: int = 2, near: Moves | None = None
    ) -> Moves:
        """Return the optima with ``sign`` times one of ``neighbours`` added each.

        Args:
            neighbours: the records.
            sign: 1 or -1.
            degree: of the data's polynomial, one of ``degrees`` that was prepared.
            near: what was found before, by default where :meth:`settle` ends.
        """
        moves = self.settle(neighbours, sign) if near is None else near
        moving = torch.arange(len(neighbours), device=moves.m.device)
        for _ in range(_STEPS):
            every = len(moving) == len(neighbours)
            own = neighbours if every else neighbours.select(moving)
            here = moves if every else moves.select(moving)
            z = torch.cat([here.m, here.y])
            gradient = self._low(z) + self._high(z, degree) + self._rest(z, own, sign)
            gradient -= self.jacobian @ z
            found, chord = self._certify(z, gradient, own, self._polynomial_left_out(z, degree))
            if every:
                moves = found
            else:
                moves.put(moving, found)
            moving = moving[chord > _UNSETTLED * _norms(found.m) + _ROUNDING]
            if not len(moving):
                break
        return moves

    def rough(self, moves: Moves, precision: float, *, cheap: bool = False) -> Tensor:
        """Return the columns that are not proven to ``precision``, see :class:`bdpvi.Optimum`.

        Args:
            moves: what was found.
            precision: relative to the distance or, if that is larger, the mean distance.
            cheap: whether what comes next costs so little that it is also worth taking for moves
                far below the mean distance, for the sake of their own relative error.
        """
        distance = _norms(moves.m)
        if cheap:
            precision = _OWN * precision
        else:
            distance = distance.clamp(min=self.typical)
        allowed = precision * distance + 2 * self.slack / self.least
        # A column whose iteration diverged is infinitely far away: any error is small beside that.
        return (~((moves.error <= allowed) & moves.error.isfinite())).nonzero()[:, 0]

    def refine(
        self, neighbours: Terms, sign: float, moves: Moves, *, single: bool = False
    ) -> tuple[Moves, Tensor]:
        """Return better optima, with better bounds, by one pass over the data.

        All workers must call it together, each with neighbours of its own or with none.

        Args:
            neighbours: the records.
            sign: 1 or -1.
            moves: what was found before.
            single: whether the pass is made in single precision, for what the polynomial of the
                highest degree leaves out alone, which has to be prepared.

        Returns:
            The optima, and which of them another pass may still improve.
        """
        own = torch.cat([moves.m, moves.y])
        counts = self.reduction.join(torch.tensor([len(neighbours)], device=own.device)).tolist()
        everyone = self.reduction.join(own.T.contiguous()).T
        first = sum(counts[: self.reduction.rank])
        mine = slice(first, first + len(neighbours))
        gradient = self._rest(own, neighbours, sign)
        if single:
            degree = self.degrees[-1]
            data, left_out = self._beyond(everyone, degree)
            left_out = left_out + self._rounding(everyone, degree)
            gradient += self._low(own) + self._high(own, degree) - self.jacobian @ own
        else:
            data, left_out = self._data(everyone)
            gradient -= self.fixed @ own
        gradient += data[:, mine]
        found, chord = self._certify(own, gradient, neighbours, left_out[mine])
        return found, chord > _LEFT * _norms(found.m) + _ROUNDING

    def _certify(
        self, z: Tensor, gradient: Tensor, own: Terms, left: Tensor
    ) -> tuple[Moves, Tensor]:
        """Take a step and bound the error after it; ``left`` bounds the error of the gradient.

        Returns:
            The optima, and the part of their errors that another step would make smaller.
        """
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
        s = math.sqrt(2) * change
        beyond = heat(norm * move, s, _SERIES + 1)[-1]
        left = left + _left_out(beyond, s, _SERIES, norm * v, size * v)
        # In G(z + step) = G(z) - J step + (J - J') step the first two terms cancel.
        chord = (self.least - strength) * _norms(step)
        moves = Moves(new[:d], new[d:], proven(left + chord + self.slack, strength))
        return moves, torch.where(strength > _LEAST_STRENGTH, chord / strength, 0)

    def _rest(self, z: Tensor, own: Terms, sign: float, entropy: Tensor | None = None) -> Tensor:
        """Return G(z) without what depends on the move and the data."""
        d = len(own.x)
        a, s = (own.x * z[:d]).sum(0), 2 * (own.e * z[d:]).sum(0)
        first, second = changes(own.slopes, a, s, _SERIES)
        first.add_(own.slopes[1]).mul_(sign)
        second.add_(own.slopes[2]).mul_(sign)
        total = torch.cat([own.x * first, own.e * second]).add_(self.gradient.to(z).unsqueeze(1))
        total[d:] += self.coordinates.entropy(z[d:]) if entropy is None else entropy
        return total

    def _low(self, z: Tensor) -> Tensor:
        """Return the terms of degree 2 in m alone; those of degree 1 and 2 in y are in J."""
        return self.tensors[2].to(z) @ powers(z[: len(self.coordinates.frame)], 2)[1]

    def _high(self, z: Tensor, degree: int) -> Tensor:
        """Return the terms of degree 3 and above of the data's polynomial."""
        if degree < 3:
            return z.new_zeros(())
        d, high = len(self.coordinates.frame), torch.zeros_like(z)
        arithmetic = self.coordinates.arithmetic
        mean, covariance = z[:d], self.coordinates.matrix(z[d:])
        kinds = {k: self.tensors[k].dtype for k in range(3, degree + 1)}
        for kind in dict.fromkeys(kinds.values()):
            tensors = {k: self.tensors[k] for k in kinds if kinds[k] == kind}
            high += arithmetic.expected(tensors, mean.to(kind), covariance.to(kind))
        return high

    def _kind(self, degree: int) -> torch.dtype:
        """Return the precision that terms of this degree need."""
        move, change = torch.tensor([self.typical, self.spread], dtype=torch.float64)
        error = self._rounded(heat(move, self.coordinates.swell * change, degree), degree)
        return _single() if float(error) <= _NEGLIGIBLE * self.typical else torch.float64

    def _rounded(self, sizes: Sequence[Tensor], degree: int) -> Tensor:
        """Bound by how much terms of this degree err in single precision.

        The norm of Σ_j |T_ij| |v_j|, T the tensor and v the moments, is at most ‖T‖ ‖v‖ by Cauchy
        and Schwarz. Each summand has as many roundings as there are in the sum of a block, in that
        of all blocks and in a monomial. v are entries of the symmetric tensor E u ⊗ … ⊗ u, with
        absolute values in the place of those of m and S; its norm is at most k! h_k(‖m‖, ‖S‖).

        Args:
            sizes: heat polynomials of ‖m‖ and ‖S‖, for many neighbours.
            degree: k.
        """
        d, degrees = len(self.coordinates.frame), range(3, self.degrees[-1] + 1)
        blocks = sum(-(-number(d, k) // SUMMANDS) for k in degrees)
        roundings = _SINGLE * (min(SUMMANDS, number(d, degree)) + blocks + 16 * degree)
        return roundings * self.lengths[degree] * math.factorial(degree) * sizes[degree]

    def _farthest(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Bound |x_jᵀm| and |2 e_jᵀy| for all records."""
        d = len(self.coordinates.frame)
        return self.longest * _norms(z[:d]), math.sqrt(2) * _norms(z[d:])

    def _absolute(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Bound |x_j|ᵀ|m| and |x_j|ᵀ|S||x_j| for all records, absolute values entry by entry."""
        d, longest = len(self.coordinates.frame), self.longest
        return longest * _norms(z[:d]), longest**2 * self.coordinates.swell * _norms(z[d:])

    def _rounding(self, z: Tensor, degree: int) -> Tensor:
        """Bound what single precision costs the gradient."""
        d, bound = len(self.coordinates.frame), torch.zeros_like(z[0])
        sizes = heat(_norms(z[:d]), self.coordinates.swell * _norms(z[d:]), degree)
        for k in range(3, degree + 1):
            if self.tensors[k].dtype == torch.float32:
                bound += self._rounded(sizes, k)
        return bound

    def _polynomial_left_out(self, z: Tensor, degree: int) -> Tensor:
        """Bound what the polynomial leaves out of the gradient: the further terms up to degree 11
        in absolute value, then :func:`~bdpvi.neighbours.optimum.series.left_out`.

        |x_jᵀm| and |2 e_jᵀy| are at most a and s, so the term of degree n is at most h_n(a, s)
        times a sum of the data. That is all that degree 2 needs, as where it is used moves are
        tiny. For a higher one the first of the terms are bounded more sharply: in a term of degree
        n > 3, |a_j|^{n-2b} s_j^b is at most a_j⁴, a_j² s_j or s_j² times powers of a and s; those
        three are summed over the data, a_j² s_j by Cauchy-Schwarz.
        """
        d = len(self.coordinates.frame)
        a, s = self._farthest(z)
        crude = heat(a, s, _FORMS + 1)
        bound = _left_out(crude[-1], s, _FORMS, *self.totals) + self._rounding(z, degree)
        kind = _single()
        monomials, y = powers(z[:d].to(kind), 2)[1], z[d:].to(kind)
        # The forms are in single precision.
        rounded = _SINGLE * (2 * len(monomials) + 2 * len(y) + 64)
        for n in range(degree + 1, _FORMS + 1):
            if n not in self.forms or degree < 3:
                bound += self.sizes[n] * crude[n]
                continue
            quartic, quadratic = self.forms[n]
            fourth = ((quartic @ monomials) * monomials).sum(0).double().clamp(min=0)
            second = ((quadratic @ y) * y).sum(0).double().clamp(min=0)
            fourth += rounded * self.sizes[n] * a**4
            second += rounded * self.sizes[n] * s**2
            bound += a ** (n - 4) * fourth / math.factorial(n)
            bound += a ** (n - 4) * (fourth * second).sqrt() / (2 * math.factorial(n - 2))
            for b in range(2, n // 2 + 1):
                share = s ** (b - 2) * a ** (n - 2 * b)
                bound += second * share / (2**b * math.factorial(b) * math.factorial(n - 2 * b))
        return bound

    def _beyond(self, z: Tensor, degree: int) -> tuple[Tensor, Tensor]:
        """Return what the data add to the gradient beyond the terms of this degree, and its error.

        It is summed in single precision, which errs by less than a share of the size of every term:
        one rounding for each summand of a block, of the shifts, and of the heat polynomials.
        """
        d, added = len(self.coordinates.frame), torch.zeros_like(z)
        kind, arithmetic = _single(), self.coordinates.arithmetic
        m, y = z[:d].to(kind), 2 * z[d:].to(kind)

        def sums(block: Terms) -> Tensor:
            own = block.to(kind)
            shift, grow = own.x.T @ m, own.e.T @ y
            slopes = own.slopes[: _BEYOND + 3]
            first, second = arithmetic.changes(slopes, shift, grow, _BEYOND, degree + 1)
            return torch.cat([own.x @ first, own.e @ second]).double()

        for more in each(sums, self._heaviest(degree)):
            added += more
        size, spread = self._absolute(z)
        a, s = self._farthest(z)
        summed, crude = heat(size, spread, _BEYOND), heat(a, s, _FORMS + 1)
        error = _left_out(crude[-1], s, _FORMS, *self.totals)
        share = _LIGHT + _SINGLE * (_ROWS + (_BEYOND + 1) * (len(z) + 16))
        for n in range(degree + 1, _FORMS + 1):
            error += self.sizes[n] * (share * summed[n] if n <= _BEYOND else crude[n])
        return self.reduction.sum(added), error

    def _heaviest(self, degree: int) -> Iterator[Terms]:
        """Iterate over the records that count beyond the terms of this degree."""
        degrees = range(degree + 1, _BEYOND + 1)
        if isinstance(self.data, list) and degree not in self.kept:
            self.kept[degree] = [
                data.select(self._heavy(data, degrees, _LIGHT)) for data in self.data
            ]
        for data in self.kept.get(degree) or self.data:
            if degree not in self.kept:
                data = data.select(self._heavy(data, degrees, _LIGHT))
            yield from data.blocks(_ROWS)

    def _data(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the data add to the gradient, summed over their own series, and its error."""
        d, arithmetic = len(self.coordinates.frame), self.coordinates.arithmetic
        a, s = self._farthest(z)
        sizes = heat(a, s, _SERIES + 1)
        for degree in range(_LEAST_SERIES, _SERIES + 1, 2):
            left = _left_out(sizes[degree + 1], s, degree, *self.totals)
            much = (left > _LEFT * _norms(z)).nonzero()[:, 0]
            if not len(much):
                break

        def sums(block: Terms) -> tuple[Tensor, Tensor]:
            shift, grow = block.x.T @ z[:d], 2 * block.e.T @ z[d:]
            v = block.variance.unsqueeze(1) / 4
            norm, size = _norms(block.x).unsqueeze(1), _norms(block.e).unsqueeze(1)
            # The longest moves, pair by pair: that is sharper, and slower than the sum itself.
            far, wide = shift[:, much].abs(), grow[:, much].abs()
            beyond = heat(far, wide, degree + 1)[-1]
            own = _left_out(beyond, wide, degree, norm * v, size * v)
            first, second = arithmetic.changes(block.slopes, shift, grow, degree)
            return torch.cat([block.x @ first, block.e @ second]), own.sum(0)

        # Of more rows where there are few columns.
        blocks = self._blocks(max(_ROWS, _PAIRS // max(1, z.shape[1])))
        added, left[much] = total(each(sums, blocks), self.reduction)
        return added, left


def proven(gradient: Tensor, strength: Tensor) -> Tensor:
    """Return how far the optimum can be where the gradient is at most this, inf if nothing says.

    By strong monotonicity, as long as the optimum is in the ball in which :meth:`Hessian.strength`
    looks for it. (The gradient on its sphere then points inwards, so it is.)

    >>> gradient = torch.tensor([5e-7, 5e-7, 2e-6])
    >>> proven(gradient, torch.tensor([1.0, 0.01, 1.0]))
    tensor([5.0000e-07,        inf,        inf])
    """
    error = gradient / strength
    return torch.where((strength > _LEAST_STRENGTH) & (error <= _BALL), error, math.inf)


def _single() -> torch.dtype:
    """Return single precision, unless matrix products have been allowed to be less accurate."""
    exact = torch.get_float32_matmul_precision() == "highest"
    return torch.float32 if exact else torch.float64


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
    beyond: Tensor, s: Tensor, degree: int, in_mean: Tensor | float, in_covariance: Tensor | float
) -> Tensor:
    """Return what series of D_1 and D_2 leave out, for records with these sums of v/4."""
    return in_mean * left_out(beyond, s, degree, 1) + in_covariance * left_out(beyond, s, degree, 2)
