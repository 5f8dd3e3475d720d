"""What any conceivable record costs, against pairs of Gaussians drawn at random."""

from __future__ import annotations

import math
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.privacy import conceivable
from bdpvi.privacy.conceivable import Influence
from bdpvi.privacy.event import WITH, WITHOUT
from bdpvi.privacy.inversion import hockey_stick_bound, largest_bound

CASES = [
    Influence(added=added, columns=n, shift=t, spread=s, share=a)
    for added in (True, False)
    for n, t, s, a in ((1, 0.3, 0.2, 0.06), (3, 0.28, 0.09, 0.06), (6, 0.12, 0.022, 0.014))
]


def spectra(one: Influence, count: int, seed: int, draws: int = 1) -> GaussianPairs:
    """Return pairs of a fit and a neighbour that is within the influence, most of them extreme."""
    generator = torch.Generator().manual_seed(seed)
    n = one.columns
    lo, hi = math.exp(-one.spread), math.exp(one.spread)
    basis = torch.linalg.qr(torch.randn(count, n, n, generator=generator).double())[0]
    size = torch.rand(count, n, generator=generator).double()
    size = torch.where(torch.rand(count, 1, generator=generator) < 0.7, size.round(), size)
    rest = (basis * (lo + (hi - lo) * size).unsqueeze(1)) @ basis.mT
    own = torch.randn(count, n, generator=generator).double()
    # Often along an axis of the rest, often along the shift.
    axis = torch.rand(count, generator=generator) < 0.5
    own = torch.where(axis.unsqueeze(1), basis[:, :, 0], own)
    own = own / own.norm(dim=1, keepdim=True)
    if one.added:
        precision = rest + one.share * own[:, :, None] * own[:, None, :]
    else:
        # A^½ (I − a uuᵀ) A^½ has all precisions of the form that a removed record leaves.
        value, vector = torch.linalg.eigh(rest)
        half = (vector * value.sqrt().unsqueeze(1)) @ vector.mT
        left = torch.eye(n).double() - one.share * own[:, :, None] * own[:, None, :]
        precision = half @ left @ half
    shift = torch.randn(count, n, generator=generator).double()
    along = torch.rand(count, generator=generator)
    shift = torch.where((along < 0.4).unsqueeze(1), own, shift)
    shift = torch.where((along > 0.8).unsqueeze(1), basis[:, :, -1], shift)
    shift = one.shift * shift / shift.norm(dim=1, keepdim=True)
    r, axes = torch.linalg.eigh(precision)
    b2 = r * (axes.mT @ shift.unsqueeze(2)).squeeze(2).square()
    return GaussianPairs(r.repeat(1, draws), b2.repeat(1, draws))


def largest(pairs: GaussianPairs, direction: str, epsilon: float) -> Tensor:
    return (pairs if direction == WITH else pairs.reverse()).hockey_stick(epsilon).max()


@pytest.mark.parametrize("one", CASES, ids=str)
@pytest.mark.parametrize("direction", [WITH, WITHOUT])
def test_no_pair_within_reach_costs_more(one: Influence, direction: str) -> None:
    pairs = spectra(one, 500, seed=one.columns)
    for epsilon in (0.05, 0.3, 1.0):
        found, bound = float(largest(pairs, direction, epsilon)), one.delta(epsilon, direction)
        assert found <= bound
        if bound > 1e-6 and one.columns > 1:  # and it is not far off
            assert bound <= 2.5 * found


@pytest.mark.parametrize("one", CASES[1:3] + CASES[4:], ids=str)
@pytest.mark.parametrize("direction", [WITH, WITHOUT])
def test_several_draws_cost_no_more(one: Influence, direction: str) -> None:
    pairs = spectra(one, 800, seed=7, draws=3)
    for epsilon in (0.2, 0.8):
        assert float(largest(pairs, direction, epsilon)) <= one.delta(epsilon, direction, 3)


@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize(("columns", "share"), [(1, 0.01), (2, 0.0), (5, 0.01)])
@pytest.mark.parametrize("direction", [WITH, WITHOUT])
def test_several_draws_may_have_every_precision_at_the_same_end(
    added: bool, columns: int, share: float, direction: str
) -> None:
    """A record may change no precision by its own curvature, in any of the draws."""
    one = Influence(added=added, columns=columns, shift=0.02, spread=0.1, share=share)
    for precision in (math.exp(-one.spread), math.exp(one.spread)):
        r = torch.full((1, 10 * columns), precision, dtype=torch.float64)
        b2 = torch.zeros_like(r)
        b2[0, 0] = precision * 10 * one.shift**2
        for epsilon in (0.2, 1.0):
            found = float(largest(GaussianPairs(r, b2), direction, epsilon))
            assert found <= one.delta(epsilon, direction, 10)


