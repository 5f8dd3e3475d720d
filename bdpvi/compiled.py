"""Logistic regression's rows in machine code, by numba: what the extra ``fast`` adds.

The numbers are those of :class:`bdpvi.rows.LogisticGradient`. The gain is that nothing leaves the
caches: a tile of rows goes through many steps of Adam, with its moments, before the next one does;
within a step records are taken by the four, and a slope is used where it was made. Arrays have the
rows last; each lane of a tile is one row, and does the same operations wherever in a tile it lies.

A loop over sigmoids would become vectors by itself, but one vector at a time, most of which is
waiting for the operation before. So slopes are written for LLVM, several vectors side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, TypeVar

import numpy as np
import scipy
import torch
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray
from torch import Tensor

from bdpvi.guides import FullRank, MeanField
from bdpvi.models import BayesianLogisticRegression

Array = NDArray[Any]
Kernel = TypeVar("Kernel", bound=Callable[..., Any])

_LANES = 128
"""Rows of a tile: many enough to pay for a loop, few enough for the first cache."""

_BLOCK = 4
"""Features or records taken together; more would not fit into the registers."""

_LINE = 256
"""Bytes that slopes are taken by: several vectors, for most of a sigmoid is waiting."""

_JOINED = ("contract",)
"""A product and a sum may become one instruction."""

_OPTIONS = {"error_model": "numpy", "fastmath": set(_JOINED)}
"""Division by zero gives inf, as in torch."""


def _compiled(function: Kernel) -> Kernel:
    options = {"nogil": True, **_OPTIONS}
    try:
        kernel: Kernel = njit(cache=True, **options)(function)
    except RuntimeError:  # there is no folder to keep machine code in
        kernel = njit(**options)(function)
    return kernel


@dataclass(frozen=True)
class CompiledGradient:
    """A :class:`bdpvi.rows.RowGradient` of logistic regression, for rows on a processor.

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
        """Return (1 − 2y)·design, with columns of zeros up to whole blocks, and slope bounds."""
        design = self.model.design(data.x)
        signed = (1 - 2 * data.y).unsqueeze(1) * design
        padding = -design.shape[1] % _BLOCK
        return torch.nn.functional.pad(signed, (0, padding)), self.model.slope_bound(design)

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
        """Write the gradients, see :class:`bdpvi.rows.RowGradient`."""
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
        """Take steps of Adam, see :class:`bdpvi.rows.TakesSteps`.

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


@_compiled
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
    free, slope = _vectors(entries, x), _vectors(entries, x)
    space = _vectors(2 * x.shape[1] + _BLOCK, x)
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
        loc_out[:, start:end] = result[:d]
        raw_out[:, start:end] = result[d:]
        first = last


@_compiled
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
    slope, space = _vectors(entries, x), _vectors(2 * x.shape[1] + _BLOCK, x)
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
            _adam(values, one, two, slope, adam[step])
            reached[step] = last
        free[:, start:end] = _tile(values, entries, rows)
        first_moment[:, start:end] = _tile(one, entries, rows)
        second_moment[:, start:end] = _tile(two, entries, rows)


@_compiled
def _vectors(count: int, like: Array) -> Array:
    """Return room for vectors with an entry for each row of a tile, one after the other."""
    return np.zeros(count * _LANES, like.dtype)


@_compiled
def _before(mine: Array, first: int, last: int, end: int) -> int:
    """Return the first place between two where there is no row before ``end``."""
    while first < last and mine[first] < end:
        first += 1
    return first


@_compiled
def _tile(vectors: Array, entries: int, rows: int) -> Array:
    """Return the first vectors as (entries, rows); the places of rows there are none of stay."""
    return vectors[: entries * _LANES].reshape(entries, _LANES)[:, :rows]


@_compiled
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
    """Write the gradient of a tile's rows to ``slope``.

    A tile's parameters are the location, the scales and, row by row, what is below the diagonal.
    In between, the scales' part of ``slope`` holds their softplus. ``own`` are the rows whose own
    record is in the batch.
    """
    d, size = len(noise), x.shape[1] * _LANES
    w, g, a = space[:size], space[size : 2 * size], space[2 * size :]
    raw, deviation = free[d * _LANES : 2 * d * _LANES], slope[d * _LANES : 2 * d * _LANES]
    for k in range(len(raw)):
        deviation[k] = _softplus(raw[k])
    w[:] = 0
    for i in range(d):
        _draw(free[i * _LANES :], deviation[i * _LANES :], noise[i], w[i * _LANES :])
    entry = 2 * d * _LANES
    if entry < len(free):
        for i in range(d):
            for j in range(i):
                _add(free[entry:], noise[j], w[i * _LANES :])
                entry += _LANES
    g[:] = 0
    for i in range(0, len(x), _BLOCK):
        _add_block(x[i : i + _BLOCK], bound[i : i + _BLOCK], w, g, a)
    for row in own:
        _add_own(x_extra[:, row], bound_extra[row], weight[row], w[row - start :], g[row - start :])
    for k in range(d * _LANES):
        slope[k] = prior * w[k] + scale * g[k]
    entry = 2 * d * _LANES
    if entry < len(free):
        for i in range(d):
            for j in range(i):
                _multiply(slope[i * _LANES :], noise[j], slope[entry:])
                entry += _LANES
    for i in range(d):
        _pull(slope[i * _LANES :], raw[i * _LANES :], noise[i], deviation[i * _LANES :])


@_compiled
def _draw(loc: Array, deviation: Array, noise: float, latent: Array) -> None:
    for k in range(_LANES):
        latent[k] = loc[k] + deviation[k] * noise


@_compiled
def _pull(gradient: Array, raw: Array, noise: float, deviation: Array) -> None:
    """Overwrite softplus(raw) by the gradient in raw of the loss less the entropy, its log."""
    one = gradient.dtype.type(1)
    for k in range(_LANES):
        deviation[k] = (gradient[k] * noise - one / deviation[k]) * _sigmoid(raw[k])


@_compiled
def _add(vector: Array, factor: float, out: Array) -> None:
    for k in range(_LANES):
        out[k] += vector[k] * factor


@_compiled
def _multiply(vector: Array, factor: float, out: Array) -> None:
    for k in range(_LANES):
        out[k] = vector[k] * factor


@_compiled
def _add_own(x: Array, bound: float, weight: float, w: Array, g: Array) -> None:
    """Add a row's own record; ``w`` and ``g`` begin at the row."""
    logit = x[0] * w[0]
    for j in range(1, len(x)):
        logit += x[j] * w[j * _LANES]
    slope = _sigmoid(logit)
    slope = weight * (bound if bound < slope else slope)
    for j in range(len(x)):
        g[j * _LANES] += slope * x[j]


