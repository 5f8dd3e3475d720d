"""Recipes as JSON: in ``--settings``, in a fit's folder, and in files of a search."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bdpvi._ground import checkpoint, store, validate
from bdpvi._ground.schema import from_json, parsed
from bdpvi._ground.store import read_json
from bdpvi.bayesian import releases, storage
from bdpvi.bayesian.fit import Fit
from bdpvi.guides import GaussianGuide
from bdpvi.privacy.cost import Bound, Cost
from bdpvi.releases import intent
from bdpvi.tables.recipe import GUIDES, Recipe

RELEASES = {f"bdp-vi-{name}": name for name in GUIDES}
"""The releases in a file of hyper-parameters, and their guides."""
USUAL = "bdp-vi-mean-field"
DEFAULT = "default"
NEIGHBOURS = "neighbours"
"""The folder of finished neighbours in a working folder."""
SAVED = "saved"
"""The file in the working folder that names the fit, when it is about to be saved."""


def guide_named(name: str) -> type[GaussianGuide]:
    """Return the guide class for "full-rank" or "mean-field".

    Raises:
        ValueError: if the name is neither.
    """
    return GUIDES[validate.choice("guide", name, GUIDES)]


def unfinished(out: Path) -> Path:
    """Return the working folder of a fit until it is at ``out``."""
    return out.with_name(f"{out.name}.unfinished")


def sweep(out: Path) -> None:
    """Remove the working folder of a process that was killed after its fit was at ``out``."""
    left = unfinished(out.resolve())
    if left.is_dir() and storage.has_fit(out):
        with suppress(ValueError, OSError), store.held(left):  # another process holds it
            if (left / SAVED).read_text("utf-8") == storage.name_of(out):
                forget(left)


def forget(left: Path) -> None:
    """Remove a folder of :func:`unfinished`, and last the file that :func:`sweep` looks for."""
    checkpoint.forget(left / NEIGHBOURS)
    checkpoint.forget(left)


def load(folder: Path) -> Fit:
    """Read a fit of ``bdpvi fit`` or ``bdpvi private``, and :func:`sweep` its working folder.

    Raises:
        ValueError: if the folder does not hold one.
    """
    if not storage.has_fit(folder) and (folder / intent.NAME).exists():
        raise ValueError(
            f"{folder} has no fit: its release was computed from the table, whose rows are not "
            "kept. For another release run the same command with a larger --epsilon, the total "
            "of all releases, and another --out"
        )
    sweep(folder)
    extra = storage.read_extra(folder)
    if "model" not in extra:
        raise ValueError(
            f"{folder} was written by bdpvi.save_fit in Python, without the model that commands "
            "need: give a folder that `bdpvi fit` wrote, or in Python "
            f"bdpvi.cost(bdpvi.load_fit({str(folder)!r}, model, guide))"
        )
    try:
        recipe = from_json(Recipe, extra)
    except ValueError as error:
        raise ValueError(f"{folder} does not hold a fit by `bdpvi fit`: {error}") from error
    return storage.load_fit(folder, recipe.model, recipe.made_guide())


def cost(folder: Path, delta: float, for_groups_of: Sequence[float] | None = None) -> Cost:
    """Return the cost of everything spent on a table, with its release's assumptions.

    Args:
        folder: secret folder of a fit or of a work.
        delta: δ.
        for_groups_of: as for :func:`bdpvi.cost`.

    Raises:
        ValueError: if shares of groups are given and the folder has no fit.
    """
    if storage.has_fit(folder) or not folder.exists():
        return releases.cost(load(folder), delta=delta, for_groups_of=for_groups_of)
    if for_groups_of:
        raise ValueError(
            f"for_groups_of={[*for_groups_of]}: {folder} has no fit, and its release a worst case "
            "alone, which holds for every group"
        )
    found = storage.open_ledger(folder).worst_case(delta)
    output = intent.output_of(folder / intent.NAME)
    if found and output.exists():
        said = from_json(Bound, parsed(output.read_bytes())["receipt"]["worst_case"])
        found = found.assuming(*said.assumptions)
    return Cost(worst_case=found)


def released(epsilon: float, path: Path, *, data: str = DEFAULT, method: str = USUAL) -> Recipe:
    """Return the file's recipe for one of this library's releases, at the nearest ε.

    Args:
        epsilon: target ε of releases.
        path: a file such as ``bdpvi tune`` writes.
        data: name of the table; a table missing in the file gets the default's recipe.
        method: name of the release.

    Raises:
        ValueError: if the method is not a release from a posterior, or the file is invalid.
        OSError: if it cannot be opened.
    """
    validate.epsilon(epsilon)
    guide = RELEASES[validate.choice("method", method, RELEASES)]
    _, section = section_of(read_json(path), data, path)
    try:
        entry = section["methods"].get(method, {})
        if at := section.get("at", {}).get(method, {}):
            entry = at[min(at, key=lambda e: abs(math.log(float(e) / epsilon)))]
        given = {k: v for k, v in entry.items() if k != "records"}  # of the search's own accounting
        return from_json(Recipe, {**given, "guide": guide}, partial=True)
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{path}: hyper-parameters of {method}: {error}") from error


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
