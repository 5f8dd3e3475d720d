"""Check that all training and release methods run on CUDA with the same results as on the CPU.

    python benchmarks/gpu_check.py [cuda|cpu] [--small] [--only=WORDS]

Each line is a case: ok or the error and where it was raised, the largest difference from the CPU,
seconds on both, and how often the host waited for the device. Cases that end with "default device"
run under ``torch.set_default_device``. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import platform
import runpy
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
import pyro
import pyro.distributions as dist
import torch
from printed import command
from pyro.infer import autoguide
from sklearn.base import clone
from torch import Tensor

import bdpvi
from bdpvi import (
    DPVI,
    BayesianLogisticRegression,
    BayesianMultinomialRegression,
    Coupled,
    Dataset,
    Optimum,
    Training,
    datasets,
    guides,
)
from bdpvi._ground.host import on
from bdpvi.bench.methods.dp_gd import DPGD, DPSGLDLosses
from bdpvi.bench.methods.posterior import LaplaceDraws
from bdpvi.bench.methods.runs import Run
from bdpvi.bench.methods.variational import DPVISettings, dpvi_runs
from bdpvi.federated.federated import Federation
from bdpvi.federated.federated_vi import fit_federated
from bdpvi.federated.rounds import Rounds
from bdpvi.networks import DPSGDSettings
from bdpvi.noise.keys import Key
from bdpvi.noise.secure import gaussian_sum
from bdpvi.noise.whole_normals import BLOCK
from bdpvi.releases.transaction import Transaction
from bdpvi.sklearn import PrivateLogisticRegression
from bdpvi.tables import Machine, Public

FOLDER = Path(__file__).resolve().parents[1] / "examples"
EXAMPLES = sorted(one.stem for one in (FOLDER / "private").glob("[a-z]*.py"))
PREDICTED = ("robust", "spline", "two_layers")
"""Examples whose targets have an expected value."""
TUTORIALS = ("dmm", "vae")
"""With an LSTM, and with latents of single records."""
LIMIT = 420.0
"""Seconds after which no case is begun."""
RUNS = [Run(noise_multiplier=1.0, seed=1)]
Make = Callable[[torch.device], Tensor]


@dataclass(frozen=True)
class Case:
    """A way to train.

    Attributes:
        make: from a device to numbers that should be the same on every other.
        agree: largest difference of these; None where they follow from a fresh secret.
        both: whether it is run on the CPU too.
    """

    make: Make
    agree: float | None = 1e-6
    both: bool = True


def linear(x: Tensor, y: Tensor | None = None) -> None:
    """Observe y about x·w."""
    w = pyro.sample("w", dist.Normal(torch.zeros(x.shape[1], dtype=x.dtype), 1.0).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)


def own_guide(x: Tensor, y: Tensor | None = None) -> None:
    """Draw w from a normal."""
    loc = pyro.param("loc", lambda: x.new_zeros(x.shape[1]))
    scale = pyro.param(
        "scale", lambda: x.new_ones(x.shape[1]), constraint=dist.constraints.positive
    )
    pyro.sample("w", dist.Normal(loc, scale).to_event(1))


def logistic() -> BayesianLogisticRegression:
    """Return the model of most cases."""
    return BayesianLogisticRegression(clip=0.5)


def simulated(records: int, features: int) -> Dataset:
    """Return records of a logistic regression, on the CPU."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")

    x = normal(records, features)
    w = torch.linspace(-1, 1, features, dtype=torch.float64, device="cpu")
    return Dataset(x, (x @ w + normal(records) > 0).double())


def table(small: bool) -> Dataset:
    """Return a real table, or a few rows of it."""
    train = datasets.load_breast_cancer().train
    rows = train.select(torch.arange(100, device=train.x.device))
    return Dataset(rows.x[:, :4], rows.y) if small else rows


