"""Pyro and torch keep global state; whoever runs a model leaves the caller's as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pyro
import torch
from torch import Tensor


@contextmanager
def isolated(like: Tensor) -> Iterator[None]:
    """Own parameter store and random state, and the default type and device of a tensor.

    The caller's come back after.
    """
    old = torch.get_default_dtype()
    here = like.device
    with (
        pyro.get_param_store().scope(),
        torch.random.fork_rng([here] if like.is_cuda else []),
        nullcontext() if here.type == "cpu" else here,  # the mode costs time in every operation
    ):
        torch.set_default_dtype(like.dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(old)
