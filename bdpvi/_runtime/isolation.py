"""Pyro and torch keep global state; whoever runs a model leaves the caller's as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyro
import torch
from torch import Tensor

from bdpvi._runtime.host import drawing


@contextmanager
def isolated(like: Tensor, seed: int | None = None) -> Iterator[None]:
    """Own parameter store and random state, and the default type and device of a tensor.

    The caller's come back after. Random numbers are the host's, see :func:`drawing`.
    """
    old = torch.get_default_dtype()
    with pyro.get_param_store().scope(), drawing(like.device, seed):
        torch.set_default_dtype(like.dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(old)
