"""What ``bdpvi demo`` shows: certified draws from a posterior, and four methods beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from bdpvi import datasets, guides
from bdpvi._ground import outputs
from bdpvi._ground.checkpoint import Checkpoint
from bdpvi._ground.host import HOST
from bdpvi._ground.progress import bar, silent
from bdpvi._ground.store import check_writable
from bdpvi.bayesian.fit import Fit, Training, fit
from bdpvi.bayesian.pricing import membership_in
from bdpvi.bayesian.releases import cost, preview, release
from bdpvi.bench.methods import Method
from bdpvi.bench.methods.dp_gd import DPSGLDLosses
from bdpvi.bench.methods.dpvi import DPVILosses, DPVIMoments
from bdpvi.bench.methods.objective_perturbation import PerturbedMinimum
from bdpvi.bench.methods.without_privacy import LogisticRegression
from bdpvi.datasets.dataset import Dataset, Split
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.models.predictions import predictive_means
from bdpvi.privacy.cost import Cost
from bdpvi.privacy.entry import Charge
from bdpvi.privacy.membership import Membership
from bdpvi.tables.metrics import correct, log_scores

TARGETS = (0.2, 0.5, 1.0, 2.0)
"""Worst-case ε of the other methods."""
OTHERS: Mapping[str, Method] = {
    "default release": PerturbedMinimum(),
    "DPVI": DPVILosses(),
    "DPVI-MA": DPVIMoments(),
    "DP-SGLD": DPSGLDLosses(),
}
PLANS = (Charge(1, 4.0), Charge(1, 1.0), Charge(10, 1.0))
"""Draws from the posterior whose price is shown; all of it is public."""
SEEDS, REPEATS = 5, 200
DELTA = 1e-5
COLUMNS = (
    "method", "guarantee", "epsilon", "worst_case_epsilon", "delta", "certified", "accuracy",
    "log_score",
)  # fmt: skip
DRAWS = "draws from the posterior"
WITHOUT = "without privacy"
NO_FIGURE = "No figure: matplotlib is missing, which `pip install 'bdpvi[report]'` brings."
NO_SURVEY = (
    "20,000 simulated records: the survey of 6,366 women comes with `pip install 'bdpvi[report]'`."
)
TITLES: Mapping[str, str] = {
    "fair": "A survey of 6,366 married women: has she had an affair?",
    "adult": "Adult: does a person earn more than 50,000 dollars a year?",
    "abalone": "Abalone: has the shell more than nine rings?",
    "breast-cancer": "Breast cancer: is the tumour benign?",
    "simulated": "Simulated records of an exactly logistic population",
}
"""What each table asks, by its name."""


@dataclass(frozen=True)
class Demonstration:
    """What was measured.

    Attributes:
        split: the records.
        rows: a row for each method and ε, with :data:`COLUMNS`.
        spent: what the draws that were released cost together.
        member: how well anybody tells who is in the table, after these; None if none were.
        refused: why some draws were not released, "" if all were.
        figure, table: the files.
    """

    split: Split
    rows: pd.DataFrame
    spent: Cost
    member: Membership | None
    refused: str
    figure: Path | None
    table: Path

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the records as JSON types."""
        rows = self.rows.astype(object).where(self.rows.notna(), None)
        return {
            "data": self.split.train.name,
            "records": len(self.split.train),
            "test_records": len(self.split.test),
            "rows": rows.to_dict("records"),
            "cost": self.spent.to_dict(),
            "membership": self.member and asdict(self.member),
            "figure": self.figure,
            "table": self.table,
        }

    def print(self, console: Console) -> None:
        """Print two tables, what was released, and what it cost."""
        train, test = self.split.train, self.split.test
        say = partial(console.print, highlight=False, markup=False)
        say(TITLES[train.name], f"{len(train):,} records to fit, {len(test):,} to test.", sep="\n")
        own = self.rows["certified"].notna()
        draws = Table(title=f"{DRAWS.capitalize()}, δ = {DELTA:g}", title_justify="left")
        draws.add_column("draws")
        for heading in ("Bayesian ε", "certified", "worst-case ε", "log score", "accuracy"):
            draws.add_column(heading, justify="right")
        for row in self.rows[own].to_dict("records"):
            bayesian, worst = (_number(row[name]) for name in ("epsilon", "worst_case_epsilon"))
            scores = (f"{row[name]:.3f}" for name in ("log_score", "accuracy"))
            certified = "yes" if row["certified"] else "no"
            draws.add_row(row["method"], bayesian, certified, worst, *scores)
        title = f"Log score of methods with a worst-case ε, δ = {DELTA:g}"
        others = Table(title=title, title_justify="left")
        others.add_column("method")
        for epsilon in TARGETS:
            others.add_column(f"ε = {epsilon:g}", justify="right")
        for method, some in self.rows[~own].groupby("method", sort=False):
            cells = [f"{score:.3f}" for score in some["log_score"]]
            others.add_row(str(method), *cells if len(cells) > 1 else ["", "", "", *cells])
        for table in (draws, others):
            console.print(table)
        figure = f"Figure: {self.figure}" if self.figure else NO_FIGURE
        member = f"In one sentence: {self.member}" if self.member else ""
        lines = (self.refused, f"Spent, for the owner alone: {self.spent}", member, figure)
        say(*filter(None, lines), f"Table: {self.table}", sep="\n")


