"""Spambase: is the message spam?"""

from __future__ import annotations

import io
import os

import pandas as pd

from bdpvi.datasets.dataset import Split
from bdpvi.datasets.fetch import ARCHIVE, RawFile, fetch
from bdpvi.datasets.public import public_table
from bdpvi.datasets.split import shuffled

FILE = RawFile(
    "spambase.data",
    f"{ARCHIVE}/spambase/spambase.data",
    "b1ef93de71f97714d3d7d4f58fc9f718da7bbc8ac8a150eff2778616a8097b12",
)
WORDS = """
make address all 3d our over remove internet order mail receive will people report addresses free
business email you credit your font 000 money hp hpl george 650 lab labs telnet 857 data 415 85
technology 1999 parts pm direct cs meeting original project re edu table conference
"""
MEASURES = (
    *(f"word_freq_{word}" for word in WORDS.split()),
    *(f"char_freq_{character}" for character in ";([!$#"),
    "capital_run_length_average",
    "capital_run_length_longest",
    "capital_run_length_total",
)


def load_spambase(path: str | os.PathLike[str] | None = None) -> Split:
    """Load 4,601 messages with 57 frequencies and run lengths each; y = 1 is spam.

    The columns are standardised over all rows; their tails are heavy, so that single records lie
    tens of standard deviations out. The file lists all spam first, so the rows are permuted with
    a fixed seed before the first 80 % are used for training.

    Args:
        path: ``spambase.data`` or its folder; by default ``$BDPVI_DATA``, the user's cache and the
            archive are searched.

    Raises:
        DigestError: if the file found is not the published one.
        OSError: if the file cannot be found, read or downloaded.

    Source: M. Hopkins, E. Reeber, G. Forman, J. Suermondt, UCI Machine Learning Repository, 1999,
    doi:10.24432/C53G6X.

    >>> load_spambase("spambase.data").train.x.shape  # doctest: +SKIP
    torch.Size([3680, 57])
    """
    frame = pd.read_csv(io.BytesIO(fetch(FILE, path)), names=[*MEASURES, "spam"])
    spam = frame.pop("spam") == 1
    return shuffled(public_table("spambase", frame, spam, "spam"))
