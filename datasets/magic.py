"""MAGIC Gamma Telescope: was the shower made by a gamma ray?"""

from __future__ import annotations

import io
import os

import pandas as pd

from bdpvi.datasets.dataset import Split
from bdpvi.datasets.fetch import ARCHIVE, RawFile, fetch
from bdpvi.datasets.public import public_table
from bdpvi.datasets.split import shuffled

FILE = RawFile(
    "magic04.data",
    f"{ARCHIVE}/magic/magic04.data",
    "e9314b7ebd4b4b59a3b3d65f7316663963777b16a46786877651dbbaa640b36a",
)
MEASURES = (
    "fLength", "fWidth", "fSize", "fConc", "fConc1", "fAsym", "fM3Long", "fM3Trans", "fAlpha",
    "fDist",
)  # fmt: skip


def load_magic(path: str | os.PathLike[str] | None = None) -> Split:
    """Load 19,020 simulated showers with ten image moments each; y = 1 is a gamma ray.

    The moments are standardised over all rows. The file lists all gamma rays first, so the rows
    are permuted with a fixed seed before the first 80 % are used for training.

    Args:
        path: ``magic04.data`` or its folder; by default ``$BDPVI_DATA``, the user's cache and the
            archive are searched.

    Raises:
        DigestError: if the file found is not the published one.
        OSError: if the file cannot be found, read or downloaded.

    Source: R. Bock, UCI Machine Learning Repository, 2004, doi:10.24432/C52C8B.

    >>> load_magic("magic04.data").train.x.shape  # doctest: +SKIP
    torch.Size([15216, 10])
    """
    frame = pd.read_csv(io.BytesIO(fetch(FILE, path)), names=[*MEASURES, "class"])
    gamma = frame.pop("class") == "g"
    return shuffled(public_table("magic", frame, gamma, "gamma ray"))
