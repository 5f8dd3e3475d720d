"""What is clipped is what is added: no record moves a sum by more than one clip, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO
from pyro.optim import SGD
from torch import Tensor, nn

import bdpvi
from bdpvi.federated.federated import Federation, Message
from bdpvi.federated.rounds import Rounds
from bdpvi.networks import DPSGDSettings
from bdpvi.releases.clipping import clipped_sum
from bdpvi.releases.noisy_sum import NoisySum

Step = Callable[[], object]
Records = tuple[Tensor, Tensor]


@contextmanager
def summed(batches: list[Tensor]) -> Iterator[list[tuple[float, Tensor]]]:
    """Yield the sums of steps on these batches with their clips; no noise is added to them."""
    seen: list[tuple[float, Tensor]] = []

    def noisy(mechanism: NoisySum, totals: list[Tensor], key: Any) -> list[Tensor]:
        whole = torch.cat([total.detach().double().flatten() for total in totals])
        seen.append((mechanism.clip, whole))
        return [torch.zeros_like(total, dtype=torch.float64) for total in totals]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NoisySum, "batch", lambda mechanism, step: batches[len(seen)])
        patch.setattr(NoisySum, "noisy", noisy)
        yield seen


def length(values: Tensor) -> float:
    """Return a norm with rounding errors far below those of float64."""
    blocks = values.double().square().flatten().numpy()
    return math.sqrt(math.fsum(math.fsum(one.tolist()) for one in np.array_split(blocks, 50)))


def moved(step: Step, others: list[int], record: int) -> float:
    """Return by how many clips a record moves the sum, among others and alone."""
    without, with_it = torch.tensor(others), torch.tensor([*others, record])
    none = without[:0]
    with summed([without, with_it, none, with_it[-1:]]) as seen:
        for _ in range(4):
            step()
    found = []
    for (clip, one), (_, other) in zip(seen[::2], seen[1::2], strict=True):
        found.append(length(other - one) / clip)
    assert min(found) > 0.5  # it is a long one
    return max(found)


class Rates(nn.Module):
    """One linear layer, whose outputs are added up."""

    def __init__(self, inputs: int, outputs: int, tied: bool = False) -> None:
        super().__init__()
        self.one = nn.Linear(inputs, outputs, bias=False)
        self.two = nn.Linear(inputs, outputs, bias=False)
        if tied:
            self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.one(x) + self.two(3 * x)
        return out


def network(module: nn.Module, data: Records, clip: float = 1.0, **given: Any) -> Step:
    """Return a step of a network whose loss is the sum of outputs times targets."""
    settings = DPSGDSettings(records=8, **given)
    return bdpvi.make_private(
        module, torch.optim.SGD(module.parameters(), lr=0.0), data=data, rate=0.5,
        loss=lambda out, y: (out * y).flatten(1).sum(1), max_grad_norm=clip,
        noise_multiplier=1.0, settings=settings,
    ).step  # fmt: skip


def alike(*shape: int, far: float = 1e3) -> Records:
    """Return records all of whose features are alike, the last one's far away."""
    x = torch.full((4, *shape), 0.7)
    x[-1] = far
    return x, torch.ones(4, *[1] * len(shape))


def one_million() -> Step:
    x, y = alike(1000)
    x[-1, ::2] = 1e-3  # large numbers and small ones in turn
    return network(nn.Linear(1000, 1000, bias=False), (x, y))


def cancelling_steps(**given: Any) -> Step:
    """Two steps that almost cancel: their products are 10¹² times the gradient's square."""
    x = torch.randn(4, 2, 50, generator=torch.Generator().manual_seed(0))
    x[-1] = 1e6 + x[-1]
    y = torch.ones(4, 2, 1)
    y[:, 1] = -1
    return network(nn.Linear(50, 3, bias=False), (x, y), **given)


def tied() -> Step:
    return network(Rates(300, 300, tied=True), alike(300))


def tiny() -> Step:
    return network(Rates(100, 100), alike(100, far=1e-11), 1e-12)


def huge() -> Step:
    """Squares beyond float32."""
    return network(Rates(100, 100), alike(100, far=1e25))


