"""Sums over the records of a table, in memory or block by block.

A release needs nothing of the rows but sums of small arrays: counts, gradients, second derivatives.
``records.sum(f, *public)`` is the sum of ``f(block, *public)`` over all blocks, added in pairs in
the order of the blocks, so that it is equal to the bit for any number of workers. The engine is any
:class:`concurrent.futures.Executor`: a pool of processes, or Dask's ``client.get_executor()``.
Workers see rows and public arguments, never keys or noise. They belong to :class:`People`.
"""

from __future__ import annotations

import pickle
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, Protocol, TypeVar, cast

if TYPE_CHECKING:  # settings need not load bars
    from bdpvi._ground.progress import Track
    from bdpvi._ground.types import Budget

T = TypeVar("T")
S = TypeVar("S")
_AHEAD = 32
NAMELESS = "unit"
"""The unit of privacy of persons who are given as an array."""


class Part(Protocol):
    """A part of a table that can be sent to a worker and read there."""

    @property
    def name(self) -> str:
        """The block in words, for errors."""

    def read(self) -> Iterator[Any]:
        """Yield its rows, a few at a time."""


@dataclass(eq=False, repr=False)
class People:
    """The people in one table: everything computed from their records is charged to one ledger.

    Attributes:
        kept: the ledger, a :class:`bdpvi.privacy.ledger.Ledger`, once there is one.
        unit, rows_per_unit: the unit of privacy: a row, or a value of this column; and the most
            rows that one unit has.
        are_records: whether each record is all rows of a unit.
    """

    kept: Any = None
    unit: str = field(default="row", kw_only=True)
    rows_per_unit: int = field(default=1, kw_only=True)
    are_records: bool = field(default=False, kw_only=True)
    _own: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.kept is not None:
            self.kept.check_unit(self.unit)

    @property
    def ledger(self) -> Any:
        """The ledger; one in memory if there is none yet."""
        if self.kept is None:
            # Late: ledgers stand above records, and hold nothing of them.
            made = import_module("bdpvi.privacy.ledger").Ledger
            self.kept = self._own = made(unit=self.unit, rows_per_unit=self.rows_per_unit)
        return self.kept

    def of(self, parts: Callable[[], Sequence[Any]]) -> Any:
        """Return the ledger; if none was given, joined to others of these rows in this process."""
        if self.ledger is self._own and self.kept.process is None:
            self.kept.join(*parts())
        return self.kept

    def share(
        self,
        ledger: Any,
        budget: Budget | None = None,
        parts: Callable[[], Sequence[Any]] = tuple,
    ) -> None:
        """Charge this ledger from now on, which names persons that have no name; None is their own.

        Raises:
            ValueError: if another ledger has charges, or the ledger has another budget or unit.
        """
        if ledger is not None and self.kept not in (None, ledger):
            own = self.kept.book()
            if ledger.id != own.id and own.entries:
                raise ValueError(
                    f"ledger={ledger.path or 'in memory'}: this table has one already, "
                    f"{self.kept.path or 'in memory'}, and {self.kept.history()}. One table has "
                    "one ledger: leave it out, or give it where the table is read"
                )
        self.kept = ledger or self.of(parts)
        if self.unit == NAMELESS and self.kept.unit != "row":
            self.unit = self.kept.unit
        given = {"unit": self.unit, "rows_per_unit": self.rows_per_unit}
        self.kept.settle(budget=budget, **given)


@dataclass(frozen=True, eq=False)
class Held(Generic[T]):
    """Records in memory, of which sums are needed: a single part.

    >>> Held([1, 2, 3]).map(len).sum(lambda n, more: n + more, 10)
    13
    """

    in_memory: ClassVar[bool] = True
    blocks: ClassVar[int] = 1

    part: T

    def check(self) -> None:
        """Do nothing: rows in memory stay as they are."""

    def map(self, f: Callable[..., S], *public: Any) -> Held[S]:
        """Return the records as ``f`` makes them, each part ``f(part, *public)``."""
        return Held(f(self.part, *public))

    def thinned(self, step: int) -> Held[T]:
        """Do :meth:`Spread.thinned`: the first block is all."""
        return self

    def first(self) -> T:
        """Return the records that are read first: here all."""
        return self.part

    def rows(self) -> Iterator[T]:
        """Yield the records a few at a time, in order: here all."""
        yield self.part

    def each(self, f: Callable[..., S], *public: Any) -> Iterator[S]:
        """Yield the sum of every block, in order."""
        yield f(self.part, *public)

    def sum(self, f: Callable[..., S], *public: Any) -> S:
        """Return the sum of ``f(part, *public)``: arrays, or tuples and dictionaries of arrays."""
        return f(self.part, *public)


