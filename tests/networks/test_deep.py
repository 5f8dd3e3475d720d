"""DP-SGD: sampler, noise and price; resumed runs; refusals."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import pytest
import torch
from accounts import path_of, worst_of
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from bdpvi import Budget, BudgetExceededError, Ledger, PrivacyUtilityWarning, make_private
from bdpvi.networks import DPSGDSettings
from bdpvi.networks.gradients import alone
from bdpvi.networks.private import Private
from bdpvi.networks.records import IndexedRecords
from bdpvi.noise.batches import BatchPlan
from bdpvi.privacy.assumptions import Assumption
from bdpvi.privacy.cost import Bound
from bdpvi.privacy.sampled_steps import PrivacyLossAccountant

Z, Q = 2.0, 0.1


def simulated(records: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(records, 5, generator=generator)
    return x, (x[:, 0] + x[:, 1] > 0).long()


def run(module: nn.Module | None = None, optimizer: Any = None, **options: Any) -> Private:
    torch.manual_seed(0)
    module = module or nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Dropout(0.2), nn.Linear(4, 2))
    optimizer = optimizer or torch.optim.Adam(module.parameters(), lr=0.1)
    given: dict[str, Any] = {
        "loss": F.cross_entropy, "data": simulated(400), "panel": simulated(100, seed=1),
        "rate": Q, "max_grad_norm": 1.0, "noise_multiplier": Z, "seed": 0,
    }  # fmt: skip
    if "epsilon" in options:
        given.pop("noise_multiplier")
    given |= options
    given.setdefault("records", len(given["data"][0]) if isinstance(given["data"], tuple) else 400)
    named = {one.name for one in fields(DPSGDSettings)} & given.keys()
    settings = DPSGDSettings(**{name: given.pop(name) for name in named})
    return make_private(module, optimizer, **given, settings=settings)


def weights(private: Private) -> Tensor:
    return torch.cat([w.detach().flatten() for w in private.module.parameters()])


def own_gradient(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the gradient of one record, over all weights, by a backward pass of its own."""
    value = F.cross_entropy(module(x[None]), y[None])
    return torch.cat([g.flatten() for g in torch.autograd.grad(value, [*module.parameters()])])


def test_a_step_is_the_noisy_sum_over_the_expected_size() -> None:
    """Everything written out once more: batch, clip, sum, divisor."""
    module = nn.Linear(5, 2)
    private = run(module, torch.optim.SGD(module.parameters(), lr=1.0), noise_multiplier=1e-6)
    before = weights(private)
    private.step()
    x, y = (t[private.batch] for t in simulated(400))
    before_module = copy.deepcopy(module)
    nn.utils.vector_to_parameters(before, before_module.parameters())
    total = torch.zeros_like(before)
    for a, b in zip(x, y, strict=True):
        g = own_gradient(before_module, a, b)
        total += g / max(1.0, float(g.norm()))
    expected = before - total / (Q * 400)  # the expected size, not len(x)
    assert len(x) != Q * 400
    torch.testing.assert_close(weights(private), expected, rtol=1e-3, atol=1e-5)


def test_both_epsilons_stand_together() -> None:
    private = run(seed=None)
    for _ in range(5):
        private.step()
    spent = private.cost(1e-5)
    assert isinstance(spent.worst_case, Bound)
    assert worst_of(spent).epsilon == PrivacyLossAccountant().epsilon(Z, Q, 5, 1e-5)
    assert str(spent.worst_case) in str(spent)
    assert path_of(spent).epsilon <= worst_of(spent).epsilon
    assert "not a guarantee about the algorithm" in str(spent)
    # The first of these steps alone, the other of all that this process spent on these rows.
    alone, published = worst_of(spent).assumptions, private.worst_case(1e-5)
    assert published.assumptions == (Assumption.PROCESS_ALONE, *alone)
    assert replace(published, assumptions=alone) == spent.worst_case
    assert float(private.per_record(1e-5).max()) <= worst_of(spent).epsilon * (1 + 1e-9)
    assert private.per_record(1e-5).shape == (100,)


def test_a_seeded_run_says_that_it_is_an_experiment() -> None:
    private = run()
    private.step()
    spent = private.cost(1e-5)
    assert not worst_of(spent).reliable
    for text in (str(private), str(spent), str(private.worst_case(1e-5)), worst_of(spent).reason):
        assert "seeded" in text
    assert "seeded" not in str(run(seed=None))


