"""The accountant for Opacus: its loop, both ε, and what it refuses."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from accounts import path_of, worst_of
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

opacus = pytest.importorskip("opacus")
from opacus import PrivacyEngine  # noqa: E402
from opacus.accountants.utils import get_noise_multiplier  # noqa: E402
from opacus.data_loader import DPDataLoader  # noqa: E402
from opacus.utils.batch_memory_manager import BatchMemoryManager  # noqa: E402

from bdpvi.networks.opacus import BDPAccountant  # noqa: E402
from bdpvi.privacy.assumptions import Assumption  # noqa: E402
from bdpvi.privacy.events import SampledGaussian  # noqa: E402
from bdpvi.privacy.sampled_steps import PrivacyLossAccountant  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
]


@pytest.fixture(autouse=True)
def _one_seed() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def simulated(records: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(records, 5, generator=generator)
    return x, (x[:, 0] > 0).long()


class Loop:
    """Training as Opacus's users write it."""

    def __init__(self, module: nn.Module | None = None, **options: Any) -> None:
        plain = module or nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
        self.twin = copy.deepcopy(plain)
        self.engine = PrivacyEngine(accountant="bdp")
        self.module, self.optimizer, self.loader = self.engine.make_private(
            module=plain,
            optimizer=torch.optim.SGD(plain.parameters(), lr=0.5),
            data_loader=DataLoader(TensorDataset(*simulated(400)), batch_size=40),
            noise_multiplier=1.5,
            max_grad_norm=1.0,
            **options,
        )
        if not options.get("wrap_model", True):
            self.module = plain

    @property
    def accountant(self) -> BDPAccountant:
        result: BDPAccountant = self.engine.accountant
        return result

    def train(self, steps: int, accumulated: int = 1) -> None:
        while steps > 0:
            for i, (x, y) in enumerate(self.loader):
                F.cross_entropy(self.module(x), y).backward()
                if (i + 1) % accumulated == 0:
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                    steps -= 1
                if steps == 0:
                    break


@pytest.mark.parametrize("wrapped", [True, False])
def test_norms_are_those_at_the_weights_before_the_update(wrapped: bool) -> None:
    options: dict[str, Any] = {} if wrapped else {"wrap_model": False}
    loop = Loop(**options)
    loop.accountant.watch(loop.twin, F.cross_entropy, simulated(100, seed=1))
    expected = torch.zeros(100, 64, dtype=torch.int64)
    hook = loop.optimizer.step_hook

    def counting(optimizer: Any) -> None:
        plain = copy.deepcopy(loop.twin)
        for mine, live in zip(plain.parameters(), optimizer.params, strict=True):
            mine.data.copy_(live.data)
        for i, (x, y) in enumerate(zip(*simulated(100, seed=1), strict=True)):
            value = F.cross_entropy(plain(x[None]), y[None])
            each = torch.autograd.grad(value, [*plain.parameters()])
            norm = min(1.0, float(torch.cat([g.flatten() for g in each]).norm()) * (1 + 1e-5))
            expected[i, max(0, math.ceil(norm * 64) - 1)] += 1
        hook(optimizer)

    loop.optimizer.attach_step_hook(counting)
    loop.train(12)
    (counts,) = loop.accountant._norms_of.values()
    assert counts.steps == len(loop.accountant) == 12
    assert int((counts.counts - expected).abs().sum()) <= 2  # on the edge of a level


def test_get_epsilon_is_the_worst_case() -> None:
    loop = Loop()
    loop.accountant.watch(loop.twin, F.cross_entropy, simulated(100, seed=1))
    loop.train(7)
    worst = PrivacyLossAccountant().epsilon(1.5, 1 / len(loop.loader), 7, 1e-5)
    assert loop.engine.get_epsilon(1e-5) == worst
    spent = loop.accountant.cost(1e-5)
    assert spent.worst_case is not None
    assert worst_of(spent).epsilon == worst
    assert path_of(spent).epsilon <= worst
    assert loop.accountant.exposure(1e-5).median <= worst * (1 + 1e-9)


def test_steps_that_nobody_watched_are_charged_at_the_clip() -> None:
    loop = Loop()
    loop.train(3)
    loop.twin.load_state_dict(loop.module._module.state_dict())
    loop.accountant.watch(loop.twin, F.cross_entropy, simulated(100, seed=1))
    loop.train(2)
    (event,) = [event for event, _ in loop.accountant._account().events]
    assert isinstance(event, SampledGaussian)
    assert event.steps == 5
    assert event.norms is not None
    assert bool((event.norms.counts[:, -1] >= 3).all())


