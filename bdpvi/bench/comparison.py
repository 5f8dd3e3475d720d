"""Comparison of methods at equal ε, on the same records, over the same seeds."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from bdpvi._ground import log, validate
from bdpvi._ground import progress as bars
from bdpvi._ground.checkpoint import Checkpoint
from bdpvi._ground.outputs import csv_text, several
from bdpvi._ground.progress import Track
from bdpvi._ground.store import write
from bdpvi.bench import report
from bdpvi.bench.hyperparameters import describe, nearest
from bdpvi.bench.methods import NONE, BaseRate, Method, PreparedMethod
from bdpvi.bench.methods.method import Outcome
from bdpvi.bench.summary import NO, PAIRED, WORST, YES, ratio_table, summarise
from bdpvi.datasets.dataset import Split
from bdpvi.models.predictions import predictive_means
from bdpvi.privacy.cost import Cost, Kind
from bdpvi.tables.metrics import MEASURES, check_classes, correct, log_scores

EPSILONS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
LANDING = 0.055
"""Largest fraction by which a calibrated ε may lie below its target without a reason in its row; a
temperature on the public grid uses nearly all of it."""

ABOVE = "not certified at the target: at the temperature that is planned for it ε is {:.3g}"
PLANNED = "costs less than the target: its temperature was planned before a record was seen"

_AT_ONCE = 2**22
"""Number of predicted probabilities held in memory at once."""

COLUMNS = (
    "data", "method", "guarantee", "target_epsilon", "seed", *MEASURES,
    "epsilon", "worst_case_epsilon", "delta", "certified", "reliable", "reason",
    "setting", "accountant", "skewness", "seconds",
)  # fmt: skip


@dataclass(frozen=True)
class ComparisonPlan:
    """The plan of a comparison.

    Args:
        methods: the methods to compare.
        at: by a method's name and a target, the method with other hyper-parameters to use there,
            and at all targets closest to that one.
        epsilons: targets to which every private method is calibrated.
        delta: δ of every guarantee.
        seeds: number of runs of a method that trains for each run, with seeds 0 … seeds − 1.
        draws: the same for a ``one_shot`` method, whose runs cost almost nothing.

    Raises:
        ValueError: if there is nothing to compare or a number is out of range.
    """

    methods: Sequence[Method]
    epsilons: Sequence[float] = EPSILONS
    delta: float = 1e-5
    seeds: int = 10
    draws: int = 1_000
    at: Mapping[str, Mapping[float, Method]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.methods:
            raise ValueError("methods has no method")
        names = [method.name for method in self.methods]
        if len(set(names)) < len(names):
            raise ValueError(f"methods has a method twice: {names}")
        check_epsilons(self.epsilons)
        validate.probability("delta", self.delta)
        validate.positive_int("seeds", self.seeds)
        validate.positive_int("draws", self.draws)

    def with_base_rate(self) -> ComparisonPlan:
        """Return the plan including the base rate, which every table shows."""
        if any(method.name == BaseRate.name for method in self.methods):
            return self
        return replace(self, methods=(BaseRate(), *self.methods))

    def runs(self, method: Method) -> int:
        """Return the number of runs averaged in a result of the method."""
        return self.draws if getattr(method, "one_shot", False) else self.seeds

    def cells(self) -> list[Combination]:
        """Return all cells, method by method; a method without privacy has one cell."""
        return [
            Combination(nearest(self.at.get(method.name, {}), epsilon, method), epsilon)
            for method in self.methods
            for epsilon in ([math.inf] if method.guarantee == NONE else sorted(self.epsilons))
        ]


def check_epsilons(epsilons: Sequence[float]) -> None:
    """Raise ValueError unless there are targets, all finite, positive and distinct."""
    if not epsilons:
        raise ValueError("epsilons has no value")
    for epsilon in epsilons:
        validate.positive("epsilons", epsilon)
    if len(set(epsilons)) < len(epsilons):
        raise ValueError(f"epsilons has a value twice: {list(epsilons)}")


@dataclass(frozen=True)
class Combination:
    """One method at one target ε."""

    method: Method
    epsilon: float

    @property
    def name(self) -> str:
        """Return the name of its file."""
        return f"{self.method.name}@{self.epsilon:g}"


def compare(
    split: Split,
    plan: ComparisonPlan,
    out: Path,
    *,
    chosen: Mapping[str, Any] | None = None,
    track: Track[Combination] = bars.silent,
) -> pd.DataFrame:
    """Run all unfinished cells, and write tables, figures and the report to ``out``.

    Args:
        split: training records for the methods, test records for the measurements.
        plan: what to compare; the base rate is always included.
        out: a new folder, or the folder of the same comparison, which is then continued.
        chosen: how the hyper-parameters were found, for the report.
        track: shows progress.

    Returns:
        A row for each method, ε and seed; for draws, only as many as there are seeds. Where a
        method cannot reach a target there is one row, without ε, giving the reason.

    Raises:
        ValueError: if ``out`` belongs to another comparison, or the test records have one class
            only.
    """
    check_classes("split.test.y", split.test.y)
    plan = plan.with_base_rate()
    settings = _settings(split, plan, chosen)
    store = Checkpoint(out, settings, "cells")
    store.begin()

    missing = [cell for cell in plan.cells() if store.get(cell.name) is None]
    prepared: dict[Method, PreparedMethod] = {}  # for one name; targets may share hyper-parameters
    for cell in track(missing, "compare"):
        method = cell.method
        if any(other.name != method.name for other in prepared):
            prepared.clear()
        if method not in prepared:
            prepared[method] = method.prepare(split.train, plan.delta)
        with log.step(f"compare {cell.name}"):
            store.write_part(cell.name, run(cell, prepared[method], split, plan))
    every = [store.get(cell.name) for cell in plan.cells()]
    rows = [row for found in every for row in _rows(found, plan.seeds)]
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    summary, ratios = summarise(every), ratio_table(every)
    for name, frame in {"results": table, "summary": summary, "ratios": ratios}.items():
        write(out / f"{name}.csv", csv_text(frame).encode())
    report.write(out, split, plan.methods, summary, ratios, settings)
    return table


def _rows(found: Mapping[str, Any], most: int) -> list[dict[str, Any]]:
    """Return a cell's rows of the table, one for each of its first runs."""
    row, measures = found["row"], found["measures"]
    if measures is None:
        return [row]
    count = len(measures["accuracy"])
    row = {**row, "seconds": row["seconds"] / count}
    return [
        {**row, "seed": seed, **{name: values[seed] for name, values in measures.items()}}
        for seed in range(min(most, count))
    ]


