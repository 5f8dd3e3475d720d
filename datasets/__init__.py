"""Tables, with the constants used to preprocess them.

Public tables come from :data:`LOADERS`; load your own by :func:`from_csv` and :func:`from_frame`.
"""

from collections.abc import Callable, Mapping
from functools import partial

from bdpvi.datasets import columns as columns
from bdpvi.datasets import mnist as mnist
from bdpvi.datasets import reading as reading
from bdpvi.datasets import split as split
from bdpvi.datasets.abalone import load_abalone
from bdpvi.datasets.adult import load_adult
from bdpvi.datasets.breast_cancer import load_breast_cancer
from bdpvi.datasets.constants import constants_of, read_constants
from bdpvi.datasets.dataset import Split
from bdpvi.datasets.domain import Domain
from bdpvi.datasets.encoding import Encoding
from bdpvi.datasets.fair import load_fair
from bdpvi.datasets.magic import load_magic
from bdpvi.datasets.schema import Schema
from bdpvi.datasets.spambase import load_spambase
from bdpvi.datasets.tables import dataset_from_frame, from_csv, from_frame

#: Loaders of the public tables, by the data's names in reports.
LOADERS: Mapping[str, Callable[[], Split]] = {
    "breast-cancer": load_breast_cancer,
    "abalone": load_abalone,
    "abalone-onehot": partial(load_abalone, encoding="onehot"),
    "adult": load_adult,
    "adult-onehot": partial(load_adult, encoding="onehot"),
    "magic": load_magic,
    "spambase": load_spambase,
    "fair": load_fair,
}

__all__ = [
    "LOADERS",
    "Domain",
    "Encoding",
    "Schema",
    "Split",
    "constants_of",
    "dataset_from_frame",
    "from_csv",
    "from_frame",
    "load_breast_cancer",
    "load_fair",
    "read_constants",
]
