"""What can be charged: a description that answers every question of the ledger and accountants.

A mechanism derives a frozen dataclass from :class:`Event`, in a file of its own with its
mathematics, and adds its name to :data:`MODULES`, from which a ledger reads it back. No accountant
knows a mechanism: it asks the event in which form its loss is known. Forms are the ways in which
privacy losses compose:

- a Gaussian mechanism that is no more private, by its μ² (:attr:`Event.squared_distance`);
- a share of δ that is fixed (:attr:`Event.delta`);
- :data:`SAMPLED`: a distribution of the loss, of a run of sensitivity 1 (:attr:`Event.run`);
- :data:`PERTURBED`: a bound on δ at every ε, which moves to a lattice (:attr:`Event.loss`);
- :data:`MOMENTS`: log-moments at every order (:meth:`Event.log_moment`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi._ground.types import Relation
from bdpvi.privacy.assumptions import Assumption
from bdpvi.privacy.conversions import Orders

if TYPE_CHECKING:
    from typing_extensions import Self

WITH, WITHOUT = "D‖D′", "D′‖D"
"""The directions of a divergence: of the data from the neighbour, and the reverse."""
SAMPLED, PERTURBED, MOMENTS = (
    "privacy loss distribution",
    "objective perturbation",
    "Rényi divergences",
)
MODULES = {
    "SampledGaussian": "bdpvi.privacy.events",
    "ExponentialMechanism": "bdpvi.privacy.events",
    "Threshold": "bdpvi.privacy.events",
    "UnitSteps": "bdpvi.privacy.whole_units",
    "PerturbedObjective": "bdpvi.privacy.perturbed_objective",
    "ModeDraws": "bdpvi.privacy.mode_draws",
}
"""Where the events of a ledger are, by the names of their classes; a module is read when needed."""


class Event:
    """A frozen description of a charge.

    Attributes:
        relation, unit: how neighbouring data sets differ.
        delta: δ that it costs in any case, for all rows of a unit.
        rounding: total variation between the release and the exact one that is priced; see
            :mod:`bdpvi.bayesian.neighbours.rounding`.
        group_only: whether several rows of a unit have only the price of group privacy, for all
            events together (:func:`bdpvi.privacy.groups.row_by_row`).
        whole_units: whether all rows of a unit are one record, and a part has no price.
        what: why it has no price for several rows, in words.
        losses: how records' own losses are known: "pairs" of Gaussians, "counts" of steps at
            levels; "" for log-moments alone.
    """

    relation: Relation = Relation.ADD_OR_REMOVE
    unit: str = "record"
    delta: float = 0.0
    rounding: float = 0.0
    group_only: ClassVar[bool] = False
    whole_units: ClassVar[bool] = False
    what: ClassVar[str] = "a charge has no known cost"
    losses: ClassVar[str] = ""

    @property
    def form(self) -> str:
        """The form in which its loss is known; "" if it is Gaussian, or δ alone."""
        return ""

    @property
    def squared_distance(self) -> float | None:
        """μ² of a Gaussian mechanism no more private; 0 if another form or δ alone is its price;
        None if nothing bounds a record."""
        return None

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """What its price assumes."""
        return ()

    @property
    def records(self) -> Mapping[str, Tensor]:
        """The ids of the reference records, (m,), by direction, such as "remove D‖D′".

        Costs of several events add up record by record, so all events of one relation share the
        names of directions and the records.
        """
        return {}

    @property
    def orders(self) -> Orders | None:
        """The only orders λ at which its cost to records is known; None if at every λ > 0."""
        return None

    @property
    def on_path(self) -> bool:
        """Whether its costs to records were observed on the path of a training run."""
        return False

    @property
    def run(self) -> Any:
        """Its steps as those of sensitivity 1, of the form :data:`SAMPLED`."""
        raise TypeError(f"it has no loss distribution: {self!r}")

    @property
    def loss(self) -> Any:
        """The loss of one of its draws, of the form :data:`PERTURBED`."""
        raise TypeError(f"it has no bound on its loss: {self!r}")

    def log_moment(self, order: Tensor, direction: str) -> Tensor:
        """Return λ D_{λ+1} of any conceivable record, (K,), of the form :data:`MOMENTS`."""
        raise TypeError(f"it has no log-moments: {self!r}")

    def cost(self, direction: str, order: Tensor) -> Tensor:
        """Return its log-moments λ D_{λ+1} for each of :attr:`records`, (K, m).

        Args:
            direction: one of :attr:`records`.
            order: λ (K,), among :attr:`orders` if it has any. +inf where the divergence is.
        """
        raise TypeError(f"event has no cost for single records: {self!r}")

    def panel(self, direction: str) -> Any:
        """Return the panel of reference records in one direction; None if there is none."""
        return None

    def error(self, direction: str) -> Tensor | None:
        """Return each record's total variation between it and the priced one, (m,), if any."""
        return None

    def for_rows(self, rows: int) -> Event:
        """Return it as it counts for a unit of several rows.

        Raises:
            ValueError: if no formula prices it.
        """
        if rows > 1:
            raise ValueError(f"rows_per_unit={rows}: {self.what} for {rows} rows per unit")
        return self

    def times(self, count: int) -> tuple[Event, ...]:
        """Return events of the same cost as ``count`` of these."""
        return (self,) * count

    def total(self) -> Any:
        """Return a sum of events that are alike, with this one's ``key``; None if none are."""
        return None

    def with_noise(self, scale: float) -> Self:
        """Return it with ``scale`` times the noise, if it has any."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON types, without what the worst case does not need."""
        content = {one.name: getattr(self, one.name) for one in fields(self)}  # type: ignore[arg-type]
        return {"event": type(self).__name__, **content}


def read_event(content: Mapping[str, Any]) -> Event:
    """Return the event that :meth:`Event.to_dict` wrote.

    Raises:
        ValueError, KeyError, TypeError: if it is anything else.
    """
    name = validate.choice("event", content["event"], MODULES)
    result: Event = getattr(import_module(MODULES[name]), name)(
        **{name: value for name, value in content.items() if name != "event"}
    )
    return result


def for_unit(events: Mapping[Event, int], rows: int = 1) -> Iterator[Event]:
    """Yield events as they count for a unit of several rows, each repeated by its count.

    Args:
        events: with how often each was charged.
        rows: k, the rows of one unit.

    Raises:
        ValueError: if a unit has several rows and no formula prices an event.
    """
    for one, count in events.items():
        yield from one.for_rows(rows).times(count)


def neighbours_of(events: Iterable[Event]) -> dict[str, Any]:
    """Return the relation and the unit of all events; ValueError if they differ."""
    found = {(event.relation.value, f"one {event.unit}") for event in events}
    if len(found) > 1:
        named = ", ".join(sorted(" ".join(one) for one in found))
        raise ValueError(f"events: they are for different neighbours: {named}")
    relation, unit = found.pop() if found else (Event.relation.value, f"one {Event.unit}")
    return {"relation": relation, "unit": unit}


def check_same_records(before: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless events have the same directions and the same records."""
    if set(before) != set(now):
        raise ValueError(f"event: has directions {sorted(now)}, not {sorted(before)}")
    for name, ids in now.items():
        if not torch.equal(ids, before[name]):
            raise ValueError(
                f"event: its record ids in {name!r} differ from the ids of earlier events"
            )
