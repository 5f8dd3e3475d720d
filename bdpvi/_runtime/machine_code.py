"""Machine code by numba, which is optional, where it pays to load it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import torch

T = TypeVar("T")

_NUMBERS = 150_000
"""From so many on machine code saves the second that it takes to load."""


def where_it_pays(
    numbers: int, device: torch.device, compiled: Callable[[], T], plain: Callable[[], T]
) -> T:
    """Return what ``compiled`` makes, or ``plain`` for few numbers, on a GPU and without numba.

    It depends on the size of the problem alone, so that the same problem has the same result.

    Args:
        numbers: records, or pairs, times variables.
        device: where they are.
        compiled: imports what numba compiles.
        plain: does not.

    >>> where_it_pays(1_000, torch.device("cpu"), lambda: "machine code", lambda: "torch")
    'torch'
    """
    if numbers >= _NUMBERS and device.type == "cpu":
        with suppress(ImportError):
            return compiled()
    return plain()
