"""The benchmark of federated MNIST: clients' tables, their updates, and what is charged."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

FOLDER = Path(__file__).parents[2] / "benchmarks"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found  # dataclasses look their module up
    spec.loader.exec_module(found)
    return found


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return load("federated")


@pytest.fixture(scope="module")
def labels() -> Tensor:
    return torch.arange(60_000) % 10


@pytest.fixture(scope="module")
def run(benchmark: ModuleType, labels: Tensor) -> dict[str, Any]:
    """Run the pattern on three made-up features."""
    x = F.one_hot(labels % 3, 3).float() + 0.1
    found: dict[str, Any] = benchmark.run(benchmark.PATTERN, 0, (x, labels), (x, labels))
    return found


@pytest.mark.parametrize("clip", [None, 0.2])
def test_updates_are_gradients(benchmark: ModuleType, clip: float | None) -> None:
    torch.manual_seed(0)
    x, y, weights = torch.randn(4, 6, 3), torch.randint(10, (4, 6)), torch.randn(30)
    case = replace(benchmark.ROW, local_steps=1, local_rate=0.7, record_clip=clip)
    found = benchmark.softmax_regression(case)(weights, x, y)
    for one, table, targets in zip(found, x, y, strict=True):
        each = []
        for row, target in zip(table, targets, strict=True):
            w = weights.clone().requires_grad_()
            loss = F.cross_entropy((row @ w.view(3, 10))[None], target[None])
            (gradient,) = torch.autograd.grad(loss, [w])
            each.append(gradient if clip is None else gradient * min(1, clip / gradient.norm()))
        total = torch.stack(each)
        expected = -0.7 * total.mean(0) if clip is None else -total.sum(0)
        assert torch.allclose(one, expected, atol=1e-5)


def test_clients_are_counted_alone_and_in_pairs(benchmark: ModuleType) -> None:
    paid = benchmark.Paid(6)
    updates = torch.tensor([[3.0, 0], [0, 1.0], [0.5, 0], [0.5, 0], [9.0, 0], [-9.0, 0]])
    paid.add(updates, 2.0)
    at = paid.alone.levels[paid.alone.counts.argmax(1)]
    assert at.tolist() == [1.0, 0.5, 0.25, 0.25, 1.0, 1.0]
    pairs = paid.pairs.levels[paid.pairs.counts.argmax(1)]
    assert float(pairs[0]) == pytest.approx(1.25**0.5, abs=1 / 32)
    assert pairs[1:].tolist() == [1 / 32, 2.0]


def test_the_worst_cases_of_the_published_pattern(run: dict[str, Any]) -> None:
    assert run["worst case"] == pytest.approx(7.98, abs=0.01)
    assert run["add or remove"]["worst case"] == pytest.approx(run["worst case"])
    assert run["replace"]["worst case"] == pytest.approx(20.76, abs=0.01)
    assert run["replace"]["path, hockey-stick"] <= run["replace"]["worst case"]
