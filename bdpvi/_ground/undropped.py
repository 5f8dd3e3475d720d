"""Networks without dropout, whose runs can be compared: chance has no part in what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only


class Undropped(TorchDispatchMode):
    """Makes dropout drop nothing: every coin of torch's shows heads.

    >>> with Undropped():
    ...     torch.nn.functional.dropout(torch.ones(3), 0.5)
    tensor([2., 2., 2.])
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return out
        name = func.overloadpacket.__name__
        if name == "native_dropout":
            x, p, _ = args
            return out[0].copy_(x / (1 - p)), out[1].fill_(True)
        return self.replacement(out) if not name.startswith("bernoulli") else filled(out, 1.0)

    def replacement(self, out: Any) -> Any:
        """Return what to put in the place of other random numbers: themselves."""
        return out


def filled(out: Any, constant: float) -> Any:
    """Return tensors filled with a constant."""
    return tree_map_only(Tensor, lambda one: one.fill_(constant), out)
