"""Fits that were saved with all it takes to build their model and guide again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bdpvi import guides
from bdpvi._fit import Fit
from bdpvi._runtime import validate
from bdpvi.guides import GaussianGuide
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.releasing import storage

GUIDES = {"full-rank": "FullRank", "mean-field": "MeanField"}


def described(settings: Any) -> dict[str, Any]:
    """Return what a saved fit keeps of its settings, to build model and guide again."""
    names = {kind: name for name, kind in GUIDES.items()}
    return {
        "model": asdict(settings.model),
        "guide": names[settings.guide.__name__],
        "noise_scale": settings.noise_scale,
        "ridge": settings.ridge,
    }


def guide_of(model: Any, made: Mapping[str, Any]) -> GaussianGuide:
    """Return the guide that ``guide``, ``noise_scale`` and ``ridge`` of ``made`` describe."""
    kind = getattr(guides, GUIDES[validate.choice("guide", made["guide"], GUIDES)])
    guide: GaussianGuide = kind(model, noise_scale=made["noise_scale"], ridge=made["ridge"])
    return guide


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
        model = BayesianLogisticRegression(**extra["model"])
        guide = guide_of(model, extra)
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"{folder} does not hold a fit by `bdpvi fit`: {error!r}") from error
    return storage.load_fit(folder, model, guide)
