"""Operations of tensors of several floating types: done in the widest, where torch refuses them."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

if TYPE_CHECKING:
    from typing_extensions import Self


class Promotion(TorchFunctionMode):
    """Inside, an operation that fails on mixed floating types is done again in the widest of them.

    Torch promotes the types of sums and products by itself, and refuses to do so in a matrix
    product, a layer or a convolution. What works without it is left as it is. A recurrent layer,
    which checks types by itself, takes its input in the type of its weights.

    >>> with Promotion():
    ...     (torch.ones(2, 3) @ torch.ones(3, dtype=torch.float64)).dtype
    torch.float64
    """

    def __enter__(self) -> Self:
        self._hook = register_module_forward_pre_hook(_in_own_type)  # type: ignore[arg-type]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        self._hook.remove()
        super().__exit__(*error)  # type: ignore[no-untyped-call]

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


def _in_own_type(layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return the arguments of a recurrent layer with its input in the type that it checks.

    Raises:
        ValueError: if its weights have several types, which torch may read beyond their ends.
    """
    if not isinstance(layer, nn.RNNBase) or not args:
        return None
    kind, *more = dict.fromkeys(getattr(layer, name).dtype for name in layer._flat_weights_names)
    if more:
        raise ValueError(
            f"{type(layer).__name__} has weights of {kind} and {more[0]}: give the priors of its "
            "latent weights the type of its others"
        )
    x, *others = args
    return x.to(kind) if isinstance(x, PackedSequence) or _is_floating(x) else x, *others


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _writes(func: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a function changes its argument, which a copy in another type would not."""
    name = str(getattr(func, "__name__", ""))
    return "out" in kwargs or name.startswith(("__i", "__set")) or name[-1:] == "_" != name[-2:-1]
