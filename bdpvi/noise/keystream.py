"""The bits of a secret key on any device: AES-256 in counter mode, from a counter of 0.

The host has a library's. On another device the cipher is computed there, by table look-ups and
exclusive or on 32-bit integers (FIPS 197; the tables of Daemen and Rijmen, 2002, section 4.2), so
the bits are the same and nothing is copied. Look-ups by secret bytes take a time that another
program on the same device might measure; whoever runs there is trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from torch import Tensor

from bdpvi._ground.host import HOST

_BLOCK = 16
_ROUNDS = 14
_AHEAD = 1 << 20
"""Blocks that a device computes at a time."""
_NOTHING = torch.empty(0, dtype=torch.uint8, device=HOST)
_BYTES = (24, 16, 8, 0)
"""Shifts to the bytes of a word, the first byte first."""


class Keystream:
    """Consecutive bytes of a key's stream.

    Args:
        secret: 32 bytes, for this stream only.

    >>> stream, again = Keystream(bytes(32)), Keystream(bytes(32))
    >>> stream.take(3) + stream.take(40) == again.take(43)
    True
    """

    def __init__(self, secret: bytes) -> None:
        self._secret, self._at = secret, 0
        self._stream: CipherContext | None = None
        self._ahead, self._from = _NOTHING, 0

    def take(self, count: int) -> bytes:
        """Return the next bytes."""
        if self._stream is None:
            counter = modes.CTR((self._at // _BLOCK).to_bytes(_BLOCK, "big"))
            self._stream = Cipher(algorithms.AES(self._secret), counter).encryptor()
            self._stream.update(bytes(self._at % _BLOCK))
        self._at += count
        return self._stream.update(bytes(count))

    def take_on(self, device: torch.device, count: int) -> Tensor:
        """Return the next bytes, (count,) uint8, computed on a device."""
        start, end = self._at, self._at + count
        there = self._from <= start and end <= self._from + len(self._ahead)
        if self._ahead.device != device or not there:
            first = start // _BLOCK
            blocks = max(_AHEAD, -(-end // _BLOCK) - first)
            self._ahead, self._from = encrypted(self._secret, first, blocks, device), first * _BLOCK
        self._at, self._stream = end, None
        return self._ahead[start - self._from : end - self._from].clone()


def encrypted(secret: bytes, first: int, blocks: int, device: torch.device) -> Tensor:
    """Return the stream from block ``first`` on, (16 * blocks,) uint8, computed on the device.

    Args:
        secret: 32 bytes.
        first: number of the first block, below 2⁶².
        blocks: how many.
        device: where.

    >>> bytes(encrypted(bytes(32), 0, 1, HOST).tolist()) == Keystream(bytes(32)).take(16)
    True
    """
    keys = torch.tensor(_round_keys(secret), dtype=torch.int32, device=device).view(-1, 4, 1)
    tables, last = (one.to(device) for one in _tables())
    counters = torch.arange(first, first + blocks, device=device)
    state = torch.zeros(4, blocks, dtype=torch.int32, device=device)
    state[2], state[3] = (counters >> 32).int(), _signed(counters).int()
    state ^= keys[0]
    for number in range(1, _ROUNDS + 1):
        state = _mixed(state, last if number == _ROUNDS else tables) ^ keys[number]
    return state.T.contiguous().view(torch.uint8).view(-1, 4).flip(1).flatten()


def _mixed(state: Tensor, tables: Tensor) -> Tensor:
    """Return a round's substitution, shift of rows and mixture of columns, (4, blocks)."""
    made = torch.zeros_like(state)
    for at, shift in enumerate(_BYTES):
        byte = state.roll(-at, 0) >> shift & 255
        made ^= tables[at].index_select(0, byte.flatten()).view_as(state)
    return made


def _signed(words: Tensor) -> Tensor:
    """Return the low 32 bits as a signed number."""
    return ((words + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)


@cache
def _boxes() -> list[int]:
    """Return the substitution of bytes: inverses in GF(2⁸), then an affine map."""
    box, p, q = [0x63] * 256, 1, 1
    while True:
        p ^= _doubled(p)  # p runs through all powers of 3, and q is the inverse of p
        q ^= q << 1
        q ^= q << 2
        q = (q ^ q << 4) & 255
        q ^= 9 if q & 128 else 0
        box[p] = 0x63 ^ q
        for turn in range(1, 5):
            box[p] ^= (q << turn | q >> (8 - turn)) & 255
        if p == 1:
            return box


def _doubled(byte: int) -> int:
    return (byte << 1) ^ (0x11B if byte & 128 else 0)


@cache
def _tables() -> tuple[Tensor, Tensor]:
    """Return what each byte of a column adds to it, (4, 256), and that of the last round."""
    box = _boxes()
    mixed = [_word((_doubled(s), s, s, _doubled(s) ^ s)) for s in box]
    turned = [[(one >> turn | one << (32 - turn)) & 0xFFFFFFFF for one in mixed]
              for turn in (0, 8, 16, 24)]  # fmt: skip
    last = [[s << shift for s in box] for shift in _BYTES]
    return (
        _signed(torch.tensor(turned, device=HOST)).int(),
        _signed(torch.tensor(last, device=HOST)).int(),
    )


def _word(four: Sequence[int]) -> int:
    return int.from_bytes(bytes(four), "big")


def _round_keys(secret: bytes) -> list[int]:
    """Return the words of all rounds' keys as signed numbers: FIPS 197, section 5.2, Nk = 8."""
    box, words = _boxes(), [_word(secret[at : at + 4]) for at in range(0, 32, 4)]
    constant = 1
    for at in range(8, 4 * (_ROUNDS + 1)):
        four = list(words[-1].to_bytes(4, "big"))
        if at % 8 == 0:
            four = four[1:] + four[:1]
        if at % 4 == 0:
            four = [box[one] for one in four]
        if at % 8 == 0:
            four[0] ^= constant
            constant = _doubled(constant)
        words.append(words[-8] ^ _word(four))
    return [word - (word >> 31 << 32) for word in words]
