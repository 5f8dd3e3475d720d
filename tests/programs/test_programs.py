"""A model and a guide as a sum over records: against Pyro's own ELBO, closed forms, quadrature."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import (
    RenyiELBO,
    Trace_ELBO,
    TraceMeanField_ELBO,
)
from pyro.infer.autoguide import (
    AutoMultivariateNormal,
    AutoNormal,
)
from pyro.optim import Adam
from torch import Tensor, nn
from torch.distributions import constraints

import bdpvi
from bdpvi import guides
from bdpvi._ground.isolation import isolated
from bdpvi.models.misfits import MisfitError
from bdpvi.noise.keys import Key
from bdpvi.noise.secure import stir
from bdpvi.programs import descent
from bdpvi.programs.arguments import Arguments
from bdpvi.programs.descent import Descent, GradientClip
from bdpvi.programs.moments import moments
from bdpvi.programs.program import Draw, Program
from bdpvi.programs.reading import read
from bdpvi.releases.noisy_sum import NoisySum

pytestmark = pytest.mark.usefixtures("in_double")

N = 40


def table() -> tuple[Tensor, Tensor]:
    x = torch.randn(N, 3)
    x[:, 2] = torch.arange(N) % 4
    return x, x[:, 0] + 0.5 * torch.randn(N)


def plain(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    s = pyro.sample("s", dist.LogNormal(0.0, 1.0))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(x[:, :2] @ w, s), obs=y)


def by_hand(x: Tensor, y: Tensor | None = None) -> None:
    loc = pyro.param("loc", torch.zeros(2))
    scale = pyro.param("scale", torch.full((2,), 0.3), constraint=constraints.positive)
    pyro.sample("w", dist.Normal(loc, scale).to_event(1))
    pyro.sample("s", dist.LogNormal(pyro.param("a", torch.tensor(0.1)), 0.2))


def argued(*args: Any) -> Arguments:
    return Arguments.of(args, {})


def by_size(x: Tensor, y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("records", N, subsample_size=7) as at:
        pyro.sample("y", dist.Normal(x[at, :2] @ w, 1.0), obs=y[at])


def by_batch(x: Tensor, y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("records", 1000, subsample=x):
        pyro.sample("y", dist.Normal(x[:, :2] @ w, 1.0), obs=y)


def by_length(x: Tensor, y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("records", N):
        pyro.sample("y", dist.Normal(x[:, :2] @ w, 1.0), obs=y)


def one_by_one(x: Tensor, y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    for i in pyro.plate("records", len(x)):
        pyro.sample(f"y{i}", dist.Normal(x[i, :2] @ w, 1.0), obs=y[i])


@pytest.mark.parametrize("model", [by_size, by_batch, by_length, one_by_one])
def test_a_plates_size_has_no_part_in_a_record(model: Any) -> None:
    x, y = table()
    program = read(model, AutoNormal(model), Trace_ELBO(), argued(x, y))
    draw = program.draw()
    expected = -(y - x[:, :2] @ draw.latents.detach())[:, None] * x[:, :2]
    torch.testing.assert_close(program.gradients(draw, (x, y)), expected)


class Factor(nn.Module):
    """z ~ N(0, 1), y ~ N(az, 1), guide N(by, s²): the ELBO has a closed form."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(0.8))
        self.b = nn.Parameter(torch.tensor(0.3))

    def model(self, y: Tensor) -> None:
        pyro.module("factor", self)
        with pyro.plate("records", len(y)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(self.a * z, 1.0), obs=y)

    def guide(self, y: Tensor) -> None:
        pyro.module("factor", self)
        s = pyro.param("s", torch.tensor(0.5), constraint=constraints.positive)
        with pyro.plate("records", len(y)):
            pyro.sample("z", dist.Normal(self.b * y, s))


