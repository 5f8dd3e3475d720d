"""Pyro and torch keep global state; whoever runs a model leaves the caller's as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pyro
import torch
from torch import Tensor

from bdpvi._runtime.keys import Key


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers of a seed, on one device; the caller's state comes back after."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        if device.type == "cpu":
            torch.default_generator.manual_seed(seed)  # a seed for all devices is slow
        else:
            torch.manual_seed(seed)
        yield


def stir(key: Key, device: torch.device) -> None:
    """Go on with random numbers of a key: of all its bits, as a seed on the CPU has 32 only."""
    if device.type == "cuda":
        torch.cuda.manual_seed(int(key) % 2**63)
    state = torch.get_rng_state()
    words = state[24 : 24 + 8 * 624].view(torch.int64)  # the Mersenne twister's
    words.copy_(torch.from_numpy((key.words(624) & 0xFFFFFFFF).astype("int64")))
    state[8:16].view(torch.int32).copy_(torch.tensor([1, 1], dtype=torch.int32))
    state[16:24].zero_()
    torch.set_rng_state(state)


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
