"""The worst case of draws at a posterior's mode: its number, its soundness, its composition."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from simulated import logistic_data
from torch import Tensor
from torch.distributions import MultivariateNormal

import bdpvi
from bdpvi import BayesianLogisticRegression, Dataset, Ledger
from bdpvi._ground.types import Budget
from bdpvi.bayesian import guarantees, pricing
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs, summarise
from bdpvi.bayesian.guarantees import BayesianDP, WorstCaseDP
from bdpvi.bayesian.mode.influence import of_any_table
from bdpvi.bayesian.mode.objective import LogPosterior, search_mode
from bdpvi.bayesian.optimum.weighted import Weighted
from bdpvi.datasets.dataset import People
from bdpvi.datasets.records import Held
from bdpvi.guides import FullRank, Laplace
from bdpvi.privacy import mode_draws
from bdpvi.privacy.conceivable import Influence
from bdpvi.privacy.entry import Charge, Entry
from bdpvi.privacy.event import Event
from bdpvi.privacy.events import SampledGaussian, Threshold
from bdpvi.privacy.mode_draws import ModeDraws
from bdpvi.privacy.perturbed_objective import PerturbedObjective
from bdpvi.privacy.worst_case import epsilon

DELTA = 1e-5
MODEL = BayesianLogisticRegression()


def event(columns: int = 6, **given: Any) -> ModeDraws:
    """Return draws from the default model's fits of so many weights."""
    influence = of_any_table(MODEL, columns, added=True)
    assert influence is not None
    return ModeDraws(influence=influence, **given)


def worst(*events: Event, delta: float = DELTA) -> float:
    """Return ε in the worst case."""
    found = epsilon(events, delta)
    assert found is not None
    return found.epsilon


def fitted(data: Dataset, model: BayesianLogisticRegression = MODEL, **given: Any) -> bdpvi.Fit:
    """Return a fit with a ledger of its own."""
    own = data.of_people(People(**given))
    return bdpvi.fit(model, Laplace(model), own, progress=False)


@pytest.fixture(scope="module")
def table() -> Dataset:
    """Records of three features."""
    return logistic_data(300, 3)


# --- the number -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("features", "found"), [(5, 6.69), (8, 7.02), (14, 7.70), (30, 9.45)])
def test_one_draw_of_the_default_model(features: int, found: float) -> None:
    assert worst(event(features + 1)) == pytest.approx(found, rel=2e-3)


@pytest.mark.parametrize("columns", [6, 31])
def test_a_removed_record_is_an_added_one_of_a_smaller_table(columns: int) -> None:
    """What is known of removed records bounds the same pairs, and less well."""
    removed = of_any_table(MODEL, columns, added=False)
    assert removed is not None
    order = torch.logspace(-1, 0.2, 20).double()
    added = event(columns).influence
    for one, other in (("D‖D′", "D′‖D"), ("D′‖D", "D‖D′")):
        assert bool((added.log_moment(order, one) <= removed.log_moment(order, other)).all())


def by_hand(order: float, columns: int, reverse: bool, draws: int, weight: float) -> float:
    """Return the log-moment of an added record: eigenvalues at the ends of their ranges."""
    ridge = 4 * (math.sqrt(columns + 3) / 2) * (2 * math.sqrt(columns))
    h, c = 2 * math.sqrt(columns / ridge), math.sqrt((columns + 3) / ridge) / 2 + 1e-5
    t = -math.log(1 - h * c) / h
    least, most, a = math.exp(-h * t), math.exp(h * t), c * h / 4

    def e(variance: float) -> float:
        left = 1 - order * (1 / variance - 1)
        return -0.5 * (math.log(left) - order * math.log(variance)) if left > 0 else math.inf

    of_rest, of_one = [1 / least, 1 / most], [1 / least, 1 / (most + a)]
    if reverse:
        of_rest, of_one = [1 / v for v in of_rest], [1 / v for v in of_one]
        t *= math.sqrt(most + a)
    room = (1 + order) * min(of_one) - order
    if room <= 0:
        return math.inf
    of_mean = order * (order + 1) / 2 * weight * t**2 / room
    return draws * ((columns - 1) * max(map(e, of_rest)) + max(map(e, of_one))) + of_mean


