"""A posterior in numbers, besides its draws, for routes that provide it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal

from bdpvi._ground import validate
from bdpvi._ground.host import HOST, on_host
from bdpvi._ground.outputs import several
from bdpvi.datasets.named import WHOLE, Argument, blank
from bdpvi.models.contract import Model, with_features
from bdpvi.noise.keys import Key

if TYPE_CHECKING:
    from bdpvi.privacy.events import SampledGaussian

BASE = "base level"
"""Note on the level that the others are compared with."""
HIDDEN = "dominated by privacy noise"
"""Note on a coefficient that is not measured; its interval is wide, or not informative."""
LEFT_OUT = "left out: too few records have it for this ε"
"""Note on a level that is no coefficient of the model, as noise hides how many records have it.
Predictions take the mean of its column."""
POOLED = "one coefficient for all levels that few records have"
"""Note on a level that shares its coefficient with others of its column."""
SHARE = 0.5
"""The least share of measured coefficients of a release with reliable intervals."""
REST = 1e-9
"""Negative eigenvalues of a covariance, relative to the largest, that count as rounding."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """N(mean, covariance) of the weights w, which includes sampling and privacy noise. Public.

    Attributes:
        mean: (d,); omitted weights are 0, with a variance of 0.
        covariance: (d, d).
        sampling: standard deviations without privacy noise, (d,).
        log_scale: mean and standard deviation of the logarithm of the targets' noise, or None.
        reliable: whether the approximations behind it hold, by public numbers.
        reason: why not, and what they assume.
        notes: a note on each weight, such as that it is the base level, or "".

    Raises:
        ValueError: if shapes disagree, or the covariance is invalid.

    >>> one = Estimate(mean=(1.0,), covariance=((0.25,),), sampling=(0.4,), reliable=True)
    >>> one.draws(3)["w"].shape
    torch.Size([3, 1])
    """

    mean: tuple[float, ...] = field(repr=False)
    covariance: tuple[tuple[float, ...], ...] = field(repr=False)
    sampling: tuple[float, ...] = field(repr=False)
    log_scale: tuple[float, float] | None = None
    reliable: bool
    reason: str = ""
    notes: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        d, matrix = len(self.mean), self.covariance
        if not self.notes:
            object.__setattr__(self, "notes", ("",) * d)
        parts = (matrix, self.sampling, self.notes, *matrix)
        if not d or any(len(part) != d for part in parts):
            raise ValueError(
                f"covariance, sampling and notes must be of {several(d, 'weight')}, as mean is"
            )
        _check_covariance(torch.tensor(matrix, dtype=torch.float64))
        for one in self.sampling:
            validate.non_negative("sampling", one)
        if self.log_scale is not None:
            validate.non_negative("log_scale", self.log_scale[1])

    @cached_property
    def spread(self) -> Tensor:
        """The covariance, (d, d)."""
        return torch.tensor(self.covariance, dtype=torch.float64)

    def draws(self, number: int, key: Key | None = None) -> dict[str, Tensor]:
        """Return draws of the latent variables: any number, at no price.

        Args:
            number: k.
            key: source of the draws; a fresh one by default.
        """
        from bdpvi.noise import secure  # late, as draws are not always asked for

        key = key or Key.fresh()
        noise = secure.standard_normal(
            (validate.positive_int("draws", number), len(self.mean)), key.child("w")
        )
        result = {"w": torch.tensor(self.mean, dtype=torch.float64) + _shaped(noise, self.spread)}
        result["w"][:, self.spread.diagonal() == 0] = 0.0
        if self.log_scale is not None:
            mean, sd = self.log_scale
            result["log_scale"] = mean + sd * secure.standard_normal((number,), key.child("scale"))
        return result


@dataclass(frozen=True, kw_only=True)
class Gaussian:
    """N(mean, covariance) of all unconstrained latent variables as one vector. Public.

    A guide of another shape, such as a flow, has its standardised draws in place of a normal's.

    Attributes:
        mean: (d,).
        variances: (d,).
        covariance: (d, d); () if coordinates are independent.
        sites: shapes of the unconstrained latent variables, in order.
        measured: whether each coordinate is narrower than its prior and not dominated by privacy
            noise, (d,); if it is dominated, its variance is not informative. () means all.
        settled: whether training reached the optimum, by the noisy gradients of its last half.
        amortised: whether the guide approximates latents of single records, which makes the others
            look better known than they are.
        moved: the standard deviation that noise alone gives the mean of a coordinate that is not
            measured. Draws of it vary by that at most, so that a prior's width does not drown
            predictions; its interval is by its variance. None if draws vary by the variances.
        features: torch's type of features that are whole numbers, such as "int64"; "" for others.
        arguments: the features, if the model takes them by name; () for a single x.
        shape: draws of a guide that is not Gaussian, less their means and divided by their standard
            deviations, (k, d); () for a Gaussian.

    Raises:
        ValueError: if shapes disagree, or the covariance is invalid.

    >>> one = Gaussian(mean=(0.0, 1.0), variances=(1.0, 4.0), sites={"w": (2,)})
    >>> one.distribution.stddev.tolist(), one.draws(3).shape
    ([1.0, 2.0], torch.Size([3, 2]))
    """

    mean: tuple[float, ...] = field(repr=False)
    variances: tuple[float, ...] = field(repr=False)
    covariance: tuple[tuple[float, ...], ...] = field(default=(), repr=False)
    sites: Mapping[str, tuple[int, ...]]
    measured: tuple[bool, ...] = field(default=(), repr=False)
    settled: bool = field(default=True, metadata={"absent": True})
    amortised: bool = field(default=False, metadata={"absent": False})
    moved: float | None = field(default=None, metadata={"absent": None})
    features: str = field(default="", metadata={"absent": ""})
    arguments: tuple[Argument, ...] = ()
    shape: tuple[tuple[float, ...], ...] = field(default=(), repr=False, metadata={"absent": ()})

    def __post_init__(self) -> None:
        if self.features:
            validate.choice("features", self.features, WHOLE)
        if self.moved is not None:
            validate.non_negative("moved", self.moved)
        for name, shape in self.sites.items():
            for size in shape:
                validate.positive_int(f"sites.{name}", size, least=0)
        rows = self.covariance
        d = sum(math.prod(shape) for shape in self.sites.values())
        validate.at_most("sites", d, max(len(self.mean), 1))
        if not self.measured:
            object.__setattr__(self, "measured", (True,) * d)
        parts = (self.mean, self.variances, self.measured, *rows, *self.shape)
        if any(len(part) != d for part in parts) or len(rows) % max(d, 1):
            raise ValueError(f"mean, variances, covariance, measured: must be of {d} coordinates")
        for variance in self.variances:
            validate.non_negative("variances", variance)
        if rows:
            _check_covariance(torch.tensor(rows, dtype=torch.float64))

    def scale(self, name: str, quantile: float) -> tuple[float, float, float, bool] | None:
        """Return e^mean of a site, e^(mean ∓ quantile · sd), and whether it is measured."""
        if name not in self.sites:
            return None
        before = [*self.sites.values()][: [*self.sites].index(name)]
        at = sum(math.prod(shape) for shape in before)
        half = quantile * math.sqrt(self.variances[at])
        ends = (math.exp(min(self.mean[at] + one, 700.0)) for one in (0.0, -half, half))
        middle, low, high = ends
        return middle, low, high, self.measured[at]

    @cached_property
    def distribution(self) -> Distribution:
        """The posterior as a torch distribution, float64.

        Raises:
            ValueError: if the guide is not Gaussian.
        """
        if self.shape:
            raise ValueError(
                "guide is not Gaussian, so it has draws and no distribution: draws(), mean and "
                "variances"
            )
        mean = torch.tensor(self.mean, dtype=torch.float64)
        if self.covariance:
            return MultivariateNormal(mean, torch.tensor(self.covariance, dtype=torch.float64))
        spread = torch.tensor(self.variances, dtype=torch.float64).sqrt()
        return Independent(Normal(mean, spread), 1)

    @on_host
    def draws(self, number: int, key: Key | None = None) -> Tensor:
        """Return draws, (k, d): any number, at no price.

        Args:
            number: k.
            key: source of the draws; a fresh one by default.

        Raises:
            ValueError: if the guide is not Gaussian, and has fewer draws.
        """
        from bdpvi.noise import secure

        number = validate.positive_int("draws", number)
        if self.shape:
            return self._drawn(number, key or Key.fresh())
        noise = secure.standard_normal((number, len(self.mean)), key or Key.fresh())
        mean = torch.tensor(self.mean, dtype=torch.float64)
        if not self.covariance:
            away = noise * torch.tensor(self.variances, dtype=torch.float64).sqrt()
        else:
            away = _shaped(noise, torch.tensor(self.covariance, dtype=torch.float64))
        return mean + away * self._kept

    @property
    def _kept(self) -> Tensor:
        """How much of its deviation the draws of each coordinate have, (d,)."""
        spread = torch.tensor(self.variances, dtype=torch.float64).sqrt().clamp(min=1e-300)
        if self.moved is None:
            return torch.ones_like(spread)
        hidden = ~torch.tensor(self.measured, dtype=torch.bool)
        return torch.where(hidden, (self.moved / spread).clamp(1e-9, 1.0), 1.0)

    def whole(self, draws: Tensor) -> Tensor:
        """Return draws, (k, d), with the variances of their intervals.

        >>> one = Gaussian(mean=(1.0,), variances=(25.0,), sites={"w": (1,)}, measured=(False,),
        ...     moved=0.5)
        >>> one.whole(torch.tensor([[1.5]])).tolist()  # one deviation away
        [[6.0]]
        """
        mean = torch.tensor(self.mean, dtype=torch.float64).to(draws)
        return mean + (draws - mean) / self._kept.to(draws)

    def _drawn(self, number: int, key: Key) -> Tensor:
        """Return some of the guide's own draws, in any order."""
        if number > len(self.shape):
            raise ValueError(
                f"draws={number}: the guide is not Gaussian and has {len(self.shape)} draws; "
                f"fit_private(..., route=DPVI(draws={number})) makes more at the same price"
            )
        generator = torch.Generator().manual_seed(int(key) % 2**63)
        every = torch.randperm(len(self.shape), generator=generator, device=HOST)
        chosen = every[:number]
        mean = torch.tensor(self.mean, dtype=torch.float64)
        spread = torch.tensor(self.variances, dtype=torch.float64).sqrt()
        return mean + spread * torch.tensor(self.shape, dtype=torch.float64)[chosen]

    def latents(self, model: Model, flat: Tensor, columns: int) -> dict[str, Tensor]:
        """Return draws as the model's latent variables, each (k, ...).

        Args:
            model: gives their supports, on one record of zeros.
            flat: (k, d).
            columns: number of features of a record.
        """
        from bdpvi.models.traces import transforms  # late: it loads Pyro

        pieces = flat.split([math.prod(shape) for shape in self.sites.values()], dim=1)
        if self.arguments:
            maps = transforms(
                with_features(model, blank(self.arguments, flat)), flat.new_zeros(1, 0)
            )
        else:
            maps = transforms(model, self.typed(flat.new_zeros(1, columns)))
        named = zip(self.sites.items(), pieces, strict=True)
        return {name: maps[name](one.reshape(-1, *shape)) for (name, shape), one in named}

    def typed(self, x: Tensor) -> Tensor:
        """Return features in the type in which the model was trained on them."""
        return x.to(getattr(torch, self.features)) if self.features else x


