"""Breast Cancer Wisconsin (Diagnostic), which is always available."""

from __future__ import annotations

import pandas as pd
import sklearn.datasets

from bdpvi.datasets.dataset import Split
from bdpvi.datasets.public import public_table
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
    table = sklearn.datasets.load_breast_cancer()
    frame = pd.DataFrame(table.data, columns=[str(n) for n in table.feature_names])
    malignant = pd.Series(table.target == list(table.target_names).index("malignant"))
    return shuffled(public_table("breast-cancer", frame, malignant, "malignant"))