def run(out: Path, split: Split, *, progress: bool = True) -> Demonstration:
    """Fit, release one draw and nine more, run the other methods, and write figure and table.

    Args:
        out: a folder, new or of an interrupted demonstration of the same records, which goes on.
        split: public records.
        progress: whether bars are shown.
    """
    settings = {"train": split.train.fingerprint(), "test": split.test.fingerprint()}
    kept = Checkpoint(out, settings, "cells")
    check_writable(out)
    model = BayesianLogisticRegression()
    training = Training(device=str(split.train.x.device))
    fitted = fit(model, guides.Laplace(model), split.train, training=training, progress=progress)
    kept.begin()

    def once(name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] | None = kept.get(name)
        if result is None:
            kept.write_part(name, result := measure())
        return result

    first, *others = PLANS
    price = partial(cost, fitted, planned=first)
    rows = [once("planned", lambda: _of_draws(fitted, first, price(), split.test))]
    spent, refused = Cost(), ""
    for draws, plan in zip((1, 9), others, strict=True):
        try:
            spent = found = release(fitted, draws=draws).cost
        except ValueError as error:  # so few records that no ε is worth a statement
            found, refused = Cost(), f"{DRAWS.capitalize()}, {plan.draws}: {error}"
        rows.append(_of_draws(fitted, plan, found, split.test))
    cells = [(name, epsilon) for name in OTHERS for epsilon in TARGETS]
    track = bar if progress else silent
    rows += [
        once(f"{name}@{epsilon:g}", partial(_of_method, name, OTHERS[name], epsilon, split))
        for name, epsilon in track(cells, "other methods")
    ]
    plain = partial(_of_method, WITHOUT, LogisticRegression(), None, split)
    rows.append(once("without", plain))
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    frame["delta"] = frame["epsilon"].notna().map({True: DELTA})
    table = out / "curve.csv"
    table.write_bytes(outputs.csv_text(frame).encode())
    member = membership_in(fitted.ledger)
    return Demonstration(split, frame, spent, member, refused, _save_figure(frame, out), table)


def simulated(rows: int = 20_000, columns: int = 5) -> Split:
    """Return records of an exactly logistic population, four in five of them to fit."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, columns, generator=generator, dtype=torch.float64, device=HOST)
    truth = torch.linspace(1.0, -1.0, columns, dtype=torch.float64)
    chance = torch.sigmoid(x @ truth - 0.4)
    y = (torch.rand(rows, generator=generator, dtype=torch.float64, device=HOST) < chance).double()
    return datasets.split.first_rows(Dataset(x, y, name="simulated"))


def load(data: str | None) -> tuple[Split, str]:
    """Return the records of that name, by default the survey's, and what is to be said of them."""
    if data is not None:
        return datasets.LOADERS[data](), ""
    if find_spec("statsmodels") is None:
        return simulated(), NO_SURVEY
    return datasets.load_fair(), ""


def _of_draws(fitted: Fit, plan: Charge, price: Cost, test: Dataset) -> dict[str, Any]:
    """Return the row of draws: the mean of what releases of as many draws score."""
    bound, worst = price.bayesian, price.worst_case
    latents = preview(
        fitted, REPEATS, temperature=plan.temperature, generator=torch.Generator().manual_seed(0)
    )
    each = predictive_means(fitted.model, latents, test.x)
    means = each.reshape(-1, plan.draws, len(test)).mean(1)
    tempered = f", temperature {plan.temperature:g}" * (plan.temperature != 1)
    return {
        "method": ("one" if plan.draws == 1 else "ten") + tempered,
        "guarantee": "none" if bound is None else bound.kind.value,
        "epsilon": None if bound is None else bound.epsilon,
        "worst_case_epsilon": None if worst is None else worst.epsilon,
        "certified": bound is not None and bound.certified,
        **_scores(means, test.y),
    }


def _of_method(name: str, method: Method, epsilon: float | None, split: Split) -> dict[str, Any]:
    """Return the row of a method at one ε, the mean over a few seeds."""
    prepared = method.prepare(split.train, DELTA)
    setting = 1.0 if epsilon is None else prepared.calibrate(epsilon)
    outcomes = prepared.outcomes([setting] * SEEDS, range(SEEDS))
    means = [
        predictive_means(method.model, outcome.latents, split.test.x).mean(0)
        for outcome in outcomes
    ]
    return {
        "method": name,
        "guarantee": "none" if epsilon is None else method.guarantee,
        "epsilon": epsilon,
        "worst_case_epsilon": epsilon,
        "certified": None,
        **_scores(torch.stack(means), split.test.y),
    }


def _number(value: float) -> str:
    return "none" if pd.isna(value) else f"{value:.3g}"


def _scores(probability: Tensor, y: Tensor) -> dict[str, float]:
    each = {"accuracy": correct(probability, y), "log_score": log_scores(probability, y)}
    return {name: float(value.double().mean()) for name, value in each.items()}


def _save_figure(rows: pd.DataFrame, out: Path) -> Path | None:
    """Return where the figure is, None without matplotlib."""
    if find_spec("matplotlib") is None:
        return None
    from bdpvi.bench import curves

    path = out / "curve.png"
    curves.demonstration(rows, DELTA).savefig(path)
    return path
