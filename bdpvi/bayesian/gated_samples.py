"""Draws from a Laplace fit behind a gate: its own coordinates, no noise before them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bdpvi._ground.types import TooFewRecordsError
from bdpvi.bayesian.drawing import DrawSamples
from bdpvi.bayesian.fit import Fit
from bdpvi.bayesian.gated.gate import LEAST, Shape, chances, curvature
from bdpvi.bayesian.gated.route import REFUSED, PosteriorDraws
from bdpvi.bayesian.guarantees import WorstCaseDP
from bdpvi.bayesian.pricing import assuming
from bdpvi.guides import Laplace
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.noise import secure
from bdpvi.noise.keys import Key
from bdpvi.privacy.cost import Cost
from bdpvi.privacy.entry import Charge
from bdpvi.releases.route import planned
from bdpvi.releases.transaction import Before, Plan


@dataclass(frozen=True, eq=False)
class GatedSamples(DrawSamples):
    """Posterior samples from a Laplace fit, released by the gate of :class:`.WorstCaseDP`."""

    def plan(self, before: Before) -> Plan[tuple[Charge, Cost]]:
        """Return the gate's price, which follows from public numbers alone.

        Raises:
            ValueError: if the fit is no Laplace fit of weighted logistic regression, a unit has
                several rows, or ε is spent.
        """
        fit, asked, guarantee = self.fit, self.asked, self.guarantee
        assert isinstance(guarantee, WorstCaseDP)
        assert guarantee.epsilon is not None
        if asked.epsilon is not None:
            raise ValueError(
                f"epsilon={asked.epsilon!r} and guarantee={guarantee!r} both have an ε; leave the "
                "first out"
            )
        charge = asked.charge(fit, guarantee)
        model, _ = _shape(fit, charge)
        features = len(fit.feature_names)
        route = PosteriorDraws(  # its coordinates are known
            draws=charge.draws, temperature=charge.temperature, whiten=torch.eye(features)
        )
        settings = planned(route, model, features, before, guarantee.epsilon, asked.delta, 6)
        events = () if before.made else settings.events
        found = fit.ledger.worst_case(asked.delta, events)
        assert found is not None
        if not before.made and asked.generator is not None:
            fit.kept.use_once(asked.generator)
        return Plan(
            kind="release",
            what=f"draws={charge.draws} behind a gate",
            events=settings.events,
            settings=(charge, Cost(worst_case=assuming(fit, found))),
        )

    def draw(self, plan: Plan[tuple[Charge, Cost]], key: Key) -> Tensor:
        """Return the samples, (k, d).

        Raises:
            TooFewRecordsError: if the gate refuses.
        """
        fit, charge = self.fit, plan.settings[0]
        gate, spare = plan.events or ()
        model, shape = _shape(fit, charge)
        root, n = fit.released.scale_tril.cpu().double(), shape.columns  # type: ignore[attr-defined]
        price = 1 / gate.noise_multiplier, spare.delta  # type: ignore[attr-defined]
        of_table = curvature(root, model.weighted_norm(n), model.longest(n))
        if not key.child("gate").coins(1)[0] < chances(shape, *price).chance(of_table):
            raise TooFewRecordsError(f"guarantee={self.guarantee!r} {REFUSED}")
        return secure.sample(
            fit.released,
            charge.draws,
            charge.temperature,
            self.asked.generator,
            fit.guide.lattice(charge.temperature),
            key.child("draws"),
        )


def _shape(fit: Fit, charge: Charge) -> tuple[BayesianLogisticRegression, Shape]:
    """Return the model and the draws as a gate sees them; ValueError if it has no price."""
    model, n = fit.model, len(fit.released.mean)
    laplace = type(fit.guide) is Laplace and fit.ledger.rows_per_unit == 1
    if not (isinstance(model, BayesianLogisticRegression) and model.weighs and laplace):
        raise ValueError(
            "guarantee=WorstCaseDP(epsilon=…) is for draws from guides.Laplace of weighted "
            f"BayesianLogisticRegression, with one row a unit, got {type(fit.guide).__name__} of "
            f"{model!r:.60}; ObjectivePerturbation() of fit_private takes all others"
        )
    norm, longest = model.weighted_norm(n), model.longest(n)
    if not model.precision(n) >= LEAST * norm * longest * (1 - 1e-12):
        raise ValueError(
            f"prior_scale={model.prior_scale!r} is too wide for a gate; leave it out of the model"
        )
    return model, Shape(n, norm / longest, charge.draws, charge.temperature)
