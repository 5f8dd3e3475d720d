"""Torch's random numbers from all bits of a key."""

from __future__ import annotations

import torch

from bdpvi._ground.host import HOST, on_host
from bdpvi.noise.keys import Key

_WORDS, _FROM = 624, 24
"""The Mersenne twister's words in the result of torch.get_rng_state(): number and offset."""


@on_host
def stir(key: Key, device: torch.device = HOST) -> None:
    """Seed torch with all bits of a key, as a seed on the CPU has only 32.

    Args:
        key: the key.
        device: a further device, besides the host, that draws.
    """
    if device.type == "cuda":
        torch.cuda.manual_seed(int(key) % 2**63)
    state = torch.get_rng_state()
    words = state[_FROM : _FROM + 8 * _WORDS].view(torch.int64)
    words.copy_(torch.from_numpy((key.words(_WORDS) & 0xFFFFFFFF).astype("int64")))
    state[8:16].view(torch.int32).copy_(torch.tensor([1, 1], dtype=torch.int32))  # left, seeded
    state[16:_FROM].zero_()  # next
    torch.set_rng_state(state)