@pytest.mark.parametrize(
    ("draws", "temperature", "mu"), [(1, 1.0, 0.0), (1, 4.0, 0.8), (3, 9, 0.3)]
)
def test_with_gaussian_mechanisms_by_hand(draws: int, temperature: float, mu: float) -> None:
    def at(order: float, reverse: bool) -> float:
        moment = by_hand(order, 6, reverse, draws, draws / temperature)
        moment += order * (order + 1) / 2 * mu**2
        offset = math.log(order / (order + 1)) - (math.log(DELTA) + math.log(order + 1)) / order
        return moment / order + offset

    def least(reverse: bool) -> float:
        orders = np.linspace(0.1, 4.0, 400)
        at_each = [at(order, reverse) for order in orders]
        near = float(orders[int(np.argmin(at_each))])
        found = minimize_scalar(at, bounds=(near - 0.02, near + 0.02), args=(reverse,))
        return float(min(found.fun, *at_each))

    gaussian = [SampledGaussian(noise_multiplier=2 / mu, steps=4)] if mu else []
    made = event(6, draws=draws, temperature=temperature)
    assert worst(made, *gaussian) == pytest.approx(max(map(least, (False, True))), rel=1e-4)


# --- soundness ------------------------------------------------------------------------------------


def gaussian_of(model: BayesianLogisticRegression, data: Dataset) -> MultivariateNormal:
    """Return the fit to a table: the mode with the inverse Hessian."""
    records = Weighted.of(model, data)
    n = records.x.shape[1]
    start = torch.zeros(n).double()
    peak = search_mode(LogPosterior(Held(records), len(data), model.precision(n), start), start)[-1]
    return MultivariateNormal(peak.point, peak.root @ peak.root.T)


def wider(pairs: GaussianPairs, draws: int, temperature: float, mu: float) -> GaussianPairs:
    """Return the pairs of several draws, and of a Gaussian mechanism beside them."""
    r = torch.cat([pairs.r] * draws + [torch.ones(len(pairs), 1).double()], 1)
    means = [pairs.b2 / temperature] * draws + [torch.full((len(pairs), 1), mu**2).double()]
    return GaussianPairs(r, torch.cat(means, 1))


@pytest.mark.parametrize("scale", [None, 0.4])
@pytest.mark.parametrize("features", [1, 2, 4])
def test_no_record_of_any_table_costs_more(features: int, scale: float | None) -> None:
    """Exact δ of refitted pairs: rows at corners and beyond, both labels, joined and left out."""
    model = BayesianLogisticRegression(prior_scale=scale)
    influence = of_any_table(model, features + 1, added=True)
    if influence is None:  # 0.4 is too wide for narrow tables
        assert scale == 0.4
        return
    generator = torch.Generator().manual_seed(features)

    def drawn(rows: int, spread: float, share: float) -> Dataset:
        x = spread * torch.randn(rows, features, generator=generator).double()
        return Dataset(x, (torch.rand(rows, generator=generator) < share).double())

    fits, closest = [], 0.0
    corners = torch.tensor([[2.0], [-2.0], [0.3], [9.0]]).double().expand(-1, features)
    mixed = 2 * torch.randn(4, features, generator=generator).double().sign()
    for rows, spread, share in ((3, 0.01, 1.0), (5, 3.0, 0.5), (40, 2.0, 0.5), (300, 2.0, 0.02)):
        data = drawn(rows, spread, share)
        own = gaussian_of(model, data)
        for x in (*corners, *mixed):
            for label in (0.0, 1.0):
                y = torch.tensor([label]).double()
                more = Dataset(torch.cat([data.x, x[None]]), torch.cat([data.y, y]))
                fits.append(summarise(own, gaussian_of(model, more)))
        for left_out in range(3):
            keep = torch.arange(rows) != left_out
            less = gaussian_of(model, Dataset(data.x[keep], data.y[keep]))
            fits.append(summarise(less, own))
    one = GaussianPairs(torch.cat([p.r for p in fits]), torch.cat([p.b2 for p in fits]))
    for draws, temperature, mu in ((1, 1.0, 0.0), (3, 0.5, 0.0), (2, 4.0, 0.7)):
        made = [ModeDraws(influence=influence, draws=draws, temperature=temperature)]
        for delta in (0.1, 1e-3, 1e-6):
            found = mode_draws.epsilon(made, delta, mu**2)
            for pairs in (one, one.reverse()):
                exact = wider(pairs, draws, temperature, mu).hockey_stick(found)
                assert float(exact.max()) <= delta
        pairs = wider(one, draws, temperature, mu)
        closest = max(
            closest, float(pairs.hockey_stick(mode_draws.epsilon(made, 0.1, mu**2)).max())
        )
    assert closest > 0  # the pairs do cost something