def test_a_records_own_latents_are_drawn_from_its_own_guide() -> None:
    factor, seen = Factor(), 1.7
    y = torch.full((40_000,), seen)
    program = read(factor.model, factor.guide, Trace_ELBO(), argued(y))
    assert program.local
    assert program.dim == 0
    each = program.gradients(program.draw(), (y,))
    a, b, s = 0.8, 0.3, 0.5
    # −ELBO = ½(y − aby)² + ½a²s² + ½(b²y² + s²) − log s + constant
    expected = {
        "a": -(seen - a * b * seen) * b * seen + a * s**2,
        "b": -(seen - a * b * seen) * a * seen + b * seen**2,
        "s": (a**2 * s + s - 1 / s) * s,  # in log s
    }
    for at, name in enumerate(program.direct):
        mean, error = float(each[:, at].mean()), float(each[:, at].std()) / math.sqrt(len(y))
        assert abs(mean - expected[name.split("$")[-1]]) < 5 * error + 1e-9


def test_moments_are_the_guides() -> None:
    x, y = table()
    program = read(plain, by_hand, Trace_ELBO(), argued(x, y))
    mean, variances = moments(program)
    torch.testing.assert_close(mean, torch.tensor([0.0, 0.0, 0.1]))
    torch.testing.assert_close(variances, torch.tensor([0.09, 0.09, 0.04]))
    pyro.clear_param_store()
    guide = AutoMultivariateNormal(plain, init_scale=0.2)
    program = read(plain, guide, Trace_ELBO(), argued(x, y))
    _, covariance = moments(program)
    torch.testing.assert_close(covariance, 0.04 * torch.eye(3))


def dependent(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(pyro.param("loc", torch.zeros(2)), 0.3).to_event(1))
    pyro.sample("s", dist.LogNormal(w[0], 0.2))


def test_moments_refuse_sites_that_depend_on_each_other() -> None:
    program = read(plain, dependent, Trace_ELBO(), argued(*table()))
    with pytest.raises(ValueError, match="not Gaussian on the unconstrained scale"):
        moments(program)


# Refusals: the site is named, and what to do.


def plateless(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    pyro.sample("y", dist.Normal(x @ w, 1.0).to_event(1), obs=y)


OUTSIDE = torch.randn(N)


def outside(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("records", N) as at:
        pyro.sample("y", dist.Normal(w, 1.0), obs=OUTSIDE[at])


def outside_whole(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(w, 1.0), obs=OUTSIDE)


def local(x: Tensor, y: Tensor | None = None) -> None:
    with pyro.plate("records", len(x)):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(z, 1.0), obs=y)


def entries(x: Tensor, y: Tensor | None = None) -> None:
    loc = pyro.param("loc", torch.zeros(N))
    with pyro.plate("records", N) as at:
        pyro.sample("z", dist.Normal(loc[at], 1.0))


def local_by_size(x: Tensor, y: Tensor | None = None) -> None:
    with pyro.plate("records", N) as at:
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(z, 1.0), obs=None if y is None else y[at])


REFUSED: list[tuple[Any, Any, str]] = [
    (plateless, AutoNormal, "observed site 'y' is in no plate over the records"),
    (outside_whole, AutoNormal, "observed site 'y' has 40 entries for one record"),
    (local_by_size, lambda _: entries, "parameter 'loc' has an entry for each record"),
]


@pytest.mark.parametrize(("model", "guide", "message"), REFUSED)
def test_what_cannot_be_protected_is_refused_by_name(model: Any, guide: Any, message: str) -> None:
    model = model() if isinstance(model, type) else model
    with pytest.raises(ValueError, match=rf"(?s){message}"):
        read(model, guide(model), Trace_ELBO(), argued(*table()))


