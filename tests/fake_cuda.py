"""A pretended CUDA device: tensors that say ``cuda:0`` and are computed on the CPU.

It refuses what a real one refuses, tensors and generators of two devices in one operation, and
what it draws itself comes from a generator of its own. Inside torch its tensors are meta tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

CUDA, META, CPU = torch.device("cuda:0"), torch.device("meta"), torch.device("cpu")
_DRAWS = torch.Generator()
_MOVES = ("aten::copy_", "aten::_to_copy")
_PICKS = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")


class Cuda(Tensor):
    """A tensor of the pretended device."""

    value: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_meta = property(lambda self: False)

    @staticmethod
    def __new__(cls, value: Tensor) -> Cuda:
        """Return the tensor with these values."""
        made: Cuda = torch.Tensor._make_wrapper_subclass(
            cls,
            value.size(),
            strides=value.stride(),
            storage_offset=value.storage_offset(),
            dtype=value.dtype,
            device=META,
        )
        made.value = value
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{self.value!r} on {CUDA}"

    def tolist(self) -> Any:
        """Return the values."""
        _note("tolist")
        return self.value.tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        """Refuse, as of any tensor that is not the CPU's."""
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu()")

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _computed(func, args, kwargs or {})


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute an operation some of whose tensors are of the device, or whose result is to be."""
    name = func._schema.name
    tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
    there = any(isinstance(tensor, Cuda) for tensor in tensors)
    if there and name not in _MOVES:
        _require_one_device(name, args, tensors)
    asked = kwargs.get("device")
    if _waits_for(name, args, kwargs, there, asked):
        _note(name)
    there = there if asked is None else asked.type == "meta"
    kwargs = kwargs if asked is None else {**kwargs, "device": CPU}
    if there and kwargs.get("generator") is not None:
        raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
    draws = there and torch.Tag.nondeterministic_seeded in func.tags
    with _disable_current_modes(), _drawing() if draws else _nothing():
        values = tree_map_only(Cuda, lambda one: one.value, (tuple(args), kwargs))
        found = func(*values[0], **values[1])
    if any(one.alias_info is not None and one.alias_info.is_write for one in func._schema.returns):
        return kwargs.get("out", args[0] if args else found)
    return (
        tree_map(lambda one: Cuda(one) if isinstance(one, Tensor) else one, found)
        if there
        else found
    )


def _waits_for(name: str, args: Any, kwargs: dict[str, Any], there: bool, asked: Any) -> bool:
    """Whether the host waits for the device, as ``torch.cuda.set_sync_debug_mode`` has it."""
    if name == "aten::_to_copy":
        moved = asked is not None and (asked.type == "meta") != there
        return moved and not (kwargs.get("non_blocking") and not there)
    if name == "aten::copy_":
        blocks = not (len(args) > 2 and args[2]) and not kwargs.get("non_blocking")
        into, source = (isinstance(one, Cuda) for one in args[:2])
        return into != source and (source or blocks)
    if there and name in _PICKS:
        return any(one is not None and one.dtype is torch.bool for one in args[1])
    return there and name in _WAITING


_NOTES: list[list[str]] = []
_WAITING = (
    "aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::item", "aten::nonzero",
    "aten::masked_select", "aten::unique_consecutive", "aten::_unique2", "aten::unique_dim",
    "aten::repeat_interleave", "aten::bincount",
)  # fmt: skip
"""What has a result on the host, or one of a size that only the device knows."""


def _note(name: str) -> None:
    for notes in _NOTES:
        notes.append(name)


@contextmanager
def waits() -> Iterator[list[str]]:
    """Yield the operations at which the host has waited for the device so far."""
    _NOTES.append([])
    try:
        yield _NOTES[-1]
    finally:
        _NOTES.pop()


def _require_one_device(name: str, args: Any, tensors: list[Tensor]) -> None:
    others = [tensor for tensor in tensors if not isinstance(tensor, Cuda) and tensor.ndim]
    if name in _PICKS and isinstance(args[0], Cuda):  # places may be the CPU's
        places = {id(one) for one in args[1]}
        others = [other for other in others if id(other) not in places]
    if others:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, "
            f"cuda:0 and cpu! ({name}, {[tuple(other.shape) for other in others]} on cpu)"
        )


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _drawing() -> Iterator[None]:
    """Draw by the device's generator."""
    with torch.random.fork_rng([]):
        torch.default_generator.set_state(_DRAWS.get_state())
        yield
        _DRAWS.set_state(torch.default_generator.get_state())


class _Operations(TorchDispatchMode):
    """Sees what makes tensors of no other."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = tree_map(_renamed, kwargs or {})  # in a hook of autograd names are not seen
        every = tree_leaves((args, kwargs))
        if any(isinstance(one, Cuda) for one in every) or kwargs.get("device") == META:
            return _computed(func, args, kwargs)
        return func(*args, **kwargs)


class _Names(TorchFunctionMode):
    """Says meta where CUDA is said, which this torch may not know."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, kwargs = getattr(func, "__name__", ""), dict(kwargs or {})
        if name == "cuda":
            name, func, args = "to", Tensor.to, (args[0], CUDA)
        if name == "pin_memory":
            if torch._C._functorch.is_functorch_wrapped_tensor(args[0]):
                raise RuntimeError("Batching rule not implemented for aten::is_pinned")
            return args[0]
        if name in ("tensor", "as_tensor", "asarray") and _is_cuda(kwargs.get("device")):
            with temporarily_clear_interpreter_stack():  # which torch does itself
                return func(*args, **{**kwargs, "device": None}).to(META)
        if name == "new_tensor" and args[0].device.type != "cpu":
            kwargs = {"dtype": args[0].dtype, **kwargs, "device": None}
            with temporarily_clear_interpreter_stack():
                return torch.tensor(*args[1:], **kwargs).to(META)
        if name in ("__getitem__", "__setitem__") and isinstance(args[1], list):
            args = (args[0], torch.tensor(args[1], device=CPU), *args[2:])
        if name == "to" or "device" in kwargs:
            args, kwargs = tree_map(_renamed, (tuple(args), kwargs))
        return func(*args, **kwargs)


def _is_cuda(one: Any) -> bool:
    known = isinstance(one, torch.device | str) and not (isinstance(one, str) and "cuda" not in one)
    return known and torch.device(one).type in ("cuda", "meta")


def _renamed(one: Any) -> Any:
    return META if _is_cuda(one) else one


def _seed(seed: int) -> None:
    _DRAWS.manual_seed((seed + 1) % 2**63)  # not the stream of the CPU


_AS_IF: dict[str, Any] = {
    "is_available": lambda: True,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "_lazy_init": lambda: None,
    "synchronize": lambda *_: None,
    "manual_seed": _seed,
    "manual_seed_all": _seed,
    "get_rng_state": lambda *_: _DRAWS.get_state(),
    "set_rng_state": lambda state, *_: _DRAWS.set_state(state),
}


@contextmanager
def pretended() -> Iterator[None]:
    """Within it there is a CUDA device."""
    getattr(torch._C, "_ensureCUDADeviceGuardSet", lambda: None)()  # from torch 2.8 on
    _DRAWS.seed()
    operations: Any = _Operations
    with patch.multiple(torch.cuda, **_AS_IF), _Names(), operations():
        yield