def test_a_resumed_run_is_the_same_to_the_bit() -> None:
    whole, first = run(), run()
    for _ in range(6):
        whole.step()
    for _ in range(3):
        first.step()
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    first.step()  # what was saved does not change with it
    file.seek(0)
    second = run()
    second.load_state_dict(torch.load(file, weights_only=True))
    for _ in range(3):
        second.step()
    assert torch.equal(weights(second), weights(whole))
    one, other = second.event().norms, whole.event().norms
    assert one is not None
    assert other is not None
    assert torch.equal(one.counts, other.counts)
    assert second.steps == 6


def test_the_state_of_a_secret_run_holds_no_seed() -> None:
    assert run(seed=None).state_dict()["mechanism"]["seed"] is None


def test_empty_batches_release_noise_and_are_charged() -> None:
    private = run(rate=1e-9)
    before = weights(private)
    private.step()
    assert len(private.batch) == 0
    assert private.steps == 1
    assert float((weights(private) != before).double().mean()) > 0.8


def test_the_budget_refuses_before_anything_is_charged() -> None:
    budget = Budget(PrivacyLossAccountant().epsilon(Z, Q, 3, 1e-5) + 1e-9, 1e-5)
    private = run(ledger=Ledger(budget=budget))
    for _ in range(3):
        private.step()
    before = weights(private)
    with pytest.raises(BudgetExceededError, match="step 4"):
        private.step()
    assert private.steps == 3
    assert torch.equal(weights(private), before)


def test_norms_are_counted_at_the_level_above() -> None:
    module = nn.Linear(5, 2)
    x, y = simulated(100, seed=1)
    private = run(module, torch.optim.SGD(module.parameters(), lr=0.1), max_grad_norm=2.0)
    each = [own_gradient(module, a, b) for a, b in zip(x, y, strict=True)]
    norms = torch.stack([g.norm() for g in each]).double() / 2.0
    private.step()
    counted = private.event().norms
    assert counted is not None
    at = counted.levels[counted.counts.argmax(1)]
    assert bool((at >= norms.clamp(max=1.0)).all())
    assert bool((at - norms.clamp(max=1.0) <= 1 / 64 + 1e-4).all())


class Squares(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x**2 - x**2)
        return out


def test_weights_that_are_not_finite_are_said() -> None:
    module = Squares()
    private = run(module, torch.optim.SGD(module.parameters(), lr=float("inf")))
    with pytest.raises(FloatingPointError, match="step 1 made a weight that is not finite"):
        private.step()


class Words(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 3, max_norm=1.0)
        nn.init.normal_(self.embedding.weight, std=scale)
        self.out = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.embedding(x).mean(1))
        return out


@pytest.mark.parametrize("scale", [5.0, 0.01])
def test_a_module_that_rewrites_its_weights_is_refused(scale: float) -> None:
    """Also where they have to grow before it does."""
    x = torch.arange(400).remainder(6)[:, None].repeat(1, 2)
    with pytest.raises(ValueError, match=r"changes its weight 'embedding.weight'|no gradients"):
        run(Words(scale), data=(x, x[:, 0].remainder(2)), panel=None)


class Counting(nn.Linear):
    """Changes a weight after some passes, when nobody looks any more."""

    def forward(self, x: Tensor) -> Tensor:
        self.passes = getattr(self, "passes", 0) + 1
        if self.passes > 60:
            with torch.no_grad():
                self.bias.add_(0)
        return super().forward(x)


def test_a_weight_that_changes_in_a_later_pass_ends_the_run() -> None:
    private = run(Counting(5, 2))

    def train() -> None:
        for _ in range(100):
            private.step()

    with pytest.raises(ValueError, match="the forward pass changed a weight"):
        train()
    with pytest.raises(ValueError, match="Do not release the network"):
        private.step()


def test_what_changes_between_steps_is_refused_uncharged() -> None:
    private = run()
    private.step()
    first, *_ = private.module.parameters()
    first.requires_grad_(False)
    with pytest.raises(ValueError, match="other trainable weights"):
        private.step()
    first.requires_grad_(True)
    private.step()
    with torch.no_grad():
        first.add_(1)
    with pytest.raises(ValueError, match=r"changed outside step\(\)"):
        private.step()
    assert private.steps == 2


