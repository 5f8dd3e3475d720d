"""The route of noisy scores: intervals with coverage, from four Gaussian rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi._ground.outputs import several
from bdpvi._ground.types import TooFewRecordsError
from bdpvi.datasets.dataset import Data, Dataset, sample_of_form
from bdpvi.models.contract import Model
from bdpvi.models.family import Family
from bdpvi.models.scores import ScoreParts
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.gaussian import largest_variance
from bdpvi.privacy.gaussian_dp import gaussian_epsilon
from bdpvi.privacy.left import HIGHEST
from bdpvi.regression import score_release as noisy_scores
from bdpvi.regression.score_posterior import FAR, NormalPrior, Posterior
from bdpvi.regression.score_release import ScorePlan
from bdpvi.regression.score_rounds import Joined
from bdpvi.releases.estimate import BASE, HIDDEN, LEFT_OUT, POOLED, SHARE, Estimate, Output
from bdpvi.releases.row_counts import COUNT, words_of_rows

if TYPE_CHECKING:
    from bdpvi.datasets.encoding import Encoding
    from bdpvi.noise.keys import Key
    from bdpvi.releases.route import Allowance

LEAST = 4.0
"""Expected signal below which nearly all releases would be unreliable: they are not charged."""
_MARGIN = 1.1
"""Safety factor of the values that an error suggests."""
_WITHOUT = (
    "without them, route=DPVI() of fit_private",
    "without them, route=ObjectivePerturbation() (intervals=False, --for prediction)",
)
_PANEL = (100, 5000)
"""The fewest and the most reference records for the costs on the path."""
_MOSTLY = 0.5
"""A coefficient is not measured if directions that are not measured have a larger share of its
variance and it is mostly the prior's."""
_PRIOR = 0.25
"""Standard deviation of a coefficient that is mostly the prior's, in those of the prior."""
ASSUMED = (
    "intervals are for the model's best fit, with outlying records weighted down; their "
    "covariance is a sandwich, so the model need not be correct"
)
WEIGHTED = (
    "; intervals are design-based: weights count as sampling weights, up to their public bound, of "
    "rows that were drawn independently"
)
_UNSEEN = f"{HIDDEN}: mostly the prior"


@dataclass(frozen=True, kw_only=True)
class NoisyScores:
    """Logistic, linear or Poisson regression with intervals for sampling and privacy noise.

    Four Gaussian rounds release weighted scores and their matrices at released points
    (:mod:`bdpvi.regression.score_release`); the posterior follows from these only, so draws cost
    nothing. Features should have about unit size, by public scales. The model's prior is used, its
    clip is not. The first category of an encoded column is the base level, with weight 0.

    Args:
        rows: N as declared by the owner, within a factor of 3. By default N is estimated privately,
            for 1 % of the price.
        draws: number of posterior draws; any number has the same price.
        least: expected signal below which a table is refused as too small, before the rounds are
            charged. With 0 it is released anyway, with an estimate that is marked as not
            reliable.
        counted: whether ``rows`` is a noisy count instead of declared.
        columns: number of raw columns that the features encode, if known. All features of a column
            together are about 1 long.
    """

    kind: ClassVar[str] = "noisy scores"
    weighs: ClassVar[bool] = True

    rows: float | None = None
    draws: int = 1000
    least: float = LEAST
    counted: bool = False
    columns: int | None = None

    def __post_init__(self) -> None:
        validate.non_negative("least", self.least)
        if self.rows is not None:
            validate.positive("rows", self.rows)
        validate.positive_int("draws", self.draws)

    @property
    def count(self) -> float:
        """Share of μ² for a noisy number of records."""
        return COUNT if self.rows is None else 0.0

    def of_rows(self, rows: float) -> NoisyScores:
        """Return the route for a table of about ``rows`` records."""
        return replace(self, rows=max(rows, 1.0), counted=True)

    def of_columns(self, columns: int | None) -> NoisyScores:
        """Return the route for features that encode this many raw columns."""
        return replace(self, columns=columns)

    def adapt(self, model: Model, data: Data, guide: object) -> NoisyScores:
        """Return the route; raise ValueError unless the model is one of the three regressions."""
        parts_of(model)
        if guide is not None:
            raise ValueError(
                f"guide={guide!r:.80}: route=NoisyScores() computes its own posterior and takes "
                "no guide; leave it out"
            )
        if not data.feature_names:
            raise ValueError("x has no columns: a regression needs at least one")
        model.check(sample_of_form(data))  # type: ignore[attr-defined]
        encoding = _encoding(data)
        return replace(self, columns=len(encoding.columns) if encoding else None)

    def plan(self, model: Model, features: int, left: Allowance) -> ScorePlan:
        """Return the settings, a function of public numbers.

        Raises:
            TooFewRecordsError: if the release would be unreliable.
        """
        variance = largest_variance(left.epsilon, left.delta) - left.variance
        rows = self.rows or 0.0
        distance = math.sqrt(variance) / left.rows
        size = None if self.columns is None else self.columns + 1.0
        made = ScorePlan.of(parts_of(model), features + 1, distance, rows, size)
        if self.rows is not None and made.signal(rows) < self.least:
            raise TooFewRecordsError(_too_few(made, rows, left, self.least))
        return made

    def predicting(self, model: Model, plan: ScorePlan) -> Model:
        """Return the model, which computes the features, without record weights."""
        return getattr(model, "plain", model)

    def words(self, plan: ScorePlan) -> str:
        """Return the number of rows that the settings are for, and its source."""
        return words_of_rows(self.rows, self.counted)

    def caution(self, plan: ScorePlan, delta: float) -> str:
        """Return "": the estimate states whether it is reliable."""
        return ""

    def draw(self, model: Model, data: Data, plan: ScorePlan, key: Key) -> Output:
        """Return the posterior, with a secret key's noise, and the costs of reference records."""
        known: Any = self.predicting(model, plan)
        used, levels = _columns(data)
        columns = int(used.sum())
        size = min(plan.size, columns)
        plan = replace(plan, columns=columns, size=size, weighted=data.weighted)
        mean = torch.zeros(len(used), dtype=torch.float64)
        mean[-1] = known.intercept_mean
        precision = torch.eye(plan.columns, dtype=torch.float64) / known.prior_scale**2
        middle = getattr(known, "middle", 0.0)  # targets are clamped around it
        records = data.parts.map(_design, known, used, middle)
        prior = NormalPrior(mean[used], precision)
        found = noisy_scores.measure(plan, records, prior, key, levels)
        posterior = found.of_features()
        posterior.mean[-1] += middle
        made = _estimate(posterior, used, found.joined, known.prior_scale, data.weighted)
        latents = made.draws(self.draws, key.child("draws"))
        return Output(latents, estimate=made, rounds=_reference_costs(plan, found, data, key))


