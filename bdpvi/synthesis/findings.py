"""Quality measures of a synthetic table, for the table's owner only.

They are computed from the real rows without noise, and no ε covers them.
"""

from __future__ import annotations

from dataclasses import dataclass

BASE = "base rate"
SYNTHETIC, REAL = "synthetic", "real"
ALL = "all"


@dataclass(frozen=True)
class ColumnShares:
    """One column's shares of rows, and how it was modelled.

    Attributes:
        name: the column's name.
        labels: labels of its bins.
        real, synthetic: shares of rows, in the order of the labels.
        variation: total variation distance between the two.
        codes, bins: number of values or cells in the schema, and of bins used to count pairs.
        pooled: levels that share a bin with other levels.
        parents: columns on which it is conditioned.
        unfit: how many real values did not fit the schema, in words.
    """

    name: str
    labels: tuple[str, ...]
    real: tuple[float, ...]
    synthetic: tuple[float, ...]
    variation: float
    codes: int
    bins: int
    pooled: tuple[str, ...]
    parents: tuple[str, ...]
    unfit: str


@dataclass(frozen=True)
class Pair:
    """Two columns.

    Attributes:
        names: names of both columns.
        variation: total variation distance between real and synthetic shares.
        real, synthetic: ½ Σ |deviation from independence|; 0 means independent columns.
        lost: ½ Σ |real deviation from independence − synthetic deviation|.
    """

    names: tuple[str, str]
    variation: float
    real: float
    synthetic: float
    lost: float


@dataclass(frozen=True)
class Cell:
    """Rows in one bin of each of two columns.

    Attributes:
        labels: labels of both bins.
        real, synthetic: shares of rows, or their deviations from independence.
    """

    labels: tuple[str, str]
    real: float
    synthetic: float


@dataclass(frozen=True)
class Detail:
    """The cells of a pair in which real and synthetic rows differ most."""

    names: tuple[str, str]
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Score:
    """How well a student, a classifier, predicts the target of held-out rows.

    Attributes:
        student: its name, or :data:`BASE`, which uses no column.
        trained: "synthetic" or "real" training rows.
        group: "all" held-out rows, or a column and its value.
        rows: number of these rows.
        auc: area under the ROC curve, averaged over classes; None if there is only one class.
        accuracy: share of rows whose most likely class is right.
        log_score: mean log-likelihood, in nats.
    """

    student: str
    trained: str
    group: str
    rows: int
    auc: float | None
    accuracy: float
    log_score: float


@dataclass(frozen=True)
class Told:
    """How well boosted trees distinguish synthetic from held-out rows.

    Attributes:
        rows: number of test rows of each kind.
        auc: area under the ROC curve; ½ is guessing.
        columns: the three most important columns, with the loss in area if one is shuffled.
    """

    rows: int
    auc: float
    columns: tuple[tuple[str, float], ...]
