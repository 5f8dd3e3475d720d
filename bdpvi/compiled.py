"""Logistic regression's rows in machine code, by numba: what the extra ``fast`` adds.

The numbers are those of :class:`bdpvi.rows.LogisticGradient`. The gain is that a slope never leaves
the first cache: rows are taken by the tile, records by the four, and the sigmoid, written as a
polynomial, is as fast in vectors as the products around it. Arrays have the rows last; each lane of
a tile is one row, and does the same operations wherever in a tile it lies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, TypeVar

import numpy as np
import torch
from numba import njit, types
from numba.extending import intrinsic, overload
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

_OPTIONS = {"error_model": "numpy", "fastmath": {"contract"}}
"""Division by zero gives inf, as in torch; a product and a sum may become one instruction."""


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
        return type(guide) in _KERNELS

    def see(self, data: Any) -> tuple[Tensor, Tensor]:
        """Return (1 − 2y)·design, with columns of zeros up to whole blocks, and slope bounds."""
        design = self.model.design(data.x)
        signed = (1 - 2 * data.y).unsqueeze(1) * design
        padding = -design.shape[1] % _BLOCK
        return torch.nn.functional.pad(signed, (0, padding)), self.model.slope_bound(design)

    def packed(self, start: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a Cholesky factor as its lower triangle, row by row, (d(d + 1)/2,)."""
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
        x, bound = batch
        noise = torch.randn(self.guide.dim, generator=generator, dtype=x.dtype)
        kernel, names = _KERNELS[type(self.guide)]
        number = x.numpy().dtype.type
        written = [_rows_last(out[name]) for name in names]
        kernel(
            *(_rows_last(free[name]) for name in names),
            noise.numpy(),
            x.contiguous().numpy(),
            bound.contiguous().numpy(),
            *(_rows_last(part) for part in extra),
            weight.contiguous().numpy(),
            number(self.model.prior_scale**-2),
            number(1 / self.rate),
            *written,
        )
        for name, array in zip(names, written, strict=True):
            target = out[name].movedim(0, -1)
            if target.data_ptr() != array.ctypes.data:
                target.copy_(torch.from_numpy(array))


def _triangle(size: int) -> Tensor:
    """Return the places of a matrix's lower triangle, row by row, (2, size(size + 1)/2)."""
    return torch.tril_indices(size, size)


def _rows_last(tensor: Tensor) -> Array:
    """Return (m, ...) as (..., m): the same memory where it is laid out so."""
    return tensor.movedim(0, -1).contiguous().numpy()


@_compiled
def _mean_field(
    loc: Array,
    raw: Array,
    noise: Array,
    x: Array,
    bound: Array,
    x_extra: Array,
    bound_extra: Array,
    weight: Array,
    prior: float,
    scale: float,
    loc_out: Array,
    raw_out: Array,
) -> None:
    """Write the gradient of a mean-field guide's rows; ``loc`` and ``raw`` are (d, m).

    ``raw_out`` holds the standard deviations in between.
    """
    d, m = loc.shape
    w, g, a = _space(x)
    for start in range(0, m, _LANES):
        end = min(start + _LANES, m)
        for j in range(d):
            deviation = raw_out[j, start:end]
            _draw(loc[j, start:end], raw[j, start:end], noise[j], deviation, w[j * _LANES :])
        _loss_gradient(x, bound, w, g, a)
        _whole(x_extra, bound_extra, weight, prior, scale, start, w, g, a, loc_out)
        for j in range(d):
            _pull(loc_out[j, start:end], raw[j, start:end], noise[j], raw_out[j, start:end])


