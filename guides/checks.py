"""Checks that a model and a guide fit together and can be accounted for; reports all problems."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer import Predictive
from pyro.infer.autoguide import AutoGuide
from pyro.nn import PyroModule
from torch import Tensor

from bdpvi._ground.host import drawing
from bdpvi._ground.isolation import isolated
from bdpvi._ground.outputs import several
from bdpvi.datasets.dataset import BlockData, Dataset, sample_of_form
from bdpvi.datasets.items import by_index, pair
from bdpvi.datasets.named import by_argument, has_arguments
from bdpvi.guides.converted import of
from bdpvi.models.contract import Model, dimension, unpack
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.models.misfits import (
    LastSite,
    Misfit,
    MisfitError,
    follows,
    misfits,
    mistyped,
    parameter,
    split,
)
from bdpvi.models.traces import log_density, log_likelihood, sites

_TRIED = 8
"""Number of records on which a model is tried, together and one by one."""
_READ = 1024
"""Most records that are read of several arguments."""


def check(model: Model, guide: Any, data: Dataset | BlockData | tuple[Any, ...] | Any) -> None:
    """Raise an error that lists all problems of a model and a guide, if there are any.

    :func:`bdpvi.fit` does the same first, except for one call of ``pyro.infer.Predictive`` in
    torch's default dtype, as users of a release call it. It runs the model about a dozen times,
    from a fixed seed, and leaves nothing in Pyro's parameter store. Independence of records given
    the latents is tested, not proven: on the first eight records, with one draw from the prior,
    together and one by one, and by each gradient. The error is for the owner of the records and may
    quote values: do not publish it.

    Args:
        model: a Pyro model ``model(x, y=None)`` of records, see :mod:`bdpvi.models.contract`.
        guide: a guide of :mod:`bdpvi.guides`, or a Pyro guide that :func:`bdpvi.guides.of` accepts.
        data: the records, or a pair (x, y). Constants in a model must have the dtype of ``x``,
            float64 by default. Or records as for :func:`bdpvi.fit_private`: of several arguments up
            to 1024 are read, and the guide is left to :func:`bdpvi.fit_private`, which looks at it
            before a charge; those by index or in blocks are represented by a record of ones.

    Raises:
        MisfitError: a ValueError with one line for each :class:`~bdpvi.models.misfits.Misfit`:
            the site, what is wrong with it, and how to fix it.
        ValueError: from the model's own ``check(data)``, if it has one.

    >>> import pyro.distributions as dist
    >>> from bdpvi import guides
    >>> def model(x, y=None):
    ...     with pyro.plate("hospitals", 2):
    ...         effect = pyro.sample("effect", dist.Poisson(1.0))
    ...     with pyro.plate("records", len(x)):
    ...         pyro.sample("y", dist.Normal(effect[x[:, 0].long()], 1.0), obs=y)
    >>> data = Dataset(torch.tensor([[0.0], [1.0], [1.0]]), torch.zeros(3))
    >>> check(model, guides.MeanField(model), data)
    Traceback (most recent call last):
        ...
    bdpvi.models.misfits.MisfitError: model: latent site 'effect' is discrete: sum it out of the \
