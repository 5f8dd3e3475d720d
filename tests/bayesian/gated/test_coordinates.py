"""Coordinates by sums of their own, and the law of their noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from bdpvi.bayesian.gated.coordinates import Coordinates, _moments, norm
from bdpvi.datasets.records import Held
from bdpvi.noise.keys import Key


def _table(rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 3)) @ np.array([[1, 0.9, 0], [0, 0.3, 0], [0, 0, 0.7]]) + 0.2
    return torch.from_numpy(x), torch.from_numpy((x[:, 0] > 0).astype(float))


def test_a_record_adds_a_vector_of_at_most_the_bound() -> None:
    x, y = _table(500)
    x[0] = torch.tensor([100.0, -100.0, 100.0])
    z = np.c_[np.clip(x.numpy(), -2, 2), np.full(len(x), 2.0)]
    weight = np.minimum(1, norm(3) / np.linalg.norm(z, axis=1))
    whole = (z.T * weight**2) @ z
    found = _moments((x, y)).numpy()
    above = np.triu_indices(4)
    scale = np.where(above[0] == above[1], 1, math.sqrt(2))
    np.testing.assert_allclose(found, whole[above] * scale, rtol=1e-6)
    for row in range(20):
        alone = float(_moments((x[row : row + 1], y[:1])).norm())
        assert alone <= norm(3) ** 2
        assert alone > 0.999 * min(norm(3), float(np.linalg.norm(z[row]))) ** 2


def test_the_noise_is_that_of_the_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no records, moments are noise: s on the diagonal, s/√2 beside it, over 2,000 releases.

    The mean of 2,000 squares has a standard error of 3.2 %.
    """
    nothing, _ = _table(0)
    parts, multiplier, seen = Held((nothing, nothing[:, 0])), 3.0, list[torch.Tensor]()

    def of(moments: torch.Tensor, deviation: float) -> Coordinates:
        assert deviation == pytest.approx(multiplier * norm(3) ** 2, rel=1e-5)
        assert deviation >= multiplier * norm(3) ** 2
        seen.append(moments)
        return Coordinates(torch.eye(3), torch.zeros(3))

    monkeypatch.setattr(Coordinates, "of", of)
    for seed in range(2000):
        Coordinates.released(parts, 3, multiplier, Key.of_seed(seed))
    squares = torch.stack(seen).square().mean(0) / (multiplier * norm(3) ** 2) ** 2
    assert bool(torch.equal(squares, squares.T))
    assert abs(float(squares.diagonal().mean()) - 1) < 0.06
    beside = float((squares.sum() - squares.diagonal().sum()) / 12)
    assert abs(beside - 0.5) < 0.03


def test_new_coordinates_are_uncorrelated_and_weights_go_back_to_old_ones() -> None:
    x, y = _table(20_000)
    made = Coordinates.released(Held((x, y)), 3, 20.0, Key.of_seed(0))
    assert made.columns == 3
    rows = made.rows((x, y))
    u = rows.x[:, :3] * (2 * y - 1)[:, None]
    whole, wide = (x.clamp(-2, 2) - made.mean) @ made.matrix.T, rows.weight.square()
    spread = torch.cov(whole.T, aweights=wide)
    assert float((spread - torch.eye(3)).abs().max()) < 0.2  # the noise is a third of 0.2
    assert float(torch.linalg.vector_norm(rows.x, dim=1).max()) <= made.longest
    assert float((rows.weight * torch.linalg.vector_norm(rows.x, dim=1)).max()) <= norm(3)
    w = torch.randn(5, 4, dtype=torch.float64)
    inside = torch.linalg.vector_norm(u, dim=1) < 1.24 * math.sqrt(3)
    inside &= (x.abs() <= 2).all(1)
    there = made.weights(w) @ torch.cat([x, torch.ones(len(x), 1)], 1)[inside].T
    here = w @ torch.cat([u, torch.full((len(u), 1), 2.0)], 1)[inside].T
    torch.testing.assert_close(there, here)


def test_directions_within_the_noise_are_left_out() -> None:
    x, y = _table(400)
    some = Coordinates.released(Held((x, y)), 3, 20.0, Key.of_seed(0))
    none = Coordinates.released(Held((x, y)), 3, 2000.0, Key.of_seed(1))
    assert 0 < some.columns < 3
    assert none.columns <= 2
    assert none.weights(torch.ones(2, none.columns + 1).double()).shape == (2, 4)
