"""The noise, the rate and the clip of a training, from public numbers alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from bdpvi.noise import secure
from bdpvi.privacy.dominating import steps_within
from bdpvi.privacy.event import Event
from bdpvi.privacy.events import SampledGaussian, Threshold
from bdpvi.privacy.gaussian import largest_variance
from bdpvi.privacy.whole_units import UnitSteps
from bdpvi.programs.descent import GradientClip
from bdpvi.programs.settings import Settings

if TYPE_CHECKING:
    from bdpvi.releases.route import Allowance

_BATCH, _PASSES = 500, 5
"""The default expected batch size: at least ``_BATCH``, and enough for ``_PASSES`` passes."""
_SHARE = 0.1
"""β, the share of the count that adapts the clip: it costs the gradient half a percent."""
_LONGER = 10.0
"""Share of records beyond C, over √D/(μN), at which noise and clipping do about equal harm."""
_WANDER = 0.02
"""Change of log C in a step by a count's noise alone: C then stays within a factor of 2 or so."""
_SPARE = 0.05
"""Share of δ for the cost of sampled steps beyond a Gaussian mechanism."""


@dataclass(frozen=True, kw_only=True)
class DPVIPlan:
    """Public settings of a training.

    Attributes:
        event: the charged Gaussian mechanism or steps.
        run: the actual steps; None if they are ``event``.
        clip: the rule for C.
        size: D, number of coordinates of a record's gradient.
        spare: the additional δ that is charged.
        together: the most records that one unit has.
        units: whether each record is all rows of a unit.
    """

    event: SampledGaussian
    clip: GradientClip
    size: int
    run: SampledGaussian | None = None
    spare: float = 0.0
    together: int = 1
    units: bool = False

    @classmethod
    def of(
        cls,
        settings: Settings,
        size: int,
        left: Allowance,
        units: bool = False,
        usual: float | None = None,
    ) -> DPVIPlan:
        """Return the settings, if a record's gradient has ``size`` coordinates.

        With ``usual``, a norm of which the gradients of most records are at most twice, C starts
        there, and stays where noise would hide how many are longer.
        """
        assert settings.rows is not None
        left = left._replace(rows=1) if units else left
        variance = largest_variance(left.epsilon, left.delta) - left.variance
        batch = settings.batch or max(_BATCH, _PASSES * settings.rows / settings.steps)
        rate = min(1.0, batch / settings.rows)
        distance = math.sqrt(variance) / left.rows  # of one row
        longer = min(0.5, _LONGER * math.sqrt(size) / (distance * settings.rows))
        follows = settings.clip is None and (usual is None or longer < 0.5)
        noise = rate * math.sqrt(settings.steps) / distance
        clip = GradientClip(
            bound=settings.clip or usual or math.sqrt(size),
            longer=longer,
            share=_SHARE * follows,
            pace=_WANDER * _SHARE * rate * settings.rows / noise,
            batch=rate * settings.rows,
        )
        whole = size + follows
        event = SampledGaussian(
            noise_multiplier=noise,
            rate=rate,
            steps=settings.steps,
            rounding=settings.steps * secure.sum_rounding(whole),
        )
        made = cls(event=event, clip=clip, size=whole, together=left.rows, units=units)
        if not left.variance:
            return made
        price = SampledGaussian(noise_multiplier=1 / distance, rounding=event.rounding)
        return replace(made, event=price, run=event, spare=_SPARE * left.delta)

    @property
    def events(self) -> tuple[Event, ...]:
        """The charged events."""
        event = UnitSteps.of(self.event) if self.units else self.event
        return (event, Threshold(self.spare)) if self.spare else (event,)

    @cached_property
    def actual_event(self) -> SampledGaussian:
        """All its steps, with their actual noise."""
        if self.run is None:
            return self.event
        return steps_within(self.run, self.event, self.spare, self.together)

    def with_noise(self, noise_multiplier: float) -> DPVIPlan:
        """Return the settings with another noise multiplier."""
        return replace(self, event=replace(self.event, noise_multiplier=noise_multiplier))
