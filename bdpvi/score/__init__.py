"""Scores in production: a release's predictions by NumPy and the standard library alone.

The folder of this package imports nothing else of bdpvi, so it can be copied into a service.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .scorer import Scorer, load

__all__ = ["Scorer", "load"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import scorer

    return getattr(scorer, name)


def __dir__() -> list[str]:
    return __all__
