"""Isolation from the global state of Pyro and torch, which running a model leaves unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyro
import torch
from torch import Tensor

from bdpvi._ground.host import drawing


@contextmanager
def isolated(like: Tensor, seed: int | None = None) -> Iterator[None]:
    """Use a separate parameter store and random state, and a tensor's default type and device.

    Whole numbers, such as indices, leave the default type as it is. The caller's are restored
    afterwards. Random numbers come from the host, see :func:`drawing`.
    """
    old = torch.get_default_dtype()
    with pyro.get_param_store().scope(), drawing(like.device, seed):
        if like.is_floating_point():
            torch.set_default_dtype(like.dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(old)
