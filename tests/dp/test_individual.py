"""``make_private(individual=)``: every record is dropped at its own budget, and none costs more."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bdpvi import Budget, make_private
from bdpvi._runtime.checkpoint import sealed
from bdpvi.accounting.odometer import Filter
from bdpvi.accounting.worst_case import gaussian_epsilon
from bdpvi.dp.mechanism import Mechanism, affordable
from bdpvi.dp.private import Private

Z, CLIP = 8.0, 0.7
BUDGET = Budget(1.5, 1e-5)
every = pytest.mark.parametrize("mode", ["functorch", "hooks", "ghost"])


@pytest.fixture(autouse=True)
def _opacus(request: pytest.FixtureRequest) -> None:
    callspec = getattr(request.node, "callspec", None)
    if callspec and callspec.params.get("mode", "") in ("hooks", "ghost"):
        pytest.importorskip("opacus")


def simulated(records: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Records whose gradients differ in size a hundredfold."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(records, 5, generator=generator)
    x *= torch.logspace(-2, 0.3, records)[:, None]
    return x, (x[:, 0] + x[:, 1] > 0).long()


def run(data: tuple[Tensor, Tensor] | None = None, dropout: float = 0.0, **options: Any) -> Private:
    torch.manual_seed(0)
    layers = [nn.Linear(5, 4, bias=False), nn.Tanh(), nn.Dropout(dropout)]
    module = nn.Sequential(*layers, nn.Linear(4, 2, bias=False))
    given: dict[str, Any] = {
        "loss": F.cross_entropy, "data": data or simulated(24), "rate": 1.0, "clip": CLIP,
        "noise_multiplier": Z, "individual": BUDGET, "seed": 0, "physical_batch": 10,
    }  # fmt: skip
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    return make_private(module, optimizer, **{**given, **options})


def weights(private: Private) -> Tensor:
    return torch.cat([w.detach().flatten() for w in private.module.parameters()])


def own(private: Private) -> Tensor:
    found: Tensor = private.state_dict()["counts"]["own"]
    return found


def limit() -> float:
    """Return V, the squared distance at which a Gaussian mechanism costs the budget's ε."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        costs = gaussian_epsilon(middle, BUDGET.delta)
        low, high = (low, middle) if costs > BUDGET.epsilon else (middle, high)
    return low


class Watched:
    """Sums before noise; what is released in their place follows a path that is fixed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        self.sums: list[Tensor] = []
        self.generator = torch.Generator().manual_seed(seed)

        def mean(_: Mechanism, total: Tensor) -> Tensor:
            self.sums.append(total.double().flatten())
            return 0.05 * torch.randn(total.shape, generator=self.generator)

        monkeypatch.setattr(Mechanism, "mean", mean)

    def of(self, private: Private, steps: int) -> Tensor:
        """Return the sum of every step, (steps, weights)."""
        self.sums.clear()
        for _ in range(steps):
            private.step()
        parts = len(list(private.module.parameters()))
        rows = [self.sums[i : i + parts] for i in range(0, len(self.sums), parts)]
        return torch.stack([torch.cat(row) for row in rows])


@every
@pytest.mark.parametrize("path", [0, 1])
def test_no_record_moves_the_sums_of_a_path_by_more_than_its_budget(
    mode: str, path: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trained with and without each of some records, on the same published path."""
    (x, y), steps = simulated(24), 25
    whole = Watched(monkeypatch, path).of(run(grad_sample_mode=mode), steps)
    moved = []
    for i in (0, 16, 23):
        rest = torch.arange(24) != i
        without = run((x[rest], y[rest]), grad_sample_mode=mode)
        distance = (whole - Watched(monkeypatch, path).of(without, steps)).norm(dim=1)
        moved.append(float(distance.square().sum()) / (Z * CLIP) ** 2)
    assert max(moved) <= limit() * (1 + 1e-6)
    assert max(moved) > limit() - 1 / Z**2  # somebody was dropped
    assert min(moved) < 0.1 * limit()


