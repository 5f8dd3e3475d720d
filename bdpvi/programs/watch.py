"""What a recording of a program would freeze: values that model and guide reach by themselves.

Operations that are recorded once keep the numbers, attributes, buffers, closures and globals that
they were computed from. A :class:`Watch` remembers these, says which of them a run of the program
changes, and, before every replay, whether any is another now. It follows what
:mod:`bdpvi.models.reachable` does. It does not see what changes without a trace, as a clock.
"""

from __future__ import annotations

import gc
import random
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import is_
from typing import Any, NamedTuple

import numpy as np
import torch
from pyro import poutine
from torch import Tensor, nn

from bdpvi.models.reachable import installed, referents, used_globals
from bdpvi.models.values import LONG

_MOST, _PLACES = 20_000, 1_000
"""Largest numbers of objects that are looked at, and of those that are watched."""
_NUMBERS = (int, float, complex, str, bytes, type(None))
_PARTS = ("_parameters", "_buffers", "_modules")
_CONTAINERS = (dict, list, set, frozenset, tuple, deque, np.ndarray, Tensor)
_COINS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_OTHERS, _PYTHON = ("bdpvi", "pyro", "torch"), ("builtins", "functools", "types")
"""Packages whose objects a run may change, and modules whose classes hold what others own."""
_CLOSED = {
    "_io", "_pytest", "asyncio", "concurrent", "io", "itertools", "logging", "matplotlib",
    "multiprocessing", "numpy", "pandas", "rich", "scipy", "sklearn", "threading", "tqdm",
}  # fmt: skip
"""Packages into whose objects a watch does not look."""
_ARRAY = 65_536
"""Largest number of bytes of an array that are compared."""


class _Place(NamedTuple):
    """Values that can be exchanged.

    Attributes:
        way: to them, in words.
        names: of them, if they have any.
        read: returns them.
        values: what they were.
        own: whether the user's code holds them, not an installed package's.
    """

    way: str
    names: list[str]
    read: Callable[[], Iterable[Any]]
    values: tuple[Any, ...]
    own: bool

    def changed(self) -> str:
        """Return the way to a value that is another now; "" if there is none."""
        now = tuple(self.read())
        if len(now) == len(self.values) and all(map(is_, now, self.values)):
            return ""
        if len(now) != len(self.values):
            return self.way
        for at, (one, other) in enumerate(zip(now, self.values, strict=True)):
            if not alike(one, other):
                return f"{self.way}{self.names[at]}" if self.names else self.way
        return ""


class Watch:
    """The values that programs reach, as they are now.

    Args:
        trained: tensors that an optimiser changes; they are not watched.
        programs: by name.

    Attributes:
        whole: whether all that they reach is watched.
        iterator: the way to an iterator of the user's, which moves without a trace; "" without one.

    >>> class Model:
    ...     def __init__(self):
    ...         self.beta = 0.5
    ...     def __call__(self, x):
    ...         return self.beta * x
    >>> model = Model()
    >>> watch = Watch([], model=model)
    >>> watch.changed()
    ''
    >>> model.beta = 0.6
    >>> watch.changed()
    'model.beta'
    """

    def __init__(self, trained: Iterable[Tensor], **programs: Any) -> None:
        seen: dict[int, Any] = {id(one): one for one in trained}
        self._trained = {_storage(one) for one in seen.values()}  # a start may share it
        self._places: list[_Place] = []
        self._tensors: list[tuple[str, Tensor]] = []
        self._coins: list[tuple[str, Any]] = [("random", random), ("numpy.random", np.random)]
        self.whole, self.iterator = True, ""
        left = deque((way, one, True) for way, one in programs.items())
        while left:
            way, one, own = left.popleft()
            if id(one) in seen or isinstance(one, _NUMBERS):
                continue
            seen[id(one)] = one
            if isinstance(one, _COINS):
                self._coins.append((way, one))
            if own and isinstance(one, Iterator):
                self.iterator = way
            self.whole = len(seen) < _MOST and len(self._places) < _PLACES
            if not self.whole:
                break
            if (its := _is_own(one, own)) is None:
                continue
            self._add(way, one, its)
            left.extend((w, part, its) for w, part in referents(way, one))
        self._versions = self._now()
        self._states = [_state(one) for _, one in self._coins]

    def _add(self, way: str, one: Any, own: bool) -> None:
        if isinstance(one, Tensor):
            if not one.is_inference() and _storage(one) not in self._trained:
                self._tensors.append((way, one))
        else:
            for names, read in _reads(one):
                if values := tuple(read()):
                    self._places.append(_Place(way, names, read, values, own))

    def _now(self) -> list[int]:
        return [one._version for _, one in self._tensors]

    def changed(self) -> str:
        """Return the way to a value that is another now; "" if there is none."""
        if self._now() != self._versions:
            pairs = zip(self._tensors, self._versions, strict=True)
            return next(way for (way, one), old in pairs if one._version != old)
        return next(filter(None, (place.changed() for place in self._places)), "")

    def moved_by_run(self) -> str:
        """Return the way to a value of the user's that a run changed; leave out those of others.

        Also where random numbers came from that are not torch's.
        """
        pairs = zip(self._coins, self._states, strict=True)
        if drawn := next((way for (way, one), old in pairs if _state(one) != old), ""):
            return drawn
        self._places = [place for place in self._places if place.own or not place.changed()]
        return self.changed()


