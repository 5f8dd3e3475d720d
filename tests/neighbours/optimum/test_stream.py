"""The optimum route over tables on disk against the same in memory."""

from __future__ import annotations

import builtins
import math
import stat
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from simulated import logistic_data

from bdpvi import BayesianAccountant, BayesianLogisticRegression, Dataset, Optimum, fit, spent
from bdpvi._runtime.progress import silent
from bdpvi.accounting.conversions import Orders
from bdpvi.accounting.estimators import Moments, student_t_of, tail_size
from bdpvi.accounting.gaussian_pairs import GaussianPairs
from bdpvi.accounting.ledger import Charge
from bdpvi.accounting.record_costs import posterior_draws_cost as close_draws_cost
from bdpvi.accounting.streaming_moments import Folded
from bdpvi.guides import FullRank, GaussianGuide, MeanField
from bdpvi.neighbours.optimum import stream
from bdpvi.neighbours.optimum.blocks import Table
from bdpvi.neighbours.optimum.stream import StreamFit, Streaming, fit_stream
from bdpvi.neighbours.optimum.stream_orders import StreamAccounting

pytest.importorskip("pyarrow")

PRECISION = 1e-5
MODEL = BayesianLogisticRegression(clip=0.5, intercept=True)


def frame(data: Dataset) -> pd.DataFrame:
    table = pd.DataFrame(data.x.numpy(), columns=list(data.feature_names))
    table.insert(1, "y", data.y.numpy().astype(np.int64))
    return table


def written(data: Dataset, folder: Path, kind: str) -> Path:
    table = frame(data)
    if kind == "csv":
        table.to_csv(folder / "table.csv", index=False, float_format="%.17g")
        return folder / "table.csv"
    if kind == "parquet":
        table.to_parquet(folder / "table.parquet", row_group_size=101)
        return folder / "table.parquet"
    parts = folder / "parts"
    parts.mkdir()
    for number, start in enumerate(range(0, len(table), 150)):
        table[start : start + 150].to_parquet(parts / f"{number}.parquet")
    return parts


def streamed(path: Path, guide: type[GaussianGuide] = FullRank, **options: Any) -> StreamFit:
    chosen: dict[str, Any] = {"target": "y", "planned": Charge(2, 3.0)}
    numerics: dict[str, Any] = {"track": silent, "precision": PRECISION, "rows": 300}
    numerics |= {f.name: options.pop(f.name) for f in fields(Streaming) if f.name in options}
    streaming = Streaming(**numerics)
    return fit_stream(path, MODEL, guide(MODEL), streaming=streaming, **{**chosen, **options})


@pytest.mark.parametrize(
    ("kind", "rows", "guide"),
    [("parquet", 400, FullRank), ("csv", 367, MeanField), ("folder", 1500, FullRank),
     ("csv", 5000, FullRank)],
)  # fmt: skip
def test_equals_the_fit_in_memory(
    kind: str, rows: int, guide: type[GaussianGuide], tmp_path: Path
) -> None:
    data = logistic_data(1500, 2)
    optimum = Optimum(precision=PRECISION)
    here = fit(MODEL, guide(MODEL), data, neighbours=optimum, device="cpu", progress=False)
    expected = asdict(spent(here, planned=Charge(2, 3.0), accountant=BayesianAccountant))
    found = streamed(written(data, tmp_path, kind), guide, rows=rows)
    for name, value in here.parameters.items():
        torch.testing.assert_close(found.parameters[name], value, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.posterior.mean, here.posterior.mean, rtol=1e-10, atol=1e-12)
    diagnostics = expected.pop("diagnostics")
    result = asdict(found.spent)
    assert result.pop("diagnostics") == pytest.approx(diagnostics, rel=1e-7)
    # The stream prices the rounding of draws for neighbours anywhere within its reach.
    assert 0 < expected["rounding"] < result["rounding"] < 1e-8
    assert result.pop("epsilon") == pytest.approx(expected.pop("epsilon"), rel=1e-4)
    for one in (result, expected):
        del one["rounding"], one["exposure"]
    assert expected.pop("reason").startswith(result.pop("reason"))  # and says what to do
    draws = found.draw()
    step = found.guide.lattice(3.0).step
    assert draws.shape == (2, len(found.posterior.mean))
    assert torch.equal((draws / step).round() * step, draws)
    assert result == expected
    assert (found.records, found.feature_names) == (1500, data.feature_names)


