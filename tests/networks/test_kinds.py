"""What trains, what is refused before a charge, and schedules of learning rate, noise and clip."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import networks_trained as trained
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bdpvi import BudgetExceededError, make_private
from bdpvi.networks import DPSGDSettings
from bdpvi.networks.private import Private
from bdpvi.privacy import worst_case
from bdpvi.privacy.events import SampledGaussian

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "from-other-libraries.md"
SOME = (
    "frozen parts, low-rank adapters", "`Conv2d`, depthwise too, and `GroupNorm`",
    "`BatchNorm2d` in training", "`Embedding`", "`TransformerEncoder`", "tied weights",
    "`torch.autocast` around a step",
)  # fmt: skip
WHOLE = pytest.mark.whole
X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
DATA = X, torch.arange(40) % 3


def private(module: nn.Module, optimizer: Any = None, **options: Any) -> Private:
    given: dict[str, Any] = {
        "rate": 0.5,
        "max_grad_norm": 1.0,
        "noise_multiplier": 1.0,
        "data": DATA,
    }
    given |= {name: options.pop(name) for name in set(given) & set(options)}
    optimizer = optimizer or torch.optim.SGD(module.parameters(), lr=0.1)
    settings = DPSGDSettings(records=40, **options)
    return make_private(module, optimizer, loss=F.cross_entropy, settings=settings, **given)


def page() -> dict[str, list[str]]:
    """Return the columns of the table on the page by the kind of network."""
    text = PAGE.read_text(encoding="utf-8")
    lines = text[text.index("| network |") :].split("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {name: said for name, *said in rows}


@pytest.mark.filterwarnings("ignore")  # of torch about torch.jit
@pytest.mark.parametrize("some", [SOME, pytest.param(tuple(trained.KINDS), marks=WHOLE)])
def test_norms_are_those_of_autograd_or_nothing_is_charged(
    some: tuple[str, ...],
) -> None:
    pytest.importorskip("opacus")
    told = page()
    assert list(told) == list(trained.KINDS)
    for name in some:
        kind = trained.KINDS[name]
        found, why = trained.ours(kind)
        assert found == told[name][0], (name, why)
        if found == "no":
            assert re.search(r"layer '|has \(|module has|torch.autocast in", why), why


@pytest.mark.slow
def test_the_table_is_what_the_benchmark_prints() -> None:
    pytest.importorskip("opacus")
    text = PAGE.read_text(encoding="utf-8")
    assert "\n".join(trained.rows()) in text


# --------------------------------------------------------------------------- mixed precision


class Single(nn.Module):
    """A layer of single precision alone."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inside(x)
        if out.dtype is torch.bfloat16:
            raise RuntimeError("no kernel")
        return out


def test_mixed_precision_is_tried_before_a_charge() -> None:
    """Every record failed, counted as zero, and the noise alone was charged and released."""
    module = nn.Sequential(Single())
    made = private(module)
    before = nn.utils.parameters_to_vector(module.parameters()).clone()
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(ValueError, match=r"(?s)'0' \(Single\).*no kernel.*Nothing was charged"),
    ):
        made.step()
    assert made.ledger.entries() == ()
    assert torch.equal(before, nn.utils.parameters_to_vector(module.parameters()))
    made.step()
    assert made.steps == 1


# --------------------------------------------------------------------------- frozen weights


def test_an_optimiser_may_have_frozen_weights() -> None:
    first = nn.Linear(6, 4).requires_grad_(False)
    module = nn.Sequential(first, nn.Linear(4, 3))
    before = first.weight.clone()
    made = private(module, torch.optim.AdamW(module.parameters(), weight_decay=0.5))
    assert made.mechanism.size == 4 * 3 + 3
    made.step()
    assert torch.equal(first.weight, before)
    first.weight.grad = torch.ones_like(before)  # as a loss without privacy leaves it
    with pytest.raises(ValueError, match=r"frozen weight '0\.weight' with a gradient"):
        made.step()
    assert torch.equal(first.weight, before)
    assert made.steps == 1
    with pytest.raises(ValueError, match=r"frozen weight '0\.weight' with a gradient"):
        private(module)
    module.zero_grad()
    made.step()
    first.weight.requires_grad_(True)
    with pytest.raises(ValueError, match="other trainable weights"):
        made.step()


# --------------------------------------------------------------------------- schedules


def test_a_schedule_of_noise_and_clip_costs_what_its_parts_cost() -> None:
    made = private(nn.Linear(6, 3), noise_multiplier=4.0, steps=3)
    for _ in range(3):
        made.step()
    later = made.go_on(noise_multiplier=2.0, steps=2).go_on(max_grad_norm=0.1, steps=4)
    for _ in range(4):
        later.step()
    parts = [
        SampledGaussian(noise_multiplier=noise, rate=0.5, steps=steps)
        for noise, steps in ((4.0, 3), (2.0, 4))
    ]
    wanted = worst_case.epsilon(parts, 1e-5)
    assert wanted is not None
    assert later.worst_case(1e-5).epsilon == pytest.approx(wanted.epsilon, rel=1e-6)
    assert [entry.count for entry in later.ledger.entries()] == [3, 4]
    assert later.mechanism.noise_multiplier == 2.0
    with pytest.raises(BudgetExceededError, match="steps=4 were asked for"):
        later.step()
    with pytest.raises(ValueError, match="changed outside step"):
        made.go_on(noise_multiplier=9.0).step()


def test_a_part_has_the_noise_of_its_own_noise_and_clip() -> None:
    x = torch.zeros(4, 5000)
    module = nn.Linear(5000, 2, bias=False)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    first = private(module, optimizer, data=(x, torch.arange(4) % 2), rate=1.0, seed=1)
    first.step()
    drawn = [module.weight.grad]
    for part in (first.go_on(noise_multiplier=3.0), first.go_on(max_grad_norm=0.5)):
        part._versions = part._now()
        part.step()
        drawn.append(module.weight.grad)
    for found, wanted in zip(drawn, (1.0, 3.0, 0.5), strict=True):
        assert found is not None
        assert float(found.std()) * 40 == pytest.approx(wanted, rel=0.03)
    one, other = (drawn[k].flatten() for k in (0, 1))  # type: ignore[union-attr]
    assert abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1])) < 0.05


def test_weights_of_another_layout_take_a_fused_optimiser() -> None:
    """In channels-last layout, a gradient of another one would move other entries."""
    found = []
    for fused in (False, True):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(12, 2))
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = torch.optim.Adam(module.parameters(), lr=0.1, fused=fused)
        data = (torch.randn(40, 2, 3, 3), torch.arange(40) % 2)
        run = private(module, optimizer, data=data, seed=0)
        run.step()
        found.append(module[0].weight.detach().clone())
    assert torch.allclose(found[0], found[1], 1e-5, 1e-6)