@dataclass(frozen=True, eq=False)
class Spread(Generic[T]):
    """Records in blocks, each read when it is needed, by workers if there are any.

    Attributes:
        parts: the blocks, at least one.
        steps: functions, with their public arguments, that make records of a block's rows.
        executor: the workers; None for this process.
        track: shows the progress of every sum; None for nothing.
        what: what the sums are for, for the progress bar.
        ahead: number of blocks handed to an executor at once: what is in memory does not grow with
            blocks.
        seen: by block, the digest of the first pass, for all passes over the same table.

    Raises:
        ValueError: naming the block that cannot be read, or has changed, or has other rows than in
            the first pass, or on which a function failed; or if workers ended, have another version
            of this library, or cannot be sent the function. Sums draw nothing, so the same work
            goes on when its cause is removed.

    >>> class Rows:
    ...     def __init__(self, *rows: int) -> None:
    ...         self.rows, self.name = rows, f"rows {rows}"
    ...     def read(self):
    ...         yield from self.rows
    >>> Spread((Rows(1, 2), Rows(3))).map(pow, 2).sum(lambda row: {"all": row})
    {'all': 14}
    """

    in_memory: ClassVar[bool] = False

    parts: Sequence[Part]
    steps: tuple[tuple[Callable[..., Any], tuple[Any, ...]], ...] = ()
    executor: Executor | None = None
    track: Track[Any] | None = field(default=None, repr=False)
    what: str = "blocks"
    ahead: int = _AHEAD
    seen: dict[str, int] = field(default_factory=dict, repr=False)

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return len(self.parts)

    def map(self, f: Callable[..., S], *public: Any) -> Spread[S]:
        """Do :meth:`Held.map`: ``f`` is applied in every sum, so that nothing is kept in memory."""
        return cast("Spread[S]", replace(self, steps=(*self.steps, (f, public))))

    def first(self) -> T:
        """Return the records of the first block that are read first."""
        return _apply_steps(next(iter(self.parts[0].read())), self.steps)  # type: ignore[no-any-return]

    def rows(self) -> Iterator[T]:
        """Do :meth:`Held.rows`, in this process, and check what was read as sums do."""
        from bdpvi.datasets import digests  # late: settings add nothing up

        for block in self.parts:
            digest = 0
            try:
                for part in block.read():
                    digest += digests.of(part)
                    yield _apply_steps(part, self.steps)
            except Exception as error:
                _raise_block_error(block, error)
            self._same(block, None, digest)

    def thinned(self, step: int) -> Spread[T]:
        """Return the records of every ``step``-th block."""
        return replace(self, parts=self.parts[::step])

    def check(self) -> None:
        """Read the first block again, before a charge, unless it is of a file, which is watched.

        Raises:
            ValueError: if it has other rows than in the first pass.
        """
        if not hasattr(self.parts[0], "file"):
            replace(self, parts=self.parts[:1], steps=(), track=None).sum(len)

    def sum(self, f: Callable[..., S], *public: Any) -> S:
        """Do :meth:`Held.sum`."""
        return in_pairs(self.each(f, *public))  # type: ignore[no-any-return]

    def each(self, f: Callable[..., S], *public: Any) -> Iterator[S]:
        """Yield the sum of every block, in order."""
        steps = (*self.steps, (f, public))
        task = partial(_sum_of, steps=steps, made_by=version("bdpvi"))
        sent = partial(_sum_in_worker, steps=steps, made_by=version("bdpvi"))
        turns = iter(self.parts if self.track is None else self.track(self.parts, self.what))
        if self.executor is None:
            for block in turns:
                try:
                    found = task(block)
                except Exception as error:
                    _raise_block_error(block, error)
                yield self._same(block, *found)
            return
        waiting: deque[tuple[Part, Future[tuple[S, int]]]] = deque()
        try:
            for block in turns:
                waiting.append((block, self._send(sent, block)))
                if len(waiting) >= self.ahead:
                    first = waiting.popleft()
                    yield self._same(first[0], *_result(*first))
            while waiting:
                first = waiting.popleft()
                yield self._same(first[0], *_result(*first))
        finally:
            for _, future in waiting:
                future.cancel()

    def _same(self, block: Part, found: S, digest: int) -> S:
        """Return the sum of a block, if its rows are those of the first pass."""
        if self.seen.setdefault(block.name, digest) != digest:
            raise ValueError(
                f"{block.name}: it has other rows than in an earlier pass, and each pass must read "
                "the same ones; give what draws its rows a fixed seed, or write them to files and "
                "give those"
            )
        return found

    def _send(self, task: Callable[[Part], S], block: Part) -> Future[S]:
        assert self.executor is not None
        try:
            return self.executor.submit(task, block)
        except Exception as error:
            _raise_block_error(block, error)