class Interrupted:
    """A tracker that stops the job after some blocks in all."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, items: Sequence[Any], description: str) -> Iterable[Any]:
        for item in items:
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            yield item


def test_an_interrupted_job_goes_on_and_ends_alike(tmp_path: Path) -> None:
    data, state = logistic_data(1500, 2), tmp_path / "state"
    path = written(data, tmp_path, "parquet")
    straight = streamed(path)
    interruptions, resumed = 0, None
    while resumed is None:
        try:
            resumed = streamed(path, state=state, save_every=0.0, track=Interrupted(40))
        except KeyboardInterrupt:
            interruptions += 1
    assert 2 <= interruptions < 20
    assert stat.S_IMODE(state.stat().st_mode) == 0o600
    assert resumed.spent == straight.spent
    assert torch.equal(resumed.parameters["loc"], straight.parameters["loc"])
    assert streamed(path, state=state).spent == straight.spent


def test_a_state_of_another_job_is_refused(tmp_path: Path) -> None:
    data, state = logistic_data(600, 3), tmp_path / "state"
    path = written(data, tmp_path, "parquet")
    streamed(path, state=state)
    with pytest.raises(ValueError, match=r"state=.*release=\[2, 3\.0\], not \[1, 3\.0\]"):
        streamed(path, state=state, planned=Charge(1, 3.0))
    frame(logistic_data(601, 3)).to_parquet(path)
    with pytest.raises(ValueError, match=r"state=.*files="):
        streamed(path, state=state)
    state.write_bytes(b"x")
    with pytest.raises(ValueError, match="cannot be read"):
        streamed(path, state=state)


def test_orders_that_the_pilot_did_not_expect_take_another_pass(tmp_path: Path) -> None:
    data = logistic_data(1500, 2)
    order = data.x.norm(dim=1).argsort()
    data = Dataset(data.x[order], data.y[order])
    optimum = Optimum(precision=PRECISION)
    here = fit(MODEL, FullRank(MODEL), data, neighbours=optimum, device="cpu", progress=False)
    found = streamed(written(data, tmp_path, "parquet"), rows=100)
    exact = spent(here, planned=Charge(2, 3.0), accountant=BayesianAccountant)
    assert found.spent.epsilon == pytest.approx(exact.epsilon, rel=1e-4)  # but for rounding
    assert found.spent.order == exact.order


def test_refusals_name_the_column_and_the_value(tmp_path: Path) -> None:
    data = logistic_data(60, 3)
    path = written(data, tmp_path, "csv")
    with pytest.raises(ValueError, match="target: 'z'"):
        streamed(path, target="z")
    with pytest.raises(ValueError, match="features: 'x7'"):
        streamed(path, features=["x0", "x7"])
    with pytest.raises(ValueError, match="path="):
        streamed(tmp_path / "none.csv")
    with pytest.raises(ValueError, match="conversion"):
        StreamAccounting(conversion="hockey-stick")
    for column, value, words in (
        ("x1", np.nan, "column 'x1' .* nan in row 17"),
        ("y", 2, r"column 'y' .* must be 0 or 1, got 2\.0 in row 17"),
    ):
        for kind in ("csv", "parquet"):
            table = frame(data)
            table.loc[17, column] = value
            bad = tmp_path / f"bad.{kind}"
            table.to_csv(bad, index=False) if kind == "csv" else table.to_parquet(bad)
            with pytest.raises(ValueError, match=words):
                streamed(bad, rows=7)
    single = frame(data).assign(y=(np.arange(60) == 5).astype(int))
    single.to_parquet(tmp_path / "single.parquet")
    with pytest.raises(ValueError, match="class 1 1 times"):
        streamed(tmp_path / "single.parquet")
    frame(data).assign(x0="a").to_parquet(tmp_path / "words.parquet")
    with pytest.raises(ValueError, match=r"'x0' .* not numbers"):
        streamed(tmp_path / "words.parquet")
    frame(data).assign(x0="a").to_csv(tmp_path / "words.csv", index=False)
    with pytest.raises(ValueError, match="cannot be read"):
        streamed(tmp_path / "words.csv")


def test_without_pyarrow_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(logistic_data(60, 3), tmp_path, "csv")
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r'pip install "bdpvi\[stream\]"'):
        Table(path, "y")


def test_blocks_can_begin_anywhere(tmp_path: Path) -> None:
    data = logistic_data(400, 3)
    table = Table(written(data, tmp_path, "folder"), "y", rows=64)
    assert (len(table), table.blocks) == (400, 7)
    for first in (0, 2, 6):
        x, y = (torch.cat(part) for part in zip(*table.read(first), strict=True))
        torch.testing.assert_close(x, data.x[64 * first :], rtol=0, atol=0)
        torch.testing.assert_close(y, data.y[64 * first :], rtol=0, atol=0)


def test_reading_does_not_keep_what_it_has_read(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    rows, names = 200_000, [f"x{j}" for j in range(20)]
    random = np.random.default_rng(0)
    big = pd.DataFrame(random.standard_normal((rows, 20), dtype=np.float32), columns=names)
    big.assign(y=np.arange(rows) % 2).to_parquet(tmp_path / "big.parquet", row_group_size=4096)
    table = Table(tmp_path / "big.parquet", "y", rows=1024)
    before, most = pyarrow.total_allocated_bytes(), 0
    for _ in table.read():
        most = max(most, pyarrow.total_allocated_bytes() - before)
    assert most < (tmp_path / "big.parquet").stat().st_size


@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([1e-7, 1e-3, 1.0, 30.0]),
    cuts=st.lists(st.integers(1, 199), max_size=5),
    infinite=st.booleans(),
)
def test_folded_moments_equal_those_of_the_whole_sample(
    seed: int, scale: float, cuts: list[int], infinite: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = scale * torch.randn(3, 200, generator=generator, dtype=torch.float64).abs()
    if infinite:
        values[1, 77] = torch.inf
    folded = Folded(3, 200)
    for block in values.tensor_split(sorted(set(cuts)), dim=1):
        folded.add(block)
    blocks, whole = folded.moments(), Moments.of(values, least=3)
    for name in ("log_max", "mean", "sd", "skewness"):
        torch.testing.assert_close(
            getattr(blocks, name), getattr(whole, name), rtol=1e-9, atol=1e-300
        )
    assert blocks.tail.shape == (3, tail_size(200) + 1)
    assert torch.equal(blocks.tail, whole.tail)
    one, other = student_t_of(blocks, 1e-6), student_t_of(whole, 1e-6)
    torch.testing.assert_close(one.log_bound, other.log_bound, rtol=1e-11, atol=0)
    torch.testing.assert_close(one.pareto_k, other.pareto_k, rtol=1e-9, atol=0)


@pytest.mark.parametrize("held", [1, 400])
def test_records_that_are_held_back_share_passes_and_count(
    held: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(logistic_data(800, 2), tmp_path, "parquet")
    straight = streamed(path)
    passes: list[str] = []

    def counted(items: Sequence[Any], description: str) -> Iterable[Any]:
        passes.append(description)
        return items

    monkeypatch.setattr(stream, "_HELD", held)
    found = streamed(path, track=counted)
    assert found.spent.epsilon == pytest.approx(straight.spent.epsilon, rel=1e-10)
    assert ("held back, pass 1" in passes) == (held == 400)


def exact_log_mgf(r: list[float], b2: list[float], s: float, temperature: float) -> float:
    """Return log E (p/q)^s of Gaussians, by its closed form in 60 digits."""
    with mpmath.workdps(60):
        total = mpmath.mpf(0)
        for one, b in zip(map(mpmath.mpf, r), map(mpmath.mpf, b2), strict=True):
            w = 1 - s * (one - 1)
            total += s * (mpmath.mpf(s) + 1) * b / (temperature * w) - mpmath.log(w)
            total -= s * mpmath.log(one)
        return float(total / 2)


@given(
    seed=st.integers(0, 10_000),
    size=st.sampled_from([1e-9, 1e-6, 1e-4, 1e-2, 0.3]),
    direction=st.booleans(),
)
def test_close_pairs_cost_what_all_pairs_do(seed: int, size: float, direction: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, b = torch.rand(2, 3, 2, generator=generator, dtype=torch.float64)
    pairs = GaussianPairs(1 + size * (x - 0.5), size * b)
    pairs = pairs.reverse() if direction else pairs
    orders = torch.tensor([0.2, 1.0, 30.0, 2000.0], dtype=torch.float64)
    found = close_draws_cost(pairs, orders, draws=2, temperature=3.0)
    for row, s in zip(found.tolist(), orders.tolist(), strict=True):
        for cost, r, b2 in zip(row, pairs.r.tolist(), pairs.b2.tolist(), strict=True):
            if max(s * (one - 1) for one in r) >= 1:
                assert cost == math.inf
                continue
            exact = 2 * exact_log_mgf(r, b2, s, 3.0)
            assert exact * (1 - 1e-12) <= cost <= exact * (1 + 1e-11)


def test_few_orders_are_all_looked_at(tmp_path: Path) -> None:
    data = logistic_data(600, 3)
    orders = Orders(torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0]))
    found = streamed(
        written(data, tmp_path, "csv"), accounting=StreamAccounting(orders=orders), rows=250
    )
    assert found.spent.estimates == 10
    assert found.spent.order in orders.values.tolist()
