"""A model and a guide as functions: their latents, and one record's contribution to the loss.

The negative ELBO is a sum over global sites and over records. The global part sees no record. A
record's term depends on the global latents u and on the parameters θ that its own sites use, such
as network weights. The gradient of this term in (u, θ) is clipped and gets noise. The map from the
guide's parameters to u is public, so their gradients are post-processing: noise is added in the d
latents, not in the guide's parameters, of which there may be d².

Source: Jälkö, Prediger, Honkela and Kaski, "DPVIm: Differentially Private Variational Inference
Improved", 2022, for mean-field guides; here for any reparameterised guide.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import pyro
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO, TraceEnum_ELBO
from pyro.infer.autoguide import AutoGuide
from pyro.poutine import Trace
from pyro.poutine.guide import GuideMessenger
from torch import Tensor, nn
from torch.distributions import transform_to

from bdpvi._ground.host import as_gradient, on, onto
from bdpvi.models.contract import Site, parts
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.models.misfits import Misfit, MisfitError
from bdpvi.models.parameters import Holder, Parameters, modules_of
from bdpvi.programs.arguments import Arguments
from bdpvi.programs.effects import (
    DrawnByModel,
    Inside,
    Reparameterise,
    in_plate,
    out_of_place,
    plates,
)
from bdpvi.programs.sources import Rows
from bdpvi.programs.terms import negative_elbo, summed_out


class Draw(NamedTuple):
    """A draw of the global latents.

    Attributes:
        latents: unconstrained, (d,), a function of the guide's parameters.
        fixed: values of all global sites, detached, by name.
        public: the part of the negative ELBO that depends on no record.
        saved: tensors from which a recorded draw is differentiated.
    """

    latents: Tensor
    fixed: dict[str, Tensor]
    public: Tensor
    saved: tuple[Tensor, ...] = ()


@dataclass(frozen=True, eq=False)
class Program:
    """A model and a guide, analysed in one run on a record of zeros.

    Attributes:
        model, guide, loss: as given.
        arguments: the arguments of both.
        plate: name of the plate over the records.
        sites: global latents, in the order of u.
        parameters: unconstrained, by name: the live tensors that an optimiser changes.
        constraints: constraints of the parameters that belong to no module.
        holder: the modules that own the other parameters.
        direct: names of the parameters θ that a record's sites use.
        local: whether the guide has local latents.
        losses: whether gradients have a last column with the records' losses.
    """

    model: Callable[..., Any]
    guide: Callable[..., Any]
    loss: Trace_ELBO | TraceEnum_ELBO
    arguments: Arguments
    plate: str
    sites: tuple[Site, ...]
    parameters: dict[str, Tensor]
    constraints: Mapping[str, Any]
    direct: tuple[str, ...]
    local: bool
    holder: Holder = field(repr=False)
    losses: bool = False

    @property
    def dim(self) -> int:
        """d, the number of global latents."""
        return sum(site.shape.numel() for site in self.sites)

    @property
    def size(self) -> int:
        """Number of coordinates of a record's gradient in (u, θ)."""
        return self.dim + sum(self.parameters[name].numel() for name in self.direct)

    @property
    def records_draw(self) -> bool:
        """Whether random numbers may be drawn for a record."""
        return True

    @property
    def device(self) -> torch.device:
        """The device of training."""
        return next((v.device for v in self.parameters.values()), self.arguments.device)

    def draw(self) -> Draw:
        """Draw the global latents from the guide, which is run on a record of zeros."""
        with self.alone():
            guided = self.traced(self.guide)
            with DrawnByModel(self.plate) as own:
                modelled = self.traced(poutine.replay(self.model, guided))
            made = self._draw_of(guided, modelled)
            return made._replace(fixed={**made.fixed, **own.found})

    def traced(self, program: Callable[..., Any]) -> poutine.Trace:
        """Return the trace of a program, such as the guide, on a record of zeros."""
        args, kwargs = self.arguments.call(self.arguments.stand_in)
        return poutine.trace(program).get_trace(*args, **kwargs)

    def _draw_of(self, guided: poutine.Trace, modelled: poutine.Trace) -> Draw:
        outside = partial(_outside, self.plate)
        public = negative_elbo(self.loss, modelled, guided, outside)
        if gone := [site.name for site in self.sites if site.name not in guided.nodes]:
            wrong = "is not in this run of the guide, as it was in the first"
            remedy = "let every run have the same sites, whatever is drawn in it"
            raise MisfitError([Misfit(f"latent site {gone[0]!r}", wrong, remedy)])
        values = {site.name: guided.nodes[site.name]["value"] for site in self.sites}
        flat = [site.transform.inv(values[site.name]).flatten() for site in self.sites]
        fixed = {
            name: site["value"].detach()
            for name, site in guided.nodes.items()
            if site["type"] == "sample" and not in_plate(site, self.plate)
        }
        return Draw(torch.cat(flat) if flat else torch.zeros(0), fixed, public)

    def gradients(self, draw: Draw, rows: Rows) -> Tensor:
        """Return each record's gradient of the negative ELBO in (u, θ), (B, D) in float64.

        With :attr:`losses` its term of the negative ELBO is one more column.

        Args:
            draw: the latents at which to differentiate.
            rows: rows of B records.
        """
        values = {name: value.detach() for name, value in self.parameters.items()}
        return self.gradients_at(draw.latents.detach(), values, draw.fixed, rows)

    def gradients_at(
        self, latents: Tensor, values: dict[str, Tensor], fixed: dict[str, Tensor], rows: Rows
    ) -> Tensor:
        """Return :meth:`gradients` as a function of tensors alone."""
        if self._closed:
            assert isinstance(self.model, BayesianLogisticRegression)
            (x, y), _ = self.arguments.call(rows)
            return -self.model.scores(x, y, latents).double()

        (u, found), losses = self._of_records(latents, values, fixed, rows)
        every = [u, *(found[name].reshape(len(u), -1) for name in self.direct)]
        every += [losses.unsqueeze(1)] if self.losses else []
        return torch.cat(every, dim=1).double()

    def record_losses(self, draw: Draw, rows: Rows) -> Tensor:
        """Return each record's term of the negative ELBO, (B,). Secret."""
        values = {name: value.detach() for name, value in self.parameters.items()}
        # With the gradient, as torch has no batches of an LSTM without.
        _, found = self._of_records(draw.latents.detach(), values, draw.fixed, rows)
        return found.detach()  # type: ignore[no-any-return]

    def _of_records(
        self, latents: Tensor, values: dict[str, Tensor], fixed: dict[str, Tensor], rows: Rows
    ) -> Any:
        """Return each record's gradients in the latents and in θ, and its term of the ELBO."""

        def of_record(latents: Tensor, theta: dict[str, Tensor], *row: Tensor) -> Tensor:
            return self.of_record(latents, {**values, **theta}, fixed, *row)

        each = torch.vmap(
            torch.func.grad_and_value(of_record, argnums=(0, 1)),
            in_dims=(None, None, *[0 for _ in rows]),
            randomness="different",
        )
        with torch.enable_grad():
            return each(latents, {name: values[name] for name in self.direct}, *rows)

    def backward(self, draw: Draw, total: Tensor) -> None:
        """Set the gradients of all parameters from the public part and a sum over records.

        Args:
            draw: its graph is freed.
            total: gradient in (u, θ), (D,).
        """
        pulled = self.pull_back(draw, total)
        for value, one in zip(self.parameters.values(), pulled, strict=True):
            value.grad = as_gradient(one, value)

    def pull_back(self, draw: Draw, total: Tensor) -> Sequence[Tensor]:
        """Return the gradients that :meth:`backward` sets."""
        pieces = total.split([self.dim, *(self.parameters[n].numel() for n in self.direct)])
        surrogate = draw.public + (draw.latents * _like(pieces[0], draw.latents)).sum()
        for name, piece in zip(self.direct, pieces[1:], strict=True):
            value = self.parameters[name]
            surrogate = surrogate + (value * _like(piece.reshape(value.shape), value)).sum()
        values = list(self.parameters.values())
        found = torch.autograd.grad(surrogate, values, allow_unused=True)
        pairs = zip(values, found, strict=True)
        return [torch.zeros_like(value) if one is None else one for value, one in pairs]

    def of_record(
        self, latents: Tensor, theta: dict[str, Tensor], fixed: dict[str, Tensor], *row: Tensor
    ) -> Tensor:
        """Return one record's term of the negative ELBO; ``row`` has no batch dimension."""
        args, kwargs = self.arguments.call(tuple(one.unsqueeze(0) for one in row))
        values = {
            site.name: site.transform(part)
            for site, part in zip(self.sites, parts(self.sites, latents), strict=True)
        }
        known = {**fixed, **values}
        swapped = {key: theta[name] for name, key in self._keys.items() if name in theta}
        free = {
            name: transform_to(constraint)(theta.get(name, self.parameters[name].detach()))
            for name, constraint in self.constraints.items()
        }
        model, guide = (_within(one, known, self.plate) for one in (self.model, self.guide))
        if not self.local:
            guide = _nothing
        with self.alone(), pyro.get_param_store().scope(), Parameters(free):
            run = partial(self._loss, model, guide, args, kwargs)
            return torch.func.functional_call(self.holder, swapped, (run,), strict=False)  # type: ignore[no-any-return]

    def _loss(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Tensor:
        guide = Reparameterise()(guide)
        if isinstance(self.loss, TraceEnum_ELBO):
            return summed_out(self.loss, model, guide, args, kwargs)
        guided = poutine.trace(guide).get_trace(*args, **kwargs)
        modelled = poutine.trace(poutine.replay(model, guided)).get_trace(*args, **kwargs)
        return negative_elbo(self.loss, modelled, guided, lambda *_: True)

    @cached_property
    def _closed(self) -> bool:
        """Whether a record's gradient has a closed form: its only sites are w and its label."""
        return (
            not self.losses
            and type(self.model) is BayesianLogisticRegression
            and [site.name for site in self.sites] == ["w"]
            and not self.direct
            and not self.local
            and len(self.arguments.call(self.arguments.stand_in)[0]) == 2
        )

    @cached_property
    def _keys(self) -> dict[str, str]:
        """The holder's names for the parameters owned by modules."""
        places = {id(value): key for key, value in self.holder.named_parameters()}
        return {n: places[id(v)] for n, v in self.parameters.items() if id(v) in places}

    @cached_property
    def _recurs(self) -> bool:
        """Whether a layer is recurrent."""
        return any(isinstance(module, nn.RNNBase) for module in self.holder.modules())

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Run on the training device, without Pyro's checks, with one record in the plate."""
        with ExitStack() as stack:
            stack.enter_context(on(self.device))
            stack.enter_context(pyro.validation_enabled(False))
            stack.enter_context(plates(lambda name, *_: name == self.plate))
            stack.enter_context(out_of_place())
            if self._recurs:
                # cuDNN has no gradients of single records of an LSTM; torch's own code has.
                stack.enter_context(torch.backends.cudnn.flags(enabled=False))
            yield


@contextmanager
def keep_parameters(program: Program) -> Iterator[None]:
    """Put parameters back to what they are now, at the end."""
    values = program.parameters.values()
    before = [value.detach().clone() for value in values]
    try:
        yield
    finally:
        with torch.no_grad():
            for value, old in zip(values, before, strict=True):
                value.copy_(old)
                value.grad = None


def _outside(plate: str, _: str, site: Mapping[str, Any]) -> bool:
    return not in_plate(site, plate)


def _like(values: Tensor, other: Tensor) -> Tensor:
    return onto(values.to(other.dtype), other.device)


def _nothing(*_: Any, **__: Any) -> None:
    """Have no sites."""


def _within(
    program: Callable[..., Any], known: Mapping[str, Tensor], plate: str
) -> Callable[..., Any]:
    """Return the program with these values, and with only the sites in the plate."""
    return Inside(plate)(poutine.condition(program, data=dict(known)))  # type: ignore[no-any-return]


def copied(guide: Any, model: Any) -> Any:
    """Return a copy of a guide that is a module, for the same model; the guide if it has none.

    Copying drops the model of Pyro's guides, in both.
    """
    if not isinstance(guide, nn.Module):
        return guide
    parts = [module for module in guide.modules() if isinstance(module, AutoGuide)]
    kept = [(part._model, part.master) for part in parts]
    shared = {id(one): one for one in modules_of(model)}
    try:
        made = copy.deepcopy(guide, shared)
    except Exception:  # whatever a module of the user's holds
        return guide
    finally:
        for one, (own, master) in zip(parts, kept, strict=True):
            one._model, one.master = own, master
    copies = [module for module in made.modules() if isinstance(module, AutoGuide)]
    for one, (own, _) in zip(copies, kept, strict=True):
        one._model = own
    if isinstance(made, GuideMessenger):
        made.trace = Trace()  # which a copy lacks
    return made
