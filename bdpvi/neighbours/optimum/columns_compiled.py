"""Small problems side by side in machine code, by numba: the faster ``optimum.columns``.

A tile of columns stays in the cache from the first operation to the last. Each lane of it is one
column, and goes through the same operations whatever the others hold.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from bdpvi._runtime.vectors import (
    DOUBLES,
    LINE,
    Array,
    Lines,
    Value,
    Variable,
    compiled,
    each,
    kernel,
)
from bdpvi.neighbours.optimum.columns import Columns, dimension
from bdpvi.neighbours.optimum.monomials import add_product, number

_HIGHEST = 4
"""Degree up to which there are kernels for moments."""

_LARGEST = 50
"""Variables up to which Jacobi's method is no slower than LAPACK's."""

_BLOCK = 512
"""Bytes of a moment of as many columns as stay in the cache; a multiple of a line."""

_SWEEPS = 30
"""Jacobi's method takes about six."""


class CompiledColumns(Columns):
    """What :class:`Columns` does, in machine code, on a processor."""

    def inverses(self, packed: Tensor) -> Tensor:
        """By Gauss and Jordan, without pivoting."""
        d = dimension(len(packed))
        if d > _LARGEST:
            return super().inverses(packed)
        out = torch.empty_like(packed, memory_format=torch.contiguous_format)
        _inverses(packed.contiguous().numpy(), out.numpy(), d)
        return out

    def spectra(self, packed: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """By Jacobi's method: Golub and Van Loan, Matrix Computations, § 8.5.

        Entries off the diagonal below 1e-17 of the Frobenius norm are left alone, so that a matrix
        that has come to its end stays as it is while others of its line go on.

        Raises:
            FloatingPointError: if the method does not end.
        """
        if len(vectors) > _LARGEST:
            return super().spectra(packed, vectors)
        matrices, parts = packed.contiguous().numpy(), vectors.contiguous().numpy()
        values, squares = torch.empty_like(vectors), torch.empty_like(vectors)
        if not _spectra(matrices, parts, values.numpy(), squares.numpy()):
            raise FloatingPointError("the eigenvalues of a matrix cannot be found")
        return values, squares

    def expected(self, tensors: Mapping[int, Tensor], mean: Tensor, covariance: Tensor) -> Tensor:
        """A few columns at a time, whose moments stay in the cache."""
        if max(tensors) > _HIGHEST:
            return super().expected(tensors, mean, covariance)
        d, m = mean.shape
        arrays = mean.contiguous().numpy(), covariance.contiguous().numpy()
        ends = [sum(number(d, k) for k in range(n + 1)) for n in range(max(tensors) + 1)]
        # Reused, as memory that is new to a process costs more than what is computed in it.
        values = mean.new_empty(ends[-1], _BLOCK // mean.itemsize)
        total = mean.new_zeros(len(next(iter(tensors.values()))), m)
        for start in range(0, m, values.shape[1]):
            _moments(*arrays, start, max(tensors), values.numpy())
            sums = total[:, start : start + values.shape[1]]
            for k, tensor in tensors.items():
                add_product(sums, tensor, values[ends[k - 1] : ends[k], : sums.shape[1]])
        return total

    def changes(
        self, slopes: Tensor, a: Tensor, s: Tensor, degree: int, lowest: int = 1
    ) -> tuple[Tensor, Tensor]:
        """In registers; the results take the places of ``a`` and ``s``."""
        first, second = a.contiguous(), s.contiguous()
        _changes(slopes.contiguous().numpy(), first.numpy(), second.numpy(), degree, lowest)
        return first, second


@compiled
def _moments(mean: Array, covariance: Array, start: int, degree: int, out: Array) -> None:
    """Write the moments of the columns from ``start`` on, after those of degree 0, to ``out``."""
    d, width = len(mean), out.shape[1]
    m = min(width, mean.shape[1] - start)
    covariances = np.zeros((len(covariance), width), mean.dtype)
    covariances[:, :m] = covariance[:, start : start + m]
    out[0] = 1
    out[1 : 1 + d, :m] = mean[:, start : start + m]
    out[1 : 1 + d, m:] = 0
    for lane in range(0, width, LINE // out.itemsize):
        _second(out, covariances, d, width, lane)
        if degree > 2:
            _third(out, covariances, d, width, lane)
        if degree > 3:
            _fourth(out, covariances, d, width, lane)


@compiled
def _inverses(packed: Array, out: Array, d: int) -> None:
    q, m = packed.shape
    matrix, row = np.ones(q * DOUBLES), np.zeros(d * DOUBLES)
    for start in range(0, m, DOUBLES):
        end = min(start + DOUBLES, m)
        tile = matrix.reshape(q, DOUBLES)[:, : end - start]
        tile[:] = packed[:, start:end]
        for k in range(d):
            _pivot(matrix, row, k, d)
        out[:, start:end] = -tile


@compiled
def _spectra(packed: Array, vectors: Array, values: Array, squares: Array) -> bool:
    """Write eigenvalues and squares of the vectors' parts; return whether all were found."""
    (q, m), d = packed.shape, len(vectors)
    matrix, vector = np.zeros(q * DOUBLES), np.zeros(d * DOUBLES)
    least, moved = np.zeros(DOUBLES), np.zeros(DOUBLES)
    for start in range(0, m, DOUBLES):
        end = min(start + DOUBLES, m)
        tile = matrix.reshape(q, DOUBLES)[:, : end - start]
        parts = vector.reshape(d, DOUBLES)[:, : end - start]
        tile[:] = packed[:, start:end]
        parts[:] = vectors[:, start:end]
        _negligible(matrix, least, d)
        for _ in range(_SWEEPS):
            moved[:] = 0
            _sweep(matrix, vector, least, moved, d)
            if not moved.any():
                break
        else:
            return False
        for j in range(d):
            values[j, start:end] = tile[j * (j + 3) // 2]
        squares[:, start:end] = parts * parts
    return True


@compiled
def _changes(slopes: Array, a: Array, s: Array, degree: int, lowest: int) -> None:
    """Overwrite shifts and shares of n records in m columns by changes of D_1 and D_2."""
    n, m = a.shape
    line = LINE // a.itemsize
    whole = m - m % line
    inverses = (1 / np.arange(1, degree + 1)).astype(a.dtype)
    last_a, last_s = np.zeros(line, a.dtype), np.zeros(line, a.dtype)
    for row in range(n):
        for place in range(row * m, row * m + whole, line):
            _series(slopes, inverses, a, s, row, place, degree, lowest)
        if whole < m:
            last_a[: m - whole], last_s[: m - whole] = a[row, whole:], s[row, whole:]
            _series(slopes, inverses, last_a, last_s, row, 0, degree, lowest)
            a[row, whole:], s[row, whole:] = last_a[: m - whole], last_s[: m - whole]


@kernel
def _series(
    slopes: Lines,
    inverses: Lines,
    a: Lines,
    s: Lines,
    row: Value,
    place: Value,
    degree: Value,
    lowest: Value,
) -> None:
    """Overwrite a line of shifts and of shares, see ``series.changes``."""
    shift, share, records = a[place], s[place], slopes.shape[1]
    before, heat, first, second = (Variable(shift.of(k)) for k in (0, 1, 0, 0))

    def grow(k: Value) -> None:
        after = (shift * heat.now + share * before.now) * inverses.number(k - 1)
        before.now, heat.now = heat.now, after

    with each(lowest - 1) as k:
        grow(k + 1)
    with each(degree - lowest + 1) as i:
        k = lowest + i
        grow(k)
        first.now = first.now + slopes.number((k + 1) * records + row) * heat.now
        second.now = second.now + slopes.number((k + 2) * records + row) * heat.now
    a[place], s[place] = first.now, second.now


@kernel
def _second(values: Lines, covariance: Lines, d: Value, width: Value, lane: Value) -> None:
    """Write a line of E u_a u_j, a ≤ j, the second after ``values`` of degree 0 and 1."""
    place = Variable((1 + d) * width + lane)
    with each(d) as j:
        mean = values[(1 + j) * width + lane]
        with each(j + 1) as a:
            product = mean * values[(1 + a) * width + lane]
            values[place.now] = product + covariance[_packed(a, j) * width + lane]
            place.now = place.now + width


@kernel
def _third(values: Lines, covariance: Lines, d: Value, width: Value, lane: Value) -> None:
    """Write a line of E u_a u_b u_j, a ≤ b ≤ j, after those of degree 2."""
    second = 1 + d
    place = Variable((second + d * (d + 1) / 2) * width + lane)
    with each(d) as j:
        mean, rest = values[(1 + j) * width + lane], Variable(second * width + lane)
        with each(j + 1) as b:
            other, along = values[(1 + b) * width + lane], covariance[_packed(b, j) * width + lane]
            with each(b + 1) as a:
                total = mean * values[rest.now] + along * values[(1 + a) * width + lane]
                values[place.now] = total + covariance[_packed(a, j) * width + lane] * other
                place.now, rest.now = place.now + width, rest.now + width


@kernel
def _fourth(values: Lines, covariance: Lines, d: Value, width: Value, lane: Value) -> None:
    """Write a line of E u_a u_b u_c u_j, a ≤ b ≤ c ≤ j, after those of degree 3."""
    second = 1 + d
    third = second + d * (d + 1) / 2
    place = Variable((third + d * (d + 1) * (d + 2) / 6) * width + lane)

    def pair(a: Value, b: Value) -> Value:
        return values[(second + _packed(a, b)) * width + lane]

    with each(d) as j:
        mean, rest = values[(1 + j) * width + lane], Variable(third * width + lane)

        def along(a: Value, j: Value = j) -> Value:
            return covariance[_packed(a, j) * width + lane]

        with each(j + 1) as c:
            along_c = along(c)
            with each(c + 1) as b:
                along_b, without_a = along(b), pair(b, c)
                with each(b + 1) as a:
                    total = mean * values[rest.now] + along(a) * without_a
                    total = total + along_b * pair(a, c) + along_c * pair(a, b)
                    values[place.now] = total
                    place.now, rest.now = place.now + width, rest.now + width


@kernel
def _pivot(matrix: Lines, row: Lines, k: Value, d: Value) -> None:
    """Sweep a symmetric matrix on pivot k: once on each, it is the inverse with the sign changed.

    Source: Goodnight, A Tutorial on the SWEEP Operator, The American Statistician 33 (1979).
    """
    share = 1 / matrix[_entry(k, k)]
    with each(k) as i:
        row[i * DOUBLES] = matrix[_entry(i, k)]
    row[k * DOUBLES] = share.of(0)
    with each(d - k - 1) as i:
        row[(k + 1 + i) * DOUBLES] = matrix[_entry(k, k + 1 + i)]
    with each(d) as j:
        part = row[j * DOUBLES] * share
        with each(j + 1) as i:
            matrix[_entry(i, j)] = matrix[_entry(i, j)] - row[i * DOUBLES] * part
    with each(k) as i:
        matrix[_entry(i, k)] = row[i * DOUBLES] * share
    with each(d - k - 1) as i:
        matrix[_entry(k, k + 1 + i)] = row[(k + 1 + i) * DOUBLES] * share
    matrix[_entry(k, k)] = -share


@kernel
def _negligible(matrix: Lines, least: Lines, d: Value) -> None:
    """Write which entries off the diagonal count as 0; squares of smaller ones may underflow."""
    total = matrix.variable(0)
    with each(d) as j, each(j + 1) as i:
        entry = matrix[_entry(i, j)]
        total.now = total.now + entry * entry
    least[d.of(0)] = (total.now.root() * 1e-17).largest(1e-150)


@kernel
def _sweep(matrix: Lines, vector: Lines, least: Lines, moved: Lines, d: Value) -> None:
    """Rotate each pair of axes p < q so that a_pq becomes 0; write 1 where one was not already."""
    none = d.of(0)
    with each(d) as q, each(q) as p:
        first, last, off = (matrix[_entry(*at)] for at in ((p, p), (q, q), (p, q)))
        size, zero, bound = off.largest(-off), off.of(0), least[none]
        apart = (last - first) * 0.5
        length = (apart * apart + off * off).root()
        tangent = off / apart.where("<", 0, apart - length, apart + length)
        tangent = size.where(">", bound, tangent, zero)
        moved[none] = size.where(">", bound, off.of(1), moved[none])
        cosine = 1 / (1 + tangent * tangent).root()
        sine = tangent * cosine

        def turn(lines: Lines, one: Value, other: Value) -> None:
            a, b = lines[one], lines[other]
            lines[one], lines[other] = cosine * a - sine * b, sine * a + cosine * b

        with each(p) as k:
            turn(matrix, _entry(k, p), _entry(k, q))
        with each(q - p - 1) as k:
            turn(matrix, _entry(p, p + 1 + k), _entry(p + 1 + k, q))
        with each(d - q - 1) as k:
            turn(matrix, _entry(p, q + 1 + k), _entry(q, q + 1 + k))
        turn(vector, p * DOUBLES, q * DOUBLES)
        matrix[_entry(p, p)] = first - tangent * off
        matrix[_entry(q, q)] = last + tangent * off
        matrix[_entry(p, q)] = size.where(">", bound, zero, off)


def _entry(i: Value, j: Value) -> Value:
    """Return where the line of the entry in row i and column j ≥ i is."""
    return _packed(i, j) * DOUBLES


def _packed(i: Value, j: Value) -> Value:
    """Return which entry of a packed matrix is in row i and column j ≥ i."""
    return j * (j + 1) / 2 + i
