"""Which torch networks train privately, and how: a table for docs/how-to/from-other-libraries.md.

    python benchmarks/networks_trained.py

"yes" means that the norm of every record's gradient is autograd's to 1e-6 and that a step was
taken, "slowly" by one record after the other; "no" that the network was refused, with nothing
charged. Opacus is asked with its own strict checks, in its mode "hooks"; "differs" means that it
trains with other norms than autograd's.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from bdpvi import Ledger, make_private
from bdpvi.networks import DPSGDSettings
from bdpvi.networks.gradients import by_vmap

WORDS, WIDTH, CLASSES, ROWS, NEAR = 9, 8, 3, 40, 1e-6
Batch = tuple[Tensor, Tensor]


class Pipe(nn.Module):
    """Layers on embedded words, then their mean and a linear layer."""

    def __init__(self, inside: nn.Module, padding: int | None = None, width: int = WIDTH) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH, padding_idx=padding)
        self.inside, self.out = inside, nn.Linear(width, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        """Return the outputs, records first."""
        out = self.inside(self.table(words))
        result: Tensor = self.out((out[0] if isinstance(out, tuple) else out).mean(1))
        return result


class Attention(nn.Module):
    """An attention layer of a sequence to itself."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs, records first."""
        out: Tensor = self.inside(x, x, x)[0]
        return out


class Adapted(nn.Module):
    """A frozen linear layer plus a trained one of low rank."""

    def __init__(self, inputs: int, outputs: int, rank: int = 2) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.down = nn.Linear(inputs, rank, bias=False)
        self.up = nn.Linear(rank, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs, records first."""
        out: Tensor = self.base(x) + self.up(self.down(x))
        return out


class Tied(nn.Module):
    """A table of words that is also the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.out.weight = self.table.weight

    def forward(self, words: Tensor) -> Tensor:
        """Return the outputs, records first."""
        out: Tensor = self.out(self.table(words).mean(1))
        return out


class Again(nn.Module):
    """A layer whose activations are computed again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.out = nn.Linear(6, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs, records first."""
        out: Tensor = self.out(checkpoint(self.inside, x, use_reentrant=False))
        return out


class Block(nn.Module):
    """Convolutions as in current image networks: depthwise, with gates for channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(2, channels)
        self.deep = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.point = nn.Conv2d(channels, channels, 1)
        self.gates = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, 2, 1), nn.SiLU(),
            nn.Conv2d(2, channels, 1), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs, records first."""
        inner = self.point(self.deep(F.silu(self.norm(self.first(x)))))
        out: Tensor = x + inner * self.gates(inner)
        return out


def dense() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))


def images(norm: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), norm, Block(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4, CLASSES),
    )  # fmt: skip


def of_opacus(name: str, *given: int, **options: Any) -> nn.Module:
    from opacus import layers

    made: nn.Module = getattr(layers, name)(*given, **options)
    return made


def adam(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(module.parameters(), lr=0.01)


def grouped(module: nn.Module) -> torch.optim.Optimizer:
    """Return an optimiser with other settings for biases."""
    biases = [w for w in module.parameters() if w.ndim == 1]
    others = [w for w in module.parameters() if w.ndim > 1]
    groups = [{"params": others, "weight_decay": 0.01}, {"params": biases, "lr": 0.1}]
    return torch.optim.AdamW(groups, lr=0.01)


@dataclass(frozen=True)
class Kind:
    """A kind of network.

    Attributes:
        make: returns one.
        inputs: what it takes: "numbers", "images" or "words".
        optimizer: returns its optimiser.
        around: what is around a step.
        near: largest relative difference of norms; they are compared in float64 if it is small.
    """

    make: Callable[[], nn.Module]
    inputs: str = "numbers"
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = adam
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    near: float = NEAR


def _former() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, 0.0, batch_first=True)
    return Pipe(nn.TransformerEncoder(layer, 2))