def _reads(one: Any) -> Iterator[tuple[list[str], Callable[[], Iterable[Any]]]]:
    """Yield names of the exchangeable values of an object, and what reads them."""
    if isinstance(one, dict):
        yield [], lambda: one.values() if len(one) <= LONG else (len(one),)
    elif isinstance(one, list | set | deque):
        yield [], lambda: one if len(one) <= LONG else (len(one),)
    elif isinstance(one, np.ndarray):
        if one.nbytes <= _ARRAY:
            yield [], lambda: (one.tobytes(),)
    elif isinstance(one, types.FunctionType):
        cells = [cell for cell in one.__closure__ or () if gc.get_referents(cell)]
        yield [], lambda: [cell.cell_contents for cell in cells]
        for prefix, known, names in used_globals(one):
            words = [f", its global {prefix}{name}" for name in names]
            yield words, partial(_picked, known, names)
    elif isinstance(one, type):
        if not installed(one.__module__):
            yield [f".{name}" for name in vars(one)], lambda: [*vars(one).values()]
    elif not isinstance(one, tuple | frozenset | Tensor):
        slots = [name for kind in type(one).__mro__ for name in _slots(kind)]
        if slots:
            yield [f".{name}" for name in slots], lambda: [getattr(one, n, None) for n in slots]
        if not isinstance(own := getattr(one, "__dict__", None), dict):
            return
        yield [f".{name}" for name in own], own.values
        if isinstance(one, nn.Module):
            yield from (([], own[name].values) for name in _PARTS if name in own)


def _storage(one: Tensor) -> int:
    """Return the place of a tensor's memory; an identity, if it has none of its own."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(one)
    own = one.layout == torch.strided and not wrapped
    return one.untyped_storage().data_ptr() if own else id(one)


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _picked(known: dict[str, Any], names: list[str]) -> list[Any]:
    return [known.get(name) for name in names]


def _is_own(one: Any, parent: bool) -> bool | None:
    """Whether an object is the user's: its class or module is, or what holds a container.

    None of one that is not looked into.
    """
    if isinstance(one, _CONTAINERS):
        return parent
    if isinstance(one, types.ModuleType | poutine.Trace):
        return None
    of = (one if isinstance(one, type | types.FunctionType) else type(one)).__module__
    top = str(of).partition(".")[0]
    if top in _PYTHON:
        return parent
    return None if top in _CLOSED else top not in _OTHERS


def alike(one: Any, other: Any) -> bool:
    """Whether a value is what it was: the same object, or an equal number or text."""
    if one is other:
        return True
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and one.device == other.device and torch.equal(one, other)
    return type(one) is type(other) and isinstance(one, _NUMBERS) and one == other


def _state(coins: Any) -> Any:
    """Return the state of a source of random numbers."""
    if isinstance(coins, torch.Generator):
        return coins.get_state().tolist()
    if isinstance(coins, np.random.Generator):
        return repr(coins.bit_generator.state)
    return coins.getstate() if hasattr(coins, "getstate") else repr(coins.get_state())
