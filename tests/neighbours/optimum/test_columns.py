"""Small problems side by side, by torch and in machine code, against slow independent ones."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bdpvi.neighbours.optimum.columns import Columns, columns_for, pack, unpack

pytest.importorskip("numba")
compiled = pytest.importorskip("bdpvi.neighbours.optimum.columns_compiled")

BOTH: Sequence[Columns] = [Columns(), compiled.CompiledColumns()]
both = pytest.mark.parametrize("columns", BOTH, ids=["torch", "machine code"])
CPU = torch.device("cpu")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def symmetric(d: int, m: int, seed: int = 0) -> Tensor:
    matrices = normal(m, d, d, seed=seed)
    return matrices + matrices.mT


@given(d=st.integers(1, 6), m=st.integers(0, 40))
def test_packed_matrices_are_upper_triangles_by_column(d: int, m: int) -> None:
    matrices = symmetric(d, m)
    packed = pack(matrices)
    upper = [(i, j) for j in range(d) for i in range(j + 1)]
    assert packed.shape == (len(upper), m)
    for entry, (i, j) in zip(packed, upper, strict=True):
        assert torch.equal(entry, matrices[:, i, j])
    assert torch.equal(unpack(packed), matrices)


@both
@pytest.mark.parametrize(("d", "m"), [(1, 1), (2, 7), (5, 16), (14, 33), (60, 3)])
def test_inverses_equal_those_of_many_digits(columns: Columns, d: int, m: int) -> None:
    roots = normal(m, d, d) / math.sqrt(d)
    matrices = torch.eye(d) + roots @ roots.mT
    found = unpack(columns.inverses(pack(matrices)))
    with mpmath.workdps(40):
        exact = mpmath.matrix(matrices[-1].tolist()) ** -1
    expected = torch.tensor(np.array(exact.tolist(), dtype=np.float64))
    torch.testing.assert_close(found[-1], expected, rtol=0, atol=1e-13)
    eye = torch.eye(d, dtype=torch.float64).expand(m, d, d)
    torch.testing.assert_close(found @ matrices, eye, rtol=0, atol=1e-12)


@both
def test_spectra_equal_those_of_many_digits(columns: Columns) -> None:
    matrices, vectors = symmetric(6, 3), normal(6, 3)
    values, squares = columns.spectra(pack(matrices), vectors)
    with mpmath.workdps(40):
        size, axes = mpmath.eigsy(mpmath.matrix(matrices[1].tolist()))
        parts = axes.T * mpmath.matrix(vectors[:, 1].tolist())
    found = sorted(zip(values[:, 1].tolist(), squares[:, 1].tolist(), strict=True))
    expected = sorted((float(a), float(b**2)) for a, b in zip(size, parts, strict=True))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


SPECIAL = {
    "zero": torch.zeros(4, 4, dtype=torch.float64),
    "unit": torch.eye(4, dtype=torch.float64),
    "of rank one": normal(4, 1) @ normal(4, 1).T,
    "diagonal": torch.diag(torch.tensor([3.0, -1.0, 3.0, 1e-9], dtype=torch.float64)),
    "tiny": 1e-140 * symmetric(4, 1)[0],
    "large": 1e100 * symmetric(4, 1)[0],
    "nearly diagonal": torch.diag(normal(4)) + 1e-12 * symmetric(4, 1)[0],
}


@both
@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.parametrize("power", [0, 1, 2, 3])
def test_spectra_give_every_power_of_a_matrix(columns: Columns, name: str, power: int) -> None:
    """In the eigenvectors' basis vᵀAᵏv is Σ squares · valuesᵏ, whichever axes are taken."""
    matrix, vector = SPECIAL[name], normal(4, 1, seed=1)
    values, squares = columns.spectra(pack(matrix.unsqueeze(0)), vector)
    scale = max(float(matrix.abs().max()), 1e-300)
    unit, parts = matrix / scale, values / scale
    exact = vector.T @ torch.linalg.matrix_power(unit, power) @ vector
    # At most thirty sweeps of six rotations, each of six roundings relative to the norm (Higham
    # 2002, section 19.6), before every power.
    size = float(torch.linalg.matrix_norm(unit, 2)) ** power
    allowed = (power + 1) * 30 * 6 * 6 * 2.0**-53 * size
    length = float(vector.square().sum())
    torch.testing.assert_close(
        (squares * parts**power).sum(), exact.squeeze(), rtol=0, atol=allowed * length
    )
    trace = torch.linalg.matrix_power(unit, power).trace()
    torch.testing.assert_close((parts**power).sum(), trace, rtol=0, atol=4 * allowed)


