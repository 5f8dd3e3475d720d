"""Machine code by the optional numba, if it is worth loading."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import torch

T = TypeVar("T")

_NUMBERS = 150_000
"""From this problem size on, machine code saves more than the second it takes to load."""


def where_it_pays(
    numbers: int, device: torch.device, compiled: Callable[[], T], plain: Callable[[], T]
) -> T:
    """Return ``compiled()``; for few numbers, on a GPU or without numba ``plain()``.

    The choice depends only on the size, so that the same problem has the same result.

    Args:
        numbers: size of the problem: records, or pairs, times variables.
        device: device of its tensors.
        compiled: computes the result with functions compiled by numba.
        plain: computes it with torch.

    >>> where_it_pays(1_000, torch.device("cpu"), lambda: "machine code", lambda: "torch")
    'torch'
    """
    if numbers >= _NUMBERS and device.type == "cpu":
        with suppress(ImportError):
            return compiled()
    return plain()
