"""The time that training all neighbours takes, measured by a trial of its first steps."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import replace

from bdpvi._ground.outputs import several
from bdpvi.bayesian.inference.svi import Problem

LONG = 60.0
"""Shortest training that is announced, in seconds."""
_FEW = 1, 4
_MOST = 100
"""Trainings of fewer steps have no trial."""


def seconds_of(
    problem: Problem,
    train: Callable[[Problem], object],
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return how long ``train`` takes for all steps, from trials of 1 and of 4 steps.

    What comes once, such as compilation, cancels in the difference. A trial has the first batches
    of the plan and changes nothing. 0 without a trial, for few steps.
    """
    if problem.plan.steps < _MOST:
        return 0.0
    took = []
    for steps in _FEW:
        begun = clock()
        train(replace(problem, plan=replace(problem.plan, steps=steps)))
        took.append(clock() - begun)
    return max(0.0, took[1] - took[0]) / (_FEW[1] - _FEW[0]) * problem.plan.steps


def announce(seconds: float, records: int, steps: int) -> None:
    """Warn of a training of this many seconds, if that is long."""
    if seconds <= LONG:
        return
    warnings.warn(
        f"neighbours=Coupled() trains {several(records, 'neighbour')} for {several(steps, 'step')} "
        f"each: about {seconds / 60:.0f} minutes by its first steps; Optimum(), for models that it "
        "takes, fewer records to leave out, Remove(records), or fewer steps need less",
        RuntimeWarning,
        stacklevel=2,
    )
