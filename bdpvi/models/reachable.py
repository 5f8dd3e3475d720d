"""What a user's functions can reach beside their arguments, searched for the records.

A guarantee covers what a function computes from its arguments. Whatever else it can reach counts as
public: constants of a prior, starting values, weights. This search finds records among it that got
there by mistake. It follows closures, default arguments, globals that the code names, attributes,
containers, iterators, generators and frames, and compares what it finds with the records: by
memory, and by value where a match by chance is out of the question.

It does not see files, what code asks of the interpreter by name (``globals()["x"]``), globals of
installed packages, or numbers computed from the records, such as their means.
"""

from __future__ import annotations

import dis
import gc
import os
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from bdpvi.models.values import (
    ARRAYS,
    LONG,
    MANY_OF,
    columns,
    each_value,
    is_frame,
    is_sequence,
    is_table,
    length_of,
    matching_path,
    memory,
    numbers,
    rows,
)

_MOST = 20_000
"""Largest number of objects that are looked at."""
_MANY = 20
"""Entries of a column that no other equals by chance, as it may do with a few zeros and ones."""
_SITES = {str(Path(str(one.__file__)).parents[1]) for one in (torch, np)}
"""Folders of installed packages."""
_PLAIN = (str, bytes, int, float, complex, type(None), types.CodeType, torch.dtype, torch.device)


def check_reach(
    records: Iterable[Any],
    length: int | None = None,
    copies: Iterable[Any] = (),
    **programs: Any,
) -> None:
    """Refuse programs that can reach records beside their arguments.

    Args:
        records: tensors, arrays, and objects that read records, such as a torch ``Dataset``.
        length: N, if a record is not an entry of each tensor.
        copies: the tensors on the host, if they are there already.
        programs: what is searched, by the names of the caller's arguments.

    Raises:
        ValueError: naming the way to the records, and the remedy.

    >>> x = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    >>> def model(x, y=None, start=x[:2].clone()):
    ...     pass
    >>> check_reach([x], model=model)
    Traceback (most recent call last):
        ...
    ValueError: model, its default argument start: these are records, and no ε covers what they do \
there. Take records from the arguments alone, and let the rest, such as starting values, be public \
values; if the seed that simulated the records drew them too, take another seed. Nothing was charged
    >>> check_reach([x], model=lambda x, y=None, scale=2.5: None)
    """
    check_values(records, reachable(**programs), length, copies)


def check_values(
    records: Iterable[Any],
    ways: Iterable[tuple[str, Any]],
    length: int | None = None,
    copies: Iterable[Any] = (),
) -> None:
    """Refuse values, each with the way to it, among which are records; see :func:`check_reach`."""
    way = _Records.of(records, length).among(ways, [*copies])
    if way:
        raise ValueError(
            f"{way}: these are records, and no ε covers what they do there. Take records from the "
            "arguments alone, and let the rest, such as starting values, be public values; if the "
            "seed that simulated the records drew them too, take another seed. Nothing was charged"
        )


def reachable(**roots: Any) -> Iterator[tuple[str, Any]]:
    """Yield what can be reached from the roots, with the way in words, each once.

    >>> def guide(x, *, start={"loc": [0.5, 2.0]}):
    ...     pass
    >>> [way for way, one in reachable(guide=guide) if one == [0.5, 2.0]]
    ["guide, its default argument start['loc']"]
    """
    seen: dict[int, Any] = {}  # keeps what it has, so that no address is used again
    left = deque(roots.items())
    while left and len(seen) < _MOST:
        way, one = left.popleft()
        if id(one) in seen or isinstance(one, _PLAIN):
            continue
        seen[id(one)] = one
        yield way, one
        left.extend(referents(way, one))