def _shaped(noise: Tensor, covariance: Tensor) -> Tensor:
    """Return standard normals, (k, d), scaled to this covariance, which may be singular."""
    values, vectors = torch.linalg.eigh(covariance)
    shaped: Tensor = (noise * values.clamp(min=0).sqrt()) @ vectors.T
    return shaped


def _check_covariance(full: Tensor) -> None:
    values = torch.linalg.eigvalsh(full)
    symmetric = bool(((full - full.T).abs() <= REST * full.abs().max()).all())
    if not symmetric or not values[0] >= -REST * max(float(values[-1]), 1e-300):
        raise ValueError("covariance must be symmetric, with eigenvalues of at least 0")


@dataclass(frozen=True, eq=False)
class Output:
    """What a route returns. All but ``rounds`` is public.

    Attributes:
        latents: the model's latent variables, each (k, ...).
        words: what was done to them after noise was added, in a sentence for the receipt.
        estimate: their posterior, if the route separates sampling and privacy noise.
        guide: the posterior of the unconstrained latents, if a guide was trained.
        flat: its draws, (k, d).
        parameters: values of the model's parameters, by name, if it has any.
        rounds: the rounds with norms of reference records; none if there are few. Secret.
    """

    latents: Mapping[str, Tensor]
    words: str = ""
    estimate: Estimate | None = None
    guide: Gaussian | None = None
    flat: Tensor | None = None
    parameters: Mapping[str, Tensor] = field(default_factory=dict)
    rounds: tuple[SampledGaussian, ...] = field(default=(), repr=False)
