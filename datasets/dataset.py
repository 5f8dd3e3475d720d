"""Records with their ids, in memory or in blocks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi._ground.outputs import several
from bdpvi._ground.types import tell_owner
from bdpvi.datasets.items import Items, of_arrow
from bdpvi.datasets.origin import declared
from bdpvi.datasets.records import Held, Records, Spread
from bdpvi.datasets.records import People as People

_IDS = 2**28


@dataclass(frozen=True, eq=False)
class Dataset:
    """A table of records.

    Each record with a number that is not finite is left out, and the owner is told how many: no
    record decides whether there is a data set. Targets that are invalid for a model are left out
    later, by fits and releases.

    Attributes:
        x: features, (N, d).
        y: targets, (N,), or any shape per record that the model accepts.
        ids: record ids, (N,) int64, unique; by default the positions among the given records. Every
            selection keeps them, so that a record's costs add up over training runs.
        feature_names: d names.
        name: name of the data in tables and reports.
        preprocessing: how raw columns became ``x``. It counts as public; reports list it. Without
            it receipts state the condition that ``x`` was made without reading the table.
            ``{"declared": {"features": "ages over 100"}}`` declares how, from public constants.
        people: the people of these records; a selection keeps them.
        weights: how often each record counts, from 0 to 1, (N,); None for once.

    Warns:
        PrivacyUtilityWarning: if records are left out, with their number. For the owner only.

    Raises:
        ValueError: if lengths differ, or ids repeat, are negative or 2²⁸ or more.

    >>> data = Dataset(torch.zeros(3, 2), torch.tensor([0.0, 1.0, 1.0]))
    >>> len(data), data.without(1).ids.tolist()
    (3, [0, 2])
    """

    x: Tensor = field(repr=False)
    y: Tensor = field(repr=False)
    ids: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64), repr=False)
    feature_names: tuple[str, ...] = field(default=(), repr=False)
    name: str = "data"
    preprocessing: Mapping[str, Any] = field(default_factory=dict, repr=False)
    people: People = field(default_factory=People, repr=False)
    weights: Tensor | None = field(default=None, repr=False)
    items: ClassVar[None] = None

    @property
    def ledger(self) -> Any:
        """The :class:`bdpvi.privacy.ledger.Ledger` of everything spent on the table."""
        return self.people.of(self.some)

    def some(self) -> tuple[Tensor, ...]:
        """Records by which the table is known again: features and targets."""
        return self.x, self.y

    def __post_init__(self) -> None:
        if self.x.ndim != 2:
            raise ValueError(
                f"x must have shape (records, features), got {tuple(self.x.shape)}; "
                "a single feature is x[:, None]"
            )
        validate.same_length("y", self.y, "x", self.x)
        if len(self.ids) == 0:
            object.__setattr__(self, "ids", torch.arange(len(self.x), device=self.x.device))
        if not self.feature_names:
            names = tuple(f"x{j}" for j in range(self.x.shape[1]))
            object.__setattr__(self, "feature_names", names)
        validate.same_length("ids", self.ids, "x", self.x)
        if len(self.feature_names) != self.x.shape[1]:
            raise ValueError(
                f"feature_names has {several(len(self.feature_names), 'name')} for "
                f"{several(self.x.shape[1], 'column')}"
            )
        validate.every("ids", self.ids, self.ids >= 0, "be at least 0")
        if len(self.ids) and int(self.ids.max()) >= _IDS:
            raise ValueError(
                f"ids must be below {_IDS}, got {int(self.ids.max())}: every number up to the "
                "largest gets a coin in each batch, so number the records from 0"
            )
        if len(torch.unique(self.ids)) != len(self.ids):
            raise ValueError("ids must be unique: a record would be charged twice as two records")
        if self.weights is not None:
            from bdpvi.datasets.weights import shares_of  # late: few records have any

            validate.same_length("weights", self.weights, "x", self.x)
            object.__setattr__(self, "weights", shares_of(self.weights))
        if not all(one.sum().isfinite() for one in self._tensors.values()):  # mostly all are
            good = self.x.isfinite().all(dim=1)
            for one in self._tensors.values():
                good &= one.isfinite().reshape(len(self), -1).all(dim=1).to(good.device)
            for name, value in self._tensors.items():
                object.__setattr__(self, name, value[good.to(value.device)])
            tell_owner(int((~good).sum()), "record", "a value is not finite")

    @property
    def _tensors(self) -> dict[str, Tensor]:
        """What there is of each record, by the names of the attributes."""
        every = {name: getattr(self, name) for name in ("x", "y", "ids", "weights")}
        return {name: one for name, one in every.items() if one is not None}

    @property
    def weighted(self) -> bool:
        """Whether records have weights."""
        return self.weights is not None

    @classmethod
    def of(
        cls,
        x: Any,
        y: Any,
        *,
        feature_names: Sequence[str] | None = None,
        name: str = "data",
        weights: Any = None,
        largest_weight: float | None = None,
        unit: Any = None,
        rows_per_unit: int = 1,
    ) -> Dataset:
        """Return the records of arrays, frames of any library, tensors or lists of numbers.

        Columns of text and dates are refused: :func:`bdpvi.datasets.from_frame` encodes them. Each
        record with a number that is not finite is left out, and the owner is told how many.

        Args:
            x: features, (N, d).
            y: targets, (N,): 0 and 1, booleans, or whatever the model accepts. If x and y are both
                pandas objects, they must have the same index.
            feature_names: d names; by default the column names of a frame. They are published.
            name: name of the data in tables and reports.
            weights: sampling weights, (N,). A record without one of at least 0 is left out.
            largest_weight: public; larger weights count as it.
            unit: the person of each row, (N,), or the name of their column in ``x``, so that a
                worst-case ε is for all rows of a person; ``bdpvi.tables.Unit()``: each has one row.
            rows_per_unit: the most rows used of each person, the first ones.

        Raises:
            ValueError: naming what is not numeric or has a wrong shape; and as :class:`Dataset`.

        >>> data = Dataset.of([[20.0, 1.0], [30.0, 0.0]], [True, False], feature_names=["a", "b"])
        >>> data.x.dtype, data.y.tolist(), data.feature_names
        (torch.float64, [1.0, 0.0], ('a', 'b'))
        """
        if hasattr(x, "loc") and hasattr(y, "loc") and not x.index.equals(y.index):
            raise ValueError("y has another index than x: their rows may differ; y.loc[x.index]?")
        people, said = None, dict[str, str]()
        if unit is not None or rows_per_unit != 1:
            from bdpvi.datasets.units import of_people  # late: it loads pandas

            (x, y, weights), people, said = of_people((x, y, weights), unit, rows_per_unit)
        x, y = of_arrow(x), of_arrow(y)
        names = getattr(x, "columns", ()) if feature_names is None else feature_names
        texts = tuple(str(one).strip() for one in names)
        if len(set(texts)) < len(texts):
            twice = next(text for text in texts if texts.count(text) > 1)
            raise ValueError(f"feature_names must differ, got {twice!r} more than once")
        targets = validate.numbers("y", y)
        if targets.ndim != 1:
            raise ValueError(
                f"y must have shape (records,), got {tuple(targets.shape)}; a column is y[:, 0]"
            )
        from bdpvi.datasets.weights import given_weights  # late: few records have any

        given = given_weights(of_arrow(weights), largest_weight)
        made = cls(validate.numbers("x", x), targets, feature_names=texts, name=name, **given)
        noted = declared(made.preprocessing, said)
        return replace(made, people=people or made.people, preprocessing=noted)

    def __len__(self) -> int:
        return len(self.x)

    @property
    def parts(self) -> Held[tuple[Tensor, ...]]:
        """Features, targets and, if there are any, weights, to be summed."""
        return Held((self.x, self.y, *(() if self.weights is None else (self.weights,))))

    @property
    def like(self) -> tuple[Tensor, Tensor]:
        """Features and target of one record of ones, which is nobody's."""
        return self.x.new_ones(1, self.x.shape[1]), self.y.new_ones(1, *self.y.shape[1:])

    @property
    def made_up(self) -> Dataset:
        """Two made-up records of the same form, of people of their own."""
        x, y = (torch.cat([torch.zeros_like(one), one]) for one in self.like)
        ids = torch.arange(2, device=x.device)
        return replace(self, x=x, y=y, ids=ids, people=People(), weights=None)

    def select(self, index: Tensor) -> Dataset:
        """Return the records at ``index`` (positions or a boolean mask), with their ids."""
        chosen: Any = {name: one[index] for name, one in self._tensors.items()}
        return replace(self, **chosen)

    def taking(self, takes: Callable[..., Tensor] | None) -> Dataset:
        """Return the records that ``takes(x, y)``, (N,), accepts; tell the owner of the others."""
        good = None if takes is None or not len(self) else takes(self.x, self.y)
        if good is None or bool(good.all()):
            return self
        why = "a target or an exposure is outside the range of the model"
        tell_owner(int((~good).sum()), "record", why, 4)
        return self.select(good)

    def without(self, record_id: int) -> Dataset:
        """Return the leave-one-out neighbour: the data without record ``record_id``."""
        keep = self.ids != record_id
        if bool(keep.all()):
            raise ValueError(f"record_id={record_id} is not among the ids of {self.name}")
        return self.select(keep)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = torch.float64) -> Dataset:
        """Return the data on ``device``; features and targets become ``dtype``, if it is given."""
        moved: Any = {n: one.to(device, dtype) for n, one in self._tensors.items() if n != "ids"}
        return replace(self, ids=self.ids.to(device), **moved)

    def of_people(self, people: People) -> Dataset:
        """Return the data as records of these people, with their ledger."""
        return replace(self, people=people)

    def fingerprint(self) -> str:
        """Return a SHA-256 digest of the records in the order of their ids. Not for publication."""
        order = torch.argsort(self.ids.cpu())
        digest = hashlib.sha256()
        for values in (self.ids, *(one.double() for one in self.parts.part)):
            digest.update(values.cpu()[order].contiguous().numpy().tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class BlockData:
    """Encoded records of a table in blocks: as a :class:`Dataset`, but only a block is in memory.

    Attributes:
        parts: the records, each part features (n, d), targets and, if ``weighted``, weights (n,).
        records: N.
        feature_names, name, preprocessing, people: as of a :class:`Dataset`.
        items: the same records by index, if they are read by it; see :mod:`bdpvi.datasets.items`.
    """

    parts: Records[tuple[Tensor, ...]] = field(repr=False)
    records: int = field(repr=False)
    feature_names: tuple[str, ...] = field(repr=False)
    name: str
    preprocessing: Mapping[str, Any] = field(repr=False)
    people: People = field(repr=False)
    items: Items | None = field(default=None, repr=False)
    weighted: bool = False

    @property
    def ledger(self) -> Any:
        """As of a :class:`Dataset`."""
        return self.people.of(self.some)

    def some(self) -> tuple[Tensor, ...]:
        """As of a :class:`Dataset`: those that are read first."""
        if self.items is not None:
            return self.items.some()
        return self.parts.first()

    @property
    def like(self) -> tuple[Tensor, ...]:
        """As of a :class:`Dataset`; of records by index, each of their tensors."""
        if self.items is not None:
            return self.items.like
        one = torch.ones(1, len(self.feature_names), dtype=torch.float64)
        return one, torch.ones(1, dtype=torch.float64)

    def __len__(self) -> int:
        return self.records

    @classmethod
    def of_items(cls, source: Any, name: str = "data") -> BlockData:
        """Return records that are read by index, each features (d,) and a target.

        An attribute ``preprocessing`` of the source is theirs.

        Raises:
            ValueError: if an item is no such pair; the first is looked at.

        >>> from torch.utils.data import TensorDataset
        >>> data = BlockData.of_items(TensorDataset(torch.ones(5, 2), torch.ones(5)))
        >>> len(data), data.feature_names, data.parts.sum(lambda part: int(part[0].sum()))
        (5, ('x0', 'x1'), 10)
        """
        items = Items.of(source)
        if len(items.like) != 2 or items.like[0].ndim != 2:
            shapes = ", ".join(str(tuple(one.shape[1:])) for one in items.like)
            raise ValueError(
                f"data has records of the shapes {shapes}; make each a pair (x, y) of features "
                "(d,) and a target"
            )
        names = tuple(f"x{j}" for j in range(items.like[0].shape[1]))
        noted = getattr(source, "preprocessing", {})
        return cls(Spread(items.blocks), len(items), names, name, noted, People(), items)

    @property
    def made_up(self) -> BlockData:
        """As of a :class:`Dataset`."""
        from torch.utils.data import TensorDataset  # late: few records are read by index

        rows = [torch.cat([torch.zeros_like(one), one]) for one in self.like]
        made = replace(self, parts=Held((rows[0], rows[-1])), records=2, people=People())
        if self.items is None:
            return made
        items = replace(self.items, source=TensorDataset(*rows), takes=None)
        return replace(made, items=items, parts=Spread(items.blocks))

    def taking(self, takes: Callable[..., Tensor] | None) -> BlockData:
        """Return records by index without those that ``takes(x, y)`` refuses when they are read.

        The records of blocks are those that the encoding accepts.
        """
        if self.items is None or takes is None:
            return self
        items = replace(self.items, takes=takes)
        return replace(self, items=items, parts=Spread(items.blocks))

    def to(self, dtype: torch.dtype) -> BlockData:
        """Return the records as ``dtype``, without those in which it has no finite number."""
        if dtype == torch.float64:
            return self
        parts: Any = self.parts.map(_rounded, dtype)
        kept = parts.sum(_number)
        tell_owner(self.records - kept, "record", f"a value is not finite as {dtype}")
        return replace(self, parts=parts, records=kept)

    def fingerprint(self) -> str:
        """Return a SHA-256 digest of the records, by one pass. Not for publication."""
        from bdpvi.datasets.digests import of_tensors  # late: few ask for it

        digest = hashlib.sha256()
        for each in self.parts.each(of_tensors):
            digest.update("".join(each).encode())
        return digest.hexdigest()


def _rounded(part: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    x, y = (one.to(dtype) for one in part)
    good = x.isfinite().all(1) & y.isfinite()
    return x[good], y[good]


def _number(part: tuple[Tensor, ...]) -> int:
    return len(part[0])


Data = Dataset | BlockData
"""Encoded records, in memory or in blocks."""


def sample_of_form(data: Data) -> Dataset:
    """Return the records for a check of their form: of those in blocks a record of ones."""
    if isinstance(data, Dataset):
        return data
    x, y = data.like
    return Dataset(x, y)


def in_arrays(data: object) -> dict[str, Tensor]:
    """Return all records on the host, if they are in memory, by the names the owner knows.

    >>> from torch.utils.data import TensorDataset
    >>> [*in_arrays(BlockData.of_items(TensorDataset(torch.ones(5, 2), torch.ones(5))))]
    ['x', 'y']
    """
    if isinstance(data, Dataset):
        return {"x": data.x.detach().cpu(), "y": data.y.detach().cpu()}
    items = getattr(data, "items", None)
    found = getattr(getattr(items, "source", data), "tensors", ())
    names = getattr(items, "names", ()) or ("x", "y")
    return dict(zip(names, found, strict=False))


@dataclass(frozen=True, eq=False)
class Split:
    """Training and test records of one table, with disjoint ids."""

    train: Dataset
    test: Dataset

    def trained_on(self, device: torch.device) -> Split:
        """Return the same records, those for training on a device, the others on the host."""
        return Split(self.train.to(device), self.test.to("cpu"))
