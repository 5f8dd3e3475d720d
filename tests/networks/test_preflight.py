"""What a network is tried on before its first step, and what is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from bdpvi import PrivacyUtilityWarning, make_private
from bdpvi.networks import DPSGDSettings
from bdpvi.networks.gradients import one_by_one
from bdpvi.networks.private import Private
from bdpvi.privacy import Assumption

LENGTH, WORDS, CLASSES = 4, 9, 3
Batch = tuple[Any, Tensor]


def private(module: nn.Module, data: Any, **options: Any) -> Private:
    loss = options.pop("loss", F.cross_entropy)
    rate = options.pop("rate", 0.5)
    return make_private(
        module, torch.optim.SGD(module.parameters(), lr=0.1), loss=loss, data=data, rate=rate,
        max_grad_norm=1.0, noise_multiplier=1.0,
        settings=DPSGDSettings(**options),
    )  # fmt: skip


class First(nn.Module):
    """The output of a layer that has several."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inside(x)[0]
        return out


class Sum(nn.Module):
    """A record sees all before it."""

    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(0)


# --------------------------------------------------------------------------- known faults


class Seen(nn.Module):
    """Keeps what its first input held at last, outside vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, CLASSES), nn.Linear(2, CLASSES)

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        out: Tensor = self.one(one) - 2 * self.two(two)
        return out


class Named(Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> Any:
        generator = torch.Generator().manual_seed(i)
        two, one = torch.randn(2, generator=generator), torch.randn(3, generator=generator)
        return {"two": two, "one": one}, i % CLASSES


def test_inputs_by_name_stay_named() -> None:
    data = Named()
    x = {name: torch.stack([data[i][0][name] for i in range(40)]) for name in ("two", "one")}
    y = torch.arange(40) % CLASSES
    module = Seen()
    found = []
    for source in (data, (x, y), ((x["one"], x["two"]), y)):
        made = private(copy.deepcopy(module), source, records=40, seed=0)
        made.step()
        found.append(nn.utils.parameters_to_vector(made.module.parameters()))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_items_that_are_no_pairs_are_refused() -> None:
    class Items(Named):
        def __getitem__(self, i: int) -> Any:
            x, y = super().__getitem__(i)
            return {**x, "label": y}

    with pytest.raises(ValueError, match="data has items of dict, and needs pairs"):
        private(Seen(), Items())
    with pytest.raises(ValueError, match="unexpected keyword argument 'third'"):
        private(Seen(), ({"third": torch.zeros(9, 3)}, torch.zeros(9).long()))


class Words(nn.Module):
    def __init__(self, tied: bool = False, padding: int = 5) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 4, padding_idx=padding)
        self.out = nn.Linear(4, WORDS, bias=False)
        if tied:
            self.out.weight = self.table.weight

    def forward(self, words: Tensor) -> Tensor:
        out: Tensor = self.out(self.table(words).mean(1))
        return out


def padded() -> Batch:
    words = torch.randint(WORDS, (40, 6), generator=torch.Generator().manual_seed(0))
    words[:, 3:] = 5
    return words, words[:, 0]


def test_a_padding_row_stays_put() -> None:
    """Autograd gives it no gradient."""
    module = Words()
    made = private(module, padded())
    others = module.table.weight[6].clone()
    for _ in range(3):
        made.step()
    assert not module.table.weight[5].any()
    assert not torch.equal(module.table.weight[6], others)


def test_a_padding_row_that_is_tied_to_an_output_is_trained() -> None:
    module = Words(tied=True)
    made = private(module, padded())
    made.step()
    assert bool(module.table.weight[5].any())


def test_a_weight_that_is_not_used_gets_no_noise() -> None:
    module = nn.Linear(5, 3)
    module.idle = nn.Parameter(torch.ones(2))
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    made = private(module, (x, torch.arange(40) % 3))
    made.step()
    assert module.idle.tolist() == [1.0, 1.0]


class Places(nn.Module):
    """A table by position, as long as a batch of records that it is tried on might be."""

    def __init__(self, places: int) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(places, 4), nn.Linear(4, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(self.table.num_embeddings)
        out: Tensor = self.out((x[:, :, None] * self.table(places)).sum(1))
        return out


@pytest.mark.parametrize("places", [3, 4, 5, 7, 8])
def test_a_table_by_position_trains(places: int) -> None:
    x = torch.randn(40, places, generator=torch.Generator().manual_seed(0))
    private(Places(places), (x, torch.arange(40) % 3)).step()


class Behind(nn.Module):
    def __init__(self, mixing: nn.Module, width: int) -> None:
        super().__init__()
        self.mixing, self.out = mixing, nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.mixing(x))
        return out


@pytest.mark.parametrize("mixing", [Sum(), First(nn.GRU(5, 5)), First(nn.GRU(5, 5, num_layers=2))])
def test_records_in_the_second_place_are_refused(mixing: nn.Module) -> None:
    """The first record sees no other; all others do."""
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match=r"layer 'mixing.*, which mixes records; records come f"):
        private(Behind(mixing, 5), (x, torch.arange(40) % 3))


def test_no_record_is_looked_at_before_the_first_charge() -> None:
    """Whether a network is refused follows from no value: not even one that breaks the module."""

    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            assert bool(x.isfinite().all())
            out: Tensor = self.inside(x)
            return out

    x = torch.full((200, 5), float("nan"))
    with pytest.warns(PrivacyUtilityWarning, match="one record after the other"):
        private(Picky(), (x, torch.arange(200) % 3), panel=(x[:100], torch.arange(100) + 3))


def test_a_module_that_needs_other_values_has_an_example() -> None:
    class From(nn.Module):
        """Words are numbered from 10."""

        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(WORDS, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.out(self.table(x - 10).mean(1))
            return out

    x = 10 + torch.randint(WORDS, (40, 6), generator=torch.Generator().manual_seed(0))
    data = x, torch.arange(40) % 3
    with pytest.raises(ValueError, match=r"on made-up records .*as settings.example"):
        private(From(), data)
    example = torch.arange(10, 16).repeat(5, 1), torch.arange(5) % 3
    private(From(), data, example=example).step()


class Centred(torch.autograd.Function):
    """Changes nothing, but under torch.vmap, where it centres records among themselves."""

    generate_vmap_rule = False

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> Tensor:
        return given[0]

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> tuple[Tensor, int]:
        return Centred.apply(x - x.mean(in_dims[0], keepdim=True)), in_dims[0]  # type: ignore[no-untyped-call]


class Mixing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(5, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.two(Centred.apply(self.one(x)))  # type: ignore[no-untyped-call]
        return out


def test_gradients_that_differ_from_autograds_are_not_used() -> None:
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    with pytest.warns(PrivacyUtilityWarning, match="differ from autograd's by torch.vmap"):
        made = private(Mixing(), (x, torch.arange(40) % 3))
    assert made._gradients.each is one_by_one


# --------------------------------------------------------------------------- dropout


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(1, 8), nn.Linear(8, CLASSES)
        self.inside = nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.inside(self.first(x[..., None])).mean(1))
        return out


def dropped() -> nn.Module:
    return nn.Sequential(
        nn.Linear(5, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, CLASSES)
    )  # fmt: skip


@pytest.mark.parametrize("kind", [dropped, Encoder])
@pytest.mark.parametrize("times", [3, pytest.param(1000, marks=pytest.mark.slow)])
def test_dropout_is_never_refused(kind: Callable[[], nn.Module], times: int) -> None:
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    for seed in range(times):
        torch.manual_seed(seed)
        private(kind(), (x, torch.arange(40) % 3))


# --------------------------------------------------------------------------- N


@pytest.mark.parametrize("rows", [37, 40, 45])
def test_the_number_of_records_has_no_part_in_a_step(rows: int) -> None:
    """One step of weights in float64 gave N exactly, as the sum was divided by q N."""
    x = torch.zeros(rows, 5, dtype=torch.float64)
    module = nn.Linear(5, 3, bias=False).double()
    made = private(module, (x, torch.arange(rows) % 3), rate=1.0, seed=1)
    made.step()
    assert made.mechanism.records == 32
    other = private(
        copy.deepcopy(module), (torch.zeros(33, 5).double(), torch.arange(33) % 3), rate=1.0, seed=1
    )
    other.step()
    assert torch.equal(module.weight.grad, other.module.weight.grad)  # type: ignore[arg-type]


def test_what_a_guarantee_assumes_of_the_number_of_records_is_said() -> None:
    x, y = torch.randn(40, 5, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3
    said = "power of two that is nearest to the number of records is public"
    for declared in (None, 50):
        made = private(nn.Linear(5, 3), (x, y), records=declared)
        made.step()
        for bound in (made.worst_case(1e-5), made.cost(1e-5).worst_case):
            assert bound is not None
            assert (said in bound.meaning) is (declared is None)
            assert (Assumption.ROUNDED_SIZE in bound.assumptions) is (declared is None)
        assert made.mechanism.records == (declared or 32)