class Centres(nn.Module):
    """Takes the mean over records away."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(1, 8), nn.Linear(8, 1)
        self.inside = nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.inside(self.first(x[..., None])).mean(1))
        return out


def dropped(*inside: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.5), *inside, nn.Linear(4, 1)
    )  # fmt: skip


def read_network(net: nn.Module) -> Program:
    pyro.clear_param_store()

    def model(x: Tensor, y: Tensor) -> None:
        pyro.module("net", net)
        s = pyro.sample("s", dist.LogNormal(x.new_zeros(()), 1.0))
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Normal(net(x)[:, 0], s), obs=y)

    def guide(x: Tensor, y: Tensor) -> None:
        pyro.sample("s", dist.LogNormal(pyro.param("loc", torch.zeros(())), 0.1))

    x = torch.randn(N, 3, generator=torch.Generator().manual_seed(0))
    return read(model, guide, Trace_ELBO(), argued(x, x[:, 0]))


@pytest.mark.parametrize("kind", [dropped, Encoder])
@pytest.mark.parametrize("times", [20, pytest.param(1000, marks=pytest.mark.slow)])
def test_dropout_is_never_refused(kind: Callable[[], nn.Module], times: int) -> None:
    """Two runs of a network that drops half its units are alike in one of sixteen."""
    for seed in range(times):
        torch.manual_seed(seed)
        read_network(kind())


@pytest.mark.parametrize("seed", range(20))
def test_a_network_that_mixes_records_behind_dropout_is_refused(seed: int) -> None:
    torch.manual_seed(seed)
    net = dropped(Centres())
    with torch.no_grad():
        for layer in (net.get_submodule("0"), [*net.children()][-1]):
            layer.get_parameter("weight").abs_().add_(1.0)
    with pytest.raises(MisfitError, match="mixes records"):
        read_network(net)


def test_losses_that_are_no_sum_over_records_are_refused() -> None:
    with pytest.raises(ValueError, match="loss=RenyiELBO: a private step needs"):
        read(plain, AutoNormal(plain), RenyiELBO(), argued(*table()))
    with pytest.raises(ValueError, match="num_particles=3"):
        read(plain, AutoNormal(plain), Trace_ELBO(num_particles=3), argued(*table()))
    assert read(plain, AutoNormal(plain), TraceMeanField_ELBO(), argued(*table())).dim == 3


def test_what_was_trained_before_is_refused() -> None:
    x, y = table()
    guide = AutoNormal(plain)
    guide(x, y)
    with pytest.raises(ValueError, match="this AutoNormal has been run"):
        read(plain, guide, Trace_ELBO(), argued(x, y))
    by_hand(x, y)
    with pytest.raises(ValueError, match=r"is in Pyro's store already.*clear_param_store"):
        read(plain, by_hand, Trace_ELBO(), argued(x, y))


def two_plates(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("one", 1, dim=-2), pyro.plate("records", len(x), dim=-1):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def test_the_plate_is_asked_for_where_several_could_be_it() -> None:
    with pytest.raises(ValueError, match="plate: 'one' and 'records' could each be"):
        read(two_plates, AutoNormal(two_plates), Trace_ELBO(), argued(*table()))
    pyro.clear_param_store()
    made = read(two_plates, AutoNormal(two_plates), Trace_ELBO(), argued(*table()), "records")
    assert made.plate == "records"


def components(x: Tensor, y: Tensor | None = None) -> None:
    with pyro.plate("others", N):  # as many as records, by chance
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    pyro.factor("soft", -mu.square().sum())
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(mu[0] + x[:, 0], 1.0), obs=y)


def test_a_plate_of_as_many_entries_by_chance_is_none_over_records() -> None:
    x, y = table()
    program = read(components, AutoNormal(components), Trace_ELBO(), argued(x, y))
    assert program.plate == "records"
    assert program.sites[0].shape == (N,)
    draw = program.draw()
    found = program.gradients(draw, (x, y))
    # what lies outside the plate, a factor too, is no part of a record
    expected = torch.zeros(N, N)
    expected[:, 0] = -(y - draw.latents.detach()[0] - x[:, 0])
    torch.testing.assert_close(found, expected)


def test_a_parameter_of_two_names_is_trained_once() -> None:
    network = nn.Linear(2, 1)

    def twice(x: Tensor, y: Tensor | None = None) -> None:
        pyro.module("one", network)
        pyro.module("other", network)
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Normal(network(x[:, :2]).squeeze(-1), 1.0), obs=y)

    program = read(twice, lambda x, y: None, Trace_ELBO(), argued(*table()))
    assert len(program.parameters) == 2


def test_constants_are_those_of_the_last_call_and_records_those_of_the_first() -> None:
    x, y = table()
    first = Arguments.of((x, y, 0.5), {})
    again = first.following(Arguments.of((x.clone(), y.clone(), 1.0), {}))
    assert again.constants == (1.0,)
    assert again.tables[0] is x
    holes = x.clone()
    holes[3, 1] = torch.nan
    blank = Arguments.of((holes, y), {})
    blank.following(Arguments.of((holes.clone(), y), {}))
    for other in (x.index_add(0, torch.tensor([2]), torch.ones(1, x.shape[1])), x.half()):
        with pytest.raises(ValueError, match="other records than in the first call: hand over"):
            first.following(Arguments.of((other, y, 0.5), {}))


def test_what_records_draw_does_not_follow_from_what_latents_drew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The parameters may reveal a step's latents, and with them the seed of these."""
    followed = []

    def summed(program: Program, *rest: Any) -> tuple[Tensor, int]:
        followed.append(float(torch.rand(())))
        return torch.zeros(program.size, dtype=torch.float64), 0

    monkeypatch.setattr(descent, "clipped_sum", summed)
    monkeypatch.setattr(NoisySum, "seed_of", lambda mechanism, step: 5)
    drawn = []
    for _ in range(2):
        pyro.clear_param_store()
        program = read(plain, AutoNormal(plain), Trace_ELBO(), argued(*table()))
        mechanism = NoisySum(
            rate=0.5, clip=1.0, noise_multiplier=1.0, size=program.size, records=1, length=4
        )
        made = Descent(program, Adam({"lr": 0.1}), mechanism, GradientClip(bound=1.0))
        drawn.append(made.step(0)[0])
    assert torch.equal(drawn[0], drawn[1])
    assert followed[0] != followed[1]