def fitted(
    model: Callable[[], Any],
    guide: Callable[[Any], Any],
    data: Callable[[], Dataset],
    neighbours: Callable[[], Any],
    **settings: Any,
) -> Make:
    """Return the fit's mean, what its neighbours say, and samples of a release."""

    def make(device: torch.device) -> Tensor:
        made = model()
        training = Training(seed=1, device=str(device), **settings)
        fit = bdpvi.fit(
            made,
            guide(made),
            data(),
            training=training,
            neighbours=neighbours(),
            progress=False,
        )
        numbers = [fit.posterior.mean.cpu().double()]
        numbers += [panel.pairs.r.sum().reshape(1) for panel in fit.panels]
        if training.rate == 1:
            generator = torch.Generator().manual_seed(0)
            drawn = bdpvi.bayesian.preview(fit, 2, temperature=4.0, generator=generator)
            numbers += [one.flatten() for one in drawn.values()]
        return torch.cat(numbers)

    return make


def released(guarantee: Any, **settings: Any) -> Make:
    """Return samples of a release, which is charged and written to a file, and predictions."""

    def make(device: torch.device) -> Tensor:
        model, training = logistic(), Training(device=str(device))
        guide, data = guides.MeanField(model, **settings), table(small=True)
        fit = bdpvi.fit(model, guide, data, training=training, progress=False)
        release = bdpvi.release(fit, 2, temperature=4.0, guarantee=guarantee)
        with tempfile.TemporaryDirectory() as folder:
            bdpvi.save_release(release, Path(folder) / "release")
            read = bdpvi.load_release(Path(folder) / "release", model)
        predicted = read.predict_mean(data.x)
        return torch.cat([predicted, *(latent.flatten() for latent in release.latents.values())])

    return make


def private_svi(data: Dataset, steps: int) -> Make:
    """Return the location after some steps of :class:`bdpvi.PrivateSVI`."""

    def make(device: torch.device) -> Tensor:
        with pyro.get_param_store().scope():
            svi = bdpvi.PrivateSVI(
                linear,
                own_guide,
                pyro.optim.Adam({"lr": 0.01}),
                pyro.infer.Trace_ELBO(),
                clip=1.0,
                noise_multiplier=1.0,
                rate=0.5,
                seed=1,
            )
            x, y = data.x.to(device), data.x[:, 0].to(device)
            with torch.device(device):  # where the model, too, is to make its tensors
                for _ in range(steps):
                    svi.step(x, y)
                svi.evaluate_loss(x, y)
            svi.get_epsilon(1e-5)
            result: Tensor = pyro.param("loc").detach()
            return result

    return make


def private_fit(data: Dataset, target: Tensor, model: Any, route: Any) -> Make:
    """Return samples of :func:`bdpvi.fit_private`, which may be charged only if there are some."""

    def make(device: torch.device) -> Tensor:
        ledger = bdpvi.Ledger()
        records = (data.x.to(device), target.to(device))
        try:
            release = bdpvi.fit_private(model, records, epsilon=1.0, ledger=ledger, route=route)
        except Exception as error:
            if spent := ledger.entries():
                raise RuntimeError(f"charged {len(spent)} times, then failed: {error}") from error
            raise
        release.predict(data.x.to(device)) if hasattr(model, "limit") else None
        return torch.cat([latent.flatten().cpu() for latent in release.latents.values()])

    return make


def network(data: Dataset, width: int, steps: int) -> Make:
    """Return the weights after some steps of :func:`bdpvi.make_private`."""

    def make(device: torch.device) -> Tensor:
        with torch.device("cpu"), torch.random.fork_rng([]):
            torch.default_generator.manual_seed(0)
            layers = (torch.nn.Linear(data.x.shape[1], width), torch.nn.Tanh())
            inner = (torch.nn.Linear(width, width), torch.nn.Tanh())
            net = torch.nn.Sequential(*layers, *inner, torch.nn.Linear(width, 2))
        net = net.to(device)
        private = bdpvi.make_private(
            net,
            torch.optim.SGD(net.parameters(), lr=0.1),
            loss=torch.nn.functional.cross_entropy,
            data=(data.x.float(), data.y.long()),
            rate=0.02,
            max_grad_norm=1.0,
            noise_multiplier=1.0,
            settings=DPSGDSettings(seed=1),
        )
        for _ in range(steps):
            private.step()
        return torch.cat([weight.detach().flatten() for weight in net.parameters()])

    return make