def _design(
    records: tuple[Tensor, ...], model: Any, used: Tensor, middle: float
) -> tuple[Tensor, ...]:
    """Return the design's columns in use, the targets around their middle, and any weights."""
    x, y, *weights = (record.detach().cpu().double() for record in records)
    return model.design(x)[:, used], y - middle, *weights


def parts_of(model: Model, route: str = "NoisyScores") -> ScoreParts:
    """Return what rounds take from a record of a model.

    Raises:
        ValueError: if it has none.
    """
    if getattr(model, "exposure", None) is not None:
        raise ValueError(f"exposure={model.exposure!r}: route={route}() has none; DPVI() does")  # type: ignore[attr-defined]
    if not isinstance(model, Family) or (parts := model.score_parts) is None:
        raise ValueError(
            f"route={route}() is for BayesianLogisticRegression, BayesianLinearRegression and "
            f"BayesianPoissonRegression, got model={model!r:.80}; bdpvi.fit takes any model"
        )
    if not model.intercept or model.correlation:
        raise ValueError(
            f"intercept={model.intercept!r}, correlation={model.correlation!r}: "
            f"route={route}() needs intercept=True, and standardises features itself, so "
            "correlation=0"
        )
    return parts


def _encoding(data: Data) -> Encoding | None:
    """Return the encoding of all features, if they have one."""
    from bdpvi.datasets.encoding import Encoding  # late: settings need no table

    written = data.preprocessing.get("encoding")
    made = None if written is None else Encoding.from_dict(written)
    return made if made and {*made.feature_names} >= {*data.feature_names} else None


def _columns(data: Data) -> tuple[Tensor, Tensor]:
    """Return which columns of the design are used, (d + 1,), and which of these may be left out.

    All are used but base levels; what may be left out is said as :func:`.measure` takes it.
    """
    encoding, names = _encoding(data), list(data.feature_names)
    if encoding is None:
        return torch.full((len(names) + 1,), True), torch.full((len(names) + 1,), -1)
    every, numbers = encoding.feature_names, encoding.numbers
    bases = {every[places[0]] for places in encoding.one_hot}
    used = torch.tensor([*(name not in bases for name in names), True])
    names = [name for name in names if name not in bases]
    places, made = {name: at for at, name in enumerate(names)}, dict.fromkeys(names, -2)
    with_blanks = [place for place in encoding.places.values() if place and place[0] in numbers]
    for group in (*encoding.one_hot, *with_blanks):
        there = [every[at] for at in group if every[at] in places]
        made |= dict.fromkeys(there, places[there[0]] if there else -2)
    made |= {every[at]: -1 for at in (*numbers, *encoding.smooth)}
    return used, torch.tensor([*(made[name] for name in names), -1])


