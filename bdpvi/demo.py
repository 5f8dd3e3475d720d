"""The main job on the embedded data: what ``bdpvi demo`` shows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from bdpvi import datasets
from bdpvi._fit import fit
from bdpvi._runtime.store import check_writable
from bdpvi.accounting.ledger import Charge
from bdpvi.compare import figures
from bdpvi.compare.metrics import accuracy, expected_accuracy
from bdpvi.guides import MeanField
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.releasing.releases import release, spent
from bdpvi.types import Spent

DRAWS = (1, 10)
TEMPERATURES = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
SHOWN = 5.0
"""The temperature that the demonstration releases at."""


@dataclass(frozen=True)
class Demonstration:
    """What was measured: a row for each number of draws and temperature."""

    records: int
    test_records: int
    non_private: float
    curve: pd.DataFrame
    spent: Spent
    released_accuracy: float
    figure: Path
    table: Path

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON types, but for the two paths."""
        return {**asdict(self), "curve": self.curve.to_dict("records")}

    def print(self, console: Console) -> None:
        """Print a table and what was released."""
        table = Table(
            title=f"Breast cancer: {self.records} training records, accuracy on "
            f"{self.test_records} test records",
            title_justify="left",
        )
        epsilon = f"Bayesian-DP ε at δ = {self.spent.delta:g}"
        for heading in ("prediction from", "temperature", "accuracy", epsilon, "reliable"):
            table.add_column(heading, justify="right")
        table.add_row("posterior mean", "", f"{self.non_private:.3f}", "not private", "")
        for row in self.curve.to_dict("records"):
            name = "1 draw" if row["draws"] == 1 else f"{row['draws']} draws"
            temperature, accuracy = f"{row['temperature']:g}", f"{row['accuracy']:.3f}"
            reliable = "yes" if row["reliable"] else "no"
            table.add_row(name, temperature, accuracy, f"{row['epsilon']:.3f}", reliable)
        console.print(table)
        console.print(
            f"Released {DRAWS[-1]} draws at temperature {SHOWN:g}, which predict with accuracy "
            f"{self.released_accuracy:.3f}.\n{self.spent}",
            highlight=False,
        )
        console.print(f"{self.spent.guarantee}.", highlight=False)
        console.print(f"Figure: {self.figure}\nTable: {self.table}", highlight=False)


def run(out: Path, *, seed: int = 0, progress: bool = True) -> Demonstration:
    """Fit, account over a range of temperatures, release once, and write figure and table."""
    check_writable(out)
    split = datasets.load_breast_cancer()
    model = BayesianLogisticRegression(clip=0.25, prior_scale=0.25)
    fitted = fit(
        model, MeanField(model), split.train, steps=500, rate=0.2, seed=seed, progress=progress
    )
    rows = []
    for draws in DRAWS:
        for temperature in TEMPERATURES:
            price = spent(fitted, planned=Charge(draws, temperature))
            rows.append(
                {
                    "draws": draws,
                    "temperature": temperature,
                    "accuracy": expected_accuracy(fitted, split.test, draws, temperature),
                    "epsilon": price.epsilon,
                    "delta": price.delta,
                    "guarantee": "Bayesian DP",
                    "reliable": price.reliable,
                }
            )
    curve = pd.DataFrame(rows)
    released = release(fitted, DRAWS[-1], temperature=SHOWN)
    mean = fitted.guide.unpack(fitted.posterior.mean)["w"]
    non_private = accuracy(model, {"w": mean[None]}, split.test)
    figure = figures.accuracy_curve(curve, non_private, out / "accuracy.png")
    table = out / "accuracy.csv"
    curve.to_csv(table, index=False)
    return Demonstration(
        records=len(split.train),
        test_records=len(split.test),
        non_private=non_private,
        curve=curve,
        spent=released.spent,
        released_accuracy=float((released.predict(split.test.x) == split.test.y).double().mean()),
        figure=figure,
        table=table,
    )