@pytest.mark.parametrize("columns", [1, 2, 4])
def test_the_bound_covers_what_is_at_its_ends(columns: int) -> None:
    """Every Gaussian that an influence allows, with eigenvalues at ends and means along each."""
    influence = event(columns).influence
    s, a, b = influence.spread, influence.share, influence.shift
    low, high = math.exp(-s), math.exp(s)
    rows: list[tuple[Tensor, Tensor]] = []
    for last in (low, high + a):
        for rest in (low, high):
            for axis in range(columns):
                r = torch.tensor([rest] * (columns - 1) + [last]).double()
                b2 = torch.zeros(columns).double()
                b2[axis] = r[axis] * b**2
                rows.append((r, b2))
    pairs = GaussianPairs(*(torch.stack(parts) for parts in zip(*rows, strict=True)))
    for delta in (1e-2, 1e-5):
        found = worst(event(columns), delta=delta)
        for one in (pairs, pairs.reverse()):
            assert float(one.hockey_stick(found).max()) <= delta


# --- with other events ----------------------------------------------------------------------------

RUN = SampledGaussian(noise_multiplier=2.0, rate=0.02, steps=200)
NOISE = SampledGaussian(noise_multiplier=5.0)
SOLVED = PerturbedObjective(noise_multiplier=5.0, curvature=0.5)


@pytest.mark.parametrize("others", [(RUN,), (RUN, NOISE), (SOLVED,), (SOLVED, RUN, NOISE)])
def test_with_what_has_no_moments_by_basic_composition(others: tuple[Event, ...]) -> None:
    half = DELTA / 2
    parts = worst(event(), delta=half) + worst(*others, delta=half)
    assert worst(*others, event()) == pytest.approx(parts, rel=1e-9)
    assert worst(event(), *others, Threshold(DELTA / 2), delta=1.5 * DELTA) == pytest.approx(parts)
    assert worst(event(), *others) > max(worst(event()), worst(*others))


def test_nothing_is_promised_for_other_neighbours() -> None:
    replaced = SampledGaussian(noise_multiplier=5.0, relation=bdpvi._ground.types.Relation.REPLACE)
    with pytest.raises(ValueError, match="different neighbours"):
        epsilon([event(), replaced], DELTA)
    people = Ledger(unit="who", rows_per_unit=2)
    with pytest.raises(ValueError, match=r"rows_per_unit=2: draws at a posterior mode"):
        people.worst_case(DELTA, [event()])
    removed = of_any_table(MODEL, 3, added=False)
    assert removed is not None
    with pytest.raises(ValueError, match="influence must be of an added record"):
        ModeDraws(influence=removed)


# --- ledger ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [{"added": False}, {"shift": -1.0}, {"columns": 0}])
def test_a_ledger_s_influence_is_checked(change: dict[str, Any]) -> None:
    entry = Entry(kind="draws", of="a", charge=Charge(2, 3.0), events=(event(draws=2),))
    content = entry.to_dict()
    content["events"][0]["influence"] |= change
    with pytest.raises(ValueError, match=r"influence|shift|columns"):
        Entry.from_dict(content)


