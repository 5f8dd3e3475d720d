"""All settings of a release, fixed before it sees a record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from bdpvi._ground import validate
from bdpvi.bayesian.accounting.settings import Accounting
from bdpvi.bayesian.inference.guide import check_steps
from bdpvi.guides import FullRank, GaussianGuide, MeanField
from bdpvi.models.kinds import Known
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.privacy.ledger import Ledger
from bdpvi.programs.dpvi import DPVI
from bdpvi.regression.noisy_scores import NoisyScores
from bdpvi.regression.objective import ObjectivePerturbation
from bdpvi.tables.inference import Intervals

if TYPE_CHECKING:  # settings need not load the fitting code
    from pathlib import Path

    from bdpvi.bayesian.fit import Fit
    from bdpvi.bayesian.neighbours.route import Neighbours
    from bdpvi.datasets.dataset import Data, Dataset
    from bdpvi.tables.prepared import Prepared

GUIDES: Mapping[str, type[GaussianGuide]] = {
    "full-rank": FullRank,
    "mean-field": MeanField,
}
NAMED = {"names": GUIDES}
"""Metadata of a field with a guide class, which JSON stores by name."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A model, and how samples of it are released: by a route, or from a guide.

    :func:`bdpvi.recommended`, ``bdpvi private``, the estimator, ``--settings`` and the comparison
    share it. It counts as public, so do not choose it by the rows.

    Args:
        model: the model; for a guide with the clip or weights that bound a record's influence.
        route: the mechanism whose noise is part of the fit. It ignores guide, noise scale, ridge,
            accounting and the model's prior and clip, and sets the number of draws.
        guide: kind of the guide.
        noise_scale: noise scale of the guide; a number gives a covariance that no record can move.
        ridge: κ of the guide, which shapes the covariance of released samples.
        draws: number k of released samples.
        accounting: how a Bayesian ε is computed; None means the default.

    >>> Recipe(noise_scale=0.1).model.weighs
    True
    """

    model: Known = field(default_factory=BayesianLogisticRegression)
    route: ObjectivePerturbation | NoisyScores | DPVI | Intervals | None = None
    guide: type[GaussianGuide] = field(default=MeanField, metadata=NAMED)
    noise_scale: float | None = None
    ridge: float = 0.0
    draws: int = 1
    accounting: Accounting | None = None

    def __post_init__(self) -> None:
        check_steps(self.guide)
        validate.positive_int("draws", self.draws)
        validate.non_negative("ridge", self.ridge)
        if self.noise_scale is not None:
            validate.positive("noise_scale", self.noise_scale)

    def made_guide(self) -> GaussianGuide:
        """Return a new guide of this kind for the model."""
        return self.guide(self.model, ridge=self.ridge, noise_scale=self.noise_scale)

    @property
    def released(self) -> int:
        """Number of samples in a release."""
        return self.draws if self.route is None else self.route.draws

    @property
    def trains(self) -> bool:
        """Whether a release may be trained step by step, for which a device is worth its copy."""
        return not isinstance(self.route, ObjectivePerturbation | NoisyScores)

    @property
    def bounded(self) -> bool:
        """Whether public noise bounds any record's influence, so that releases are worst-case."""
        bound = getattr(self.model, "score_bound", lambda weights: math.inf)(1)
        return self.route is not None or (self.noise_scale is not None and math.isfinite(bound))

    def __str__(self) -> str:
        if self.route is None:
            return (
                f"draws from a {self.guide.__name__} guide: for a Bayesian guarantee, several "
                "rows per person, or settings of your own"
            )
        if isinstance(self.route, NoisyScores):
            return (
                "noisy scores: worst-case, with intervals that account for sampling and privacy "
                "noise"
            )
        if isinstance(self.route, Intervals):
            return (
                "noisy scores, or DPVI for many features: worst-case, with intervals that account "
                "for sampling and privacy noise"
            )
        if isinstance(self.route, DPVI):
            return "variational inference with noisy gradients: worst-case, and draws cost nothing"
        return (
            "objective perturbation: worst-case, and close to the non-private fit for large tables"
        )

    def fit(
        self,
        train: Data,
        *,
        neighbours: Neighbours | None = None,
        ledger: Ledger | None = None,
        progress: bool = True,
        checkpoint: Path | None = None,
    ) -> Fit | Prepared:
        """Fit the model with these settings; arguments as for :func:`bdpvi.fit`.

        With a route nothing is fitted yet: the result keeps the rows, and every release solves
        from them again. A ``checkpoint`` that has begun keeps the state of DPVI's training.
        """
        if self.route is not None:
            from bdpvi.tables.prepared import Prepared

            route = self.route
            kept: Any = {"progress": progress, "checkpoint": checkpoint}
            if isinstance(route, DPVI):
                route = replace(route, **kept)
            if isinstance(route, Intervals):
                route = replace(route, trained=replace(route.trained, **kept))
            return Prepared.of(self.model, train, route, ledger=ledger)
        from bdpvi.datasets.dataset import in_memory

        return self.fit_guide(
            in_memory(train), neighbours=neighbours, ledger=ledger, progress=progress
        )

    def fit_guide(
        self,
        train: Dataset,
        *,
        neighbours: Neighbours | None = None,
        ledger: Ledger | None = None,
        progress: bool = True,
    ) -> Fit:
        """Fit the guide on the records' device, ignoring the route; as :func:`bdpvi.fit`."""
        from bdpvi.bayesian.fit import Training, fit

        return fit(
            self.model,
            self.made_guide(),
            train,
            training=Training(device=str(train.x.device)),
            neighbours=neighbours,
            accounting=self.accounting,
            ledger=ledger,
            progress=progress,
        )
