"""The content of a release's file, which is untrusted: invalid entries are refused by name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from bdpvi._ground import schema, validate
from bdpvi._ground.host import on_host
from bdpvi._ground.outputs import several
from bdpvi.datasets.columns import distinct_names
from bdpvi.datasets.encoding import Encoding
from bdpvi.models.contract import Model
from bdpvi.models.kinds import Known, shapes
from bdpvi.releases.basis import ASSUMED
from bdpvi.releases.content import TYPES, Shared
from bdpvi.releases.released import Release


@on_host
def release_of(content: bytes, model: Model | None = None) -> Release:
    """Return the release written by :func:`bdpvi.releases.shared_file.release_bytes`, of any size.

    Raises:
        ValueError: if an entry, which it names, is missing or wrong.
    """
    given = schema.parsed(content)
    numbers = {name: given.pop(name, {}) for name in ("samples", "latents", "parameters")}
    shared = Shared.of(given)
    samples = _numbers("samples", numbers["samples"], shared)
    latents, parameters = (
        _named_numbers(name, numbers[name], shared) for name in ("latents", "parameters")
    )
    model = model or shared.model
    if model is None:
        raise ValueError("the file does not contain the model: give the fitted one, model=")
    if samples.ndim != 2 or any(v.shape[:1] != samples.shape[:1] for v in latents.values()):
        raise ValueError("samples must have shape (draws, d), and latents as many draws")
    if isinstance(model, Known):
        _check_shapes(model, latents, shared)
    _check_words(shared, getattr(model, "classes", 0))
    return Release(
        samples=samples,
        latents=latents,
        receipt=shared.receipt,
        model=model,
        feature_names=distinct_names(shared.feature_names),
        preprocessing=shared.preprocessing,
        estimate=shared.estimate,
        guide=shared.guide,
        parameters=parameters,
    )


def _check_shapes(model: Known, latents: Mapping[str, torch.Tensor], shared: Shared) -> None:
    """Raise ValueError unless latents have the model's shapes."""
    found = {name: tuple(value.shape[1:]) for name, value in latents.items()}
    values = sum(math.prod(shape) for shape in found.values())
    features = len(shared.feature_names)
    for name, size in (
        ("feature_names", features),
        ("model.classes", getattr(model, "classes", 2)),
    ):
        validate.at_most(name, size, values + 1)  # before anything has that many
    for at in (one for group in getattr(model, "levels", ()) for one in group):
        validate.at_most("model.levels", at, features - 1)
    try:
        wanted = shapes(model, features)
    except ArithmeticError as error:  # a prior that is no number
        raise ValueError(f"model: {error}") from error
    if found != wanted:
        raise ValueError(f"latents must have the shapes {wanted}, got {found}")
    if shared.estimate is not None and len(shared.estimate.mean) != wanted["w"][0]:
        raise ValueError(f"estimate must be of {several(wanted['w'][0], 'weight')}")


def _check_words(shared: Shared, classes: int) -> None:
    """Raise ValueError unless the encoding has these features, and classes have names."""
    written = shared.preprocessing.get("encoding")
    if written is not None:
        encoding = Encoding.from_dict(written)
        assumed = {ASSUMED[origin] for origin in encoding.origins}
        if missing := assumed.difference(shared.receipt.bound.assumptions):
            raise ValueError(
                f"preprocessing.encoding.origin must be named by the receipt, which lacks "
                f"{min(one.name for one in missing)}"
            )
        names = encoding.feature_names
        if names != distinct_names(shared.feature_names):
            raise ValueError(
                "preprocessing.encoding must be of the "
                f"{several(len(shared.feature_names), 'feature')} of "
                f"feature_names, got {len(names)}"
            )
    target = shared.preprocessing.get("target")
    if not isinstance(target, Mapping):
        return
    for name in ("column", "positive", "negative"):
        given = target.get(name, "")
        validate.text(f"preprocessing.target.{name}", given, lambda _: True, "be text")
    labels = target.get("classes", ())
    whole = isinstance(labels, Sequence) and all(isinstance(label, str) for label in labels)
    if not whole or (labels and len(labels) != classes):
        raise ValueError(
            f"preprocessing.target.classes must be {classes} texts, got {labels!r:.80}"
        )


def _named_numbers(name: str, given: object, shared: Shared) -> dict[str, torch.Tensor]:
    if not isinstance(given, dict):
        raise ValueError(f"{name} must be a JSON object, got {given!r:.80}")
    return {key: _numbers(f"{name}.{key}", value, shared) for key, value in given.items()}


def _numbers(name: str, value: object, shared: Shared) -> torch.Tensor:
    kind = validate.choice(f"types.{name}", shared.types.get(name, TYPES[0]), TYPES)
    try:
        tensor = torch.tensor(value, dtype=getattr(torch, kind))
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{name} must be numbers: {error}") from error
    return validate.finite(name, tensor)