def run(
    cell: Combination, prepared: PreparedMethod, split: Split, plan: ComparisonPlan
) -> dict[str, Any]:
    """Return one cell, as JSON types.

    Returns:
        "row", the values shared by the cell's runs, including the cost; "measures", each measure's
        value for every run; "records", for each of ``PAIRED`` the mean over the runs on each test
        record. If the target cannot be reached, the row has the reason, and the rest is None.
    """
    about, count = _about(cell, split), plan.runs(cell.method)
    start = time.perf_counter()

    def failure(reason: str) -> dict[str, Any]:
        seconds = time.perf_counter() - start
        row = {**about, "delta": plan.delta, "reason": reason, "seconds": seconds}
        return {"row": row, "measures": None, "records": None}

    try:
        setting = prepared.calibrate(cell.epsilon)
    except ValueError as error:
        return failure(f"not reached: {error}")
    try:
        outcomes = prepared.outcomes([setting] * count, range(count))
    except FloatingPointError as error:
        return failure(f"training diverged: {error}")
    measured = _measure_outcomes(cell.method, outcomes, split)
    row = {**about, "setting": setting, "seconds": time.perf_counter() - start}
    for outcome in outcomes:  # their costs are identical, but each is checked
        row |= price(outcome, cell.epsilon)
    return {"row": row, **measured}


