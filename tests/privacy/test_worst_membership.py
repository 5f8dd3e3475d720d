"""How well anybody tells whether a record is in the table: against the best attacks, and laws."""

from __future__ import annotations

import json
import math
import pickle

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import expit

from bdpvi._ground.schema import from_json, to_json
from bdpvi.privacy import group, worst_case
from bdpvi.privacy.book import Book
from bdpvi.privacy.conceivable import Influence
from bdpvi.privacy.cost import Bound, Cost
from bdpvi.privacy.event import Event
from bdpvi.privacy.events import SampledGaussian, Threshold
from bdpvi.privacy.gaussian_dp import gaussian_distance, gaussian_guarantee
from bdpvi.privacy.left import together
from bdpvi.privacy.membership import RATES, Membership
from bdpvi.privacy.mode_draws import ModeDraws
from bdpvi.privacy.perturbed_objective import PerturbedObjective, profile

Floats = NDArray[np.float64]
STEPS = SampledGaussian(noise_multiplier=1.0, rate=0.1, steps=20)
DRAWS = ModeDraws(influence=Influence(added=True, columns=3, shift=0.1, spread=0.02, share=0.01))
MINIMUM = PerturbedObjective(noise_multiplier=3.0, curvature=0.2)
FORMS: dict[str, tuple[Event, ...]] = {
    "gaussian": (SampledGaussian(noise_multiplier=4.0), Threshold(1e-7)),
    "steps": (STEPS, SampledGaussian(noise_multiplier=9.0)),
    "coins": (SampledGaussian(noise_multiplier=1.0, rate=0.3, steps=20, presence=0.3),),
    "minima": (MINIMUM, SampledGaussian(noise_multiplier=9.0)),
    "minima and steps": (MINIMUM, STEPS),
    "draws": (DRAWS, SampledGaussian(noise_multiplier=9.0)),
    "all": (DRAWS, STEPS, MINIMUM, SampledGaussian(noise_multiplier=9.0)),
}


def bound(*events: Event, delta: float = 1e-5) -> Bound:
    found = worst_case.epsilon(events, delta)
    assert found is not None
    return found


def attack(member: Floats, outsider: Floats) -> tuple[float, list[float]]:
    """Return the accuracy and the true-positive rates of log likelihood ratios' thresholds."""
    right = ((member > 0).mean() + (outsider <= 0).mean()) / 2
    return float(right), [float((member > np.quantile(outsider, 1 - one)).mean()) for one in RATES]


@pytest.mark.parametrize("mu", [0.03, 0.3, 1.0, 3.0])
def test_of_a_gaussian_mechanism_it_is_the_best_test_of_two_normal_laws(mu: float) -> None:
    known = bound(SampledGaussian(noise_multiplier=1 / mu)).membership
    assert known.accuracy == known.anyone
    assert known.accuracy == pytest.approx(float(mpmath.ncdf(mu / 2)), rel=1e-10)
    for false, true in known.rates:
        quantile = -mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * mpmath.mpf(false))
        best = float(mpmath.ncdf(quantile + mu))
        assert best <= true <= 1.005 * best


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_an_epsilon_that_is_a_gaussian_s_tells_its_largest_distance(epsilon: float) -> None:
    mu = gaussian_distance(epsilon, 1e-5)
    exact = bound(SampledGaussian(noise_multiplier=1 / mu))
    told = exact.public(epsilon).membership
    assert told.accuracy == pytest.approx(float(mpmath.ncdf(mu / 2)), abs=1e-5)
    for (_, true), (_, most) in zip(exact.membership.rates, told.rates, strict=True):
        assert true <= most <= true + 1.01e-5
    parts = bound(SampledGaussian(noise_multiplier=1.02 / mu, rounding=1e-8), Threshold(1e-6))
    assert parts.membership.accuracy <= parts.public(parts.epsilon).membership.accuracy
    large = bound(SampledGaussian(noise_multiplier=0.5), Threshold(0.1), delta=0.61)
    assert large.membership.accuracy <= large.public(large.epsilon).membership.accuracy
    other = Bound(kind=exact.kind, epsilon=epsilon, delta=1e-5, by="another proof")
    assert other.membership.accuracy == pytest.approx(1 / (1 + math.exp(-epsilon)), abs=1e-5)


