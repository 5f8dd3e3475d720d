"""Everything that is said of a release before it sees a record."""

from __future__ import annotations

from dataclasses import dataclass, field

from bdpvi._fit import Fit, fit
from bdpvi._runtime import validate
from bdpvi.accounting.ledger import Ledger
from bdpvi.accounting.settings import Accounting
from bdpvi.guides import GaussianGuide, MeanField
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.neighbours.route import Neighbours
from bdpvi.types import Budget, Dataset


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A model, a guide, and how samples are released from it.

    What :func:`bdpvi.recommended`, ``bdpvi private``, the estimator, ``--settings`` and the
    comparison have in common. It counts as public, so it must not be chosen by the rows.

    Args:
        model: with the clip that bounds a record's influence.
        guide: kind of the guide.
        noise_scale: of the guide; a number releases a covariance that no record can move.
        ridge: κ of the guide, which shapes the covariance that samples are released with.
        draws: number k of released samples.
        accounting: how a Bayesian ε is computed; None is :meth:`Accounting.of` the fit's panels.

    >>> Recipe(noise_scale=0.1).model.clip
    0.5
    """

    model: BayesianLogisticRegression = field(
        default_factory=lambda: BayesianLogisticRegression(clip=0.5)
    )
    guide: type[GaussianGuide] = MeanField
    noise_scale: float | None = None
    ridge: float = 0.0
    draws: int = 1
    accounting: Accounting | None = None

    def __post_init__(self) -> None:
        validate.positive_int("draws", self.draws)
        validate.non_negative("ridge", self.ridge)
        if self.noise_scale is not None:
            validate.positive("noise_scale", self.noise_scale)

    def made_guide(self) -> GaussianGuide:
        """Return a new guide of this kind for the model."""
        return self.guide(self.model, ridge=self.ridge, noise_scale=self.noise_scale)

    def fit(
        self,
        train: Dataset,
        *,
        neighbours: Neighbours | None = None,
        ledger: Ledger | None = None,
        budget: Budget | None = None,
        progress: bool = True,
    ) -> Fit:
        """Fit the model with these settings; arguments as for :func:`bdpvi.fit`."""
        return fit(
            self.model,
            self.made_guide(),
            train,
            neighbours=neighbours,
            accounting=self.accounting,
            ledger=ledger,
            budget=budget,
            progress=progress,
        )
