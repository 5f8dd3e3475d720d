"""Hyper-parameters of every compared method for every data set, from one file.

The file is JSON. For each data set, and for "default", it has under "chosen" how the values were
found, under "methods" the fields of each method's dataclass, and under "at", where there are any,
those for particular targets: by method, then by ε. Fields left out keep their defaults.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bdpvi._ground import validate
from bdpvi._ground.schema import from_json, to_json
from bdpvi._ground.store import read_json
from bdpvi.bench.methods import METHODS, Method

FILE = Path(__file__).with_name("hyperparameters.json")
Entry = Mapping[str, Any]
DEFAULT = "default"


@dataclass(frozen=True)
class Chosen:
    """The methods with the hyper-parameters of one data set.

    Attributes:
        data: the data set's name in the file, or "default".
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
    validate.choice("methods", name, METHODS)
    try:
        return from_json(METHODS[name], entry, partial=True)
    except ValueError as error:
        raise ValueError(f"hyper-parameters of {name}: {error}") from error


def describe(method: Method) -> dict[str, Any]:
    """Return the hyper-parameters as JSON types: what :func:`build` takes.

    >>> describe(build("dp-gd", {"steps": 30}))["steps"]
    30
    """
    return dict(to_json(method))


def load(data: str, path: Path = FILE) -> Chosen:
    """Return the methods for the data set ``data``, with defaults if the file lacks it.

    Raises:
        ValueError: if the file is invalid, or names an unknown method or field.
        OSError: if it cannot be opened.

    >>> load("never heard of").data
    'default'
    """
    known, section = section_of(read_json(path), data, path)
    entries, how, targets = section["methods"], section["chosen"], section.get("at", {})
    unknown = {*entries, *targets} - set(METHODS)
    if unknown:
        raise ValueError(f"{path}: {known!r} has unknown methods {sorted(unknown)}")
    try:
        methods = {name: build(name, entries.get(name, {})) for name in METHODS}
        at = {name: _built_at(name, there) for name, there in targets.items()}
    except ValueError as error:
        raise ValueError(f"{path}: {known!r}: {error}") from error
    return Chosen(known, how, methods, at)


def nearest(at: Mapping[float, Method], epsilon: float, otherwise: Method) -> Method:
    """Return the method of the target nearest in ratio; ``otherwise`` if there is none.

    >>> from bdpvi.bench.methods.dp_gd import DPGD
    >>> nearest({0.1: DPGD(steps=1), 1.0: DPGD(steps=100)}, 0.5, DPGD()).steps
    100
    """
    return at[min(at, key=lambda e: abs(math.log(e / epsilon)))] if at else otherwise


def _built_at(name: str, values: Any) -> dict[float, Method]:
    """Return the method for each target ε, from its entries by ε as text."""
    if not isinstance(values, dict):
        raise ValueError(f"at of {name} must be an object, got {values!r}")
    at = {}
    for target, entry in values.items():
        try:
            epsilon = validate.positive("at", float(target))
        except ValueError:
            raise ValueError(f"at of {name} must have ε, got {target!r}") from None
        at[epsilon] = build(name, entry)
    return at


def section_of(content: Any, data: str, path: Path) -> tuple[str, Mapping[str, Any]]:
    """Return the part of a file of hyper-parameters for one table, and its name.

    Raises:
        ValueError: if the file is not a file of hyper-parameters.
    """
    known = data if data in content else DEFAULT
    if known not in content:
        raise ValueError(f"{path} has neither {data!r} nor {DEFAULT!r}")
    section = content[known]
    if not isinstance(section, dict) or not {"methods", "chosen"} <= section.keys():
        raise ValueError(f"{path}: {known!r} lacks methods or chosen")
    for name in ("methods", "chosen", "at"):
        if not isinstance(part := section.get(name, {}), dict):
            raise ValueError(f"{path}: {name} of {known!r} must be an object, got {part!r}")
    return known, section
