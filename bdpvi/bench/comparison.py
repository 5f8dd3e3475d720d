"""Comparison of methods at equal ε, on the same records, over the same seeds."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
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
from bdpvi._ground.store import replacing
from bdpvi.bayesian.accounting import quantiles
from bdpvi.bench import report
from bdpvi.bench.hyperparameters import describe, nearest
from bdpvi.bench.methods import NONE, BaseRate, Method, PreparedMethod
from bdpvi.bench.methods.outcome import Outcome
from bdpvi.bench.summary import LEVELS, NO, PAIRED, WORST, YES, ratio_table, summarise
from bdpvi.datasets.dataset import Split
from bdpvi.models.predictions import predictive_means
from bdpvi.privacy.cost import Cost, Kind
from bdpvi.tables.metrics import BINS, MEASURES, calibration, check_classes, correct, log_scores

EPSILONS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
LANDING = 0.055
"""Largest fraction by which a calibrated ε may lie below its target without a reason in its row; a
temperature on the public grid uses nearly all of it."""

ABOVE = "not certified at the target: at the temperature that is planned for it ε is {:.3g}"
PLANNED = "costs less than the target: its temperature was planned before a record was seen"

UNSURE = 1e-6
"""Failure probability of the certified 99 % quantile of all records' ε."""
_LOWEST = 37.0
"""No record costs more nats, see :func:`bdpvi.tables.metrics.log_scores`."""
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

    def kept(cell: Combination) -> Any:
        return store.get(cell.name, lambda found: check_cell(found, cell, split, plan))

    missing = [cell for cell in plan.cells() if kept(cell) is None]
    prepared: dict[Method, PreparedMethod] = {}  # for one name; targets may share hyper-parameters
    for cell in track(missing, "compare"):
        method = cell.method
        if any(other.name != method.name for other in prepared):
            prepared.clear()
        if method not in prepared:
            prepared[method] = method.prepare(split.train, plan.delta)
        with log.step(f"compare {cell.name}"):
            store.put(cell.name, run(cell, prepared[method], split, plan))
    finished = [(cell, kept(cell)) for cell in plan.cells()]
    rows = [row for _, found in finished for row in _rows(found, plan.seeds)]
    table, every = pd.DataFrame(rows, columns=list(COLUMNS)), [found for _, found in finished]
    results = report.Results(
        methods=plan.methods,
        summary=summarise(every),
        ratios=ratio_table(every, plan.methods),
        bins={(cell.method.name, cell.epsilon): found["bins"] for cell, found in finished},
        own={(cell.method.name, cell.epsilon): found["own"] for cell, found in finished},
    )
    frames = {"results": table, "summary": results.summary, "ratios": results.ratios}
    for name, frame in frames.items():
        with replacing(out / f"{name}.csv") as temporary:
            temporary.write_bytes(csv_text(frame).encode())
    report.write(out, split, results, settings)
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
        record; "bins", the data of a reliability diagram, averaged over the runs; "own", quantiles
        at ``LEVELS`` of the panel records' ε, and "certified", the 99 % quantile of all records' ε
        with confidence 1 − ``UNSURE``: None without a panel, or with too small a panel. If the
        target cannot be reached, the row has the reason, and the rest is None.
    """
    about, count = _about(cell, split), plan.runs(cell.method)
    start = time.perf_counter()

    def failed(reason: str) -> dict[str, Any]:
        seconds = time.perf_counter() - start
        row = {**about, "delta": plan.delta, "reason": reason, "seconds": seconds}
        return {"row": row, **dict.fromkeys(_PARTS - {"row"})}

    try:
        setting = prepared.calibrate(cell.epsilon)
    except ValueError as error:
        return failed(f"not reached: {error}")
    try:
        outcomes = prepared.outcomes([setting] * count, range(count))
    except FloatingPointError as error:
        return failed(f"training diverged: {error}")
    measured = _measured(cell.method, outcomes, split)
    account = getattr(prepared, "account", None)
    own = certified = None
    if account is not None:
        numbers, epsilon_of = account(setting).own_price(plan.delta)
        own = quantiles.within(numbers, epsilon_of, LEVELS)
        most = float(quantiles.quantile_certificate(numbers, UNSURE, 0.99))
        certified = epsilon_of(most) if math.isfinite(most) else None
    row = {**about, "setting": setting, "seconds": time.perf_counter() - start}
    for outcome in outcomes:  # their costs are identical, but each is checked
        row |= price(outcome, cell.epsilon)
    return {"row": row, **measured, "own": own, "certified": certified}


def _measured(method: Method, outcomes: Sequence[Outcome], split: Split) -> dict[str, Any]:
    """Return "measures", "records" and "bins" of :func:`run`, computed in batches of runs."""
    y, count = split.test.y.cpu(), len(outcomes)
    values: dict[str, list[float]] = {name: [] for name in MEASURES}
    sums, bins = (
        torch.zeros(len(PAIRED), len(y), dtype=torch.float64),
        torch.zeros(BINS, 3).double(),
    )
    some = max(1, _AT_ONCE // (len(y) * len(next(iter(outcomes[0].latents.values())))))
    for first in range(0, count, some):
        probability = predict(method, outcomes[first : first + some], split)
        for name, measure in MEASURES.items():
            values[name] += measure.of(probability, y).tolist()
        each = {"accuracy": correct(probability, y), "log_score": log_scores(probability, y)}
        sums += torch.stack([each[name].double().sum(0) for name in PAIRED])
        bins += calibration(probability, y).sum(0)
    # Seven decimals keep the files small and exceed the precision of the estimates.
    means = zip(PAIRED, (sums / count).tolist(), strict=True)
    records = {name: [round(one, 7) for one in mean] for name, mean in means}
    return {"measures": values, "records": records, "bins": (bins / count).tolist()}


_PARTS = {"row", "measures", "records", "bins", "own", "certified"}
_FAILED = {"delta", "reason", "seconds"}
_REACHED = {"setting", "seconds"}
_PRICED = {"epsilon", "delta", "certified", "reason", "accountant"}


def check_cell(found: Any, cell: Combination, split: Split, plan: ComparisonPlan) -> None:
    """Raise ValueError unless ``found`` is a result of :func:`run` for this cell."""
    if not isinstance(found, dict) or found.keys() != _PARTS:
        raise ValueError(f"it must be an object with {', '.join(sorted(_PARTS))}")
    row, same, needed = found["row"], _about(cell, split), _FAILED
    if found["measures"] is not None:
        needed = _REACHED if cell.method.guarantee == NONE else _REACHED | _PRICED
        _check_numbers("measures", found["measures"], MEASURES, plan.runs(cell.method))
        _check_numbers("records", found["records"], PAIRED, len(split.test))
        _check_figures(found["bins"], found["own"], found["certified"])
    allowed = {*COLUMNS} - {*MEASURES, "seed"}
    if not isinstance(row, dict) or not {*same, *needed} <= row.keys() <= allowed:
        raise ValueError(f"row must be an object with {sorted({*same, *needed})}")
    for name, value in row.items():
        most = math.inf if row.get("certified") == NO else cell.epsilon
        if not (value == same[name] if name in same else _fits(name, value, most)):
            raise ValueError(f"{name} of the row cannot be {value!r}")


def _check_numbers(part: str, found: Any, names: Iterable[str], count: int) -> None:
    """Raise ValueError unless ``found`` has a list of valid numbers for each name."""
    if not isinstance(found, dict) or found.keys() != {*names}:
        raise ValueError(f"{part} must be an object with {', '.join(names)}")
    for name, values in found.items():
        least, most = (-_LOWEST, 0.0) if name == "log_score" else (0.0, 1.0)
        whole = isinstance(values, list) and len(values) == count
        if not whole or not all(type(v) is float and least <= v <= most for v in values):
            raise ValueError(f"{part}: {name} must be {count} numbers from {least:g} to {most:g}")


def _check_figures(bins: Any, own: Any, certified: Any) -> None:
    """Raise ValueError unless a cell's figures can be drawn from these values."""

    def numbers(value: Any, count: int) -> bool:
        return (
            isinstance(value, list)
            and len(value) == count
            and all(type(one) is float and one >= 0 for one in value)
        )

    if not isinstance(bins, list) or len(bins) != BINS or not all(numbers(b, 3) for b in bins):
        raise ValueError(f"bins must be {BINS} lists of 3 numbers, got {bins!r}")
    if own is not None and not numbers(own, len(LEVELS)):
        raise ValueError(f"own must be {len(LEVELS)} numbers of at least 0, got {own!r}")
    if certified is not None and not numbers([certified], 1):
        raise ValueError(f"certified must be a number of at least 0, got {certified!r}")