def test_without_a_panel_there_is_the_worst_case_alone() -> None:
    private, other = run(panel=None, ledger=Ledger()), run(ledger=Ledger())
    for one in (private, other):
        for _ in range(3):
            one.step()
    spent = private.cost(1e-5)
    assert spent.path is None
    assert spent.worst_case == other.cost(1e-5).worst_case == private.worst_case(1e-5)
    assert str(spent).endswith("no reference records, so no Bayesian ε")
    for ask in (private.exposure, private.per_record):
        with pytest.raises(ValueError, match="panel is None"):
            ask(1e-5)
    again = run(panel=None, ledger=Ledger())
    again.load_state_dict(private.state_dict())
    assert again.worst_case(1e-5) == private.worst_case(1e-5)


class Recurrent(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.layer, self.out = kind(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.layer(x)[0][:, -1])
        return out


class Asks(nn.Module):
    """Looks at a value, as torch.vmap cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.Identity(), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        assert bool(x.isfinite().all())
        out: Tensor = self.out(x[:, -1])
        return out


@pytest.mark.parametrize(
    ("make", "layer"),
    [(Asks, "module"), *((partial(Recurrent, one), f"'layer' \\({one.__name__}") for one in
     (nn.GRU, nn.LSTM, nn.RNN))],
)  # fmt: skip
def test_what_vmap_cannot_follow_is_said_and_trains(make: Any, layer: str) -> None:
    x, y = torch.randn(400, 6, 3), torch.arange(400).remainder(2)
    with pytest.warns(PrivacyUtilityWarning, match=f"{layer}.*one record after the other"):
        private = run(make(), data=(x, y), panel=None)
    batch = x[:5].double(), y[:5]
    module = copy.deepcopy(private.module).double()
    wanted = [torch.cat([one.flatten() for one in each if one is not None]).norm()
              for each in alone(module, F.cross_entropy, batch)]  # fmt: skip
    torch.testing.assert_close(
        private._gradients.norms((x[:5], y[:5])), torch.stack(wanted), rtol=1e-5, atol=0.0
    )
    private.step()


@pytest.mark.parametrize("row", [0, 57, 399])
def test_without_a_record_and_its_coins_training_is_the_same(
    row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = simulated(400)
    others = torch.arange(400) != row
    coins = BatchPlan.batch_ids

    def trained(data: tuple[Tensor, Tensor], deleted: bool) -> tuple[Tensor, list[Tensor]]:
        def own(plan: BatchPlan, step: int, limit: int) -> Tensor:
            found = coins(plan, step, 400)
            return (found - (found > row).long())[found != row] if deleted else found

        monkeypatch.setattr(BatchPlan, "batch_ids", own)
        torch.manual_seed(
            0
        )  # one start; without dropout, whose coins are drawn one after the other.
        module = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
        private = run(module, data=data, panel=None, records=400, rate=0.3)
        chosen = []
        for _ in range(4):
            private.step()
            chosen.append(private.batch)
        return weights(private), chosen

    poison = x.clone()
    poison[row] = float("nan")  # is there, and counts as zero
    with_it, there = trained((poison, y), False)
    without, left = trained((x[others], y[others]), True)
    torch.testing.assert_close(with_it, without)
    kept = torch.arange(400)[others]
    for one, other in zip(there, left, strict=True):
        assert one[one != row].tolist() == kept[other].tolist()


class Growing(Dataset[Any]):
    def __init__(self) -> None:
        self.size = 400

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return torch.randn(5), i % 2


def test_data_that_change_their_length_are_refused_uncharged() -> None:
    data = Growing()
    private = run(data=data)
    private.step()
    data.size = 401
    with pytest.raises(ValueError, match="data has 401 records and had 400"):
        private.step()
    assert private.steps == 1


def test_a_dataset_trains_as_its_tensors_do() -> None:
    class Items(Dataset[Any]):
        def __init__(self, tensors: Sequence[Tensor]) -> None:
            self.tensors = tensors

        def __len__(self) -> int:
            return len(self.tensors[0])

        def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
            return self.tensors[0][i], self.tensors[1][i]

    found = []
    for data in (simulated(400), TensorDataset(*simulated(400)), Items(simulated(400))):
        private = run(data=data)
        private.step()
        found.append(weights(private))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


class Damaged(Dataset[Any]):
    """Records of which one cannot be read, and one has another shape."""

    def __init__(self) -> None:
        self.x, self.y = simulated(400)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        if i == 17:
            raise OSError("damaged")
        return (self.x[i][:1] if i == 30 else self.x[i]), self.y[i]


@pytest.mark.filterwarnings("ignore:for the owner only")
def test_a_record_that_cannot_be_read_stops_no_training() -> None:
    private = run(data=Damaged(), rate=1.0)
    private.step()
    assert private.steps == 1
    read = IndexedRecords.of_source("data", Damaged()).some()
    assert [len(one) for one in read] == [62, 62]


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


def behind(layer: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 4), layer, nn.Linear(4, 2))


def image(layer: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Unflatten(1, (1, 5)), layer, nn.Flatten(), nn.Linear(5, 2))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(())


WHOLE = TensorDataset(*simulated(500))
TIED = simulated(400)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"module": behind(nn.BatchNorm1d(4))}, r"layer '1' \(BatchNorm1d\).*GroupNorm"),
        ({"module": behind(Centred())}, r"layer '1' \(Centred\), which mixes records"),
        ({"module": image(nn.InstanceNorm1d(1, track_running_stats=True))}, "Instance.*buffer"),
        ({"module": behind(nn.BatchNorm1d(4, track_running_stats=False)).eval()}, "BatchNorm1d"),
        ({"module": nn.Linear(5, 2).requires_grad_(False)}, "module has no trainable weight"),
        ({"module": nn.Linear(5, 2).bfloat16()}, "torch.bfloat16.*autocast"),
        ({"loss": lambda out, y: F.cross_entropy(out - out.mean(0), y)}, "loss mixes records"),
        ({"loss": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0]))}, "loss mixes records"),
        ({"loss": lambda out, y: out}, "loss has 2 values for one record"),
        ({"max_grad_norm": 0.0}, "max_grad_norm must be .* got 0.0"),
        ({"noise_multiplier": 0.0}, "noise_multiplier must be .* got 0.0"),
        ({"noise_multiplier": None}, "give noise_multiplier, or both epsilon and steps"),
        ({"noise_multiplier": None, "steps": 5}, "give noise_multiplier, or both"),
        ({"rate": 0.0}, "rate must lie in .* got 0.0"),
        ({"seed": -1}, "seed must be"),
        ({"physical_batch": 0}, "physical_batch must be"),
        ({"panel": simulated(99)}, "panel has 99 records; an estimate needs at least 100"),
        ({"panel": tuple(t[:200] for t in TIED), "data": TIED}, "panel has 200 records of 200"),
        ({"panel": Subset(WHOLE, range(300, 500)), "data": Subset(WHOLE, range(400))},
         "panel has 100 records of the training data, such as id 300"),
        ({"data": Subset(WHOLE, [1, 1, 2])}, "data has a record twice"),
        ({"data": Stream()}, "data must be tensors .* with a length"),
        ({"data": (torch.zeros(3, 5), torch.zeros(2))}, "data: y has 2 entries, x has 3"),
        ({"data": torch.zeros(3, 5)}, "data must be tensors"),
    ],
)  # fmt: skip
def test_bad_input_names_the_argument(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(**options)


def test_frozen_statistics_stay_frozen_in_training() -> None:
    module = behind(nn.BatchNorm1d(4))
    module[1].eval()
    private = run(module)
    private.step()
    module.train()  # as loops do after a look at the test records
    private.step()
    assert not module[1].training
    assert int(module.get_buffer("1.num_batches_tracked")) == 0


def test_dropout_is_a_records_own_draw() -> None:
    """Two copies of one record in one batch lose different units."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 500), nn.Dropout(0.5), nn.Linear(500, 2))
    x, y = simulated(1)
    panel = x.expand(100, 5), y.expand(100)
    private = run(module, panel=panel, max_grad_norm=100.0)
    private.step()
    norms = private.event().norms
    assert norms is not None
    assert len(norms.counts.unique(dim=0)) > 1