def estimated(estimator: Any, data: Dataset, target: Tensor) -> Make:
    """Return the probabilities of an estimator of :mod:`bdpvi.sklearn`, fitted on the device."""

    def make(device: torch.device) -> Tensor:
        fresh, x = clone(estimator), data.x.to(device)
        return torch.from_numpy(fresh.fit(x, target.to(device)).predict_proba(x))

    return make


def from_a_table(data: Dataset, model: BayesianMultinomialRegression) -> Make:
    """Return samples of :func:`bdpvi.private` for a data frame, from a file."""

    def make(device: torch.device) -> Tensor:
        frame = pd.DataFrame(data.x.numpy(), columns=list(data.feature_names))
        frame["target"] = data.y.numpy()
        bounds = {name: [-3.0, 3.0] for name in data.feature_names}
        public = datasets.constants_of({"source": "Simulated.", **bounds})
        with tempfile.TemporaryDirectory() as folder:
            release = bdpvi.private(
                frame, target="target", epsilon=1.0, model=model, out=Path(folder) / "out",
                public=Public(rows=len(data), constants=public, classes=(0, 1)),
                machine=Machine(device=str(device), progress=False),
            )  # fmt: skip
        release.summary()
        return torch.cat([latent.flatten() for latent in release.latents.values()])

    return make


def synthesized(data: Dataset) -> Make:
    """Return rows of :func:`bdpvi.synthesize`, which needs no device."""

    def make(_: torch.device) -> Tensor:
        frame = pd.DataFrame(data.x.numpy(), columns=list(data.feature_names))
        columns = dict.fromkeys(data.feature_names, datasets.ColumnType(low=-5, high=5))
        schema = datasets.Schema(columns, "Simulated.")
        work = Transaction(bdpvi.Ledger(), Key.of_seed(1), alone=True)
        made = bdpvi.synthesize(frame, schema, epsilon=1.0, ledger=work)
        return torch.from_numpy(made.sample(20, seed=1).to_numpy(float).copy())

    return make


def federated(data: Dataset, rounds: int = 5, **settings: Any) -> Make:
    """Return the means of a guide trained by rounds of two clients."""

    def make(device: torch.device) -> Tensor:
        model, there = logistic().plain, data.to(device)
        clients = [there.select(rows) for rows in torch.arange(len(data)).tensor_split(2)]
        made = Rounds(
            clients=2, size=data.x.shape[1], clip=8.0, noise_multiplier=3.0, record_rate=0.5,
            record_clip=1.0, seed=1, **settings,
        )  # fmt: skip
        federation, guide = Federation(made), guides.MeanField(model)
        fit = fit_federated(model, guide, clients, federation, rounds=rounds, progress=False)
        return fit.posterior.mean

    return make


def example(name: str, small: bool) -> Make:
    """Return draws on the host of a private example's release, whose model is on the device."""
    records = 200 if small else 5000

    def make(device: torch.device) -> Tensor:
        with on(device), mock.patch("sys.path", [*sys.path, str(FOLDER / "private")]):
            parts = runpy.run_path(str(FOLDER / "private" / f"{name}.py"))
            table, (model, guide) = parts["simulated"](records, 0), parts["fresh"]()
            data = table.to(device, None)
            route = DPVI(rows=records, steps=10 if small else 200, loss=parts["LOSS"])
            release = bdpvi.fit_private(
                model, (data.x, data.y), guide=guide, epsilon=1.0, route=route
            )
        drawn = release.with_draws(3)
        if name in PREDICTED:
            drawn.predict_mean(table.x[:5].cpu())
        return torch.cat([latent.flatten() for latent in drawn.latents.values()])

    return make


def tutorial(name: str) -> Make:
    """Return nothing after a tutorial of Pyro's, as it is run with the device as default."""

    def make(device: torch.device) -> Tensor:
        with device, contextlib.redirect_stdout(io.StringIO()) as said:
            runpy.run_path(str(FOLDER / "tutorials" / f"{name}.py"), run_name="__main__")
        if "worst-case" not in said.getvalue():
            raise RuntimeError(said.getvalue())
        return torch.zeros(1)

    return make


