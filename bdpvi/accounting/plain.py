"""Events as plain values: numbers, texts, tensors, lists and dictionaries of them.

They can be written by ``torch.save`` and read back with ``weights_only=True``, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from typing import Any

from torch import Tensor

from bdpvi.accounting.composition import Totals
from bdpvi.accounting.conversions import Orders
from bdpvi.accounting.estimators import Estimate
from bdpvi.accounting.events import (
    PosteriorDraws,
    SampledGaussianSteps,
    SubsampledGaussian,
    Tally,
)
from bdpvi.accounting.gaussian_pairs import GaussianPairs
from bdpvi.accounting.panel import Panel

_KIND = "kind of"
_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        PosteriorDraws, SampledGaussianSteps, SubsampledGaussian, Tally, Panel,
        GaussianPairs, Orders, Estimate,
    )
}  # fmt: skip


def to_plain(value: Any) -> Any:
    """Return frozen data of this package as plain values.

    Raises:
        ValueError: if something else is in it, such as an event of a type of your own.

    >>> to_plain((True, 2.0))
    [True, 2.0]
    """
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, (bool, int, float, str, Tensor)):
        return value
    if isinstance(value, (list, tuple)):
        return [to_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {name: to_plain(one) for name, one in value.items()}
    name = type(value).__name__
    if _KINDS.get(name) is not type(value):
        raise ValueError(f"event: a {name} cannot be kept; it must be one of {list(_KINDS)}")
    return {_KIND: name} | {f.name: to_plain(getattr(value, f.name)) for f in fields(value)}


def from_plain(value: Any) -> Any:
    """Return what :func:`to_plain` was given, checked as when it was first made.

    Raises:
        ValueError: if it is of no known kind, or does not hold what its kind needs.
    """
    if isinstance(value, list):
        return tuple(from_plain(one) for one in value)
    if not isinstance(value, dict):
        return value
    parts = {name: from_plain(one) for name, one in value.items()}
    if _KIND not in parts:
        return parts
    kind = _KINDS.get(parts.pop(_KIND))
    try:
        if kind is None:
            raise TypeError(f"{value[_KIND]!r} is none of {list(_KINDS)}")
        return kind(**parts)
    except (TypeError, AttributeError) as error:
        raise ValueError(f"state cannot be read: {error}") from error


def check_settings(state: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raise ValueError unless the accountant that ``state`` is of had these settings.

    >>> check_settings({"settings": {"orders": None}}, {"orders": [1.0]})
    Traceback (most recent call last):
        ...
    ValueError: state is of an accountant with orders=None, not [1.0]; make one with its settings
    """
    kept = state.get("settings")
    if not isinstance(kept, dict):
        raise ValueError(f"state has no settings, got {kept!r:.80}")
    for name, value in settings.items():
        if kept.get(name) != value:
            raise ValueError(
                f"state is of an accountant with {name}={kept.get(name)!r:.80}, not {value!r:.80}; "
                "make one with its settings"
            )


_CHARGED = ("records", "unit", "runs", "taken", "distinct", "rounding", "from_data")
"""What an accountant knows of the events besides their cost."""


class Kept:
    """An accountant whose charged events can be kept as plain values."""

    _totals: Totals

    def _settings(self) -> dict[str, Any]:
        """Return what it was made with, as plain values."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return the charged events, with the settings, as plain values and tensors.

        Secret: it holds what every record costs, and its file has no hash chain as a ledger has.
        ``torch.save`` writes it; ``torch.load(..., weights_only=True)`` reads it.

        Raises:
            ValueError: if an event is of a type of your own.
        """
        sums = {"events": self._totals.events, "states": self._totals.states}
        charged = {name: getattr(self, f"_{name}") for name in _CHARGED}
        return {"settings": self._settings(), **to_plain(sums | charged)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what :meth:`state_dict` has returned, for the same ε bit for bit.

        Raises:
            ValueError: if it is of an accountant with other settings, or cannot be read.
        """
        check_settings(state, self._settings())
        try:
            events = [(from_plain(one), int(count)) for one, count in state["events"]]
            states = from_plain(state["states"])
            charged = {f"_{name}": from_plain(state[name]) for name in _CHARGED}
        except (KeyError, TypeError) as error:
            raise ValueError(f"state cannot be read: {error!r}") from error
        self._totals.events, self._totals.states = events, states
        vars(self).update(charged)
