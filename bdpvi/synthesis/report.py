"""The owner's report on a synthetic table: its quality in numbers, in words and on a page.

The page needs the extra ``bdpvi[report]``; the verdict does not.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bdpvi._ground import page as pages
from bdpvi._ground import schema as files
from bdpvi._ground import store
from bdpvi._ground.outputs import several
from bdpvi.synthesis.content import TableReceipt
from bdpvi.synthesis.measures import BOOSTED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASE = "base rate"
SYNTHETIC, REAL = "synthetic", "real"
ALL = "all"
TEMPLATE = Path(__file__).with_name("report.html.j2")
_SHOWN = 24
"""Largest number of bars for a column: the most common bins."""
_MOST_NAMED = 40
"""Largest number of columns named on the axes of heat maps."""


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
    """

    receipt: TableReceipt
    target: str | None
    rows: tuple[int, int, int]
    columns: tuple[ColumnShares, ...]
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

    @property
    def verdict(self) -> tuple[str, str, str]:
        """Three sentences: the meaning of ε for one person, good uses of the rows, and bad ones."""
        return _meaning(self), _good_for(self), _not(self)

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
        store.write(Path(path), page(self, attack).encode())


def copied(found: Quality) -> bool:
    """Return whether synthetic rows equal training rows clearly more often than held-out rows do.

    Clearly means by more than three standard errors of the two shares.
    """
    if found.held_out_copies is None:
        return found.copies > 0.5
    a, b, (_, m, n) = found.copies, found.held_out_copies, found.rows
    pooled = (a * n + b * m) / max(n + m, 1)
    error = math.sqrt(pooled * (1 - pooled) * (1 / max(n, 1) + 1 / max(m, 1)))
    return a - b > 3 * error + 1e-12


def _meaning(found: Quality) -> str:
    bound = found.receipt.worst_case
    told = bound.membership.in_one_sentence(bound.unit)
    said = (
        f"{told[0].upper()}{told[1:]} ({bound.kind.value}: ε = {bound.epsilon:g} at δ = "
        f"{bound.delta:g})"
    )
    if found.receipt.from_data:
        said += "; bounds and levels read from the rows are also shared, and not covered"
    if not bound.reliable:
        said += "; but this is an experiment without a guarantee"
    return f"{said}."


def _good_for(found: Quality) -> str:
    near = (
        f"shares of pairs of columns are off by {found.variation:.3f} on average (total variation; "
        f"{found.halves:.3f} between two halves of the real rows, {found.shuffled:.3f} with all "
        "dependence lost)"
    )
    own = _area(found, BOOSTED, SYNTHETIC)
    if own is None:
        why = found.unscored or "only one class was held out"
        return f"Its {near}; no model was scored, as {why}."
    other = _area(found, BOOSTED, REAL)
    return (
        f"Boosted trees that learn {found.target} from the synthetic rows reach an AUC of "
        f"{own:.3f} on held-out rows, from the real rows {other:.3f}; {near}."
    )


def _area(found: Quality, student: str, trained: str) -> float | None:
    for score in found.scores:
        if (score.student, score.trained, score.group) == (student, trained, ALL):
            return score.auc
    return None


def _not(found: Quality) -> str:
    said = (
        "No synthetic row belongs to a person, and dependences of three columns are kept "
        "only if named"
    )
    if found.told is not None:
        used = ", ".join(name for name, _ in found.told.columns)
        said += (
            f"; trees tell its rows from real ones with an AUC of {found.told.auc:.3f} (½ is "
            f"guessing), by {used}"
        )
    if found.lost and found.lost[0].cells:
        said += f"; most dependence is lost between {' and '.join(found.lost[0].names)}"
    if copied(found):
        said = (
            f"Do not share it before you know why: {_percent(found.copies)} of the synthetic rows "
            f"are copies of real ones, of held-out rows {_percent(found.held_out_copies)}; {said}"
        )
    return said + "."


