"""A release in ArviZ's format; for the extra ``bdpvi[arviz]``."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from pyro.infer import Predictive
from torch import Tensor

from bdpvi._ground import validate
from bdpvi.datasets.named import features_of
from bdpvi.models.contract import Model, with_features
from bdpvi.models.predictions import check_exposures, within_bounds
from bdpvi.releases.content import Published


def to_inference_data(release: Published, x: Any = None) -> Any:
    """Return the release's samples and receipt; see :meth:`Release.to_inference_data`."""
    groups = {"posterior": release.latents}
    if x is not None:
        model, features = _model_and_features(release, x)
        drawn = Predictive(model, release.latents)(features)
        clipped = {name: within_bounds(release.model, one) for name, one in drawn.items()}
        groups["posterior_predictive"] = clipped
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # ArviZ 0 warns of ArviZ 1
            import arviz
    except ImportError as error:
        raise ImportError("ArviZ is not installed: pip install 'bdpvi[arviz]'") from error
    import xarray

    # netCDF files support neither None nor booleans.
    receipt = {
        name: int(value) if isinstance(value, bool) else _text(value)
        for name, value in _flat(release.receipt.to_dict())
        if value not in (None, "", [])
    }
    made = {
        name: xarray.Dataset(_variables(values), attrs=receipt) for name, values in groups.items()
    }
    if arviz.__version__.startswith("0."):
        return arviz.InferenceData(**made)
    return xarray.DataTree.from_dict(made)


def _model_and_features(release: Published, x: Any) -> tuple[Model, Tensor]:
    """Return a model of features, and these, (N, d)."""
    if release.guide is not None and (arguments := release.guide.arguments):
        found = features_of(arguments, x, release.samples)
        first = next(iter(found.values()))
        return with_features(release.model, found), release.samples.new_zeros(len(first), 0)
    width = len(release.feature_names)
    if x.ndim != 2 or x.shape[1] != width:
        raise ValueError(f"x must have shape (records, {width}), got {tuple(x.shape)}")
    check_exposures(release.model, validate.finite("x", x))
    return release.model, x.to(release.samples)


def _flat(content: Mapping[str, Any], name: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{name}{key}_")
        else:
            yield f"{name}{key}", value


def _text(value: Any) -> Any:
    return ". ".join(value) if isinstance(value, list) else value


def _variables(values: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return each variable's dimensions and values: one chain, one draw for each sample."""
    return {
        name: (
            ("chain", "draw", *(f"{name}_dim_{i}" for i in range(value.ndim - 1))),
            value[None].numpy(),
        )
        for name, value in values.items()
    }
