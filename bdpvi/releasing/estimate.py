"""A posterior in numbers: what a release knows beyond its draws, where its route knows it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from bdpvi._runtime import secure, validate
from bdpvi._runtime.keys import Key
from bdpvi.accounting.events import SampledGaussian

REST = 1e-9
"""Negative eigenvalues of a covariance that rounding may leave, over the largest."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """N(mean, covariance) of the weights w, sampling and privacy's noise in it. Public.

    Attributes:
        mean: (d,); weights that are left out are 0, with a variance of 0.
        covariance: (d, d).
        sampling: standard deviations that there would be without privacy's noise, (d,).
        log_scale: mean and standard deviation of the logarithm of the targets' noise, or None.
        reliable: whether the approximations behind it hold, by public numbers.
        reason: why not, and what they assume.
        notes: a word on each weight, such as that it is the base level, or "".

    Raises:
        ValueError: if shapes disagree, or the covariance is none.

    >>> one = Estimate(mean=(1.0,), covariance=((0.25,),), sampling=(0.4,), reliable=True)
    >>> one.draws(3)["w"].shape
    torch.Size([3, 1])
    """

    mean: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    sampling: tuple[float, ...]
    log_scale: tuple[float, float] | None = None
    reliable: bool
    reason: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        d, matrix = len(self.mean), self.covariance
        if not self.notes:
            object.__setattr__(self, "notes", ("",) * d)
        parts = (matrix, self.sampling, self.notes, *matrix)
        if not d or any(len(one) != d for one in parts):
            raise ValueError(f"covariance, sampling and notes must be of {d} weights, as mean is")
        full = torch.tensor(matrix, dtype=torch.float64)
        values = torch.linalg.eigvalsh(full)
        symmetric = bool(((full - full.T).abs() <= REST * full.abs().max()).all())
        if not symmetric or not values[0] >= -REST * max(float(values[-1]), 1e-300):
            raise ValueError("covariance must be symmetric, with eigenvalues of at least 0")
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
            key: of the draws; a fresh one by default.
        """
        key = key or Key.fresh()
        values, vectors = torch.linalg.eigh(self.spread)
        noise = secure.standard_normal(
            (validate.positive_int("draws", number), len(self.mean)), key.child("w")
        )
        moved = (noise * values.clamp(min=0).sqrt()) @ vectors.T
        found = {"w": torch.tensor(self.mean, dtype=torch.float64) + moved}
        found["w"][:, self.spread.diagonal() == 0] = 0.0
        if self.log_scale is not None:
            mean, sd = self.log_scale
            found["log_scale"] = mean + sd * secure.standard_normal((number,), key.child("scale"))
        return found


class Drawn(NamedTuple):
    """What a route drew: a posterior, and, secret, what records paid on the way to it.

    Attributes:
        estimate: the posterior, public.
        rounds: the rounds with a panel's norms; none where there are few records.
    """

    estimate: Estimate
    rounds: tuple[SampledGaussian, ...] = ()