def half_precision() -> Step:
    step = network(Rates(100, 100), alike(100))

    def within() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            step()

    return within


def one_by_one() -> Step:
    class Asks(Rates):
        def forward(self, x: Tensor) -> Tensor:
            assert bool(x.isfinite().all())  # torch.vmap cannot follow
            return super().forward(x)

    with pytest.warns(bdpvi.PrivacyUtilityWarning, match="one record after the other"):
        return network(Asks(300, 300), alike(300))


def program(**given: Any) -> Step:
    size = 200_000
    x, y = alike(size)

    def model(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(x.new_zeros(size), 1.0).to_event(1))
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    def guide(x: Tensor, y: Tensor) -> None:
        loc = pyro.param("loc", lambda: torch.zeros(size))
        pyro.sample("w", dist.Delta(loc).to_event(1))

    made = bdpvi.PrivateSVI(
        model, guide, SGD({"lr": 0.0}), Trace_ELBO(), clip=1.0, noise_multiplier=1.0, rate=0.5,
        **given,
    )  # fmt: skip
    return lambda: made.step(x, y[:, 0])


KINDS = (
    one_million, cancelling_steps, tied, tiny,
    huge, half_precision, one_by_one, program,
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_record_moves_a_sum_by_one_clip_at_most(kind: Callable[[], Step]) -> None:
    torch.manual_seed(0)
    try:
        assert moved(kind(), [0, 1, 2], 3) <= 1
    finally:
        pyro.clear_param_store()


@pytest.mark.parametrize("far", [1.0, 1e30, 1e200, 1e-30])
def test_a_client_moves_a_sum_by_one_clip_at_most(far: float) -> None:
    size, clip = 10**6, far / 10 if far < 1 else 1.0
    rounds = Rounds(clients=2, size=size, clip=clip, noise_multiplier=1.0)
    update = torch.full((size,), far, dtype=torch.float64)
    update[::2] *= 1e-3
    server, one = Federation(rounds), torch.zeros(size)
    with summed([torch.arange(2)] * 3) as seen:
        for sent in (one, update):
            number = server.next_round
            server.sampled(number)
            server.aggregate(number, [Message(0, number, one), Message(1, number, sent)])
    found = length(seen[1][1] - seen[0][1]) / clip
    assert 0.99 < found <= 1


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", ["alike", "alternate", "falling"])
def test_a_contribution_is_never_longer_than_its_bound(kind: torch.dtype, shape: str) -> None:
    size = 2_000_003
    entries = {
        "alike": torch.full((size,), 0.1),
        "alternate": torch.tensor([3e4, 1e-4]).repeat(size // 2 + 1)[:size],
        "falling": 1 / torch.arange(1, size + 1).double(),
    }[shape].to(kind)  # fmt: skip
    parts = [entries[: size // 3][None], entries[size // 3 :].view(1, 1, -1)]
    for bound in (1e-6, 1.0, 3.7):
        total, norms = clipped_sum(parts, bound, 2.0)
        true = length(entries)
        assert float(norms[0]) == pytest.approx(true, rel=size * 2.0**-53)
        found = length(total)
        assert 2.0 * min(1.0, true / bound) * (1 - 2e-6) < found <= 2.0


def test_what_is_not_finite_adds_nothing() -> None:
    x = torch.tensor([[1.0, math.inf], [math.nan, 1.0], [3.0, 4.0], [1e200, 1e200]]).double()
    total, norms = clipped_sum([x], 1.0)
    torch.testing.assert_close(total, torch.tensor([0.6, 0.8]).double(), rtol=1e-5, atol=0)
    assert norms.isfinite().tolist() == [False, False, True, False]


def test_a_bound_whose_squares_vanish_is_refused() -> None:
    with pytest.raises(ValueError, match="max_grad_norm=1e-120 must be at least 1e-100"):
        network(nn.Linear(2, 1), alike(2), 1e-120)
    with pytest.raises(ValueError, match="clip=1e-120 must be at least 1e-100"):
        Rounds(clients=2, size=3, clip=1e-120, noise_multiplier=1.0)
