"""Digests of a block's rows, by which the passes over a table are compared. Not for publication.

They show a source that does not yield the same rows twice, not a forged one: what a row holds was
chosen before its first pass, so a hash without a key serves. The order of a block's rows is free:
sums over a block are the same in any order but for rounding, and a shuffle of Dask's keeps none.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bdpvi.score.spelling import spell

if TYPE_CHECKING:
    import pandas as pd

Bits = NDArray[np.uint64]
DIGEST = "digest"
"""Attribute of a block's rows: the digest of the bytes they were read from, or 0 if their file is
watched."""
_ODD, _HALF = np.uint64(0x9E3779B97F4A7C15), np.uint64(32)
_WORD, _WORDS = 8, 8
"""Bytes of a text that are hashed at once, and how often; of a longer text the rest by itself."""
_CACHED = 1 << 13
"""Cells that are hashed at once: they fit in a processor's cache."""


def of(part: Any) -> int:
    """Return the digest of a part of a block, 0 if it is no frame; that of a block is their sum."""
    if (noted := getattr(part, "attrs", None)) is None:
        return 0
    result: int = noted[DIGEST] if DIGEST in noted else of_rows(part)
    return result


def of_tensors(part: tuple[Any, ...]) -> tuple[str, ...]:
    """Return a digest of each tensor; those of several parts are added as text."""
    found = (values.cpu().contiguous().numpy().tobytes() for values in part)
    return tuple(hashlib.sha256(one).hexdigest() for one in found)


def of_bytes(content: bytes) -> int:
    """Return the digest of bytes."""
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big")


def of_rows(frame: pd.DataFrame) -> int:
    """Return the digest of rows in any order: a sum of a hash of each.

    >>> import pandas as pd
    >>> one = pd.DataFrame({"age": [1.5, 2.0], "sex": ["F", "M"]})
    >>> of_rows(one) == of_rows(one.iloc[::-1]), of_rows(one) == of_rows(one.iloc[:1])
    (True, False)
    """
    names = of_bytes(repr([*frame.columns]).encode("utf-8", "replace"))
    each = np.full(len(frame), names, np.uint64)
    for _, values in frame.items() if len(frame) else ():
        each = _mixed(each, _bits(values))
    return int(_mixed(each, np.zeros_like(each)).sum(dtype=np.uint64))


def _mixed(each: Bits, more: Bits) -> Bits:
    """Return hashes, which are written over, with more bits mixed in: one to one in either."""
    for start in range(0, len(each), _CACHED):
        some = each[start : start + _CACHED]
        some ^= more[start : start + _CACHED]
        some *= _ODD
        some ^= some >> _HALF
    return each


def _bits(values: pd.Series[Any]) -> Bits:
    """Return a number for each cell; equal cells of one type have equal numbers."""
    import pandas as pd

    kind = values.dtype
    if isinstance(kind, pd.CategoricalDtype):
        known, codes = kind.categories, values.cat.codes.to_numpy()
        if len(known) > len(codes):
            known, codes = known.take(codes), np.where(codes < 0, codes, np.arange(len(codes)))
        return np.append(_bits(pd.Series(known)), _ODD)[codes]  # a blank's code is −1
    if isinstance(kind, np.dtype) and kind.kind in "biufmM" and kind.itemsize <= 8:
        found = values.to_numpy()
        wide = np.float64 if kind.kind == "f" else np.int64
        return (found if kind.itemsize == 8 else found.astype(wide)).view(np.uint64)
    if kind.kind in "OU":
        with suppress(TypeError, ValueError, NotImplementedError):
            return of_texts(values)
    try:
        return np.asarray(pd.util.hash_pandas_object(values, index=False), dtype=np.uint64)
    except (TypeError, ValueError):  # such as of lists, or of texts that are no UTF-8
        return of_texts([spell(value) for value in values])


def of_texts(values: Any) -> Bits:
    """Return a hash of each text's bytes in Arrow's memory, of a column or an array of texts.

    Raises:
        TypeError, ValueError, NotImplementedError: if some cells are neither texts nor blank.
    """
    import pandas as pd
    import pyarrow

    made = pyarrow.chunked_array([pyarrow.array(values, pyarrow.large_string(), from_pandas=True)])
    texts = made.cast(pyarrow.large_string()).combine_chunks()
    each = [_words(texts.slice(start, _CACHED)) for start in range(0, len(texts), _CACHED)]
    result = np.concatenate([one for one, _ in each])
    lengths = np.concatenate([one for _, one in each])
    if len(longer := np.flatnonzero(lengths > _WORDS * _WORD)):
        long = texts.take(pyarrow.array(longer)).to_pandas()
        result[longer] ^= pd.util.hash_pandas_object(long, index=False).to_numpy()
    return result


def _words(texts: Any) -> tuple[Bits, NDArray[np.int64]]:
    """Return a hash of the first bytes of each text, and its number of bytes."""
    _, places, held = texts.buffers()
    ends = np.frombuffer(places, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    starts, lengths = ends[:-1] - ends[0], ends[1:] - ends[:-1]
    content = held.slice(ends[0], ends[-1] - ends[0]).to_pybytes() if held else b""
    content += bytes(_WORD)
    words = np.ndarray(len(content) - _WORD + 1, "<u8", content, strides=(1,))
    each = _mixed(words[starts] << _beyond(lengths), lengths.view(np.uint64))
    for begin in range(_WORD, min(int(lengths.max()), _WORDS * _WORD), _WORD):
        at = np.flatnonzero(lengths > begin)
        each[at] = _mixed(each[at], words[starts[at] + begin] << _beyond(lengths[at] - begin))
    if texts.null_count:
        blank = texts.is_null().to_numpy(zero_copy_only=False)
        each[blank], lengths[blank] = _ODD, 0
    return each, lengths


def _beyond(left: NDArray[np.int64]) -> Bits:
    """Return the bits of a word that are beyond the end of a text."""
    return ((_WORD - np.minimum(left, _WORD)) * 8).view(np.uint64)
