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

    Args:
        constant: replaces all other random numbers; None leaves them.

    >>> with Undropped():
    ...     torch.nn.functional.dropout(torch.ones(3), 0.5)
    tensor([2., 2., 2.])
    """

    def __init__(self, constant: float | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.constant = constant

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
        constant = 1.0 if name.startswith("bernoulli") else self.constant
        return out if constant is None else tree_map_only(Tensor, lambda x: x.fill_(constant), out)