likelihood (as in dist.MixtureSameFamily), or make it continuous
    """
    if has_arguments(data):
        model, data = _by_place(model, by_argument(model, data))
        guide = None
    elif by_index(data):
        data = sample_of_form(BlockData.of_items(data))
    elif isinstance(data, BlockData):
        data = sample_of_form(data)
    data = data if isinstance(data, Dataset) else Dataset.of(*pair(data))
    require(model, guide, data)
    with isolated(data.x), torch.no_grad():
        latents = {s["name"]: s["value"] for s in split(_trace(model, data.x, data.y))[0]}
    with pyro.get_param_store().scope(), drawing(data.x.device):
        found = _in_predictive(model, latents, data.x[:_TRIED])
    if found:
        raise MisfitError(found)


def _by_place(model: Model, data: BlockData) -> tuple[Model, Dataset]:
    """Return a model of the places of records, and a few of them with their places as x."""
    items, features = data.items, data.feature_names
    assert items is not None
    rows = items.rows(torch.arange(min(len(data), _READ)))
    values = dict(zip(items.names, rows, strict=True))

    def model_at(x: Tensor, y: Tensor | None = None) -> Any:
        at = x[:, 0].long()
        names = features if y is None else items.names
        return model(**{name: values[name][at] for name in names})

    first = next((row for row in rows if row.is_floating_point()), torch.zeros(0))
    places = torch.arange(len(rows[0])).to(first)
    return model_at, Dataset(places[:, None], torch.zeros_like(places))


def require(model: Model, guide: Any, data: Dataset) -> None:
    """Do :func:`check` without a call of ``Predictive``; guide None is not looked at."""
    own = getattr(model, "check", None)
    if own is not None:
        own(data)
    with isolated(data.x, seed=0), poutine.block(), torch.no_grad():
        found = _in_module(model, data.x)
        try:
            trace = poutine.trace(model).get_trace(data.x, data.y)
        except Exception as error:
            found.append(_error_misfit("model", several(len(data), "record"), error, _RUN))
        else:
            known = {one.site for one in found}
            wrong = [one for one in misfits(trace, data.x) if one.site not in known]
            found += wrong + mistyped(trace, data.x)
            if not wrong and type(model) is not BayesianLogisticRegression:
                found += _in_trial(model, data.x[:_TRIED], data.y[:_TRIED])
                found += [] if found else _in_gradient(model, data.x[:_TRIED], data.y[:_TRIED])
            if guide is not None:
                found += _in_guide(guide, model, data, trace, convertible=not found)
    if found:
        raise MisfitError(found)


_RUN = "model(x, y) must run on features (records, d) and targets, of any number of records"


def _in_module(model: Model, x: Tensor) -> list[Misfit]:
    """Return misfits of a module: parameters that Pyro would train, and dtypes other than x's."""
    if not isinstance(model, torch.nn.Module):
        return []
    own = dict(model.named_parameters())
    result = [parameter(name) for name in own] if isinstance(model, PyroModule) else []
    for name, value in {**own, **dict(model.named_buffers())}.items():
        if value.is_floating_point() and value.dtype != x.dtype:
            wrong = f"is {value.dtype} where the records are {x.dtype}"
            remedy = "convert the module, as by model.double(), or choose the dtype of the fit"
            result.append(Misfit(f"entry {name!r} of the module", wrong, remedy))
    return result


def _in_trial(model: Model, x: Tensor, y: Tensor) -> list[Misfit]:
    """Return the misfits that show if records are passed one by one, or without targets."""
    result = []
    with pyro.validation_enabled(False):
        try:
            poutine.trace(model).get_trace(x)
        except Exception as error:
            remedy = "write model(x, y=None), and observe obs=y; predictions need it"
            result.append(_error_misfit("model", "records without targets", error, remedy))
        together = poutine.trace(model).get_trace(x, y)
        latents = {site["name"]: site["value"] for site in split(together)[0]}
        for i in range(len(x)):
            record = x[i : i + 1], y[i : i + 1]
            try:
                shapes = {s["name"]: s["value"].shape for s in split(_trace(model, *record))[0]}
                whole = {name: value.shape for name, value in latents.items()}
                if shapes != whole:
                    return [*result, _changed_sites(whole, shapes)]
                alone = _trace(poutine.condition(model, data=latents), *record)
            except Exception as error:
                return [*result, _error_misfit("model", "one record alone", error, _RUN)]
            if different := _different(together, alone, latents, i):
                return result + different
    return result


