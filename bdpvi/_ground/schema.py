"""Dataclasses as JSON and back, by their type hints; invalid fields are refused by name.

Fields may be bool, int, float, str, bytes, None, Any, an Enum (by its value), a Literal, a tuple, a
Mapping with string keys, another dataclass, and unions of these. In a union of dataclasses the
entry ``kind``, a class variable of each, tells them apart. A field whose metadata has ``names``
holds one of the objects there and is written as its name. Tensors are stored by safetensors. A
field whose metadata has ``absent`` is omitted from JSON if it has that value, and gets it if JSON
omits the field, so that files older than the field keep their meaning. A field whose metadata has a
false ``kept`` is in no file.

Integers have 64 bits, or as many as ``bits`` in a field's metadata; floating-point numbers
are finite.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from bdpvi._ground.outputs import several

T = TypeVar("T")
_hints = cache(get_type_hints)
_LARGEST = 1e300
_MOST_BITS = 1000
_LONGEST = 200
"""The most characters of a value in a message."""


def to_json(value: Any, name: str = "it") -> Any:
    """Return a dataclass, or anything else of the types above, as JSON types.

    Raises:
        ValueError: if JSON cannot hold a value, which it names; so all that is written can be read.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Point:
    ...     at: tuple[float, ...]
    ...     name: str | None = None
    >>> to_json(Point((0.5, 1.0)))
    {'at': [0.5, 1.0], 'name': None}
    """
    if is_dataclass(value) and not isinstance(value, type):
        kind = _kind(type(value))
        content = {} if kind is None else {"kind": kind}
        for one in _fields(type(value)):
            inside = getattr(value, one.name)
            if "absent" in one.metadata and inside == one.metadata["absent"]:
                continue
            if "names" in one.metadata:
                inside = next(
                    key for key, named in one.metadata["names"].items() if named is inside
                )
            content[one.name] = to_json(inside, _path(name, one.name))
        return content
    if isinstance(value, Enum):
        return to_json(value.value, name)
    if isinstance(value, Mapping):
        return {_text(name, key): to_json(one, _path(name, key)) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(one, f"{name}[{at}]") for at, one in enumerate(value)]
    if isinstance(value, bytes):
        return value.hex()
    for kind_ in (bool, int, float, str):
        if isinstance(value, kind_):
            return _scalar(kind_, kind_(value), name, _MOST_BITS)
    if value is None:
        return None
    raise ValueError(f"{name} cannot be written as JSON: it is {type(value).__name__}")


def from_json(kind: type[T], content: Any, name: str = "it", *, partial: bool = False) -> T:
    """Return the ``kind`` that :func:`to_json` wrote.

    Args:
        kind: a dataclass.
        content: content of a JSON file.
        name: its name in messages.
        partial: whether fields with defaults may be omitted, as in files written by hand.

    Raises:
        ValueError: if a field, which it names, is missing or unknown, or has a wrong type or
            value.

    >>> from bdpvi._ground.types import Budget
    >>> from_json(Budget, {"epsilon": 1, "delta": 1e-5})
    Budget(epsilon=1.0, delta=1e-05)
    >>> from_json(Budget, {"epsilon": True, "delta": 1e-5})
    Traceback (most recent call last):
        ...
    ValueError: epsilon must be float, got True
    """
    try:
        return _object(kind, content, name, partial)  # type: ignore[no-any-return]
    except RecursionError:
        raise ValueError(f"{name} is nested too deeply") from None


def loads(kind: type[T], file: bytes, *, partial: bool = False) -> T:
    """Return :func:`from_json` of a file's content.

    Raises:
        ValueError: as there, or if it is not JSON.
    """
    return from_json(kind, parsed(file), partial=partial)


def parsed(file: bytes) -> dict[str, Any]:
    """Return the object in a JSON file, which must not have NaN or infinite numbers.

    Raises:
        ValueError: if it holds anything else.
    """
    try:
        content = json.loads(file, parse_constant=_no_json)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"it cannot be read as JSON: {error}") from error
    return _mapping(content, "it")


def require_same(what: str, made: Mapping[str, Any], now: Mapping[str, Any], remedy: str) -> None:
    """Raise ValueError unless something stored was made with the current settings.

    Args:
        what: its name.
        made: its settings, by argument name.
        now: the current settings.
        remedy: what the caller can do.

    >>> require_same("state", {"rate": 0.1}, {"rate": 0.2}, "make it as it was made before")
    Traceback (most recent call last):
        ...
    ValueError: state was made with rate=0.1, and not rate=0.2; make it as it was made before
    """
    for name in {**now, **made}:
        old, new = (short(one[name]) if name in one else "nothing" for one in (made, now))
        if name not in made or name not in now or made[name] != now[name]:
            raise ValueError(f"{what} was made with {name}={old}, and not {name}={new}; {remedy}")


def short(value: object) -> str:
    """Return a value for a message, truncated if it is long.

    >>> short("a" * 1000)[-3:]
    'aa…'
    """
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _object(kind: Any, content: Any, name: str, partial: bool) -> Any:
    given, tag = _mapping(content, name), _kind(kind)
    inside = "" if name == "it" else f"{name}."
    if tag is not None and (found := given.pop("kind", None)) != tag:
        raise ValueError(f"{inside}kind must be {tag!r}, got {_got(found)}")
    known = {one.name: one for one in _fields(kind)}
    if unknown := sorted(given.keys() - known.keys()):
        raise ValueError(f"{inside}{unknown[0]} is not known; there are {sorted(known)}")
    hints, arguments = _hints(kind), {}
    for one in known.values():
        path = f"{inside}{one.name}"
        if one.name in given:
            arguments[one.name] = _field(one, hints[one.name], given[one.name], path, partial)
        elif "absent" in one.metadata:
            arguments[one.name] = one.metadata["absent"]
        elif not partial or _is_required(one):
            raise ValueError(f"{path} is missing")
    try:
        return kind(**arguments)
    except (ValueError, TypeError, OverflowError) as error:
        if isinstance(error, ValueError) and not inside:  # it already names its field
            raise
        # A check may have assumed another type.
        raise ValueError(f"{inside.rstrip('.') or kind.__name__}: {error}") from error


def _field(one: Field[Any], hint: Any, value: Any, name: str, partial: bool) -> Any:
    if "bits" in one.metadata and type(value) is int:
        return _scalar(int, value, name, one.metadata["bits"])
    if "names" not in one.metadata:
        return _read(hint, value, name, partial)
    names = one.metadata["names"]
    if not isinstance(value, str) or value not in names:
        raise ValueError(f"{name} must be one of {list(names)}, got {_got(value)}")
    return names[value]


def _read(hint: Any, value: Any, name: str, partial: bool) -> Any:
    origin, inside = get_origin(hint), get_args(hint)
    if hint is Any:
        return to_json(value, name)
    if origin in (Union, UnionType):
        return _read(_type_among(hint, inside, value, name), value, name, partial)
    if origin is Literal:
        if any(type(one) is type(value) and one == value for one in inside):
            return value
        raise ValueError(f"{name} must be one of {list(inside)}, got {_got(value)}")
    if origin is tuple:
        return _items(inside, value, name, partial)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        kept = _mapping(value, name).items()
        keys = [_read(inside[0], key, f"a key of {name}", partial) for key, _ in kept]
        values = [_read(inside[1], one, _path(name, key), partial) for key, one in kept]
        return dict(zip(keys, values, strict=True))
    if is_dataclass(hint):
        return _object(hint, value, name, partial)
    if isinstance(hint, type) and issubclass(hint, Enum):
        for one in hint:
            if type(one.value) is type(value) and one.value == value:
                return one
        raise ValueError(f"{name} must be one of {[o.value for o in hint]}, got {_got(value)}")
    if not _fits(hint, value):
        raise ValueError(f"{name} must be {_words(hint)}, got {_got(value)}")
    if hint is bytes:
        try:
            return bytes.fromhex(value)
        except ValueError:
            raise ValueError(f"{name} must be hexadecimal, got {_got(value)}") from None
    return None if value is None else _scalar(hint, value, name)


def _items(inside: Sequence[Any], value: Any, name: str, partial: bool) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{name} must be a list, got {_got(value)}")
    if len(inside) == 2 and inside[1] is Ellipsis:
        inside = [inside[0]] * len(value)
    if len(inside) != len(value):
        raise ValueError(
            f"{name} must have {several(len(inside), 'entry', 'entries')}, got {len(value)}"
        )
    pairs = enumerate(zip(inside, value, strict=True))
    return tuple(_read(hint, one, f"{name}[{at}]", partial) for at, (hint, one) in pairs)


def _type_among(hint: Any, among: Sequence[Any], value: Any, name: str) -> Any:
    """Return the type in a union that a value has."""
    found = [one for one in among if _fits(one, value)]
    if len(found) > 1 and isinstance(value, Mapping):
        found = [one for one in found if _kind(one) == value.get("kind")]
        if not found:
            kinds = [_kind(one) for one in among]
            raise ValueError(f"{name}.kind must be one of {kinds}, got {_got(value.get('kind'))}")
    if not found:
        raise ValueError(f"{name} must be {_words(hint)}, got {_got(value)}")
    return found[0]


def _fits(hint: Any, value: Any) -> bool:
    """Return whether a JSON value has the outer form of a type."""
    origin = get_origin(hint) or hint
    if origin is NoneType or value is None:
        return value is None and origin in (NoneType, Any)
    if is_dataclass(origin) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return isinstance(value, Mapping)
    if origin is tuple:
        return isinstance(value, list | tuple)
    if origin is float:
        return type(value) in (int, float)
    if origin in (bool, int, str, bytes):
        return type(value) is (str if origin is bytes else origin)  # True is not a number here
    return origin in (Any, Literal) or (isinstance(origin, type) and issubclass(origin, Enum))


def _scalar(kind: type, value: Any, name: str, bits: int = 63) -> Any:
    if kind is float:
        # Compare first: an integer may exceed float64.
        if not abs(value) <= _LARGEST:
            raise ValueError(f"{name} must be float and finite, got {_got(value)}")
        return float(value)
    if kind is int and value.bit_length() > bits:
        raise ValueError(f"{name} must be int below 2**{bits}, got {_got(value)}")
    return value


def _mapping(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be a JSON object, got {_got(value)}")
    return {_text(name, key): one for key, one in value.items()}


def _text(name: str, key: Any) -> str:
    if type(key) is not str:
        raise ValueError(f"{name} must have texts as keys, got {_got(key)}")
    return key


def _fields(kind: Any) -> list[Field[Any]]:
    return [one for one in fields(kind) if one.metadata.get("kept", one.init)]


def _is_required(one: Field[Any]) -> bool:
    return one.default is MISSING and one.default_factory is MISSING


def _kind(kind: Any) -> str | None:
    """Return the class variable that tells this dataclass from others."""
    found = getattr(kind, "kind", None)
    own = is_dataclass(kind) and all(one.name != "kind" for one in fields(kind))
    return found if own and isinstance(found, str) else None


def _words(hint: Any) -> str:
    if get_origin(hint) in (Union, UnionType):
        return " | ".join(map(_words, get_args(hint)))
    if hint is NoneType:
        return "None"
    return "a list" if get_origin(hint) is tuple else getattr(hint, "__name__", str(hint))


def _path(name: str, key: object) -> str:
    return str(key) if name == "it" else f"{name}.{key}"


def _got(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > _MOST_BITS:
        return f"one of {value.bit_length()} bits"  # too long for Python to print
    return f"{value!r:.80}"


def _no_json(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
