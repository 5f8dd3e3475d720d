"""What holds for every event that a ledger stores: a new one is a row here."""

from __future__ import annotations

import ast
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import ClassVar

import pytest
from dp_accounting.pld.common import DifferentialPrivacyParameters
from dp_accounting.pld.privacy_loss_distribution import (
    from_gaussian_mechanism,
    from_privacy_parameters,
)
from scipy.integrate import quad
from scipy.stats import norm

import bdpvi.privacy
from bdpvi._ground.types import Budget, BudgetExceededError, Relation
from bdpvi.privacy import Influence, worst_case
from bdpvi.privacy.book import ROW, Book, merged
from bdpvi.privacy.entry import Entry
from bdpvi.privacy.event import MODULES, Event, for_unit, read_event
from bdpvi.privacy.events import ExponentialMechanism, SampledGaussian, Threshold
from bdpvi.privacy.groups import group
from bdpvi.privacy.ledger import Ledger
from bdpvi.privacy.left import together
from bdpvi.privacy.mode_draws import ModeDraws
from bdpvi.privacy.perturbed_objective import PerturbedObjective
from bdpvi.privacy.process import SameRows
from bdpvi.privacy.whole_units import UnitSteps

DELTA = 1e-5
INFLUENCE = Influence(added=True, columns=3, shift=0.05, spread=0.004, share=0.002)


@dataclass(frozen=True)
class Row:
    """An event, one that costs more, and the δ(ε) of a mechanism of its kind, by other means.

    Attributes:
        event: the event.
        dearer: the same with more of what costs.
        truth: maps ε to δ of a mechanism that it has to cover.
        loose: how many times larger its δ may be.
    """

    event: Event
    dearer: Event
    truth: Callable[[float], float]
    loose: float = 1.02


def gaussian(mu: float) -> Callable[[float], float]:
    """Return δ(ε) of a Gaussian mechanism (Balle and Wang 2018, Theorem 8)."""
    return lambda e: float(norm.cdf(mu / 2 - e / mu) - math.exp(e) * norm.cdf(-mu / 2 - e / mu))


@cache
def composed(noise: float, rate: float, steps: int) -> Callable[[float], float]:
    one = from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=1e-5)
    return one.self_compose(steps).get_delta_for_epsilon  # type: ignore[no-any-return]


def sampled(noise: float, rate: float, steps: int) -> Callable[[float], float]:
    return lambda epsilon: composed(noise, rate, steps)(epsilon)


def choice(loss: float) -> Callable[[float], float]:
    """Return δ(ε) of randomised response, which is an exponential mechanism of this range."""
    made = from_privacy_parameters(DifferentialPrivacyParameters(loss / 2))
    return made.get_delta_for_epsilon  # type: ignore[no-any-return]


def minimum(noise: float) -> Callable[[float], float]:
    """Return δ(ε) where the record has residual 1 and no curvature: N(1, σ²) against N(0, σ²)."""

    def delta(epsilon: float) -> float:
        def gap(x: float) -> float:
            return max(norm.pdf(x, 1, noise) - math.exp(epsilon) * norm.pdf(x, 0, noise), 0.0)

        start = epsilon * noise**2 + 0.5
        return float(quad(gap, start, start + 20 * noise, epsabs=0, epsrel=1e-8)[0])

    return delta


def draws(count: int) -> Callable[[float], float]:
    """Return δ(ε) of means that are as far apart as the influence says."""
    return gaussian(INFLUENCE.shift * math.sqrt(count))


