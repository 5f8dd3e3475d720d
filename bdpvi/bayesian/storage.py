"""Fits and releases on disk. A fit's folder is secret; a release's file may be shared."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from bdpvi._ground import chain, schema, store, validate
from bdpvi._ground.host import on_host
from bdpvi.bayesian import pricing
from bdpvi.bayesian.accounting import record_losses
from bdpvi.bayesian.fit import Fit, Kept
from bdpvi.bayesian.inference.guide import Guide
from bdpvi.bayesian.saved import About, LedgerPlace, Numbers, OfGuide
from bdpvi.datasets.dataset import People
from bdpvi.models.contract import Model
from bdpvi.models.logistic import with_categories
from bdpvi.privacy.ledger import Ledger
from bdpvi.releases import intent, receipts

_OF_GUIDE = ("ridge", "noise_scale", "grid")
_ABOUT, _TENSORS, _LEDGER = "fit.json", "fit.safetensors", "ledger.jsonl"


@on_host
def save_fit(fit: Fit, path: str | Path, *, extra: Mapping[str, Any] | None = None) -> None:
    """Write ``fit`` to the folder ``path``, readable by its owner only; completely or not at all.

    A ledger in memory moves to a file in that folder; a ledger in a file stays there. fit.json has
    the digest of fit.safetensors, and the ledger that of fit.json, so that none can be changed
    alone.

    Args:
        fit: the result of :func:`bdpvi.fit`.
        path: a new folder: an old fit and its ledger are never overwritten.
        extra: any JSON that the caller needs to build model and guide again.
    """
    if not store.nothing_at(Path(path)):  # a broken link counts as existing
        raise ValueError(f"path={str(path)!r} exists already; a fit is never overwritten")
    path = Path(path).resolve()
    store.make_folder(path.parent)
    with fit.ledger.locked():
        numbers, about = _files(fit, path, extra)
        with store.claimed_folder(path) as folder:
            store.write(folder / _TENSORS, numbers)
            store.write(folder / _ABOUT, about)
            fit.ledger.bind(_digest(about))
            if fit.ledger.path is None:
                record_losses.keep_beside(fit.ledger, folder / _LEDGER)
                chain.save(folder / _LEDGER, fit.ledger.content())
        fit.kept.folder = path
        if fit.ledger.path is None:
            fit.ledger.move(path / _LEDGER)


def has_fit(path: Path) -> bool:
    """Return whether a folder has a fit, complete or not."""
    return (path / _ABOUT).exists()


def _ledger(folder: Path, content: bytes, about: About) -> Ledger:
    """Return the ledger at its place when the fit was saved, which a copy of the folder shares.

    If that is not the fit's, folder and ledger were moved: use its path relative to the folder.
    """
    place = Path(about.ledger.path)
    with suppress(ValueError, OSError):
        if place.is_absolute() and Ledger(place).holds(_digest(content)):
            return Ledger(place)
    return Ledger(folder / about.ledger.from_here)


def _files(fit: Fit, path: Path, extra: Mapping[str, Any] | None) -> tuple[bytes, bytes]:
    """Return the contents of the two files of a fit to save at ``path``."""
    ledger = path / _LEDGER if fit.ledger.path is None else fit.ledger.path
    tensors, guide = _numbers_of(fit)
    numbers = save({name: value.contiguous().cpu() for name, value in tensors.items()})
    try:
        content = About(
            sha256=_digest(numbers),
            data_name=fit.data_name,
            feature_names=fit.feature_names,
            preprocessing=fit.preprocessing,
            records=fit.records,
            name=fit.kept.name,
            ledger=LedgerPlace(path=str(ledger), from_here=os.path.relpath(ledger, path)),
            guide=guide,
            extra=extra or {},
        )
        about = json.dumps(schema.to_json(content), indent=2).encode()
        About.parse(about)  # write only what can be read back
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"fit or extra cannot be saved: {error}") from error
    return numbers, about


def _numbers_of(fit: Fit) -> tuple[dict[str, torch.Tensor], OfGuide]:
    """Return the tensors of a fit of a guide, and its entries in the file."""
    tensors = {f"parameters.{name}": value for name, value in fit.parameters.items()}
    tensors |= {"elbo": fit.convergence.elbo, "gradient_norm": fit.convergence.gradient_norm}
    tensors |= record_losses.tensors_of(fit.panels)
    return tensors, OfGuide(
        plan=fit.plan,
        fingerprint=fit.fingerprint,
        ridge=fit.guide.ridge,
        grid=fit.guide.grid,
        noise_scale=fit.guide.noise_scale,
        accounting=fit.accounting,
        largest={panel.kind: panel.largest for panel in fit.panels},
        influence={panel.kind: panel.influence for panel in fit.panels if panel.influence},
        one_hot=getattr(fit.model, "one_hot", None),
    )


def read_extra(path: str | Path) -> Mapping[str, Any]:
    """Return the ``extra`` of :func:`save_fit`.

    Raises:
        ValueError: if fit.json or the ledger is missing, was changed or cannot be read.
    """
    return _about(Path(path).resolve())[0].extra


def open_ledger(path: str | Path) -> Ledger:
    """Return the ledger at ``path``, or of the fit or work in that folder; it may be damaged."""
    folder = Path(path).resolve()
    if not folder.is_dir():
        return Ledger(folder)
    if not has_fit(folder) and (folder / intent.NAME).exists():
        return Ledger(intent.read(folder / intent.NAME).ledger)
    file = folder / _ABOUT
    content = _read(file)
    try:
        return _ledger(folder, content, About.parse(content))
    except ValueError as error:
        raise ValueError(f"{file} cannot be used: {error}") from error


def name_of(path: str | Path) -> str:
    """Return the id in the ledger of the fit in the folder ``path``; "" if that is a ledger."""
    if not has_fit(Path(path)):
        return ""
    return About.parse(_read(Path(path) / _ABOUT)).name


def load_fit(path: str | Path, model: Model, guide: Guide) -> Fit:
    """Read a fit, with its ledger; ``model`` and ``guide`` must be built as before.

    Args:
        path: the folder.
        model: the fitted model.
        guide: the fitted guide.

    Raises:
        ValueError: if a file is missing, was changed or cannot be read, or if model or guide
            differs.
    """
    folder = Path(path).resolve()
    about, ledger = _about(folder)
    receipts.check(folder, ledger)
    file = folder / _TENSORS
    content = _read(file)
    if _digest(content) != about.sha256:
        raise ValueError(f"{file} was changed: it does not match {folder / _ABOUT}")
    where = Kept(People(ledger), about.name, folder)
    try:
        fit = _fit(folder, about, model, guide, content, where)
    except ValueError as error:
        raise ValueError(f"{file} cannot be used: {error}") from error
    pricing.keep_again(fit)
    return fit


@on_host
def _fit(
    folder: Path, about: About, model: Model, guide: Guide, content: bytes, where: Kept
) -> Fit:
    """Return a fit of a guide."""
    made, now = ({n: getattr(one, n) for n in _OF_GUIDE} for one in (about.guide, guide))
    schema.require_same(str(folder), made, now, "build the guide as it was built before")
    numbers = Numbers.parse(content, about, guide)
    guide.parameters = dict(numbers.parameters)
    return Fit(
        model=with_categories(model, about.guide.one_hot),
        guide=guide,
        parameters=numbers.parameters,
        panels=numbers.panels,
        convergence=numbers.convergence,
        plan=about.guide.plan,
        data_name=about.data_name,
        feature_names=about.feature_names,
        preprocessing=about.preprocessing,
        fingerprint=about.guide.fingerprint,
        records=about.records,
        accounting=about.guide.accounting,
        kept=where,
    )


def _about(folder: Path) -> tuple[About, Ledger]:
    """Return the content of fit.json and its ledger, after checking both."""
    file = folder / _ABOUT
    content = _read(file)
    try:
        about = About.parse(content)
    except ValueError as error:
        raise ValueError(f"{file} cannot be used: {error}") from error
    ledger = _ledger(folder, content, about)
    try:
        bound = ledger.holds(_digest(content))
    except ValueError as error:
        first = (
            f"first try `bdpvi account {folder} --repair`, as receipts there may say what is lost"
        )
        raise ValueError(f"{file} has a ledger that cannot be used: {error}; {first}") from error
    if not bound:
        raise ValueError(
            f"{ledger.path} does not match {file}: one of the two was changed or replaced. "
            "Restore the matching one, or fit again"
        )
    return about, ledger


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {validate.why(error)}") from error