@_compiled
def _adam(free: Array, one: Array, two: Array, slope: Array, factors: Array) -> None:
    """Take a step; the factors are those of :func:`bdpvi.rows.adam_factors`."""
    rate, fresh_one, fresh_two, root, small = factors
    for k in range(len(free)):
        one[k] += fresh_one * (slope[k] - one[k])
        two[k] += fresh_two * (slope[k] * slope[k] - two[k])
        free[k] -= rate * one[k] / (math.sqrt(two[k]) * root + small)


@_compiled
def _add_block(x: Array, bound: Array, w: Array, g: Array, a: Array) -> None:
    """Add four records' part. Their entries have names so that they stay in registers."""
    a[:] = 0
    for j in range(0, x.shape[1], _BLOCK):
        x00, x01, x02, x03 = x[0, j], x[0, j + 1], x[0, j + 2], x[0, j + 3]
        x10, x11, x12, x13 = x[1, j], x[1, j + 1], x[1, j + 2], x[1, j + 3]
        x20, x21, x22, x23 = x[2, j], x[2, j + 1], x[2, j + 2], x[2, j + 3]
        x30, x31, x32, x33 = x[3, j], x[3, j + 1], x[3, j + 2], x[3, j + 3]
        v = w[j * _LANES : (j + _BLOCK) * _LANES]
        for k in range(_LANES):
            v0, v1, v2, v3 = v[k], v[_LANES + k], v[2 * _LANES + k], v[3 * _LANES + k]
            a[k] += x00 * v0 + x01 * v1 + x02 * v2 + x03 * v3
            a[_LANES + k] += x10 * v0 + x11 * v1 + x12 * v2 + x13 * v3
            a[2 * _LANES + k] += x20 * v0 + x21 * v1 + x22 * v2 + x23 * v3
            a[3 * _LANES + k] += x30 * v0 + x31 * v1 + x32 * v2 + x33 * v3
    for i in range(_BLOCK):
        for k in range(i * _LANES, (i + 1) * _LANES, _LINE // a.itemsize):
            _slope_line(a, k, bound[i])
    for j in range(0, x.shape[1], _BLOCK):
        x00, x01, x02, x03 = x[0, j], x[0, j + 1], x[0, j + 2], x[0, j + 3]
        x10, x11, x12, x13 = x[1, j], x[1, j + 1], x[1, j + 2], x[1, j + 3]
        x20, x21, x22, x23 = x[2, j], x[2, j + 1], x[2, j + 2], x[2, j + 3]
        x30, x31, x32, x33 = x[3, j], x[3, j + 1], x[3, j + 2], x[3, j + 3]
        h = g[j * _LANES : (j + _BLOCK) * _LANES]
        for k in range(_LANES):
            a0, a1, a2, a3 = a[k], a[_LANES + k], a[2 * _LANES + k], a[3 * _LANES + k]
            h[k] += x00 * a0 + x10 * a1 + x20 * a2 + x30 * a3
            h[_LANES + k] += x01 * a0 + x11 * a1 + x21 * a2 + x31 * a3
            h[2 * _LANES + k] += x02 * a0 + x12 * a1 + x22 * a2 + x32 * a3
            h[3 * _LANES + k] += x03 * a0 + x13 * a1 + x23 * a2 + x33 * a3


@dataclass(frozen=True)
class _Code:
    """Writes arithmetic on values of one LLVM type, a floating-point number or a vector of them."""

    builder: Any
    kind: Any

    @property
    def double(self) -> bool:
        """Whether numbers have 64 bits."""
        return bool(getattr(self.kind, "element", self.kind) == ir.DoubleType())

    def constant(self, value: float) -> Any:
        """Return a number, in every place."""
        return self._filled(self.kind, value)

    def bits(self, value: int) -> Any:
        """Return an integer of as many bits, in every place."""
        return self._filled(self._integers, value)

    @property
    def _integers(self) -> Any:
        whole = ir.IntType(64 if self.double else 32)
        count = getattr(self.kind, "count", None)
        return whole if count is None else ir.VectorType(whole, count)

    def _filled(self, kind: Any, value: float) -> Any:
        count = getattr(kind, "count", None)
        if count is None:
            return ir.Constant(kind, value)
        return ir.Constant(kind, [ir.Constant(kind.element, value)] * count)

    def spread(self, number: Any) -> Any:
        """Return a number that is known only when the code runs, in every place."""
        none = ir.Constant(self.kind, ir.Undefined)
        first = self.builder.insert_element(none, number, ir.IntType(32)(0))
        order = ir.Constant(ir.VectorType(ir.IntType(32), self.kind.count), None)
        return self.builder.shuffle_vector(first, none, order)

    def add(self, a: Any, b: Any) -> Any:
        """Return a + b."""
        return self.builder.fadd(a, b, flags=_JOINED)

    def subtract(self, a: Any, b: Any) -> Any:
        """Return a − b."""
        return self.builder.fsub(a, b, flags=_JOINED)

    def multiply(self, a: Any, b: Any) -> Any:
        """Return ab."""
        return self.builder.fmul(a, b, flags=_JOINED)

    def divide(self, a: Any, b: Any) -> Any:
        """Return a/b."""
        return self.builder.fdiv(a, b, flags=_JOINED)

    def minus(self, a: Any) -> Any:
        """Return −a."""
        return self.builder.fneg(a)

    def least(self, a: Any, b: Any) -> Any:
        """Return the smaller; NaN where ``a`` is."""
        return self.builder.select(self.builder.fcmp_ordered("<", b, a), b, a)

    def largest(self, a: Any, b: Any) -> Any:
        """Return the larger; NaN where ``a`` is."""
        return self.builder.select(self.builder.fcmp_ordered(">", b, a), b, a)

    def polynomial(self, x: Any, coefficients: Sequence[float]) -> Any:
        """Return Σ c_k x^k."""
        total = self.constant(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            total = self.add(self.multiply(total, x), self.constant(c))
        return total

    def times_power(self, x: Any, exponent: Any) -> Any:
        """Return x · 2ⁿ, n being the last bits of ``exponent``: they are added to x's own."""
        number, power = (self.builder.bitcast(v, self._integers) for v in (x, exponent))
        shifted = self.builder.shl(power, self.bits(52 if self.double else 23))
        return self.builder.bitcast(self.builder.add(number, shifted), self.kind)


def _write_exp(code: _Code, x: Any) -> Any:
    """Return exp(x) = 2ⁿ exp(r), |r| ≤ log(2)/2, by a Chebyshev series; |x| has a limit."""
    terms, digits, limit = (11, 52, 700.0) if code.double else (6, 23, 86.0)
    y = code.least(code.largest(x, code.constant(-limit)), code.constant(limit))
    # a number as large as 1.5 · 2^digits has its integer part as its last bits
    shift = code.constant(1.5 * 2**digits)
    shifted = code.add(code.multiply(y, code.constant(1 / math.log(2))), shift)
    n = code.subtract(shifted, shift)
    # log(2) in one piece: r errs by n roundings of it, no more than x does by its own rounding
    r = code.subtract(y, code.multiply(n, code.constant(math.log(2))))
    series = code.polynomial(r, _exponential(terms, math.log(2) / 2))
    return code.times_power(series, shifted)


def _write_sigmoid(code: _Code, x: Any) -> Any:
    """Return 1 / (1 + exp(−x))."""
    one = code.constant(1.0)
    return code.divide(one, code.add(one, _write_exp(code, code.minus(x))))


def _write_softplus(code: _Code, x: Any) -> Any:
    """Return log(1 + exp(x)) = max(x, 0) + 2 artanh(u / (2 + u)), u = exp(−|x|)."""
    zero = code.constant(0.0)
    terms = 17 if code.double else 8  # s² ≤ 1/9
    u = _write_exp(code, code.least(x, code.minus(x)))
    s = code.divide(u, code.add(code.constant(2.0), u))
    series = code.polynomial(code.multiply(s, s), [2 / (2 * k + 1) for k in range(terms)])
    return code.add(code.largest(x, zero), code.multiply(s, series))


def _write_slope(code: _Code, x: Any, bound: Any) -> Any:
    """Return the smaller of sigmoid(x) and a bound; NaN where x is."""
    return code.least(_write_sigmoid(code, x), bound)


def _exponential(terms: int, most: float) -> list[float]:
    """Return the coefficients of exp(x) = I₀(h) + 2 Σ I_k(h) T_k(x/h), cut off, for |x| ≤ h.

    It needs fewer terms than Taylor's series. Source: DLMF 10.35.5, at imaginary angles.
    """
    orders = np.arange(terms)
    series = np.where(orders == 0, 1, 2) * scipy.special.iv(orders, most)
    powers: list[float] = (np.polynomial.chebyshev.cheb2poly(series) / most**orders).tolist()
    return powers


def _of_numbers(write: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of numbers for numba."""

    @intrinsic  # type: ignore[untyped-decorator]
    def of_number(typing: Any, x: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return write(_Code(builder, arguments[0].type), *arguments)

        return x(x), build

    return of_number  # type: ignore[no-any-return]


_exp, _sigmoid, _softplus = map(_of_numbers, (_write_exp, _write_sigmoid, _write_softplus))


@intrinsic  # type: ignore[untyped-decorator]
def _slope_line(typing: Any, array: Any, place: Any, bound: Any) -> Any:
    """Overwrite the line of a contiguous array that begins at a place by :func:`_write_slope`."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, start, most = arguments
        size = array.dtype.bitwidth // 8
        kind = ir.VectorType(context.get_value_type(array.dtype), _LINE // size)
        data = context.make_array(array)(context, builder, target).data
        where = builder.bitcast(builder.gep(data, [start]), kind.as_pointer())
        code = _Code(builder, kind)
        slope = _write_slope(code, builder.load(where, align=size), code.spread(most))
        builder.store(slope, where, align=size)
        return context.get_dummy_value()

    return types.void(array, place, bound), build
