"""Recipes as JSON: in ``--settings``, in a fit's folder, and in files that a search writes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from bdpvi._fit import Fit
from bdpvi._runtime import validate
from bdpvi._runtime.store import read_json
from bdpvi.accounting.settings import Accounting
from bdpvi.guides import FullRank, GaussianGuide, MeanField
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.recipes.recipe import Recipe
from bdpvi.releasing import storage

GUIDES: Mapping[str, type[GaussianGuide]] = {
    "full-rank": FullRank,
    "mean-field": MeanField,
}
RELEASES = {f"bdp-vi-{name}": kind for name, kind in GUIDES.items()}
"""The releases that a file of hyper-parameters has, and their guides."""
USUAL = "bdp-vi-mean-field"
DEFAULT = "default"
OBJECTS: Mapping[str, Callable[..., Any]] = {
    "model": BayesianLogisticRegression,
    "accounting": Accounting,
}
"""Fields that are objects, by their dotted paths: the file holds their arguments."""


def guide_named(name: str) -> type[GaussianGuide]:
    """Return the kind of guide, "full-rank" or "mean-field".

    Raises:
        ValueError: if it is neither.
    """
    return GUIDES[validate.choice("guide", name, GUIDES)]


def described(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe as JSON types.

    >>> recipe_of(described(Recipe(noise_scale=0.1))) == Recipe(noise_scale=0.1)
    True
    """
    names = {kind: name for name, kind in GUIDES.items()}
    content = {one.name: getattr(recipe, one.name) for one in fields(Recipe)}
    return content | {
        "model": asdict(recipe.model),
        "guide": names[recipe.guide],
        "accounting": recipe.accounting and asdict(recipe.accounting),
    }


def recipe_of(content: Any) -> Recipe:
    """Return the recipe that :func:`described` wrote, or a hand that left fields out.

    Raises:
        ValueError: naming the field that there is not, or whose type or value is wrong.
    """
    if not isinstance(content, Mapping):
        raise ValueError(f"a recipe must be an object, got {content!r:.80}")
    given = dict(content)
    kind = guide_named(given.pop("guide", "mean-field"))
    return built(Recipe, given, guide=kind)  # type: ignore[no-any-return]


def load(folder: Path) -> Fit:
    """Read a fit that ``bdpvi fit`` or ``bdpvi private`` wrote.

    Raises:
        ValueError: if the folder does not hold one.
    """
    extra = storage.read_extra(folder)
    if "model" not in extra:
        raise ValueError(
            f"{folder} was written by bdpvi.save_fit in Python, without the model that commands "
            "need: give a folder that `bdpvi fit` wrote, or in Python "
            f"bdpvi.spent(bdpvi.load_fit({str(folder)!r}, model, guide))"
        )
    try:
        recipe = recipe_of(extra)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{folder} does not hold a fit by `bdpvi fit`: {error}") from error
    return storage.load_fit(folder, recipe.model, recipe.made_guide())


def released(epsilon: float, path: Path, *, data: str = DEFAULT, method: str = USUAL) -> Recipe:
    """Return what the file has for one of this library's releases, at the ε nearest to this one.

    Args:
        epsilon: ε that releases will aim at.
        path: such as ``bdpvi tune`` writes.
        data: name of the table; one that the file lacks gets the default's.
        method: name of the release.

    Raises:
        ValueError: if the method is no release from a posterior, or the file cannot be used.
        OSError: if it cannot be opened.
    """
    validate.positive("epsilon", epsilon)
    guide = RELEASES[validate.choice("method", method, RELEASES)]
    _, section = section_of(read_json(path), data, path)
    try:
        entry = section["methods"].get(method, {})
        if at := section.get("at", {}).get(method, {}):
            entry = at[min(at, key=lambda e: abs(math.log(float(e) / epsilon)))]
        given = {k: v for k, v in entry.items() if k != "records"}  # of the search's own accounting
        return built(Recipe, given, guide=guide)  # type: ignore[no-any-return]
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path}: hyper-parameters of {method}: {error}") from error


def section_of(content: Any, data: str, path: Path) -> tuple[str, Mapping[str, Any]]:
    """Return the part of a file of hyper-parameters for one table, and its name.

    Raises:
        ValueError: if the file is no such file.
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


def built(kind: Callable[..., Any], entry: Any, path: str = "", **more: Any) -> Any:
    """Return ``kind(**entry, **more)``, each argument of its field's type.

    Raises:
        ValueError: naming the field whose type or value is wrong.
        TypeError: naming a field that there is not.
    """
    if not isinstance(entry, Mapping):
        raise ValueError(f"they must be an object, got {entry!r}")
    hints, arguments = get_type_hints(kind), dict(entry)
    for name, value in entry.items():
        hint = hints.get(name)
        if f"{path}{name}" in OBJECTS and value is not None:
            arguments[name] = built(OBJECTS[f"{path}{name}"], value, f"{path}{name}.")
        elif hint is not None and not _fits(value, hint):
            words = str(hint) if get_args(hint) else hint.__name__
            raise ValueError(f"{path}{name} must be {words}, got {value!r}")
    try:
        return kind(**arguments, **more)
    except TypeError as error:
        raise ValueError(str(error)) from error


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value from a JSON file has the type of a field, as numbers of 64 bits."""
    kinds = (hint, *get_args(hint))
    if isinstance(value, list):
        return any(get_origin(kind) is tuple for kind in kinds)
    if type(value) is int:
        return abs(value) < 2**63 and (int in kinds or float in kinds)
    return type(value) in kinds and (type(value) is not float or math.isfinite(value))
