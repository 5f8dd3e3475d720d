"""A release in ArviZ's format; for the extra ``bdpvi[arviz]``."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from pyro.infer import Predictive
from torch import Tensor

from bdpvi.models.contract import Model
from bdpvi.models.predictions import check_exposures, within_bounds
from bdpvi.releases.content import Published
from bdpvi.releases.summarised import as_wide_as_intervals


def to_inference_data(release: Published, on: tuple[Model, Tensor] | None) -> Any:
    """Return the release's samples and receipt; see :meth:`Release.to_inference_data`.

    Args:
        release: the release.
        on: a model of features, and these, (N, d), if targets are drawn.
    """
    groups = {"posterior": as_wide_as_intervals(release).latents}
    if on is not None:
        model, features = on
        check_exposures(release.model, features)
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
