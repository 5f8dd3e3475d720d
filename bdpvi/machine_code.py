"""When it pays to load what numba makes."""

from __future__ import annotations

import torch

_NUMBERS = 150_000
"""From so many on machine code saves the second that it takes to load."""


def pays(numbers: int, device: torch.device) -> bool:
    """Return whether to load it for so many numbers: records, or pairs, times variables.

    It depends on the size of the problem alone, so that the same problem has the same result.

    >>> pays(1_000, torch.device("cpu"))
    False
    """
    return numbers >= _NUMBERS and device.type == "cpu"
