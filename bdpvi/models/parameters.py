"""A model's parameters: where they are stored, and how to run the model with other values."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyro
import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn


class Parameters(Messenger):  # type: ignore[misc]
    """Give ``pyro.param`` these values; modules keep their own parameters."""

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.values = values

    def _pyro_param(self, msg: dict[str, Any]) -> None:
        given = self.values.get(msg["name"])
        if given is None and len(msg["args"]) > 1:
            given = msg["args"][1]
        if given is not None:
            msg["value"], msg["done"] = given, True


class Holder(nn.Module):
    """Modules whose parameters ``torch.func.functional_call`` can replace during any function."""

    def __init__(self, modules: list[nn.Module]) -> None:
        super().__init__()
        self.held = nn.ModuleList(modules)

    def forward(self, function: Callable[[], Any]) -> Any:
        """Call the function."""
        return function()


def modules_of(*programs: Any) -> list[nn.Module]:
    """Return the modules that programs are, are methods of, or refer to by name, each once.

    It searches ``functools.partial`` and Pyro's handlers, the attributes of a method's object, and
    the closures of functions.
    """
    found: dict[int, nn.Module] = {}
    seen: set[int] = set()
    left = list(programs)
    while left:
        one = left.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, nn.Module):
            found[id(one)] = one
        elif isinstance(one, partial):
            left += [one.func, *one.args, *one.keywords.values()]
        elif inspect.ismethod(one):
            owner = one.__self__
            left += (
                [owner]
                if isinstance(owner, nn.Module)
                else [*getattr(owner, "__dict__", {}).values()]
            )
            left.append(one.__func__)
        elif inspect.isfunction(one):
            names = inspect.getclosurevars(inspect.unwrap(one))
            modules = [v for v in names.globals.values() if isinstance(v, nn.Module)]
            left += [*names.nonlocals.values(), *modules]
    return list(found.values())


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A model with values for its parameters.

    Attributes:
        model: the original model; its own parameters stay unchanged.
        values: by name: constrained values for ``pyro.param``, and values for modules, named as in
            a :class:`Holder` of :func:`modules_of` the model.

    >>> def scaled(x, y=None):
    ...     return x * pyro.param("scale", torch.tensor(1.0))
    >>> TrainedModel(scaled, {"scale": torch.tensor(3.0)})(torch.tensor([2.0]))
    tensor([6.])
    """

    model: Callable[..., Any]
    values: Mapping[str, Tensor]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model."""
        holder = Holder(modules_of(self.model))
        own = dict(holder.named_parameters())
        swapped = {name: value.to(own[name]) for name, value in self.values.items() if name in own}
        with (
            pyro.get_param_store().scope(),
            Parameters(self.values),
            warnings.catch_warnings(),
        ):
            # Parameters outside the store are intended here, so do not warn.
            warnings.filterwarnings("ignore", ".*was not registered in the param store")
            run = partial(self.model, *args, **kwargs)
            return torch.func.functional_call(holder, swapped, (run,))