def test_a_batch_in_parts_is_one_step() -> None:
    loop = Loop()
    loop.accountant.watch(loop.twin, F.cross_entropy, simulated(100, seed=1))
    with BatchMemoryManager(
        data_loader=loop.loader, max_physical_batch_size=8, optimizer=loop.optimizer
    ) as parts:
        for x, y in parts:
            F.cross_entropy(loop.module(x), y).backward()
            loop.optimizer.step()
            loop.optimizer.zero_grad()
    assert len(loop.accountant) == len(loop.loader)


def test_accumulation_is_refused_uncharged() -> None:
    loop = Loop()
    loop.module.allow_grad_accumulation()
    with pytest.raises(ValueError, match="2 batches were accumulated"):
        loop.train(1, accumulated=2)
    assert len(loop.accountant) == 0


def loaders() -> dict[str, DataLoader[Any]]:
    """Return loaders that draw batches in other ways than Poisson's."""
    records, weights = TensorDataset(*simulated(903)), torch.ones(903)
    weights[0] = 1e6  # one record fills each batch
    heavy = WeightedRandomSampler(weights.tolist(), 128)
    return {
        "SequentialSampler": DataLoader(records, batch_size=16),
        "RandomSampler": DataLoader(records, batch_size=16, shuffle=True),
        "WeightedRandomSampler": DataLoader(records, batch_size=16, sampler=heavy),
    }


@pytest.mark.parametrize("name", ["SequentialSampler", "RandomSampler", "WeightedRandomSampler"])
def test_a_loader_that_does_not_sample_by_poisson_is_refused(name: str) -> None:
    def begun(loader: DataLoader[Any], poisson: bool) -> PrivacyEngine:
        engine, module = PrivacyEngine(accountant="bdp"), nn.Linear(5, 2)
        engine.make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
            data_loader=loader,
            noise_multiplier=1.5,
            max_grad_norm=1.0,
            poisson_sampling=poisson,
        )
        return engine

    loader = loaders()[name]
    with pytest.raises(ValueError, match=f"data_loader draws its batches by {name}.*True, or give"):
        begun(loader, False)
    begun(loader, True)  # one remedy
    begun(DPDataLoader.from_data_loader(loader), False)  # the other


def test_the_cost_of_a_loop_says_what_it_assumes() -> None:
    loop = Loop()
    loop.accountant.watch(loop.twin, F.cross_entropy, simulated(100, seed=1))
    loop.train(1)
    found = loop.accountant.cost(1e-5)
    for bound in (found.worst_case, found.path):
        assert bound is not None
        assert Assumption.POISSON_BATCHES in bound.assumptions
        assert Assumption.GIVEN_FEATURES in bound.assumptions
        assert "assumed to be a Poisson sample" in bound.meaning


def test_a_twin_of_something_else_is_refused() -> None:
    loop = Loop()
    other = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    loop.accountant.watch(other, F.cross_entropy, simulated(100, seed=1))
    with pytest.raises(ValueError, match="twin must be a copy"):
        loop.train(1)
    assert len(loop.accountant) == 0


def test_a_state_goes_on() -> None:
    whole = Loop()
    whole.accountant.watch(whole.twin, F.cross_entropy, simulated(100, seed=1))
    whole.train(4)
    file = io.BytesIO()
    torch.save(whole.accountant.state_dict(), file)
    file.seek(0)
    second = BDPAccountant()
    second.load_state_dict(torch.load(file, weights_only=True))
    second.watch(whole.twin, F.cross_entropy, simulated(100, seed=1))
    assert second.cost(1e-5) == whole.accountant.cost(1e-5)
    second.step(noise_multiplier=1.5, sample_rate=1 / len(whole.loader))
    assert (len(second), len(whole.accountant)) == (5, 4)


def test_opacus_finds_the_noise_for_an_epsilon() -> None:
    noise = get_noise_multiplier(
        target_epsilon=1.0, target_delta=1e-5, sample_rate=0.1, steps=50, accountant="bdp"
    )
    assert 0.98 < PrivacyLossAccountant().epsilon(noise, 0.1, 50, 1e-5) <= 1.0


def test_without_steps_or_noise() -> None:
    accountant = BDPAccountant()
    assert accountant.get_epsilon(1e-5) == 0.0
    with pytest.raises(ValueError, match="nothing was watched"):
        accountant.cost(1e-5)
    accountant.step(noise_multiplier=0.0, sample_rate=0.1)
    assert accountant.get_epsilon(1e-5) == float("inf")
    with pytest.raises(ValueError, match="panel has 99 records"):
        accountant.watch(nn.Linear(5, 2), F.cross_entropy, simulated(99))
