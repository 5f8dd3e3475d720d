"""Methods against each other at equal ε, on the same records, over the same seeds."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from bdpvi._runtime import log, validate
from bdpvi._runtime import progress as bars
from bdpvi._runtime.checkpoint import Checkpoint
from bdpvi._runtime.progress import Track
from bdpvi._runtime.store import replacing
from bdpvi.accounting import quantiles
from bdpvi.compare import report
from bdpvi.compare.hyperparameters import describe
from bdpvi.compare.methods import NONE, BaseRate, Method, Prepared
from bdpvi.compare.metrics import (
    BINS,
    MEASURES,
    behind,
    calibration,
    check_classes,
    correct,
    metrics,
)
from bdpvi.models.contract import predictive_means
from bdpvi.types import Outcome, Spent, Split, WorstCase

EPSILONS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
LANDING = 0.055
"""A calibrated ε lies below its target by at most this fraction, unless its row says why not; a
temperature on the public grid needs nearly all of it."""

LEVELS = tuple(percent / 100 for percent in range(1, 101))
"""Fractions of a panel's records at which the distribution of their own ε is kept."""

COLUMNS = (
    "data", "method", "guarantee", "target_epsilon", "seed", *MEASURES,
    "epsilon", "delta", "reliable", "reason", "setting", "accountant",
    "top_share", "effective_size", "pareto_k", "skewness", "seconds",
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """What to compare.

    Args:
        methods: to be compared.
        at: by a method's name and a target, the method to use there instead: the same with other
            hyper-parameters.
        epsilons: targets that every private method is calibrated to.
        delta: δ of every guarantee.
        seeds: number of seeds, 0 … seeds − 1.

    Raises:
        ValueError: if there is nothing to compare or a number is out of range.
    """

    methods: Sequence[Method]
    epsilons: Sequence[float] = EPSILONS
    delta: float = 1e-5
    seeds: int = 10
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

    def with_base_rate(self) -> Plan:
        """Return the plan with the base rate among its methods, which every table shows."""
        if any(method.name == BaseRate.name for method in self.methods):
            return self
        return replace(self, methods=(BaseRate(), *self.methods))

    def cells(self) -> list[Cell]:
        """Return the work, method by method; a method without privacy has one cell."""
        return [
            Cell(self.at.get(method.name, {}).get(epsilon, method), epsilon)
            for method in self.methods
            for epsilon in ([math.inf] if method.guarantee == NONE else sorted(self.epsilons))
        ]


def check_epsilons(epsilons: Sequence[float]) -> None:
    """Raise ValueError unless there are targets, each finite, above 0 and given once."""
    if not epsilons:
        raise ValueError("epsilons has no value")
    for epsilon in epsilons:
        validate.positive("epsilons", epsilon)
    if len(set(epsilons)) < len(epsilons):
        raise ValueError(f"epsilons has a value twice: {list(epsilons)}")


@dataclass(frozen=True)
class Cell:
    """One method at one target ε."""

    method: Method
    epsilon: float

    @property
    def name(self) -> str:
        """Return the name of its file."""
        return f"{self.method.name}@{self.epsilon:g}"


def compare(
    split: Split,
    plan: Plan,
    out: Path,
    *,
    chosen: Mapping[str, Any] | None = None,
    track: Track[Cell] = bars.silent,
) -> pd.DataFrame:
    """Run what is not finished yet, and write tables, figures and the report to ``out``.

    Args:
        split: training records for the methods, test records for the measurements.
        plan: what to compare; the base rate is always among it.
        out: a new folder, or that of the same comparison, which is then continued.
        chosen: how the hyper-parameters were found, for the report.
        track: shows progress.

    Returns:
        A row for each method, ε and seed. Where a method cannot reach a target there is one row,
        with no ε and the reason.

    Raises:
        ValueError: if ``out`` belongs to another comparison, or the test records have one class
            only.
    """
    check_classes("split.test.y", split.test.y)
    plan = plan.with_base_rate()
    settings = _settings(split, plan, chosen)
    store = Checkpoint(out, settings, "cells")
    store.begin()

    def kept(cell: Cell) -> Any:
        return store.get(cell.name, lambda found: check_cell(found, cell, split, plan))

    missing = [cell for cell in plan.cells() if kept(cell) is None]
    prepared: dict[Method, Prepared] = {}  # of one name; targets may share hyper-parameters
    for cell in track(missing, "compare"):
        method = cell.method
        if any(other.name != method.name for other in prepared):
            prepared.clear()
        if method not in prepared:
            prepared[method] = method.prepare(split.train, plan.delta)
        with log.step(f"compare {cell.name}"):
            store.put(cell.name, run(cell, prepared[method], split, plan))
    finished = [(cell, kept(cell)) for cell in plan.cells()]
    rows = [row for _, found in finished for row in found["rows"]]
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    results = report.Results(
        methods=plan.methods,
        summary=summarise(table, [found["right"] for _, found in finished]),
        bins={(cell.method.name, cell.epsilon): found["bins"] for cell, found in finished},
        own={(cell.method.name, cell.epsilon): found["own"] for cell, found in finished},
    )
    for name, frame in (("results.csv", table), ("summary.csv", results.summary)):
        with replacing(out / name) as temporary:
            frame.to_csv(temporary, index=False)
    report.write(out, split, results, settings)
    return table


def run(cell: Cell, prepared: Prepared, split: Split, plan: Plan) -> dict[str, Any]:
    """Return one cell, as JSON types.

    Returns:
        "rows", one for every seed; "right", how many seeds are right about each test record;
        "bins", what a reliability diagram shows, averaged over the seeds; "own", the ε that each of
        :data:`LEVELS` of the panel's records stays within, None where there is no panel. Where the
        target cannot be reached, one row with the reason, and None for the rest.
    """
    about = _about(cell, split)
    start = time.perf_counter()

    def failed(reason: str) -> dict[str, Any]:
        seconds = time.perf_counter() - start
        row = {**about, "delta": plan.delta, "reason": reason, "seconds": seconds}
        return {"rows": [row], "right": None, "bins": None, "own": None}

    try:
        setting = prepared.calibrate(cell.epsilon)
    except ValueError as error:
        return failed(f"not reached: {error}")
    try:
        outcomes = prepared.outcomes([setting] * plan.seeds, range(plan.seeds))
    except FloatingPointError as error:
        return failed(f"training diverged: {error}")
    predicted = [predict(cell.method, outcome, split) for outcome in outcomes]
    y = split.test.y.cpu()
    measured = [metrics(probability, y) for probability in predicted]
    right = torch.stack([correct(probability, y) for probability in predicted]).sum(0)
    bins = torch.stack([calibration(probability, y) for probability in predicted]).mean(0)
    ledger = getattr(prepared, "ledger", None)
    own = None
    if ledger is not None:
        numbers, epsilon_of = ledger(setting).own_price(plan.delta)
        own = quantiles.within(numbers, epsilon_of, LEVELS)
    seconds = (time.perf_counter() - start) / plan.seeds
    common = {**about, "setting": setting, "seconds": seconds}
    rows = [
        {**common, "seed": seed, **quality, **price(outcome, cell.epsilon)}
        for seed, (quality, outcome) in enumerate(zip(measured, outcomes, strict=True))
    ]
    return {"rows": rows, "right": right.tolist(), "bins": bins.tolist(), "own": own}


_PARTS = {"rows", "right", "bins", "own"}
_FAILED = {"delta", "reason", "seconds"}
_REACHED = {*MEASURES, "setting", "seconds"}
_PRICED = {"epsilon", "delta", "reason", "accountant"}


def check_cell(found: Any, cell: Cell, split: Split, plan: Plan) -> None:
    """Raise ValueError unless ``found`` is what :func:`run` returns for this cell."""
    if not isinstance(found, dict) or found.keys() != _PARTS:
        raise ValueError(f"it must be an object with {', '.join(sorted(_PARTS))}")
    rows, right, about = found["rows"], found["right"], _about(cell, split)
    if right is None:
        wanted, needed = [about], _FAILED
    else:
        wanted = [{**about, "seed": seed} for seed in range(plan.seeds)]
        needed = _REACHED if cell.method.guarantee == NONE else _REACHED | _PRICED
        counts = isinstance(right, list) and len(right) == len(split.test)
        if not counts or not all(type(n) is int and 0 <= n <= plan.seeds for n in right):
            raise ValueError(f"right must be {len(split.test)} whole numbers up to {plan.seeds}")
        _check_figures(found["bins"], found["own"])
    if not isinstance(rows, list) or len(rows) != len(wanted):
        raise ValueError(f"rows must be a list of {len(wanted)}")
    for row, same in zip(rows, wanted, strict=True):
        if not isinstance(row, dict) or not {*same, *needed} <= row.keys() <= {*COLUMNS}:
            raise ValueError(f"every row must have {sorted({*same, *needed})}")
        for name, value in row.items():
            if not (value == same[name] if name in same else _fits(name, value, cell)):
                raise ValueError(f"{name} of a row cannot be {value!r}")


def _check_figures(bins: Any, own: Any) -> None:
    """Raise ValueError unless a cell's figures can be drawn from these."""

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


def _fits(name: str, value: Any, cell: Cell) -> bool:
    """Return whether a cell's column may hold this value."""
    if name in ("reason", "accountant", "reliable"):
        return isinstance(value, bool if name == "reliable" else str)
    if type(value) is not float and (type(value) is not int or abs(value) >= 2**53):
        return False
    most = {"epsilon": cell.epsilon, "accuracy": 1.0}
    # Others are any number, perhaps none, such as the AUC of records of one class.
    return name not in most or (0 <= value <= most[name] and (value > 0 or name != "epsilon"))


def _about(cell: Cell, split: Split) -> dict[str, Any]:
    return {
        "data": split.train.name,
        "method": cell.method.name,
        "guarantee": cell.method.guarantee,
        "target_epsilon": cell.epsilon if math.isfinite(cell.epsilon) else None,
    }


def predict(method: Method, outcome: Outcome, split: Split) -> Tensor:
    """Return the test records' probabilities of 1, (N,): the released samples' mean prediction."""
    return predictive_means(method.model, outcome.latents, split.test.x).mean(0).cpu()


def price(outcome: Outcome, target: float) -> dict[str, Any]:
    """Return what an outcome costs, and how far that may be relied on.

    Raises:
        RuntimeError: if it costs more than the target; such a row must never be written.
    """
    paid = outcome.price
    if paid is None:
        if math.isfinite(target):
            raise RuntimeError(f"an outcome without a price was calibrated to epsilon={target}")
        return {}
    if not paid.epsilon <= target:
        raise RuntimeError(f"epsilon={paid.epsilon} lies above its target {target}")
    low = paid.epsilon < (1 - LANDING) * target
    note = "costs less than the target at the least noise that the method has" if low else ""
    row: dict[str, Any] = {"epsilon": paid.epsilon, "delta": paid.delta}
    if isinstance(paid, WorstCase):
        return {**row, "accountant": paid.accountant, "reason": note}
    assert isinstance(paid, Spent)
    return {
        **row,
        **asdict(paid.diagnostics),
        "reliable": paid.reliable,
        "reason": "; ".join(filter(None, (note, paid.reason))),
        "accountant": f"{paid.conversion}, {paid.estimator}, {paid.composition}, "
        f"{paid.sample_size} records",
    }


def summarise(table: pd.DataFrame, right: Sequence[Sequence[int] | None]) -> pd.DataFrame:
    """Return mean and standard error over the seeds for each method and target.

    Args:
        table: rows of all cells.
        right: of each cell, how many seeds are right about each test record, None if it was not
            reached. By it a method is set against the best at its target, see
            :func:`bdpvi.compare.metrics.behind`.
    """
    keys = ["data", "method", "guarantee", "target_epsilon"]
    groups = table.groupby(keys, sort=False, dropna=False)
    firsts = groups[["epsilon", "delta", "reliable", "reason", "accountant", "setting"]].first()
    parts = [firsts, groups["seed"].count().rename("seeds")]
    for name in MEASURES:
        parts += [groups[name].mean(), groups[name].sem().rename(f"{name}_error")]
    parts.append(groups["seconds"].sum())
    summary = pd.concat(parts, axis=1).reset_index()
    summary[["behind", "behind_error"]] = math.nan
    for _, cells in summary.groupby("target_epsilon"):
        reached = cells.index[cells["seeds"] > 0]
        fractions = [torch.tensor(right[i]).double() / int(cells["seeds"][i]) for i in reached]
        if fractions:
            summary.loc[reached, ["behind", "behind_error"]] = behind(fractions)
    return summary


def _settings(split: Split, plan: Plan, chosen: Mapping[str, Any] | None) -> dict[str, Any]:
    return {
        "data": split.train.name,
        "train": split.train.fingerprint(),
        "test": split.test.fingerprint(),
        "epsilons": sorted(plan.epsilons),
        "delta": plan.delta,
        "seeds": plan.seeds,
        "methods": {cell.name: describe(cell.method) for cell in plan.cells()},
        "chosen": dict(chosen or {}),
    }
