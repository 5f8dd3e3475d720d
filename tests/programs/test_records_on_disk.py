"""Training on records that are not in memory: blocks of a table, and records by index."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import Dataset as Whole
from torch.utils.data import TensorDataset

import bdpvi
from bdpvi import (
    DPVI,
    BayesianLogisticRegression,
    Dataset,
    Ledger,
    PrivacyUtilityWarning,
    PrivateSVI,
    datasets,
)
from bdpvi.datasets import constants_of
from bdpvi.datasets.dataset import BlockData, People
from bdpvi.datasets.records import Spread
from bdpvi.noise.keys import Key
from bdpvi.programs import sources
from bdpvi.programs.sources import Windows
from bdpvi.releases.noisy_sum import NoisySum
from bdpvi.releases.transaction import Transaction

PUBLIC = constants_of({"source": "By law.", "age": [18, 90], "dose": [0, 1]})
QUICK = DPVI(rows=2000, steps=40, batch=200, draws=5)
ROWS = 2100


def model(x: Tensor, y: Tensor | None = None) -> Tensor:
    w = pyro.sample("w", dist.Normal(x.new_zeros(2), x.new_tensor(1.0)).to_event(1))
    with pyro.plate("records", len(x)):
        z = pyro.sample("z", dist.Normal(x.new_zeros(()), x.new_tensor(1.0)))
        return pyro.sample("y", dist.Bernoulli(logits=x @ w + z), obs=y)  # type: ignore[no-any-return]


def guide(x: Tensor, y: Tensor | None = None) -> None:
    mean = pyro.param("mean", lambda: x.new_zeros(2))
    scale = pyro.param("scale", lambda: x.new_full((2,), 0.1), constraint=dist.constraints.positive)
    pyro.sample("w", dist.Normal(mean, scale).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("z", dist.Normal(x.sum(1) * 0.1, x.new_tensor(0.5)))


class Network(nn.Module):
    """A model with weights in single precision."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        pyro.module("layer", self.layer)
        w = pyro.sample("w", dist.Normal(x.new_zeros(2), x.new_tensor(1.0)).to_event(1))
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Bernoulli(logits=self.layer(x).tanh() @ w), obs=y)


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age, dose = rng.integers(18, 91, ROWS).astype(float), rng.random(ROWS)
    sick = rng.random(ROWS) < 1 / (1 + np.exp(-(age - 54) / 12 + dose))
    age[5::100] = math.nan  # such a row is left out, and has no coin
    return pd.DataFrame({"age": age, "dose": dose, "sick": np.where(sick, "yes", "no")})


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every charge draw with the same key."""
    monkeypatch.setattr(Key, "fresh", staticmethod(lambda: Key.of_seed(0)))
    monkeypatch.setattr(Transaction, "_key", lambda work, _, one: work.secret.child(one.purpose))


def on_disk(rows: pd.DataFrame, folder: Path, cuts: int, **options: Any) -> BlockData:
    """Return the rows in blocks: files, some of them in two row groups."""
    folder.mkdir()
    for number, at in enumerate(np.array_split(np.arange(len(rows)), max(1, cuts - cuts // 3))):
        size = len(at) if number >= cuts // 3 else len(at) // 2 + 1
        rows.iloc[at].to_parquet(folder / f"{number:03}.parquet", row_group_size=size)
    result = datasets.from_blocks(
        folder, "sick", positive="yes", constants=PUBLIC, progress=False, **options
    )
    assert isinstance(result.parts, Spread)
    assert result.parts.blocks == cuts
    return result


def in_memory(rows: pd.DataFrame) -> Dataset:
    return datasets.dataset_from_frame(rows, "sick", positive="yes", constants=PUBLIC)


@pytest.mark.filterwarnings("ignore:for the owner only")
@pytest.mark.parametrize("cuts", [1, 3, 7])
@pytest.mark.parametrize("what", ["latents of records", "network", "logistic"])
@pytest.mark.usefixtures("once")
def test_training_on_blocks_is_that_in_memory_to_the_bit(
    rows: pd.DataFrame, tmp_path: Path, what: str, cuts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(data: Any) -> Tensor:
        made: Any
        own: Any
        made, own = {
            "latents of records": (model, guide),
            "network": (Network(), None),
            "logistic": (BayesianLogisticRegression.unweighted(intercept=True), None),
        }[what]
        return bdpvi.fit_private(made, data, epsilon=1.0, route=QUICK, guide=own).samples

    blocks = on_disk(rows, tmp_path / "table", cuts)
    assert len(blocks) < len(rows)
    expected = trained(in_memory(rows))
    assert torch.equal(trained(blocks), expected)
    with ThreadPoolExecutor(2) as pool:
        monkeypatch.setattr(sources, "BYTES", 3 * 200 * 3 * 8)  # three batches at a time
        assert isinstance(blocks.parts, Spread)
        parts = replace(blocks.parts, executor=pool)
        spread = replace(blocks, parts=parts, people=People())
        assert torch.equal(trained(spread), expected)


def test_a_person_in_two_blocks_is_refused_before_any_charge(
    rows: pd.DataFrame, tmp_path: Path
) -> None:
    who = np.repeat(np.arange(len(rows) // 2), 2)
    together, apart = rows.assign(who=who), rows.assign(who=np.roll(who, 1))
    for name, table in (("together", together), ("apart", apart)):
        (tmp_path / name).mkdir()
        for at in range(2):
            half = table.iloc[at * (len(rows) // 2) :][: len(rows) // 2]
            half.to_parquet(tmp_path / name / f"{at}.parquet")
    given: dict[str, Any] = {"positive": "yes", "constants": PUBLIC, "progress": False}
    given |= {"unit": "who", "rows_per_unit": 2}
    assert len(datasets.from_blocks(tmp_path / "together", "sick", **given)) > 0
    with pytest.raises(ValueError, match=r"^unit='who': rows of one person lie in several blocks"):
        datasets.from_blocks(tmp_path / "apart", "sick", **given)
    with pytest.raises(ValueError, match="rows_per_unit"):
        datasets.from_blocks(tmp_path / "together", "sick", **{**given, "rows_per_unit": 0})
    with pytest.raises(ValueError, match="unit='id' must be a column of the table once"):
        datasets.from_blocks(tmp_path / "together", "sick", **{**given, "unit": "id"})


class Read(Whole[tuple[Tensor, Tensor]]):
    """Records that note which of them are read."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y, self.seen = x, y, list[int]()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        self.seen.append(at)
        return self.x[at], self.y[at]


