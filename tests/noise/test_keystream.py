"""AES-256 in counter mode, computed on a device, beside a library's."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from bdpvi._ground.host import HOST
from bdpvi.noise.keystream import Keystream, encrypted


@settings(max_examples=60, deadline=None)
@given(
    secret=st.binary(min_size=32, max_size=32),
    first=st.one_of(st.integers(0, 2**61), st.integers(2**32 - 5, 2**32), st.just(2**31 - 2)),
    blocks=st.integers(1, 9),
)
def test_a_device_computes_the_bytes_of_the_library(secret: bytes, first: int, blocks: int) -> None:
    counter = modes.CTR(first.to_bytes(16, "big"))
    expected = Cipher(algorithms.AES(secret), counter).encryptor().update(bytes(16 * blocks))
    assert bytes(encrypted(secret, first, blocks, HOST).tolist()) == expected


@pytest.mark.parametrize("counts", [(1, 2, 40), (16, 16), (0, 5, 0, 33)])
def test_bytes_follow_each_other_on_any_device(counts: tuple[int, ...]) -> None:
    stream, taken = Keystream(bytes(range(32))), b""
    for count in counts:
        taken += stream.take(count) + bytes(stream.take_on(HOST, count).tolist())
    assert taken == Keystream(bytes(range(32))).take(2 * sum(counts))
