"""Builds a :class:`Program` from a model and a guide, or explains what does not fit."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO, TraceEnum_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoGuide
from torch import Tensor, nn
from torch.distributions import biject_to, constraints
from torch.nn.modules.batchnorm import _BatchNorm

from bdpvi._ground.host import HOST, drawing
from bdpvi._ground.outputs import several
from bdpvi._ground.types import PrivacyUtilityWarning
from bdpvi.bayesian.inference.guide import check_unused
from bdpvi.models.contract import Site
from bdpvi.models.misfits import LastSite, Misfit, MisfitError, missing_from_guide, split
from bdpvi.models.parameters import Holder, modules_of
from bdpvi.models.reachable import check_values
from bdpvi.programs.arguments import Arguments
from bdpvi.programs.effects import base, in_plate, is_normal
from bdpvi.programs.failures import program_error, words_of_site
from bdpvi.programs.program import Draw, Program
from bdpvi.programs.replays import JIT
from bdpvi.programs.runs import Runs

LOSSES = (Trace_ELBO, TraceEnum_ELBO, TraceMeanField_ELBO, *JIT)
_OBSERVE = (
    'hand the targets over, inside the plate over the records: pyro.sample("y", ..., obs=y), or '
    'pyro.factor("y", log_density)'
)
_PLATE = (
    'observe it inside `with pyro.plate("records", len(x)):`, one site for all records and a value '
    "for each"
)
_UNMASKED = (
    "mask the distribution in place of obs_mask: pyro.sample({!r}, law.mask(seen), obs=...), where "
    "what stands for a target that is not seen is within the support"
)
_STATISTICS = "use GroupNorm or LayerNorm, or layer.eval() if its statistics are public"


def read(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    loss: Any,
    arguments: Arguments,
    plate: str | None = None,
) -> Program:
    """Return the program of a model and a guide, after running both on records of zeros and ones.

    No real record is read. New parameters enter Pyro's store, as in a first step of
    ``pyro.infer.SVI``.

    Args:
        model, guide: as for ``pyro.infer.SVI``.
        loss: one of :data:`LOSSES`, with one particle.
        arguments: the arguments of both.
        plate: name of the plate over the records; needed if it is ambiguous.

    Raises:
        MisfitError: a ValueError that names each site and the remedy.
    """
    _check_loss(loss)
    check_unused(guide)
    with pyro.validation_enabled(False):  # of made-up records, which may lie outside a support
        return _read(model, guide, loss, arguments, plate)


def _read(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    loss: Any,
    arguments: Arguments,
    plate: str | None,
) -> Program:
    holder = Holder(modules_of(model, guide))
    if early := [*_in_layers(holder)]:
        raise MisfitError(early)
    found = plate or _find_plate(model, guide, arguments)
    runs = Runs(model, guide, arguments, found)
    modelled, guided, parameters = runs.first()
    starts = ((f"start of parameter {name!r}", value) for name, value in runs.first_run().items())
    check_values(arguments.source.holds, starts, arguments.length)
    _observed_sites(modelled)
    owned = {id(value) for value in holder.parameters()}
    free = {name: value for name, value in parameters.items() if id(value) not in owned}
    misfits = list(runs.unsteady(modelled, guided)) or [
        *_in_model(modelled, guided, found, loss),
        *_in_guide(guided, guide, found, modelled),
        *_in_parameters(free, runs.sizes.get(found), arguments.length),
    ]
    misfits = misfits or runs.differing(modelled, guided, found) or list(runs.starts(parameters))
    if misfits:
        raise MisfitError(misfits)
    known = pyro.get_param_store().get_state()["constraints"]
    made = Program(
        model=model,
        guide=guide,
        loss=_nested(loss, runs, found),
        arguments=arguments,
        plate=found,
        sites=tuple(_site(one) for one in split(modelled)[0] if not in_plate(one, found)),
        parameters=parameters,
        constraints={name: known.get(name, constraints.real) for name in free},
        direct=tuple(parameters),
        local=any(in_plate(one, found) for one in split(guided)[0]),
        holder=holder,
    )
    made = _try_step(made)
    if misfits := list(runs.mixing(guided, found)):
        raise MisfitError(misfits)
    _tell_if_few(found, runs.sizes.get(found), arguments.length)
    return made


def _tell_if_few(plate: str, size: Any, length: int) -> None:
    """Warn the owner about records that seem to be one batch of those that the plate has."""
    if isinstance(size, int) and size >= 2 * length > 0:
        warnings.warn(
            f"for the owner only: plate {plate!r} has the size {size}, and {length} records were "
            "handed over. If that is the batch of a DataLoader, hand over all records in every "
            "step: the Poisson batches are drawn here",
            PrivacyUtilityWarning,
            stacklevel=2,
        )


def _find_plate(model: Callable[..., Any], guide: Callable[..., Any], arguments: Arguments) -> str:
    """Return the plate over the records, by running only the model.

    A plate of size N is considered only if no other fits: a plate over other things may have N
    entries by chance.
    """
    alone = Runs(model, guide, arguments, None)
    with pyro.get_param_store().scope(), drawing(arguments.device):
        try:
            return _plate(alone.alone())
        except ValueError:
            alone.by_size = True
            return _plate(alone.alone())


def _check_loss(loss: Any) -> None:
    if type(loss) not in LOSSES:
        known = ", ".join(one.__name__ for one in LOSSES)
        raise ValueError(
            f"loss={type(loss).__name__}: a private step needs a loss that is a sum over records; "
            f"use one of {known}"
        )
    if loss.num_particles != 1:
        raise ValueError(
            f"loss: num_particles={loss.num_particles} would need as many sums with noise in a "
            "step; use 1, and more steps"
        )


def _observed_sites(modelled: poutine.Trace) -> list[Mapping[str, Any]]:
    """Return the observed sites, or the factors in plates; raise a MisfitError if there is none."""
    every = split(modelled)[1]
    observed = [site for site in every if not _is_factor(site)] or every
    if not observed:
        raise MisfitError([Misfit("model", "observes no site", _OBSERVE)])
    return observed


def _plate(modelled: poutine.Trace) -> str:
    """Return the plate that contains all observed sites.

    Raises:
        ValueError: if there is none, or several qualify.
    """
    observed = _observed_sites(modelled)
    stacks = [[f.name for f in site["cond_indep_stack"] if f.size == 1] for site in observed]
    # One outside all plates may be a constant, as poutine.condition makes of a global latent.
    stacks = [stack for stack in stacks if stack] or stacks
    common: list[str] = [name for name in stacks[0] if all(name in stack for stack in stacks)]
    if not common:
        raise MisfitError(
            [Misfit(words_of_site(observed[0]), "is in no plate over the records", _PLATE)]
        )
    if len(common) > 1:
        raise ValueError(
            f"plate: {' and '.join(map(repr, common))} could each be over the records; say which, "
            f"plate={common[0]!r}"
        )
    return common[0]


def _in_layers(holder: Holder) -> Iterator[Misfit]:
    """Yield the batch normalisations that are training."""
    for name, layer in holder.named_modules():
        if isinstance(layer, _BatchNorm) and layer.training:
            named = f"layer {name.removeprefix('held.')!r} ({type(layer).__name__})"
            yield Misfit(named, "mixes records", _STATISTICS)


def _in_model(
    modelled: poutine.Trace, guided: poutine.Trace, plate: str, loss: Any
) -> Iterator[Misfit]:
    latent, observed = split(modelled)
    for site in observed:
        if not in_plate(site, plate):
            continue
        (frame,) = (one for one in site["cond_indep_stack"] if one.name == plate)
        shape = site["fn"].log_prob(site["value"]).shape
        if frame.vectorized and len(shape) >= -frame.dim and shape[frame.dim] != 1:
            yield Misfit(
                words_of_site(site),
                f"has {several(shape[frame.dim], 'entry', 'entries')} for one record",
                "hand the records over as arguments of step, and let each entry follow from its "
                "own row; a target of several numbers needs .to_event(1)",
            )
    for site in latent:
        if in_plate(site, plate):
            stem = site["name"].removesuffix("_unobserved")
            if f"{stem}_observed" in modelled.nodes:
                wrong, remedy = "is a target that obs_mask makes a latent", _UNMASKED
                yield Misfit(words_of_site(site), wrong, remedy.format(stem))
            elif site["name"] not in guided.nodes:
                yield from missing_from_guide(site, isinstance(loss, TraceEnum_ELBO))
        elif site["fn"].support.is_discrete:
            remedy = "make it continuous, or give each record its own, enumerated one"
            yield Misfit(words_of_site(site), "is discrete and global", remedy)
        elif site["name"] not in guided.nodes:
            yield Misfit(words_of_site(site), "is not in the guide", "sample it there too")


def _in_guide(
    guided: poutine.Trace, guide: Any, plate: str, modelled: poutine.Trace
) -> Iterator[Misfit]:
    for site in split(guided)[0]:
        if site["name"] not in modelled.nodes and not site["infer"].get("is_auxiliary"):
            remedy = "give it the name of a latent of the model, or take it out"
            yield Misfit(f"{words_of_site(site)} of the guide", "is not in the model", remedy)
            continue
        fn = base(site["fn"])
        local, kind = in_plate(site, plate), type(fn).__name__
        if local and isinstance(guide, AutoGuide):
            yield Misfit(
                words_of_site(site),
                f"has parameters for single records in {type(guide).__name__}",
                "write a guide that computes them from the record's own row, as an encoder does",
            )
        elif kind != "Delta" and not (is_normal(fn) or (fn.has_rsample and not local)):
            yield Misfit(
                words_of_site(site),
                f"is {kind} in the guide",
                "use a Normal, a MultivariateNormal or a transform of one; leave a discrete one "
                "to the model, which sums it out by config_enumerate and TraceEnum_ELBO",
            )


def _in_parameters(free: Mapping[str, Tensor], size: Any, length: int) -> Iterator[Misfit]:
    for name, value in free.items():
        if isinstance(value, nn.Parameter):
            yield Misfit(
                f"parameter {name!r}",
                "belongs to a module that is not found",
                "let model and guide be modules, methods of one, or functions that refer to it",
            )
        elif size == length > 1 and length in value.shape:
            yield Misfit(
                f"parameter {name!r}",
                "has an entry for each record",
                "compute it from the record's own row, as an encoder does",
            )


def _nested(loss: Any, runs: Runs, plate: str) -> Any:
    """Return a copy of the loss that knows how deeply plates are nested."""
    loss = copy.copy(loss)
    if isinstance(loss, TraceEnum_ELBO) and loss.max_plate_nesting == float("inf"):
        runs.nesting(loss, plate)
    return loss


def _try_step(made: Program) -> Program:
    """Return the program with the parameters that records use, after a step on a record of zeros.

    Raises:
        ValueError: naming the site where the step fails.
    """
    if not made.parameters:
        raise ValueError(
            "guide has no parameters to train: write its locations and scales by pyro.param, or "
            "use AutoNormal. Nothing was charged"
        )
    last, rows = LastSite(), made.arguments.stand_in
    try:
        with last, drawing(made.device):
            draw = made.draw()
            made = replace(made, direct=_used_parameters(made, draw))
            made.gradients(draw, rows)
            made.backward(draw, torch.zeros(made.size, dtype=torch.float64, device=HOST))
        for value in made.parameters.values():
            value.grad = None
        return made
    except MisfitError:
        raise
    except Exception as error:  # whatever a program of the user's raises
        raise program_error("model", "the gradient of one record", last, error) from error


def _used_parameters(made: Program, draw: Draw) -> tuple[str, ...]:
    theta = {n: v.detach().clone().requires_grad_() for n, v in made.parameters.items()}
    row = [one[0] for one in made.arguments.stand_in]
    value = made.of_record(draw.latents.detach(), theta, draw.fixed, *row)
    if not value.requires_grad:
        return ()
    found = torch.autograd.grad(value, list(theta.values()), allow_unused=True)
    return tuple(name for name, one in zip(theta, found, strict=True) if one is not None)


def _site(site: Mapping[str, Any]) -> Site:
    transform = biject_to(site["fn"].support)
    return Site(site["name"], transform.inverse_shape(site["value"].shape), transform)


def _is_factor(site: Mapping[str, Any]) -> bool:
    return type(site["fn"]).__name__ == "Unit"
