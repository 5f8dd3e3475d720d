"""Pyro and torch keep global state; whoever runs a model leaves the caller's as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pyro
import torch

from bdpvi.types import Dataset


@contextmanager
def isolated(data: Dataset) -> Iterator[None]:
    """Own parameter store, random state, default type and device; the caller's come back after."""
    old = torch.get_default_dtype()
    here = data.x.device
    with (
        pyro.get_param_store().scope(),
        torch.random.fork_rng([here] if data.x.is_cuda else []),
        nullcontext() if here.type == "cpu" else here,  # the mode costs time in every operation
    ):
        torch.set_default_dtype(data.x.dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(old)
