"""Pyro models of records, and bdpvi's requirements on them.

A model is a callable ``model(x, y=None)`` that samples its global latent variables and then
observes ``y`` inside one ``pyro.plate`` over the given records::

    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

It never subsamples: its batch, and the weight of each record in the batch, come from the training
plan. A record may also have a weight computed from its own row: inside the plate,
``poutine.scale(scale=weights)`` with ``weights`` of shape (N,).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import Categorical, Transform, biject_to, constraints

from bdpvi._ground.host import drawing
from bdpvi._ground.isolation import isolated
from bdpvi._ground.types import tell_owner
from bdpvi.datasets.dataset import Dataset
from bdpvi.models.misfits import MisfitError, misfits, per_record, split

Model = Callable[..., Any]


class RecordWeights(Messenger):  # type: ignore[misc]
    """Multiply the log-likelihood of each record by its weight: 1/q in a batch of rate q."""

    def __init__(self, weights: Tensor | float) -> None:
        super().__init__()
        self.weights = weights

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if msg["is_observed"]:
            msg["scale"] = msg["scale"] * self.weights


def log_likelihood(model: Model, latents: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Return the log-likelihood of each record given the latent values, times its weight, (N,)."""
    trace = poutine.trace(poutine.condition(model, data=dict(latents))).get_trace(x, y)
    sites = [trace.nodes[name] for name in trace.observation_nodes if name not in latents]
    return torch.stack([log_density(site) for site in sites]).sum(0)


def log_density(site: Mapping[str, Any]) -> Tensor:
    """Return the log-density of a traced site's value, times its ``poutine.scale``."""
    return site["fn"].log_prob(site["value"]) * site["scale"]  # type: ignore[no-any-return]


class _Means(Messenger):  # type: ignore[misc]
    """Replace a target's sample by its mean: vmap cannot sample from every distribution."""

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if msg["value"] is None and type(msg["fn"]).__name__ != "_Subsample":
            msg["value"] = msg["fn"].mean


def predictive_means(model: Model, latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return the mean of each record's target for each of k values of the latents, (k, N).

    Args:
        model: the model.
        latents: their values, each (k, ...).
        x: features, (N, d).

    Raises:
        ValueError: if the target is one of several classes, which have no mean.
    """

    def mean(name: str, law: Any) -> Tensor:
        if isinstance(law, Categorical):
            raise ValueError(
                f"model: target {name!r} is one of several classes, which have no mean; use "
                "predict_proba"
            )
        return law.mean  # type: ignore[no-any-return]

    return _predicted(model, latents, x, mean)


def class_probabilities(model: Model, latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return the probabilities of 0 to K − 1 for each of k values of the latents, (k, N, K).

    Args:
        model, latents, x: as for :func:`predictive_means`.

    Raises:
        ValueError: if the target is neither 0 or 1 nor one of several classes.
    """

    def probabilities(name: str, law: Any) -> Tensor:
        if isinstance(law, Categorical):
            return law.probs
        if law.support is not constraints.boolean:
            raise ValueError(
                f"model: target {name!r} is {type(law).__name__} and not 0 or 1 or one of several "
                "classes, so it has no class and no probability; use predict_mean"
            )
        return torch.stack([1 - law.mean, law.mean], dim=-1)

    return _predicted(model, latents, x, probabilities)


def _predicted(
    model: Model, latents: Mapping[str, Tensor], x: Tensor, of: Callable[[str, Any], Tensor]
) -> Tensor:
    """Return a function of each record's target distribution, for each value of the latents."""

    def one(latent: dict[str, Tensor]) -> Tensor:
        trace = poutine.trace(poutine.condition(model, data=latent)).get_trace(x)
        sites = [site for site in trace.nodes.values() if site["type"] == "sample"]
        (target,) = (site for site in sites if per_record(site, x))
        return of(target["name"], target["fn"])

    with pyro.validation_enabled(False), torch.no_grad(), _Means():
        if not latents:  # a model with parameters only
            return one({}).unsqueeze(0)
        found = torch.vmap(one, randomness="different", chunk_size=256)(dict(latents))
    return found


def latent_sites(model: Model, x: Tensor, y: Tensor) -> dict[str, dict[str, Any]]:
    """Return the model's latent sites, after checking that bdpvi can account for the model.

    Raises:
        MisfitError: a ValueError, see :func:`bdpvi.models.misfits.misfits`.
    """
    with poutine.block(), torch.no_grad(), drawing(x.device):
        trace = poutine.trace(model).get_trace(x, y)
    if found := misfits(trace, x):
        raise MisfitError(found)
    return {site["name"]: dict(site) for site in split(trace)[0]}


@dataclass(frozen=True, eq=False)
class Site:
    """One latent variable: its position in the flat vector, and the map to its support."""

    name: str
    shape: torch.Size  # of the unconstrained value: a simplex has one entry fewer there
    transform: Transform


def sites(model: Model, x: Tensor, y: Tensor) -> tuple[Site, ...]:
    """Return the model's latent variables in the order of the flat unconstrained vector.

    Raises:
        ValueError: as in :func:`latent_sites`.
    """
    found = []
    for name, site in latent_sites(model, x, y).items():
        transform = biject_to(site["fn"].support)
        found.append(Site(name, transform.inverse_shape(site["value"].shape), transform))
    return tuple(found)


def transforms(model: Model, x: Tensor) -> dict[str, Transform]:
    """Return the maps from unconstrained values to the support of every sample site but targets.

    Args:
        model: the model, which is run once, without targets.
        x: features of one record, (1, d).
    """
    with isolated(x), poutine.block(), torch.no_grad(), pyro.validation_enabled(False):
        trace = poutine.trace(model).get_trace(x)
    found = {site["name"]: site["fn"].support for site in split(trace)[0]}
    return {n: biject_to(support) for n, support in found.items() if not support.is_discrete}


def fitting(model: Model, data: Dataset) -> Dataset:
    """Return the records that a model accepts; warn the owner how many it does not.

    Args:
        model: has a method ``takes(x, y)``, (N,), if it does not accept all records.
        data: records of any finite numbers.
    """
    takes = getattr(model, "takes", None)
    good = None if takes is None or not len(data) else takes(data.x, data.y)
    if good is None or bool(good.all()):
        return data
    why = "a target or an exposure is outside the range of the model"
    tell_owner(int((~good).sum()), "record", why, 4)
    return data.select(good)


def dimension(sites: Sequence[Site]) -> int:
    """Return d, the length of the flat vector."""
    return sum(site.shape.numel() for site in sites)


def parts(sites: Sequence[Site], flat: Tensor) -> list[Tensor]:
    """Return the unconstrained value of each latent variable in a flat vector, (d,)."""
    pieces = flat.split([site.shape.numel() for site in sites], dim=-1)
    return [piece.reshape(site.shape) for piece, site in zip(pieces, sites, strict=True)]


def unpack(sites: Sequence[Site], flat: Tensor) -> dict[str, Tensor]:
    """Return the model's latent variables for one flat unconstrained vector, (d,)."""
    return {s.name: s.transform(part) for s, part in zip(sites, parts(sites, flat), strict=True)}
