"""Compiled training of logistic regression's rows by numba, with the extra ``fast``.

Gradients are those of :class:`bdpvi.bayesian.neighbours.row_gradients.LogisticGradient`, and steps
those of torch's Adam. It is faster because everything stays in the caches: a tile of rows, with its
moments, takes many steps before the next tile. Arrays have the rows last, and every innermost loop
runs over the rows of a tile, so that the compiler vectorises it: each lane is one row and runs the
same operations wherever it is in a tile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bdpvi._ground.host import HOST
from bdpvi.bayesian.neighbours.compiled_functions import compiled, exponential, softplus
from bdpvi.bayesian.neighbours.row_gradients import LogisticGradient, RowSteps
from bdpvi.guides import FullRank, MeanField

Array = NDArray[Any]

_LANES = 256
"""Rows of a tile: enough for a loop's overhead, few enough for the L2 cache."""

_BLOCK = 8
"""Records per block of logits in a tile, even and a multiple of :data:`_UNROLLED`."""

_UNROLLED = 4
"""Rows and columns of a matrix that :func:`_add_product` keeps in registers."""


class _Steps(NamedTuple):
    """A :class:`RowSteps` as arrays; batches lie one after the other, each in whole blocks."""

    x: Array  # (records, features)
    bound: Array  # (records,)
    ends: Array  # of batches, (steps + 1,)
    noise: Array  # (steps, d)
    adam: Array  # (steps, 5)
    scale: Array  # prior precision and 1/rate, (2,)


class _Own(NamedTuple):
    """The rows' own records."""

    x: Array  # (d, m)
    bound: Array  # (m,)
    sign: float
    rows: Array  # those whose record is in a batch, step by step, in order
    ends: Array  # of steps, (steps + 1,)


