"""An accountant by itself: for own guides, own training, an own loop."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.distributions import Distribution, MultivariateNormal

from bdpvi._runtime import validate
from bdpvi._runtime.host import on_host
from bdpvi._runtime.outputs import several
from bdpvi.accounting.accountant import Account, Accounting
from bdpvi.accounting.answer import nothing
from bdpvi.accounting.conceivable import Influence
from bdpvi.accounting.cost import Bound, Cost
from bdpvi.accounting.events import WITH, WITHOUT, NormCounts, PosteriorDraws, SampledGaussian
from bdpvi.accounting.gaussian_pairs import GaussianPairs, summarise
from bdpvi.accounting.panel import Panel
from bdpvi.types import Scope

KINDS = ("remove", "add")
_ROUNDING = 1e-9
"""Fraction by which numbers that were computed may be beyond a bound on them."""

Gaussian: TypeAlias = Any
"""A torch or Pyro distribution, a fitted guide, or a pair of a mean and a covariance."""


class BayesianAccountant:
    """What draws from Gaussians and noisy clipped sums cost the records of a panel, together.

    For someone who has guides, training and neighbours of their own; :func:`bdpvi.release` and
    :class:`bdpvi.PrivateSVI` charge by themselves. The names are those of the accountants of
    Opacus. It draws nothing and keeps no ledger: charge before you draw.

    The Bayesian ε is for a record drawn from the distribution that the panel's records represent
    (:class:`~bdpvi.accounting.cost.Kind`). It is of these releases alone, and of settings that were
    fixed beforehand: no guide, temperature or step may depend on what an earlier one gave. Draws
    are priced as exact ones: their lowest bits in floating point can tell more (Mironov, "On
    significance of the least significant bits for differential privacy", CCS 2012).

    With an ``influence`` for every draw the Bayesian ε of draws is a certificate
    (:mod:`bdpvi.accounting.conceivable`); so is that of steps, whose clip bounds every record.
    Without one it is an estimate. Draws and steps together are priced by orders (Canonne, Kamath
    and Steinke 2020, Proposition 12), as an estimate.

    Args:
        kind: whether a neighbour has a record of the data less ("remove") or a held-out one more
            ("add").
        accounting: how the Bayesian ε is computed.

    Raises:
        ValueError: if ``kind`` is another.

    >>> accountant = BayesianAccountant()
    >>> means = torch.linspace(0, 0.1, 1000).unsqueeze(1)
    >>> accountant.add((torch.zeros(1), torch.eye(1)), (means, torch.eye(1)))
    >>> print(accountant.cost(1e-2).bayesian)
    Bayesian DP ε = 0.04394 at δ = 0.01 (1000 records, not certified: by Student's t)
    """

    def __init__(self, *, kind: str = "remove", accounting: Accounting | None = None) -> None:
        self.kind = validate.choice("kind", kind, KINDS)
        self.accounting = accounting or Accounting()
        self._ids: Tensor | None = None
        self._draws: list[PosteriorDraws] = []
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
            guide: one Gaussian over d variables: a distribution of torch or Pyro; a guide of
                ``bdpvi.guides`` that was fitted, or one of Pyro's with ``get_posterior``; or a pair
                of a mean (d,) and a covariance (d, d).
            neighbours: what the guide would have been without each of the m records, or with it: a
                list of m such, or one with a batch of m, as means (m, d) and covariances (m, d, d)
                or (d, d).
            draws: number of samples k.
            temperature: τ.
            ids: of the records, (m,), 0 to m − 1 by default. The first charge fixes them.
            influence: how far any conceivable record moves the guide, proven by you, in units of
                the guide.

        Raises:
            ValueError: if something is no Gaussian or of another shape, the records are not those
                of earlier charges, or the influence is of another kind or size, or less than that
                of a record of the panel. Nothing is charged.
        """
        pairs = _pairs(guide, neighbours)
        known = self._known(len(pairs), ids)
        if influence is not None:
            _check_influence(influence, pairs, self.kind)
        panel = Panel(self.kind, known, pairs, influence=influence)
        self._draws.append(PosteriorDraws((panel,), draws, temperature))
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
        """Charge clipped sums over Poisson samples plus Gaussian noise, as of DP-SGD.

        Args:
            noise_multiplier: the noise's standard deviation over the clip.
            rate: Poisson sampling rate q in (0, 1].
            norms: of each record's gradient in units of the clip, (m,); or in how many steps they
                were how large.
            steps: in how many steps the norms were those; ``NormCounts`` know it.
            ids: of the records, as for :meth:`add`; ``NormCounts`` have them.
            scope: "path" where norms were met on the way, as gradients' are: what they cost is then
                a diagnostic and no guarantee. "static" where they depend on nothing but the record,
                as a bound on them that holds at all parameters.

        Raises:
            ValueError: if an argument is out of range, or the records are not those of earlier
                charges. Nothing is charged.
        """
        if isinstance(norms, NormCounts):
            if steps not in (1, norms.steps):
                raise ValueError(f"steps={steps}, but norms has {several(norms.steps, 'step')}")
            counts, known = norms, self._known(len(norms.ids), norms.ids)
        else:
            known = self._known(len(norms), ids)
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
        """Everything so far, for further questions such as what single records pay. Secret.

        Raises:
            ValueError: if nothing was charged.
        """
        runs: list[SampledGaussian] = self._runs
        if self._draws:  # of the same neighbours
            runs = [_Steps(**{**vars(one), "kind": self.kind}) for one in runs]
        return Account([*self._draws, *runs], self.accounting)

    def cost(self, delta: float) -> Cost:
        """Return what everything costs together. Secret, but for a worst case.

        Args:
            delta: δ.

        Raises:
            ValueError: if δ is too small for the estimates, or no ε is finite.
        """
        return self.account.cost(delta) if self._ids is not None else nothing(delta, [self.kind])

    def get_epsilon(self, delta: float) -> float:
        """Return the Bayesian ε, which is no worst-case one.

        Args:
            delta: δ.

        Raises:
            ValueError: as :meth:`cost`; or if ε is a path's, or not reliable.
        """
        return self._relied_on(delta).epsilon

    def get_delta(self, epsilon: float, *, near: float = 1e-5) -> float:
        """Return δ of the Bayesian guarantee at ``epsilon``, which is no worst-case one.

        Args:
            epsilon: ε ≥ 0.
            near: as of :meth:`Account.get_delta`.

        Raises:
            ValueError: as :meth:`get_epsilon`.
        """
        if self._ids is None:
            validate.non_negative("epsilon", epsilon)
            return 0.0
        found = self.account.get_delta(epsilon, near=near)
        if found < 1:
            self._relied_on(found)
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return all charges as tensors, numbers and texts, for ``torch.save``. Secret."""
        draws = [
            {
                "r": one.panels[0].pairs.r,
                "b2": one.panels[0].pairs.b2,
                "draws": one.draws,
                "temperature": one.temperature,
                "influence": (found := one.panels[0].influence) and asdict(found),
            }
            for one in self._draws
        ]
        steps = [
            {
                "noise_multiplier": one.noise_multiplier,
                "rate": one.rate,
                "counts": one.norms.counts,
                "levels": one.norms.levels,
                "scope": one.norms.scope.value,
            }
            for one in self._runs
            if one.norms is not None
        ]
        return {"kind": self.kind, "ids": self._ids, "draws": draws, "steps": steps}

    @on_host
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` returned.

        Raises:
            ValueError: if this accountant has charges, which would be lost, or is of another kind.
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
            made._draws.append(PosteriorDraws((panel,), one["draws"], one["temperature"]))
        for one in state["steps"]:
            counts = NormCounts(state["ids"], one["counts"], one["levels"], Scope(one["scope"]))
            made.step(one["noise_multiplier"], one["rate"], counts)
        self._ids, self._draws, self._runs = state["ids"], made._draws, made._runs

    def _known(self, records: int, ids: Tensor | Sequence[int] | None) -> Tensor:
        """Return the ids of the records of a charge, which have to be those of all charges."""
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

    def _relied_on(self, delta: float) -> Bound:
        """Return the Bayesian bound, if there is one to rely on."""
        cost = self.cost(delta)
        if (found := cost.bayesian) is None:
            raise ValueError(
                f"norms were recorded on a training path, so there is no Bayesian ε: {cost}; a "
                "Bayesian ε needs norms that hold at all parameters, scope='static'"
            )
        if not found.reliable:
            raise ValueError(
                f"{found}; cost() shows it, and an influence= for every draw certifies one"
            )
        return found


@dataclass(frozen=True, kw_only=True)
class _Steps(SampledGaussian):
    """Steps beside draws, whose neighbours are of one kind."""

    kind: str

    @property
    def records(self) -> Mapping[str, Tensor]:
        """The records, in both directions."""
        assert self.norms is not None
        return {f"{self.kind} {way}": self.norms.ids for way in (WITH, WITHOUT)}


def _together(one: SampledGaussian, other: SampledGaussian) -> SampledGaussian | None:
    """Return both as one run, None where they are of different settings."""
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
    """Return a Gaussian as torch has it."""
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
    """Raise ValueError if an influence cannot be one of these pairs."""
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