def _in_gradient(model: Model, x: Tensor, y: Tensor) -> list[Misfit]:
    """Return the site where single records' gradients fail, computed as in training."""
    latents = sites(model, x, y)
    start = x.new_zeros(dimension(latents))

    def one(flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return log_likelihood(model, unpack(latents, flat), x[None], y[None]).sum()

    last = LastSite()
    try:
        with pyro.validation_enabled(False), torch.enable_grad(), last:
            torch.vmap(torch.func.grad(one), in_dims=(None, 0, 0))(start, x, y)
    except Exception as error:
        remedy = "use torch operations alone: no .item(), no if on a tensor's value"
        return [_error_misfit(f"site {last.name!r}", "the gradient of one record", error, remedy)]
    return []


def _in_predictive(model: Model, latents: Mapping[str, Tensor], x: Tensor) -> list[Misfit]:
    """Return the site where ``Predictive`` fails in the default dtype."""
    last, samples = LastSite(), {name: value[None] for name, value in latents.items()}
    try:
        with last:
            Predictive(model, posterior_samples=samples)(x)
    except Exception as error:
        kinds = f"torch's default type is {torch.get_default_dtype()}, the records are {x.dtype}"
        remedy = f"{kinds}: make them the same, as by torch.set_default_dtype, or {_FROM_X}"
        return [_error_misfit(f"site {last.name!r}", "pyro.infer.Predictive", error, remedy)]
    return []


_FROM_X = "make constants from x, as in x.new_zeros(())"


def _trace(model: Model, x: Tensor, y: Tensor) -> poutine.Trace:
    return poutine.trace(model).get_trace(x, y)


def _changed_sites(whole: Mapping[str, torch.Size], alone: Mapping[str, torch.Size]) -> Misfit:
    """Return the misfit of latent sites that depend on the number of records."""
    for name, shape in whole.items():
        if name in alone and alone[name] != shape:
            return Misfit(
                f"latent site {name!r}",
                f"has the shape {tuple(shape)} for some records and {tuple(alone[name])} for one",
                "latents must be global; sum a record's own variable out of its likelihood",
            )
    return Misfit(
        "model",
        f"has the latent sites {sorted(whole)} for some records and {sorted(alone)} for one",
        "it must have the same ones for all records",
    )


def _different(
    together: poutine.Trace, alone: poutine.Trace, latents: Mapping[str, Tensor], i: int
) -> list[Misfit]:
    """Return the sites where record ``i`` has a different log-density alone than with others."""
    result = []
    for name, site in alone.nodes.items():
        if site["type"] != "sample" or type(site["fn"]).__name__ == "_Subsample" or follows(site):
            continue
        now, there = log_density(site), log_density(together.nodes[name])
        if name not in latents:
            now, there = now[0], there[i]
        # Another record's term is about as large as the record's own; rounding is far smaller.
        near = torch.finfo(now.dtype).eps ** (1 / 3)
        if bool(torch.isclose(now, there, rtol=near, atol=near, equal_nan=True).all()):
            continue
        if name in latents:
            remedy = "give it constants that come neither from x nor from y nor from their number"
            result.append(Misfit(f"latent site {name!r}", "has a prior of the records", remedy))
        else:
            result.append(
                Misfit(
                    f"observed site {name!r}",
                    "depends on other records, given the latents",
                    "let each record's distribution follow from its own row and the latents; "
                    "give means or scales of the data as public values; draw random numbers with "
                    "pyro.sample only",
                )
            )
    return result


def _in_guide(
    guide: Any, model: Model, data: Dataset, trace: poutine.Trace, convertible: bool
) -> list[Misfit]:
    """Return the problems of the guide with this model."""
    if isinstance(guide, AutoGuide):
        if not convertible:
            return []
        try:
            guide = of(guide, model, data)
        except ValueError as error:
            wrong = str(error).removeprefix("guide: ")
            return [Misfit("guide", "does not fit", wrong)]
    if not hasattr(guide, "constraints") or not hasattr(guide, "released"):
        remedy = "use one of bdpvi.guides, or Pyro's AutoNormal and its kin"
        return [Misfit("guide", f"{guide!r:.80} is none that can be accounted for", remedy)]
    latents = {site["name"]: site["value"].shape for site in split(trace)[0]}
    result = [
        Misfit(
            f"latent site {name!r}",
            f"has the name of a parameter of {type(guide).__name__}",
            "rename it",
        )
        for name in latents
        if name in guide.constraints
    ]
    other = getattr(guide, "model", model)
    if other is not model:
        made = {s["name"]: s["value"].shape for s in split(_trace(other, data.x, data.y))[0]}
        if made != latents:
            wrong = f"was made for another model, of {sorted(made)} and not {sorted(latents)}"
            result.append(Misfit("guide", wrong, "make it with the model that is fitted"))
    return result


def _error_misfit(site: str, on: str, error: Exception, remedy: str) -> Misfit:
    first = (str(error).splitlines() or [""])[0]
    return Misfit(site, f"raised {type(error).__name__} on {on} ({first})", remedy)
