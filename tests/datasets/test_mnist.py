"""MNIST against what is known of it, where the files are at hand."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest
import torch

from bdpvi.datasets.mnist import FILES, MEAN, SCALE, load_mnist

MNIST = Path(__file__).resolve().parents[3] / "shared" / "data" / "mnist"
needs_mnist = pytest.mark.skipif(not MNIST.is_dir(), reason="the MNIST files are not at hand")


@needs_mnist
def test_images_and_labels() -> None:
    (x, y), (test_x, test_y) = load_mnist(MNIST)
    assert (x.shape, test_x.shape) == ((60000, 1, 28, 28), (10000, 1, 28, 28))
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
    assert y.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert test_y[:5].tolist() == [7, 2, 1, 0, 4]
    assert abs(float(x.double().mean())) < 1e-3
    assert abs(float(x.double().std()) - 1) < 1e-3
    pixels = gzip.decompress((MNIST / FILES["t10k-images-idx3"].name).read_bytes())
    assert struct.unpack(">4i", pixels[:16]) == (2051, 10000, 28, 28)
    at = 16 + 784 * 9 + 28 * 12 + 15  # image 9, row 12, column 15
    assert float(test_x[9, 0, 12, 15]) == pytest.approx((pixels[at] / 255 - MEAN) / SCALE, rel=1e-5)