def referents(way: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object refers to."""
    for kinds, parts in _PARTS:
        if isinstance(value, kinds):
            return parts(way, value)
    return iter(()) if is_frame(value) else _attributes(way, value)


def _of_partial(way: str, value: partial[Any]) -> Iterator[tuple[str, Any]]:
    yield way, value.func
    yield from _entries(f"{way}, its argument ", value.args)
    yield from ((f"{way}, its argument {name}", one) for name, one in value.keywords.items())


def _of_method(way: str, value: Any) -> Iterator[tuple[str, Any]]:
    yield from ((way, part) for part in (getattr(value, "__func__", None), value.__self__))


def _of_frame(way: str, value: types.FrameType) -> Iterator[tuple[str, Any]]:
    yield from ((f"{way}, its variable {name}", one) for name, one in value.f_locals.items())


def _of_mapping(way: str, value: Any) -> Iterator[tuple[str, Any]]:
    for key, one in islice([*dict(value).items()], LONG):
        yield f"{way}[{_words_of_key(key)}]", one
    yield from _attributes(way, value)


def _of_many(way: str, value: Any) -> Iterator[tuple[str, Any]]:
    if numbers(value) is None:
        yield from _entries(way, value)
    yield from _attributes(way, value)


def _of_array(way: str, value: np.ndarray) -> Iterator[tuple[str, Any]]:
    if value.dtype == object:
        yield from _entries(way, value.flat)


def _of_type(way: str, value: type) -> Iterator[tuple[str, Any]]:
    if not installed(value.__module__):
        own = [item for item in vars(value).items() if item[0] != "__init__"]  # has run
        yield from ((f"{way}.{name}", one) for name, one in own)
        yield from ((way, base) for base in value.__bases__)


def _of_function(way: str, one: types.FunctionType) -> Iterator[tuple[str, Any]]:
    code = one.__code__
    for name, cell in zip(code.co_freevars, one.__closure__ or (), strict=True):
        for value in gc.get_referents(cell):  # none if it is empty
            yield f"{way}, its closure variable {name}", value
    names = code.co_varnames[: code.co_argcount]
    defaults = [*zip(reversed(names), reversed(one.__defaults__ or ()), strict=False)]
    for name, value in [*defaults, *(one.__kwdefaults__ or {}).items()]:
        yield f"{way}, its default argument {name}", value
    for name, value in vars(one).items():
        yield (way if name == "__wrapped__" else f"{way}.{name}"), value
    for prefix, known, used in used_globals(one):
        yield from ((f"{way}, its global {prefix}{name}", known[name]) for name in used)


def used_globals(one: types.FunctionType) -> Iterator[tuple[str, dict[str, Any], list[str]]]:
    """Yield the globals that the code of a function names, which is not an installed package's.

    They are those of its module, and of modules of the user's, whose names come first.
    """
    known, modules = one.__globals__, []
    home = sys.modules.get(str(known.get("__name__")))  # other globals can bear its name
    if home is not None and vars(home) is known and installed(home.__name__):
        return
    used = [*_name_operations(one.__code__)]
    named = dict.fromkeys(v for op, v in used if op in ("LOAD_GLOBAL", "LOAD_NAME"))
    there = [name for name in named if name in known]
    modules = [known[name] for name in there if isinstance(known[name], types.ModuleType)]
    yield "", known, [name for name in there if not isinstance(known[name], types.ModuleType)]
    modules += [sys.modules[v] for op, v in used if op == "IMPORT_NAME" and v in sys.modules]
    for module in modules:
        if not installed(module.__name__):
            found = {value for _, value in used} & vars(module).keys()
            yield f"{module.__name__}.", vars(module), sorted(found)


def _name_operations(code: types.CodeType) -> Iterator[tuple[str, str]]:
    """Yield each operation of code on a name, with those of the functions within."""
    for one in dis.get_instructions(code):
        if isinstance(one.argval, str):
            yield one.opname, one.argval
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _name_operations(inner)


def _attributes(way: str, one: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an instance has, and what its class has if a user wrote it."""
    own = getattr(one, "__dict__", None)
    for name, value in [*own.items()] if isinstance(own, dict) else []:
        if isinstance(one, nn.Module) and name in ("_parameters", "_buffers", "_modules"):
            yield from ((f"{way}.{key}", part) for key, part in value.items())
        else:
            yield f"{way}.{name}", value
    for slots in (vars(kind).get("__slots__", ()) for kind in type(one).__mro__):
        for name in (slots,) if isinstance(slots, str) else slots:
            yield f"{way}.{name}", getattr(one, name, None)
    if not isinstance(one, (dict, *MANY_OF)):
        within = (dict, type, types.ModuleType)  # of iterators, caches and others written in C
        yield from ((way, part) for part in gc.get_referents(one) if not isinstance(part, within))
    yield way, type(one)


def _entries(way: str, one: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    some = [*islice(one, LONG)]  # at once: another thread may change a queue meanwhile
    return ((f"{way}[{at}]", value) for at, value in enumerate(some))


_PARTS: tuple[tuple[Any, Callable[[str, Any], Iterator[tuple[str, Any]]]], ...] = (
    (partial, _of_partial),
    (types.MethodType | types.BuiltinMethodType | types.MethodWrapperType, _of_method),
    (types.FunctionType, _of_function),
    (types.FrameType, _of_frame),
    (types.GeneratorType, lambda way, value: iter([(way, value.gi_frame)])),
    (weakref.ref, lambda way, value: iter([(way, value())])),
    (dict | types.MappingProxyType, _of_mapping),
    (MANY_OF, _of_many),
    (np.ndarray, _of_array),
    (type, _of_type),
    (staticmethod | classmethod, lambda way, value: iter([(way, value.__func__)])),
    (property, lambda way, value: iter([(way, value.fget)])),
    (cached_property, lambda way, value: iter([(way, value.func)])),
    (types.ModuleType | Tensor, lambda way, value: iter(())),
)
"""What objects of each kind refer to; the first kind counts."""


def _words_of_key(key: Any) -> str:
    """Return a key in words, unless it may be a record's value."""
    named = isinstance(key, str) and key.isidentifier() and len(key) < 40
    return repr(key) if named else "..."


def installed(name: Any) -> bool:
    """Whether a module is the library's, Python's or an installed package's."""
    top = str(name).partition(".")[0]
    if top == "bdpvi" or top in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(str(name)), "__file__", None)
    return file is not None and any(file.startswith(one + os.sep) for one in _SITES)


class _Records(NamedTuple):
    """Records to be found.

    Attributes:
        tables: arrays with an entry for each record.
        sources: other objects that have as many, by their identities.
    """

    tables: list[Any]
    sources: dict[int, Any]

    @classmethod
    def of(cls, records: Iterable[Any], length: int | None) -> _Records:
        """Return the records of tensors, arrays, and objects that hold such."""
        tables, sources = [], {}
        for record in records:
            for _, part in [("", record)] if isinstance(record, ARRAYS) else reachable(data=record):
                if is_table(part):
                    sized = isinstance(part, ARRAYS) and part.ndim and len(part)
                    if sized and len(part) == (length or len(part)):
                        tables.append(part)
                elif part is record or (length and is_sequence(part) and length_of(part) == length):
                    sources[id(part)] = part
        return cls(tables, sources)

    def among(self, ways: Iterable[tuple[str, Any]], copies: Sequence[Any] = ()) -> str:
        """Return the way to a value that is a record or has some; "" if there is none.

        Args:
            ways: values, each with the way to it.
            copies: what stands in the tables, on the host, if it is there already.
        """
        found: list[tuple[str, np.ndarray]] = []
        places = [*filter(None, map(memory, self.tables))]
        for way, one in ways:
            place = memory(one)
            if id(one) in self.sources or (place and any(map(place.meets, places))):
                return way
            values = numbers(one)
            if values is not None and values.size > 1:
                found.append((way, values))
        for table in map(numbers, (copies or self.tables) if found else ()):
            if table is None or not table.size:
                continue
            alike = [(w, v) for w, v in found if _MANY <= len(table) == len(v)]
            same = columns(table) if alike else set()
            for way, values in alike:
                if same & columns(values):
                    return way
            for keys in (each_value, partial(rows, width=table[0].size)):
                if way := matching_path(found, table, keys):
                    return way
        return ""