def trained(data: Dataset, steps: int = 30) -> dict[str, Case]:
    """Return the methods of the comparison that are trained or drawn from here."""

    def by_dpvi(device: torch.device) -> Tensor:
        model = logistic()
        settings = DPVISettings(steps=steps, rate=0.5, draws=None)
        (found,) = dpvi_runs(model, data.to(device), runs=RUNS, settings=settings)
        return found.latents["w"]

    def by_gd(device: torch.device) -> Tensor:
        prepared = DPGD(model=logistic(), steps=steps).prepare(data.to(device), 1e-5)
        (found,) = prepared.outcomes([1.0], [1])
        return found.latents["w"]

    def by_sgld(device: torch.device) -> Tensor:
        method = DPSGLDLosses(model=logistic(), steps=steps, draws=1)
        (found,) = method.prepare(data.to(device), 1e-5).outcomes([1.0], [1])
        return found.latents["w"]

    def by_draws(device: torch.device) -> Tensor:
        model = BayesianLogisticRegression()
        (found,) = LaplaceDraws(model=model).prepare(data.to(device), 1e-5).outcomes([9.0], [1])
        return found.latents["w"]

    return {
        "DPVI": Case(by_dpvi),
        "DP-GD": Case(by_gd),
        "DP-SGLD": Case(by_sgld),
        "posterior draws": Case(by_draws),
    }


def cases(small: bool) -> dict[str, Case]:
    """Return every case by its name."""
    big = simulated(200, 5) if small else simulated(50_000, 30)
    some = Dataset(big.x[:100], big.y[:100])
    real, found, steps = (lambda: table(small)), dict[str, Case](), 10 if small else 50
    for kind in (guides.MeanField, guides.FullRank, guides.LowRank):
        for words, rate in (("", 1.0), (", batches", 0.3)):
            make = fitted(logistic, kind, real, Coupled, rate=rate, steps=steps)
            found[f"SVI + coupled, {kind.__name__}{words}"] = Case(make)
    for name in ("Normal", "MultivariateNormal", "LowRankMultivariateNormal", "DiagonalNormal"):
        kind = getattr(autoguide, f"Auto{name}")
        make = fitted(logistic, kind, real, Coupled, steps=10)
        found[f"converted Auto{name}"] = Case(make, agree=1e-4)
    regression = Dataset(some.x, some.x[:, 0])
    make = fitted(lambda: linear, guides.FullRank, lambda: regression, Coupled, steps=20)
    found["any Pyro model, traced neighbours"] = Case(make)

    def noisy(model: Any) -> guides.MeanField:
        return guides.MeanField(model, noise_scale=0.01)

    found["optimum, full rank"] = Case(fitted(logistic, guides.FullRank, real, Optimum))
    found["optimum, mean field, noise scale"] = Case(fitted(logistic, noisy, real, Optimum))
    found["release, worst case"] = Case(released(bdpvi.WorstCaseDP(), noise_scale=0.5), None)
    found["release, Bayesian"] = Case(released(bdpvi.BayesianDP()), None)
    found |= trained(table(small))
    many = big if small else Dataset(big.x[:5000], big.y[:5000])
    route = bdpvi.DPVI(rows=len(many), steps=5 if small else 60)
    make = private_fit(many, many.x[:, 0], linear, route)
    found["fit_private, any model (DPVI)"] = Case(make, agree=None)
    objective = BayesianLogisticRegression.unweighted(intercept=True, limit=2.0)
    make = private_fit(some, some.y, objective, bdpvi.regression.ObjectivePerturbation(rows=100))
    found["fit_private, objective"] = Case(make, agree=None)
    scores = bdpvi.regression.NoisyScores(rows=len(big))
    make = private_fit(Dataset(big.x[:, :1], big.y), big.y, objective, scores)
    found["fit_private, noisy scores"] = Case(make, agree=None)
    ends = [-3.0] * some.x.shape[1], [3.0] * some.x.shape[1]
    fit = PrivateLogisticRegression(classes=(0, 1), bounds=ends, random_state=1)
    found["estimator, objective"] = Case(estimated(fit, some, some.y))
    found["private, DPVI"] = Case(
        from_a_table(many, BayesianMultinomialRegression(classes=2)), None
    )
    found["synthesize"] = Case(synthesized(some))
    found["federated"] = Case(federated(some))
    found["federated, noise shares"] = Case(federated(some, noise_shares=2))
    found["PrivateSVI"] = Case(private_svi(Dataset(big.x[:200], big.y[:200]), 20))
    size = BLOCK + 5 if small else 10**7
    found["noise of a large sum"] = Case(
        lambda device: gaussian_sum(torch.zeros(size, device=device), 1.0, Key.of_seed(0)), agree=0
    )
    found["datasets"] = Case(lambda _: datasets.load_breast_cancer().train.x)
    found["network"] = Case(network(big, 16 if small else 1024, 20), agree=1e-2)
    defaults = {f"{name}, default device": case for name, case in found.items()}
    if not small:
        found["optimum, full rank, big"] = Case(
            fitted(logistic, guides.FullRank, lambda: big, Optimum)
        )

        def removed() -> Coupled:
            return Coupled(bdpvi.bayesian.Remove(records=2000))

        numbers: dict[str, Any] = {"steps": 100, "rate": 0.05, "dtype": torch.float32}
        make = fitted(logistic, guides.MeanField, lambda: big, removed, **numbers)
        found["SVI + coupled, big, float32"] = Case(make, both=False)
    found |= defaults
    found |= {f"example, {name}": Case(example(name, small), agree=None) for name in EXAMPLES}
    return found | {f"tutorial, {name}": Case(tutorial(name), both=False) for name in TUTORIALS}


