"""A model's parameters: where they are stored, and how to run the model with other values."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyro
import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from bdpvi._ground.host import HOST
from bdpvi._ground.promotion import Promotion

if TYPE_CHECKING:
    from typing_extensions import Self


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
    """Return the modules that programs are, are methods of, or refer to by name, each once."""
    return [one for one in _references(programs) if isinstance(one, nn.Module)]


def typed(like: Tensor, *programs: Any) -> Tensor:
    """Return a tensor of the type of the modules' weights, if there are any."""
    weights = (weight for one in modules_of(*programs) for weight in one.parameters())
    first = next(weights, like)
    return like.to(first.dtype)


def _references(programs: Iterable[Any]) -> Iterator[Any]:
    """Yield what programs are, are methods of, or refer to, each once.

    It searches ``functools.partial`` and Pyro's handlers, the attributes of a method's object, the
    closures of functions, and modules among their globals.
    """
    seen: set[int] = set()
    left = [*programs]
    while left:
        one = left.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, partial):
            left += [one.func, *one.args, *one.keywords.values()]
        elif inspect.ismethod(one):
            owner = one.__self__
            module = isinstance(owner, nn.Module)
            left += [owner] if module else getattr(owner, "__dict__", {}).values()
            left.append(one.__func__)
        elif inspect.isfunction(one):
            names = inspect.getclosurevars(inspect.unwrap(one))
            left += names.nonlocals.values()
            left += [one for one in names.globals.values() if isinstance(one, nn.Module)]


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A model with values for its parameters, which runs where its arguments are.

    Types of numbers need not agree: the arguments take that of the first weight, and the rest is as
    :class:`~bdpvi._ground.promotion.Promotion` has it.

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

    @classmethod
    def of(cls, model: Callable[..., Any], values: Mapping[str, Tensor] | None = None) -> Self:
        """Return a model with these values; None: with those that it has."""
        own = model if isinstance(model, TrainedModel) else cls(model, {})
        return cls(own.model, own.values if values is None else values)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model."""
        tensors = (one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor))
        device = next((tensor.device for tensor in tensors), HOST)
        holder = Holder(modules_of(self.model))
        weight = next(holder.parameters(), None)

        def typed(one: Tensor) -> Tensor:
            return one if weight is None or not one.is_floating_point() else one.to(weight.dtype)

        args, kwargs = tree_map_only(Tensor, typed, (args, kwargs))
        own = {**dict(holder.named_parameters()), **dict(holder.named_buffers())}
        swapped = {n: self.values.get(n, one).to(device, one.dtype) for n, one in own.items()}
        with (
            pyro.get_param_store().scope(),
            Parameters({name: value.to(device) for name, value in self.values.items()}),
            warnings.catch_warnings(),
            Promotion(),
        ):
            # Parameters outside the store are intended here, so do not warn.
            warnings.filterwarnings("ignore", ".*was not registered in the param store")
            run = partial(self.model, *args, **kwargs)
            return torch.func.functional_call(holder, swapped, (run,))
