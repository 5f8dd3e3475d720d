"""The benchmark of federated MNIST: clients' tables, their updates, and what is charged."""

from __future__ import annotations

import importlib.util
import json
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


def test_tables_are_disjoint_and_shards_have_few_digits(
    benchmark: ModuleType, labels: Tensor
) -> None:
    generator = torch.Generator().manual_seed(0)
    mixed = benchmark.tables(labels, 250, benchmark.IID, generator)
    assert mixed.shape == (250, 600)
    assert mixed[100:200].unique().numel() == 60_000
    digits = [len(labels[one].unique()) for one in mixed]
    assert min(digits) == 10
    sorted_ = benchmark.tables(labels, 100, benchmark.SORTED, generator)
    assert sorted_.unique().numel() == 60_000
    assert max(len(labels[one].unique()) for one in sorted_) == 2


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


def test_features_turn_with_the_image_and_do_not_depend_on_its_brightness(
    benchmark: ModuleType,
) -> None:
    image = torch.rand(1, 1, 28, 28, generator=torch.Generator().manual_seed(0))

    def bins(image: Tensor) -> Tensor:
        found: Tensor = benchmark.orientations(image)
        assert found.shape == (1, 201)
        assert found[0, -1] == 0.5
        return found[0, :200].view(8, 5, 5)

    found, turned = bins(image), (2 - torch.arange(8)) % 8
    assert torch.allclose(bins(image.mT), found[turned].mT, atol=1e-4)
    assert torch.allclose(bins(0.3 * image), found, atol=1e-4)
    assert float(found.std()) > 0.01


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


def test_the_report_shows_no_path_above_its_worst_case(
    run: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    dear = json.loads(json.dumps(run))
    dear["add or remove"]["path, moments"] = 99.0
    (tmp_path / "pattern-0.json").write_text(json.dumps(dear), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["federated_report.py", str(tmp_path)])
    load("federated_report").main()
    shown = capsys.readouterr().out
    assert "8.85 (none gained)" in shown
    assert "99" not in shown
    assert "replace | 20.8 | 22.6" in shown
