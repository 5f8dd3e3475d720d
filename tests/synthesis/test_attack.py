"""A membership game on the noisy counts, played with the noise that releases draw."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import beta

from bdpvi._runtime import secure
from bdpvi._runtime.keys import Key
from bdpvi._runtime.whole_normals import WholeNormals
from bdpvi.accounting.bought import gaussian_distance
from bdpvi.datasets import Domain, Schema
from bdpvi.synthesis.counts import Counts, Plan

TURNS, DELTA = 20_000, 1e-5


def scores(plan: Plan, there: bool, wrong: float, seed: int) -> np.ndarray:
    """Return log-likelihood ratios: who knows all other rows sees one cell of every table."""
    noise = WholeNormals(Key.of_seed(seed))
    total = np.zeros(TURNS)
    for deviation in [plan.one_way] * len(plan.sizes) + list(plan.joint.values()):
        drawn = secure.count_noise((TURNS,), deviation / wrong, noise).numpy()
        total += (drawn + there - 0.5) * (wrong / deviation) ** 2
    return total


def epsilon_low(without: np.ndarray, with_it: np.ndarray) -> float:
    """Return a lower bound of ε: the threshold by one half of the turns, the rates by the other."""

    def bound(a: np.ndarray, b: np.ndarray, at: float) -> float:
        false, true = int((a > at).sum()), int((b > at).sum())
        low = beta.ppf(0.025, true, len(b) - true + 1) if true else 0.0
        high = beta.ppf(0.975, false + 1, len(a) - false)
        return math.log(max(low - DELTA, 1e-12) / high)

    best, half = 0.0, TURNS // 2
    for low, high in ((without, with_it), (-with_it, -without)):
        tried = np.quantile(
            np.concatenate([low[:half], high[:half]]), np.linspace(0.001, 0.999, 200)
        )
        gained = [bound(low[:half], high[:half], float(one)) for one in tried]
        at = tried[int(np.argmax(gained))]
        best = max(best, bound(low[half:], high[half:], float(at)))
    return best


@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_the_game_stays_below_epsilon_and_sees_noise_that_is_too_small(epsilon: float) -> None:
    schema = Schema({f"c{at}": Domain(levels=("0", "1")) for at in range(8)}, "coins")
    plan = Plan.of(schema, 0, gaussian_distance(epsilon, DELTA), Counts())
    tables = len(plan.sizes) + len(plan.joint)
    for wrong, caught in ((1.0, False), (math.sqrt(tables), True)):
        found = epsilon_low(scores(plan, False, wrong, 1), scores(plan, True, wrong, 2))
        assert (found > epsilon) is caught
        assert found > 0.2 * epsilon