@pytest.mark.parametrize("one", CASES, ids=str)
@pytest.mark.parametrize("direction", [WITH, WITHOUT])
def test_the_closed_form_is_above_every_log_moment(one: Influence, direction: str) -> None:
    pairs = spectra(one, 1500, seed=3)
    pairs = pairs if direction == WITH else pairs.reverse()
    order = torch.tensor([0.5, 2.0, 5.0, 20.0], dtype=torch.float64)
    found, bound = pairs.log_moment(order).amax(1), one.log_moment(order, direction)
    assert bool((found <= bound * (1 + 1e-12)).all())
    assert bool((bound <= 2.5 * found)[bound.isfinite()].all())


def test_one_column_is_the_worst_of_all_precisions() -> None:
    """In one dimension the answer is known: by integration over every precision in reach."""
    one = Influence(added=True, columns=1, shift=0.3, spread=0.2, share=0.06)

    def delta(k: float, epsilon: float) -> float:
        q = stats.norm(0.3, k**-0.5)

        def gain(x: float) -> float:
            return max(float(stats.norm.pdf(x) - math.exp(epsilon) * q.pdf(x)), 0.0)

        return float(integrate.quad(gain, -12, 12, limit=500, points=[-3, -1, 0, 1])[0])

    for epsilon in (0.1, 0.6):
        ks = torch.linspace(math.exp(-0.2), math.exp(0.2) + 0.06, 10).tolist()
        truth = max(delta(k, epsilon) for k in ks)
        assert truth <= one.delta(epsilon, WITH) <= 1.03 * truth


def test_without_a_record_nothing_is_told() -> None:
    none = Influence(added=True, columns=3, shift=0.0, spread=0.0, share=0.0)
    assert none.delta(0.1) < 1e-12
    assert none.log_moment(torch.tensor([1.0, 50.0])).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"columns": 0}, "columns"),
        ({"shift": -1.0}, "shift"),
        ({"spread": math.nan}, "spread"),
        ({"share": 1.0, "added": False}, "share"),
    ],
)
def test_bad_arguments(change: dict[str, object], message: str) -> None:
    given = {"added": True, "columns": 2, "shift": 0.1, "spread": 0.1, "share": 0.1, **change}
    with pytest.raises(ValueError, match=message):
        Influence(**given)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("one", CASES[1:3] + CASES[4:], ids=str)
@pytest.mark.parametrize("reverse", [False, True])
def test_the_search_finds_what_a_grid_finds(one: Influence, reverse: bool) -> None:
    unit = torch.linspace(0, 1, 11, dtype=torch.float64).tolist()
    places = [(*one, 1.0) for one in ((0.0, 0.0), (1.0, 0.0), (2.0, 0.0), (0.0, 1.0), (1.0, 1.0))]
    few = (0.0, 0.5, 1.0)
    rows = [
        [math.pi * phi, psi, w, shared, high, *place]
        for phi, psi, w, shared, high, place in product(unit, unit, few, few, few, places)
    ]
    case = conceivable._Case.of(one, reverse, 1, 1.0)
    for epsilon in (0.2, 1.0):
        _, found = conceivable._best(case, epsilon, rows)
        assert found <= (1 + conceivable.SLACK) * conceivable._largest(case, epsilon)


@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize("epsilon", [0.05, 0.5, 3.0])
def test_the_largest_bound_is_that_of_all_bounds(added: bool, epsilon: float) -> None:
    """Of choices of which some need many nodes."""
    found = Influence(added=added, columns=4, shift=0.4, spread=0.2, share=0.3)
    case = conceivable._Case.of(found, False, 2, 2.0)
    some = torch.rand(200, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    some[:, 5:] = (some[:, 5:] * 2).floor()
    log_mgf = conceivable._log_mgf(case, some.T)
    every = hockey_stick_bound(log_mgf, len(some), epsilon)
    at, bound = largest_bound(log_mgf, len(some), epsilon)
    assert at == int(every.argmax())
    assert bound == pytest.approx(float(every.max()), rel=1e-12)


def test_a_large_bound_behind_many_loose_ones_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    quick, tight = torch.linspace(1.0, 0.6, 40).double(), torch.full((40,), 0.1).double()
    tight[37] = 0.5

    def first(*_: Any) -> Any:
        yield torch.arange(40), SimpleNamespace(bound=lambda epsilon: (quick, torch.ones(40)))

    def again(of: Any, records: int, epsilon: float, tries: Any) -> Tensor:
        return tight[of(torch.arange(records))]

    monkeypatch.setattr("bdpvi.privacy.inversion.inversions", first)
    monkeypatch.setattr("bdpvi.privacy.inversion.hockey_stick_bound", again)
    assert largest_bound(lambda rows: rows, 40, 1.0) == (37, 0.5)  # type: ignore[arg-type, return-value]
