"""The main job on the embedded data: what ``bdpvi demo`` shows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from bdpvi import datasets
from bdpvi._fit import fit
from bdpvi._runtime.store import check_writable
from bdpvi.accounting.cost import Cost
from bdpvi.accounting.ledger import Charge
from bdpvi.guides import MeanField
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.recipes.metrics import accuracy, expected_accuracy
from bdpvi.recipes.recommended import recommended
from bdpvi.releasing.releases import calibrate, cost, release

TARGETS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Worst-case ε of the releases that are simulated."""
SHOWN = 1.0
"""ε of the one that is made, and that the settings follow from."""
NO_FIGURE = "No figure: matplotlib is missing, which `pip install 'bdpvi[report]'` brings."
DELTA = 1e-5
HOT = 10.0
"""Temperature at which the model without bounds is priced."""


@dataclass(frozen=True)
class Demonstration:
    """What was measured: a row for each worst-case ε."""

    records: int
    test_records: int
    non_private: float
    curve: pd.DataFrame
    cost: Cost
    released_accuracy: float
    unbounded: Cost
    figure: Path | None
    table: Path

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON types, but for the two paths."""
        return {**asdict(self), "curve": self.curve.to_dict("records")}

    def print(self, console: Console) -> None:
        """Print a table and what was released."""
        table = Table(
            title=f"Breast cancer: {self.records} training records, accuracy on "
            f"{self.test_records} test records, δ = {DELTA:g}",
            title_justify="left",
        )
        for heading in ("worst-case ε", "Bayesian ε", "reliable", "accuracy of 1 draw"):
            table.add_column(heading, justify="right")
        for row in self.curve.to_dict("records"):
            reliable = "yes" if row["reliable"] else "no"
            numbers = (f"{row[name]:.3g}" for name in ("worst_case", "bayesian"))
            table.add_row(*numbers, reliable, f"{row['accuracy']:.3f}")
        table.add_row("not private", "not private", "", f"{self.non_private:.3f}")
        console.print(table)
        figure = f"Figure: {self.figure}" if self.figure else NO_FIGURE
        console.print(
            f"Released 1 draw, which predicts with accuracy {self.released_accuracy:.3f}.\n"
            f"{self.cost}\n{self.cost.bayesian.meaning if self.cost.bayesian else ''}.\n"
            "The same from a model that bounds no record, at temperature "
            f"{HOT:g}: {self.unbounded}\n"
            f"{figure}\nTable: {self.table}",
            highlight=False,
            markup=False,  # it would take "[report]" away
        )


def run(out: Path, *, progress: bool = True) -> Demonstration:
    """Fit, account over a range of ε, release once, and write figure and table."""
    check_writable(out)
    split = datasets.load_breast_cancer()
    fitted = recommended(SHOWN).fit(split.train, progress=progress)
    rows = []
    for target in TARGETS:
        planned = calibrate(fitted, epsilon=target)
        temperature = planned.temperature
        bayesian = cost(fitted, planned=planned, delta=DELTA).bayesian
        assert bayesian is not None  # recommended settings bound every record
        rows.append(
            {
                "worst_case": target,
                "bayesian": bayesian.epsilon,
                "reliable": bayesian.reliable,
                "delta": bayesian.delta,
                "temperature": temperature,
                "accuracy": expected_accuracy(fitted, split.test, 1, temperature),
            }
        )
    curve = pd.DataFrame(rows)
    released = release(fitted, epsilon=SHOWN)
    model = BayesianLogisticRegression()
    unbounded = fit(model, MeanField(model), split.train, progress=progress)
    mean = unbounded.guide.unpack(unbounded.posterior.mean)["w"]
    non_private = accuracy(model, {"w": mean[None]}, split.test)
    table = out / "accuracy.csv"
    curve.to_csv(table, index=False)
    return Demonstration(
        records=len(split.train),
        test_records=len(split.test),
        non_private=non_private,
        curve=curve,
        cost=released.cost,
        released_accuracy=float((released.predict(split.test.x) == split.test.y).double().mean()),
        unbounded=cost(unbounded, planned=Charge(1, HOT)),
        figure=_drawn(curve, non_private, out / "accuracy.png"),
        table=table,
    )


def _drawn(curve: pd.DataFrame, non_private: float, path: Path) -> Path | None:
    """Return where the figure is, None without matplotlib."""
    if find_spec("matplotlib") is None:
        return None
    from bdpvi.commands.figure import accuracy_curve

    return accuracy_curve(curve, non_private, path)
