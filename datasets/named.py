"""Records of several tensors, one for each argument of a model."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from bdpvi._ground import validate
from bdpvi._ground.outputs import several
from bdpvi._ground.types import tell_owner
from bdpvi.datasets.dataset import BlockData, Data, People
from bdpvi.datasets.items import Items, by_index, of_arrow
from bdpvi.datasets.records import Spread

WHOLE = ("bool", "int16", "int32", "int64", "int8", "uint8")
"""Torch's types of whole numbers, which records keep."""
_MOST = 2**20
"""Most numbers of one record: a file declares them, and a record of zeros is made."""


@dataclass(frozen=True)
class Argument:
    """A feature that a model takes by name. Public.

    Attributes:
        name: of the model's argument.
        shape: of one record.
        kind: torch's type of whole numbers, such as "int64"; "" for others.

    Raises:
        ValueError: if a size is negative, or the type is none of :data:`WHOLE`.

    >>> Argument.of("ward", torch.tensor([0, 1, 1]))
    Argument(name='ward', shape=(), kind='int64')
    """

    name: str
    shape: tuple[int, ...] = ()
    kind: str = ""

    def __post_init__(self) -> None:
        for size in self.shape:
            validate.positive_int("arguments.shape", size, least=0)
        if self.kind:
            validate.choice("arguments.kind", self.kind, WHOLE)

    @classmethod
    def of(cls, name: str, value: Tensor) -> Argument:
        """Return the argument of these records, (N, ...)."""
        kind = str(value.dtype).split(".")[1]
        return cls(name, tuple(value.shape[1:]), kind if kind in WHOLE else "")

    def check(self, value: Any, like: Tensor) -> Tensor:
        """Return records, (N, ...), in their type, or that of ``like``.

        Raises:
            ValueError: if they have another shape, or are not finite numbers.
        """
        found = tensor_of(self.name, value)
        if found.shape[1:] != self.shape or not found.ndim:
            sizes = ", ".join(("records", *map(str, self.shape)))
            raise ValueError(f"{self.name} must have shape ({sizes}), got {tuple(found.shape)}")
        validate.finite(self.name, found)
        return found.to(like.device, getattr(torch, self.kind) if self.kind else like.dtype)


def blank(arguments: tuple[Argument, ...], like: Tensor) -> dict[str, Tensor]:
    """Return the features of a record of zeros, by name, (1, ...) each.

    Raises:
        ValueError: if they are more than 2²⁰ numbers.
    """
    for argument in arguments:
        for size in argument.shape:
            validate.at_most(f"{argument.name}.shape", size, _MOST)
    validate.at_most("features", sum(math.prod(argument.shape) for argument in arguments), _MOST)
    return {
        argument.name: argument.check(like.new_zeros(1, *argument.shape), like)
        for argument in arguments
    }


def features_of(arguments: tuple[Argument, ...], x: Any, like: Tensor) -> dict[str, Tensor]:
    """Return the features of records for predictions, by name, (N, ...) each.

    Args:
        arguments: the features that the model takes.
        x: a mapping or a frame that has them all, a tuple of them in order, or the only one.
        like: gives the type of numbers that are not whole, and the device.

    Raises:
        ValueError: if one is missing, or has another shape or length.
    """
    names = tuple(argument.name for argument in arguments)
    if not (isinstance(x, Mapping) or hasattr(x, "columns")):
        given = x if isinstance(x, tuple) else (x,)
        validate.same_length("x", given, "the model's features", names)
        x = dict(zip(names, given, strict=True))
    if missing := [name for name in names if name not in x]:
        raise ValueError(
            f"x has no feature {missing[0]!r}; the model takes {', '.join(names)}, and predictions "
            "do without those that are None by default"
        )
    result = {argument.name: argument.check(x[argument.name], like) for argument in arguments}
    for name, value in result.items():
        validate.same_length(name, value, names[0], result[names[0]])
    return result


def arguments_of(data: Data) -> tuple[Argument, ...]:
    """Return the features of records that a model takes by name; () for a single x."""
    items = data.items
    if items is None or not items.names:
        return ()
    like = dict(zip(items.names, items.like, strict=True))
    return tuple(Argument.of(name, like[name]) for name in data.feature_names)


def has_arguments(data: object) -> bool:
    """Return whether records have a tensor for each argument, and are no pair (x, y).

    >>> has_arguments({"x": [0.0], "y": [1.0]}), has_arguments(([0.0], [1.0]))
    (True, False)
    """
    if isinstance(data, Mapping | Tensor | np.ndarray) or hasattr(data, "columns"):
        return True
    if isinstance(data, tuple):
        return len(data) != 2
    if not by_index(data):
        return False
    items = Items.of(data)
    return items.by_name or len(items.like) > 2


