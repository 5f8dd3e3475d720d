"""Objective perturbation as a route: the default for logistic regression."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi._ground.outputs import several
from bdpvi.datasets.dataset import Data, Dataset, sample_of_form
from bdpvi.models.contract import Model
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.noise.keys import Key
from bdpvi.privacy.assumptions import sentences
from bdpvi.regression import objective_plan
from bdpvi.regression.objective_plan import FAINT, Facts, Levels, ObjectivePlan, Rule, Seldom
from bdpvi.regression.perturbed_objective import Signed, SummedObjective, minima_of, taken
from bdpvi.releases.row_counts import COUNT, FEWEST, MOST, words_of_rows

_ROWS = 1 << 14
SHRUNK = "Few columns stand out from the noise: weights of numbers were shrunk after it was added"
"""What a receipt says of weights that :mod:`bdpvi.regression.few_columns` has changed."""
Change = tuple[float, float]
"""The factor of weights, and what is added to the intercept."""

if TYPE_CHECKING:  # settings need not load the releasing code
    from bdpvi.datasets.encoding import Encoding
    from bdpvi.releases.estimate import Output
    from bdpvi.releases.route import Allowance


@dataclass(frozen=True, kw_only=True)
class ObjectivePerturbation:
    """Private minima of logistic regression: :mod:`bdpvi.regression.perturbed_objective`.

    The model computes features and predictions. Its prior, clip and weights are not used: ridge,
    weights and noise follow from public facts (:mod:`bdpvi.regression.objective_plan`). The
    intercept is shrunk to ``intercept_mean``. Features should be standardised; if the model has no
    ``limit`` they are clamped to ±2, with many rows to ±4.

    Args:
        rows: N as declared by the owner, within a factor of 3, from 10 to 1e12: noise and shrinkage
            suit tables of that size. It is rounded to 1, 2 or 5 times a power of ten. By default N
            is estimated privately, for 1 % of μ².
        sources: number of raw columns, if fewer than features; by default as the data's encoding
            says, with 1 − 1/L for a category of L levels.
        draws: number of released minima; several need more noise than one.
        rule: parameters of the rule.
        counted: whether ``rows`` is a noisy count instead of declared.
        class_weights: public weights of records of class 0 and 1; only their ratio matters.
        numbers: the features that are standardised numbers, of which few may matter
            (:mod:`bdpvi.regression.few_columns`); by default as the data's encoding says.
            If none stand out, all weights have a factor
            (:mod:`bdpvi.regression.calibration_slope`).
        seldom: the features that few records may have, each with the listed levels of its column:
            their weights are held near those levels' mean; by default as the data's encoding says.
        levels: the features of each category's listed levels, of which 1/L is taken while a minimum
            is searched; by default as the data's encoding says, if the model has an intercept.

    Raises:
        ValueError: if a number is out of range.
    """

    weighs: ClassVar[bool] = True
    reads_once: ClassVar[bool] = True
    """Its passes are over rows of its own, so features need not be kept in memory beside them."""

    rows: float | None = None
    sources: float | None = None
    draws: int = 1
    rule: Rule = field(default_factory=Rule)
    counted: bool = False
    class_weights: tuple[float, float] = (1.0, 1.0)
    numbers: tuple[int, ...] | None = None
    seldom: Seldom | None = None
    levels: Levels | None = None

    def __post_init__(self) -> None:
        for weight in self.class_weights:
            validate.positive("class_weights", weight)
        validate.positive_int("draws", self.draws)
        for place in self.numbers or ():
            validate.positive_int("numbers", place, least=0)
        Facts(columns=1, rows=self.rows, sources=self.sources)

    def adapt(self, model: Model, data: Data, guide: object) -> ObjectivePerturbation:
        """Return the route with the number of source columns, if the data's encoding gives it.

        Raises:
            ValueError: unless the model is logistic regression, with targets 0 and 1.
        """
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
        model.check(sample_of_form(data))
        if not data.feature_names:
            raise ValueError("x has no columns: a prediction needs at least one")
        from bdpvi.datasets.encoding import Encoding  # late: settings need no table

        encoding: Any = data.preprocessing.get("encoding")
        if encoding is None:
            return self
        known = Encoding.from_dict(encoding)
        numbers = known.numbers if self.numbers is None else self.numbers
        seldom = seldom_of(known) if self.seldom is None else self.seldom
        levels = self.levels
        if levels is None:
            levels = levels_of(known, seldom) if model.intercept else ()
        sources = len(known.terms or known.columns) - sum(1 / max(2, len(one)) for one in levels)
        sources = sources if self.sources is None else self.sources
        return replace(self, sources=sources, numbers=numbers, seldom=seldom, levels=levels)

    @property
    def count(self) -> float:
        """Share of μ² for a noisy number of records."""
        return COUNT if self.rows is None else 0.0

    def of_rows(self, rows: float) -> ObjectivePerturbation:
        """Return the route for a noisy count of the rows."""
        return replace(self, rows=min(max(rows, FEWEST), MOST), counted=True)

    def plan(self, model: Any, features: int, left: Allowance) -> ObjectivePlan:
        """Return the settings; see :class:`~bdpvi.releases.route.Route`."""
        weights = model.design(torch.zeros(1, features)).shape[1]
        last = max(self.numbers or (0,))
        if last >= features:
            raise ValueError(
                f"numbers has {last}, but the last of {features} features is the "
                f"number {features - 1}"
            )
        facts = Facts(
            columns=weights - bool(model.intercept),
            rows=self.rows,
            sources=self.sources,
            centre=model.intercept_mean,
            intercept=bool(model.intercept),
            together=left.rows,
        )
        made = objective_plan.plan(
            facts,
            epsilon=left.epsilon,
            delta=left.delta,
            draws=self.draws,
            variance=left.variance,
            rule=self.rule,
        )
        zero, one = self.class_weights
        most = max(zero, one)
        weights_of = (zero / most, one / most)
        return replace(
            made, class_weights=weights_of, seldom=self.seldom or (), levels=self.levels or ()
        )

    def predicting(self, model: Any, plan: ObjectivePlan) -> BayesianLogisticRegression:
        """Return the model without weights, with the limit at which features were clamped."""
        plain: BayesianLogisticRegression = model.plain
        return plain if plain.limit is not None else replace(plain, limit=plan.limit)

    def words(self, plan: ObjectivePlan) -> str:
        """Return the number of rows that the settings are for, its source, and the noise."""
        noise = (
            "The weight of a feature that no record has is privacy noise alone, of standard "
            f"deviation {plan.sigma / plan.ridge:.2g}"
        )
        if plan.seldom and plan.extra_ridge:
            noise += f", but {FAINT:g} for blanks and unlisted levels, near their column's mean"
        return sentences(words_of_rows(plan.facts.rows, self.counted), noise)

    def caution(self, plan: ObjectivePlan, delta: float) -> str:
        """Return a warning if the ridge outweighs the records, with an ε that would suffice."""
        if plan.facts.rows is None or plan.ridge < objective_plan.MOST_RIDGE * plan.facts.rows:
            return ""
        least = objective_plan.useful(plan.facts, delta=delta, rule=self.rule)
        centre = "the declared base rate" if plan.facts.centre else "one half"
        return (
            f"privacy noise dominates: about {plan.facts.rows:,.0f} rows are few for "
            f"{several(plan.facts.columns, 'column')} at this ε, and predictions stay near "
            f"{centre}. The smallest useful ε is about {least:.2g}; fewer columns would help too"
        )

    def draw(self, model: Model, data: Data, plan: ObjectivePlan, key: Key) -> Output:
        """Return the weights, {"w": (draws, d)}."""
        from bdpvi.releases.estimate import Output

        known = self.predicting(model, plan)
        objective = SummedObjective(plan, data.parts.map(signed_design, known, plan))
        each = [improved(plan, one, self.numbers) for one in minima_of(objective, plan, key)]
        w = torch.stack([one for one, _ in each])
        latents = {"w": w.to(data.x) if isinstance(data, Dataset) else w}
        return Output(latents, words_of([change for _, change in each]))


def seldom_of(encoding: Encoding) -> Seldom:
    """Return the features of blanks and of unlisted levels, each with those of its listed levels.

    Only with ``unknown="other"``, where every column has them, whether or not they occur.

    >>> from bdpvi.datasets.columns import Numeric, OneHot
    >>> from bdpvi.datasets.encoding import Encoding
    >>> columns = Numeric("age", 40.0, 10.0), OneHot("sex", ("F", "M"))
    >>> seldom_of(Encoding(columns, "By law.", unknown="other"))
    ((1, ()), (4, (2, 3)), (5, (2, 3)))
    """
    found: list[tuple[int, tuple[int, ...]]] = []
    hot = encoding.one_hot
    for block, places in encoding.groups if encoding.unknown == "other" else ():
        if block.blank:
            *listed, last = places if places in hot else places[-1:]
            if len(listed) > 1:  # the last is other; alone, it is a level like any other
                found.append((listed.pop(), tuple(listed)))
            found.append((last, tuple(listed)))
    return tuple(found)


def levels_of(encoding: Encoding, seldom: Seldom) -> Levels:
    """Return the features of each category's listed levels.

    >>> from bdpvi.datasets.columns import Numeric, OneHot
    >>> from bdpvi.datasets.encoding import Encoding
    >>> columns = Numeric("age", 40.0, 10.0), OneHot("sex", ("F", "M"))
    >>> levels_of(Encoding(columns, "By law."), ())
    ((1, 2),)
    """
    apart = {place for place, _ in seldom}
    blank = {places[-1] for block, places in encoding.groups if block.blank}
    each = (tuple(p for p in places if p not in apart | blank) for places in encoding.one_hot)
    return tuple(filter(None, each))


def improved(
    plan: ObjectivePlan, minimum: Tensor, numbers: Sequence[int] | None = None
) -> tuple[Tensor, Change | None]:
    """Return a minimum after what is learned from it alone, for features as they are.

    Args:
        plan: the settings.
        minimum: the weights, (d + 1,) with an intercept, else (d,).
        numbers: as in :class:`ObjectivePerturbation`.

    Returns:
        The weights, their factor and what was added to the intercept
        (:mod:`bdpvi.regression.calibration_slope`); None if few columns stand out and numbers were
        shrunk instead.
    """
    from bdpvi.regression.calibration_slope import calibration_of, changed
    from bdpvi.regression.few_columns import of_few_columns

    few, change = of_few_columns(plan, minimum, numbers), None
    if few is None:
        change = calibration_of(plan, minimum, numbers)
        few = changed(plan, minimum, *change)
    if plan.levels:
        few[-1] -= few[:-1] @ taken(plan)
    return few, change


def words_of(changes: Sequence[Change | None]) -> str:
    """Return what a receipt says of the changes to several draws; "" if there were none.

    >>> words_of([(1.12, 0.0), (0.98, 0.0)])
    "Weights, but the intercept's, were multiplied by 0.98 to 1.12 after noise was added"
    >>> words_of([(1.0, -0.25), None])[len(SHRUNK) :]
    '. The intercept was moved by -0.25 after noise was added'
    """
    words, known = [SHRUNK] * (None in changes), [one for one in changes if one is not None]
    for what, none, some in (
        ("Weights, but the intercept's, were multiplied", 1, {factor for factor, _ in known}),
        ("The intercept was moved", 0, {more for _, more in known}),
    ):
        if some - {none}:
            by = " to ".join(f"{one:g}" for one in sorted({min(some), max(some)}))
            words.append(f"{what} by {by} after noise was added")
    return ". ".join(words)


def signed_design(
    records: tuple[Tensor, ...], model: BayesianLogisticRegression, plan: ObjectivePlan
) -> Signed:
    """Return some records as the objective sees them; the model clamps features."""
    clamped, size = replace(plan, limit=math.inf), len(records[0])
    signed = torch.empty(size, plan.facts.weights, dtype=torch.float64)
    weights, longest, sizes = signed.new_empty(size), 0.0, 0.0
    for start in range(0, size, _ROWS):  # so that there is one copy of them
        rows = slice(start, start + _ROWS)
        x, *others = (one[rows] for one in records)
        some = Signed.of(clamped, model.design(x.double())[:, : plan.facts.columns], *others)
        signed[rows], weights[rows] = some.signed, some.weights
        longest, sizes = max(longest, some.longest), sizes + some.sizes
    return Signed(signed, weights, longest, sizes)
