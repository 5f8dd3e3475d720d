"""Scores of a release, for its owner only: cross-validation by simulated releases.

These scores are computed from the rows and no ε covers them. A decision by them to publish or to
run again reveals something that the guarantee does not cover.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.optimize import minimize
from scipy.special import ndtri
from torch import Tensor
from torch.nn.functional import softplus

from bdpvi._ground import threads
from bdpvi._ground.progress import Track, silent
from bdpvi._ground.types import TooFewRecordsError
from bdpvi.datasets.dataset import Dataset
from bdpvi.datasets.records import Held
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.models.predictions import predictive_means
from bdpvi.noise.keys import Key
from bdpvi.privacy.gaussian import largest_variance
from bdpvi.privacy.perturbed_objective import PerturbedObjective
from bdpvi.releases.released import Release
from bdpvi.releases.route import Allowance
from bdpvi.tables.encoded import encode, unpaid
from bdpvi.tables.metrics import auc, fraction_correct, log_score
from bdpvi.tables.rows import Encoded, Rows
from bdpvi.tables.setup import Intervals, setup
from bdpvi.tables.work import Work

FOLDS, TURNS, FEWEST = 5, 20, 4
"""Folds, the most repetitions of them, and the fewest simulated releases if time permits."""
LOW, HIGH = 0.05, 0.95
"""The displayed range: nine of ten simulated releases lie in it."""
CLOSE = 0.02
"""Simulation ends when the ends of all ranges have standard errors of at most this."""
TIMES, SECONDS = 10.0, 15.0
"""Time limit: this multiple of the release's time, or this many seconds, whichever is more."""
RELEASE, RATE, OPEN = "a release like this", "always the base rate", "without privacy"
MEASURES = ("AUC", "log score", "accuracy")
CAUTION = (
    "These scores are computed from the rows and no ε covers them: a decision based on them, "
    "such as to publish or to run again, reveals information outside the guarantee"
)


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of simulated releases. Secret.

    Attributes:
        values: one row per simulated release and prediction, with AUC (NaN if a fold has one
            class), log score and accuracy.
        ended: why the simulation ended.
    """

    values: pd.DataFrame
    ended: str

    @property
    def previews(self) -> int:
        """The number of simulated releases."""
        return len(self.values.loc[[RELEASE]])

    def table(self) -> pd.DataFrame:
        """Return the median of each score, and its range over simulated releases."""
        grouped = self.values.groupby(level="of", sort=False)
        found = {
            "median": grouped.median(),
            LOW: grouped.quantile(LOW),
            HIGH: grouped.quantile(HIGH),
        }
        return pd.concat(found, axis=1).swaplevel(axis=1)[list(MEASURES)]

    def __str__(self) -> str:
        table = self.table()
        lines = [
            f"{self.previews} simulated releases, each scored on held-out rows, {self.ended}; in "
            f"brackets their {LOW:.0%} to {HIGH:.0%} quantiles:"
        ]
        width = max(map(len, table.index))
        for name in table.index:
            row = [
                "{:s} {:.3f} ({:.3f} to {:.3f})".format(measure, *table.loc[name, measure])
                for measure in MEASURES
            ]
            lines.append(f"  {name:{width}}  " + "  ".join(row))
        return "\n".join([*lines, *self.warnings(), CAUTION])

    def warnings(self) -> list[str]:
        """Return warnings against the release, from the ranges."""
        result = []
        if self.previews < FOLDS * FEWEST:
            result.append(
                f"WARNING: {self.previews} simulated releases are few; the ranges are rough"
            )
        released, rate = (self.values.loc[[name]] for name in (RELEASE, RATE))
        ranked = released["AUC"].dropna()
        if not len(ranked):
            result.append("WARNING: one class is too rare to compute an AUC")
        elif (share := float((ranked <= 0.5).mean())) > LOW:
            result.append(
                f"WARNING: {share:.0%} of the simulated releases have an AUC of ½ or less"
            )
        worse = (released["log score"].to_numpy() <= rate["log score"].to_numpy()).mean()
        if worse > LOW:
            result.append(
                f"WARNING: {worse:.0%} of the simulated releases have a log score no better than "
                "the base rate; more records, fewer columns, a larger ε or, where one class is "
                "rare, a public --base-rate would help"
            )
        return result

    def to_dict(self) -> dict[str, Any]:
        """Return the table as JSON types, the number of simulated releases, and why they ended."""
        table = self.table()
        return {"previews": self.previews, "ended": self.ended} | {
            str(name): {m: dict(zip(("median", "low", "high"), table.loc[name, m], strict=True))
                        for m in MEASURES}
            for name in table.index
        }  # fmt: skip


def patience(release: float) -> float:
    """Return the time limit of the simulation, given the release's seconds.

    >>> patience(1.6), patience(60.0)
    (16.0, 600.0)
    """
    return max(TIMES * release, SECONDS)


def preview_scores(
    work: Work,
    release: Release,
    key: Key,
    track: Track[Any] = silent,
    *,
    seconds: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
) -> Scores | None:
    """Score simulated releases like this one on held-out rows.

    Five folds by secret coins of rows, or of persons, up to twenty times. Each repeats private
    preprocessing, fit and draws, without a charge or storage. A simulated release's randomness
    follows from its number, so stopping early changes no other.

    Args:
        work: the table and its processing.
        release: the release, for its model and noise.
        key: source of all randomness.
        track: shows progress.
        seconds: after the first, none begins that would likely end later than this; none goes on
            to its next step later than this.
        clock: returns the time in seconds.

    Returns:
        The scores, or None where one takes too long (training, draws from a posterior, or the first
        one), with weights of rows, which scores would ignore, and for a table in blocks
        (:mod:`bdpvi.tables.row_scores`).
    """
    if work.table is not None or not isinstance(release.model, BayesianLogisticRegression):
        return None
    if release.guide is not None or work.asked.bayesian or work.asked.public.weights:
        return None
    found: list[tuple[Any, ...]] = []
    start, ended = clock(), "the maximum number"

    def late() -> bool:
        return clock() - start > seconds

    with threads.single():
        for number in track(range(FOLDS * TURNS), "simulated releases"):
            try:
                scored = _preview(work, release, number, key, late)
            except TooFewRecordsError:  # a fifth of the records is held out
                return None
            found += scored or []
            done, spent = number + 1, clock() - start
            if scored is None or (done < FOLDS * TURNS and spent * (done + 1) / done > seconds):
                ended = f"as many as {seconds:.0f} s allow"
                break
            if done % FOLDS == 0 and done >= FOLDS * FEWEST and _error(found) <= CLOSE:
                ended = f"enough for ranges with standard errors of at most {CLOSE:g}"
                break
    if not found:
        return None
    return Scores(pd.DataFrame(found, columns=["of", *MEASURES]).set_index("of"), ended)


def _error(found: list[tuple[Any, ...]]) -> float:
    """Return the largest standard error of an end of a range; NaN if one is not known.

    It is √(p(1 − p)/n)/f for a sample quantile of order p, with the density f there (David and
    Nagaraja 2003, Order Statistics, chapter 10), here that of a Gaussian: 2.11 σ/√n for 5 % and
    95 %. Simulated releases share the table, so this is only the simulation error.
    """
    scores = np.array([row[1:] for row in found if row[0] == RELEASE], dtype=np.float64)
    density = math.exp(-(ndtri(LOW) ** 2) / 2) / math.sqrt(2 * math.pi)
    each = math.sqrt(LOW * (1 - LOW)) / density
    kept = [column[~np.isnan(column)] for column in scores.T]
    errors = [each * one.std(ddof=1) / math.sqrt(len(one)) for one in kept if len(one) > 1]
    return float(max(errors)) if len(errors) == len(kept) else math.nan


def _preview(
    work: Work, release: Release, number: int, key: Key, late: Callable[[], bool]
) -> list[tuple[Any, ...]] | None:
    """Return the scores of one simulated release; none if its fold is empty or all records.

    None if it is late after a step.
    """
    model: Any = release.model
    given = work.records
    records: Any = work.rows.first() if given is None else given
    size = len(records)
    turn, fold = divmod(number, FOLDS)
    folds = (key.child("folds", turn).words(size) % np.uint64(FOLDS)).astype(int)
    persons = getattr(records, "persons", None)
    held = (folds if persons is None else folds[persons]) == fold
    if not 0 < held.sum() < size:
        return []
    own = key.child("preview", number)
    train, test, encoded = _parts(work, records, held, own)
    if late():
        return None
    drawn = _simulate_minima(work, model, train, encoded, own.child("draw"))
    if late():
        return None
    predictions = {
        RELEASE: predictive_means(model, {"w": drawn}, test.x).mean(0),
        RATE: torch.full_like(test.y, float(train.y.mean())),
    }
    if turn == 0:
        predictions[OPEN] = _without_privacy(model, train, test.x)
    return [(name, *_score_predictions(value, test.y)) for name, value in predictions.items()]


def _parts(
    work: Work, records: Dataset | Rows, held: np.ndarray[Any, Any], key: Key
) -> tuple[Dataset, Dataset, Encoded | None]:
    """Return training and test records, with the fold's own preprocessing."""
    if isinstance(records, Dataset):
        mask = torch.from_numpy(held)
        return records.select(~mask), records.select(mask), None
    rows = records.select(np.flatnonzero(~held)), records.select(np.flatnonzero(held))
    free = unpaid(key.child("constants"))
    found = encode(Held(rows[0]), work.header, work.asked, free, left=work.whole, feasible=False)
    train, test = (
        Dataset(
            found.encoding.whole(row.columns),
            torch.from_numpy(row.y),
            preprocessing={"encoding": found.encoding.to_dict()},
        )
        for row in rows
    )
    return train, test, found


