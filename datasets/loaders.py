"""Loaders of the public tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from bdpvi.datasets.abalone import load_abalone
from bdpvi.datasets.adult import load_adult
from bdpvi.datasets.breast_cancer import load_breast_cancer
from bdpvi.datasets.dataset import Split
from bdpvi.datasets.fair import load_fair
from bdpvi.datasets.magic import load_magic
from bdpvi.datasets.spambase import load_spambase

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
