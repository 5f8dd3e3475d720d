"""Which of two releases predicts better, by the log scores of held-out people: at one charge.

Let D = log p_A(y|x) − log p_B(y|x) be a held-out record's difference in log predictive density,
each density a mean over the release's draws (Vehtari, Gelman and Gabry, "Practical Bayesian model
evaluation using leave-one-out cross-validation and WAIC", Statistics and Computing 2017). With
u = D/c clipped to [−1, 1] the record contributes

    g = (u, u² − ½, ½, ¼·1{|D| > c}).

Both releases are public, so g is a function of the record alone: no other record moves it, and the
four sums move by ‖g‖ if one is added or removed. ‖g‖² ≤ q + (q − ½)² + ¼ + 1/16 for q = u², which
is convex in q and so largest at q = 1, where it is (5/4)²: the sensitivity is 5/4. One Gaussian
mechanism releases the sums.

A score of the training records, each left out once, is another matter: every one of its terms
depends on all other records, so that no clip bounds what one record moves the sum by. It is not
offered.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from scipy.special import ndtr, ndtri
from torch import Tensor

from bdpvi._ground import log, validate
from bdpvi._ground.halving import by_halves
from bdpvi._ground.host import on_host
from bdpvi._ground.outputs import several
from bdpvi._ground.types import PrivacyUtilityWarning
from bdpvi.models.densities import log_densities, targets_of
from bdpvi.noise.keys import Key
from bdpvi.privacy import left
from bdpvi.privacy.assumptions import sentences
from bdpvi.privacy.ledger import Ledger
from bdpvi.releases import basis, transaction
from bdpvi.releases.account import with_history
from bdpvi.releases.clipping import clipped_sum
from bdpvi.releases.noisy_sum import NoisySum
from bdpvi.releases.receipt import AIMED, Receipt
from bdpvi.releases.released import Release
from bdpvi.releases.transaction import Before, Transaction
from bdpvi.tables.held_out import HeldOut, HeldOutRows

LENGTH = 1.25
"""The most that one record moves the sums by."""
_COUNT, _BEYOND = 0.5, 0.25
"""A record's contribution to its number, and to that of clipped differences."""
_FEW = 5.0
"""A noisy number of records below so many standard deviations of its noise says nothing."""
_AT_ONCE = 1024


@dataclass(frozen=True, kw_only=True)
class ModelComparison:
    """How much better release A predicts than release B. Public.

    Attributes:
        difference: estimated mean of log p_A(y|x) − log p_B(y|x) over people like those held out,
            each clipped to ±``clip``, in nats.
        interval: covers that mean; it has the error of sampling and that of privacy noise.
        probability: of a mean above 0, that is that A predicts better, under a flat prior.
        level: coverage of the interval.
        records: the noisy number of records.
        clipped: noisy share of records whose difference was clipped: of many, the mean is one of
            signs more than of sizes.
        clip: c, in nats.
        receipt: the guarantee for the people held out.
    """

    difference: float
    interval: tuple[float, float]
    probability: float
    level: float
    records: float
    clipped: float
    clip: float
    receipt: Receipt

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"A − B: {self.difference:+.4f} nats per record ({100 * self.level:g} % interval "
            f"{low:+.4f} to {high:+.4f}); P(A predicts better) = {self.probability:.3f}\n"
            f"about {self.records:,.0f} records held out, differences clipped to ±{self.clip:g} "
            f"nats, {100 * self.clipped:.0f} % of them clipped\n"
            f"for the people held out: {self.receipt}"
        )


