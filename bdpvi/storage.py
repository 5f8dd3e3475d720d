"""Fits and releases on disk. A fit's folder is secret; a release's file is what may be shared."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from bdpvi.divergences import GaussianPairs
from bdpvi.fit import Fit
from bdpvi.ledger import Ledger
from bdpvi.models import BayesianLogisticRegression, Model
from bdpvi.panel import Panel
from bdpvi.plan import Plan
from bdpvi.release import Release
from bdpvi.store import replacing
from bdpvi.svi import Convergence, Guide
from bdpvi.types import Diagnostics, Spent, WorstCase

_FORMAT = 1


def save_fit(fit: Fit, path: str | Path, *, extra: Mapping[str, Any] | None = None) -> None:
    """Write ``fit`` to the folder ``path``, readable by its owner only; whole or not at all.

    From then on the fit's charges are kept in that folder too.

    Args:
        fit: what :func:`bdpvi.fit` returned.
        path: a folder that does not exist yet: an old fit and its ledger are never overwritten.
        extra: anything JSON that the caller needs to build model and guide again.
    """
    path = Path(path)
    if path.exists():
        raise ValueError(f"path={str(path)!r} exists already; a fit is never overwritten")
    if fit.training is not None:
        raise ValueError("fit was trained with account_training, which cannot be saved")
    tensors = {f"parameters.{name}": value for name, value in fit.parameters.items()}
    tensors |= {"elbo": fit.convergence.elbo, "gradient_norm": fit.convergence.gradient_norm}
    for panel in fit.panels:
        tensors[f"panels.{panel.kind}.ids"] = panel.ids
        tensors[f"panels.{panel.kind}.r"] = panel.pairs.r
        tensors[f"panels.{panel.kind}.b2"] = panel.pairs.b2
    about = {
        "format": _FORMAT,
        "plan": asdict(fit.plan),
        "data_name": fit.data_name,
        "feature_names": fit.feature_names,
        "preprocessing": fit.preprocessing,
        "fingerprint": fit.fingerprint,
        "ridge": fit.guide.ridge,
        "noise_scale": fit.guide.noise_scale,
        "largest": {panel.kind: panel.largest for panel in fit.panels},
        "extra": dict(extra or {}),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))  # mode 0700
    try:
        save_file({k: v.contiguous().cpu() for k, v in tensors.items()}, folder / "fit.safetensors")
        (folder / "fit.json").write_text(json.dumps(about, indent=2), encoding="utf-8")
        ledger = Ledger(folder / "ledger.jsonl")
        for charge in fit.ledger.charges():
            ledger.charge(charge)
        folder.rename(path)
    except BaseException:
        shutil.rmtree(folder)
        raise
    fit.ledger.path = path / "ledger.jsonl"


def read_extra(path: str | Path) -> dict[str, Any]:
    """Return what :func:`save_fit` was given as ``extra``."""
    return _read_about(Path(path))["extra"]  # type: ignore[no-any-return]


def load_fit(path: str | Path, model: Model, guide: Guide) -> Fit:
    """Read a fit back, with its ledger; ``model`` and ``guide`` must be built as they were.

    Raises:
        ValueError: if a file is missing, truncated or unreadable.
    """
    path = Path(path)
    about = _read_about(path)
    file = path / "fit.safetensors"
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    for name, usual in (("ridge", 0.0), ("noise_scale", None)):
        made, now = about.get(name, usual), getattr(guide, name)
        if now != made:
            raise ValueError(f"guide has {name}={now}, and {path} was made with {made}")
    kinds = [name.split(".")[1] for name in tensors if name.endswith(".ids")]
    panels = tuple(
        Panel(
            kind,
            tensors[f"panels.{kind}.ids"],
            GaussianPairs(tensors[f"panels.{kind}.r"], tensors[f"panels.{kind}.b2"]),
            about.get("largest", {}).get(kind),
        )
        for kind in kinds
    )
    parameters = {
        name.removeprefix("parameters."): value
        for name, value in tensors.items()
        if name.startswith("parameters.")
    }
    like = parameters["loc"]
    guide.setup(like.new_zeros(3, len(about["feature_names"])), like.new_zeros(3))
    guide.parameters = dict(parameters)
    return Fit(
        model=model,
        guide=guide,
        parameters=parameters,
        panels=panels,
        convergence=Convergence(tensors["elbo"], tensors["gradient_norm"]),
        plan=Plan(**about["plan"]),
        data_name=about["data_name"],
        feature_names=tuple(about["feature_names"]),
        preprocessing=about["preprocessing"],
        fingerprint=about["fingerprint"],
        ledger=Ledger(path / "ledger.jsonl"),
    )


def save_release(release: Release, path: str | Path) -> None:
    """Write what may be shared to a JSON file: samples, their price, public constants."""
    model = release.model
    content = {
        "format": _FORMAT,
        "samples": release.samples.tolist(),
        "latents": {name: value.tolist() for name, value in release.latents.items()},
        "temperature": release.temperature,
        "spent": asdict(release.spent),
        "model": asdict(model) if isinstance(model, BayesianLogisticRegression) else None,
        "feature_names": release.feature_names,
        "preprocessing": release.preprocessing,
    }
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")


def load_release(path: str | Path, model: Model | None = None) -> Release:
    """Read a release back; ``model`` is needed unless it is :class:`BayesianLogisticRegression`.

    Raises:
        ValueError: if the file is missing, truncated or not a release.
    """
    path = Path(path)
    content = _read_json(path)
    try:
        if model is None:
            model = BayesianLogisticRegression(**content["model"])
        spent = dict(content["spent"])
        spent["diagnostics"] = Diagnostics(**spent["diagnostics"])
        if spent["worst_case"] is not None:
            spent["worst_case"] = WorstCase(**spent["worst_case"])
        latents = content["latents"].items()
        return Release(
            samples=torch.tensor(content["samples"], dtype=torch.float64),
            latents={name: torch.tensor(v, dtype=torch.float64) for name, v in latents},
            temperature=content["temperature"],
            spent=Spent(**spent),
            model=model,
            feature_names=tuple(content["feature_names"]),
            preprocessing=content["preprocessing"],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a release: {error}") from error


def _read_about(path: Path) -> dict[str, Any]:
    about = _read_json(path / "fit.json")
    if about.get("format") != _FORMAT:
        raise ValueError(f"{path / 'fit.json'} has format {about.get('format')!r}, not {_FORMAT}")
    return about


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} does not hold a JSON object")
    return content
