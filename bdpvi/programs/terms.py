"""The terms of the negative ELBO that a loss makes of two traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pyro import poutine
from pyro.distributions.util import scale_and_mask
from pyro.infer import TraceEnum_ELBO, TraceMeanField_ELBO
from pyro.infer.traceenum_elbo import _compute_model_factors
from pyro.ops import packed
from pyro.ops.contract import contract_tensor_tree
from torch import Tensor
from torch.distributions import kl_divergence

from bdpvi.models.misfits import Site

Chosen = Callable[[str, Site], bool]


def negative_elbo(
    loss: Any, modelled: poutine.Trace, guided: poutine.Trace, chosen: Chosen
) -> Tensor:
    """Return the negative ELBO of the chosen sites, without enumeration.

    ``TraceMeanField_ELBO`` has divergences of sites in closed form where torch knows them, as Pyro
    does.
    """
    total = torch.zeros(())
    closed = isinstance(loss, TraceMeanField_ELBO)
    for trace in (modelled, guided):
        trace.compute_log_prob(chosen)
    for name, site in modelled.nodes.items():
        if site["type"] == "sample" and "log_prob_sum" in site:
            other = guided.nodes.get(name, {})
            known = _divergence(other, site) if closed and "log_prob_sum" in other else None
            if known is None:
                total = total - site["log_prob_sum"] + other.get("log_prob_sum", 0.0)
            else:
                total = total + known
    for name, site in guided.nodes.items():
        if name not in modelled.nodes and site["type"] == "sample" and "log_prob_sum" in site:
            total = total + site["log_prob_sum"]
    return total


def _divergence(guided: Site, modelled: Site) -> Tensor | None:
    """Return the Kullback-Leibler divergence of a site, or None if torch knows none."""
    if modelled["is_observed"]:
        return None
    try:
        each = kl_divergence(guided["fn"], modelled["fn"])
    except NotImplementedError:
        return None
    return scale_and_mask(each, scale=guided["scale"], mask=guided["mask"]).sum()  # type: ignore[no-any-return]


def summed_out(loss: TraceEnum_ELBO, model: Any, guide: Any, args: Any, kwargs: Any) -> Tensor:
    """Return the negative ELBO of one record with the model's enumerated latents summed out.

    Pyro's own sum over packed terms branches on values, to support guides that enumerate.
    """
    ((modelled, guided),) = loss._get_traces(model, guide, args, kwargs)
    terms, factors, _, sum_dims, scale = _compute_model_factors(modelled, guided)
    found = [term for one in terms.values() for term in one]
    if factors:
        contracted = contract_tensor_tree(factors, sum_dims)
        found += [packed.scale_and_mask(t, scale=scale) for one in contracted.values() for t in one]
    total: Tensor = sum(term.sum() for term in found)
    elbo: Tensor = total - guided.log_prob_sum()
    return -elbo
