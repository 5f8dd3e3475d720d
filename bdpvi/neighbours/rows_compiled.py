"""Logistic regression's rows in machine code, by numba: what the extra ``fast`` adds.

The numbers are those of :class:`bdpvi.neighbours.rows.LogisticGradient`. The gain is that nothing
leaves the caches: a tile of rows goes through many steps of Adam, with its moments, before the
next one does, and hardly the registers: logits and slopes of four records never become arrays.
Arrays have the rows last; each lane of a tile is one row, and does the same operations wherever in
a tile it lies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
import scipy
import torch
from torch import Tensor

from bdpvi._runtime.vectors import (
    LINE,
    Array,
    Lines,
    Value,
    Variable,
    compiled,
    each,
    kernel,
    of_number,
)
from bdpvi.guides import FullRank, MeanField
from bdpvi.models.logistic import BayesianLogisticRegression

_LANES = 128
"""Rows of a tile: many enough to pay for a loop, few enough for the first cache."""

_BLOCK = 4
"""Records taken together; with more their logits would not fit into the registers."""


@dataclass(frozen=True)
class CompiledGradient:
    """A :class:`bdpvi.neighbours.rows.RowGradient` of logistic regression, for rows on a processor.

    Args:
        model: the model.
        guide: one that :meth:`knows`.
        rate: of the batches.
    """

    model: BayesianLogisticRegression
    guide: MeanField | FullRank
    rate: float

    threads = True

    @staticmethod
    def knows(guide: object) -> TypeGuard[MeanField | FullRank]:
        """Return whether there is a kernel for the guide.

        >>> CompiledGradient.knows(FullRank(BayesianLogisticRegression()))
        True
        """
        return type(guide) in (MeanField, FullRank)

    def see(self, data: Any) -> tuple[Tensor, Tensor]:
        """Return (1 − 2y)·design and slope bounds."""
        design = self.model.design(data.x)
        return (1 - 2 * data.y).unsqueeze(1) * design, self.model.slope_bound(design)

    def packed(self, start: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a Cholesky factor as its diagonal, then what is below it, (d(d + 1)/2,).

        A mean-field guide is one with nothing below: the kernels know no other difference.
        """
        return {
            name: value[tuple(_triangle(len(value)))] if name == "scale_tril" else value
            for name, value in start.items()
        }

    def unpacked(self, free: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the triangles of m rows as matrices again, (m, d, d)."""
        whole = dict(free)
        if "scale_tril" in free:
            flat, d = free["scale_tril"], self.guide.dim
            row, column = _triangle(d)
            whole["scale_tril"] = flat.new_zeros(len(flat), d, d)
            whole["scale_tril"][:, row, column] = flat
        return whole

    def __call__(
        self,
        free: Mapping[str, Tensor],
        extra: tuple[Tensor, ...],
        weight: Tensor,
        batch: tuple[Tensor, ...],
        generator: torch.Generator,
        out: Mapping[str, Tensor],
    ) -> None:
        """Write the gradients, see :class:`bdpvi.neighbours.rows.RowGradient`."""
        names = _names(free)
        (x, bound), (x_extra, bound_extra) = _blocks(batch, [len(batch[0])]), extra
        loc, raw = (_rows_last(free[name]) for name in names)
        written = [_rows_last(out[name]) for name in names]
        _gradients(
            loc,
            raw,
            self.noise(generator, x).numpy(),
            x.numpy(),
            bound.numpy(),
            _rows_last(x_extra),
            _rows_last(bound_extra),
            weight.contiguous().numpy(),
            weight.nonzero().squeeze(1).numpy(),
            *self._factors(x),
            *written,
        )
        for name, array in zip(names, written, strict=True):
            target = out[name].movedim(0, -1)
            if target.data_ptr() != array.ctypes.data:
                target.copy_(torch.from_numpy(array))

    def noise(self, generator: torch.Generator, like: Tensor) -> Tensor:
        """Return a step's base noise, (d,)."""
        return torch.randn(self.guide.dim, generator=generator, dtype=like.dtype)

    def train(
        self,
        free: Tensor,
        moments: tuple[Tensor, Tensor],
        extra: tuple[Tensor, ...],
        weight: Tensor,
        seen: tuple[Tensor, ...],
        here: Sequence[Tensor],
        mine: Sequence[Tensor],
        noise: Tensor,
        adam: Tensor,
    ) -> None:
        """Take steps of Adam, see :class:`bdpvi.neighbours.rows.TakesSteps`.

        A tile of rows goes through all of them before it leaves the cache.
        """
        places, own = torch.cat(list(here)), [rows.sort().values for rows in mine]
        x, bound = _blocks([part[places] for part in seen], _lengths(here))
        x_extra, bound_extra = extra
        one, two = moments
        _train(
            free.numpy(),
            one.numpy(),
            two.numpy(),
            noise.numpy(),
            x.numpy(),
            bound.numpy(),
            _ends([length + -length % _BLOCK for length in _lengths(here)]),
            _rows_last(x_extra),
            _rows_last(bound_extra),
            weight.numpy(),
            torch.cat(own).numpy(),
            _ends(_lengths(own)),
            *self._factors(x),
            adam.to(x.dtype).numpy(),
        )

    def _factors(self, like: Tensor) -> tuple[Any, Any]:
        """Return what the latents' and the records' parts of the gradient are multiplied by."""
        number = like.numpy().dtype.type
        return number(self.model.prior_scale**-2), number(1 / self.rate)


def _names(free: Mapping[str, Tensor]) -> tuple[str, str]:
    return ("loc", "scale") if "scale" in free else ("loc", "scale_tril")


def _triangle(size: int) -> Tensor:
    """Return the places of a matrix's diagonal, then those below it, (2, size(size + 1)/2)."""
    diagonal = torch.arange(size).expand(2, size)
    return torch.cat([diagonal, torch.tril_indices(size, size, -1)], dim=1)


def _rows_last(tensor: Tensor) -> Array:
    """Return (m, ...) as (..., m): the same memory where it is laid out so."""
    return tensor.movedim(0, -1).contiguous().numpy()


def _blocks(batch: Sequence[Tensor], lengths: Sequence[int]) -> list[Tensor]:
    """Return batches, one after the other, each filled up to whole blocks by records of zeros.

    Such a record has no gradient.
    """
    filled = []
    for part in batch:
        pieces = []
        for piece in part.split(list(lengths)):
            pieces += [piece, part.new_zeros(-len(piece) % _BLOCK, *part.shape[1:])]
        filled.append(torch.cat(pieces))
    return filled


def _lengths(parts: Sequence[Tensor]) -> list[int]:
    return [len(part) for part in parts]


def _ends(lengths: Sequence[int]) -> Array:
    """Return where each of several parts begins, and the last one ends."""
    return np.cumsum([0, *lengths])


@compiled
def _gradients(
    loc: Array,
    raw: Array,
    noise: Array,
    x: Array,
    bound: Array,
    x_extra: Array,
    bound_extra: Array,
    weight: Array,
    mine: Array,
    prior: float,
    scale: float,
    loc_out: Array,
    raw_out: Array,
) -> None:
    """Write the gradient of every row; ``loc`` is (d, m), ``raw`` the other parameters, (·, m)."""
    d, m = loc.shape
    entries = d + len(raw)
    free, slope, space = _vectors(entries, x), _vectors(entries, x), _vectors(3 * d, x)
    first = 0
    for start in range(0, m, _LANES):
        end = min(start + _LANES, m)
        last = _before(mine, first, len(mine), end)
        tile, result = _tile(free, entries, end - start), _tile(slope, entries, end - start)
        tile[:d] = loc[:, start:end]
        tile[d:] = raw[:, start:end]
        own = mine[first:last]
        _gradient(
            free, noise, x, bound, x_extra, bound_extra, weight, own, start, prior, scale, space,
            slope,
        )  # fmt: skip
        entry = 2 * d * _LANES
        if entry < len(free):
            for i in range(d):
                for j in range(i):
                    _multiply(slope[i * _LANES :], noise[j], slope[entry:])
                    entry += _LANES
        loc_out[:, start:end] = result[:d]
        raw_out[:, start:end] = result[d:]
        first = last


@compiled
def _train(
    free: Array,
    first_moment: Array,
    second_moment: Array,
    noise: Array,
    x: Array,
    bound: Array,
    ends: Array,
    x_extra: Array,
    bound_extra: Array,
    weight: Array,
    mine: Array,
    mine_ends: Array,
    prior: float,
    scale: float,
    adam: Array,
) -> None:
    """Train every row for some steps; parameters and their moments are (entries, m)."""
    entries, m = free.shape
    values, one, two = _vectors(entries, x), _vectors(entries, x), _vectors(entries, x)
    d = noise.shape[1]
    slope, space = _vectors(2 * d, x), _vectors(3 * d, x)
    reached = mine_ends[:-1].copy()
    for start in range(0, m, _LANES):
        end = min(start + _LANES, m)
        rows = end - start
        _tile(values, entries, rows)[:] = free[:, start:end]
        _tile(one, entries, rows)[:] = first_moment[:, start:end]
        _tile(two, entries, rows)[:] = second_moment[:, start:end]
        for step in range(len(noise)):
            batch = slice(ends[step], ends[step + 1])
            first = reached[step]
            last = _before(mine, first, mine_ends[step + 1], end)
            own = mine[first:last]
            _gradient(
                values, noise[step], x[batch], bound[batch], x_extra, bound_extra,
                weight, own, start, prior, scale, space, slope,
            )  # fmt: skip
            for k in range(0, _LANES, 2 * LINE // x.itemsize):
                _adam_lines(values, one, two, slope, noise[step], adam[step], k)
            reached[step] = last
        free[:, start:end] = _tile(values, entries, rows)
        first_moment[:, start:end] = _tile(one, entries, rows)
        second_moment[:, start:end] = _tile(two, entries, rows)


@compiled
def _vectors(count: int, like: Array) -> Array:
    """Return room for vectors with an entry for each row of a tile, one after the other."""
    return np.zeros(count * _LANES, like.dtype)


@compiled
def _before(mine: Array, first: int, last: int, end: int) -> int:
    """Return the first place between two where there is no row before ``end``."""
    while first < last and mine[first] < end:
        first += 1
    return first


@compiled
def _tile(vectors: Array, entries: int, rows: int) -> Array:
    """Return the first vectors as (entries, rows); the places of rows there are none of stay."""
    return vectors[: entries * _LANES].reshape(entries, _LANES)[:, :rows]


@compiled
def _gradient(
    free: Array,
    noise: Array,
    x: Array,
    bound: Array,
    x_extra: Array,
    bound_extra: Array,
    weight: Array,
    own: Array,
    start: int,
    prior: float,
    scale: float,
    space: Array,
    slope: Array,
) -> None:
    """Write the gradient of a tile's rows in the location and the scales to ``slope``.

    A tile's parameters are the location, the scales and, row by row, what is below the diagonal:
    its gradient is the location's times the noise, row by column. ``own`` are the rows whose own
    record is in the batch.
    """
    d, size = len(noise), len(noise) * _LANES
    w, g, deviation = space[:size], space[size : 2 * size], space[2 * size :]
    pull = slope[size:]
    for k in range(0, size, LINE // g.itemsize):
        _scale_line(free, size + k, deviation, pull, k)
    g[:] = 0
    for k in range(0, _LANES, LINE // g.itemsize):
        _draw_line(free, deviation, noise, w, k)
        for i in range(0, len(x), _BLOCK):
            _add_block(x, bound, i, w, g, k)
    for row in own:
        _add_own(x_extra[:, row], bound_extra[row], weight[row], w[row - start :], g[row - start :])
    for k in range(size):
        slope[k] = prior * w[k] + scale * g[k]
    for i in range(d):
        _pull(slope[i * _LANES :], noise[i], deviation[i * _LANES :], pull[i * _LANES :])


@compiled
def _pull(gradient: Array, noise: float, deviation: Array, out: Array) -> None:
    """Multiply softplus's slope by that of the loss less the entropy, the deviation's log."""
    one = gradient.dtype.type(1)
    for k in range(_LANES):
        out[k] *= gradient[k] * noise - one / deviation[k]


@compiled
def _multiply(vector: Array, factor: float, out: Array) -> None:
    for k in range(_LANES):
        out[k] = vector[k] * factor


@compiled
def _add_own(x: Array, bound: float, weight: float, w: Array, g: Array) -> None:
    """Add a row's own record; ``w`` and ``g`` begin at the row."""
    logit = x[0] * w[0]
    for j in range(1, len(x)):
        logit += x[j] * w[j * _LANES]
    slope = _sigmoid(logit)
    slope = weight * (bound if bound < slope else slope)
    for j in range(len(x)):
        g[j * _LANES] += slope * x[j]


def exponential(x: Value, share: float = 1.0) -> Value:
    """Return exp(x) = 2ⁿ exp(r), |r| ≤ log(2)/2, by a Chebyshev series.

    |x| is cut off at a share of what can be represented.
    """
    terms, digits, limit = (11, 52, 700.0) if x.double else (6, 23, 86.0)
    y = x.largest(-share * limit).least(share * limit)
    # a number as large as 1.5 · 2^digits has its integer part as its last bits
    shift = y.of(1.5 * 2**digits)
    shifted = y * (1 / math.log(2)) + shift
    # log(2) in one piece: r errs by n roundings of it, no more than x does by its own rounding
    r = y - (shifted - shift) * math.log(2)
    return _polynomial(r, _exponential(terms, math.log(2) / 2)).times_power(shifted)


def sigmoid(x: Value) -> Value:
    """Return 1 / (1 + exp(−x))."""
    return 1 / (1 + exponential(-x))


def softplus(x: Value) -> tuple[Value, Value]:
    """Return log(1 + exp(x)) = max(x, 0) + 2 artanh(u / (2 + u)), u = exp(−|x|), and its slope.

    That is the sigmoid, 1/(1 + u) or, where x < 0, u/(1 + u). Both come from one division.
    """
    terms = 17 if x.double else 8  # s² ≤ 1/9
    u = exponential(x.least(-x))
    inverse = 1 / ((1 + u) * (2 + u))
    s = u * (1 + u) * inverse
    series = _polynomial(s * s, [2 / (2 * k + 1) for k in range(terms)])
    return x.largest(0) + s * series, x.where("<", 0, u, u.of(1)) * ((2 + u) * inverse)


def _slopes(logits: Sequence[Value], bounds: Sequence[Value]) -> list[Value]:
    """Return the smaller of sigmoid(x) and a bound for an even number of logits of one row.

    So that products are finite no logit counts as more than half of what exp takes: there a sigmoid
    is less than 1e-18 from 0 or rounds to 1.
    """
    slopes = _inverses([1 + exponential(-x, 1 / 2) for x in logits])
    return [slope.least(bound) for slope, bound in zip(slopes, bounds, strict=True)]


def _inverses(values: Sequence[Value]) -> list[Value]:
    """Return 1/x of an even number of values whose products are finite and not 0.

    Two share a division, 1/a = b · 1/(ab) and 1/b = a · 1/(ab), since it takes as long as a dozen
    other operations.
    """
    result = []
    for a, b in zip(values[::2], values[1::2], strict=True):
        inverse = 1 / (a * b)
        result += [b * inverse, a * inverse]
    return result


def _polynomial(x: Value, coefficients: Sequence[float]) -> Value:
    """Return Σ c_k x^k."""
    total = x.of(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = total * x + c
    return total


def _exponential(terms: int, most: float) -> list[float]:
    """Return the coefficients of exp(x) = I₀(h) + 2 Σ I_k(h) T_k(x/h), cut off, for |x| ≤ h.

    It needs fewer terms than Taylor's series. Source: DLMF 10.35.5, at imaginary angles.
    """
    orders = np.arange(terms)
    series = np.where(orders == 0, 1, 2) * scipy.special.iv(orders, most)
    powers: list[float] = (np.polynomial.chebyshev.cheb2poly(series) / most**orders).tolist()
    return powers


_sigmoid = of_number(sigmoid)


@kernel
def _scale_line(raw: Lines, start: Value, value: Lines, slope: Lines, place: Value) -> None:
    """Write softplus of the line from ``start`` on, and its slope, from ``place`` on."""
    value[place], slope[place] = softplus(raw[start])


@kernel
def _draw_line(free: Lines, deviation: Lines, noise: Lines, latent: Lines, lane: Value) -> None:
    """Write a line's latents: the location and the factor times the noise."""
    (d,) = noise.shape
    place = Variable(2 * d * _LANES + lane)
    with each(d) as i:
        at = i * _LANES + lane
        total = Variable(free[at] + deviation[at] * noise.number(i))
        with each(_below(free, d, i)) as j:
            total.now = total.now + free[place.now] * noise.number(j)
            place.now = place.now + _LANES
        latent[at] = total.now


@kernel
def _add_block(
    x: Lines, bound: Lines, first: Value, latent: Lines, gradient: Lines, lane: Value
) -> None:
    """Add the part of four records, from ``first`` on, to a line's gradient."""
    features = x.shape[1]
    rows = [first + i for i in range(_BLOCK)]
    logits = [latent.variable(0) for _ in rows]
    with each(features) as j:
        value = latent[j * _LANES + lane]
        for row, logit in zip(rows, logits, strict=True):
            logit.now = logit.now + x.number(row * features + j) * value
    slopes = _slopes([logit.now for logit in logits], [bound.number(row) for row in rows])
    with each(features) as j:
        at = j * _LANES + lane
        total = gradient[at]
        for row, slope in zip(rows, slopes, strict=True):
            total = total + x.number(row * features + j) * slope
        gradient[at] = total


@kernel
def _adam_lines(
    free: Lines, one: Lines, two: Lines, slope: Lines, noise: Lines, factors: Lines, lane: Value
) -> None:
    """Take a step with two lines; the factors are those of ``rows.adam_factors``."""
    rate, fresh_one, fresh_two, root, small = (factors.number(lane.of(i)) for i in range(5))
    line = int(free.kind.count)

    def fall(at: Value, gradients: Sequence[Value]) -> None:
        places, means, sizes = [at, at + line], [], []
        for place, gradient in zip(places, gradients, strict=True):
            one[place] = mean = one[place] + fresh_one * (gradient - one[place])
            two[place] = square = two[place] + fresh_two * (gradient * gradient - two[place])
            means.append(mean)
            sizes.append(square.root() * root + small)
        for place, mean, inverse in zip(places, means, _inverses(sizes), strict=True):
            free[place] = free[place] - rate * mean * inverse

    (d,) = noise.shape
    with each(2 * d) as i:
        at = i * _LANES + lane
        fall(at, [slope[at], slope[at + line]])
    place = Variable(2 * d * _LANES + lane)
    with each(d) as i:
        at = i * _LANES + lane
        gradients = slope[at], slope[at + line]
        with each(_below(free, d, i)) as j:
            factor = noise.number(j)
            fall(place.now, [gradient * factor for gradient in gradients])
            place.now = place.now + _LANES


def _below(free: Lines, d: Value, i: Value) -> Value:
    """Return how many entries the factor's row i has below the diagonal."""
    (entries,) = free.shape
    return entries.where(">", 2 * d * _LANES, i, i.of(0))