GAUSS = SampledGaussian(noise_multiplier=20.0, steps=9)
STEPS = SampledGaussian(noise_multiplier=2.0, rate=0.05, steps=20)
MINIMUM = PerturbedObjective(noise_multiplier=8.0, curvature=0.4)
MODES = ModeDraws(influence=INFLUENCE, draws=4)
ROWS = {
    "sums": Row(GAUSS, replace(GAUSS, steps=10), gaussian(3 / 20)),
    "replaced": Row(
        replace(GAUSS, relation="replace"),  # type: ignore[arg-type]
        replace(GAUSS, relation="replace", noise_multiplier=19.0),  # type: ignore[arg-type]
        gaussian(6 / 20),
    ),
    "sampled sums": Row(STEPS, replace(STEPS, steps=25), sampled(2.0, 0.05, 20)),
    "sampled more often": Row(STEPS, replace(STEPS, rate=0.06), sampled(2.0, 0.05, 20)),
    "of units": Row(
        UnitSteps.of(STEPS), UnitSteps.of(replace(STEPS, steps=25)), sampled(2.0, 0.05, 20)
    ),
    "coins": Row(
        replace(STEPS, rate=1.0, presence=0.5),
        replace(STEPS, rate=1.0, presence=0.6),
        sampled(2.0, 0.05, 20),
        loose=math.inf,
    ),
    "choice": Row(
        ExponentialMechanism(0.2), ExponentialMechanism(0.3), choice(0.2), loose=math.inf
    ),
    "threshold": Row(Threshold(1e-6), Threshold(2e-6), lambda epsilon: 1e-6, loose=math.inf),
    "minima": Row(MINIMUM, replace(MINIMUM, draws=2), minimum(8.0), loose=1.7),
    "mode": Row(MODES, replace(MODES, draws=6), draws(4), loose=math.inf),
    "hot mode": Row(MODES, replace(MODES, temperature=0.5), draws(4), loose=math.inf),
}
every = pytest.mark.parametrize("row", [pytest.param(row, id=name) for name, row in ROWS.items()])


@cache
def epsilon(*events: Event, delta: float = DELTA) -> float:
    found = worst_case.epsilon(events, delta)
    return math.inf if found is None else found.epsilon


def test_every_event_that_a_ledger_reads_has_a_row() -> None:
    assert {type(row.event).__name__ for row in ROWS.values()} == set(MODULES)
    with pytest.raises(ValueError, match=r"event must be one of .* got 'Gift'"):
        read_event({"event": "Gift"})


@every
def test_more_costs_more_and_noise_less(row: Row) -> None:
    assert epsilon(row.event) <= epsilon(row.dearer)
    assert epsilon(row.event) <= epsilon(*row.event.times(2))
    assert (
        epsilon(row.event.with_noise(2.0))
        <= epsilon(row.event)
        <= epsilon(row.event.with_noise(0.5))
    )
    if row.event.form or row.event.squared_distance:
        assert 0 < epsilon(row.event) < epsilon(row.dearer) < math.inf


@every
def test_a_smaller_delta_costs_more(row: Row) -> None:
    found = [epsilon(row.event, delta=delta) for delta in (1e-2, 1e-4, DELTA, 4e-6)]
    assert found == sorted(found)


@every
def test_rounding_and_thresholds_use_up_delta(row: Row) -> None:
    if row.event.relation is not Relation.ADD_OR_REMOVE:
        return
    assert epsilon(row.event, Threshold(5e-6)) == pytest.approx(
        epsilon(row.event, delta=5e-6), rel=1e-9
    )
    assert epsilon(row.event, Threshold(DELTA)) == math.inf
    rounded = replace(GAUSS, relation=row.event.relation, rounding=1e-6)
    plain = replace(rounded, rounding=0.0)
    assert epsilon(row.event, rounded) > epsilon(row.event, plain)


@every
def test_it_covers_what_it_describes(row: Row) -> None:
    """Its δ at several ε, as the ε at δ, against a formula or dp_accounting."""
    for delta in (1e-2, 1e-4, DELTA):
        found = epsilon(row.event, delta=delta)
        assert row.truth(found) <= delta * (1 + 1e-6)
        if row.loose < math.inf:
            assert row.truth(found) >= delta / row.loose


@every
def test_two_are_what_the_ledger_says_of_two(row: Row) -> None:
    ledger = Ledger()
    for name in "ab":
        ledger.charge(Entry(kind="release", of=name, events=(row.event,)))
    found = ledger.worst_case(DELTA)
    assert found is not None
    assert found.epsilon == pytest.approx(epsilon(row.event, row.event), rel=1e-9)
    assert found.epsilon == pytest.approx(epsilon(*row.event.times(2)), rel=1e-3)
    assert found.epsilon >= epsilon(row.event)
    assert merged([row.event, GAUSS, row.event]) == merged([GAUSS, row.event, row.event])


@every
def test_a_budget_refuses_it_once_it_is_spent(row: Row) -> None:
    if not (row.event.form or row.event.squared_distance):
        return
    ledger = Ledger(budget=Budget(1.001 * epsilon(row.event), DELTA))
    entry = Entry(kind="release", events=(row.event,))
    ledger.check_budget(entry, "it")
    ledger.charge(entry)
    with pytest.raises(BudgetExceededError, match="it would bring the total to"):
        ledger.check_budget(entry, "it")


