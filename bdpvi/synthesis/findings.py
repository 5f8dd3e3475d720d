"""Quality measures of a synthetic table, for the table's owner only.

They are computed from the real rows without noise, and no ε covers them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bdpvi._runtime import schema as files
from bdpvi._runtime import store
from bdpvi.synthesis.content import Receipt

BASE = "base rate"
SYNTHETIC, REAL = "synthetic", "real"
ALL = "all"


@dataclass(frozen=True)
class Column:
    """One column's shares of rows.

    Attributes:
        name: the column's name.
        labels: labels of its bins.
        real, synthetic: shares of rows, in the order of the labels.
        variation: total variation distance between the two.
    """

    name: str
    labels: tuple[str, ...]
    real: tuple[float, ...]
    synthetic: tuple[float, ...]
    variation: float


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


@dataclass(frozen=True)
class Made:
    """How one column was modelled.

    Attributes:
        name: the column's name.
        codes, bins: number of values or cells in the schema, and of bins used to count pairs.
        pooled: levels that share a bin with other levels.
        parents: columns on which it is conditioned.
        unfit: how many real values did not fit the schema, in words.
    """

    name: str
    codes: int
    bins: int
    pooled: tuple[str, ...]
    parents: tuple[str, ...]
    unfit: str


@dataclass(frozen=True, kw_only=True)
class Quality:
    """The quality of a synthetic table. All of it is secret.

    Attributes:
        receipt: the guarantee.
        target: name of the target, or None.
        rows: numbers of training, held-out and synthetic rows.
        columns: the columns, in the order of the schema.
        pairs: all pairs of columns.
        variation: mean total variation distance over all pairs.
        halves: the same for two halves of the training rows, as the best to be expected.
        shuffled: the same for training rows with each column shuffled, which removes dependence.
        details: shares of the five pairs with the largest total variation distance.
        lost: deviations from independence of the five pairs that lost most dependence.
        classes: names of the students' classes.
        scores: scores of the students and of the base rate.
        unscored: why there are no scores, in words.
        told: synthetic against held-out rows; None if there are too few.
        copies: share of synthetic rows that equal a training row.
        held_out_copies: share of held-out rows that equal a training row; None without any.
        made: how each column was modelled.
    """

    receipt: Receipt
    target: str | None
    rows: tuple[int, int, int]
    columns: tuple[Column, ...]
    pairs: tuple[Pair, ...]
    variation: float
    halves: float
    shuffled: float
    details: tuple[Detail, ...]
    lost: tuple[Detail, ...]
    classes: tuple[str, ...]
    scores: tuple[Score, ...]
    unscored: str
    told: Told | None
    copies: float
    held_out_copies: float | None
    made: tuple[Made, ...]

    @property
    def verdict(self) -> tuple[str, str, str]:
        """Three sentences: the meaning of ε for one person, good uses of the rows, and bad ones."""
        from bdpvi.synthesis.report import verdict

        return verdict(self)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON types."""
        content: dict[str, Any] = files.to_json(self)
        return {"secret": True, "verdict": list(self.verdict), **content}

    def html(self, path: str | os.PathLike[str], *, attack: str = "") -> None:
        """Write one self-contained page, for the owner only, with mode 0600.

        Args:
            path: path of the page.
            attack: the result of an attack on this release, in sentences.

        Raises:
            ImportError: without the extra ``bdpvi[report]``.
        """
        from bdpvi.synthesis.report import page

        store.write(Path(path), page(self, attack).encode())
