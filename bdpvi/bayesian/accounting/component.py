"""A stand-alone accountant: for your own guides, training and loops."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.distributions import Distribution, MultivariateNormal

from bdpvi._ground import validate
from bdpvi._ground.host import on_host
from bdpvi._ground.outputs import several
from bdpvi._ground.types import Scope
from bdpvi.bayesian.accounting.accountant import Account
from bdpvi.bayesian.accounting.answer import nothing
from bdpvi.bayesian.accounting.draws import GuideDraws
from bdpvi.bayesian.accounting.every_group import every_group, shares_of, with_groups
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs, summarise
from bdpvi.bayesian.accounting.panel import Panel
from bdpvi.bayesian.accounting.settings import Accounting
from bdpvi.privacy.assumptions import Assumption
from bdpvi.privacy.conceivable import Influence
from bdpvi.privacy.cost import Bound, Cost
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.norms import NormCounts

KINDS = ("remove", "add")
_ROUNDING = 1e-9
"""Relative rounding error by which computed numbers may exceed a bound on them."""

Gaussian: TypeAlias = Any
"""A torch or Pyro distribution, a fitted guide, or a pair of a mean and a covariance."""


class BayesianAccountant:
    """The joint cost of Gaussian draws and noisy clipped sums for reference records.

    For your own guides, training and neighbours; :func:`bdpvi.release` and
    :class:`bdpvi.PrivateSVI` charge on their own. Its methods are named as in Opacus's
    accountants. It draws nothing and keeps no ledger: charge before you draw.

    The Bayesian ε is for a record drawn from the distribution that the panel's records represent
    (:class:`~bdpvi.privacy.cost.Kind`). It covers these releases only, and settings fixed
    beforehand: no guide, temperature or step may depend on an earlier output. Draws are priced as
    exact Gaussian draws: their lowest floating-point bits can reveal more (Mironov, "On
    significance of the least significant bits for differential privacy", CCS 2012).

    With an ``influence`` for every draw the Bayesian ε of draws is a certificate
    (:mod:`bdpvi.privacy.conceivable`); so is that of steps, whose clip bounds every record.
    Without one it is an estimate. Of your loop it sees nothing: bounds state the assumptions that
    features were made without reading the table, and that batches are Poisson samples. Draws and
    steps together use Rényi orders (Canonne, Kamath and Steinke 2020, Proposition 12), as an
    estimate.

    Args:
        kind: whether a neighbour lacks a record of the data ("remove") or has one more, held-out
            record ("add").
        accounting: how the Bayesian ε is computed.

    Raises:
        ValueError: if ``kind`` is anything else.

    >>> accountant = BayesianAccountant()
    >>> means = torch.linspace(0, 0.1, 1000).unsqueeze(1)
    >>> accountant.add((torch.zeros(1), torch.eye(1)), (means, torch.eye(1)))
    >>> bound = accountant.cost(1e-2).bayesian
    >>> round(bound.epsilon, 5), bound.mark
    (0.04394, "not certified: by Student's t")
    """

    def __init__(self, *, kind: str = "remove", accounting: Accounting | None = None) -> None:
        self.kind = validate.choice("kind", kind, KINDS)
        self.accounting = accounting or Accounting()
        self._ids: Tensor | None = None
        self._draws: list[GuideDraws] = []
        self._runs: list[SampledGaussian] = []

    @on_host
    def add(
        self,
        guide: Gaussian,
        neighbours: Gaussian | list[Gaussian],
        draws: int = 1,
        temperature: float = 1.0,
        *,
        ids: Tensor | Sequence[int] | None = None,
        influence: Influence | None = None,
    ) -> None:
        """Charge draws from N(μ, τΣ), where N(μ, Σ) is the guide.

        Args:
            guide: one Gaussian over d variables: a torch or Pyro distribution; a fitted guide of
                ``bdpvi.guides``, or a Pyro guide with ``get_posterior``; or a pair of a mean (d,)
                and a covariance (d, d).
            neighbours: the guide without each of the m records, or with it: a list of m Gaussians,
                or one with a batch of m, as means (m, d) and covariances (m, d, d) or (d, d).
            draws: number of samples k.
            temperature: τ.
            ids: ids of the records, (m,), by default 0 to m − 1. The first charge fixes them.
            influence: how far any conceivable record moves the guide, in units of the guide. The
                proof is yours.

        Raises:
            ValueError: if an argument is not a Gaussian or has a wrong shape, the records differ
                from earlier charges, or the influence has another kind or size, or is less than a
                reference record's. Nothing is charged.
        """
        pairs = _pairs(guide, neighbours)
        known = self._check_ids(len(pairs), ids)
        if influence is not None:
            _check_influence(influence, pairs, self.kind)
        panel = Panel(self.kind, known, pairs, influence=influence)
        self._draws.append(GuideDraws((panel,), draws, temperature))
        self._ids = known

    @on_host
    def step(
        self,
        noise_multiplier: float,
        rate: float,
        norms: Tensor | NormCounts,
        steps: int = 1,
        *,
        ids: Tensor | Sequence[int] | None = None,
        scope: Scope | str = Scope.PATH,
    ) -> None:
        """Charge clipped sums over Poisson samples plus Gaussian noise, as in DP-SGD.

        Args:
            noise_multiplier: the noise's standard deviation over the clip.
            rate: Poisson sampling rate q in (0, 1].
            norms: norm of each record's gradient in units of the clip, (m,); or the number of steps
                at each level.
            steps: number of steps with these norms; ``NormCounts`` include it.
            ids: ids of the records, as for :meth:`add`; ``NormCounts`` include them.
            scope: "path" for norms observed during training, such as gradient norms: their cost is
                then a diagnostic, not a guarantee. "static" for norms that depend on the record
                only, such as a bound that holds at all parameters.

        Raises:
            ValueError: if an argument is out of range, or the records differ from earlier
                charges. Nothing is charged.
        """
        if isinstance(norms, NormCounts):
            if steps not in (1, norms.steps):
                raise ValueError(f"steps={steps}, but norms has {several(norms.steps, 'step')}")
            counts, known = norms, self._check_ids(len(norms.ids), norms.ids)
        else:
            known = self._check_ids(len(norms), ids)
            counts = NormCounts.none(known, scope=Scope(scope)).add(norms, steps)
        run = SampledGaussian(
            noise_multiplier=noise_multiplier, rate=rate, steps=counts.steps, norms=counts
        )
        for at, before in enumerate(self._runs):
            if (both := _together(before, run)) is not None:
                self._runs[at] = both
                break
        else:
            self._runs.append(run)
        self._ids = known

    @property
    def account(self) -> Account:
        """All charges so far, for further questions such as the ε of single records. Secret.

        Raises:
            ValueError: if nothing was charged.
        """
        runs: list[SampledGaussian] = self._runs
        if self._draws:  # of the same neighbours
            runs = [replace(e, norms=e.norms and replace(e.norms, kind=self.kind)) for e in runs]
        return Account([*self._draws, *runs], self.accounting)

    def cost(self, delta: float, *, for_groups_of: float | Sequence[float] | None = None) -> Cost:
        """Return the joint cost of all charges. Secret, except for a worst case.

        Args:
            delta: δ.
            for_groups_of: as for :func:`bdpvi.cost`.

        Raises:
            ValueError: if δ is too small for the estimates, no ε is finite, or the reference
                records support no bound for groups of that share.
        """
        shares = shares_of(for_groups_of)
        if self._ids is None:
            return nothing(delta, [self.kind], shares)
        account = self.account
        sampled = any(run.rate < 1 for run in self._runs)
        unseen = (Assumption.GIVEN_FEATURES, *(Assumption.POISSON_BATCHES,) * sampled)
        found = account.cost(delta)
        if shares:
            found = with_groups(found, every_group([account], delta, shares))
        return found.each(lambda one: one.assuming(*unseen))

    def get_epsilon(self, delta: float) -> float:
        """Return the Bayesian ε, which is not a worst-case ε.

        Args:
            delta: δ.

        Raises:
            ValueError: as :meth:`cost`; or if ε belongs to a training path, or is not reliable.
        """
        return self._reliable_bound(delta).epsilon

    def get_delta(self, epsilon: float, *, near: float = 1e-5) -> float:
        """Return δ of the Bayesian guarantee at ``epsilon``, which is not a worst-case δ.

        Args:
            epsilon: ε ≥ 0.
            near: as for :meth:`Account.get_delta`.

        Raises:
            ValueError: as :meth:`get_epsilon`.
        """
        if self._ids is None:
            validate.non_negative("epsilon", epsilon)
            return 0.0
        result = self.account.get_delta(epsilon, near=near)
        if result < 1:
            self._reliable_bound(result)
        return result

    def state_dict(self) -> dict[str, Any]:
        """Return all charges as tensors, numbers and strings, for ``torch.save``. Secret."""
        draws = [
            {
                "r": one.panels[0].pairs.r,
                "b2": one.panels[0].pairs.b2,
                "draws": one.draws,
                "temperature": one.temperature,
                "influence": (found := one.panels[0].influence) and found.to_dict(),
            }
            for one in self._draws
        ]
        steps = [
            {
                "noise_multiplier": run.noise_multiplier,
                "rate": run.rate,
                "counts": run.norms.counts,
                "levels": run.norms.levels,
                "scope": run.norms.scope.value,
            }
            for run in self._runs
            if run.norms is not None
        ]
        return {"kind": self.kind, "ids": self._ids, "draws": draws, "steps": steps}

    @on_host
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of :meth:`state_dict`.

        Raises:
            ValueError: if this accountant has charges, which would be lost, or has another kind.
        """
        if self._ids is not None:
            raise ValueError("state: this accountant has charges already, and none is taken back")
        if set(state) != set(self.state_dict()):
            raise ValueError(f"state is not the state of an accountant: it has {sorted(state)}")
        if state["kind"] != self.kind:
            raise ValueError(f"state: its kind is {state['kind']!r}, not {self.kind!r}")
        made = BayesianAccountant(kind=self.kind)
        for one in state["draws"]:
            influence = one["influence"] and Influence(**one["influence"])
            panel = Panel(
                self.kind, state["ids"], GaussianPairs(one["r"], one["b2"]), influence=influence
            )
            made._draws.append(GuideDraws((panel,), one["draws"], one["temperature"]))
        for one in state["steps"]:
            counts = NormCounts(state["ids"], one["counts"], one["levels"], Scope(one["scope"]))
            made.step(one["noise_multiplier"], one["rate"], counts)
        self._ids, self._draws, self._runs = state["ids"], made._draws, made._runs

    def _check_ids(self, records: int, ids: Tensor | Sequence[int] | None) -> Tensor:
        """Return the record ids of a charge, which all charges have to share."""
        if ids is None and self._ids is None:
            return torch.arange(records)
        given = self._ids if ids is None else torch.as_tensor(ids).cpu()
        assert given is not None
        if len(given.unique()) < len(given):
            raise ValueError("ids: a record occurs more than once")
        if len(given) != records:
            raise ValueError(
                f"neighbours or norms are of {several(records, 'record')}, ids of {len(given)}"
            )
        if self._ids is not None and not torch.equal(given, self._ids):
            raise ValueError(
                "ids differ from the ids of earlier charges, or are in another order: the cost "
                "of a record adds up over all charges"
            )
        return given

    def _reliable_bound(self, delta: float) -> Bound:
        """Return the Bayesian bound, if it is reliable."""
        cost = self.cost(delta)
        if (result := cost.bayesian) is None:
            raise ValueError(
                f"norms were recorded on a training path, so there is no Bayesian ε: {cost}; a "
                "Bayesian ε needs norms that hold at all parameters, scope='static'"
            )
        if not result.reliable:
            raise ValueError(
                f"{result}; cost() shows it, and an influence= for every draw certifies one"
            )
        return result


def _together(one: SampledGaussian, other: SampledGaussian) -> SampledGaussian | None:
    """Return both as one run, None if their settings differ."""
    a, b = one.norms, other.norms
    assert a is not None
    assert b is not None
    same = one.noise_multiplier == other.noise_multiplier and one.rate == other.rate
    if not same or a.scope is not b.scope or not torch.equal(a.levels, b.levels):
        return None
    counts = replace(a, counts=a.counts + b.counts)
    return replace(one, steps=counts.steps, norms=counts)


def _pairs(guide: Gaussian, neighbours: Gaussian | list[Gaussian]) -> GaussianPairs:
    """Return the guide against every neighbour."""
    with torch.no_grad():
        p = _distribution("guide", guide)
        each = neighbours if isinstance(neighbours, list) else [neighbours]
        every = [_distribution("neighbours", one) for one in each]
        if not every:
            raise ValueError("neighbours is empty")
        if p.batch_shape.numel() != 1:
            raise ValueError(
                f"guide must be one Gaussian, got a batch of shape {tuple(p.batch_shape)}: of a "
                "Normal over several variables .to_event(1) makes one"
            )
        try:
            found = [summarise(p, q) for q in every]
        except ValueError as error:
            raise ValueError(f"guide (p) or neighbours (q): {error}") from None
        r, b2 = torch.cat([one.r for one in found]), torch.cat([one.b2 for one in found])
    return GaussianPairs(r.cpu(), b2.cpu())


def _distribution(name: str, given: Gaussian) -> Distribution:
    """Return a Gaussian as a torch distribution."""
    for way in ("released", "get_posterior"):
        if callable(posterior := getattr(given, way, None)):
            given = posterior()
            break
    if isinstance(given, tuple):
        try:
            mean, covariance = (torch.as_tensor(one, dtype=torch.float64) for one in given)
            return MultivariateNormal(mean, covariance, validate_args=True)
        except (ValueError, TypeError, RuntimeError, IndexError):
            shapes = ", ".join(str(tuple(getattr(one, "shape", ()))) for one in given)
            raise ValueError(
                f"{name} as a pair needs finite means (..., d) and covariances (..., d, d), "
                f"symmetric and positive definite, got shapes {shapes}"
            ) from None
    if not isinstance(given, Distribution):
        raise ValueError(f"{name} is not a Gaussian distribution, guide or pair: {given!r:.80}")
    return given


def _check_influence(influence: Influence, pairs: GaussianPairs, kind: str) -> None:
    """Raise ValueError if an influence contradicts these pairs."""
    if influence.added != (kind == "add"):
        raise ValueError(f"influence has added={influence.added}, and neighbours are of {kind!r}")
    if influence.columns != pairs.r.shape[1]:
        raise ValueError(
            f"influence has columns={influence.columns}, and the guide {pairs.r.shape[1]} variables"
        )
    least, most = math.exp(-influence.spread), math.exp(influence.spread)
    if influence.added:
        most += influence.share
    else:
        least *= 1 - influence.share
    shift = (pairs.b2 / pairs.r).sum(1).sqrt()  # in units of the guide
    near = (pairs.r >= least * (1 - _ROUNDING)) & (pairs.r <= most * (1 + _ROUNDING))
    within = near.all(1) & (shift <= influence.shift * (1 + _ROUNDING) + _ROUNDING)
    if not bool(within.all()):
        raise ValueError(
            f"influence must bound the influence of any record, but {int((~within).sum())} "
            f"reference records exceed it: means up to {float(shift.max()):.4g} apart, precisions "
            f"of {float(pairs.r.min()):.4g} to {float(pairs.r.max()):.4g} of the guide's"
        )