def test_random_numbers_of_a_key_take_all_its_bits() -> None:
    key = Key.of_seed(1)
    drawn = []
    for one in (key, key, Key.of_seed(2)):
        with torch.random.fork_rng():
            stir(one, torch.device("cpu"))
            drawn.append(torch.randn(5000))
    assert torch.equal(drawn[0], drawn[1])
    assert abs(float(torch.corrcoef(torch.stack(drawn[1:]))[0, 1])) < 5 / math.sqrt(5000)
    assert abs(float(drawn[0].mean())) < 5 / math.sqrt(5000)
    assert float(drawn[0].std()) == pytest.approx(1, abs=0.06)


@pytest.mark.parametrize(
    "model",
    [
        bdpvi.BayesianLogisticRegression.unweighted(intercept=True, limit=1.5),
        bdpvi.BayesianLogisticRegression(clip=0.4, correlation=0.3),
        bdpvi.BayesianLogisticRegression(weight_norm=0.7, intercept=True),
    ],
)
def test_logistic_gradients_in_closed_form_are_those_of_the_traced_model(model: Any) -> None:
    generator = torch.Generator().manual_seed(3)
    x = 2 * torch.randn(7, 4, generator=generator, dtype=torch.float64)
    y = torch.tensor([1.0, 0, 0, 1, 1, 0, 1], dtype=torch.float64)
    with isolated(x, 0):
        guide = guides.FullRank(model)
        guide.setup(x, y)
        program = read(model, guide, Trace_ELBO(), Arguments.of((x, y), {}))
        point = torch.randn(program.dim, generator=generator, dtype=torch.float64)
        draw, rows = (
            Draw(point, {}, x.new_zeros(())),
            next(program.arguments.source.every()).read(torch.arange(7)),
        )
        closed = program.gradients(draw, rows)
        assert program._closed
        program.__dict__["_closed"] = False
        traced = program.gradients(draw, rows)
    torch.testing.assert_close(closed, traced, rtol=1e-12, atol=1e-14)
