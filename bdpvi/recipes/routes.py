"""Charged and released in one go: data and an ε in, a release out, and no secret fit between."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bdpvi._runtime import log, secure, validate
from bdpvi._runtime.keys import EXPERIMENT
from bdpvi.accounting.answer import no_panel
from bdpvi.accounting.book import Entry, Priced
from bdpvi.accounting.events import PerturbedObjective
from bdpvi.accounting.ledger import Ledger
from bdpvi.accounting.objective_perturbation import LAST
from bdpvi.accounting.solve import smallest
from bdpvi.dp.noise import Run
from bdpvi.dp.objective_perturbation import (
    ObjectivePerturbationSettings,
    objective_perturbation_runs,
)
from bdpvi.models.contract import Model
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.releasing import guarantees
from bdpvi.releasing.guarantees import AIMED, WORST_CASE, Receipt
from bdpvi.releasing.released import Release
from bdpvi.types import Dataset

_SLACK = 0.002


class Route(Protocol):
    """A mechanism whose noise is part of the fit.

    What it charges follows from public settings, and :func:`fit_private` charges it before
    :meth:`draw` looks at a record.
    """

    def check(self, model: Model, data: Dataset, guide: object) -> None:
        """Raise ValueError if this model, data or guide cannot go this way."""

    def event(self, model: Model, features: int, noise_multiplier: float) -> Priced:
        """Return what :meth:`draw` costs: a function of public numbers."""

    def draw(self, model: Model, data: Dataset, noise_multiplier: float) -> Mapping[str, Tensor]:
        """Return the latent variables, each (k, ...), from fresh secret noise."""


@dataclass(frozen=True, kw_only=True)
class ObjectivePerturbation(ObjectivePerturbationSettings):
    """One private mode of logistic regression: :mod:`bdpvi.dp.objective_perturbation`.

    Args:
        radius, share, tolerance: see
            :class:`~bdpvi.dp.objective_perturbation.ObjectivePerturbationSettings`.
    """

    def check(self, model: Model, data: Dataset, guide: object) -> None:
        """Raise ValueError unless it is logistic regression, of targets 0 and 1."""
        if not isinstance(model, BayesianLogisticRegression):
            raise ValueError(
                f"route=ObjectivePerturbation() is for BayesianLogisticRegression, got model="
                f"{model!r:.80}; bdpvi.fit takes any model"
            )
        if guide is not None:
            raise ValueError(
                f"guide={guide!r:.80}: route=ObjectivePerturbation() releases a mode and takes no "
                "guide; leave it out"
            )
        model.check(data)

    def event(self, model: Model, features: int, noise_multiplier: float) -> PerturbedObjective:
        """Return what one minimum costs."""
        assert isinstance(model, BayesianLogisticRegression)
        columns = model.design(torch.zeros(1, features)).shape[1]
        return PerturbedObjective(
            noise_multiplier=noise_multiplier,
            stretch=self.accountant(model).stretch_at(noise_multiplier),
            last=LAST / noise_multiplier,
            rounding=secure.sum_rounding(2 * columns),  # of the slope, and of the last noise
        )

    def draw(self, model: Model, data: Dataset, noise_multiplier: float) -> Mapping[str, Tensor]:
        """Return the weights, {"w": (1, d)}."""
        assert isinstance(model, BayesianLogisticRegression)
        runs = [Run(noise_multiplier=noise_multiplier)]
        (found,) = objective_perturbation_runs(model, data, runs=runs, settings=self)
        return found.latents


@log.step("private fit")
def fit_private(
    model: Model,
    data: Dataset | tuple[object, object],
    *,
    epsilon: float,
    delta: float = 1e-5,
    route: Route | None = None,
    guide: object = None,
    ledger: Ledger | None = None,
) -> Release:
    """Charge, fit with noise, and release: in one go, as there is no secret fit to draw from.

    The guarantee is worst-case, to add or remove one record. :func:`bdpvi.fit` is the other way: it
    takes no ε, gives a secret fit, and :func:`bdpvi.release` draws from that.

    Args:
        model: what is fitted; all its hyper-parameters are public.
        data: the records, encoded by public constants or bought ones; or a pair (x, y) of which
            :meth:`Dataset.of` makes them.
        epsilon: ε that everything spent on the table may reach, this included.
        delta: δ.
        route: how, such as :class:`ObjectivePerturbation`; None takes the best that the model has.
        guide: for routes that need one.
        ledger: what is charged; by default the one that came with ``data``.

    Returns:
        The release, with its receipt; :func:`bdpvi.save_release` writes it.

    Raises:
        BudgetExceededError: if the ledger's budget does not suffice; nothing is charged or drawn.
        ValueError: if no route is for this model, or what was spent before leaves nothing of
            ``epsilon``; nothing is charged or drawn.

    >>> from bdpvi import datasets
    >>> data = datasets.load_breast_cancer().train
    >>> model = BayesianLogisticRegression(clip=0.5, prior_scale=0.3)
    >>> release = fit_private(model, data, epsilon=1.0)
    >>> print(release.receipt)
    worst-case DP ε = 1 (aimed at) at δ = 1e-05, to add or remove one record
    >>> release.predict_proba(data.x[:2]).shape
    torch.Size([2, 2])
    """
    validate.positive("epsilon", epsilon)
    validate.probability("delta", delta)
    if not isinstance(data, Dataset):
        if not (isinstance(data, tuple) and len(data) == 2):
            raise ValueError(f"data must be a Dataset or a pair (x, y), got {type(data).__name__}")
        data = Dataset.of(*data)
    route = _usual(model) if route is None else route
    route.check(model, data, guide)
    data.people.share(ledger)
    spending: Ledger = data.people.ledger
    with spending.locked():
        noise = _least_noise(route, model, data.x.shape[1], spending, epsilon, delta)
        event = route.event(model, data.x.shape[1], noise)
        spending.spend(Entry(kind="release", events=(event,)), f"ε = {epsilon:g}")
        total = spending.worst_case(delta)
    latents = route.draw(model, data, noise)
    draws = len(next(iter(latents.values())))
    promise = no_panel(delta, total)
    return Release(
        samples=torch.cat([one.reshape(draws, -1) for one in latents.values()], 1),
        latents=latents,
        receipt=Receipt(
            guarantee=WORST_CASE,
            meaning=guarantees.worst_case_meaning(spending, data.preprocessing),
            relation=f"add or remove {guarantees.unit_of(spending)}",
            epsilon=epsilon,
            delta=delta,
            source=AIMED,
            reliable=None,
            draws=draws,
            temperature=None,
            noise_scale=None,
            step=None,
            given=guarantees.given(data.preprocessing),
            experiment=bool(data.preprocessing.get(EXPERIMENT)),
        ),
        model=model,
        feature_names=data.feature_names,
        preprocessing=data.preprocessing,
        secret=promise,
    )


def _usual(model: Model) -> Route:
    """Return the best route that a model has."""
    if isinstance(model, BayesianLogisticRegression):
        return ObjectivePerturbation()
    raise ValueError(
        f"model={model!r:.80} has no route that releases in one go; bdpvi.fit and bdpvi.release "
        "take any model"
    )


def _least_noise(
    route: Route, model: Model, features: int, ledger: Ledger, epsilon: float, delta: float
) -> float:
    """Return the least noise at which everything together costs at most ε, within 0.2 %."""

    def spent(noise: float) -> float:
        found = ledger.worst_case(delta, (route.event(model, features, noise),))
        return math.inf if found is None else found.epsilon

    guess = math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    try:
        return smallest(spent, epsilon, guess, slack=_SLACK)
    except ArithmeticError:
        before = ledger.worst_case(delta)
        raise ValueError(
            f"epsilon={epsilon:g} cannot be reached at delta={delta:g}: before this, {before} was "
            f"spent; {ledger.said()}"
        ) from None
