"""Every way to train and release on a pretended CUDA device: what the CPU says, or a refusal."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path

import fake_cuda
import flat
import gpu_check
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import bdpvi
from bdpvi._ground.host import HOST
from bdpvi._ground.isolation import isolated
from bdpvi.cli import app
from bdpvi.models.misfits import MisfitError
from bdpvi.networks import DPSGDSettings

CASES = {
    name: case
    for name, case in gpu_check.cases(small=True).items()
    # The pretended device takes public points for records, and prints no number.
    if name != "example, gaussian_process" and not name.startswith("tutorial")
}
ALSO_BY_DEFAULT = (
    "PrivateSVI",
    "objective",
    "scores",
    "synthesize",
    "network",
    "federated, default",
)
SLOW = (
    "optimum, mean field",
    "release, Bayesian",
    "posterior draws",
    "batches",
    "converted",
    "example",
)
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
    late = any(words in name for words in SLOW) or (
        default and not any(words in name for words in ALSO_BY_DEFAULT)
    )
    return pytest.param(name, marks=pytest.mark.slow) if late else name


@flat.few_steps(20)
@pytest.mark.filterwarnings("ignore:random_state=1 makes an experiment")
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


# --------------------------------------------------------------------------- waits


def steps_of_a_network(data: torch.device) -> Callable[[], object]:
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).to(fake_cuda.CUDA)
    x = torch.linspace(-1, 1, 500, device="cpu").reshape(100, 5)
    made = bdpvi.make_private(
        net, torch.optim.Adam(net.parameters()), loss=nn.functional.cross_entropy,
        data=(x.to(data), (x[:, 0] > 0).long().to(data)), rate=0.5, max_grad_norm=1.0,
        noise_multiplier=1.0, settings=DPSGDSettings(records=100),
    )  # fmt: skip
    return made.step


@pytest.mark.parametrize("data", [HOST, pytest.param(fake_cuda.CUDA, marks=pytest.mark.whole)])
def test_a_step_of_a_network_waits_once(data: torch.device) -> None:
    """For what the step says of its weights."""
    with fake_cuda.pretended():
        step = steps_of_a_network(data)
        step()
        with fake_cuda.waits() as waits:
            step()
    assert len(waits) == 1, waits


def test_a_step_of_private_svi_waits_twice_at_most() -> None:
    """Once for the gradients of the records, once for the parameters."""

    def model(x: Tensor) -> None:
        zeros, ones = x.new_zeros(x.shape[1]), x.new_ones(x.shape[1])
        w = pyro.sample("w", dist.Normal(zeros, ones).to_event(1))
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Normal(x @ w, x.new_ones(())), obs=x[:, 0])

    def guide(x: Tensor) -> None:
        loc = pyro.param("loc", lambda: x.new_zeros(x.shape[1]))
        pyro.sample("w", dist.Normal(loc, x.new_ones(x.shape[1])).to_event(1))

    with fake_cuda.pretended(), pyro.get_param_store().scope():
        svi = bdpvi.PrivateSVI(
            model, guide, pyro.optim.Adam({"lr": 0.01}), pyro.infer.Trace_ELBO(), clip=1.0,
            noise_multiplier=1.0, rate=0.5,
        )  # fmt: skip
        x = torch.ones(60, 3, dtype=torch.float64, device=fake_cuda.CUDA)
        with torch.device(fake_cuda.CUDA):
            svi.step(x)
            svi.step(x)
            with fake_cuda.waits() as waits:
                svi.step(x)
    assert len(waits) <= 2, waits


def by_dpvi(steps: int) -> None:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(x.new_zeros(5), x.new_ones(5)).to_event(1))
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Normal(x @ w, x.new_ones(())), obs=y)

    data = gpu_check.simulated(200, 5)
    route = bdpvi.DPVI(rows=200, steps=steps, progress=False)
    gpu_check.private_fit(data, data.y, model, route)(fake_cuda.CUDA)


def by_rounds(rounds: int) -> None:
    gpu_check.federated(gpu_check.simulated(100, 3), rounds=rounds)(fake_cuda.CUDA)


def compared_by(method: str) -> Callable[[int], object]:
    data = gpu_check.simulated(100, 3)
    return lambda steps: gpu_check.trained(data, steps)[method].make(fake_cuda.CUDA)


@pytest.mark.parametrize(
    ("take", "most"),
    [
        pytest.param(by_dpvi, 3, id="DPVI"),  # gradients, parameters, and the draw
        pytest.param(by_rounds, 2, id="federated"),  # each of two clients' gradients
        pytest.param(compared_by("DPVI"), 0, id="compared DPVI"),
        pytest.param(compared_by("DP-GD"), 0, id="compared DP-GD"),
        pytest.param(compared_by("DP-SGLD"), 0, id="compared DP-SGLD"),
    ],
)
def test_three_more_steps_wait_for_the_device(take: Callable[[int], object], most: int) -> None:
    counts = []
    for steps in (20, 23):  # whose averages have as many windows
        with fake_cuda.pretended(), fake_cuda.waits() as waits:
            take(steps)
        counts.append(len(waits))
    assert counts[1] - counts[0] == 3 * most


def test_every_draw_names_its_device() -> None:
    """By default it would be the caller's default device, where a generator of the host fails."""
    root, draws = Path(bdpvi.__file__).parent, {"rand", "randn", "randint", "randperm"}
    unnamed = [
        f"{file}:{call.lineno}"
        for folder in (root, root.parent / "guides", root.parent / "datasets")
        for file in folder.rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in draws
        and ast.unparse(call.func.value) == "torch"
        and "device" not in {keyword.arg for keyword in call.keywords}
    ]
    assert not unnamed


# --------------------------------------------------------------------------- commands


def compared(folder: Path, device: str, method: str) -> float:
    out = folder / device
    asked = ["compare", "--data", "breast-cancer", "--methods", method, "--epsilons", "1"]
    asked += ["--seeds", "1", "--draws", "2", "--quiet", "--json"]
    asked += ["--out", str(out), "--device", device]
    found = CliRunner().invoke(app, asked)
    assert found.exit_code == 0, found.output
    rows = json.loads(found.stdout)["summary"]
    return float(next(row["log_score"] for row in rows if row["method"] == method))
