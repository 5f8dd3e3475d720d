"""Pyro models of records, and bdpvi's requirements on them.

A model is a callable ``model(x, y=None)`` that samples its global latent variables and then
observes ``y`` inside one ``pyro.plate`` over the given records::

    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

Latent variables of groups may lie in plates of their own, whose number of groups is fixed::

    with pyro.plate("groups", 8):
        effect = pyro.sample("effect", dist.Normal(centre, spread))

The group of a record then stands in its features, and the number of groups is public.

It never subsamples: its batch, and the weight of each record in the batch, come from the training
plan. A record may also have a weight computed from its own row: inside the plate,
``poutine.scale(scale=weights)`` with ``weights`` of shape (N,).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Transform

Model = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Site:
    """One latent variable: its position in the flat vector, and the map to its support."""

    name: str
    shape: torch.Size  # of the unconstrained value: a simplex has one entry fewer there
    transform: Transform


class Prior(NamedTuple):
    """Independent normals: the prior of one latent variable.

    Attributes:
        mean: in the latent variable's shape.
        sd: the standard deviation of each, ().
    """

    mean: Tensor
    sd: Tensor


def name_of(model: object) -> str:
    """Return the name of a model: of a function its own, of an object that of its class.

    >>> name_of(name_of), name_of(1)
    ('name_of', 'int')
    """
    own = getattr(model, "model", model)  # of one with values for its parameters
    return getattr(own, "__name__", type(own).__name__)


def log_prior(x: Tensor, *shape: int) -> Prior:
    """Return N(0, 2²), the prior of the logarithms of scales, of type and device of ``x``."""
    return Prior(x.new_zeros(shape), x.new_tensor(2.0))


def with_features(model: Model, features: Mapping[str, Tensor]) -> Model:
    """Return a model of x with these features by name: of x only the number of records is used."""
    return lambda _: model(**features)


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