@log.step("comparison")
@on_host
def compare_models(
    a: Release,
    b: Release,
    data: Any,
    *,
    epsilon: float,
    delta: float = 1e-5,
    clip: float = 1.0,
    level: float = 0.95,
    unit: Any = None,
    ledger: Ledger | None = None,
) -> ModelComparison:
    """Say which of two releases predicts held-out records better, and by how much: at one charge.

    It is the difference in expected log predictive density per record, as of ArviZ's ``compare``,
    with a worst-case guarantee for the people held out. What the releases cost the people that they
    were made from is unchanged. Held out are records that neither was made from: with others the
    guarantee holds, and the comparison favours the model that fits more closely.

    Args:
        a, b: releases with the same target, such as of :func:`bdpvi.fit_private`,
            :func:`bdpvi.private` or :func:`bdpvi.load_release`.
        data: the records: a :class:`bdpvi.Dataset` or a pair (x, y), of which each release takes
            its features by their names; a mapping or a frame, with a column for each argument of
            the models; or for releases of tables a frame of raw columns with the target as it was
            written there, or a pair of such a frame and the targets as numbers.
        epsilon: ε that everything spent on the held-out people may reach, this included.
        delta: δ.
        clip: c, in nats, public: no record counts for more. By default 1: a record on which one
            model gives e times the density of the other counts in full. Models that are close
            differ by tenths of a nat; a smaller c then has less noise, in proportion. Choose it
            without the records.
        level: coverage of the interval.
        unit: as for :func:`bdpvi.fit_private`: the person of each row, if ε is for all rows of one.
        ledger: of the held-out people; by default the one that came with ``data``.

    Raises:
        BudgetExceededError: if the ledger's budget does not suffice; nothing is charged or drawn.
        ValueError: if an argument is out of range, the releases have different targets, ``data``
            has no record or lacks a column, or a target has no density. Nothing is charged.

    Warns:
        PrivacyUtilityWarning: about records that are left out; if their noisy number is too small
            to say anything; if nothing says whether a person has several rows.

    >>> import bdpvi
    >>> model = bdpvi.BayesianLogisticRegression.unweighted(intercept=True, limit=2.0)
    >>> route = bdpvi.regression.ObjectivePerturbation(rows=3000)
    >>> x = torch.randn(6000, 2, generator=torch.Generator().manual_seed(0)).double()
    >>> y = (x[:, 0] + 0.7 * x[:, 1] > 0).double()
    >>> def records(rows, *columns):
    ...     names, each = [f"age at {j}" for j in columns], bdpvi.tables.Unit()  # one row each
    ...     return bdpvi.Dataset.of(x[rows][:, columns], y[rows], feature_names=names, unit=each)
    >>> old, new = slice(3000), slice(3000, None)
    >>> a = bdpvi.fit_private(model, records(old, 0, 1), epsilon=3, route=route)
    >>> b = bdpvi.fit_private(model, records(old, 0), epsilon=3, route=route)
    >>> found = compare_models(a, b, records(new, 0, 1), epsilon=1)
    >>> found.difference > 0.1, found.probability > 0.99
    (True, True)
    """
    validate.epsilon(epsilon)
    validate.probability("delta", delta)
    validate.positive("clip", clip)
    validate.probability("level", level)
    held = HeldOut.of(a, b, data, unit, ledger)
    held.warn(5)
    _rehearse(held)
    mechanism = _CompareScores(held, clip, epsilon, delta)
    what = f"compare_models: {several(2, 'release')}"
    work = Transaction(held.people.ledger, Key.fresh(), what=what)
    plan, key, _ = work.charge(mechanism, last=True)
    sums = work.draw_charged(mechanism, plan, key)
    bound = work.total(delta).assuming(*plan.assumptions).public(epsilon)
    about = (
        "D are the records held out: what the releases cost the records that they were made from "
        "stands in their own receipts"
    )
    receipt = Receipt(
        worst_case=bound,
        about=sentences(about, basis.about(held.preprocessing)),
        source=AIMED,
        draws=1,
        temperature=None,
        noise_scale=None,
        step=None,
    )
    numbers = _estimate(sums, plan.settings.deviation, clip, level)
    if numbers["interval"] == (-clip, clip):
        words = (
            f"too few records to say anything at this ε, by their noisy number of "
            f"{numbers['records']:.0f}; more records or a larger epsilon would help"
        )
        warnings.warn(words, PrivacyUtilityWarning, stacklevel=4)
    return ModelComparison(
        **numbers, level=level, clip=clip, receipt=with_history(receipt, work.ledger)
    )


@dataclass(frozen=True, eq=False)
class _CompareScores:
    """The noisy sums of the module's contributions, as a mechanism.

    Attributes:
        held: the records.
        clip: c.
        epsilon, delta: of the total.
    """

    step: ClassVar[str] = "comparison"

    held: HeldOut
    clip: float
    epsilon: float
    delta: float

    def plan(self, before: Before) -> transaction.Plan[NoisySum]:
        """Return a Gaussian mechanism that takes what is left of ε."""
        noise = left.gaussian(before.book, self.epsilon, self.delta).noise_multiplier
        settings = NoisySum(rate=1.0, clip=LENGTH, noise_multiplier=noise, size=4, records=1)
        return transaction.Plan(
            kind="release",
            what=f"a comparison at ε = {self.epsilon:g}",
            events=(settings.event(1),),
            settings=settings,
            assumptions=basis.assumptions_of(self.held.preprocessing, before.book.entries),
        )

    def draw(self, plan: transaction.Plan[NoisySum], key: Key) -> Tensor:
        """Return the sums with noise, (4,)."""
        total, _ = clipped_sum([contributions(differences(self.held), self.clip)], LENGTH)
        return plan.settings.noisy([total], key)[0]


def differences(held: HeldOut) -> Tensor:
    """Return log p_A(y|x) − log p_B(y|x) of each record, (N,). Secret.

    NaN if both are infinite, or a model fails on the record.
    """
    scores = [_scores(release, inputs) for release, inputs in held.sides]
    return scores[0] - scores[1]


