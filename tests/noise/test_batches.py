"""Plans of batches: each seed and step has coins and base noise of its own."""

from __future__ import annotations

from bdpvi.noise.batches import BatchPlan


def test_no_two_seeds_or_steps_share_coins_or_noise() -> None:
    plans = [BatchPlan(steps=9, rate=0.5, seed=seed) for seed in range(9)]
    places = [(plan, step) for plan in plans for step in range(9)]
    batches = {tuple(plan.batch_ids(step, 100).tolist()) for plan, step in places}
    assert len(batches) == len({plan.noise_seed(step) for plan, step in places}) == 81
