"""Audits: near to right claims, above wrong ones, and they go on where they were interrupted."""

from __future__ import annotations

import json
import math
import stat
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from scipy.stats import binom, binomtest
from simulated import logistic_data
from test_cli import run

from bdpvi._ground import progress
from bdpvi._ground.checkpoint import Checkpoint
from bdpvi.audits import doors, exact, minima, one_run, transcripts
from bdpvi.audits.claims import Claim
from bdpvi.audits.found import PAIRS, Audit, Door
from bdpvi.audits.games import Rates
from bdpvi.bayesian.accounting.gaussian_pairs import summarise
from bdpvi.privacy.entry import Entry
from bdpvi.privacy.event import Event
from bdpvi.privacy.events import SampledGaussian, Threshold
from bdpvi.privacy.gaussian_dp import gaussian_epsilon
from bdpvi.privacy.ledger import Ledger
from bdpvi.privacy.perturbed_objective import PerturbedObjective
from bdpvi.regression.objective_plan import Facts, plan
from bdpvi.regression.perturbed_objective import SummedObjective
from bdpvi.releases.noisy_sum import NoisySum

DELTA, EPSILON = 1e-5, 4.0
DATA = logistic_data(60, 3)
DOORS = {one.name: one for one in doors.doors(DATA, EPSILON, DELTA)}
EVENTS: dict[str, tuple[Event, ...]] = {
    "gaussian": (SampledGaussian(noise_multiplier=2.0, steps=4),),
    "sampled": (SampledGaussian(noise_multiplier=2.0, rate=0.3, steps=2),),
    "minimum": (PerturbedObjective(noise_multiplier=1.0, curvature=0.2),),
    "threshold": (SampledGaussian(noise_multiplier=1.0), Threshold(1e-6)),
}


def rates(mu: float) -> Rates:
    """Return the exact rates of the best test of N(0, 1) and N(μ, 1)."""
    miss = math.erfc(mu / 2 / math.sqrt(2)) / 2
    return Rates(hits=1 - miss, false_alarms=miss)


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
def test_exact_rates_give_the_epsilon_of_the_mechanism(mu: float) -> None:
    """Audited by the claim of another noise; a test that is 1 % off would give another ε."""
    claim = Claim((SampledGaussian(noise_multiplier=1.0),))
    assert claim.audited(rates(mu), DELTA) == pytest.approx(
        gaussian_epsilon(mu**2, DELTA), rel=5e-3
    )


@pytest.mark.parametrize("name", EVENTS)
def test_less_is_claimed_with_more_noise(name: str) -> None:
    claim = Claim(EVENTS[name])
    small, large = (claim.with_noise(scale).deltas() for scale in (0.8, 1.0))
    assert bool((large <= small + 1e-12).all())
    assert not claim.refuted(Rates(0.5, 0.5))
    assert claim.refuted(Rates(1 - 1e-9, 1e-9))


def test_counted_rates_hold_at_their_level() -> None:
    """Of N(0, 1) and N(1, 1), one bound or the other fails in at most one of 20 games."""
    random, wrong = np.random.default_rng(0), 0
    for _ in range(200):
        found = Rates.of(random.normal(0, 1, 200), random.normal(1, 1, 200), 0.95)
        best = rates(1.0)
        wrong += (found.hits - found.false_alarms) > best.hits - best.false_alarms
    assert wrong <= 10


def test_rates_are_of_the_turns_that_chose_no_threshold() -> None:
    """A quarter of the turns chose it; the others have the intervals of Clopper and Pearson."""
    without = np.repeat([0.0, 1.0, 0.0], [100, 30, 270])
    with_it = np.repeat([1.0, 0.0, 1.0], [100, 100, 200])
    found = Rates.of(without, with_it, 0.95)
    hits, alarms = (
        binomtest(one, 300).proportion_ci(0.95, method="exact") for one in (200, 30)
    )  # fmt: skip
    assert found.hits == pytest.approx(hits.low, rel=1e-9)
    assert found.false_alarms == pytest.approx(alarms.high, rel=1e-9)


def test_the_opposite_guess_refutes_too() -> None:
    claim = Claim((SampledGaussian(noise_multiplier=4.0),))
    assert claim.refuted(Rates(hits=0.9999, false_alarms=0.97))


