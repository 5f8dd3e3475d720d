"""The file of a release, which may be shared."""

from __future__ import annotations

import json
from pathlib import Path

from bdpvi._ground import schema, store, validate
from bdpvi._ground.host import on_host
from bdpvi._ground.outputs import visible
from bdpvi.models.contract import Model
from bdpvi.models.kinds import Known
from bdpvi.releases.content import TYPES, Shared
from bdpvi.releases.received import release_of
from bdpvi.releases.released import Release

ROOM = 2**20
"""Bytes reserved on disk for a release before it is charged."""


@on_host
def save_release(release: Release, path: str | Path) -> None:
    """Write the public parts to a new JSON file: samples, their receipt, preprocessing.

    Raises:
        ValueError: if ``path`` exists, or the release is an experiment.
    """
    path, content = Path(path), release_bytes(release)
    path.parent.mkdir(parents=True, exist_ok=True)
    with store.claimed(path, ROOM) as temporary:
        store.fill(temporary, content)


@on_host
def release_bytes(release: Release) -> bytes:
    """Return the content of a release's file; see :func:`save_release`.

    Raises:
        ValueError: if the release is an experiment.
    """
    if release.receipt.experiment:
        raise ValueError(
            "release is an experiment: samples, batches or the choice of training rows follow a "
            "seed, so it is not saved; leave the seed out"
        )
    model = release.model
    values = {
        "samples": release.samples,
        **{f"latents.{name}": value for name, value in release.latents.items()},
        **{f"parameters.{name}": value for name, value in release.parameters.items()},
    }
    types = {name: str(value.dtype).split(".")[1] for name, value in values.items()}
    shared = Shared(
        receipt=release.receipt,
        model=model if isinstance(model, Known) else None,
        feature_names=release.feature_names,
        preprocessing=release.preprocessing,
        estimate=release.estimate,
        guide=release.guide,
        types={name: one for name, one in types.items() if one != TYPES[0]},
    )
    numbers = {
        "samples": release.samples.tolist(),
        "latents": {name: value.tolist() for name, value in release.latents.items()},
        "parameters": {name: value.tolist() for name, value in release.parameters.items()},
    }
    content = schema.to_json(shared) | numbers
    return visible(json.dumps(content, indent=2, ensure_ascii=False)).encode()


@on_host
def load_release(path: str | Path, model: Model | None = None) -> Release:
    """Read a release; ``model`` is needed unless it is one of bdpvi's regressions.

    The file is not trusted: no memory is allocated for sizes that it merely declares.

    Raises:
        ValueError: if the file is missing, truncated, too large or not a release.
    """
    path = Path(path)
    try:
        return release_of(store.read_shared(path), model)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is not a release: {validate.why(error)}") from error