def test_costs_and_sums_against_composing_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    private, (x, y) = run(simulated(12)), simulated(12)
    watched = Watched(monkeypatch, 0)
    most = private.state_dict()["mechanism"]["stopping"]["budget"]
    assert 0.99 * limit() < most <= limit()
    costs, dropped = torch.zeros(12, dtype=torch.float64), 0
    for _ in range(25):
        module = copy.deepcopy(private.module).double()
        total = torch.zeros_like(weights(private), dtype=torch.float64)
        for i in range(12):
            loss = F.cross_entropy(module(x[i : i + 1].double()), y[i : i + 1])
            each = torch.autograd.grad(loss, [*module.parameters()])
            g = torch.cat([part.flatten() for part in each])
            norm = min(float(g.norm()), CLIP)
            if costs[i] + (norm / CLIP / Z) ** 2 <= most:
                costs[i] += (norm / CLIP / Z) ** 2
                total += g * (norm / g.norm())
            else:
                costs[i] = most
                dropped += 1
        torch.testing.assert_close(watched.of(private, 1)[0], total, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(own(private), costs, rtol=1e-3, atol=1e-9)
    assert 0 < dropped < 12 * 25


@every
def test_the_norm_that_is_charged_is_that_of_the_gradient_in_the_sum(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout draws another gradient whenever it is asked."""
    alone = tuple(t[15:16] for t in simulated(24))
    private = run(alone, dropout=0.5, grad_sample_mode=mode)  # type: ignore[arg-type]
    sums = Watched(monkeypatch, 0).of(private, 8)
    moved = float(sums.norm(dim=1).square().sum()) / (Z * CLIP) ** 2
    assert moved <= float(own(private)) <= moved * (1 + 1e-4)
    assert 0 < float(own(private)) < limit()  # it was not dropped


def test_with_an_ample_budget_nothing_changes() -> None:
    ample, plain = run(individual=Budget(50.0)), run(individual=None, panel=simulated(100, 1))
    for _ in range(5):
        ample.step()
        plain.step()
    assert torch.equal(weights(ample), weights(plain))


def test_training_goes_on_where_the_worst_case_ends() -> None:
    private = run(tuple(0.1 * t if t.is_floating_point() else t for t in simulated(24)), clip=5.0)  # type: ignore[arg-type]
    most = affordable(private.mechanism, BUDGET)
    for _ in range(2 * most):
        private.step()
    assert float(own(private).max()) < limit()  # nobody was dropped
    assert private.steps == 2 * most
    found = private.worst_case(BUDGET.delta)
    assert 0.99 * BUDGET.epsilon < found.epsilon <= BUDGET.epsilon
    assert found.relation == "add or remove one record"
    with pytest.raises(ValueError, match="has no panel"):
        private.spent(1e-5)


@every
def test_a_resumed_run_is_the_same_to_the_bit(mode: str) -> None:
    whole, first = (run(dropout=0.2, grad_sample_mode=mode) for _ in range(2))
    for _ in range(30):
        whole.step()
    for _ in range(15):
        first.step()
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    first.step()
    file.seek(0)
    second = run(dropout=0.2, grad_sample_mode=mode)
    second.load_state_dict(torch.load(file, weights_only=True))
    assert second.steps == 15
    for _ in range(15):
        second.step()
    assert torch.equal(weights(second), weights(whole))
    assert torch.equal(own(second), own(whole))
    for other in (run(individual=Budget(2.0, 1e-5)), run(individual=None, panel=simulated(100, 1))):
        with pytest.raises(ValueError, match="state has stopping="):
            other.load_state_dict(second.state_dict())
    state = second.state_dict()
    state["counts"]["own"][3] = 1e9
    with pytest.raises(ValueError, match="state was changed"):
        second.load_state_dict(state)
    del state["sha256"]
    with pytest.raises(ValueError, match=r"own must lie in \[0, budget\]"):
        second.load_state_dict(sealed(state))
    assert torch.equal(own(second), own(whole))


class Squares(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x**2 - x**2)
        return out


def test_a_gradient_that_is_not_finite_counts_and_costs_nothing() -> None:
    x, y = simulated(24)
    x[7, 0] = 1e30
    module = Squares()
    private = make_private(
        module, torch.optim.SGD(module.parameters(), lr=1.0), loss=F.cross_entropy, data=(x, y),
        rate=1.0, clip=CLIP, noise_multiplier=Z, individual=BUDGET,
    )  # fmt: skip
    private.step()
    assert private.steps == 1
    assert float(own(private)[7]) == 0
    assert bool(weights(private).isfinite().all())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": 0.5}, "rate=0.5 with individual="),
        ({"panel": simulated(100, 1)}, "individual= takes noise_multiplier, and no panel"),
        ({"budget": Budget(1.0)}, "and no panel, budget"),
        ({"stopping": Filter(order=9, exponent=1.1, budget=1.0, steps=9)}, "budget or stopping"),
        ({"noise_multiplier": None, "epsilon": 1.0, "steps": 9}, "takes noise_multiplier"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(**options)
