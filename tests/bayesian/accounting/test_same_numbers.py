"""Forty answers of the accountant, written down: a change of the code behind them changes none.

The inputs are closed formulas, so no generator and no processor has a part in them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accounts import Accountant, bayes, path_of, worst_of

from bdpvi.bayesian.accounting.draws import GuideDraws
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bayesian.accounting.panel import Panel
from bdpvi.bench.methods.moments import MomentsAccountant
from bdpvi.federated.rounds import OBSERVERS, Rounds
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.gaussian_dp import gaussian_guarantee
from bdpvi.privacy.groups import group
from bdpvi.privacy.norms import NormCounts
from bdpvi.privacy.sampled_steps import GaussianAccountant, PrivacyLossAccountant

F64 = torch.float64
WRITTEN = Path(__file__).with_name("same_numbers.json")
RUNS = ((0.8, 0.001, 2000), (1.2, 0.005, 500), (4.0, 0.01, 2000), (2.0, 1.0, 10), (10.0, 0.1, 100))


def pairs(records: int, spread: float, shift: float) -> GaussianPairs:
    """Records that are exposed unequally, a few of them far more than the others."""
    place = torch.linspace(0, 1, records, dtype=F64)[:, None]
    wave = torch.sin(97 * place + torch.arange(3, dtype=F64))
    return GaussianPairs(1 + spread * place**6 * wave, shift * place**6 * (1.1 + wave))


def account(
    conversion: str, spread: float, shift: float, largest: float | None = None
) -> Accountant:
    accountant = Accountant(conversion=conversion, failure_probability=1e-13)
    made = pairs(300, spread, shift)
    panel = Panel("remove", torch.arange(300), made, largest)
    for temperature, draws in ((1.0, 1), (2.5, 4)):
        accountant.step(GuideDraws((panel,), draws, temperature))
    return accountant


def steps(scope: str, presence: float = 1.0) -> Accountant:
    accountant = Accountant(failure_probability=1e-15)
    levels = torch.tensor([0.25, 0.5, 1.0], dtype=F64)
    counts = torch.stack([torch.tensor([40 - k % 7, 10, 10 + k % 7]) for k in range(60)])
    norms = NormCounts(torch.arange(60), counts, levels, scope)  # type: ignore[arg-type]
    accountant.step(
        SampledGaussian(noise_multiplier=1.5, rate=0.05, steps=60, presence=presence, norms=norms)
    )
    return accountant


def observed(number: int, unit: str) -> float:
    rounds = Rounds(
        clients=16, size=1, clip=2.0, noise_multiplier=1.5, client_rate=0.1, record_rate=0.3,
        record_clip=0.5, noise_shares=16,
    )  # fmt: skip
    accountant = Accountant(conversion="hockey-stick")
    accountant.step(replace(rounds.event(50, unit, OBSERVERS[number]), rounding=0.0))
    found = accountant.worst_case(1e-5)
    return math.inf if found is None else found.epsilon


def answers() -> dict[str, Callable[[], float]]:
    made: dict[str, Callable[[], float]] = {}
    for run in RUNS:
        for one in (MomentsAccountant(), PrivacyLossAccountant(), GaussianAccountant()):
            if run[1] == 1 or not isinstance(one, GaussianAccountant):
                made[f"run {run} {one.name}"] = lambda one=one, run=run: one.epsilon(*run, 1e-5)  # type: ignore[misc]
    for variance, rounding in ((0.01, 0.0), (0.25, 1e-9), (1.0, 1e-12)):
        made[f"gaussian {variance} {rounding}"] = lambda v=variance, r=rounding: distance(v, r)  # type: ignore[misc]
    for conversion in ("cks", "chernoff", "hockey-stick"):
        for spread, shift in ((0.0, 1e-3), (0.01, 1e-3), (0.05, 0.1)):
            name = f"panel {conversion} {spread} {shift}"
            made[name] = lambda c=conversion, s=spread, b=shift: account(c, s, b).get_epsilon(  # type: ignore[misc]
                delta=1e-4
            )
    made["panel betting"] = lambda: account("hockey-stick", 0.0, 1e-3, 0.01).get_epsilon(delta=1e-4)
    made["panel delta"] = lambda: account("hockey-stick", 0.0, 1e-3).get_delta(0.1)
    made["panel largest"] = lambda: account("cks", 0.0, 1e-3).exposure(1e-4).largest
    made["panel largest, exact"] = lambda: account("hockey-stick", 0.0, 1e-3).exposure(1e-4).largest
    made["panel median"] = lambda: account("cks", 0.0, 1e-3).exposure(1e-4).median
    made["path"] = lambda: path_of(steps("path").cost(1e-4)).epsilon
    made["path, worst case"] = lambda: worst_of(steps("path").cost(1e-4)).epsilon
    made["static"] = lambda: bayes(steps("static").cost(1e-4)).epsilon
    made["static, seen coins"] = lambda: bayes(steps("static", 0.3).cost(1e-4)).epsilon
    for number in range(len(OBSERVERS)):
        for unit in ("client", "record"):
            made[f"observer {number} {unit}"] = lambda n=number, u=unit: observed(n, u)  # type: ignore[misc]
    return made


def distance(variance: float, rounding: float) -> float:
    found = gaussian_guarantee(variance, 1e-5, rounding)
    other = found and group(found, 2)
    assert found is not None
    assert other is not None
    return found.epsilon + other.epsilon


@pytest.mark.parametrize("name", answers())
def test_an_answer_is_what_it_was(name: str) -> None:
    expected = json.loads(WRITTEN.read_text())[name]
    # Loss distributions go through Fourier transforms, whose rounding is the processor's.
    close = 1e-6 if PrivacyLossAccountant.name in name else 1e-9
    assert answers()[name]() == pytest.approx(expected, rel=close)
