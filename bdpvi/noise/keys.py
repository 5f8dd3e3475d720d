"""Secret keys: all randomness of a charge is derived from one.

A charge is written to the ledger before any draw. The source of its key is stored elsewhere, in a
secret place. As long as it exists, the same draws can be made again after an interruption, and
nothing is charged twice.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_BYTES = 32
EXPERIMENT = "experiment"
"""Preprocessing key for records that a seed chose from a table: nothing may be released."""


@dataclass(frozen=True)
class Key:
    """A secret of 256 bits. Its methods are pure functions: the same call gives the same bits.

    So each purpose needs its own key, a :meth:`child` with unique labels.

    Attributes:
        secret: 32 bytes; not shown by ``repr``.
        experiment: whether it comes from a seed, so that no draw from it is private.

    Raises:
        ValueError: unless ``secret`` is 32 bytes.

    >>> key = Key.of_seed(0)
    >>> key.child("age", 1) == key.child("age", 1), key.child("age", 1) == key.child("age", 2)
    (True, False)
    >>> key
    Key(experiment=True)
    """

    secret: bytes = field(repr=False)
    experiment: bool = False

    def __post_init__(self) -> None:
        if not (isinstance(self.secret, bytes) and len(self.secret) == _BYTES):
            raise ValueError(f"secret must be {_BYTES} bytes")

    @classmethod
    def fresh(cls) -> Key:
        """Return a key from the operating system's cryptographic generator."""
        return cls(os.urandom(_BYTES))

    @classmethod
    def of_seed(cls, seed: int) -> Key:
        """Return the key of an experiment: the seed reveals all its draws."""
        return cls(hashlib.sha256(f"bdpvi experiment {int(seed)}".encode()).digest(), True)

    @classmethod
    def of_int(cls, number: int) -> Key:
        """Return the secret key of this integer.

        >>> Key.of_int(5) == Key((5).to_bytes(32, "big"))
        True
        """
        return cls(number.to_bytes(_BYTES, "big"))

    def child(self, *labels: str | int) -> Key:
        """Return the key of one purpose; keys of different labels look independent."""
        person = hashlib.blake2b(repr(labels).encode(), digest_size=_BYTES).digest()
        digest = hashlib.blake2b(person, key=self.secret, digest_size=_BYTES).digest()
        return Key(digest, self.experiment)

    @property
    def work(self) -> str:
        """The id in a ledger of this key's work: 16 digits that reveal nothing about the secret.

        >>> len(Key.of_seed(0).work)
        16
        """
        return self.child("work").secret.hex()[:16]

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return ``count`` words of 64 uniform bits: the output of SHAKE-256 on the secret.

        More words begin with the same ones.

        >>> Key.of_seed(0).words(2).tolist() == Key.of_seed(0).words(3)[:2].tolist()
        True
        """
        stream = hashlib.shake_256(b"words" + self.secret).digest(8 * count)
        return np.frombuffer(stream, dtype="<u8").astype(np.uint64)

    def coins(self, count: int) -> NDArray[np.float64]:
        """Return ``count`` uniform numbers in [0, 1), multiples of 2⁻⁵³: a secret coin per record.

        >>> Key.of_seed(0).coins(2).round(3).tolist()
        [0.529, 0.81]
        """
        return np.asarray((self.words(count) >> np.uint64(11)) * 2.0**-53, dtype=np.float64)

    def coins_of(self, names: Iterable[str]) -> NDArray[np.float64]:
        """Return one coin for each name, as :meth:`coins`; equal names have equal coins.

        >>> first, other, again = Key.of_seed(0).coins_of(["ada", "bob", "ada"])
        >>> bool(first == again), bool(first == other)
        (True, False)
        """
        return np.array([self.child("coin", name).coins(1)[0] for name in names])

    def __int__(self) -> int:
        return int.from_bytes(self.secret, "big")
