"""Computations on the host, whatever torch's default device is.

Coins, base noise, initial values and accounting are computed on the CPU, so that a seed gives the
same fit on every device. Records, parameters and gradients stay on their device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

P = ParamSpec("P")
T = TypeVar("T")

HOST = torch.device("cpu")

_DRAWS = frozenset(
    {
        "_sample_dirichlet", "_standard_gamma", "alpha_dropout", "bernoulli", "bernoulli_",
        "binomial", "cauchy_", "dropout", "exponential_", "feature_alpha_dropout",
        "feature_dropout", "geometric_", "log_normal_", "multinomial", "normal", "normal_",
        "poisson", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "random_",
        "randperm", "uniform_",
    }
)  # fmt: skip
"""Torch's functions that draw."""


class _HostDraws(TorchFunctionMode):
    """Draw on the CPU, with its generator, and move the result to the requested device."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        fills = getattr(func, "__module__", "") == "torch.nn.init"
        if not fills and getattr(func, "__name__", "") not in _DRAWS:
            return func(*args, **kwargs)
        like = next((one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)), None)
        asked = kwargs.get("device")
        device = torch.device(asked) if asked is not None else _place(like)
        generator = kwargs.get("generator")
        if device.type == "cpu" or (generator is not None and generator.device.type != "cpu"):
            return func(*args, **kwargs)
        if fills and like is not None:  # its own draws are not seen here
            given = {name: one for name, one in kwargs.items() if name != "tensor"}
            filled = func(torch.empty_like(like, device=HOST), *args[1:], **given)
            with torch.no_grad():
                return like.copy_(onto(filled, device))
        own = kwargs if like is not None and asked is None else {**kwargs, "device": HOST}
        there, named = tree_map_only(Tensor, lambda one: one.to(HOST), (tuple(args[1:]), own))
        if func.__name__.endswith("_"):
            drawn = func(torch.empty_like(args[0], device=HOST), *there, **named)
            return args[0].copy_(onto(drawn, device))
        first = [one.to(HOST) if isinstance(one, Tensor) else one for one in args[:1]]
        return onto(func(*first, *there, **named), device)


def _place(like: Tensor | None) -> torch.device:
    return torch.get_default_device() if like is None else like.device


@contextmanager
def on(device: torch.device) -> Iterator[None]:
    """Inside, torch creates tensors there by default, and draws on the host."""
    if device.type == "cpu" and torch.get_default_device().type == "cpu":
        yield  # the modes cost time in every operation
        return
    with _HostDraws(), device:
        yield


def on_host(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function compute on the host, whatever torch's default device is."""

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        with entered():
            return function(*args, **kwargs)

    entered = partial(on, HOST)
    # Doctest only looks at functions with the module's own globals.
    own = FunctionType(call.__code__, function.__globals__, closure=call.__closure__)
    return wraps(function)(own)


def device_of(name: str) -> torch.device:
    """Return the device of that name; "auto" is CUDA where there is one, otherwise the CPU.

    Raises:
        ValueError: naming ``device``.

    >>> device_of("cpu")
    device(type='cpu')
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device={name!r} must be auto, cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={name!r}, but no CUDA device is available")
    return device


def onto(one: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device; a copy from the host to a CUDA device is not waited for.

    Inside ``torch.vmap`` it is: torch has no batches of pinned memory.
    """
    batched = torch._C._functorch.is_functorch_wrapped_tensor(one)
    if device.type == "cuda" and one.device.type == "cpu" and not batched:
        return one.pin_memory().to(device, non_blocking=True)
    return one.to(device)


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Return whether all values are finite; a device is waited for once.

    >>> all_finite([torch.ones(2), torch.tensor(float("inf"))])
    False
    """
    return bool(torch.stack([tensor.isfinite().all() for tensor in tensors]).all())


@contextmanager
def drawing(device: torch.device, seed: int | None = None) -> Iterator[None]:
    """Draw for tensors of a device on the host, from a seed or the current state.

    The caller's random state is restored afterwards.
    """
    with torch.random.fork_rng([]), on(device):
        if seed is not None:
            torch.default_generator.manual_seed(seed)  # a seed for all devices is slow
        yield


def as_gradient(one: Tensor, value: Tensor) -> Tensor:
    """Return a gradient in the type, place and layout of its parameter.

    torch's fused optimisers take the layout for granted: with another they move wrong entries.

    >>> weight = torch.zeros(2, 3).T
    >>> as_gradient(torch.ones(3, 2), weight).stride()
    (1, 3)
    """
    same = (one.dtype, one.device, one.stride()) == (value.dtype, value.device, value.stride())
    return one if same else torch.empty_like(value).copy_(one)
