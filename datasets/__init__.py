"""Tables, with the constants used to preprocess them.

Public tables come from :data:`LOADERS`; load your own by :func:`from_csv` and :func:`from_frame`.
"""

from collections.abc import Callable, Mapping
from functools import partial

from bdpvi.datasets.abalone import load_abalone
from bdpvi.datasets.adult import load_adult
from bdpvi.datasets.breast_cancer import load_breast_cancer
from bdpvi.datasets.columns import Hashed, Numeric, OneHot, Ordinal
from bdpvi.datasets.constants import constants_of, read_constants
from bdpvi.datasets.encoding import Encoding
from bdpvi.datasets.fair import load_fair
from bdpvi.datasets.fetch import DigestError
from bdpvi.datasets.magic import load_magic
from bdpvi.datasets.mnist import load_mnist
from bdpvi.datasets.origin import Origin
from bdpvi.datasets.reading import read_table
from bdpvi.datasets.schema import Domain, Schema
from bdpvi.datasets.spambase import load_spambase
from bdpvi.datasets.split import by_coins, first_rows, folds, shuffled
from bdpvi.datasets.tables import TableOptions, dataset_from_frame, from_csv, from_frame
from bdpvi.types import Split

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
    "DigestError",
    "Domain",
    "Encoding",
    "Hashed",
    "Numeric",
    "OneHot",
    "Ordinal",
    "Origin",
    "Schema",
    "TableOptions",
    "by_coins",
    "constants_of",
    "dataset_from_frame",
    "first_rows",
    "folds",
    "from_csv",
    "from_frame",
    "load_abalone",
    "load_adult",
    "load_breast_cancer",
    "load_fair",
    "load_magic",
    "load_mnist",
    "load_spambase",
    "read_constants",
    "read_table",
    "shuffled",
]