@pytest.mark.parametrize("found", [Rates(0.5, 0.01), Rates(0.99, 0.5)])
def test_rates_refute_what_is_just_below_them(found: Rates) -> None:
    gained = 0.5 - 0.01 * math.exp(2.0)  # at ε = 2, by the guess or by its opposite
    assert found.refute(np.array([2.0]), np.array([gained - 1e-6]))
    assert not found.refute(np.array([2.0]), np.array([gained + 1e-6]))


def papers_chance(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Return the bound as the program in the paper's appendix D computes it."""
    q, alpha, total = 1 / (1 + math.exp(-epsilon)), 0.0, 0.0
    for i in range(1, right + 1):
        total += float(binom.pmf(right - i, guesses, q))
        alpha = max(alpha, total / i)
    return float(binom.sf(right - 1, guesses, q)) + alpha * delta * 2 * canaries


@pytest.mark.parametrize("right", [0, 3, 60, 90, 100])
def test_the_chance_of_right_guesses_is_the_papers(right: int) -> None:
    epsilons, deltas = np.array([0.0, 0.5, 2.0, 6.0]), np.array([0.0, 1e-5, 1e-3, 1e-2])
    found = one_run.Guesses(right, 100, 1000, 0.95).chances(epsilons, deltas)
    wanted = [
        papers_chance(1000, 100, right, float(epsilon), float(delta))
        for epsilon, delta in zip(epsilons, deltas, strict=True)
    ]
    assert found == pytest.approx(wanted, rel=1e-9)


def test_guesses_of_coins_shown_by_randomised_response_hold_at_their_level() -> None:
    """Which is ε-DP and allows the most right guesses: its own ε is refuted once in 20 runs."""
    random, epsilon = np.random.default_rng(0), 1.5
    right = random.binomial(200, 1 / (1 + math.exp(-epsilon)), 300)
    found = [one_run.Guesses(int(one), 200, 200, 0.95).epsilon(0.0) for one in right]
    assert sum(one > epsilon for one in found) <= 25
    assert np.median(found) > 0.7 * epsilon


@pytest.mark.parametrize(("noise", "above"), [(1.0, False), (0.2, True)])
def test_one_run_notices_too_little_noise(
    noise: float, above: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    noisy = NoisySum.noisy

    def quieter(mechanism: NoisySum, totals: list[torch.Tensor], key: Any) -> list[torch.Tensor]:
        added = zip(totals, noisy(mechanism, totals, key), strict=True)
        return [total + noise * (shown - total) for total, shown in added]

    monkeypatch.setattr(NoisySum, "noisy", quieter)
    audit = one_run.dp_sgd(DATA, EPSILON, DELTA)
    assert (audit.low > audit.claim) == above
    assert audit.low > 0.3 * audit.claim
    assert "one run with 5000 canaries" in str(audit)


def test_a_mean_is_over_both_directions() -> None:
    narrow, wide = (torch.distributions.Normal(torch.zeros(2), s) for s in (1.0, 1.5))
    ways = [
        summarise(*(one.expand([2]) for one in two)) for two in ((narrow, wide), (wide, narrow))
    ]
    one, two = (exact.mean_epsilon(way, 0.01) for way in ways)
    assert one == pytest.approx(two, rel=1e-3)


def fake(noise: float, charged: float = 1.0) -> Door:
    """Return a door with a noisy sum whose noise is not what is charged."""
    random = np.random.default_rng(0)

    def once(moved: float) -> tuple[float, Ledger]:
        ledger = Ledger()
        event = SampledGaussian(noise_multiplier=charged)
        ledger.charge(Entry(kind="release", events=(event,)))
        return moved + noise * float(random.normal()), ledger

    return Door("noisy sum", 0.0, 1.0, once)


@pytest.mark.parametrize(("noise", "refuted"), [(1.0, False), (0.5, True)])
def test_half_the_noise_is_noticed(noise: float, refuted: bool, tmp_path: Path) -> None:
    found = fake(noise).audited(DELTA, 1000, Checkpoint(tmp_path / "a", {}), progress.silent)
    assert found.refuted is refuted
    assert ("WRONG" in str(found)) is refuted
    assert found.certain <= found.low
    if not refuted:
        assert 0.5 < found.tightness < 1.05


def test_an_interrupted_audit_goes_on(tmp_path: Path) -> None:
    door, calls = fake(1.0), []

    def once(moved: float) -> tuple[float, Ledger]:
        calls.append(moved)
        if len(calls) == 2 * PAIRS + 5:
            raise KeyboardInterrupt
        return door.once(moved)

    kept = Checkpoint(tmp_path / "a", {})
    broken = Door("sum", 0.0, 1.0, once)
    with pytest.raises(KeyboardInterrupt):
        broken.audited(DELTA, 2 * PAIRS, kept, progress.silent)
    broken.audited(DELTA, 2 * PAIRS, kept, progress.silent)
    assert len(calls) == 4 * PAIRS + 5 + 1  # the unfinished part again, and one for the claim


@pytest.mark.parametrize("name", DOORS)
def test_every_door_is_charged_what_it_was_asked_for(name: str) -> None:
    door = DOORS[name]
    without, with_it = (door.through(one) for one in (door.without, door.with_it))
    assert math.isfinite(without[0])
    assert math.isfinite(with_it[0])
    claims = [Claim.of(ledger) for _, ledger in (without, with_it)]
    assert claims[0] == claims[1]
    assert claims[0].epsilon(DELTA) == pytest.approx(EPSILON, rel=0.01)


EXACT = [
    "noisy scores, rounds", "synthetic counts, exact", "DPVI, steps", "DP-SGD, steps",
    "DP-SGD, long gradients", "federation, rounds",
]  # fmt: skip


@pytest.mark.whole
@pytest.mark.parametrize("name", EXACT)
def test_exact_audits_come_near_to_the_claim(name: str) -> None:
    found = dict(exact.audits(logistic_data(300, 3), 1.0, DELTA))[name]()
    assert 0.9 < found.tightness <= 1 + 1e-6
    assert found.runs == 0


@pytest.mark.parametrize(("noise", "refuted"), [(1.0, False), (0.98, True)])
@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_a_little_less_noise_is_noticed_in_steps(noise: float, refuted: bool, rate: float) -> None:
    """The record is coordinate 3 of records that are 0 there, summed with noise of its own."""
    charged, size = NoisySum(rate=rate, clip=1.0, noise_multiplier=2.0, size=4, records=6), 5
    drawn = replace(charged, noise_multiplier=2.0 * noise)

    def once(rows: torch.Tensor) -> tuple[float, Ledger]:
        ledger, seen = Ledger(), 0.0
        ledger.charge(Entry(kind="steps", events=(charged.event(4),)))
        for step in range(4):
            batch = drawn.batch(step)
            total = rows[batch[batch < len(rows)]].sum(0)
            seen += float(drawn.noisy([total], drawn.key_of(step))[0][3])
        return seen, ledger

    rows = torch.eye(6, 4, dtype=torch.float64)[[0, 1, 2, 0, 1, 3]]
    door = Door("sum", rows[:size], rows, once, record=size)
    found = transcripts.audited("sum", lambda: door, DELTA)
    assert found.refuted is refuted
    assert found.tightness > 0.99


@pytest.mark.parametrize("rate", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("noises", [(0.7,), (1.0, 2.0, 2.0)])
def test_steps_have_the_epsilon_of_another_accountant(
    rate: float, noises: tuple[float, ...]
) -> None:
    """dp_accounting rounds losses up, and they are rounded down here."""
    known = [
        from_gaussian_mechanism(z, sampling_prob=rate, value_discretization_interval=1e-4)
        for z in noises
    ]
    most = reduce(lambda one, more: one.compose(more), known).get_epsilon_for_delta(DELTA)
    found = transcripts.epsilon([1 / z for z in noises] + [0.0], rate, DELTA)
    assert most - 6e-4 * len(noises) <= found <= most


def line_objectives() -> tuple[minima.Solved, minima.Solved]:
    """Return what is solved of tables of one column without an intercept, and σ."""
    settings = plan(Facts(columns=1, rows=100, intercept=False), epsilon=1.0, delta=DELTA)
    x, y = torch.linspace(-0.1, 0.1, 20).double()[:, None], (torch.arange(20) % 2).double()
    more = torch.cat([x, x.new_tensor([[2.0]])]), torch.cat([y, y.new_ones(1)])
    one, two = (SummedObjective.of(settings, *table) for table in ((x, y), more))
    return minima.Solved(one, settings.sigma), minima.Solved(two, settings.sigma)


@pytest.mark.whole
def test_minima_have_their_density_and_audits_the_epsilon_of_an_integral() -> None:
    ways = line_objectives()
    grid = torch.linspace(-15, 15, 1001, dtype=torch.float64)
    width = float(grid[1] - grid[0])
    laws = [np.exp([way.log_density(w[None]) for w in grid]) for way in ways]
    for law, one in zip(laws, ways, strict=True):
        assert law.sum() * width == pytest.approx(one.sigma * math.sqrt(2 * math.pi), rel=1e-3)

    def delta(epsilon: float) -> float:
        p, q = (law / law.sum() for law in laws)
        return max(
            float(np.maximum(a - math.exp(epsilon) * b, 0).sum()) for a, b in ((p, q), (q, p))
        )

    random, row = torch.Generator().manual_seed(0), torch.ones(1, dtype=torch.float64)
    each = [a.losses(b, row, DELTA, random) for a, b in (ways, ways[::-1])]
    found = [max(minima._epsilon(*one, level, DELTA) for one in each) for level in (0.0, 0.999)]
    assert delta(found[0]) == pytest.approx(DELTA, rel=0.15)
    assert delta(found[1]) > DELTA


def test_of_a_large_table_the_first_rows_are_audited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "_MOST", 50)
    monkeypatch.setattr(exact, "_TRANSCRIPTS", 20)  # the largest of 5 is too small by chance
    found = exact.noisy_scores("scores", logistic_data(300, 3), 1.0, DELTA)
    assert 0.9 < found.tightness <= 1 + 1e-6


@pytest.mark.whole
@pytest.mark.parametrize("epsilon", [pytest.param(0.5, marks=pytest.mark.slow), 4.0])
def test_guides_and_random_records(epsilon: float) -> None:
    found = dict(exact.audits(logistic_data(300, 3), epsilon, DELTA))
    assert 0.9 < found["guide draws"]().tightness <= 1 + 1e-6
    many = dict(exact.audits(logistic_data(2000, 3), epsilon, DELTA))
    assert 0.9 < many["objective perturbation, minima"]().tightness <= 1 + 1e-6
    random = found["Bayesian draws"]()
    assert 0 < random.low <= random.claim
    assert random.worst is not None
    assert random.worst > random.low


@pytest.mark.slow
@pytest.mark.parametrize("name", DOORS)
def test_no_door_gives_away_more(name: str, tmp_path: Path) -> None:
    kept = Checkpoint(tmp_path / "a", {})
    assert not DOORS[name].audited(DELTA, 400, kept, progress.silent).refuted


def _few(claim: float) -> Any:
    audit = Audit(
        door="x", claim=claim, low=1.0, certain=1.0, delta=DELTA, runs=0, seconds=0.0, worst=2.0
    )
    return lambda *given: [("x", lambda: audit)]


@pytest.mark.parametrize(("claim", "code"), [(1.1, 0), (0.9, 1)])
def test_the_command(
    claim: float, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(exact, "audits", _few(claim))
    out = tmp_path / "out"
    assert run("audit", "--simulated", "--out", out, "--exact-only", "--quiet") == code
    said = capsys.readouterr()
    assert "secret" in said.out
    assert ("too small" in said.err) is bool(code)
    file = out / "audit.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(out.stat().st_mode) == 0o700
    assert json.loads(file.read_text())["refuted"] == (["x"] if code else [])


def test_runs_at_another_price_do_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exact, "audits", _few(1.1))
    given = ("--simulated", "--exact-only", "--quiet", "--out", tmp_path / "a")
    assert run("audit", *given) == 0
    capsys.readouterr()
    assert run("audit", *given, "--epsilon", "2") == 2
    assert "epsilon" in capsys.readouterr().err


def test_a_table_or_a_simulated_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--simulated", "--data", "breast-cancer", "--out", tmp_path / "a")
    assert run("audit", *given) == 2
    assert "give one" in capsys.readouterr().err
    assert run("audit", "--out", tmp_path / "a") == 2
    assert "give one" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


def test_a_file_is_audited(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"age": random.integers(18, 90, 80), "sick": random.integers(0, 2, 80)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    given = ("--data", tmp_path / "t.csv", "--target", "sick", "--positive", "1", "--runs", "40")
    assert run("audit", *given, "--out", tmp_path / "a", "--exact-only", "--quiet") == 0
    found = json.loads((tmp_path / "a" / "audit.json").read_text())["audits"]
    assert len(found) == 9
    assert all(0 < one["tightness"] <= 1 + 1e-6 for one in found)