@every
@pytest.mark.parametrize("rows", [2, 3])
def test_several_rows_cost_at_least_one(row: Row, rows: int) -> None:
    """They have a price of their own, or one together with all others, or none: by name."""
    book = Book("a", unit="who", rows=rows)
    if row.event in (MODES, ROWS["coins"].event):
        with pytest.raises(ValueError, match=f"rows_per_unit={rows}: "):
            together(book, DELTA, Counter([row.event]))
        return
    found = together(book, DELTA, Counter([row.event]))
    assert found is not None
    assert found.epsilon >= epsilon(row.event)
    assert found.unit == book.whose != ROW
    one = worst_case.epsilon([row.event], DELTA)
    assert one is not None
    if one.distance is not None:
        many = group(one, rows)
        assert many is not None
        assert found.epsilon == pytest.approx(many.epsilon, rel=1e-9)
    for part in () if row.event.group_only else for_unit({row.event: 1}, rows):
        assert epsilon(part) == pytest.approx(found.epsilon, rel=1e-9)


@pytest.mark.parametrize("steps", [GAUSS, STEPS])
def test_a_record_that_is_a_unit_costs_what_a_record_does(steps: SampledGaussian) -> None:
    """However many rows it has, and among charges for rows, which count for each."""
    one, book = UnitSteps.of(steps), Book("a", unit="who", rows=50)
    alone, beside = (together(book, DELTA, Counter(some)) for some in ([one], [one, GAUSS]))
    assert alone is not None
    assert beside is not None
    assert alone.epsilon == pytest.approx(epsilon(steps), rel=1e-9)
    rows = replace(GAUSS, noise_multiplier=GAUSS.noise_multiplier / 50)
    assert beside.epsilon == pytest.approx(epsilon(steps, rows), rel=1e-9)


def test_units_beside_minima_add_up_and_have_no_price_for_other_units() -> None:
    one, two = UnitSteps.of(STEPS), Book("a", unit="who", rows=2)
    both = together(two, DELTA, Counter([one, MINIMUM]))
    rows = together(two, DELTA / 2, Counter([MINIMUM]))
    assert both is not None
    assert rows is not None
    assert both.epsilon == pytest.approx(epsilon(STEPS, delta=DELTA / 2) + rows.epsilon, rel=1e-9)
    assert both.delta == DELTA
    own = Book("a", unit="who", rows=2, events=Counter([one]))
    others = {name: Book("b", unit=name, rows=3, events=Counter([GAUSS])) for name in ("who", "x")}
    for name, other in others.items():
        found = SameRows({"a": own, "b": other}).with_others(own)
        assert (found.events is None) == (name == "x")


@every
def test_a_ledger_s_file_has_it_as_it_was(row: Row, tmp_path: Path) -> None:
    path = tmp_path / "people.jsonl"
    entry = Entry(kind="release", of="a", events=(row.event, GAUSS))
    Ledger.at(path).charge(entry)
    (read,) = Ledger(path).entries()
    assert read == entry
    assert read.events is not None
    assert [type(event) for event in read.events] == [type(row.event), SampledGaussian]
    written = json.loads(path.read_text("utf-8").splitlines()[1])["charge"]["events"][0]
    assert "norms" not in written
    assert read_event(written) == row.event == read_event(row.event.to_dict())
    with pytest.raises(TypeError, match="unexpected keyword"):
        read_event(written | {"another": 1})


def test_what_no_accountant_knows_is_never_free() -> None:
    class Gift(Event):
        """A charge that says nothing of itself."""

    class Odd(Threshold):
        form: ClassVar[str] = "a guess"

    assert worst_case.epsilon([GAUSS, Gift()], DELTA) is None
    with pytest.raises(TypeError, match="no loss of the form 'a guess' can be composed"):
        worst_case.epsilon([GAUSS, Odd(1e-6)], DELTA)


@pytest.mark.parametrize("room", ["privacy", "bayesian/accounting"])
def test_no_accountant_asks_an_event_for_its_class(room: str) -> None:
    for file in Path(bdpvi.privacy.__file__).parents[1].joinpath(room).glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
                assert not re.search(rf"\b({'|'.join(MODULES)})\b", ast.unparse(node)), file
