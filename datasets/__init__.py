"""Tables, with the constants used to preprocess them.

Public tables come from :data:`~bdpvi.datasets.loaders.LOADERS`; load your own by :func:`from_csv`
and :func:`from_frame`.
"""

from typing import TYPE_CHECKING

from bdpvi._ground.lazy import lazy

if TYPE_CHECKING:
    from bdpvi.datasets import abalone as abalone
    from bdpvi.datasets import adult as adult
    from bdpvi.datasets import columns as columns
    from bdpvi.datasets import mnist as mnist
    from bdpvi.datasets import split as split
    from bdpvi.datasets.block_tables import from_blocks
    from bdpvi.datasets.buckets import partition
    from bdpvi.datasets.constants import constants_of, read_constants
    from bdpvi.datasets.dataset import Split
    from bdpvi.datasets.encoding import Encoding
    from bdpvi.datasets.loaders import LOADERS, load_breast_cancer, load_fair
    from bdpvi.datasets.schema import Schema
    from bdpvi.datasets.tables import dataset_from_frame, from_csv, from_frame
    from bdpvi.datasets.types import ColumnType
else:
    __getattr__ = lazy(
        __name__,
        {
            "buckets": ("partition",),
            "constants": ("constants_of", "read_constants"),
            "dataset": ("Split",),
            "encoding": ("Encoding",),
            "loaders": ("LOADERS", "load_breast_cancer", "load_fair"),
            "schema": ("Schema",),
            "block_tables": ("from_blocks",),
            "tables": ("dataset_from_frame", "from_csv", "from_frame"),
            "types": ("ColumnType",),
        },
        packages=("abalone", "adult", "columns", "mnist", "split"),
    )

__all__ = [
    "LOADERS",
    "ColumnType",
    "Encoding",
    "Schema",
    "Split",
    "constants_of",
    "dataset_from_frame",
    "from_blocks",
    "from_csv",
    "from_frame",
    "load_breast_cancer",
    "load_fair",
    "partition",
    "read_constants",
]


def __dir__() -> list[str]:
    return __all__