def test_of_sampled_steps_it_is_what_the_best_attack_reaches() -> None:
    """Monte Carlo: the likelihood ratio of 20 steps, each with the record by a coin."""
    random, n = np.random.default_rng(0), 500_000
    member, outsider = np.zeros(n), np.zeros(n)
    for _ in range(STEPS.steps):
        for total, rate in ((member, STEPS.rate), (outsider, 0.0)):
            x = random.standard_normal(n) + (random.random(n) < rate)
            total += np.log1p(STEPS.rate * np.expm1(x - 0.5))
    right, rates = attack(member, outsider)
    known = bound(STEPS).membership
    error = 0.5 / math.sqrt(2 * n)
    assert right - 3 * error <= known.accuracy <= right + 3 * error + 0.003 * (right - 0.5)
    for (false, most), true in zip(known.rates, rates, strict=True):
        error = math.sqrt((true + (true / false) ** 2 * false) / n)
        assert true - 4 * error <= most <= 1.02 * true + 4 * error


def test_of_objective_perturbation_no_attack_reaches_more() -> None:
    """Monte Carlo on minima of one record, whose residual is nearly 1, and of none."""
    ridge, start, sigma = 5.0, -4.0, MINIMUM.noise_multiplier
    grid = np.linspace(start - 6, start + 6, 400_001)

    def gradient(w: Floats, inside: bool) -> Floats:
        return np.asarray(ridge * (w - start) - inside * expit(-w))

    def log_law(w: Floats, inside: bool) -> Floats:
        slope = ridge + inside * expit(w) * expit(-w)
        return np.asarray(np.log(slope) - (gradient(w, inside) / sigma) ** 2 / 2)

    random, ratios = np.random.default_rng(0), []
    for inside in (True, False):
        w = np.interp(sigma * random.standard_normal(400_000), gradient(grid, inside), grid)
        ratios.append(log_law(w, True) - log_law(w, False))
    right, rates = attack(*ratios)
    known = bound(MINIMUM).membership
    error = 0.5 / math.sqrt(len(ratios[0]) * 2)
    assert right - 0.5 - 3 * error <= known.accuracy - 0.5 <= 1.5 * (right - 0.5)
    assert all(true <= 1.05 * most for (_, most), true in zip(known.rates, rates, strict=True))
    assert known.accuracy <= (1 + profile(0.0, MINIMUM)) / 2


@pytest.mark.parametrize(
    ("name", "delta"), [*((name, 1e-3) for name in FORMS), ("coins", 1e-6), ("gaussian", 1e-6)]
)
def test_delta_is_the_inverse_of_epsilon(name: str, delta: float) -> None:
    events = FORMS[name]
    found = worst_case.deltas(events, np.array([bound(*events, delta=delta).epsilon]))
    if name == "all":  # halves of δ are not the halves of ε
        assert delta / 2 <= found[0]
        return
    slack = 0.08 if name == "coins" else 1e-3  # their ε is on a grid
    assert delta * (1 - slack) <= found[0] <= delta * (1 + 1e-6)


def test_of_draws_and_steps_deltas_add_up() -> None:
    at = np.array([0.0, 0.4, 2.0])
    both = worst_case.deltas((DRAWS, STEPS), at)
    draws, steps = (
        np.array([worst_case.deltas((one,), s * at) for s in (0.0, 0.5, 1.0)])
        for one in (DRAWS, STEPS)
    )
    assert both == pytest.approx((draws[::-1] + steps).min(0), rel=1e-6)
    exact = max(DRAWS.influence.delta(0.4, way) for way in ("D‖D′", "D′‖D"))
    assert exact <= worst_case.deltas((DRAWS,), at)[1] <= 5 * exact


