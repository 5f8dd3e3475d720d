"""Norms and clipped sums against one record at a time."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bdpvi.networks.gradients import Each, Loss, RecordGradients, by_vmap, one_by_one

every = pytest.mark.parametrize("each", [by_vmap, one_by_one])


def network() -> tuple[nn.Sequential, tuple[Tensor, Tensor]]:
    """Return a network of the common layers, one of them frozen, and 11 records."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(),
        nn.Linear(36, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 3),
    )  # fmt: skip
    for weight in module[7].parameters():
        weight.requires_grad_(False)
    return module, (3 * torch.randn(11, 1, 8, 8), torch.randint(3, (11,)))


def by_loop(
    module: nn.Module, loss: Loss, batch: tuple[Tensor, Tensor], clip: float
) -> tuple[Tensor, list[Tensor]]:
    """Return norms and clipped sum in float64, a backward pass for each record."""
    module = copy.deepcopy(module).double()
    weights = [w for w in module.parameters() if w.requires_grad]
    norms, total = [], [torch.zeros_like(w) for w in weights]
    for x, y in zip(*batch, strict=True):
        value = loss(module(x[None].double() if x.is_floating_point() else x[None]), y[None]).sum()
        each = torch.autograd.grad(value, weights)
        norm = sum(((g**2).sum() for g in each), torch.zeros(())).sqrt()
        norms.append(norm)
        total = [t + g * min(1.0, clip / float(norm)) for t, g in zip(total, each, strict=True)]
    return torch.stack(norms), total


def assert_agree(
    gradients: RecordGradients,
    expected: tuple[Tensor, list[Tensor]],
    batch: tuple[Tensor, Tensor],
    clip: float,
) -> None:
    norms, total = expected
    torch.testing.assert_close(gradients.norms(batch).double(), norms, rtol=1e-4, atol=1e-6)
    for found, wanted in zip(gradients.clipped_sum(batch, clip), total, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-3, atol=1e-4)


@every
@pytest.mark.parametrize("physical_batch", [None, 4])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_against_a_loop(each: Each, physical_batch: int | None, reduction: str) -> None:
    module, batch = network()
    loss = nn.CrossEntropyLoss(reduction=reduction)
    norms, _ = by_loop(module, loss, batch, 1.0)
    clip = float(norms.median())  # some are clipped, some are not
    gradients = RecordGradients(module, loss, physical_batch, each)
    assert_agree(gradients, by_loop(module, loss, batch, clip), batch, clip)


@every
def test_a_clipped_gradient_is_never_longer_than_the_clip(each: Each) -> None:
    module, (x, y) = network()
    gradients = RecordGradients(module, F.cross_entropy, None, each)
    for i in range(len(x)):
        total = gradients.clipped_sum((x[i : i + 1], y[i : i + 1]), 0.1)
        norm = torch.cat([t.double().flatten() for t in total]).norm()
        assert 0.0999 < float(norm) <= 0.1


@every
def test_tied_weights_and_words(each: Each) -> None:
    """A weight that is used twice has one gradient: the sum."""

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = nn.Embedding(7, 5)
            self.outside = nn.Linear(5, 7, bias=False)
            self.outside.weight = self.inside.weight

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.outside(self.inside(x).mean(1))
            return out

    torch.manual_seed(0)
    module, batch = Words(), (torch.randint(7, (6, 4)), torch.randint(7, (6,)))
    gradients = RecordGradients(module, F.cross_entropy, None, each)
    assert_agree(gradients, by_loop(module, F.cross_entropy, batch, 0.5), batch, 0.5)


@every
def test_an_empty_batch_has_the_sum_zero(each: Each) -> None:
    module, (x, y) = network()
    gradients = RecordGradients(module, F.cross_entropy, None, each)
    assert all(not t.any() for t in gradients.clipped_sum((x[:0], y[:0]), 1.0))
    assert len(gradients.norms((x[:0], y[:0]))) == 0


@every
def test_the_module_stays_plain(each: Each) -> None:
    """Between calls no weight, layer or file carries what was computed of single records."""
    module, batch = network()
    before = {name for layer in module.modules() for name in vars(layer)}
    gradients = RecordGradients(module, F.cross_entropy, None, each)
    gradients.norms(batch)
    gradients.clipped_sum(batch, 1.0)
    with pytest.raises(RuntimeError):
        gradients.norms((batch[0][:, :, :4, :4], batch[1]))  # a pass that fails half-way
    assert {name for layer in module.modules() for name in vars(layer)} == before
    assert all(not vars(weight) and weight.grad is None for weight in module.parameters())
    assert not any(layer._forward_hooks or layer._backward_hooks for layer in module.modules())
    torch.save(module, io.BytesIO())
    assert_agree(gradients, by_loop(module, F.cross_entropy, batch, 1.0), batch, 1.0)


@every
def test_mixed_precision_clips_in_double_precision(each: Each) -> None:
    """What is summed is bounded by the clip, though half precision computed it."""
    module, (x, y) = network()
    module[5] = nn.Identity()  # torch 2.13 has no LayerNorm in half precision under vmap on a CPU
    gradients = RecordGradients(module, F.cross_entropy, None, each)
    with torch.autocast("cpu", torch.bfloat16):
        norms = gradients.norms((x, y))
        alone = [gradients.clipped_sum((x[i : i + 1], y[i : i + 1]), 0.1) for i in range(len(x))]
        together = gradients.clipped_sum((x, y), 0.1)
    assert norms.dtype == together[0].dtype == torch.float64
    torch.testing.assert_close(
        norms.double(), by_loop(module, F.cross_entropy, (x, y), 1.0)[0], rtol=0.1, atol=0.0
    )
    for total in alone:
        assert float(torch.cat([t.double().flatten() for t in total]).norm()) <= 0.1
    for k, whole in enumerate(together):  # the sum itself is not rounded to half precision
        parts = torch.stack([total[k] for total in alone]).sum(0)
        assert float((whole - parts).abs().max()) < 0.02 * float(parts.abs().max()) + 1e-4


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@every
def test_on_a_gpu(each: Each) -> None:
    module, (x, y) = network()
    expected = by_loop(module, F.cross_entropy, (x, y), 1.0)
    gradients = RecordGradients(module.cuda(), F.cross_entropy, 4, each)
    batch = x.cuda(), y.cuda()
    torch.testing.assert_close(
        gradients.norms(batch).cpu().double(), expected[0], rtol=1e-2, atol=0
    )
    for found, wanted in zip(gradients.clipped_sum(batch, 1.0), expected[1], strict=True):
        torch.testing.assert_close(found.cpu().double(), wanted, rtol=1e-2, atol=1e-2)