def _scores(release: Release, inputs: HeldOutRows) -> Tensor:
    found = torch.full((len(inputs),), math.nan, dtype=torch.float64)
    for some in torch.arange(len(inputs)).split(_AT_ONCE):
        for part, score in by_halves(lambda at: _score(release, inputs.at(at)), some):
            if score is not None:
                found[part] = score
    return found


def _score(release: Release, some: HeldOutRows) -> Tensor:
    """Return the log of the mean density over the draws, (N,)."""
    each = log_densities(release.model, release.latents, some.tensors, some.names)
    return torch.logsumexp(each, 0) - math.log(len(each))


def contributions(difference: Tensor, clip: float) -> Tensor:
    """Return what each record adds to the sums, (N, 4); NaN of one that adds nothing.

    >>> contributions(torch.tensor([0.5, -3.0]).double(), 1.0).tolist()
    [[0.5, -0.25, 0.5, 0.0], [-1.0, 0.5, 0.5, 0.25]]
    """
    share = (difference / clip).clamp(-1.0, 1.0)
    beyond = _BEYOND * (difference.abs() > clip).double()
    return torch.stack([share, share**2 - 0.5, torch.full_like(share, _COUNT), beyond], 1)


def _estimate(sums: Tensor, deviation: float, clip: float, level: float) -> dict[str, Any]:
    """Return the numbers of a comparison from noisy sums.

    With N̂ records, u sums to S₁ and u² to Q̂ = S₂ + N̂/2. The mean S₁/N̂ has the variance
    (Σ(u − ū)² + σ² + ū² σ_N²)/N̂², of a ratio of noisy sums (the delta method), with σ the noise of
    S₁ and σ_N = 2σ that of N̂. Q̂ − S₁²/N̂ estimates Σ(u − ū)² with the noise of Q̂, of deviation √2 σ,
    which is added to it: so the interval is too narrow at most where that noise is beyond −1.

    >>> exact = torch.tensor([100.0, 0.0, 500.0, 0.0])  # u of 0.1 on average, u² of ½, N = 1000
    >>> found = _estimate(exact, 1e-9, clip=2.0, level=0.95)
    >>> found["difference"], [round(end, 4) for end in found["interval"]]
    (0.2, [0.1132, 0.2868])
    """
    first, second, count, beyond = sums.tolist()
    unsure = deviation / _COUNT
    records = max(count / _COUNT, 1.0)
    if records < _FEW * unsure:
        return {
            "difference": 0.0, "interval": (-clip, clip), "probability": 0.5,
            "records": records, "clipped": min(max(beyond / _BEYOND / records, 0.0), 1.0),
        }  # fmt: skip
    mean, squares = first / records, second + records / 2
    sampling = max(squares - first**2 / records, 0.0) + deviation * math.hypot(
        1.0, unsure / 2 / deviation
    )
    error = math.sqrt(sampling + deviation**2 + (mean * unsure) ** 2) / records
    half = float(ndtri((1 + level) / 2)) * error
    return {
        "difference": clip * min(max(mean, -1.0), 1.0),
        "interval": (clip * max(mean - half, -1.0), clip * min(mean + half, 1.0)),
        "probability": float(ndtr(mean / error)),
        "records": records,
        "clipped": min(max(beyond / _BEYOND / records, 0.0), 1.0),
    }


def _rehearse(held: HeldOut) -> None:
    """Compare made-up records, so that what fails does so before a charge, whatever the records.

    Raises:
        ValueError: if a target has no density, or those of the releases are of different kinds.
    """
    kinds = []
    for name, (release, inputs) in zip("ab", held.sides, strict=True):
        made = inputs.made_up
        try:
            _score(release, made)
            first = {n: value[0] for n, value in release.latents.items()}
            kinds.append([_kind(one) for one in targets_of(release.model, first, *made)])
        except Exception as error:  # whatever a model of the user's raises
            raise ValueError(
                f"{name}: it fails on made-up records, by {type(error).__name__}: {error!s:.200}. "
                "Nothing was charged"
            ) from error
    if kinds[0] != kinds[1]:
        raise ValueError(
            f"a and b have different targets: {_words(kinds[0])}, and {_words(kinds[1])}; their "
            "densities cannot be compared. Nothing was charged"
        )


def _kind(site: Mapping[str, Any]) -> tuple[bool, int, tuple[int, ...]]:
    """Return whether a target is discrete, its number of classes if it is one, and its shape."""
    law = site["fn"]
    discrete = bool(getattr(getattr(law, "support", None), "is_discrete", False))
    return discrete, int(getattr(law, "_num_events", 0)), tuple(law.event_shape)


def _words(kinds: list[tuple[bool, int, tuple[int, ...]]]) -> str:
    said = (
        (f"one of {number} classes" if number else "a count or a label") if discrete else "a number"
        for discrete, number, _ in kinds
    )
    return " and ".join(said) or "none"