def under(name: str, device: torch.device) -> AbstractContextManager[object]:
    """Return the default device of a case."""
    return torch.device(device) if name.endswith("default device") else nullcontext()


def check(name: str, case: Case, device: torch.device) -> None:
    """Run a case and print its line."""
    cpu = torch.device("cpu")
    places = [cpu, device] if case.both and device != cpu else [device]
    found, took, waits = [], "", 0
    for place in places:
        begun, real = time.perf_counter(), place.type == "cuda"
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            if real:
                torch.cuda.set_sync_debug_mode("warn")
            try:
                with under(name, place):
                    found.append(case.make(place).cpu().double())
            except Exception as error:
                print(f"{name:50s} {place.type}: {told(error)}", flush=True)
                return
            finally:
                if real:
                    torch.cuda.set_sync_debug_mode("default")
        waits = sum("synchroniz" in str(one.message) for one in seen)
        took += f"  {place.type} {time.perf_counter() - begun:6.2f} s"
    gap = float((found[0] - found[-1]).abs().max()) if case.agree is not None else float("nan")
    differs = case.agree is not None and not gap <= case.agree
    state = "DIFFERS" if differs else "ok"
    print(f"{name:50s} {state:8s} gap {gap:.1e}{took}  waits {waits}", flush=True)


def told(error: Exception) -> str:
    """Return an error and the places in the library that it came through."""
    steps = traceback.extract_tb(error.__traceback__)
    ours = [step for step in steps if "site-packages" not in step.filename]
    places = [f"{Path(one.filename).name}:{one.lineno}" for one in reversed(ours[-3:])]
    return f"{type(error).__name__} at {' <- '.join(places)}: {str(error)[:160]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("device", nargs="?", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--small", action="store_true", help="few records and steps")
    parser.add_argument("--only", action="append", default=[], help="cases with these words")
    given = parser.parse_args()
    device, begun = torch.device(given.device), time.perf_counter()
    name = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor()
    print(command())
    print(f"{name}, {torch.get_num_threads()} threads, torch {torch.__version__}", end=", ")
    print(f"pyro {pyro.__version__}, bdpvi {version('bdpvi')}, {platform.platform()}\n")
    for name, case in cases(given.small).items():
        if given.only and not any(words in name for words in given.only):
            continue
        if time.perf_counter() - begun > LIMIT:
            print(f"{name:50s} not begun after {LIMIT:.0f} s", flush=True)
            continue
        check(name, case, device)
    print(f"{time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