def test_a_coin_that_shows_nothing_is_a_coin_of_the_sample() -> None:
    at = np.array([0.0, 0.1, 1.0, 3.0])
    unseen = SampledGaussian(noise_multiplier=1.0, rate=0.2, steps=20, presence=1 - 1e-9)
    seen = SampledGaussian(noise_multiplier=1.0, rate=0.2, steps=20)
    one, other = (worst_case.deltas((event,), at) for event in (unseen, seen))
    assert one == pytest.approx(other, rel=1e-4)


CHARGES = st.lists(
    st.one_of(
        st.builds(
            SampledGaussian, noise_multiplier=st.floats(0.5, 50), rounding=st.floats(0, 1e-9)
        ),
        st.builds(Threshold, st.floats(1e-12, 1e-6)),
        st.builds(
            PerturbedObjective, noise_multiplier=st.floats(1.0, 50), curvature=st.floats(0, 1)
        ),
        st.just(DRAWS),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=12, deadline=None)
@given(CHARGES, st.sampled_from([1e-8, 1e-5, 1e-2]))
def test_it_is_at_most_what_epsilon_says_and_rises_with_charges(
    charges: list[Event], delta: float
) -> None:
    """Of draws with minima the parts of δ are searched, so only the first is promised."""
    before: tuple[float, ...] = (0.5, *RATES)
    forms: set[str] = set()
    for count in range(1, len(charges) + 1):
        found = worst_case.epsilon(charges[:count], delta)
        if found is None:
            return
        known, e = found.membership, math.exp(found.epsilon)
        assert 0.5 <= known.accuracy <= (e + delta) / (1 + e) + 1e-15
        assert all(one <= true <= e * one + delta + 1e-15 for one, true in known.rates)
        now = known.accuracy, *(true for _, true in known.rates)
        forms |= {charges[count - 1].form}
        if len(forms - {""}) < 2:
            assert all(b >= a * (1 - 3e-3) for a, b in zip(before, now, strict=True))
        before = now


def test_rows_of_a_person_cost_one_after_another() -> None:
    events, rows = {MINIMUM: 1, SampledGaussian(noise_multiplier=9.0): 1}, 3
    person = together(Book("a", unit="id", rows=rows), 1e-5, events)
    assert person is not None
    assert person.deltas is not None
    at = np.array([0.0, 0.6])
    one = worst_case.deltas(tuple(events), at / rows)
    chain = one * np.array([rows, 1 + math.exp(0.2) + math.exp(0.4)])
    assert person.deltas(at) == pytest.approx(chain, rel=1e-9)
    assert person.membership.accuracy > bound(*events).membership.accuracy
    spread = group(bound(STEPS), rows)
    assert spread is not None
    assert spread.deltas is not None
    assert spread.deltas(at[:1])[0] == pytest.approx(rows * worst_case.deltas((STEPS,), at[:1])[0])
    sums = gaussian_guarantee(0.01, 1e-5)
    assert sums is not None
    three = group(sums, rows)
    assert three is not None
    assert three.membership.accuracy == pytest.approx(float(mpmath.ncdf(0.15)), rel=1e-10)


def test_no_file_holds_the_curve() -> None:
    found = bound(STEPS)
    assert "deltas" not in json.dumps(to_json(found))
    assert "deltas" not in json.dumps(Cost(worst_case=found).to_dict())
    read = from_json(Bound, to_json(found))
    assert read == found
    assert read.deltas is None
    assert found.public(found.epsilon).deltas is None
    assert read.membership.accuracy > found.membership.accuracy
    again = pickle.loads(pickle.dumps(found))
    assert again.membership == found.membership == Cost(worst_case=found).membership
    assert Cost().membership is None


def test_it_is_said_in_one_sentence_rounded_up() -> None:
    told = str(Membership.of([(0.0, 0.201001)]))
    assert told.startswith("Somebody who knows one person's record, all others and how")
    assert "in at most 60.06 of 100 cases, whatever the values are; without it in 50" in told
    assert "at most 21.11 in 100 members while wrongly accusing 1 in 100 outsiders" in told
    assert "owner" not in told
    persons = Membership.of([(0.0, 0.0)]).in_one_sentence("all records, at most 2, of one person")
    assert "an even bet whether the table has them, guesses right" in persons
