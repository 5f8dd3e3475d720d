"""Hyper-parameters of every compared method for every data set, from one file.

The file is JSON. For each data set, and for "default", it has under "chosen" how the values were
found, under "methods" the fields of each method's dataclass, and under "at", where there are any,
those for particular targets: by method, then by ε. Fields left out keep their defaults.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from bdpvi.methods import METHODS, Accounting, Method
from bdpvi.models import BayesianLogisticRegression

FILE = Path(__file__).with_name("hyperparameters.json")
DEFAULT = "default"
OBJECTS: Mapping[str, Callable[..., Any]] = {
    "model": BayesianLogisticRegression,
    "accountant": Accounting,
}
"""Fields that are objects, by their dotted paths: the file holds their arguments."""

Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Chosen:
    """The methods with the hyper-parameters of one data set.

    Attributes:
        data: whose hyper-parameters they are: a name of the file, perhaps "default".
        how: how they were found.
        methods: by name.
        at: methods with the hyper-parameters of one target, by name and ε.
    """

    data: str
    how: Mapping[str, Any]
    methods: Mapping[str, Method]
    at: Mapping[str, Mapping[float, Method]] = field(default_factory=dict)


def build(name: str, entry: Entry) -> Method:
    """Return the method ``name`` with the hyper-parameters ``entry``.

    Raises:
        ValueError: if there is no such method, field or value.

    >>> build("dp-gd", {"steps": 30, "model": {"prior_scale": 3.0}}).model.prior_scale
    3.0
    """
    if name not in METHODS:
        raise ValueError(f"methods must be among {list(METHODS)}, got {name!r}")
    try:
        return METHODS[name](**_arguments(entry))
    except (TypeError, AttributeError) as error:
        raise ValueError(f"hyper-parameters of {name}: {error}") from error


def describe(method: Method) -> dict[str, Any]:
    """Return the hyper-parameters as JSON types: what :func:`build` takes.

    >>> describe(build("dp-gd", {"steps": 30}))["steps"]
    30
    """
    plain = json.dumps(asdict(method), default=_listed)  # type: ignore[call-overload]
    return json.loads(plain)  # type: ignore[no-any-return]


def load(data: str, path: Path = FILE) -> Chosen:
    """Return the methods for the data set ``data``; one that the file lacks gets the default's.

    Raises:
        ValueError: if the file is no such file, or names an unknown method or field.
        OSError: if it cannot be opened.

    >>> load("never heard of").data
    'default'
    """
    content = read(path)
    known = data if data in content else DEFAULT
    if known not in content:
        raise ValueError(f"{path} has neither {data!r} nor {DEFAULT!r}")
    section = content[known]
    try:
        entries = {name: section["methods"].get(_owner(name), {}) for name in METHODS}
        targets = section.get("at", {})
        unknown = (set(section["methods"]) | set(targets)) - set(METHODS)
        how = section["chosen"]
    except (KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{path}: {known!r} lacks methods or chosen") from error
    if unknown:
        raise ValueError(f"{path}: {known!r} has unknown methods {sorted(unknown)}")
    at = {
        name: {float(t): build(name, entry) for t, entry in targets[_owner(name)].items()}
        for name in METHODS
        if _owner(name) in targets
    }
    return Chosen(known, how, {name: build(name, entry) for name, entry in entries.items()}, at)


def _owner(name: str) -> str:
    """Return the method whose hyper-parameters this one has."""
    return getattr(METHODS[name], "settings_of", name)


def read(path: Path) -> dict[str, Any]:
    """Return the file's content."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} does not hold a JSON object")
    return content


def _arguments(entry: Entry, path: str = "") -> dict[str, Any]:
    return {name: _value(value, f"{path}{name}") for name, value in entry.items()}


def _value(value: Any, path: str) -> Any:
    if path in OBJECTS and value is not None:
        return OBJECTS[path](**_arguments(value, f"{path}."))
    return value


def _listed(value: object) -> object:
    if isinstance(value, Tensor):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no place in a JSON file")
