"""Charged and released in one go: data and an ε in, a release out, and no secret fit between."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from bdpvi._runtime import log, validate
from bdpvi._runtime.keys import Key
from bdpvi.accounting.book import Entry
from bdpvi.accounting.cost import Cost
from bdpvi.accounting.events import PerturbedObjective, SampledGaussian
from bdpvi.accounting.gaussian import largest_variance
from bdpvi.accounting.ledger import Ledger
from bdpvi.accounting.solve import smallest
from bdpvi.dp import objective_plan
from bdpvi.dp.mechanism import NoisySum
from bdpvi.dp.objective_plan import Facts, ObjectivePlan, Rule
from bdpvi.dp.perturbed_objective import perturbed_minima
from bdpvi.models.contract import Model
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.models.regression import BayesianLinearRegression, BayesianPoissonRegression
from bdpvi.recipes.noisy_scores import NoisyScores
from bdpvi.releasing import guarantees
from bdpvi.releasing.estimate import Estimate
from bdpvi.releasing.guarantees import SPENT
from bdpvi.releasing.released import AIMED, Receipt, Release, flat
from bdpvi.types import Dataset

_SLACK = 0.002


class Plan(Protocol):
    """A route's public settings for one release."""

    @property
    def event(self) -> PerturbedObjective | SampledGaussian:
        """What it costs."""

    def with_noise(self, noise_multiplier: float) -> Plan:
        """Return the settings with another noise multiplier, and the price that goes with it."""


P = TypeVar("P", bound=Plan)


class Route(Protocol[P]):
    """A mechanism whose noise is part of the fit.

    What it charges follows from public settings, and :func:`fit_private` charges it before
    :meth:`draw` looks at a record.
    """

    @property
    def draws(self) -> int:
        """Number of draws that are released."""

    @property
    def count(self) -> float:
        """Share of μ² that buys a noisy number of records before there is a plan; 0 for none."""

    def of_rows(self, rows: float) -> Route[P]:
        """Return the route for about so many records."""

    def check(self, model: Model, data: Dataset, guide: object) -> None:
        """Raise ValueError if this model, data or guide cannot go this way."""

    def plan(self, model: Model, features: int, left: Left) -> P:
        """Return the settings: a function of public numbers."""

    def draw(self, model: Model, data: Dataset, plan: P) -> Mapping[str, Tensor] | Estimate:
        """Return the latent variables, each (k, ...), or their posterior; from fresh noise."""


class Left(NamedTuple):
    """What a route may spend: ε at δ, together with a Gaussian mechanism of this μ² before it."""

    epsilon: float
    delta: float
    variance: float


@dataclass(frozen=True, kw_only=True)
class ObjectivePerturbation:
    """Private minima of logistic regression: :mod:`bdpvi.dp.perturbed_objective`.

    The model makes the features and predicts. Its prior and its clip have no part in this: ridge,
    weights and noise follow from public facts (:mod:`bdpvi.dp.objective_plan`). ``intercept_mean``
    is where the intercept is drawn to, ``limit`` 2 suits standardised features.

    Args:
        rows: N as the owner declares it, within a factor of 3: noise and shrinkage suit tables of
            that size. Without it they suit many rows.
        sources: columns of the raw table, where features were made of fewer.
        draws: number of minima that are released; several cost more noise than one.
        rule: numbers of the rule.
    """

    rows: float | None = None
    sources: int | None = None
    draws: int = 1
    rule: Rule = field(default_factory=Rule)
    count: ClassVar[float] = 0.0

    def of_rows(self, rows: float) -> ObjectivePerturbation:
        """Return the route for about so many records."""
        return replace(self, rows=rows)

    def check(self, model: Model, data: Dataset, guide: object) -> None:
        """Raise ValueError unless it is logistic regression, of targets 0 and 1."""
        if not isinstance(model, BayesianLogisticRegression):
            raise ValueError(
                f"route=ObjectivePerturbation() is for BayesianLogisticRegression, got model="
                f"{model!r:.80}; bdpvi.fit takes any model"
            )
        if guide is not None:
            raise ValueError(
                f"guide={guide!r:.80}: route=ObjectivePerturbation() releases minima and takes no "
                "guide; leave it out"
            )
        model.check(data)

    def plan(self, model: Model, features: int, left: Left) -> ObjectivePlan:
        """Return the settings; see :class:`Route`."""
        assert isinstance(model, BayesianLogisticRegression)
        weights = model.design(torch.zeros(1, features)).shape[1]
        facts = Facts(
            columns=weights - model.intercept,
            rows=self.rows,
            sources=self.sources,
            centre=model.intercept_mean,
            intercept=model.intercept,
        )
        made = objective_plan.plan(
            facts,
            epsilon=left.epsilon,
            delta=left.delta,
            draws=self.draws,
            variance=left.variance,
            rule=self.rule,
        )
        return replace(made, limit=math.inf)  # the model cuts features

    def draw(self, model: Model, data: Dataset, plan: ObjectivePlan) -> Mapping[str, Tensor]:
        """Return the weights, {"w": (draws, d)}."""
        assert isinstance(model, BayesianLogisticRegression)
        features = model.design(data.x.double())[:, : plan.facts.columns]
        return {"w": perturbed_minima(plan, features, data.y).to(data.x)}


