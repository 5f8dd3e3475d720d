"""Hyper-parameters of every compared method for every data set, from one file.

The file is JSON. For each data set, and for "default", it has under "chosen" how the values were
found, under "methods" the fields of each method's dataclass, and under "at", where there are any,
those for particular targets: by method, then by ε. Fields left out keep their defaults.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from torch import Tensor

from bdpvi._runtime import validate
from bdpvi._runtime.store import read_json
from bdpvi.accounting.settings import Accounting
from bdpvi.compare.methods import METHODS, Method
from bdpvi.compare.methods.posterior import MeanFieldRelease, PosteriorRelease
from bdpvi.models.logistic import BayesianLogisticRegression

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
    validate.choice("methods", name, METHODS)
    try:
        return _built(METHODS[name], entry)  # type: ignore[no-any-return]
    except (TypeError, ValueError) as error:
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
    content = read_json(path)
    known = data if data in content else DEFAULT
    if known not in content:
        raise ValueError(f"{path} has neither {data!r} nor {DEFAULT!r}")
    section = content[known]
    if not isinstance(section, dict) or not {"methods", "chosen"} <= section.keys():
        raise ValueError(f"{path}: {known!r} lacks methods or chosen")
    entries, how, targets = section["methods"], section["chosen"], section.get("at", {})
    for name, part in (("methods", entries), ("chosen", how), ("at", targets)):
        if not isinstance(part, dict):
            raise ValueError(f"{path}: {name} of {known!r} must be an object, got {part!r}")
    unknown = {*entries, *targets} - set(METHODS)
    if unknown:
        raise ValueError(f"{path}: {known!r} has unknown methods {sorted(unknown)}")
    try:
        methods = {name: build(name, entries.get(owner(name), {})) for name in METHODS}
        at = {n: _built_at(n, targets[owner(n)]) for n in METHODS if owner(n) in targets}
    except ValueError as error:
        raise ValueError(f"{path}: {known!r}: {error}") from error
    return Chosen(known, how, methods, at)


def releases(
    epsilon: float, path: Path, *, data: str = DEFAULT, method: str = MeanFieldRelease.name
) -> PosteriorRelease:
    """Return what the file has for one of this library's releases, at the ε nearest to this one.

    Args:
        epsilon: ε that releases will aim at.
        path: such as ``bdpvi tune`` writes.
        data: name of the table; one that the file lacks gets the default's.
        method: name of the release.

    Raises:
        ValueError: if the method is no release from a posterior, or the file cannot be used.
    """
    validate.positive("epsilon", epsilon)
    names = [n for n, kind in METHODS.items() if issubclass(kind, PosteriorRelease)]
    validate.choice("method", method, names)
    chosen = load(data, path)
    found = nearest(chosen.at.get(method, {}), epsilon, chosen.methods[method])
    assert isinstance(found, PosteriorRelease)
    return found


def nearest(at: Mapping[float, Method], epsilon: float, otherwise: Method) -> Method:
    """Return the method of the target nearest to this one by ratio; ``otherwise`` if none is there.

    >>> from bdpvi.compare.methods.dp_gd import DPGD
    >>> nearest({0.1: DPGD(steps=1), 1.0: DPGD(steps=100)}, 0.5, DPGD()).steps
    100
    """
    return at[min(at, key=lambda e: abs(math.log(e / epsilon)))] if at else otherwise


def owner(name: str) -> str:
    """Return the method whose hyper-parameters this one has, and under which the file has them.

    >>> owner("dp-gd-bayesian"), owner("dp-gd")
    ('dp-gd', 'dp-gd')
    """
    return getattr(METHODS[name], "settings_of", name)


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


def _built(kind: Callable[..., Any], entry: Any, path: str = "") -> Any:
    """Return ``kind(**entry)``, each argument of its field's type; ``kind`` checks the ranges."""
    if not isinstance(entry, Mapping):
        raise ValueError(f"they must be an object, got {entry!r}")
    hints, arguments = get_type_hints(kind), dict(entry)
    for name, value in entry.items():
        hint = hints.get(name)
        if f"{path}{name}" in OBJECTS and value is not None:
            arguments[name] = _built(OBJECTS[f"{path}{name}"], value, f"{path}{name}.")
        elif hint is not None and not _fits(value, hint):
            words = str(hint) if get_args(hint) else hint.__name__
            raise ValueError(f"{path}{name} must be {words}, got {value!r}")
    return kind(**arguments)


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value from a JSON file has the type of a field, as numbers of 64 bits."""
    kinds = (hint, *get_args(hint))
    if isinstance(value, list):
        return any(get_origin(kind) is tuple for kind in kinds)
    if type(value) is int:
        return abs(value) < 2**63 and (int in kinds or float in kinds)
    return type(value) in kinds and (type(value) is not float or math.isfinite(value))


def _listed(value: object) -> object:
    if isinstance(value, Tensor):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