@dataclass(frozen=True)
class CompiledGradient(LogisticGradient):
    """A :class:`bdpvi.bayesian.neighbours.row_gradients.TakesSteps` of logistic regression, on a
    processor.

    Its parameters are the location, the scales and, row by row, the Cholesky factor's entries below
    the diagonal. A mean-field guide has none below.

    Args:
        model: a model without record weights.
        guide: a guide that :meth:`knows` accepts.
        rate: sampling rate of the batches.
    """

    @staticmethod
    def knows(guide: object) -> TypeGuard[MeanField | FullRank]:
        """Return whether the kernels support the guide.

        >>> from bdpvi.models.logistic import BayesianLogisticRegression
        >>> CompiledGradient.knows(FullRank(BayesianLogisticRegression.unweighted()))
        True
        """
        return type(guide) in (MeanField, FullRank)

    def packed(self, start: Mapping[str, Tensor]) -> Tensor:
        """Return one row's parameters, (2d,) or (2d + d(d − 1)/2,)."""
        if "scale" in start:
            return torch.cat([start["loc"], start["scale"]])
        factor = start["scale_tril"]
        return torch.cat([start["loc"], factor[_triangle(len(factor))]])

    def unpacked(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the parameters of m rows, from (entries, m), in the guide's form."""
        d, m = self.guide.dim, flat.shape[1]
        loc, raw = flat[:d].T, flat[d:].T
        if type(self.guide) is MeanField:
            return {"loc": loc, "scale": raw}
        factor = flat.new_zeros(m, d, d)
        row, column = _triangle(d)
        factor[:, row, column] = raw
        return {"loc": loc, "scale_tril": factor}

    def train(
        self,
        state: tuple[Tensor, Tensor, Tensor],
        extra: tuple[Tensor, ...],
        sign: float,
        run: RowSteps,
    ) -> None:
        """Take steps of Adam, see :class:`bdpvi.bayesian.neighbours.row_gradients.TakesSteps`."""
        like, own = state[0], [rows.sort().values for rows in run.mine]
        x, bound = _in_blocks([part[torch.cat(list(run.here))] for part in run.seen], run.here)
        seeded = [torch.Generator().manual_seed(seed) for seed in run.seeds]
        noise = [
            torch.randn(self.guide.dim, generator=g, dtype=x.dtype, device=HOST) for g in seeded
        ]
        precision = self.model.precision(self.guide.dim)
        scale = torch.tensor([precision, 1 / self.rate], dtype=x.dtype)
        steps = _Steps(
            torch.nn.functional.pad(x, (0, -x.shape[1] % _UNROLLED)).numpy(),
            bound.squeeze(1).numpy(),
            _ends([-(-len(part) // _BLOCK) * _BLOCK for part in run.here]),
            torch.stack(noise).numpy(),
            run.adam.to(x.dtype).numpy(),
            scale.numpy(),
        )
        own_x, own_bound = (part.T.contiguous().numpy() for part in extra)
        number = like.numpy().dtype.type
        ends = _ends([len(rows) for rows in own])
        records = _Own(own_x, own_bound[0], number(sign), torch.cat(own).numpy(), ends)
        free, one, two = (part.numpy() for part in state)
        _train(free, one, two, steps, records)


def _triangle(size: int) -> tuple[Tensor, Tensor]:
    """Return the rows and columns of a matrix's diagonal, then of the entries below it."""
    diagonal = torch.arange(size)
    row, column = torch.tril_indices(size, size, -1)
    return torch.cat([diagonal, row]), torch.cat([diagonal, column])


def _in_blocks(records: Sequence[Tensor], batches: Sequence[Tensor]) -> list[Tensor]:
    """Return batches padded to whole blocks with records of zeros, whose gradient is 0."""
    filled = []
    for part in records:
        pieces = []
        for piece in part.split([len(batch) for batch in batches]):
            pieces += [piece, part.new_zeros(-len(piece) % _BLOCK, *part.shape[1:])]
        filled.append(torch.cat(pieces))
    return filled


def _ends(lengths: Sequence[int]) -> Array:
    """Return the start of each part, and the end of the last."""
    return np.cumsum([0, *lengths])


@compiled
def _train(free: Array, one: Array, two: Array, steps: _Steps, own: _Own) -> None:
    """Train every row; parameters and their moments are (entries, m)."""
    entries, m = free.shape
    width, dtype = steps.x.shape[1], free.dtype
    values, first, second = (
        np.zeros((entries, _LANES), dtype),
        np.zeros((entries, _LANES), dtype),
        np.zeros((entries, _LANES), dtype),
    )
    latent, gradient = np.zeros((width, _LANES), dtype), np.zeros((width, _LANES), dtype)
    slopes = np.zeros((_BLOCK, _LANES), dtype)
    scales = np.zeros((2 * steps.noise.shape[1], _LANES), dtype)
    reached = own.ends[:-1].copy()
    for start in range(0, m, _LANES):
        count = min(_LANES, m - start)
        values[:, :count] = free[:, start : start + count]
        first[:, :count] = one[:, start : start + count]
        second[:, :count] = two[:, start : start + count]
        for step in range(len(steps.noise)):
            _draw(values, steps.noise[step], latent, scales)
            gradient[:] = 0
            for i in range(steps.ends[step], steps.ends[step + 1], _BLOCK):
                block = steps.x[i : i + _BLOCK]
                slopes[:] = 0
                _add_product(block, latent, slopes)
                _slopes(slopes, steps.bound[i : i + _BLOCK])
                _add_product(block.T, slopes, gradient)
            now = reached[step]
            while now < own.ends[step + 1] and own.rows[now] < start + count:
                _add_own(own, own.rows[now], start, latent, gradient)
                now += 1
            reached[step] = now
            _step(values, first, second, steps, step, latent, gradient, scales)
        free[:, start : start + count] = values[:, :count]
        one[:, start : start + count] = first[:, :count]
        two[:, start : start + count] = second[:, :count]


@compiled
def _draw(values: Array, noise: Array, latent: Array, scales: Array) -> None:
    """Write the latents, the location plus the factor times the noise, and softplus of the scales.

    ``scales`` are the d deviations, then the d derivatives of softplus.
    """
    d, entry = len(noise), 2 * len(noise)
    for i in range(d):
        for k in range(_LANES):
            deviation, slope = softplus(values[d + i, k])
            scales[i, k] = deviation
            scales[d + i, k] = slope
            latent[i, k] = values[i, k] + deviation * noise[i]
        if len(values) > 2 * d:
            for j in range(i):
                for k in range(_LANES):
                    latent[i, k] += values[entry, k] * noise[j]
                entry += 1


@compiled
def _add_product(a: Array, b: Array, out: Array) -> None:
    """Add the product of (n, p) and (p, lanes) to (n, lanes); n and p are multiples of four."""
    for i in range(0, a.shape[0], _UNROLLED):
        for j in range(0, a.shape[1], _UNROLLED):
            a00, a01, a02, a03 = a[i, j], a[i, j + 1], a[i, j + 2], a[i, j + 3]
            a10, a11, a12, a13 = a[i + 1, j], a[i + 1, j + 1], a[i + 1, j + 2], a[i + 1, j + 3]
            a20, a21, a22, a23 = a[i + 2, j], a[i + 2, j + 1], a[i + 2, j + 2], a[i + 2, j + 3]
            a30, a31, a32, a33 = a[i + 3, j], a[i + 3, j + 1], a[i + 3, j + 2], a[i + 3, j + 3]
            for k in range(_LANES):
                b0, b1, b2, b3 = b[j, k], b[j + 1, k], b[j + 2, k], b[j + 3, k]
                out[i, k] += a00 * b0 + a01 * b1 + a02 * b2 + a03 * b3
                out[i + 1, k] += a10 * b0 + a11 * b1 + a12 * b2 + a13 * b3
                out[i + 2, k] += a20 * b0 + a21 * b1 + a22 * b2 + a23 * b3
                out[i + 3, k] += a30 * b0 + a31 * b1 + a32 * b2 + a33 * b3


@compiled
def _slopes(logits: Array, bound: Array) -> None:
    """Overwrite logits by the smaller of their sigmoid and each record's bound.

    Two records share a division, 1/a = b · 1/(ab). To keep products finite, logits are clipped at
    half of exp's range: there a sigmoid is less than 1e-18 from 0 or rounds to 1.
    """
    one, half = logits.dtype.type(1), logits.dtype.type(0.5)
    for i in range(0, len(logits), 2):
        most, most_next = bound[i], bound[i + 1]
        for k in range(_LANES):
            a = one + exponential(-logits[i, k], half)
            b = one + exponential(-logits[i + 1, k], half)
            inverse = one / (a * b)
            slope, slope_next = b * inverse, a * inverse
            logits[i, k] = most if most < slope else slope
            logits[i + 1, k] = most_next if most_next < slope_next else slope_next


@compiled
def _add_own(own: _Own, row: int, start: int, latent: Array, gradient: Array) -> None:
    """Add a row's own record; ``start`` is the first row of its tile."""
    k, one = row - start, latent.dtype.type(1)
    logit = own.x[0, row] * latent[0, k]
    for j in range(1, len(own.x)):
        logit += own.x[j, row] * latent[j, k]
    slope = one / (one + exponential(-logit, one))
    slope = own.sign * (own.bound[row] if own.bound[row] < slope else slope)
    for j in range(len(own.x)):
        gradient[j, k] += slope * own.x[j, row]


@compiled
def _step(
    values: Array,
    first: Array,
    second: Array,
    steps: _Steps,
    step: int,
    latent: Array,
    gradient: Array,
    scales: Array,
) -> None:
    """Take a step of Adam; ``gradient`` is that of the batch's likelihood in the latents.

    With the prior's it is the location's gradient g. A deviation σ has (g · noise − 1/σ), by the
    entropy's log σ, times the derivative of softplus; entries below the diagonal have g · noise.
    """
    noise, one = steps.noise[step], values.dtype.type(1)
    d, entry = len(noise), 2 * len(noise)
    prior, scale = steps.scale[0], steps.scale[1]
    for i in range(d):
        for k in range(_LANES):
            gradient[i, k] = prior * latent[i, k] + scale * gradient[i, k]
            scales[d + i, k] *= gradient[i, k] * noise[i] - one / scales[i, k]
        _adam(values, first, second, i, gradient[i], one, steps.adam[step])
        _adam(values, first, second, d + i, scales[d + i], one, steps.adam[step])
        if len(values) > 2 * d:
            for j in range(i):
                _adam(values, first, second, entry, gradient[i], noise[j], steps.adam[step])
                entry += 1


@compiled
def _adam(
    values: Array,
    first: Array,
    second: Array,
    entry: int,
    slope: Array,
    times: float,
    factors: Array,
) -> None:
    """Update one entry of all rows by ``times`` a slope, see ``optimisers.adam_factors``."""
    rate, fresh_one, fresh_two, root, small = factors
    for k in range(_LANES):
        gradient = times * slope[k]
        mean = first[entry, k] + fresh_one * (gradient - first[entry, k])
        square = second[entry, k] + fresh_two * (gradient * gradient - second[entry, k])
        first[entry, k], second[entry, k] = mean, square
        values[entry, k] -= rate * mean / (np.sqrt(square) * root + small)
