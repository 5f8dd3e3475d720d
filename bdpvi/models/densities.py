"""Log predictive densities of targets, each a function of its own record alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions.util import scale_and_mask
from torch import Tensor

from bdpvi.models.contract import Model
from bdpvi.models.kinds import is_regression
from bdpvi.models.misfits import split
from bdpvi.models.parameters import TrainedModel

_AT_ONCE = 64
"""Values of the latents at once, for memory."""


def targets_of(
    model: Model, latents: Mapping[str, Tensor], tensors: tuple[Tensor, ...], names: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Return the sites of the targets of some records, by one value of the latents.

    Args:
        model: the model.
        latents: their values.
        tensors: features and targets, (N, ...) each.
        names: the model's arguments for them; () by position.

    Raises:
        ValueError: if records have latents of their own, or there is no target.
    """
    given = dict(zip(names, tensors, strict=False))
    conditioned = poutine.condition(TrainedModel.of(model), data=dict(latents))
    trace = poutine.trace(conditioned).get_trace(*(() if given else tensors), **given)
    own, seen = split(trace)
    if own:
        raise ValueError(
            f"model: site {own[0]['name']!r} is drawn for each record, so its target has no "
            "density that can be computed; integrate it out"
        )
    found = [dict(site) for site in seen if site["name"] not in latents]
    if not found:
        raise ValueError("model: it observes no target")
    return found


def log_densities(
    model: Model, latents: Mapping[str, Tensor], tensors: tuple[Tensor, ...], names: tuple[str, ...]
) -> Tensor:
    """Return log p(y | x) of each record for each of k values of the latents, (k, N), float64.

    It has no weights of records. A model of one's own is run on each record by itself, so that no
    record can move another's density, whatever the model does. Arguments are as for
    :func:`targets_of`; latents (k, ...) each.

    >>> import pyro.distributions as dist
    >>> def model(x, y=None):
    ...     w = pyro.sample("w", dist.Normal(0.0, 1.0))
    ...     with pyro.plate("records", len(x)):
    ...         pyro.sample("y", dist.Bernoulli(logits=w * x), obs=y)
    >>> found = log_densities(model, {"w": torch.zeros(1)}, (torch.ones(2), torch.ones(2)), ())
    >>> found.exp().round(decimals=6).tolist()
    [[0.5, 0.5]]
    """

    def together(latent: dict[str, Tensor], *rows: Tensor) -> Tensor:
        sites = targets_of(model, latent, rows, names)
        return torch.stack([_of_each(site, len(rows[0])) for site in sites]).sum(0)

    def alone(latent: dict[str, Tensor], *row: Tensor) -> Tensor:
        return together(latent, *(one.unsqueeze(0) for one in row))[0]

    number = len(next(iter(latents.values()))) if latents else 1
    draws = dict(latents) or {"": torch.zeros(1)}  # vmap takes a value at least
    over = (0, *(None for _ in tensors))
    each = torch.vmap(alone, (None, *(0 for _ in tensors)), randomness="different")
    if not len(tensors[0]):
        return torch.zeros(number, 0, dtype=torch.float64)
    with pyro.validation_enabled(False), torch.no_grad():
        try:
            run = together if is_regression(model) else each
            return torch.vmap(run, over, randomness="different", chunk_size=_AT_ONCE)(
                draws, *tensors
            )
        except RuntimeError:  # torch has no batches of some densities
            rows = [*zip(*tensors, strict=True)]
            values = [{name: one[k] for name, one in latents.items()} for k in range(number)]
            return torch.stack([torch.stack([alone(one, *row) for row in rows]) for one in values])


def _of_each(site: Mapping[str, Any], number: int) -> Tensor:
    """Return a site's log-density of each record, (N,), without weights and clips of scores."""
    inside = getattr(site["fn"], "base_dist", site["fn"])  # a plate expands it
    law = getattr(inside, "predictive", site["fn"])
    values = scale_and_mask(law.log_prob(site["value"]), mask=site["mask"]).double()
    frames = [one for one in site["cond_indep_stack"] if one.vectorized]
    frames = frames if len(frames) == 1 else [one for one in frames if one.size == number]
    if len(frames) != 1:
        raise ValueError(f"model: site {site['name']!r} is not in one plate over the records")
    at, whole = frames[0].dim, values.ndim
    others = [dim for dim in range(whole) if dim != whole + at]
    result: Tensor = (values.sum(others) if others else values).expand(number)
    return result