@_compiled
def _full_rank(
    loc: Array,
    raw: Array,
    noise: Array,
    x: Array,
    bound: Array,
    x_extra: Array,
    bound_extra: Array,
    weight: Array,
    prior: float,
    scale: float,
    loc_out: Array,
    raw_out: Array,
) -> None:
    """Write the gradient of a full-rank guide's rows; ``raw`` is packed, (d(d + 1)/2, m).

    The diagonal of ``raw_out`` holds that of the Cholesky factor in between.
    """
    d, m = loc.shape
    w, g, a = _space(x)
    for start in range(0, m, _LANES):
        end = min(start + _LANES, m)
        for i in range(d):
            latent, first = w[i * _LANES :], i * (i + 1) // 2
            deviation, diagonal = raw_out[first + i, start:end], raw[first + i, start:end]
            _draw(loc[i, start:end], diagonal, noise[i], deviation, latent)
            for j in range(i):
                _add(raw[first + j, start:end], noise[j], latent)
        _loss_gradient(x, bound, w, g, a)
        _whole(x_extra, bound_extra, weight, prior, scale, start, w, g, a, loc_out)
        for i in range(d):
            gradient, first = loc_out[i, start:end], i * (i + 1) // 2
            for j in range(i):
                _multiply(gradient, noise[j], raw_out[first + j, start:end])
            _pull(gradient, raw[first + i, start:end], noise[i], raw_out[first + i, start:end])


_KERNELS: dict[type, tuple[Callable[..., None], tuple[str, str]]] = {
    MeanField: (_mean_field, ("loc", "scale")),
    FullRank: (_full_rank, ("loc", "scale_tril")),
}


@_compiled
def _draw(loc: Array, raw: Array, noise: float, deviation: Array, latent: Array) -> None:
    """Write softplus(raw) and the draw with it; the vectors have an entry for each row."""
    for k in range(len(loc)):
        deviation[k] = _softplus(raw[k])
    for k in range(len(loc)):
        latent[k] = loc[k] + deviation[k] * noise


@_compiled
def _pull(gradient: Array, raw: Array, noise: float, deviation: Array) -> None:
    """Overwrite softplus(raw) by the gradient in raw of the loss less the entropy, its log."""
    one = gradient.dtype.type(1)
    for k in range(len(gradient)):
        deviation[k] = (gradient[k] * noise - one / deviation[k]) * _sigmoid(raw[k])


@_compiled
def _add(vector: Array, factor: float, out: Array) -> None:
    for k in range(len(vector)):
        out[k] += vector[k] * factor


@_compiled
def _multiply(vector: Array, factor: float, out: Array) -> None:
    for k in range(len(vector)):
        out[k] = vector[k] * factor


@_compiled
def _space(x: Array) -> tuple[Array, Array, Array]:
    """Return room for a tile's latents and their gradient, by the padded features, and slopes."""
    entries = x.shape[1] * _LANES
    slopes = np.zeros(_BLOCK * _LANES, x.dtype)
    return np.zeros(entries, x.dtype), np.zeros(entries, x.dtype), slopes


@_compiled
def _loss_gradient(x: Array, bound: Array, w: Array, g: Array, a: Array) -> None:
    """Write the gradient of the batch's loss in the latents ``w`` of a tile's rows to ``g``."""
    records = len(x)
    g[:] = 0
    for i in range(0, records - records % _BLOCK, _BLOCK):
        _add_block(x[i : i + _BLOCK], bound[i : i + _BLOCK], w, g, a)
    if records % _BLOCK:
        rest = np.zeros((_BLOCK, x.shape[1]), x.dtype)  # a record of zeros has no gradient
        bounds = np.zeros(_BLOCK, x.dtype)
        for i in range(records - records % _BLOCK, records):
            rest[i % _BLOCK] = x[i]
            bounds[i % _BLOCK] = bound[i]
        _add_block(rest, bounds, w, g, a)


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
        most = bound[i]
        row = a[i * _LANES : (i + 1) * _LANES]
        for k in range(_LANES):
            row[k] = _least(_sigmoid(row[k]), most)
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


@_compiled
def _whole(
    x: Array,
    bound: Array,
    weight: Array,
    prior: float,
    scale: float,
    start: int,
    w: Array,
    g: Array,
    a: Array,
    out: Array,
) -> None:
    """Write the latents' whole gradient to ``out``: batch, each row's extra record, prior."""
    d, m = out.shape
    end = min(start + _LANES, m)
    a[:] = 0
    for j in range(d):
        row, latent = x[j, start:end], w[j * _LANES :]
        for k in range(len(row)):
            a[k] += row[k] * latent[k]
    most, sign = bound[start:end], weight[start:end]
    for k in range(len(sign)):
        a[k] = sign[k] * _least(_sigmoid(a[k]), most[k])
    for j in range(d):
        row, latent, loss = x[j, start:end], w[j * _LANES :], g[j * _LANES :]
        gradient = out[j, start:end]
        for k in range(len(row)):
            gradient[k] = prior * latent[k] + scale * (loss[k] + a[k] * row[k])


