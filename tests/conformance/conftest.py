"""Doors that were gone through once, for all laws."""

from __future__ import annotations

from gone import door, ran, went

__all__ = ["door", "ran", "went"]
