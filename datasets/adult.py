"""Adult: does a person of the 1994 census earn more than 50,000 dollars a year?"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Literal

import pandas as pd

from bdpvi._ground import validate
from bdpvi.datasets.columns import Column, Numeric, OneHot, Ordinal
from bdpvi.datasets.dataset import Split
from bdpvi.datasets.fetch import ARCHIVE, RawFile, fetch
from bdpvi.datasets.public import public_table
from bdpvi.datasets.split import first_rows

DATA = RawFile(
    "adult.data",
    f"{ARCHIVE}/adult/adult.data",
    "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
)
TEST = RawFile(
    "adult.test",
    f"{ARCHIVE}/adult/adult.test",
    "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
)
NAMES = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation",
    "relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week",
    "native-country",
)  # fmt: skip
NUMBERS = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")


def load_adult(
    path: str | os.PathLike[str] | None = None,
    encoding: Literal["ordinal", "onehot"] = "ordinal",
) -> Split:
    """Load 48,842 persons; y = 1 is an income above 50,000 dollars.

    The rows are those of ``adult.data`` followed by those of ``adult.test``. An unknown value,
    ``?``, is a category like the others.

    Args:
        path: the folder of both files, or ``adult.data`` with the other in the same folder; by
            default ``$BDPVI_DATA``, the user's cache and the archive are searched.
        encoding: ``"ordinal"``: categories as positions in sorted order, then all fourteen
            columns standardised over all rows, as in Jälkö, Dikmen and Honkela,
            "Differentially Private Variational Inference for Non-conjugate Models", UAI 2017.
            ``"onehot"``: the eight categorical columns as 102 features of 0/1, the six numeric
            ones standardised.

    Returns:
        The first 39,073 rows for training, 9,769 for test; no intercept.

    Raises:
        DigestError: if a file found is not the published one.
        OSError: if a file cannot be found, read or downloaded.

    Source: B. Becker, R. Kohavi, UCI Machine Learning Repository, 1996, doi:10.24432/C5XW20.

    >>> load_adult("adult", encoding="onehot").train.x.shape  # doctest: +SKIP
    torch.Size([39073, 108])
    """
    validate.choice("encoding", encoding, ("ordinal", "onehot"))
    beside = Path(path).parent if path is not None and Path(path).is_file() else path
    frame = pd.concat(
        [_read(fetch(DATA, path), heading=0), _read(fetch(TEST, beside), heading=1)],
        ignore_index=True,
    )
    rich = frame["income"].str.rstrip(".") == ">50K"

    def column(name: str) -> Column:
        if name in NUMBERS:
            return Numeric.of_values(frame[name])
        values = frame[name]
        return OneHot.of_values(values) if encoding == "onehot" else Ordinal.of_values(values)

    columns = tuple(column(name) for name in NAMES)
    name = "adult" if encoding == "ordinal" else "adult-onehot"
    return first_rows(public_table(name, frame, rich, "income above 50,000 dollars", columns))


def _read(content: bytes, heading: int) -> pd.DataFrame:
    return pd.read_csv(
        io.BytesIO(content),
        names=[*NAMES, "income"],
        skiprows=heading,
        skipinitialspace=True,
        na_filter=False,
    )
