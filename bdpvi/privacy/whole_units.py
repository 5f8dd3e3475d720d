"""Steps whose records are whole units, such as the rows of a hospital: one of them is one unit."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from bdpvi.privacy.events import SampledGaussian


@dataclass(frozen=True, kw_only=True)
class UnitSteps(SampledGaussian):
    """Steps in which all rows of a unit are one record, so that a unit costs what a record does.

    They hide whether all rows of a unit are there. A part of them is not a record, so there is no
    price for other units, nor for rows one after another.

    >>> one = UnitSteps(noise_multiplier=2.0)
    >>> one.for_rows(50) == SampledGaussian(noise_multiplier=2.0)
    True
    """

    whole_units: ClassVar[bool] = True

    @classmethod
    def of(cls, steps: SampledGaussian) -> UnitSteps:
        """Return steps as those of whole units."""
        return cls(**_content(steps))

    def for_rows(self, rows: int) -> SampledGaussian:
        """Return the steps of one record, whatever the number of its rows."""
        if rows == 1:
            return replace(self, norms=None)
        return SampledGaussian(**{**_content(self), "norms": None})


def _content(steps: SampledGaussian) -> dict[str, Any]:
    return {one.name: getattr(steps, one.name) for one in fields(SampledGaussian)}
