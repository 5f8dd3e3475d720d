"""From noisy counts to rows: every step against an optimiser, a simulation or a known network."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.optimize import bisect, minimize_scalar
from sklearn.tree import DecisionTreeClassifier

from bdpvi.datasets import ColumnType, Schema, grid
from bdpvi.datasets.records import Held
from bdpvi.noise.keys import Key
from bdpvi.synthesis import counts
from bdpvi.synthesis.counts import Counts, MeasurementPlan, NoisyCounts, count, merged
from bdpvi.synthesis.margins import by_pairs, margins, projected, raked, shrunk_cells, shrunk_values
from bdpvi.synthesis.network import draw_categories, network

NOISELESS = 1e6
"""A distance at which nearly all noise rounds to 0."""


def test_projection_is_the_nearest_distribution() -> None:
    for seed in range(20):
        noisy = np.random.default_rng(seed).normal(0.2, 0.3, 6)
        # The nearest is max(noisy − t, 0) for the t at which it adds up to 1, by bisection here.
        t = bisect(lambda t, at=noisy: np.maximum(at - t, 0).sum() - 1, -2, 2, xtol=1e-13)
        best = np.maximum(noisy - t, 0)
        for other in np.random.default_rng(seed).dirichlet(np.ones(6), size=200):
            assert ((best - noisy) ** 2).sum() < ((other - noisy) ** 2).sum()
        assert np.allclose(projected(noisy), best, atol=1e-10)


def test_largest_entropy_given_pairs() -> None:
    random = np.random.default_rng(0)
    joint = random.dirichlet(np.ones(8)).reshape(2, 2, 2)
    singles = [joint.sum(tuple(j for j in range(3) if j != i)) for i in range(3)]
    pairs: dict[tuple[int, ...], np.ndarray] = {
        two: joint.sum(({0, 1, 2} - set(two)).pop()) for two in [(0, 1), (0, 2), (1, 2)]
    }
    found = by_pairs(singles, (0, 1, 2), pairs)
    # Whoever has these pairs is the joint table, and t more where the indices have even parity.
    parity = np.array([[[1, -1], [-1, 1]], [[-1, 1], [1, -1]]])
    low, high = -joint[parity > 0].min(), joint[parity < 0].min()

    def negative(t: float) -> float:
        table = joint + t * parity
        return float((table * np.log(np.maximum(table, 1e-300))).sum())

    chosen = minimize_scalar(
        negative, bounds=(low, high), method="bounded", options={"xatol": 1e-9}
    )
    best = joint + chosen.x * parity
    assert np.allclose(found, best, atol=1e-5)
    assert not np.allclose(found, joint, atol=5e-4)


def test_raking_keeps_margins_and_what_fits() -> None:
    random = np.random.default_rng(1)
    table = random.dirichlet(np.ones(12)).reshape(3, 4)
    wanted = [table.sum(1), table.sum(0)]
    assert np.allclose(raked(table, wanted), table, atol=2e-4)
    found = raked(table + random.normal(0, 0.1, (3, 4)), wanted)
    assert np.allclose(found.sum(1), wanted[0], atol=1e-5)
    assert np.allclose(found.sum(0), wanted[1], atol=1e-5)
    assert (found > 0).all()


def test_a_shrunk_value_is_the_one_of_least_error() -> None:
    """The best multiple of the noisy singular vectors is ⟨u, S v⟩: simulated."""
    random = np.random.default_rng(0)
    rows, columns, deviation = 200, 100, 0.3
    u, v = random.normal(size=rows), random.normal(size=columns)
    u, v = u / np.linalg.norm(u), v / np.linalg.norm(v)
    for size in (2.0, 4.0):  # in units of the noise's, about
        signal = size * deviation * np.sqrt(rows) * np.outer(u, v)
        best, used = [], []
        for _ in range(60):
            noisy = signal + random.normal(0, deviation, (rows, columns))
            left, _, right = np.linalg.svd(noisy)
            best.append(left[:, 0] @ signal @ right[0])
            used.append(left[:, 0] @ shrunk_values(noisy, deviation) @ right[0])
        assert abs(np.mean(used) / np.mean(best) - 1) < 0.01
    nothing = random.normal(0, deviation, (rows, columns))
    assert np.abs(shrunk_values(0.9 * nothing, deviation)).max() == 0


@pytest.mark.parametrize("kappa", [0.5, 2.0])
def test_shrunk_cells_have_the_least_error(kappa: float) -> None:
    """With the true κ the mean squared error is Σ v σ²/(v + σ²), v = κ²e²; κ is estimated well."""
    random = np.random.default_rng(2)
    expected = np.outer(random.dirichlet(np.full(150, 4)), random.dirichlet(np.full(100, 4)))
    deviation = float(expected.mean())
    variance = kappa**2 * expected**2
    least = float((variance * deviation**2 / (variance + deviation**2)).sum())
    errors, flat = [], []
    for _ in range(10):
        signal = random.normal(0, np.sqrt(variance))
        signal -= signal.mean(0)
        signal -= signal.mean(1, keepdims=True)
        noisy = signal + random.normal(0, deviation, signal.shape)
        errors.append(((shrunk_cells(noisy, expected, deviation) - signal) ** 2).sum())
        flat.append(((noisy * (noisy * signal).sum() / (noisy**2).sum() - signal) ** 2).sum())
    assert np.mean(errors) == pytest.approx(least, rel=0.04)
    assert np.mean(errors) < 0.97 * np.mean(flat)  # the best that one factor for all can do


def test_margins_are_the_mean_by_inverse_variance() -> None:
    """Against weighted least squares over every cell of every table that has the column."""
    random = np.random.default_rng(3)
    bins = (np.array([0, 0, 1, 2]), np.array([0, 1]))
    single = (random.integers(200, 400, 4), random.integers(400, 800, 2))
    joint: dict[tuple[int, ...], np.ndarray] = {(0, 1): random.integers(100, 300, (3, 2))}
    noisy = NoisyCounts(single, bins, joint, 20.0, {(0, 1): 5.0})
    found = margins(noisy)[0]
    # Unknown: counts of the three bins; the variance of each sum is that of its cells together.
    sums = np.concatenate([np.bincount(bins[0], weights=single[0]), joint[0, 1].sum(1)])
    variances = np.array([2, 1, 1, 0, 0, 0]) * 20.0**2 + np.array([0, 0, 0, 2, 2, 2]) * 5.0**2
    design = np.vstack([np.eye(3), np.eye(3)]) / np.sqrt(variances)[:, None]
    least = np.linalg.lstsq(design, sums / np.sqrt(variances), rcond=None)[0]
    assert np.allclose(
        found, projected(np.asarray(least / noisy.records, dtype=np.float64)), atol=1e-12
    )


def test_a_cell_that_stands_out_is_seen_however_far_below_0_the_noise_of_others_is() -> None:
    """Rows of 0 had become any number of their bin in 2 of 100 releases."""
    cells = np.array([-40] * 8 + [370, 800, 0, 0])
    bins = np.array([0] * 9 + [1] * 3)
    noisy = NoisyCounts((cells,), (bins,), {}, 31.0, {})
    within = network(noisy, None, [np.ones(len(cells))], 1, 1000).within[0]
    assert within[0, 8] > 0.99
    cells[8] = 120  # less than four deviations: perhaps noise
    assert network(noisy, None, [np.ones(len(cells))], 1, 1000).within[0][0, 8] < 0.2


def test_draws_have_the_probabilities_of_their_rows() -> None:
    table = np.random.default_rng(4).dirichlet(np.ones(5), size=3)
    table[1, [0, 4]] = 0.0
    rows = np.repeat(np.arange(3), 200_000)
    found = draw_categories(table, rows, np.random.default_rng(5))
    for one in range(3):
        shares = np.bincount(found[rows == one], minlength=5) / 200_000
        expected = table[one] / table[one].sum()
        assert (np.abs(shares - expected) < 5 * np.sqrt(expected / 200_000) + 1e-12).all()


@pytest.mark.parametrize(
    ("noisy", "grid", "bins"),
    [
        ([100, 3, 2, 1, 90, 0, 0], True, [0, 1, 1, 1, 1, 0, 0]),
        ([100, 30, 2, 1, 90, 0, 0], True, [0, 1, 1, 1, 2, 0, 0]),
        ([100, 1, 60, 2, 0, 8, 7], False, [0, 2, 1, 2, 2, 3, 2]),
        ([100, 60, 0, 0], False, [0, 1, 0, 0]),
        ([-5, -5, 0, 0], True, [0, 0, 0, 0]),
        ([-5, -5, 0, 0], False, [0, 0, 0, 0]),
        ([4, 500, 0], True, [0, 1, 0]),
    ],
)
def test_cells_are_merged_by_their_noisy_counts(
    noisy: list[int], grid: bool, bins: list[int]
) -> None:
    assert merged(np.array(noisy), grid, 10.0, 80.0).tolist() == bins


def known_network(rows: int) -> np.ndarray:
    """Return rows of a chain a → b → c → d → e with 3, 2, 4, 2 and 3 levels."""
    random = np.random.default_rng(6)
    codes = [random.integers(0, 3, rows)]
    for before, size in ((3, 2), (2, 4), (4, 2), (2, 3)):
        table = random.dirichlet(np.full(size, 0.7), size=before)
        codes.append(draw_categories(table, codes[-1], random))
    return np.stack(codes, axis=1)


SIZES = (3, 2, 4, 2, 3)
CHAIN = Schema(
    {
        name: ColumnType(levels=tuple(f"l{i}" for i in range(size)))
        for name, size in zip("abcde", SIZES, strict=True)
    },
    "a chain",
)


def test_bins_are_of_the_noisy_counts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = MeasurementPlan.of(CHAIN, None, 0.5, Counts())
    codes = known_network(300)
    told = [np.arange(size) * 100 for size in plan.sizes]
    bins = []
    for exact in ([np.zeros_like(one) for one in told], [one[::-1] for one in told]):
        given = iter(told)  # the noise that makes any counts these
        with monkeypatch.context() as changed:
            changed.setattr(counts, "_noisy", lambda one, *_, to=given: next(to, one))
            bins.append(count(Held(codes), plan, Key.of_seed(0), exact).bins)
    for one, other in zip(*bins, strict=True):
        assert np.array_equal(one, other)


def variation(a: np.ndarray, b: np.ndarray) -> float:
    found = []
    for i, j in itertools.combinations(range(a.shape[1]), 2):
        tables = [
            np.histogram2d(one[:, i], one[:, j], bins=(range(9), range(9)))[0] / len(one)
            for one in (a, b)
        ]
        found.append(np.abs(tables[0] - tables[1]).sum() / 2)
    return float(np.mean(found))


def rows_of(
    codes: np.ndarray, schema: Schema, target: int | None, distance: float, **settings: object
) -> np.ndarray:
    chosen = Counts(**settings)  # type: ignore[arg-type]
    plan = MeasurementPlan.of(schema, target, distance, chosen)
    noisy = count(Held(codes), plan, Key.of_seed(7))
    shares = [*map(grid.shares, schema.columns.values())]
    made = network(noisy, target, shares, chosen.parents, chosen.cells)
    return made.sample(len(codes), np.random.default_rng(8))


@pytest.mark.parametrize("target", [None, 0, 4])
def test_without_noise_a_network_is_found_again(target: int | None) -> None:
    codes = known_network(60_000)
    half = variation(codes[::2], codes[1::2])
    assert variation(codes, rows_of(codes, CHAIN, target, NOISELESS)) < 1.3 * half


@pytest.mark.parametrize("target", [None, 3])
def test_the_pairs_of_a_network_are_the_noisy_pairs(target: int | None) -> None:
    """A chain's neighbours lie in one clique: their tables are those that were counted."""
    codes = known_network(40_000)
    plan = MeasurementPlan.of(CHAIN, target, NOISELESS, Counts())
    noisy = count(Held(codes), plan, Key.of_seed(1))
    made = network(noisy, target, [*map(grid.shares, CHAIN.columns.values())], 2, 2**17)
    seen = 0
    for (*parents, column), joint in made.nodes:
        assert abs(joint.sum() - 1) < 1e-6
        for axis, parent in enumerate(parents):
            others = tuple(i for i in range(joint.ndim - 1) if i != axis)
            table = joint.sum(others)
            exact = np.zeros(table.shape)
            bins = [noisy.bins[at][codes[:, at]] for at in (parent, column)]
            np.add.at(exact, tuple(bins), 1 / len(codes))
            assert np.abs(table - exact).max() < 1e-3
            seen += 1
    assert seen >= 4


def test_a_parity_needs_its_columns_counted_together() -> None:
    random = np.random.default_rng(10)
    codes = random.integers(0, 2, (20_000, 5))
    codes[:, 4] = codes[:, 0] ^ codes[:, 1] ^ codes[:, 2]
    schema = Schema({name: ColumnType(levels=("0", "1")) for name in "abcdy"}, "bits")
    for also, least, most in (((), 0.45, 0.55), ((("a", "b", "c", "y"),), 0.9, 1.0)):
        made = rows_of(codes, schema, 4, 0.27, also=also)
        parity = float(((made[:, 0] ^ made[:, 1] ^ made[:, 2]) == made[:, 4]).mean())
        assert least <= parity <= most
        student = DecisionTreeClassifier(random_state=0).fit(made[:, :4], made[:, 4])
        right = float((student.predict(codes[:, :4]) == codes[:, 4]).mean())
        assert right > 0.9 if also else right < 0.8  # .5, and an eighth a cell
