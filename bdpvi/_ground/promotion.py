"""Operations of tensors of several floating types: done in the widest, where torch refuses them."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only


class Promotion(TorchFunctionMode):
    """Inside, an operation that fails on mixed floating types is done again in the widest of them.

    Torch promotes the types of sums and products by itself, and refuses to do so in a matrix
    product, a layer or a convolution. What works without it is left as it is.

    >>> with Promotion():
    ...     (torch.ones(2, 3) @ torch.ones(3, dtype=torch.float64)).dtype
    torch.float64
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        try:
            return func(*args, **kwargs)
        except RuntimeError:
            kinds = {one.dtype for one in tree_leaves((args, kwargs)) if _is_floating(one)}
            if len(kinds) < 2 or _writes(func, kwargs):
                raise
        widest = reduce(torch.promote_types, kinds)

        def wide(one: Tensor) -> Tensor:
            return one.to(widest) if _is_floating(one) else one

        args, kwargs = tree_map_only(Tensor, wide, (args, kwargs))
        return func(*args, **kwargs)


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _writes(func: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a function changes its argument, which a copy in another type would not."""
    name = str(getattr(func, "__name__", ""))
    return "out" in kwargs or name.startswith(("__i", "__set")) or name[-1:] == "_" != name[-2:-1]