def _simulate_minima(
    work: Work,
    model: BayesianLogisticRegression,
    train: Dataset,
    found: Encoded | None,
    key: Key,
) -> Tensor:
    """Return the minima of a simulated release of these rows, after earlier charges."""
    asked = work.asked
    route: Any = setup(asked, found).route
    if isinstance(route, Intervals):  # the release is by noisy scores, as there is no guide
        route = route.scores
    rows = work.people.rows_per_unit
    variance = rows**2 * math.fsum(one**2 for one in found.paid) if found else 0.0
    if route.count:
        variance += route.count * largest_variance(asked.epsilon, asked.delta)
        route = route.of_rows(float(len(train)))
    route = route.adapt(model, train, None)
    left = Allowance(asked.epsilon, asked.delta, variance, rows=rows)
    plan = route.plan(model, train.x.shape[1], left)
    spent = [e for entry in work.people.ledger.entries() for e in entry.events or ()]
    solved = [e for e in spent if isinstance(e, PerturbedObjective)][-1:]
    noise = max(e.noise_multiplier for e in (plan.event, *solved))
    w: Tensor = route.draw(model, train, plan.with_noise(noise), key).latents["w"]
    return w


def _without_privacy(model: BayesianLogisticRegression, train: Dataset, x: Tensor) -> Tensor:
    """Return the probabilities of logistic regression, its weights with a ridge of 1."""
    if len(torch.unique(train.y)) < 2:
        return torch.full((len(x),), float(train.y.mean()), dtype=torch.float64)
    design, y = model.design(train.x), train.y
    ridge = np.ones(design.shape[1])
    ridge[design.shape[1] - bool(model.intercept) :] = 0.0

    def objective(w: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
        logits, shrunk = design @ torch.from_numpy(w), ridge * w
        value = (softplus(logits) - y * logits).sum() + w @ shrunk / 2
        return float(value), (design.T @ (torch.sigmoid(logits) - y)).numpy() + shrunk

    found = minimize(objective, np.zeros(design.shape[1]), jac=True, method="L-BFGS-B")
    return torch.sigmoid(model.design(x) @ torch.from_numpy(found.x))


def _score_predictions(probability: Tensor, y: Tensor) -> tuple[float, float, float]:
    both = len(torch.unique(y)) == 2
    ranked = float(auc(probability, y)) if both else math.nan
    return ranked, float(log_score(probability, y)), float(fraction_correct(probability, y))
