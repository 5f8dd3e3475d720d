"""Scores of a release on all rows of its table, for its owner only: one pass over the blocks.

They are computed from the rows and no ε covers them, as the scores of simulated releases
(:mod:`bdpvi.tables.scores`), for which a table in blocks would be read hundreds of times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bdpvi.models.kinds import OfClasses
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.releases.released import Release
from bdpvi.tables.encoded import encoded_of
from bdpvi.tables.metrics import log_scores
from bdpvi.tables.scores import CAUTION, RATE
from bdpvi.tables.work import Work

RELEASE = "this release"
DRAWS = 100
"""Most draws that a prediction is averaged over; others would change its last digits."""
_AT_ONCE = 1024
_BINS, _STEP = 1 << 15, 1 / 1024
"""Bins of the log-odds, around 0, and their width."""


@dataclass(frozen=True)
class RowScores:
    """Scores of a release on the rows of its own table. Secret.

    Attributes:
        rows: N.
        optimism: how much larger the log score is than that of new rows, at most, on average:
            d/N for d coordinates that the rows determine (Akaike 1974, A new look at the
            statistical model identification).
        values: of the release and the base rate: log score in nats, accuracy and, of two classes
            that both occur, AUC.
    """

    rows: int
    optimism: float
    values: Mapping[str, Mapping[str, float]]

    @classmethod
    def of(cls, work: Work, release: Release) -> RowScores | None:
        """Return the scores for a table in blocks, None for a target that is no class.

        A prediction is the mean over at most :data:`DRAWS` draws. The AUC counts probabilities as
        equal whose log-odds lie in one bin, 1/1024 wide.
        """
        encoding = release.encoding
        known = isinstance(release.model, BayesianLogisticRegression | OfClasses)
        known = known and not work.asked.public.weights  # which scores would ignore
        if work.table is None or encoding is None or not known or not work.first_look[0]:
            return None
        few = replace(release, latents={n: one[:DRAWS] for n, one in release.latents.items()})
        parts = work.rows.map(encoded_of, encoding)
        score, right, counts = parts.sum(_score_rows, few)
        rows, seen = work.first_look[0], counts.sum(1).double()
        rate = seen[seen > 0] / rows
        values = {
            RELEASE: {"log score": float(score) / rows, "accuracy": int(right) / rows},
            RATE: {"log score": float((rate * rate.log()).sum()), "accuracy": float(rate.max())},
        }
        if len(seen) == len(rate) == 2:
            values[RELEASE]["AUC"], values[RATE]["AUC"] = auc_of(*counts.double()), 0.5
        return cls(rows, release.samples.shape[1] / rows, values)

    def __str__(self) -> str:
        width = max(map(len, self.values))
        lines = [
            f"  {name:{width}}  " + "  ".join(f"{what} {one:.3f}" for what, one in found.items())
            for name, found in self.values.items()
        ]
        own, base = (value["log score"] for value in self.values.values())
        if own - self.optimism <= base:
            lines.append("WARNING: the log score of new rows is no better than the base rate's")
        head = (
            f"scores on the table's own {self.rows:,} rows; the log score is up to about "
            f"{self.optimism:.1g} larger than that of new rows:"
        )
        return "\n".join([head, *lines, CAUTION])

    def to_dict(self) -> dict[str, Any]:
        """Return the scores as JSON types."""
        return {"rows": self.rows, "optimism": self.optimism, **self.values}


def auc_of(zeros: Tensor, ones: Tensor) -> float:
    """Return the AUC from the numbers of records of either class in each bin, (B,).

    >>> auc_of(torch.tensor([3.0, 1.0]), torch.tensor([1.0, 3.0]))  # (3·3 + 3/2 + 3/2)/(4·4)
    0.75
    """
    below = zeros.cumsum(0) - zeros / 2
    return float(ones @ below / (zeros.sum() * ones.sum()))


def _score_rows(part: tuple[Tensor, Tensor], release: Release) -> tuple[float, int, Tensor]:
    """Return the sum of log scores, correct predictions, and each class's records by bin."""
    x, y = part[0], part[1].long()
    found = [release.predict_proba(one) for one in x.split(_AT_ONCE)]
    probability: Tensor = torch.cat(found)
    classes = probability.shape[1]
    likely = probability.gather(1, y[:, None])[:, 0]
    odds = torch.logit(probability[:, 1], torch.finfo(torch.float64).eps) / _STEP
    place = (odds.floor().long() + _BINS // 2).clamp(0, _BINS - 1)
    counts = torch.bincount(y * _BINS + place, minlength=classes * _BINS)
    return (
        float(log_scores(likely, torch.ones_like(likely)).sum()),
        int((probability.argmax(1) == y).sum()),
        counts.reshape(classes, _BINS),
    )