KINDS: Mapping[str, Kind] = {
    "`Linear`, `LayerNorm`, activations": Kind(
        lambda: nn.Sequential(nn.Linear(6, WIDTH), nn.LayerNorm(WIDTH), nn.GELU(), nn.Linear(8, 3))
    ),
    "several parameter groups": Kind(dense, optimizer=grouped),
    "frozen parts, low-rank adapters": Kind(
        lambda: nn.Sequential(Adapted(6, WIDTH), nn.GELU(), nn.Linear(WIDTH, CLASSES))
    ),
    "`Conv2d`, depthwise too, and `GroupNorm`": Kind(lambda: images(nn.GroupNorm(2, 4)), "images"),
    "`BatchNorm2d` in training": Kind(lambda: images(nn.BatchNorm2d(4)), "images"),
    "`BatchNorm2d` frozen by `eval()`": Kind(lambda: images(nn.BatchNorm2d(4).eval()), "images"),
    "`Embedding`": Kind(lambda: Pipe(nn.Identity()), "words"),
    "`Embedding(padding_idx=)`": Kind(lambda: Pipe(nn.Identity(), padding=0), "words"),
    "`EmbeddingBag`": Kind(
        lambda: nn.Sequential(nn.EmbeddingBag(WORDS, WIDTH), nn.Linear(WIDTH, CLASSES)), "words"
    ),
    "`MultiheadAttention`": Kind(
        lambda: Pipe(Attention(nn.MultiheadAttention(WIDTH, 2, batch_first=True))), "words"
    ),
    "`opacus.layers.DPMultiheadAttention`": Kind(
        lambda: Pipe(Attention(of_opacus("DPMultiheadAttention", WIDTH, 2, batch_first=True))),
        "words",
    ),
    "`TransformerEncoder`": Kind(_former, "words"),
    "`GRU`, `LSTM`, `RNN`": Kind(lambda: Pipe(nn.LSTM(WIDTH, WIDTH, batch_first=True)), "words"),
    "`opacus.layers.DPGRU`, `DPLSTM`, `DPRNN`": Kind(
        lambda: Pipe(of_opacus("DPLSTM", WIDTH, WIDTH, batch_first=True)), "words"
    ),
    "tied weights": Kind(Tied, "words"),
    "`parametrizations.weight_norm`": Kind(
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, CLASSES))
    ),
    "`torch.compile`": Kind(lambda: torch.compile(dense(), backend="eager")),  # type: ignore[arg-type,return-value]
    "`torch.jit.script`": Kind(lambda: torch.jit.script(dense())),
    "`torch.utils.checkpoint`": Kind(Again),
    "`torch.autocast` around a step": Kind(
        dense, around=lambda: torch.autocast("cpu", torch.bfloat16)
    ),
    "weights in half precision": Kind(lambda: dense().bfloat16(), near=0.02),
}


def records(inputs: str, kind: torch.dtype) -> Batch:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(CLASSES, (ROWS,), generator=generator)
    if inputs == "words":
        return torch.randint(WORDS, (ROWS, 5), generator=generator), y
    shape = (6,) if inputs == "numbers" else (3, 8, 8)
    return torch.randn(ROWS, *shape, generator=generator).to(kind), y


def by_autograd(module: nn.Module, batch: Batch) -> Tensor:
    """Return the norm of each record's gradient, a backward pass for each."""
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    found = []
    for x, y in zip(*batch, strict=True):
        parts = torch.autograd.grad(F.cross_entropy(module(x[None]), y[None]), weights)
        found.append(torch.cat([part.flatten() for part in parts]).norm())
    return torch.stack(found)


def ours(kind: Kind) -> tuple[str, str]:
    """Return "yes", "slowly", "no" or "differs", and the refusal."""
    torch.manual_seed(1)  # not the records' own
    module = kind.make()
    module = module.double() if kind.near == NEAR else module
    batch, ledger = records(kind.inputs, next(module.parameters()).dtype), Ledger()
    try:
        private = make_private(
            module, kind.optimizer(module), loss=F.cross_entropy, data=batch, rate=0.5,
            max_grad_norm=1.0, noise_multiplier=1.0,
            settings=DPSGDSettings(ledger=ledger, records=ROWS),
        )  # fmt: skip
        norms = private._gradients.norms(batch)
        wanted = by_autograd(module, batch)
        with kind.around():
            private.step()
    except ValueError as error:
        return ("charged" if ledger.entries() else "no"), str(error)
    if not torch.allclose(norms.to(wanted), wanted, rtol=kind.near, atol=0.0):
        return "differs", ""
    return ("yes" if private._gradients.each is by_vmap else "slowly"), ""


@contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def opacus(kind: Kind) -> str:
    """Return the same of Opacus, in its mode "hooks"."""
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(1)  # not the records' own
    try:
        module = kind.make()
        module = module.double() if kind.near == NEAR else module
        batch = records(kind.inputs, next(module.parameters()).dtype)
        plain = copy.deepcopy(module)
        wrapped, optimizer, _ = PrivacyEngine().make_private(
            module=module, optimizer=kind.optimizer(module),
            data_loader=DataLoader(TensorDataset(*batch), batch_size=ROWS),
            noise_multiplier=1.0, max_grad_norm=1.0, poisson_sampling=False,
        )  # fmt: skip
        F.cross_entropy(wrapped(batch[0]), batch[1]).backward()
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in optimizer.grad_samples]).norm(dim=0)
        wanted = by_autograd(plain, batch)
        optimizer.zero_grad()
        with kind.around():
            F.cross_entropy(wrapped(batch[0]), batch[1]).backward()
            optimizer.step()
    except Exception:
        return "no"
    return "yes" if torch.allclose(norms, wanted, rtol=kind.near, atol=0.0) else "differs"


def rows() -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| network | bdpvi | Opacus |"
    yield "| --- | --- | --- |"
    for name, kind in KINDS.items():
        with quiet():
            yield f"| {name} | {ours(kind)[0]} | {opacus(kind)} |"


if __name__ == "__main__":
    torch.set_num_threads(1)
    for row in rows():
        print(row, flush=True)
