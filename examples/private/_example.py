"""Shared by the private examples: three fits, the share of the gain with privacy, a figure."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import matplotlib.pyplot as plt
import pyro
import torch
from matplotlib.axes import Axes
from pyro import poutine
from pyro.infer import ELBO, SVI
from pyro.optim import ClippedAdam
from pyro.poutine.messenger import Messenger
from torch import Tensor

import bdpvi
from bdpvi import Dataset
from bdpvi._ground.isolation import isolated
from bdpvi.models.contract import Model

PLATE, DELTA, FRESH = "records", 1e-5, 20_000
Site = dict[str, Any]


class Draws(Protocol):
    """What a fit gives, with and without privacy.

    Attributes:
        model, guide: with all parameters trained.
        latents: k draws of each global latent variable, (k, ...).
    """

    @property
    def model(self) -> Model: ...
    @property
    def guide(self) -> Any: ...
    @property
    def latents(self) -> Mapping[str, Tensor]: ...


class Example(Protocol):
    """A module of this folder."""

    __name__: str
    __file__: str | None
    LOSS: ELBO

    def simulated(self, records: int, seed: int) -> Dataset:
        """Return records; the truth is the same for every seed."""

    def fresh(self) -> tuple[Model, Any]:
        """Return the model and a guide, untrained."""

    def baseline(self, train: Dataset, test: Dataset) -> float:
        """Return the mean log density of test records, fitted without structure or privacy."""

    def log_density(
        self, model: Model, guide: Any, latents: Mapping[str, Tensor], x: Tensor, y: Tensor
    ) -> Tensor:
        """Return each record's log predictive density, (N,): the log of the mean over k draws."""

    def figure(self, draws: Draws, axes: Axes) -> None:
        """Draw what was learned."""


@dataclass(frozen=True, eq=False)
class Trained:
    """A model or guide with its parameters, which Pyro keeps for a run of it only."""

    function: Model
    parameters: Any

    def __call__(self, *args: Any) -> Any:
        """Run it."""
        with pyro.get_param_store().scope(self.parameters):
            return self.function(*args)


@dataclass(frozen=True, eq=False)
class Fitted:
    """Draws without privacy."""

    model: Model
    guide: Any
    latents: Mapping[str, Tensor]


class Subsampled(Messenger):  # type: ignore[misc]
    """Multiply the log densities of a batch's records, the latent ones' too, by a factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def _pyro_sample(self, msg: Site) -> None:
        if local(msg):
            msg["scale"] = msg["scale"] * self.factor


def local(site: Site) -> bool:
    """Return whether a site lies in the plate over records."""
    return any(frame.name == PLATE for frame in site["cond_indep_stack"])


def local_log_density(trace: poutine.Trace, records: int) -> Tensor:
    """Return the log density of each record's sites, (N,); enumerated classes are summed out."""
    trace.compute_log_prob()
    parts = [site["log_prob"] for site in trace.nodes.values() if _stochastic(site) and local(site)]
    total: Tensor = sum(parts[1:], parts[0])
    return total.reshape(-1, records).logsumexp(0)


def non_private(
    example: Example, data: Dataset, *, steps: int = 4000, lr: float = 0.03, draws: int = 100
) -> Fitted:
    """Fit by Pyro's SVI with batches of 256 records, and take draws of the global latents."""
    batch = min(256, len(data))
    with isolated(data.x), pyro.validation_enabled(False), Subsampled(len(data) / batch):
        torch.manual_seed(0)
        model, guide = example.fresh()
        optim = ClippedAdam({"lr": lr, "lrd": 0.01 ** (1 / steps), "clip_norm": math.inf})
        svi = SVI(model, guide, optim, loss=example.LOSS)
        for _ in range(steps):
            at = torch.randint(len(data), (batch,))
            svi.step(data.x[at], data.y[at])
        trained = pyro.get_param_store().get_state()
        model, guide = Trained(model, trained), Trained(guide, trained)
        return Fitted(model, guide, global_draws(guide, data, draws))


def global_draws(guide: Any, data: Dataset, draws: int) -> dict[str, Tensor]:
    """Return draws of the latents outside the plate over records, each (draws, ...)."""
    with torch.no_grad():
        found = [poutine.trace(guide).get_trace(data.x[:1], data.y[:1]) for _ in range(draws)]
    names = [
        name
        for name, site in found[0].nodes.items()
        if _stochastic(site) and not local(site) and not site["infer"].get("is_auxiliary")
    ]
    return {name: torch.stack([one.nodes[name]["value"] for one in found]) for name in names}