class Damaged(Read):
    """Records of which one cannot be read, and one has another shape."""

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        if at == 17:
            raise OSError("damaged")
        return (self.x[at][:1] if at == 1100 else self.x[at]), self.y[at]


class Plain:
    """A sequence that is no torch Dataset."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x.numpy(), y.numpy()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, at: int) -> tuple[Any, float]:
        return self.x[at], float(self.y[at])


@pytest.mark.filterwarnings("ignore:for the owner only")
@pytest.mark.usefixtures("once")
def test_records_by_index_are_those_of_tensors(rows: pd.DataFrame) -> None:
    data = in_memory(rows)
    tensors, read = (data.x, data.y), Read(data.x, data.y)
    made = [
        bdpvi.fit_private(model, given, epsilon=1.0, route=QUICK, guide=guide).samples
        for given in (tensors, TensorDataset(*tensors), read, Plain(*tensors))
    ]
    assert all(torch.equal(one, made[0]) for one in made)
    assert len(read.seen) < 1.2 * 40 * 200 + 10  # only those of the batches
    regressions = [
        bdpvi.fit_private(BayesianLogisticRegression.unweighted(), given, epsilon=1.0).samples
        for given in ((data.x, data.y), TensorDataset(data.x, data.y))
    ]
    torch.testing.assert_close(regressions[0], regressions[1], rtol=1e-6, atol=1e-8)


@pytest.mark.usefixtures("once")
def test_a_record_that_the_model_cannot_have_has_no_effect(rows: pd.DataFrame) -> None:
    data, route = in_memory(rows), replace(QUICK, steps=5)
    x = torch.cat([data.x, 100 * torch.ones(300, 2)])
    wrong, none = torch.full((300,), 7.0), BayesianLogisticRegression.unweighted(intercept=True)
    made = [
        bdpvi.fit_private(none, TensorDataset(*given), epsilon=1.0, route=route).samples
        for given in ((data.x, data.y), (x, torch.cat([data.y, wrong])))
    ]
    torch.testing.assert_close(made[0], made[1], rtol=1e-12, atol=1e-12)  # sums in other order


def test_a_record_that_cannot_be_read_has_no_effect(rows: pd.DataFrame) -> None:
    data = in_memory(rows)
    damaged = Damaged(data.x, data.y)
    with pytest.warns(PrivacyUtilityWarning, match="set to zero: [0-9]+ gradients of records"):
        bdpvi.fit_private(model, damaged, epsilon=1.0, route=QUICK, guide=guide)
    blocks = BlockData.of_items(damaged)
    assert len(blocks.some()[0]) == 255  # it is not known again by records that cannot be read
    total = blocks.parts.sum(lambda part: part[0].sum(0))
    left = torch.ones(len(data)).bool()
    left[[17, 1100]] = False
    torch.testing.assert_close(total, data.x[left].sum(0))


@pytest.mark.parametrize("kind", ["blocks", "by index"])
def test_private_svi_takes_them(rows: pd.DataFrame, tmp_path: Path, kind: str) -> None:
    data = in_memory(rows)
    other = on_disk(rows, tmp_path / "table", 3) if kind == "blocks" else Plain(data.x, data.y)
    found, losses = [], []
    for given in (data, other):
        pyro.clear_param_store()
        torch.manual_seed(0)
        svi = PrivateSVI(
            model,
            guide,
            pyro.optim.Adam({"lr": 0.05}),
            Trace_ELBO(),
            clip=1.0,
            noise_multiplier=1.0,
            rate=0.1,
            seed=3,
        )
        for _ in range(12):
            svi.step(given)
        torch.manual_seed(1)
        losses.append(svi.evaluate_loss(given))
        found.append({n: v.detach().clone() for n, v in pyro.get_param_store().items()})
        state = svi.state_dict()
        svi.step(given)
        svi.load_state_dict(state, given)
        assert svi.steps == 13
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    assert losses[1] == pytest.approx(losses[0], rel=0.1)  # at other latents of records
    if kind == "blocks":
        assert svi.ledger is other.ledger  # type: ignore[union-attr]
    pyro.clear_param_store()


def test_each_record_is_in_each_batch_by_its_own_coin() -> None:
    """Frequencies and pairs of steps and of records are binomial, at 10⁻⁶ in all."""
    records, steps, rate = 600, 800, 0.13
    mechanism = NoisySum(rate=rate, clip=1.0, noise_multiplier=1.0, size=1, records=1)
    sizes = [1, 149, 250, 200]
    seen = np.zeros((steps, records), dtype=bool)
    for step in range(steps):
        following = mechanism.coins(step)
        for start, size in zip(np.cumsum([0, *sizes]), sizes, strict=False):
            seen[step, start + following(size)] = True
    columns = seen.sum(0)
    low, high = stats.binom.interval(1 - 1e-7 / records, steps, rate)
    assert low <= columns.min() <= columns.max() <= high
    low, high = stats.binom.interval(1 - 1e-7 / steps, records, rate)
    assert low <= seen.sum(1).min() <= seen.sum(1).max() <= high
    assert stats.binomtest(int(seen.sum()), seen.size, rate).pvalue > 1e-7
    for later, beside in ((0, 1), (1, 0), (1, 1)):
        a, b = seen[later:, beside:], seen[: steps - later, : records - beside]
        together = int((a[::2, ::2] & b[::2, ::2]).sum())  # pairs that share no coin
        assert stats.binomtest(together, a[::2, ::2].size, rate**2).pvalue > 1e-7
    # the counts of a block have the variance of a binomial number
    spread = seen[:, 150:400].sum(1).var(ddof=1) / (250 * rate * (1 - rate))
    assert stats.norm.sf(abs(spread - 1) * math.sqrt(steps / 2)) > 1e-7


def test_no_other_block_or_window_changes_the_batches(
    rows: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "BYTES", 4.5 * 0.1 * ROWS * 3 * 8)  # four batches
    data = on_disk(rows, tmp_path / "table", 7)
    mechanism = NoisySum(
        rate=0.1, clip=1.0, noise_multiplier=1.0, size=1, records=1, length=len(data), seed=5
    )
    x = in_memory(rows).x
    windows = Windows(data, data.like)
    for step in (30, 31, 2, 31):  # read again after a return to an earlier step
        batch = windows.batch(mechanism, step)
        assert len(windows._held) <= 3
        assert torch.equal(batch.read(batch.positions)[0], x[mechanism.batch(step)])


class Stopped(Exception):
    pass


@pytest.mark.filterwarnings("ignore:for the owner only")
def test_after_an_interruption_the_same_batches_come_at_no_price(
    rows: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, ledger = tmp_path / "table", tmp_path / "ledger.jsonl"
    on_disk(rows, folder, 3)
    monkeypatch.setattr("bdpvi._ground.checkpoint._EVERY", 0.0)
    monkeypatch.setattr(sources, "BYTES", 7 * 200 * 3 * 8)
    batch, batches = Windows.batch, dict[int, Tensor]()

    def read() -> BlockData:
        return datasets.from_blocks(
            folder, "sick", positive="yes", constants=PUBLIC, progress=False
        )

    def fitted(data: BlockData, unfinished: str = "unfinished") -> Tensor:
        route = replace(QUICK, checkpoint=tmp_path / unfinished)
        there = Ledger.at(ledger)
        found = bdpvi.fit_private(model, data, epsilon=1.0, route=route, guide=guide, ledger=there)
        assert len(there.entries()) == 1
        return found.samples

    def stopping(self: Windows, mechanism: NoisySum, step: int) -> Any:
        result = batch(self, mechanism, step)
        if len(self.data) == 2:  # those of the rehearsal
            return result
        x = result.read(result.positions)[0]
        if step in batches:
            assert torch.equal(batches[step], x)
        batches[step] = x
        if step == 25 and not stopped:
            stopped.append(step)
            raise Stopped
        return result

    stopped: list[int] = []
    monkeypatch.setattr(Windows, "batch", stopping)
    with pytest.raises(Stopped):
        fitted(read())
    lost = folder / "001.parquet"
    lost.rename(tmp_path / "lost")
    data = read()  # another table
    with pytest.raises(ValueError, match="the unfinished run in"):
        fitted(data)
    (tmp_path / "lost").rename(lost)
    data, content = read(), lost.read_bytes()
    made = data.fingerprint()
    lost.unlink()
    monkeypatch.setattr(BlockData, "fingerprint", lambda _: made)
    with pytest.raises(ValueError, match=r"001.parquet, row group 0: .*No such file"):
        fitted(data)
    lost.write_bytes(content)
    monkeypatch.undo()
    monkeypatch.setattr(Windows, "batch", stopping)
    found = fitted(read())
    assert sorted(batches) == list(range(40))
    assert torch.equal(found, fitted(read()))


def test_a_table_that_changes_during_training_is_named(rows: pd.DataFrame, tmp_path: Path) -> None:
    data = on_disk(rows, tmp_path / "table", 3)
    files = sorted((tmp_path / "table").iterdir())
    rows.iloc[:100].to_parquet(files[1])
    with pytest.raises(ValueError, match=r"001.parquet, row group 0: the file has changed"):
        bdpvi.fit_private(model, data, epsilon=1.0, route=QUICK, guide=guide)
    seven = BlockData.of_items(TensorDataset(torch.ones(7, 2), torch.ones(7)))
    short = replace(data, parts=seven.parts, people=People())
    with pytest.raises(ValueError, match=r"'table' had .* records, and has 7 now; a table must"):
        bdpvi.fit_private(model, short, epsilon=1.0, route=QUICK, guide=guide)
    few = on_disk(rows.iloc[:5], tmp_path / "few", 1)
    long = replace(few, parts=seven.parts, people=People())
    with pytest.raises(ValueError, match=r"'few' had 5 records, and has 7 now; a table must"):
        bdpvi.fit_private(model, long, epsilon=1.0, route=QUICK, guide=guide)


def test_no_batch_beyond_the_training_is_drawn(
    rows: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, coins = [], NoisySum.coins

    def counted(mechanism: NoisySum, step: int) -> Any:
        if mechanism.length != 2:  # those of the rehearsal
            drawn.append(step)
        return coins(mechanism, step)

    monkeypatch.setattr(NoisySum, "coins", counted)
    table = on_disk(rows, tmp_path / "table", 3)
    bdpvi.fit_private(model, table, epsilon=2.0, guide=guide, route=QUICK)
    assert drawn == [*range(QUICK.steps)]