def _fits(name: str, value: Any, most: float) -> bool:
    """Return whether a cell's column may hold this value; ε is limited to ``most``."""
    if name == "certified":
        return value in (YES, NO, WORST)
    if name in ("reason", "accountant", "reliable"):
        return isinstance(value, bool if name == "reliable" else str)
    if type(value) is not float and (type(value) is not int or abs(value) >= 2**53):
        return False
    return name != "epsilon" or 0 < value <= most


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
    latents = {name: torch.cat([one.latents[name] for one in outcomes]) for name in names}
    means = predictive_means(method.model, latents, split.test.x)
    return means.reshape(len(outcomes), -1, means.shape[1]).mean(1)


def price(outcome: Outcome, target: float) -> dict[str, Any]:
    """Return an outcome's cost and how reliable it is.

    An ε that is certified at a public temperature but exceeds the target gives an uncertified row,
    because nothing is guaranteed at the target.

    Raises:
        RuntimeError: if any other cost exceeds the target; such a row must never be written.
    """
    cost = outcome.cost or Cost()
    paid = cost.bayesian or cost.worst_case
    if paid is None:
        if math.isfinite(target):
            raise RuntimeError(f"an outcome without a price was calibrated to epsilon={target}")
        return {}
    above = not paid.epsilon <= target
    if above and not (paid.certified and math.isfinite(paid.epsilon)):
        raise RuntimeError(f"epsilon={paid.epsilon} lies above its target {target}")
    low = paid.epsilon < (1 - LANDING) * target
    note = "costs less than the target at the least noise that the method has" if low else ""
    if paid.certified:
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