def private(example: Example, data: Dataset, epsilon: float) -> tuple[bdpvi.Release, Fitted]:
    """Return the release of a private fit by defaults, and what it learned.

    An encoder of a guide is trained in place, as every module is.
    """
    model, guide = example.fresh()
    release = bdpvi.fit_private(
        model,
        data,
        epsilon=epsilon,
        delta=DELTA,
        guide=guide,
        route=bdpvi.DPVI(loss=example.LOSS),
    )
    return release, Fitted(release.model, guide, release.with_draws(100).latents)


def summed_out(
    model: Model, guide: Any, latents: Mapping[str, Tensor], x: Tensor, y: Tensor
) -> Tensor:
    """Return log densities (N,) where the only local latents are classes, which are summed out."""

    def one(values: dict[str, Tensor]) -> Tensor:
        given = poutine.enum(poutine.condition(model, data=values), first_available_dim=-2)
        return local_log_density(poutine.trace(given).get_trace(x, y), len(x))

    return over_draws(one, latents)


def importance_weighted(
    model: Model, guide: Any, latents: Mapping[str, Tensor], x: Tensor, y: Tensor
) -> Tensor:
    """Return log densities (N,): a record's latents drawn once from the guide for every draw.

    log of the mean of p(y, z)/q(z | y) over k draws is on average too low, and less so for more
    draws (Burda, Grosse and Salakhutdinov 2016, Theorem 1).
    """

    def one(values: dict[str, Tensor]) -> Tensor:
        drawn = poutine.trace(poutine.condition(guide, data=values)).get_trace(x, y)
        joint = poutine.trace(
            poutine.replay(poutine.condition(model, data=values), trace=drawn)
        ).get_trace(x, y)
        return local_log_density(joint, len(x)) - local_log_density(drawn, len(x))

    return over_draws(one, latents)


def over_draws(one: Callable[[dict[str, Tensor]], Tensor], latents: Mapping[str, Tensor]) -> Tensor:
    """Return the log of the mean over k draws of the densities whose logs ``one`` returns."""
    draws = len(next(iter(latents.values())))
    with torch.no_grad(), pyro.validation_enabled(False):
        each = [one({name: value[k] for name, value in latents.items()}) for k in range(draws)]
    return torch.stack(each).logsumexp(0) - math.log(draws)


def most_likely(
    log_density: Callable[[Tensor, Tensor, Tensor], Tensor],
    parameters: int,
    train: Dataset,
    test: Dataset,
) -> float:
    """Return the mean log density of test records at the maximum of that of the training records.

    Args:
        log_density: of each record, from (parameters,), x and y.
        parameters: how many; they start at 0.
        train, test: the records.
    """
    found = train.x.new_zeros(parameters, requires_grad=True)
    optim = torch.optim.LBFGS([found], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optim.zero_grad()
        value = -log_density(found, train.x, train.y).mean()
        value.backward()
        return value

    optim.step(loss)
    return float(log_density(found.detach(), test.x, test.y).mean())


def score(example: Example, draws: Draws, test: Dataset) -> float:
    """Return the mean log predictive density of test records."""
    latents = {name: value.to(test.x) for name, value in draws.latents.items()}
    with isolated(test.x):
        torch.manual_seed(0)
        each = example.log_density(draws.model, draws.guide, latents, test.x, test.y)
    return float(each.mean())


def share(baseline: float, private: float, non_private: float) -> float:
    """Return what privacy leaves of the gain over the baseline.

    >>> round(share(-0.69, -0.52, -0.5), 3)
    0.895
    """
    return (private - baseline) / (non_private - baseline)


def main(example: Example, arguments: Sequence[str] | None = None) -> None:
    """Fit with and without privacy, print how well each does on new records, draw the figure."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument(
        "--out", default=f"{Path(str(example.__file__)).stem}.png", help="path of the figure"
    )
    parser.add_argument("--records", type=int, default=10_000, help="simulated records")
    parser.add_argument("--epsilon", type=float, default=1.0, help="of the private fit")
    parser.add_argument("--steps", type=int, default=4000, help="of the fit without privacy")
    given = parser.parse_args(arguments)

    data, test = example.simulated(given.records, 0), example.simulated(FRESH, 1)
    release, learned = private(example, data, given.epsilon)
    print(release)
    least, most = example.baseline(data, test), non_private(example, data, steps=given.steps)
    found = least, score(example, learned, test), score(example, most, test)
    print("mean log density of a new record")
    print("baseline {:.4f}, private {:.4f}, non-private {:.4f}".format(*found))
    print(f"share of the gain that privacy leaves: {share(*found):.3f}")

    drawn, axes = plt.subplots(layout="constrained")
    example.figure(learned, axes)
    drawn.savefig(given.out)
    print("wrote", given.out)


def _stochastic(site: Site) -> bool:
    return site["type"] == "sample" and type(site["fn"]).__name__ != "_Subsample"