# --- fits -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
def test_a_release_has_a_worst_case_beside_the_certificate(table: Dataset) -> None:
    fit = fitted(table)
    release = bdpvi.release(fit)
    assert release.receipt.bayesian is not None
    found = release.cost.worst_case
    assert found is not None
    assert found.epsilon == pytest.approx(worst(event(4)), rel=1e-3)
    assert str(found) in str(release.cost)
    (entry,) = fit.ledger.entries()
    assert entry.events is not None
    (made,) = entry.events
    assert isinstance(made, ModeDraws)
    assert replace(made, rounding=0.0) == event(4)
    twice = bdpvi.release(fit, 2, temperature=5.0).cost.worst_case
    assert twice is not None
    assert twice.epsilon == pytest.approx(
        worst(event(4), event(4, draws=2, temperature=5.0)), rel=2e-3
    )


def test_what_is_charged_is_the_same_for_every_table(table: Dataset) -> None:
    far = Dataset(1e3 * table.x, torch.ones_like(table.y))
    tables = (table, table.without(5), far, logistic_data(900, 3, seed=4))
    found = {pricing.worst_case_events(fitted(one), Charge(3, 2.0)) for one in tables}
    assert len(found) == 1


@pytest.mark.usefixtures("quick")
def test_a_temperature_for_a_worst_case_is_public(table: Dataset) -> None:
    fits = fitted(table), fitted(table.without(3))
    found = [WorstCaseDP().temperature(fit, 1, 5.0, DELTA) for fit in fits]
    assert found[0] == found[1]
    release = bdpvi.release(fits[0], epsilon=5.0, guarantee=WorstCaseDP())
    assert release.cost.worst_case is not None
    assert 4.99 < release.cost.worst_case.epsilon <= 5.0
    assert release.receipt.worst_case is not None
    with pytest.raises(ValueError, match="covariances alone bring it to worst-case DP: ε = 4"):
        bdpvi.release(fits[1], epsilon=3.0, guarantee=WorstCaseDP())


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "given",
    [{"temperature": 2.0, "epsilon": 8.0}, {"temperature": 2.0}],
    ids=["limited", "within a budget"],
)
def test_what_the_records_decided_has_no_worst_case(table: Dataset, given: dict[str, Any]) -> None:
    fit = fitted(table)
    if "epsilon" not in given:
        fit.ledger.settle(budget=Budget(8.0, DELTA))
    assert bdpvi.release(fit, guarantee=BayesianDP(), **given).cost.worst_case is None
    assert bdpvi.cost(fit).worst_case is None
    with pytest.raises(ValueError, match="cannot be given: an earlier release"):
        bdpvi.release(fit, epsilon=9.0, guarantee=WorstCaseDP())


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda data: fitted(data, BayesianLogisticRegression(prior_scale=5.0)), "a strong prior"),
        (lambda data: fitted(data, unit="who", rows_per_unit=2), "none for 2 rows per unit"),
        (
            lambda data: bdpvi.fit(
                MODEL, FullRank(MODEL), data, neighbours=bdpvi.Coupled(), progress=False,
                training=bdpvi.Training(steps=5),
            ),
            "no public noise_scale",
        ),
    ],
)  # fmt: skip
def test_what_has_no_worst_case_says_why(
    table: Dataset, made: Callable[[Dataset], bdpvi.Fit], reason: str
) -> None:
    fit = made(table.of_people(People()))
    assert pricing.worst_case_events(fit, Charge(1, 1.0)) is None
    assert guarantees.by_default(fit).name != "worst-case DP"
    with pytest.raises(ValueError, match=reason):
        bdpvi.release(fit, epsilon=9.0, guarantee=WorstCaseDP())


def test_an_influence_has_room_for_the_fits_own_error() -> None:
    """Of 10⁻⁵ deviations, which costs less than 10⁻⁴ of ε."""
    found, ridge = event(6).influence, 4 * 1.5 * 2 * math.sqrt(6)
    h, c = 2 * math.sqrt(6 / ridge), 1.5 / math.sqrt(ridge)
    exact = Influence(
        added=True, columns=6, shift=-math.log(1 - h * c) / h,
        spread=-math.log(1 - h * c), share=1 / 16,
    )  # fmt: skip
    assert exact.shift < found.shift < exact.shift * (1 + 1e-4)
    assert worst(event(6)) < worst(ModeDraws(influence=exact)) * (1 + 1e-4)
