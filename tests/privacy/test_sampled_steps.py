"""Whole runs of DP-SGD: costs, loss distributions, and what a training path does not guarantee."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from accounts import Accountant, bayes, worst_of
from dp_accounting.pld import privacy_loss_distribution
from scipy import integrate, stats
from studies.distances import SampledDistances
from torch import Tensor

from bdpvi.bayesian.accounting.losses import OfRuns
from bdpvi.privacy import worst_case
from bdpvi.privacy.conversions import EPSILONS, INTEGER_ORDERS, position
from bdpvi.privacy.cost import REPLACE
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.gaussian import equal_covariance
from bdpvi.privacy.gaussian_dp import gaussian_epsilon
from bdpvi.privacy.loss_distribution import Grid, _transforms, record_deltas
from bdpvi.privacy.norms import LEVELS, NormCounts
from bdpvi.privacy.sampled_moments import subsampled_gaussian_cost
from bdpvi.privacy.sampled_steps import PrivacyLossAccountant

F64 = torch.float64
RATE, NOISE, STEPS = 0.01, 1.0, 500
DELTA = 1e-5
WITH = "add-or-remove D‖D′"


def run(
    counts: list[list[int]], levels: list[float], scope: str = "static", **options: Any
) -> SampledGaussian:
    kept = torch.tensor(levels, dtype=F64)
    norms = NormCounts(torch.arange(len(counts)), torch.tensor(counts), kept, scope)  # type: ignore[arg-type]
    settings: dict[str, Any] = {"noise_multiplier": NOISE, "rate": RATE, "steps": sum(counts[0])}
    return SampledGaussian(norms=norms, **(settings | options))


def two_levels(share: float, m: int = 2000, **options: Any) -> SampledGaussian:
    """A share of the records at the clip throughout, the others at 1/20 of it."""
    at_clip = round(share * m)
    return run([[0, STEPS]] * at_clip + [[STEPS, 0]] * (m - at_clip), [0.05, 1.0], **options)


def accountant(
    event: SampledGaussian, conversion: str = "hockey-stick", gamma: float = 1e-12
) -> Accountant:
    made = Accountant(conversion=conversion, failure_probability=gamma)
    made.step(event)
    return made


def test_costs_are_those_of_single_steps() -> None:
    event = run([[0, 0, 10], [2, 3, 5], [10, 0, 0]], [0.1, 0.4, 1.0], noise_multiplier=1.3)
    orders = INTEGER_ORDERS.values
    for direction in event.records:
        cost = event.cost(direction, orders)
        plain = 10 * subsampled_gaussian_cost(1.0, 1.3, RATE, orders)
        torch.testing.assert_close(cost[:, 0], plain, rtol=1e-12, atol=0)
    single = Accountant()
    for distances, count in (([1, 0.1, 0.1], 2), ([1, 0.4, 0.1], 3), ([1, 1, 0.1], 5)):
        step = SampledDistances(torch.arange(3), torch.tensor(distances, dtype=F64), 1.3, RATE)
        single.step(step, count=count)
    torch.testing.assert_close(cost, single.each("remove D‖D′", orders), rtol=1e-12, atol=0)


@pytest.mark.parametrize("direction", [WITH, "add-or-remove D′‖D"])
def test_one_step_against_integration(direction: str) -> None:
    """δ(ε) = ∫ (p - e^ε q)₊, at a sensitivity below the clip."""
    event = run([[1, 0]] * 3, [0.5, 1.0], noise_multiplier=0.5, rate=0.2)
    deltas = OfRuns([(event, 1)]).deltas(direction, 1e-3)

    def present(w: float) -> float:
        return float(0.8 * stats.norm.pdf(w) + 0.2 * stats.norm.pdf(w, 1.0))

    p, q = (present, stats.norm.pdf) if direction == WITH else (stats.norm.pdf, present)
    for wanted in (0.05, 0.15, 0.2):
        epsilon = float(EPSILONS[position(wanted)])

        def excess(w: float, factor: float = math.exp(epsilon)) -> float:
            return max(0.0, float(p(w) - factor * q(w)))

        truth, _ = integrate.quad(excess, -12, 12, limit=400, points=[0, 1])
        assert truth > 1e-4
        assert truth * (1 - 1e-6) <= float(deltas.at(epsilon)[0]) <= truth * 1.01


def test_composition_against_the_closed_form() -> None:
    """Where every step uses all records the loss is Gaussian, and transforms must find that."""
    kinds = [SampledGaussian(noise_multiplier=10.0), SampledGaussian(noise_multiplier=20.0)]
    counts = torch.tensor([[100, 0], [40, 60], [0, 7]])
    variance = counts.double() @ torch.tensor([0.01, 0.0025], dtype=F64)
    grid = Grid.around([kinds[0].at(1.0, 100)], WITH, DELTA, 1e-3)
    c, log_mgf = grid.tilt, _transforms(kinds, WITH, grid)[2]
    moments = c * (c + 1) / 2 * torch.tensor([0.01, 0.0025], dtype=F64)
    assert bool((log_mgf >= moments * (1 - 1e-9)).all())
    assert bool((log_mgf <= moments * 1.005).all())
    for epsilon in (0.05, 1.0, 4.0, 12.0):
        found = record_deltas(kinds, WITH, grid, counts, torch.tensor([epsilon], dtype=F64))[:, 0]
        truth = equal_covariance(variance, epsilon)
        assert bool((found >= truth * (1 - 1e-9)).all())
        near = truth > 1e-12
        assert bool((found[near] <= 1.01 * truth[near]).all())


def test_mixed_levels_against_dp_accounting() -> None:
    """Between a distribution rounded down and one rounded up, on a grid 20 times as fine."""
    event = run([[30, 20], [50, 0], [0, 50]], [0.5, 1.0], rate=0.05)

    def composed(pessimistic: bool) -> Any:
        half, full = (
            privacy_loss_distribution.from_gaussian_mechanism(
                NOISE,
                sensitivity=level,
                sampling_prob=0.05,
                value_discretization_interval=5e-5,
                pessimistic_estimate=pessimistic,
                use_connect_dots=pessimistic,
            )
            for level in (0.5, 1.0)
        )
        return half.self_compose(30).compose(full.self_compose(20))

    bounds = composed(False), composed(True)
    for direction in event.records:
        deltas = OfRuns([(event, 1)]).deltas(direction, DELTA)
        low, high = (
            (bound._pmf_remove if direction == WITH else bound._pmf_add).get_delta_for_epsilon
            for bound in bounds
        )
        for wanted in (0.1, 0.5, 1.0, 2.0):
            epsilon = float(EPSILONS[position(wanted)])
            found = float(deltas.at(epsilon)[0])
            # They leave out 1e-15 at a time; δ is meant where it is far above.
            assert low(epsilon) * 0.999 - 1e-13 <= found <= high(epsilon) * 1.008 + 1e-13


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta"),
    [
        (0.3, 0.01, 100, 1e-5),  # tails so heavy that the order is below 1
        (0.7, 1e-3, 5000, 1e-6),  # tails that would wrap around the grid
        (8.0, 0.001, 100_000, 1e-5),
        (1.0, 0.01, 1000, 1e-10),
        (1.0, 0.5, 200, 1e-5),
        (0.05, 0.01, 10, 1e-5),  # ε at which e^ε overflows
        (8.0, 1e-4, 10, 1e-5),  # ε is almost 0
    ],
)
def test_every_regime(noise: float, rate: float, steps: int, delta: float) -> None:
    options: dict[str, Any] = {"noise_multiplier": noise, "rate": rate}
    event = run([[0, steps], [steps, 0], [steps // 2, steps - steps // 2]], [0.3, 1.0], **options)
    runs = OfRuns([(event, 1)])
    worst = worst_case.epsilon([event], delta)
    assert worst is not None
    deltas = [runs.deltas(name, delta) for name in event.records]
    above, below = worst.epsilon * 1.02 + 1e-5, worst.epsilon * 0.98 - 1e-5
    assert max(float(one.at(above)[0]) for one in deltas) <= delta
    assert max(float(one.at(max(below, 1e-6))[0]) for one in deltas) > delta or below < 0
    for one in deltas:
        values = torch.stack([one.at(float(epsilon)) for epsilon in EPSILONS[::64]])
        assert bool(((values >= 0) & (values <= 1)).all())
        assert bool((values.diff(dim=0) <= 0).all())
        assert bool((values[:, 1] <= values[:, 2]).all())
        assert bool((values[:, 2] <= values[:, 0]).all())


def test_an_estimate_is_never_above_the_cost_of_the_clip() -> None:
    made = accountant(two_levels(0.9, m=40), "cks", gamma=1e-15)
    largest = STEPS * subsampled_gaussian_cost(1.0, NOISE, RATE, INTEGER_ORDERS.values)
    assert bool((made.bound(WITH, INTEGER_ORDERS.values).log_bound <= largest).all())
    every = accountant(two_levels(1.0, m=40), "cks", gamma=1e-15)
    found = every.bound(WITH, INTEGER_ORDERS.values)
    torch.testing.assert_close(found.log_bound, largest, rtol=1e-12, atol=0)


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_share_at_the_clip_decides(share: float) -> None:
    """ε_BDP(δ) ≥ ε_DP(δ/s): the others can only add to the mean of δ."""
    spent = accountant(two_levels(share)).cost(DELTA)
    least = PrivacyLossAccountant().epsilon(NOISE, RATE, STEPS, DELTA / share)
    assert least * (1 - 1e-3) <= bayes(spent).epsilon
    assert spent.worst_case is not None
    assert bayes(spent).epsilon <= worst_of(spent).epsilon
    assert bayes(spent).reliable
    assert spent.path is None
    if share == 0.1:
        # The mean is a binomial proportion; its bound at 1e-12 from 2,000 is below 16 %.
        most = PrivacyLossAccountant().epsilon(NOISE, RATE, STEPS, DELTA / 0.17)
        assert bayes(spent).epsilon < most


def test_single_records_and_their_certified_quantiles() -> None:
    made = accountant(two_levels(0.1))
    own, found = made.per_record(DELTA), made.exposure(DELTA)
    at_clip, others = float(own[0]), float(own[-1])
    exact = privacy_loss_distribution.from_gaussian_mechanism(
        NOISE / 0.05, sampling_prob=RATE, value_discretization_interval=2e-6
    ).self_compose(STEPS)
    assert others == pytest.approx(exact.get_epsilon_for_delta(DELTA), rel=0.1)
    assert others >= exact.get_epsilon_for_delta(DELTA) * (1 - 1e-3)
    assert (found.largest, found.median) == (at_clip, others)
    # 200 of 2,000 are at the clip, so three quarters certainly stay below and 99 % do not.
    assert dict(found.quantiles)[0.75] == others
    assert found.certified == at_clip
    assert not found.on_path


def test_replacing_a_record_in_full_batch() -> None:
    counts = [[60, 40, 0]] * 50 + [[0, 0, 100]]
    options: dict[str, Any] = {"rate": 1.0, "noise_multiplier": 30.0, "relation": "replace"}
    made = accountant(run(counts, [0.5, 1.0, 2.0], **options))
    spent = made.cost(DELTA)
    assert spent.worst_case is not None
    assert worst_of(spent).relation == REPLACE
    assert worst_of(spent).epsilon == pytest.approx(gaussian_epsilon(4 * 100 / 900, DELTA))
    assert bayes(spent).relation == REPLACE
    expected = gaussian_epsilon((60 * 0.25 + 40 * 1) / 900, DELTA)
    assert float(made.per_record(DELTA)[0]) == pytest.approx(expected)
    with pytest.raises(ValueError, match=r"rate must be 1 with relation='replace', got 0\.5"):
        run(counts, [0.5, 1.0, 2.0], **(options | {"rate": 0.5}))


def test_levels_are_counted_upwards() -> None:
    norms = torch.rand(40, 50, generator=torch.Generator().manual_seed(0)) * 1.5
    counts = NormCounts.none(torch.arange(50))
    for row in norms:
        counts = counts.add(row)
    rounded = (norms.double().clamp(max=1) * 64).ceil().clamp(min=1) / 64
    torch.testing.assert_close(counts.counts.double() @ LEVELS, rounded.sum(0))
    assert counts.steps == 40
    assert int(counts.counts.sum()) == 40 * 50
    resumed = NormCounts(**counts.add_largest().state_dict())
    assert torch.equal(resumed.counts[:, :-1], counts.counts[:, :-1])
    assert resumed.steps == 41


@pytest.mark.parametrize(
    ("norms", "message"),
    [
        (torch.zeros(4), r"norms must have shape \(3,\), got \(4,\)"),
        (torch.tensor([0.1, math.nan, 0.2]), "norms must be finite and at least 0, got nan"),
        (torch.tensor([0.1, math.inf, 0.2]), "norms must be finite and at least 0, got inf"),
        (torch.tensor([0.1, -0.5, 0.2]), "norms must be finite and at least 0, got -0.5"),
    ],
)
def test_bad_norms_are_not_counted(norms: Tensor, message: str) -> None:
    counts = NormCounts.none(torch.arange(3))
    with pytest.raises(ValueError, match=message):
        counts.add(norms)
    assert counts.steps == int(counts.counts.sum()) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise_multiplier": 0.0}, "noise_multiplier must be finite and positive, got 0.0"),
        ({"rate": 0.0}, "rate must lie in .* got 0.0"),
        ({"steps": 11}, "norms has 10 steps, and steps=11 are charged"),
        ({"counts": torch.tensor([[5, 5], [5, 5], [5, 6]])}, "add up to steps=10 in every row"),
        ({"scope": "filter"}, "scope must be one of .* got 'filter'"),
        ({"relation": "zero"}, "relation must be one of .* got 'zero'"),
        ({"unit": "table"}, "unit must be one of .* got 'table'"),
        ({"levels": torch.tensor([0.5, 0.75])}, "levels must end at .* got 0.75"),
        ({"levels": torch.tensor([1.0, 2.0])}, "norms: levels must end at 1, .* got 2.0"),
        ({"relation": "replace", "rate": 1.0}, "norms: levels must end at 2, .* got 1.0"),
        ({"levels": torch.tensor([0.0, 1.0])}, "levels must increase, from above 0, got 0.0"),
        ({"levels": torch.tensor([1.0])}, r"counts must have shape .*\(3, 1\), got \(3, 2\)"),
        ({"counts": torch.full((3, 2), 5.0)}, "counts must be whole numbers"),
        ({"counts": torch.tensor([[11, -1]] * 3)}, "counts must be at least 0, got -1"),
        ({"ids": torch.arange(2), "counts": torch.tensor([[5, 5]] * 2)}, "ids has 2 records"),
    ],
)
def test_bad_runs(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {
        "ids": torch.arange(3),
        "levels": torch.tensor([0.5, 1.0]),
        "counts": torch.tensor([[5, 5]] * 3),
    }
    norms = {name: value for name, value in change.items() if name in (*good, "scope")}
    other = {name: value for name, value in change.items() if name not in norms}
    settings = {"noise_multiplier": 1.0, "rate": 0.1, "steps": 10} | other

    def made() -> SampledGaussian:
        return SampledGaussian(norms=NormCounts(**(good | norms)), **settings)

    with pytest.raises(ValueError, match=message):
        made()


def test_several_runs_add_up() -> None:
    """Two runs with different noise are one composition; the same run twice is twice as long."""
    one, other = run([[5, 5]] * 40, [0.5, 1.0]), run([[10]] * 40, [1.0], noise_multiplier=2.0)
    both = Accountant(conversion="hockey-stick", failure_probability=1e-12)
    both.step(one, count=2)
    both.step(other)
    worst = both.worst_case(DELTA)
    theirs = privacy_loss_distribution.from_gaussian_mechanism(NOISE, sampling_prob=RATE)
    also = privacy_loss_distribution.from_gaussian_mechanism(2 * NOISE, sampling_prob=RATE)
    composed = theirs.self_compose(20).compose(also.self_compose(10))
    assert worst is not None
    assert worst.epsilon == pytest.approx(composed.get_epsilon_for_delta(DELTA), rel=0.02)
    own = float(both.per_record(DELTA)[0])
    twice = Accountant(conversion="hockey-stick", failure_probability=1e-12)
    twice.step(run([[10, 10]] * 40, [0.5, 1.0]))
    twice.step(other)
    assert own == float(twice.per_record(DELTA)[0])
    assert float(accountant(one).per_record(DELTA)[0]) < own < worst.epsilon
