"""Every way to train and release on a pretended CUDA device: what the CPU says, or a refusal."""

from __future__ import annotations

from collections.abc import Callable

import fake_cuda
import gpu_check
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

import bdpvi
from bdpvi._ground.host import HOST, on_host
from bdpvi._ground.isolation import isolated
from bdpvi.models.misfits import MisfitError
from bdpvi.sklearn import PrivateLogisticRegression

CASES = gpu_check.cases(small=True)
ALSO_BY_DEFAULT = ("MeanField, batches", "PrivateSVI", "fit_private", "DPVI", "datasets", "release")
SLOW = ("optimum, mean field", "Bayesian, default")
LAWS: dict[str, Callable[[Tensor], dist.Distribution]] = {
    "normal": lambda one: dist.Normal(one, one),
    "gamma": lambda one: dist.Gamma(one, one),
    "dirichlet": lambda one: dist.Dirichlet(one),
    "student": lambda one: dist.StudentT(5 * one, one, one),
    "cauchy": lambda one: dist.Cauchy(one, one),
    "exponential": lambda one: dist.Exponential(one),
    "uniform": lambda one: dist.Uniform(0 * one, one),
    "poisson": lambda one: dist.Poisson(one),
    "bernoulli": lambda one: dist.Bernoulli(one / 2),
    "categorical": lambda one: dist.Categorical(one),
    "binomial": lambda one: dist.Binomial(5, one / 2),
    "low rank": lambda one: dist.LowRankMultivariateNormal(one, one[:, None], one),
}


def marked(name: str) -> object:
    default = name.endswith("default device")
    slow = any(words in name for words in SLOW) or (
        default and not any(words in name for words in ALSO_BY_DEFAULT)
    )
    return pytest.param(name, marks=pytest.mark.slow) if slow else name


@pytest.mark.parametrize("name", [marked(name) for name in CASES])
def test_the_device_says_what_the_cpu_says(name: str) -> None:
    case = CASES[name]
    expected = case.make(HOST)
    with fake_cuda.pretended(), gpu_check.under(name, fake_cuda.CUDA):
        found = case.make(fake_cuda.CUDA).cpu()
    assert found.shape == expected.shape
    assert found.isfinite().all()
    if case.agree is not None:
        torch.testing.assert_close(found, expected, rtol=0, atol=case.agree)


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_draws_are_the_hosts(law: Callable[[Tensor], dist.Distribution]) -> None:
    def drawn(device: torch.device) -> Tensor:
        one = torch.ones(3, device=device)
        with isolated(one, seed=3):
            return torch.cat([law(one)().reshape(-1), torch.rand(2)]).cpu()

    expected, before = drawn(HOST), torch.get_rng_state()
    with fake_cuda.pretended():
        device = torch.cuda.get_rng_state()
        assert torch.equal(drawn(fake_cuda.CUDA), expected)
        assert torch.equal(torch.cuda.get_rng_state(), device)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_the_pretended_device_draws_itself_is_something_else() -> None:
    with fake_cuda.pretended():
        torch.manual_seed(0)
        there = torch.randn(3, device="cuda").cpu()
    torch.manual_seed(0)
    assert not torch.equal(there, torch.randn(3))


def test_tensors_of_two_devices_are_refused() -> None:
    with fake_cuda.pretended(), pytest.raises(RuntimeError, match="on the same device"):
        torch.zeros(2, device="cuda") + torch.ones(2)


def test_a_function_on_the_host_makes_its_tensors_there() -> None:
    with fake_cuda.pretended(), torch.device("cuda"):
        assert torch.zeros(1).is_cuda
        assert on_host(lambda: torch.zeros(1))().device == HOST


def test_a_model_on_another_device_is_refused_before_a_charge() -> None:
    there = torch.ones(3, device="cpu")

    def model(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(x.new_zeros(3), 1.0).to_event(1))
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Normal((x + there) @ w, 1.0), obs=y)

    ledger = bdpvi.Ledger()
    with fake_cuda.pretended():
        x = torch.ones(20, 3, device="cuda")
        route = bdpvi.DPVI(rows=20, steps=3)
        with pytest.raises((ValueError, MisfitError), match="on the same device"):
            bdpvi.fit_private(model, (x, x[:, 0]), epsilon=1.0, ledger=ledger, route=route)
    assert ledger.entries() == ()


def test_an_estimator_refuses_tensors_of_another_device() -> None:
    model = PrivateLogisticRegression(epsilon=1.0, classes=(0, 1))
    with fake_cuda.pretended(), pytest.raises(TypeError, match=r"Tensor.cpu\(\)"):
        model.fit(torch.zeros(20, 3, device="cuda"), torch.ones(20, device="cuda"))
