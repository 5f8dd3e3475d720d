"""What bdpvi.check finds, one model for each thing; and that it lets good models pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoNormal
from pyro.nn import PyroModule, PyroSample
from simulated import logistic_data
from torch import Tensor

import bdpvi
from bdpvi.federated.parties import Server
from bdpvi.guides import Laplace, LowRank, MeanField
from bdpvi.models.misfits import MisfitError

PASS = "with pyro.plate"


def weights(x: Tensor) -> Tensor:
    w: Tensor = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    return w


def good(x: Tensor, y: Tensor | None = None) -> None:
    mean = x @ weights(x)
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def group_plate(x: Tensor, y: Tensor | None = None) -> None:
    with pyro.plate("hospitals", 4):
        effect = pyro.sample("effect", dist.Normal(0.0, 1.0))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(effect[(x[:, 0] > 0).long()], 1.0), obs=y)


def some_groups(x: Tensor, y: Tensor | None = None) -> None:
    with pyro.plate("hospitals", 4, subsample_size=2):
        effect = pyro.sample("effect", dist.Normal(0.0, 1.0))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(effect[(x[:, 0] > 0).long()], 1.0), obs=y)


def groups_as_many_as_records(x: Tensor, y: Tensor | None = None) -> None:
    with pyro.plate("groups", len(x)):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(z, 1.0), obs=y)


def loop_of_latents(x: Tensor, y: Tensor | None = None) -> None:
    effect = torch.stack(
        [pyro.sample(f"e{i}", dist.Normal(0.0, 1.0)) for i in pyro.plate("loop", 2)]
    )
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(effect[(x[:, 0] > 0).long()], 1.0), obs=y)


def parameter(x: Tensor, y: Tensor | None = None) -> None:
    noise = pyro.param("noise", torch.tensor(1.0), constraint=dist.constraints.positive)
    mean = x @ weights(x)
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(mean, noise), obs=y)


def discrete(x: Tensor, y: Tensor | None = None) -> None:
    k = pyro.sample("k", dist.Bernoulli(0.5))
    mean = k * (x @ weights(x))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def local(x: Tensor, y: Tensor | None = None) -> None:
    mean = x @ weights(x)
    with pyro.plate("records", len(x)):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(mean + z, 1.0), obs=y)


def local_in_disguise(x: Tensor, y: Tensor | None = None) -> None:
    z = pyro.sample("z", dist.Normal(x.new_zeros(len(x)), 1.0).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(z, 1.0), obs=y)


def subsampling(x: Tensor, y: Tensor | None = None) -> None:
    mean = x @ weights(x)
    with pyro.plate("records", len(x), subsample_size=5) as index:
        pyro.sample("y", dist.Normal(mean[index], 1.0), obs=None if y is None else y[index])


def subsampling_by_hand(x: Tensor, y: Tensor | None = None) -> None:
    mean = x @ weights(x)
    with pyro.plate("records", 1000, subsample=torch.arange(len(x))):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def two_plates(x: Tensor, y: Tensor | None = None) -> None:
    mean = x @ weights(x)
    target = None if y is None else torch.stack([y, y])
    with pyro.plate("outputs", 2, dim=-2), pyro.plate("records", len(x), dim=-1):
        pyro.sample("y", dist.Normal(mean.expand(2, -1), 1.0), obs=target)


def wrong_dimension(x: Tensor, y: Tensor | None = None) -> None:
    mean = (x @ weights(x)).unsqueeze(1)
    with pyro.plate("records", len(x), dim=-2):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=None if y is None else y.unsqueeze(1))


def no_plate(x: Tensor, y: Tensor | None = None) -> None:
    pyro.sample("y", dist.Normal(x @ weights(x), 1.0).to_event(1), obs=y)


def in_a_loop(x: Tensor, y: Tensor | None = None) -> None:
    mean = x @ weights(x)
    for i in pyro.plate("records", len(x)):
        pyro.sample(f"y{i}", dist.Normal(mean[i], 1.0), obs=None if y is None else y[i])


def not_observed(x: Tensor, y: Tensor | None = None) -> None:
    mean = x @ weights(x)
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(mean, 1.0))


def scaled(x: Tensor, y: Tensor | None = None) -> None:
    mean = x @ weights(x)
    with pyro.poutine.scale(scale=2.5), pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def masked(x: Tensor, y: Tensor | None = None) -> None:
    mean = x @ weights(x)
    with pyro.plate("records", len(x)), pyro.poutine.mask(mask=x[:, 0] > 0):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def dependent(x: Tensor, y: Tensor | None = None) -> None:
    mean = (x - 0.01 * x.mean(0)) @ weights(x)
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def random_by_itself(x: Tensor, y: Tensor | None = None) -> None:
    mean = x @ weights(x) + torch.randn(len(x))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def prior_of_the_records(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), x.abs().mean(0)).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def not_for_one(x: Tensor, y: Tensor | None = None) -> None:
    mean = (x @ weights(x).unsqueeze(1)).squeeze()[torch.arange(len(x))]
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def needs_targets(x: Tensor, y: Tensor) -> None:
    good(x, y)


def wrong_type(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(3, dtype=torch.float32), 1.0).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(x @ w.double(), 1.0), obs=y)


def all_constants(x: Tensor, y: Tensor | None = None) -> None:
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(x[:, 0], 1.0), obs=y)


class Network(PyroModule):  # type: ignore[misc]
    """A linear layer whose entries are parameters or, if ``bayesian``, latent variables."""

    def __init__(self, bayesian: bool, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.layer = PyroModule[torch.nn.Linear](3, 1, dtype=dtype)
        if bayesian:
            zero, one = torch.zeros((), dtype=dtype), torch.ones((), dtype=dtype)
            prior = dist.Normal(zero, one)
            self.layer.weight = PyroSample(prior.expand([1, 3]).to_event(2))
            self.layer.bias = PyroSample(prior.expand([1]).to_event(1))

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        mean = self.layer(x).squeeze(-1)
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def mixture(x: Tensor, y: Tensor | None = None) -> None:
    share = pyro.sample("share", dist.Dirichlet(x.new_ones(2)))
    means = pyro.sample("means", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
    with pyro.plate("records", len(x)):
        parts = dist.Normal(means.expand(len(x), 2), 1.0)
        choice = dist.Categorical(share.expand(len(x), 2))
        pyro.sample("y", dist.MixtureSameFamily(choice, parts), obs=y)


CASES: list[tuple[Any, str, str]] = [
    (
        some_groups,
        "latent site 'effect' lies in a plate, 'hospitals', with 2 of 4",
        "without sub",
    ),
    (parameter, "parameter 'noise' would be trained", "give it a prior"),
    (Network(bayesian=False), "parameter 'layer.weight' would be trained", "PyroSample"),
    (Network(False, torch.float32), "'layer.bias' of the module is torch.float32", ".double()"),
    (discrete, "latent site 'k' is discrete", "MixtureSameFamily"),
    (local, "latent site 'z' lies in a plate over the records", "sum a record's own variable out"),
    (groups_as_many_as_records, "latent site 'z' has the shape (8,) for some", "must be global"),
    (local_in_disguise, "latent site 'z' has the shape (8,) for some", "must be global"),
    (subsampling, "plate 'records' has 5 entries for 60 records", "leave out subsample_size"),
    (subsampling_by_hand, "plate 'records' has 60 entries", "leave out subsample_size"),
    (two_plates, "observed site 'y' lies in the plates 'outputs' and 'records'", ".to_event(1)"),
    (wrong_dimension, "plate 'records' has 60 entries at dim=-2", "in the last dimension"),
    (no_plate, "observed site 'y' is not inside one pyro.plate", PASS),
    (in_a_loop, "observed site 'y0' is in a loop over plate 'records'", PASS),
    (not_observed, "model observes no site", "obs=y"),
    (not_observed, "latent site 'y' lies in a plate over the records", "obs=y"),
    (scaled, "observed site 'y' is scaled by 2.5", "leave out poutine.scale"),
    (masked, "observed site 'y' is masked by a handler", "dist.Normal(...).mask(m)"),
    (dependent, "observed site 'y' depends on other records", "as public values"),
    (random_by_itself, "observed site 'y' depends on other records", "pyro.sample"),
    (prior_of_the_records, "latent site 'w' has a prior of the records", "neither from x"),
    (not_for_one, "model raised IndexError on one record alone", "any number of records"),
    (needs_targets, "model raised TypeError on records without targets", "y=None"),
    (wrong_type, "latent site 'w' is torch.float32", "x.new_zeros(())"),
    (all_constants, "model has no latent site", "pyro.sample("),
]


@pytest.mark.parametrize(
    ("model", "wrong", "remedy"), CASES, ids=[str(case[1])[:40] for case in CASES]
)
def test_every_misfit_is_named_with_its_remedy(
    model: Any, wrong: str, remedy: str, data: bdpvi.Dataset
) -> None:
    guide = MeanField(model)
    with pytest.raises(MisfitError) as caught:
        bdpvi.check(model, guide, data)
    said = [str(misfit) for misfit in caught.value.misfits]
    assert any(wrong in one and remedy in one.split(wrong)[1] for one in said), said
    with pytest.raises(MisfitError) as same:
        bdpvi.fit(model, guide, data, training=bdpvi.Training(steps=1), progress=False)
    assert str(same.value) == str(caught.value)


def test_each_case_has_no_other_misfit_than_its_own(data: bdpvi.Dataset) -> None:
    for model, *_ in CASES:
        expected = {wrong for one, wrong, _ in CASES if one is model}
        with pytest.raises(MisfitError) as caught:
            bdpvi.check(model, MeanField(model), data)
        if model is in_a_loop or isinstance(model, Network):
            continue  # one for each turn or each parameter
        assert len(caught.value.misfits) == len(expected), str(caught.value)


def test_all_misfits_at_once(data: bdpvi.Dataset) -> None:
    def bad(x: Tensor, y: Tensor | None = None) -> None:
        noise = pyro.param("noise", x.new_ones(()))
        k = pyro.sample("k", dist.Bernoulli(0.5))
        with pyro.plate("groups", 2):
            effect = pyro.sample("scale", dist.Normal(0.0, 1.0))
        with pyro.plate("records", len(x)), pyro.poutine.scale(scale=3.0):
            pyro.sample("y", dist.Normal(k + effect[0], noise), obs=y)

    with pytest.raises(MisfitError) as caught:
        bdpvi.check(bad, MeanField(bad), data)
    sites = [misfit.site for misfit in caught.value.misfits]
    assert sorted(sites) == [
        "latent site 'k'", "latent site 'scale'", "observed site 'y'", "parameter 'noise'",
    ]  # fmt: skip


def test_guides_that_do_not_fit(data: bdpvi.Dataset) -> None:
    def guide(x: Tensor, y: Tensor) -> None:
        pyro.sample("w", dist.Normal(x.new_zeros(3), 1.0).to_event(1))

    with pytest.raises(MisfitError, match=r"guide <function .* is none that can be accounted for"):
        bdpvi.check(good, guide, data)
    with pytest.raises(MisfitError, match=r"guide was made for another model, of \['means', 'sh"):
        bdpvi.check(good, MeanField(mixture), data)
    with pytest.raises(MisfitError, match="guide does not fit: AutoDelta cannot be accounted for"):
        bdpvi.check(good, AutoDelta(good), data)


@pytest.mark.parametrize(
    "model",
    [
        good,
        mixture,
        group_plate,
        loop_of_latents,
        Network(bayesian=True),
        bdpvi.BayesianLogisticRegression(clip=0.5),
    ],
    ids=["linear", "mixture", "groups", "loop", "network", "logistic"],
)
def test_good_models_pass_and_nothing_changes(model: Any, data: bdpvi.Dataset) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    for guide in (MeanField(model), LowRank(model, rank=1), AutoNormal(model)):
        bdpvi.check(model, guide, data)
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_default_dtype() == torch.float32
    assert dict(pyro.get_param_store().items()) == {}
    few = bdpvi.Coupled(bdpvi.bayesian.Remove(3))
    bdpvi.fit(
        model,
        AutoNormal(model),
        data,
        training=bdpvi.Training(steps=2),
        neighbours=few,
        progress=False,
    )


def test_far_features_are_no_reason_to_refuse() -> None:
    """A refusal that depends on the records would tell tables apart from their neighbours."""
    data = logistic_data(20, 2)
    data = bdpvi.Dataset(data.x * 1e12, data.y)
    model = bdpvi.BayesianLogisticRegression(clip=0.5)
    bdpvi.check(model, MeanField(model), data)


def branching(x: Tensor, y: Tensor | None = None) -> None:
    mean = x @ weights(x)
    with pyro.plate("records", len(x)):
        spread = 1.0 if y is None or float(y.abs().max()) < 1e9 else 2.0
        pyro.sample("y", dist.Normal(mean, spread), obs=y)


def float_constants(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def test_a_model_without_a_gradient_of_one_record_is_told_before_training(
    data: bdpvi.Dataset,
) -> None:
    with pytest.raises(MisfitError, match=r"site 'w' raised .* on the gradient of one record"):
        bdpvi.check(branching, MeanField(branching), data)


def test_predictive_is_tried_in_the_default_type(data: bdpvi.Dataset) -> None:
    with pytest.raises(MisfitError, match=r"raised RuntimeError on pyro\.infer.Predictive"):
        bdpvi.check(float_constants, MeanField(float_constants), data)
    torch.set_default_dtype(torch.float64)
    try:
        bdpvi.check(float_constants, MeanField(float_constants), data)
    finally:
        torch.set_default_dtype(torch.float32)


MODE_DOORS: dict[str, Callable[[bdpvi.BayesianLogisticRegression, Any, bdpvi.Dataset], object]] = {
    "federated server": lambda model, guide, data: Server(model, guide, data),
    "DPVI": lambda model, guide, data: bdpvi.fit_private(
        model, data, epsilon=1.0, route=bdpvi.DPVI(rows=60, steps=5), guide=guide
    ),
    "PrivateSVI": lambda model, guide, data: bdpvi.PrivateSVI(
        model, guide, pyro.optim.Adam({}), Trace_ELBO(), clip=1.0, noise_multiplier=1.0, rate=0.5
    ),
}


@pytest.mark.parametrize("door", MODE_DOORS)
def test_a_mode_is_not_trained_by_steps(door: str) -> None:
    model, data = bdpvi.BayesianLogisticRegression.unweighted(), logistic_data(60, 3)
    with pytest.raises(ValueError, match=r"guide: Laplace is the mode.*use FullRank"):
        MODE_DOORS[door](model, Laplace(model), data)
    assert data.ledger.entries() == ()