def page(found: Quality, attack: str = "") -> str:
    """Return the page.

    Args:
        found: the measured quality.
        attack: the result of an attack, in sentences.

    Raises:
        ImportError: without the extra ``bdpvi[report]``.
    """
    try:
        maps = pages.png(heat_maps(found)) if found.pairs else ""
        return pages.render(
            TEMPLATE,
            title="What the synthetic table is good for",
            found=found,
            receipt=found.receipt,
            verdict=found.verdict,
            columns=sorted(found.columns, key=lambda one: -one.variation),
            maps=maps,
            scores=scores(found),
            copied=copied(found),
            attack=attack,
            bars=bars,
            percent=_percent,
            signed=_signed,
            number=_number,
            among={pair.names: pair for pair in found.pairs},
        )
    except ImportError as error:
        raise ImportError(f"{error}: pip install 'bdpvi[report]'") from error


def bars(column: ColumnShares) -> list[tuple[str, float, float, float, float]]:
    """Return label, both shares and the lengths of both bars, in per cent of the longest.

    Empty bins are left out; if there are too many, the rarest are shown as one.
    """
    rows = list(zip(column.labels, column.real, column.synthetic, strict=True))
    rows = [row for row in rows if row[1] or row[2]]
    if len(rows) > _SHOWN:
        common = sorted(rows, key=lambda one: -max(one[1:]))[: _SHOWN - 1]
        rest = [row for row in rows if row not in common]
        rows = [row for row in rows if row in common]
        rows.append(
            (several(len(rest), "other"), sum(one[1] for one in rest), sum(one[2] for one in rest))
        )
    most = max((max(row[1:]) for row in rows), default=1.0)
    return [(label, p, q, 100 * p / most, 100 * q / most) for label, p, q in rows]


def scores(found: Quality) -> dict[str, list[list[str]]]:
    """Return the rows of a table for each group: student, trained on, AUC, accuracy, log score."""
    tables: dict[str, list[list[str]]] = {}
    for score in found.scores:
        trained = "no column" if score.student == BASE else f"{score.trained} rows"
        group = "All held-out rows" if score.group == ALL else score.group
        tables.setdefault(f"{group} ({several(score.rows, 'row')})", []).append(
            [
                score.student,
                trained,
                _number(score.auc),
                _number(score.accuracy),
                _number(score.log_score),
            ]
        )
    return tables


def heat_maps(found: Quality) -> Figure:
    """Return two heat maps of all pairs: total variation distance, and lost dependence."""
    from matplotlib.figure import Figure

    names = [column.name for column in found.columns]
    figure = Figure(figsize=(15, 7.5), dpi=110, layout="constrained")
    titles = (
        "Total variation of each pair of columns",
        "Dependence that differs, ½ Σ |real − synthetic|",
    )
    values = ([pair.variation for pair in found.pairs], [pair.lost for pair in found.pairs])
    for axes, title, some in zip(figure.subplots(1, 2), titles, values, strict=True):
        table = np.full((len(names), len(names)), np.nan)
        table[np.triu_indices(len(names), 1)] = some  # pairs are in this order
        table = np.fmax(table, table.T)
        drawn = axes.imshow(table, cmap="cividis", vmin=0.0, vmax=max(*some, 1e-9))
        if len(names) <= _MOST_NAMED:
            short = [name if len(name) <= 18 else name[:17] + "…" for name in names]
            axes.set_xticks(range(len(names)), short, rotation=90, fontsize=8, parse_math=False)
            axes.set_yticks(range(len(names)), short, fontsize=8, parse_math=False)
        else:
            axes.set_xlabel("column, by its place in the schema")
            axes.set_ylabel("column, by its place in the schema")
        axes.set_title(title)
        figure.colorbar(drawn, ax=axes, shrink=0.8)
    return figure


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.2f} %"


def _signed(share: float) -> str:
    return f"{100 * share:+.2f} %"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