@log.step("private fit")
def fit_private(
    model: Model,
    data: Dataset | tuple[object, object],
    *,
    epsilon: float,
    delta: float = 1e-5,
    route: Route[Any] | None = None,
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
    >>> model = BayesianLogisticRegression(intercept=True, limit=2.0)
    >>> release = fit_private(model, data, epsilon=1.0, route=ObjectivePerturbation(rows=500))
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
        if route.count:
            route = route.of_rows(_counted(route.count, data, spending, epsilon, delta))
        plan = _planned(route, model, data.x.shape[1], spending, epsilon, delta)
        spending.spend(Entry(kind="release", events=(plan.event,)), f"ε = {epsilon:g}")
        total = spending.worst_case(delta)
    drawn = route.draw(model, data, plan)
    estimate = drawn if isinstance(drawn, Estimate) else None
    latents = drawn.draws(route.draws) if isinstance(drawn, Estimate) else drawn
    assert total is not None  # what has no worst case is not planned
    total = total.assuming(*guarantees.assumptions_of(data.preprocessing))
    return Release(
        samples=flat(latents),
        latents=latents,
        receipt=Receipt(
            worst_case=total.public(epsilon),
            about=guarantees.about(data.preprocessing),
            source=AIMED,
            draws=route.draws,
            temperature=None,
            noise_scale=None,
            step=None,
        ),
        model=model,
        feature_names=data.feature_names,
        preprocessing=data.preprocessing,
        estimate=estimate,
        secret=Cost(worst_case=total),
    )


def _usual(model: Model) -> Route[Any]:
    """Return the best route that a model has."""
    if isinstance(model, BayesianLogisticRegression):
        return ObjectivePerturbation()
    if isinstance(model, BayesianLinearRegression | BayesianPoissonRegression):
        return NoisyScores()
    raise ValueError(
        f"model={model!r:.80} has no route that releases in one go; bdpvi.fit and bdpvi.release "
        "take any model"
    )


def _planned(
    route: Route[P], model: Model, features: int, ledger: Ledger, epsilon: float, delta: float
) -> P:
    """Return settings with which everything together costs at most ε, within 0.2 %.

    What was spent before counts as a Gaussian mechanism of that ε while settings are chosen; the
    noise follows from what it is.
    """
    try:
        variance = _spent(ledger, epsilon, delta)
        made = route.plan(model, features, Left(epsilon, delta, variance))

        def total(noise: float) -> float:
            found = ledger.worst_case(delta, (made.with_noise(noise).event,))
            return math.inf if found is None else found.epsilon

        noise = smallest(total, epsilon, made.event.noise_multiplier, slack=_SLACK)
    except ArithmeticError:
        raise _unreachable(ledger, epsilon, delta) from None
    return made.with_noise(noise)  # type: ignore[return-value]


def _spent(ledger: Ledger, epsilon: float, delta: float) -> float:
    """Return μ² of the Gaussian mechanism that has the ε of what was spent.

    Raises:
        ArithmeticError: if that is all of ε, or has no price.
    """
    before = ledger.worst_case(delta)
    spent = before.epsilon if before else math.inf
    if not spent < epsilon:
        raise ArithmeticError
    return largest_variance(spent, delta) if spent else 0.0


def _unreachable(ledger: Ledger, epsilon: float, delta: float) -> ValueError:
    return ValueError(
        f"epsilon={epsilon:g} cannot be reached at delta={delta:g}: before this, "
        f"{ledger.worst_case(delta)} was spent; {ledger.said()}"
    )


def _counted(share: float, data: Dataset, ledger: Ledger, epsilon: float, delta: float) -> float:
    """Charge and return a noisy number of records, for a share of the μ² that is left."""
    try:
        whole = largest_variance(epsilon, delta)
        left = whole - _spent(ledger, epsilon, delta)
        if left < SPENT * whole:
            raise ArithmeticError
    except ArithmeticError:
        raise _unreachable(ledger, epsilon, delta) from None
    distance = math.sqrt(share * left) / ledger.rows_per_unit
    counting = NoisySum(rate=1.0, clip=1.0, noise_multiplier=1 / distance, size=1, records=1)
    ledger.spend(Entry(kind="constants", events=(counting.event(1),)), f"ε = {epsilon:g}")
    number = torch.tensor([float(len(data))], dtype=torch.float64)
    return float(counting.noisy([number], Key.fresh())[0])
