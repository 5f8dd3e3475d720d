"""Converts Pyro's automatic guides to guides that can be accounted for."""

from __future__ import annotations

from collections.abc import Callable
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

from bdpvi._ground.isolation import isolated
from bdpvi.datasets.dataset import Dataset
from bdpvi.guides.full_rank import FullRank
from bdpvi.guides.gaussian import GaussianGuide
from bdpvi.guides.laplace import Laplace
from bdpvi.guides.low_rank import LowRank
from bdpvi.guides.mean_field import MeanField
from bdpvi.models.contract import Model


def _of_sites(auto: AutoNormal) -> dict[str, Tensor]:
    names = [name for name, _ in auto.prototype_trace.iter_stochastic_nodes()]
    return {
        ours: torch.cat([attrgetter(name)(theirs).flatten() for name in names])
        for ours, theirs in (("loc", auto.locs), ("scale", auto.scales))
    }


_TYPES: dict[type, tuple[type[GaussianGuide], dict[str, str], Callable[[Any], dict[str, Tensor]]]]
_TYPES = {
    AutoDiagonalNormal: (
        MeanField,
        {"init_scale": "_init_scale"},
        lambda auto: {"loc": auto.loc, "scale": auto.scale},
    ),
    AutoNormal: (MeanField, {"init_scale": "_init_scale"}, _of_sites),
    AutoMultivariateNormal: (
        FullRank,
        {"init_scale": "_init_scale"},
        lambda auto: {"loc": auto.loc, "scale_tril": auto.scale.unsqueeze(-1) * auto.scale_tril},
    ),
    AutoLowRankMultivariateNormal: (
        LowRank,
        {"init_scale": "_init_scale", "rank": "rank"},
        lambda auto: {
            "loc": auto.loc,
            "scale": auto.scale,
            "cov_factor": auto.cov_factor * auto.scale.unsqueeze(-1),
        },
    ),
    AutoLaplaceApproximation: (Laplace, {}, lambda auto: {"loc": auto.loc}),
}
"""For each of Pyro's guides: ours, where it has our settings, and its parameters by our names."""

_SEED = 0x5EED_0F_57A275
"""Seed of a start, which simulated records do not have: they would be found in it."""


def of(
    auto: AutoGuide,
    model: Model,
    data: Dataset,
    *,
    start_is_public: bool = False,
    **settings: Any,
) -> GaussianGuide:
    """Return this library's guide for the same family of Gaussians as a Pyro guide.

    ``AutoDiagonalNormal`` and ``AutoNormal`` become :class:`~bdpvi.guides.MeanField`,
    ``AutoMultivariateNormal`` becomes :class:`~bdpvi.guides.FullRank`,
    ``AutoLowRankMultivariateNormal`` becomes :class:`~bdpvi.guides.LowRank` and
    ``AutoLaplaceApproximation`` becomes :class:`~bdpvi.guides.Laplace`. The new guide keeps
    ``init_scale``, the rank, and the initial location of ``init_loc_fn``, computed on one record of
    zeros from a fixed seed, so that it depends on no record. If the Pyro guide has been run, its
    parameters are the start.

    Args:
        auto: Pyro's guide. It is not changed.
        model: the model that it was made for.
        data: the records; only their shape and dtype matter.
        start_is_public: whether the parameters of a guide that has been run are public: trained on
            public records, or not at all. If they were trained on the protected records they are
            not public, and the fit's ε would not cover what they leak.
        settings: ``ridge``, ``noise_scale`` and ``grid`` of the new guide.

    Raises:
        ValueError: if this library has no such guide, if ``auto`` has been run without
            ``start_is_public``, or if its latent variables are not the model's.

    >>> from bdpvi import BayesianLogisticRegression, datasets
    >>> model, data = BayesianLogisticRegression.unweighted(), datasets.load_breast_cancer().train
    >>> type(of(AutoMultivariateNormal(model, init_scale=0.2), model, data)).__name__
    'FullRank'
    """
    if type(auto) not in _TYPES:
        known = ", ".join(one.__name__ for one in _TYPES)
        raise ValueError(f"guide: {type(auto).__name__} cannot be accounted for; use {known}")
    if auto.prototype_trace is not None and not start_is_public:
        raise ValueError(
            f"guide: this {type(auto).__name__} has been run, and if it was trained on these "
            "records no ε covers its parameters. Make a new one, or say that they are public: "
            "bdpvi.guides.of(guide, model, data, start_is_public=True)"
        )
    kind, kept, parameters = _TYPES[type(auto)]
    guide = kind(model, **settings, **{ours: getattr(auto, name) for ours, name in kept.items()})
    x, y = torch.zeros_like(data.x[:1]), torch.zeros_like(data.y[:1])
    with (
        isolated(data.x, seed=_SEED),
        pyro.validation_enabled(False),
        poutine.block(),
        torch.no_grad(),
    ):
        guide.setup(x, y)
        if auto.prototype_trace is None:
            with _Cast(x):
                trace = poutine.trace(auto.model).get_trace(x, y)
            start = {"loc": _flat(guide, trace)}
        else:
            _flat(guide, auto.prototype_trace)  # refuses the latents of another model
            start = parameters(auto)
        guide.start = {name: value.detach().clone() for name, value in start.items()}
        guide.initial(x)  # raises if they do not fit
    return guide


class _Cast(Messenger):  # type: ignore[misc]
    """Convert the latent values of any ``init_loc_fn`` to the dtype of the model's records."""

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
