"""The numbers on a synthetic table that its owner alone may see.

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
        name: of the column.
        labels: of its bins.
        real, synthetic: shares of rows, in the order of the labels.
        variation: total variation between the two.
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
        names: of both.
        variation: total variation between real and synthetic shares.
        real, synthetic: ½ Σ |deviation from independence|, of 0 where there is no dependence.
        lost: ½ Σ |real deviation from independence − synthetic one|.
    """

    names: tuple[str, str]
    variation: float
    real: float
    synthetic: float
    lost: float


@dataclass(frozen=True)
class Cell:
    """Rows with one value, or values of one bin, in each of two columns.

    Attributes:
        labels: of both bins.
        real, synthetic: shares of rows, or what these deviate from independence.
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
    """How well a student predicts the target of held-out rows.

    Attributes:
        student: its name, or :data:`BASE`, which looks at no column.
        trained: on "synthetic" or "real" rows.
        group: "all" held-out rows, or a column and its value.
        rows: how many these are.
        auc: area under the ROC curve, the mean over classes; None where there is one class.
        accuracy: share of rows whose likeliest class is right.
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
    """How well boosted trees tell synthetic rows from held-out ones.

    Attributes:
        rows: of either kind that they are tested on.
        auc: area under the ROC curve; ½ is guessing.
        columns: the three that they use most, with what is lost of the area if one is shuffled.
    """

    rows: int
    auc: float
    columns: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Made:
    """What became of one column.

    Attributes:
        name: of the column.
        codes, bins: values or cells that the schema has, and bins that pairs were counted in.
        pooled: levels that share a bin with other levels.
        parents: columns that it is drawn given.
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
    """What a synthetic table is good for. All of it is secret.

    Attributes:
        receipt: what was promised.
        target: name of the target, or None.
        rows: of the training, the held-out and the synthetic table.
        columns: in the order of the schema.
        pairs: all pairs of columns.
        variation: mean total variation over all pairs.
        halves: the same of two halves of the training rows: no synthetic rows need be nearer.
        shuffled: the same of training rows with every column shuffled by itself: no dependence.
        details: of the five pairs with the largest total variation, shares.
        lost: of the five pairs that lost most dependence, deviations from independence.
        classes: names of the classes that students tell apart.
        scores: of students, beside the base rate.
        unscored: why there are none, in words.
        told: synthetic rows against held-out ones; None where there are too few.
        copies: share of synthetic rows that equal a training row.
        held_out_copies: share of held-out rows that do; None without any.
        made: what became of each column.
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
        """Three sentences: what ε means for one person, what the rows are good for, and not."""
        from bdpvi.synthesis.report import verdict

        return verdict(self)

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as JSON types."""
        content: dict[str, Any] = files.to_json(self)
        return {"secret": True, "verdict": list(self.verdict), **content}

    def html(self, path: str | os.PathLike[str], *, attack: str = "") -> None:
        """Write one page that needs no other file, for the owner alone, with mode 0600.

        Args:
            path: of the page.
            attack: what an attack on this release found, in sentences.

        Raises:
            ImportError: without the extra ``bdpvi[report]``.
        """
        from bdpvi.synthesis.report import page

        store.write(Path(path), page(self, attack).encode())
