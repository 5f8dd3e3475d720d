"""Loaders of the public tables; those here need no file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pandas as pd

from bdpvi.datasets.abalone import load_abalone
from bdpvi.datasets.adult import load_adult
from bdpvi.datasets.dataset import Split
from bdpvi.datasets.magic import load_magic
from bdpvi.datasets.public import public_table
from bdpvi.datasets.spambase import load_spambase
from bdpvi.datasets.split import shuffled


def load_breast_cancer() -> Split:
    """Load 569 tumours with 30 measurements each; y = 1 is malignant. Needs no file.

    The rows are permuted with a fixed seed before the first 80 % are used for training: in the
    published order 41 % of the first 455 are malignant, and 23 % of the others.

    Source: W. Wolberg, O. Mangasarian, N. Street, W. Street, UCI Machine Learning Repository,
    1993, doi:10.24432/C5DW2B; the copy inside scikit-learn.

    >>> split = load_breast_cancer()
    >>> tuple(split.train.x.shape), len(split.test)
    ((455, 30), 114)
    >>> int(split.train.y.sum() + split.test.y.sum())
    212
    """
    import sklearn.datasets  # late: it takes long

    table = sklearn.datasets.load_breast_cancer()
    frame = pd.DataFrame(table.data, columns=[str(n) for n in table.feature_names])
    malignant = pd.Series(table.target == list(table.target_names).index("malignant"))
    return shuffled(public_table("breast-cancer", frame, malignant, "malignant"))


def load_fair() -> Split:
    """Load 6,366 married women with 8 answers each; y = 1 is an affair. Needs no file.

    Occupations are codes of published classes, treated as numbers as in the survey's analyses. All
    columns are standardised over all rows. The table lists all affairs first, so the rows are
    permuted with a fixed seed before the first 80 % are used for training.

    Raises:
        ImportError: without the extra ``bdpvi[report]``.

    Source: R. Fair, "A Theory of Extramarital Affairs", Journal of Political Economy 86(1), 1978;
    the copy inside statsmodels.

    >>> split = load_fair()  # doctest: +SKIP
    >>> tuple(split.train.x.shape), len(split.test)  # doctest: +SKIP
    ((5092, 8), 1274)
    """
    try:
        from statsmodels.datasets import fair
    except ImportError as error:
        raise ImportError("statsmodels is not installed: pip install 'bdpvi[report]'") from error
    frame = fair.load_pandas().data
    affair = frame.pop("affairs") > 0
    return shuffled(public_table("fair", frame, affair, "had an affair"))


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
"""By the data's names in reports."""
