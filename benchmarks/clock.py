"""The clock of benchmarks that run on the processor or on a device."""

from __future__ import annotations

import time


def seconds(device: str = "cpu") -> float:
    """Return processor time, or for "cuda" wall time once all work given to the device is done."""
    if device == "cpu":
        return time.process_time()
    import torch

    torch.cuda.synchronize()
    return time.perf_counter()