@settings(max_examples=25)
@given(d=st.integers(1, 7), seed=st.integers(0, 1000), column=st.integers(0, 36))
def test_a_column_is_the_same_whatever_is_beside_it(d: int, seed: int, column: int) -> None:
    columns = compiled.CompiledColumns()
    matrices, vectors = symmetric(d, 37, seed), normal(d, 37, seed=seed)
    alone = slice(column, column + 1)
    values, squares = columns.spectra(pack(matrices), vectors)
    value, square = columns.spectra(pack(matrices[alone]), vectors[:, alone])
    assert torch.equal(values[:, alone], value)
    assert torch.equal(squares[:, alone], square)
    inverses = columns.inverses(pack(matrices))
    assert torch.equal(inverses[:, alone], columns.inverses(pack(matrices[alone])))


def test_what_is_not_finite_stays_in_its_column() -> None:
    columns = compiled.CompiledColumns()
    matrices, vectors = symmetric(5, 20), normal(5, 20)
    values, squares = columns.spectra(pack(matrices), vectors)
    matrices[3, 1, 1] = math.nan
    others = torch.arange(20) != 3
    found, parts = columns.spectra(pack(matrices), vectors)
    assert bool(found[:, 3].isnan().any())
    assert torch.equal(found[:, others], values[:, others])
    assert torch.equal(parts[:, others], squares[:, others])


@both
@pytest.mark.parametrize(("d", "m"), [(1, 1), (2, 70), (3, 3)])
@pytest.mark.parametrize("degrees", [[2], [3], [3, 4], [4], [5]])
def test_expected_polynomials_equal_quadrature(
    columns: Columns, d: int, m: int, degrees: list[int]
) -> None:
    """A rule of eight nodes along each axis is exact for polynomials of degree 15."""
    mean, root = normal(d, m), normal(m, d, d, seed=1) / 2
    covariance = pack(root @ root.mT)
    factors = {k: list(itertools.combinations_with_replacement(range(d), k)) for k in degrees}
    # By the last factor first, which is the order of monomials everywhere.
    factors = {k: sorted(found, key=lambda f: f[::-1]) for k, found in factors.items()}
    tensors = {k: normal(4, len(factors[k]), seed=k) for k in degrees}
    found = columns.expected(tensors, mean, covariance)
    node, weight = np.polynomial.hermite_e.hermegauss(8)
    grid = torch.tensor(list(itertools.product(node, repeat=d))).T
    weights = torch.tensor(list(itertools.product(weight, repeat=d))).prod(1)
    weights /= weights.sum()
    for column in {0, m - 1}:
        u = mean[:, column : column + 1] + root[column] @ grid
        exact = sum(
            tensor[:, i] * (u[list(f)].prod(0) @ weights)
            for k, tensor in tensors.items()
            for i, f in enumerate(factors[k])
        )
        torch.testing.assert_close(found[:, column], exact, rtol=1e-11, atol=1e-11)


@both
def test_single_precision_is_summed_in_blocks(columns: Columns) -> None:
    """Each summand has a rounding for each of its block, of the blocks and of its monomial."""
    mean, covariance = normal(20, 5).float(), torch.zeros(210, 5)
    tensor = normal(3, 8855).abs().float()
    found = columns.expected({4: tensor}, mean.abs(), covariance)
    exact = columns.expected({4: tensor.double()}, mean.double().abs(), covariance.double())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact, rtol=2.0**-24 * (2400 + 4 + 8), atol=0)


@both
@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (3, 16), (4, 35), (1200, 35)])
@pytest.mark.parametrize(("degree", "lowest"), [(1, 1), (5, 1), (15, 1), (7, 5), (4, 4)])
def test_changes_are_sums_of_heat_polynomials(
    columns: Columns, precision: torch.dtype, n: int, m: int, degree: int, lowest: int
) -> None:
    slopes = normal(degree + 3, n).to(precision)
    a, s = normal(n, m, seed=1).to(precision), normal(n, m, seed=2).to(precision) / 5

    def heat(k: int) -> Tensor:
        shift, share = a.double(), s.double()
        terms = [
            shift ** (k - 2 * b) * share**b / (2**b * math.factorial(b) * math.factorial(k - 2 * b))
            for b in range(k // 2 + 1)
        ]
        return torch.stack(terms).sum(0)

    found = columns.changes(slopes, a.clone(), s.clone(), degree, lowest)
    for derivative, change in zip((1, 2), found, strict=True):
        exact = [
            slopes[derivative + k].double().unsqueeze(1) * heat(k)
            for k in range(lowest, degree + 1)
        ]
        allowed = 1e-5 if precision == torch.float32 else 1e-13
        expected = torch.stack(exact).sum(0).to(precision)
        torch.testing.assert_close(change, expected, rtol=allowed, atol=allowed)


def test_machine_code_is_for_many_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(columns_for(30_000, 8, CPU)) is compiled.CompiledColumns
    assert type(columns_for(3_000, 8, CPU)) is Columns
    assert type(columns_for(30_000, 8, torch.device("meta"))) is Columns
    monkeypatch.setitem(sys.modules, "bdpvi.neighbours.optimum.columns_compiled", None)
    assert type(columns_for(30_000, 8, CPU)) is Columns