Records = Held[T] | Spread[T]
"""Records of which sums are needed."""


def in_pairs(results: Iterable[Any]) -> Any:
    """Return the sum of at least one result, each of which is in at most :func:`depth` additions.

    >>> in_pairs(range(10))
    45
    """
    held: list[tuple[int, Any]] = []
    for one in results:
        level = 0
        while held and held[-1][0] == level:
            one, level = sum_of_results(held.pop()[1], one), level + 1
        held.append((level, one))
    if not held:
        raise ValueError("it yields no rows; an iterator can be read once, and each pass reads it")
    total = held.pop()[1]
    while held:
        total = sum_of_results(held.pop()[1], total)
    return total


def depth(number: int) -> int:
    """Return the most additions that one of so many results of :func:`in_pairs` is in.

    >>> depth(1), depth(2), depth(1000)
    (0, 2, 10)
    """
    return number.bit_length() if number > 1 else 0


def sum_of_results(one: Any, other: Any) -> Any:
    """Return the sum of two results, part by part; a key that one lacks counts as 0.

    >>> sum_of_results((1, {"a": 2}), (10, {"b": 5}))
    (11, {'a': 2, 'b': 5})
    """
    if isinstance(one, tuple):
        return tuple(sum_of_results(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict):
        both = {name: sum_of_results(one[name], other[name]) for name in one if name in other}
        return {**one, **other, **both}
    return one + other


def _sum_of(
    block: Part, steps: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]], made_by: str
) -> tuple[Any, int]:
    """Return the sum over one block, by one thread so that it is the same everywhere.

    The digest of its rows comes with it. A sum that needs no torch does not load it.
    """
    from bdpvi.datasets import digests  # late: settings add nothing up

    if (found := version("bdpvi")) != made_by:
        raise ValueError(
            f"executor: a worker has bdpvi {found} and this process {made_by}; install the same "
            "version there"
        )

    def sum_block() -> tuple[Any, int]:
        read: list[int] = []

        def parts() -> Iterator[Any]:
            for part in block.read():
                read.append(digests.of(part))
                yield _apply_steps(part, steps)

        return in_pairs(parts()), sum(read)

    if "torch" not in sys.modules:
        made = sum_block()
        if "torch" not in sys.modules:  # a step may load it
            return made
    from bdpvi._ground import host, threads

    with host.on(host.HOST), threads.single():
        return sum_block()


def _sum_in_worker(block: Part, **given: Any) -> Any:
    """Do :func:`_sum_of` in a worker, whose threads then stay as many as they are in a sum."""
    if "torch" in sys.modules:
        import_module("torch").set_num_threads(1)
    return _sum_of(block, **given)


def _apply_steps(part: Any, steps: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]]) -> Any:
    for f, public in steps:
        part = f(part, *public)
    return part


def _result(block: Part, future: Future[S]) -> S:
    try:
        return future.result()
    except (Exception, CancelledError) as error:
        _raise_block_error(block, error)


def _raise_block_error(block: Part, error: BaseException) -> NoReturn:
    """Raise the error of a block, with its name."""
    words = str(error)
    if words.startswith("executor: "):
        raise error
    if isinstance(error, BrokenExecutor) or type(error).__name__ == "KilledWorker":
        raise ValueError(
            f"executor: a worker ended while {block.name} was summed; it may lack memory"
        ) from error
    if isinstance(error, CancelledError):
        raise ValueError(
            f"executor: the sum of {block.name} was cancelled; its scheduler may have ended"
        ) from error
    unsent = "pickle", "serialize", "local object"
    if isinstance(error, pickle.PicklingError) or any(one in words for one in unsent):
        raise ValueError(
            f"executor: a function or its arguments cannot be sent to a worker: {words:.200}"
        ) from error
    if isinstance(error, ModuleNotFoundError):
        raise ValueError(f"executor: a worker lacks a module: {words}") from error
    raise ValueError(f"{block.name}: {words or type(error).__name__}") from error