def _measure_outcomes(method: Method, outcomes: Sequence[Outcome], split: Split) -> dict[str, Any]:
    """Return "measures" and "records" of :func:`run`, computed in batches of runs."""
    y, count = split.test.y.cpu(), len(outcomes)
    values: dict[str, list[float]] = {name: [] for name in MEASURES}
    sums = torch.zeros(len(PAIRED), len(y), dtype=torch.float64)
    some = max(1, _AT_ONCE // (len(y) * len(next(iter(outcomes[0].latents.values())))))
    for first in range(0, count, some):
        probability = predict(method, outcomes[first : first + some], split)
        for name, measure in MEASURES.items():
            values[name] += measure.of(probability, y).tolist()
        each = {"accuracy": correct(probability, y), "log_score": log_scores(probability, y)}
        sums += torch.stack([each[name].double().sum(0) for name in PAIRED])
    # Seven decimals keep the files small and exceed the precision of the estimates.
    means = zip(PAIRED, (sums / count).tolist(), strict=True)
    records = {name: [round(one, 7) for one in mean] for name, mean in means}
    return {"measures": values, "records": records}


def _about(cell: Combination, split: Split) -> dict[str, Any]:
    return {
        "data": split.train.name,
        "method": cell.method.name,
        "guarantee": cell.method.guarantee,
        "target_epsilon": cell.epsilon if math.isfinite(cell.epsilon) else None,
    }


def predict(method: Method, outcomes: Sequence[Outcome], split: Split) -> Tensor:
    """Return the test records' probabilities of 1 for R outcomes, (R, N).

    Each is the mean over the outcome's samples; all outcomes have equally many.
    """
    names = outcomes[0].latents
    latents = {name: torch.cat([outcome.latents[name] for outcome in outcomes]) for name in names}
    means = predictive_means(method.model, latents, split.test.x)
    return means.reshape(len(outcomes), -1, means.shape[1]).mean(1)


def price(outcome: Outcome, target: float) -> dict[str, Any]:
    """Return an outcome's cost and how reliable it is.

    A Bayesian ε at a public temperature that exceeds the target gives an uncertified row, because
    nothing is guaranteed at the target.

    Raises:
        RuntimeError: if a worst-case ε exceeds the target; such a row must never be written.
    """
    cost = outcome.cost or Cost()
    paid = cost.bayesian or cost.worst_case
    if paid is None:
        if math.isfinite(target):
            raise RuntimeError(f"an outcome without a price was calibrated to epsilon={target}")
        return {}
    above = not paid.epsilon <= target
    if above and (paid.kind is Kind.WORST_CASE or not math.isfinite(paid.epsilon)):
        raise RuntimeError(f"epsilon={paid.epsilon} lies above its target {target}")
    low = paid.epsilon < (1 - LANDING) * target
    note = "costs less than the target at the least noise that the method has" if low else ""
    if paid.kind is not Kind.WORST_CASE:
        note = ABOVE.format(paid.epsilon) if above else PLANNED * low
    held = YES if paid.certified and not above else NO
    row: dict[str, Any] = {"epsilon": paid.epsilon, "delta": paid.delta}
    row["certified"] = WORST if paid.kind is Kind.WORST_CASE else held
    if cost.worst_case is not None:
        row["worst_case_epsilon"] = cost.worst_case.epsilon
    if paid.kind is Kind.WORST_CASE:
        return {**row, "accountant": paid.by, "reason": note}
    row |= {"reliable": paid.reliable, "reason": "; ".join(filter(None, (note, paid.reason)))}
    known = paid.evidence
    if known is None:
        return {**row, "accountant": paid.by}
    by = f"{known.conversion}, {known.estimator}, {several(known.sample_size, 'record')}"
    return {**row, "skewness": known.skewness, "accountant": by}


def _settings(
    split: Split, plan: ComparisonPlan, chosen: Mapping[str, Any] | None
) -> dict[str, Any]:
    return {
        "data": split.train.name,
        "train": split.train.fingerprint(),
        "test": split.test.fingerprint(),
        "epsilons": sorted(plan.epsilons),
        "delta": plan.delta,
        "seeds": plan.seeds,
        "draws": plan.draws,
        "methods": {cell.name: describe(cell.method) for cell in plan.cells()},
        "chosen": dict(chosen or {}),
    }
