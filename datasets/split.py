"""Training and test rows of one table.

The side on which a row falls must not depend on the other rows: otherwise removing one row would
move others, and no guarantee about one row would hold. So each row has its own secret coin
(:func:`by_coins`). The other splits are public. They are for published tables, where guarantees are
about the training rows only, and for experiments.

Notes on a split are published with every release, so they do not state the number of rows: a
neighbour has one row more or less.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi._ground.outputs import several
from bdpvi.datasets.dataset import Dataset, Split
from bdpvi.noise.keys import EXPERIMENT


def permutation(length: int, seed: int) -> Tensor:
    """Return a public order of ``length`` rows, the same on every machine and in every version.

    Rows are ordered by the raw output of PCG64: NumPy guarantees its stream, but not the methods of
    ``Generator`` (NEP 19).

    >>> permutation(5, seed=0).tolist()
    [3, 2, 1, 0, 4]
    """
    keys = np.random.PCG64(seed).random_raw(length)
    return torch.from_numpy(np.argsort(keys, kind="stable"))


def by_coins(data: Dataset, coins: Tensor, test_fraction: float = 0.2) -> Split:
    """Split by the records' own coins: removing a record moves no other record.

    Args:
        data: the records; their ids index the coins.
        coins: independent and uniform on [0, 1), one for each id up to the largest. Secret.
        test_fraction: a record is for testing if its coin is below this.

    Raises:
        ValueError: if ``test_fraction`` is not strictly between 0 and 1, or a coin is missing.

    >>> data = Dataset(torch.zeros(3, 1), torch.zeros(3))
    >>> by_coins(data, torch.tensor([0.5, 0.1, 0.9])).train.ids.tolist()
    [0, 2]
    """
    validate.probability("test_fraction", test_fraction)
    if len(data) and int(data.ids.max()) >= len(coins):
        raise ValueError(
            f"coins has {several(len(coins), 'entry', 'entries')}; the largest id is "
            f"{int(data.ids.max())}"
        )
    test = coins.to(data.ids.device)[data.ids] < test_fraction
    return Split(data.select(~test), data.select(test))


def first_rows(data: Dataset, test_fraction: float = 0.2) -> Split:
    """Split in the order of the rows: the first ⌊N (1 - test_fraction)⌋ are for training.

    Raises:
        ValueError: if ``test_fraction`` is not strictly between 0 and 1, or leaves one side empty.

    >>> data = Dataset(torch.zeros(10, 1), torch.zeros(10))
    >>> first_rows(data).test.ids.tolist()
    [8, 9]
    """
    validate.probability("test_fraction", test_fraction)
    # 10 * (1 - 0.9) is just below 1: rounding must not lose a row.
    cut = math.floor(len(data) * (1 - test_fraction) + 1e-9)
    if not 0 < cut < len(data):
        raise ValueError(
            f"test_fraction={test_fraction!r} leaves one side of {several(len(data), 'row')} empty"
        )
    rows = torch.arange(len(data), device=data.ids.device)
    note = f"the first {1 - test_fraction:.15g} of the rows, in file order, are for training"
    data = _add_note(data, "split", note)
    return Split(data.select(rows[:cut]), data.select(rows[cut:]))


def shuffled(data: Dataset, test_fraction: float = 0.2, seed: int = 0) -> Split:
    """Split after a public permutation of the rows, which keep their ids.

    Raises:
        ValueError: as in :func:`first_rows`.

    >>> data = Dataset(torch.zeros(5, 1), torch.zeros(5))
    >>> split = shuffled(data, seed=0)
    >>> split.train.ids.tolist(), split.test.ids.tolist()
    ([3, 2, 1, 0], [4])
    """
    split = first_rows(data.select(permutation(len(data), seed).to(data.ids.device)), test_fraction)
    share = f"{1 - test_fraction:.15g} of the rows"
    note = f"{share}, permuted with seed {seed}, are for training"
    return add_note(split, "split", note)


def experiment(split: Split) -> Split:
    """Return the split of a private table, marked as an experiment: nothing may be released."""
    return add_note(split, EXPERIMENT)


def add_note(split: Split, key: str, what: object = True) -> Split:
    """Return the split with a note on both of its parts."""

    return Split(_add_note(split.train, key, what), _add_note(split.test, key, what))


def folds(data: Dataset, count: int = 5, seed: int = 0) -> list[Split]:
    """Return the splits of cross-validation: every row is a test row once.

    The rows are permuted publicly and cut into ``count`` parts whose sizes differ by at most one.

    Raises:
        ValueError: if ``count`` is below 2 or above the number of rows.

    >>> data = Dataset(torch.zeros(5, 1), torch.zeros(5))
    >>> [split.test.ids.tolist() for split in folds(data, 2)]
    [[3, 2, 1], [0, 4]]
    """
    validate.positive_int("count", count, least=2)
    if count > len(data):
        raise ValueError(f"count={count} is more than there are: {several(len(data), 'row')}")
    parts = permutation(len(data), seed).to(data.ids.device).tensor_split(count)
    splits = []
    for number, test in enumerate(parts):
        rest = torch.cat([part for part in parts if part is not test])
        note = f"fold {number + 1} of {count} of the rows, permuted with seed {seed}"
        splits.append(
            Split(
                _add_note(data.select(rest), "split", f"all but {note}, are for training"),
                _add_note(data.select(test), "split", f"{note}, is held out"),
            )
        )
    return splits


def _add_note(data: Dataset, key: str, what: object) -> Dataset:
    return replace(data, preprocessing={**data.preprocessing, key: what})