def by_argument(model: Callable[..., Any], data: Any) -> BlockData:
    """Return records with a tensor for each argument of a model.

    Arguments that are None by default are targets, the others features; where all or none are, as
    in ``model(data)``, all are features. In memory, each record with a number that is not finite is
    left out, and the owner is told how many.

    Args:
        model: gives the names and the targets.
        data: a mapping by name or a frame, a tuple in the model's order, a tensor or an array of
            its only argument, or records by index of which each is one of these.

    Raises:
        ValueError: if the model lacks an argument, or lengths differ, or an argument does not hold
            numbers.

    >>> def model(x, ward, y=None): ...
    >>> rows = {"y": [0.0, 1.0], "x": [0.5, 0.1], "ward": [1, 0]}
    >>> found = by_argument(model, rows)
    >>> found.feature_names, [one.dtype for one in found.like]
    (('x', 'ward'), [torch.float64, torch.int64, torch.float64])
    """
    data = of_arrow(data)
    items = Items.of(data) if by_index(data) else rows_by_name(model, data)
    known = arguments_by_name(model)
    names = items.names or _first(known, len(items.like))
    if unknown := sorted(set(names).difference(known)):
        raise ValueError(
            f"data has {unknown[0]!r}, which is no argument of the model; it takes "
            f"{', '.join(known)}"
        )
    needed = [name for name, one in known.items() if one.default is one.empty]
    if missing := [name for name in needed if name not in names]:
        raise ValueError(f"data has not {missing[0]!r}, which the model takes")
    given = tuple(name for name in known if name in names)
    features = tuple(name for name in given if known[name].default is not None) or given
    items = replace(items, names=names)
    noted = getattr(data, "preprocessing", {})
    return BlockData(Spread(items.blocks), len(items), features, "data", noted, People(), items)


def rows_by_name(model: Callable[..., Any], data: Any) -> Items:
    """Return records in memory, those of a mapping in the model's order."""
    data = (data,) if isinstance(data, Tensor | np.ndarray) else data
    by_name = not isinstance(data, tuple)
    order = list(arguments_by_name(model))
    named = dict(data.items() if by_name else zip(_first(order, len(data)), data, strict=True))
    columns = getattr(data, "columns", named)
    if len(named) < len(columns) or not all(isinstance(name, str) for name in named):
        raise ValueError(f"data must have different texts as names, got {list(columns)!r:.80}")
    if not named:
        raise ValueError("data has no argument; at least a target is needed")
    names = tuple(sorted(named, key=lambda one: order.index(one) if one in order else len(order)))
    values = [tensor_of(name, named[name]) for name in names]
    for name, value in zip(names, values, strict=True):
        if not value.ndim:
            raise ValueError(f"{name} must have a row for each record, got a single number")
        validate.same_length(name, value, names[0], values[0])
    good = torch.ones(len(values[0]), dtype=torch.bool)
    for value in values:
        good &= value.isfinite().reshape(len(value), -1).all(1).to(good.device)
    if not bool(good.all()):
        values = [value[good.to(value.device)] for value in values]
        tell_owner(int((~good).sum()), "record", "a value is not finite", 5)
    like = tuple(one.new_ones(1, *one.shape[1:]) for one in values)
    return Items(TensorDataset(*values), like, names=names, by_name=by_name)


def _first(names: Iterable[str], number: int) -> tuple[str, ...]:
    """Return the names of the first arguments of a model."""
    found = tuple(names)
    if len(found) < number:
        raise ValueError(
            f"data has {several(number, 'tensor')}, and the model takes "
            f"{several(len(found), 'argument')} by name: {', '.join(found)}"
        )
    return found[:number]


def arguments_by_name(model: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the arguments that a model takes by name, in order."""
    call = model.forward if isinstance(model, nn.Module) else model
    found = inspect.signature(call).parameters
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: one for name, one in found.items() if one.kind in kinds}


def tensor_of(name: str, value: Any) -> Tensor:
    """Return numbers as a tensor; whole ones and booleans keep their type."""
    value = of_arrow(value)
    if isinstance(value, Tensor):
        real = value.is_floating_point() or value.is_complex()
        return validate.numbers(name, value) if real else value
    try:
        kind: Any = getattr(value, "dtype", None) or np.asarray(value).dtype
    except ValueError:  # lists of unequal length
        kind = None
    if isinstance(kind, np.dtype) and kind.kind in "biu":
        return torch.from_numpy(np.array(value, kind.name if kind.name in WHOLE else "int64"))
    return validate.numbers(name, value)
