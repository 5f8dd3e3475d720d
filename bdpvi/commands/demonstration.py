"""The main job on the embedded data: what ``bdpvi demo`` shows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LogisticRegression

from bdpvi import datasets
from bdpvi._runtime import outputs
from bdpvi._runtime.keys import Key
from bdpvi._runtime.progress import bar, silent
from bdpvi._runtime.store import check_writable
from bdpvi.accounting.cost import Cost
from bdpvi.models.contract import predictive_means
from bdpvi.recipes.metrics import correct
from bdpvi.recipes.recommended import recommended
from bdpvi.releasing.prepared import Prepared
from bdpvi.releasing.releases import release
from bdpvi.types import Dataset

TARGETS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Worst-case ε of the releases that are simulated."""
SHOWN = 1.0
"""ε of the one that is made."""
ROWS = 500.0
"""Rows as they are declared: the table is public."""
REPEATS = 20
DELTA = 1e-5
NO_FIGURE = "No figure: matplotlib is missing, which `pip install 'bdpvi[report]'` brings."


@dataclass(frozen=True)
class Demonstration:
    """What was measured: a row for each worst-case ε."""

    records: int
    test_records: int
    non_private: float
    curve: pd.DataFrame
    cost: Cost
    released_accuracy: float
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
        for heading in ("worst-case ε", "mean accuracy of a release", "lowest", "highest"):
            table.add_column(heading, justify="right")
        for row in self.curve.to_dict("records"):
            numbers = (f"{row[name]:.3f}" for name in ("accuracy", "lowest", "highest"))
            table.add_row(f"{row['worst_case']:g}", *numbers)
        table.add_row("not private", f"{self.non_private:.3f}")
        console.print(table)
        figure = f"Figure: {self.figure}" if self.figure else NO_FIGURE
        console.print(
            f"Released 1 draw, which predicts with accuracy {self.released_accuracy:.3f}.\n"
            f"{self.cost}\n{figure}\nTable: {self.table}",
            highlight=False,
            markup=False,  # it would take "[report]" away
        )


def run(out: Path, *, progress: bool = True) -> Demonstration:
    """Solve over a range of ε, release once, and write figure and table."""
    check_writable(out)
    split = datasets.load_breast_cancer()
    fitted = recommended(SHOWN, expected_rows=ROWS).fit(split.train)
    assert isinstance(fitted, Prepared)
    track = bar if progress else silent
    rows = [_row(fitted, split.test, target) for target in track(TARGETS, "ε")]
    curve = pd.DataFrame(rows)
    released = release(fitted, epsilon=SHOWN)
    usual = LogisticRegression(max_iter=1000).fit(split.train.x.numpy(), split.train.y.numpy())
    non_private = float(usual.score(split.test.x.numpy(), split.test.y.numpy()))
    table = out / "accuracy.csv"
    table.write_bytes(outputs.csv_text(curve).encode())
    return Demonstration(
        records=len(split.train),
        test_records=len(split.test),
        non_private=non_private,
        curve=curve,
        cost=released.cost,
        released_accuracy=float((released.predict(split.test.x) == split.test.y).double().mean()),
        figure=_drawn(curve, non_private, out / "accuracy.png"),
        table=table,
    )


def _row(fitted: Prepared, test: Dataset, epsilon: float) -> dict[str, float]:
    """Return the accuracy of releases at one ε, each solved for by itself; nothing is charged."""
    latents = fitted.previews(REPEATS, epsilon=epsilon, delta=DELTA, key=Key.fresh())
    means = predictive_means(fitted.predicting(epsilon, DELTA), latents, test.x)
    each = correct(means, test.y).double().mean(1)
    return {
        "worst_case": epsilon,
        "delta": DELTA,
        "accuracy": float(each.mean()),
        "lowest": float(each.min()),
        "highest": float(each.max()),
    }


def _drawn(curve: pd.DataFrame, non_private: float, path: Path) -> Path | None:
    """Return where the figure is, None without matplotlib."""
    if find_spec("matplotlib") is None:
        return None
    from bdpvi.commands.figure import accuracy_curve

    return accuracy_curve(curve, non_private, path)
