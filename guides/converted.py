"""Pyro's own automatic guides, as guides that can be accounted for."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer.autoguide import (
    AutoDiagonalNormal,
    AutoGuide,
    AutoLaplaceApproximation,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import prune_subsample_sites
from torch import Tensor
from torch.distributions import biject_to

from bdpvi._runtime.isolation import isolated
from bdpvi.guides.full_rank import FullRank
from bdpvi.guides.gaussian import GaussianGuide
from bdpvi.guides.laplace import Laplace
from bdpvi.guides.low_rank import LowRank
from bdpvi.guides.mean_field import MeanField
from bdpvi.models.contract import Model
from bdpvi.types import Dataset

_TYPES: dict[type, type[GaussianGuide]] = {
    AutoDiagonalNormal: MeanField,
    AutoNormal: MeanField,
    AutoMultivariateNormal: FullRank,
    AutoLowRankMultivariateNormal: LowRank,
    AutoLaplaceApproximation: Laplace,
}


def of(
    auto: AutoGuide,
    model: Model,
    data: Dataset,
    *,
    start_is_public: bool = False,
    **settings: Any,
) -> GaussianGuide:
    """Return the guide of this library that is the same family of Gaussians as one of Pyro's.

    ``AutoDiagonalNormal`` and ``AutoNormal`` become :class:`~bdpvi.guides.MeanField`,
    ``AutoMultivariateNormal`` becomes :class:`~bdpvi.guides.FullRank` and
    ``AutoLowRankMultivariateNormal`` becomes :class:`~bdpvi.guides.LowRank`,
    ``AutoLaplaceApproximation`` becomes :class:`~bdpvi.guides.Laplace`. Taken over are its
    ``init_scale``, its rank, and where its ``init_loc_fn`` puts the latents: found on one record of
    zeros from a fixed seed, so that no record has a part in it. If it has been run already, its
    parameters are the start.

    Args:
        auto: Pyro's guide. It stays as it is.
        model: the model that it was made for.
        data: the records; only their shape and type matter.
        start_is_public: whether parameters of a guide that has been run are public: trained on
            public records, or not at all. Trained on the records that are to be protected they are
            not, and no ε of the fit would say what they give away.
        settings: ``ridge``, ``noise_scale`` and ``grid`` of the new guide.

    Raises:
        ValueError: if there is no such guide here, if ``auto`` has been run without
            ``start_is_public``, or if its latent variables are not the model's.

    >>> from bdpvi import BayesianLogisticRegression, datasets
    >>> model, data = BayesianLogisticRegression.unweighted(), datasets.load_breast_cancer().train
    >>> type(of(AutoMultivariateNormal(model, init_scale=0.2), model, data)).__name__
    'FullRank'
    """
    kind = _TYPES.get(type(auto))
    if kind is None:
        known = ", ".join(one.__name__ for one in _TYPES)
        raise ValueError(f"guide: {type(auto).__name__} cannot be accounted for; use {known}")
    if auto.prototype_trace is not None and not start_is_public:
        raise ValueError(
            f"guide: this {type(auto).__name__} has been run, and if it was trained on these "
            "records no ε covers its parameters. Make a new one, or say that they are public: "
            "bdpvi.guides.of(guide, model, data, start_is_public=True)"
        )
    if kind is LowRank:
        settings["rank"] = auto.rank
    if kind is not Laplace:  # which has no first scale
        settings["init_scale"] = auto._init_scale
    guide = kind(model, **settings)
    x, y = torch.zeros_like(data.x[:1]), torch.zeros_like(data.y[:1])
    with isolated(data.x, seed=0), pyro.validation_enabled(False), poutine.block(), torch.no_grad():
        guide.setup(x, y)
        if auto.prototype_trace is None:
            with _Cast(x):
                trace = poutine.trace(auto.model).get_trace(x, y)
            start = {"loc": _flat(guide, trace)}
        else:
            start = _trained(auto, _flat(guide, auto.prototype_trace))
        guide.start = {name: value.detach().clone() for name, value in start.items()}
        guide.initial(x)  # which raises where they do not fit
    return guide


class _Cast(Messenger):  # type: ignore[misc]
    """Give a model its latent values in the type of its records, whatever ``init_loc_fn`` gives."""

    def __init__(self, like: Tensor) -> None:
        super().__init__()
        self.like = like

    def _pyro_post_sample(self, msg: dict[str, Any]) -> None:
        if msg["value"].is_floating_point():
            msg["value"] = msg["value"].to(self.like)


def _flat(guide: GaussianGuide, trace: poutine.Trace) -> Tensor:
    """Return the values of a trace as the guide's flat vector."""
    values = {
        name: biject_to(site["fn"].support).inv(site["value"])
        for name, site in prune_subsample_sites(trace).iter_stochastic_nodes()
    }
    names = [site.name for site in guide.sites]
    if list(values) != names:
        raise ValueError(f"guide was made for a model of {list(values)}, the model has {names}")
    return torch.cat([value.flatten() for value in values.values()])


def _trained(auto: AutoGuide, like: Tensor) -> dict[str, Tensor]:
    """Return the parameters of a guide that has been run, as those of ours."""
    if isinstance(auto, AutoNormal):
        names = [name for name, _ in auto.prototype_trace.iter_stochastic_nodes()]
        return {
            ours: torch.cat([attrgetter(name)(theirs).flatten() for name in names])
            for ours, theirs in (("loc", auto.locs), ("scale", auto.scales))
        }
    if isinstance(auto, AutoLaplaceApproximation):
        return {"loc": auto.loc}
    start = {"loc": auto.loc, "scale": auto.scale}
    if isinstance(auto, AutoMultivariateNormal):
        return {"loc": auto.loc, "scale_tril": auto.scale.unsqueeze(-1) * auto.scale_tril}
    if isinstance(auto, AutoLowRankMultivariateNormal):
        start["cov_factor"] = auto.cov_factor * auto.scale.unsqueeze(-1)
    return start
