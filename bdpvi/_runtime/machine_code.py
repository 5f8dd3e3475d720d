"""Machine code by numba, which is optional, where it pays to load it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import torch

T = TypeVar("T")

_NUMBERS = 150_000
"""Size of a problem from which machine code saves more time than the second it takes to load."""


def where_it_pays(
    numbers: int, device: torch.device, compiled: Callable[[], T], plain: Callable[[], T]
) -> T:
    """Return the result of ``compiled``; for few numbers, on a GPU or without numba of ``plain``.

    The choice depends on the size alone, so that the same problem has the same result.

    Args:
        numbers: size of the problem: records, or pairs, times variables.
        device: of its tensors.
        compiled: computes the result by functions that numba compiles.
        plain: computes it by torch.

    >>> where_it_pays(1_000, torch.device("cpu"), lambda: "machine code", lambda: "torch")
    'torch'
    """
    if numbers >= _NUMBERS and device.type == "cpu":
        with suppress(ImportError):
            return compiled()
    return plain()
