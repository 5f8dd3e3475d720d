"""MNIST: handwritten digits as images, for networks."""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import Tensor

from bdpvi.datasets.fetch import RawFile, fetch

ARCHIVE = "https://ossci-datasets.s3.amazonaws.com/mnist"
FILES = {
    name: RawFile(f"{name}-ubyte.gz", f"{ARCHIVE}/{name}-ubyte.gz", digest)
    for name, digest in {
        "train-images-idx3": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    }.items()
}
MEAN, SCALE = 0.1307, 0.3081
"""Mean and deviation of all training pixels, in [0, 1]: read from this table, which is public."""


def load_mnist(
    path: str | os.PathLike[str] | None = None,
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Load 60,000 training and 10,000 test images of handwritten digits.

    Args:
        path: folder of the four gzipped IDX files; by default ``$BDPVI_DATA``, the user's cache and
            a public mirror are searched.

    Returns:
        (x, y) of the training and of the test images: x (N, 1, 28, 28) float32, pixels
        standardised by public constants; y (N,) int64, the digits.

    Raises:
        DigestError: if a file found is not the published one.
        OSError: if a file cannot be found, read or downloaded.

    Source: Y. LeCun, C. Cortes, C. J. C. Burges, The MNIST database of handwritten digits.

    >>> load_mnist("mnist")[0][0].shape  # doctest: +SKIP
    torch.Size([60000, 1, 28, 28])
    """
    train, test = (
        (_images(f"{part}-images-idx3", path), _labels(f"{part}-labels-idx1", path))
        for part in ("train", "t10k")
    )
    return train, test


def _images(name: str, path: str | os.PathLike[str] | None) -> Tensor:
    pixels = np.frombuffer(fetch(FILES[name], path), np.uint8, offset=16)
    scaled = (pixels.astype(np.float32) / 255 - MEAN) / SCALE
    return torch.from_numpy(scaled.reshape(-1, 1, 28, 28))


def _labels(name: str, path: str | os.PathLike[str] | None) -> Tensor:
    labels = np.frombuffer(fetch(FILES[name], path), np.uint8, offset=8)
    return torch.from_numpy(labels.astype(np.int64))