def _reference_costs(
    plan: ScorePlan, found: noisy_scores.Measured, data: Data, key: Key
) -> tuple[SampledGaussian, ...]:
    """Return the costs at the released points of reference records chosen by secret coins."""
    if found.paid is None or len(data) < _PANEL[0] or data.ledger.rows_per_unit > 1:
        return ()
    assert isinstance(data, Dataset)
    order = key.child("panel").words(len(data)).argsort()
    panel = torch.from_numpy(order[: _PANEL[1]].astype("int64"))
    chosen = replace(found, paid=found.paid[:, panel])
    return tuple(noisy_scores.path_events(plan, chosen, data.ids[panel].cpu()))


def _estimate(
    found: Posterior, used: Tensor, joined: Joined, prior_scale: float, weighted: bool = False
) -> Estimate:
    """Return the posterior of all weights, with notes on uninformative ones.

    Args:
        found: the posterior of the k weights that are used.
        used: which weights are used, (d + 1,).
        joined: which of the k have a column after the first round.
        prior_scale: the prior's standard deviation.
        weighted: whether records have weights.
    """
    place = torch.eye(len(used), dtype=torch.float64)[:, used]
    whole, reasons = found.rotate(place), []
    sizes, sampling = whole.covariance.diagonal(), whole.sampling.diagonal().clamp(min=0)
    unseen = whole.unseen.diagonal() > _MOSTLY * sizes
    prior = unseen & (sizes.sqrt() > _PRIOR * prior_scale)
    notes = [_UNSEEN if hidden else "" for hidden in prior.tolist()]
    places, pooled = torch.nonzero(used).flatten().tolist(), joined.pooled.tolist()
    for at, one, together in zip(places, joined.estimated_columns.tolist(), pooled, strict=True):
        notes[at] = (notes[at] or POOLED * together) if one else LEFT_OUT
    notes = [note if one else BASE for note, one in zip(notes, used.tolist(), strict=True)]
    seen, most = notes.count("") + notes.count(POOLED), int(joined.estimated_columns.sum())
    enough = seen >= SHARE * most
    if not enough:
        reasons.append(
            f"{seen} of {most} coefficients are measured, and half are needed: there "
            "are too few records for this ε, or some columns are collinear or almost always 0"
        )
    if found.far >= FAR:
        reasons.append(
            f"the estimate lies {found.far:.2f} standardised units from the point of its scores, "
            f"and {FAR:g} is the most: there are too few records for this ε"
        )
    return Estimate(
        mean=tuple(whole.mean.tolist()),
        covariance=tuple(map(tuple, ((whole.covariance + whole.covariance.T) / 2).tolist())),
        sampling=tuple(sampling.sqrt().tolist()),
        log_scale=found.log_scale,
        reliable=enough and found.passes,
        reason="; ".join(reasons) or ASSUMED + WEIGHTED * weighted,
        notes=tuple(notes),
    )


def _too_few(plan: ScorePlan, rows: float, left: Allowance, least: float) -> str:
    share = least / max(plan.signal(rows), 1e-12)
    distance = 1 / plan.event.noise_multiplier

    def suffices(columns: int) -> bool:
        size = plan.size * columns / plan.columns
        made = ScorePlan.of(plan.family, columns, distance, rows, size)
        return made.signal(rows) >= _MARGIN * least

    # Earlier charges grow with ε too, so that this ε more than suffices.
    variance = largest_variance(left.epsilon, left.delta) * (_MARGIN * share) ** 2
    features = next(filter(suffices, range(plan.columns - 1, 1, -1)), 1) - 1
    known = f"rows={rows:.0f} (--rows, expected_rows=)"
    ways, epsilon = [], math.inf
    if variance < largest_variance(HIGHEST, left.delta):
        epsilon = gaussian_epsilon(variance, left.delta)
    if epsilon < (math.inf if left.budget is None else left.budget.epsilon):
        ways.append(f"epsilon={epsilon:.2g} with {known}, if the ledger's budget allows it")
    if features:
        ways.append(f"at most {several(features, 'feature')}, with {known}")
    ways.append(_WITHOUT[plan.family.link == "logit"])
    return (
        f"about {rows:.0f} records: at ε = {left.epsilon:g} about {share * rows:.2g} "
        f"are needed for intervals of {several(plan.columns - 1, 'feature')}. Options: "
        f"{'; or '.join(ways)}. Nothing was charged, except a count of the records if their "
        "number was not declared"
    )