def _least(value: Any, bound: Any) -> Any:
    """Return the smaller; NaN where the value is."""


def _sigmoid(x: Any) -> Any:
    """Return 1 / (1 + exp(−x))."""


def _softplus(x: Any) -> Any:
    """Return log(1 + exp(x)) = max(x, 0) + 2 artanh(u / (2 + u)), u = exp(−|x|)."""


def _exp(x: Any) -> Any:
    """Return exp(x) = 2ⁿ exp(r), |r| ≤ log(2)/2, by Taylor's series; |x| counts up to a limit."""


def _inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let the builder, called with numba's types, say what stands for a function in kernels."""
    decorator: Callable[..., Any] = overload(
        function, jit_options={"forceinline": True, **_OPTIONS}
    )
    return decorator


@_inlined(_least)
def _build_least(value: Any, bound: Any) -> Any:
    def least(value: Any, bound: Any) -> Any:
        return bound if bound < value else value

    return least


@_inlined(_sigmoid)
def _build_sigmoid(x: Any) -> Any:
    one = _number(x)(1)

    def sigmoid(x: Any) -> Any:
        return one / (one + _exp(-x))

    return sigmoid


@_inlined(_softplus)
def _build_softplus(x: Any) -> Any:
    zero, two = _number(x)(0), _number(x)(2)
    terms = 17 if x == types.float64 else 8  # s² ≤ 1/9
    series = _polynomial([2 / (2 * k + 1) for k in range(terms)])

    def softplus(x: Any) -> Any:
        u = _exp(-x if x > zero else x)
        s = u / (two + u)
        return (x if x > zero else zero) + s * series(s * s)

    return softplus


@_inlined(_exp)
def _build_exp(x: Any) -> Any:
    number = _number(x)
    double = x == types.float64
    terms, digits, limit = (13, 52, number(700)) if double else (8, 23, number(86))
    series = _polynomial([1 / math.factorial(k) for k in range(terms)])
    per, log2 = number(1 / math.log(2)), number(math.log(2))
    shift = number(1.5 * 2**digits)  # a number this large has its integer part as its last bits

    def exp(x: Any) -> Any:
        low = -limit if x < -limit else x
        y = limit if low > limit else low
        shifted = y * per + shift
        # log(2) in one piece: r errs by n roundings of it, no more than x does by its own rounding
        return _times_power(series(y - (shifted - shift) * log2), shifted)

    return exp


def _polynomial(coefficients: Sequence[float]) -> Callable[..., Any]:
    """Return Σ c_k x^k as straight code: a loop this long would not be unrolled, nor be vectors."""

    @intrinsic  # type: ignore[untyped-decorator]
    def horner(typing: Any, x: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            (at,) = arguments
            total = at.type(coefficients[-1])
            for c in reversed(coefficients[:-1]):
                product = builder.fmul(total, at, flags=("contract",))
                total = builder.fadd(product, at.type(c), flags=("contract",))
            return total

        return x(x), build

    return horner  # type: ignore[no-any-return]


@intrinsic  # type: ignore[untyped-decorator]
def _times_power(typing: Any, value: Any, shifted: Any) -> Any:
    """Return value · 2ⁿ, n being the last bits of ``shifted``: they are added to the exponent."""
    integer, digits = (types.int64, 52) if value == types.float64 else (types.int32, 23)

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = context.get_value_type(integer)
        number, power = (builder.bitcast(argument, bits) for argument in arguments)
        total = builder.add(number, builder.shl(power, bits(digits)))
        return builder.bitcast(total, context.get_value_type(value))

    return value(value, shifted), build


def _number(kind: Any) -> Callable[[float], Any]:
    return np.float64 if kind == types.float64 else np.float32
