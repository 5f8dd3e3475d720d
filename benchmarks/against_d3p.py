"""PrivateSVI compared with d3p's DPSVI and pyro.infer.SVI: same model, table, steps and noise.

    python benchmarks/against_d3p.py [--peer PYTHON] [--steps 1000] [--features 10 100]
        [--device cuda]

``--peer`` is the interpreter of an environment with d3p (``pip install jax==0.4.30 jaxlib==0.4.30
d3p``). Logistic regression, and a network of 16 hidden units with a latent for each weight, by
N = 10,000, batches of 256 in expectation, C = 1, z = 2, mean-field guides, Adam at 0.01. Accuracy
is on 10,000 new records at the guide's mean. Times per step are of the processor, on one thread,
on a device wall times: medians of 20 runs of equal length, in which all of torch take turns. The
first step, which traces or compiles, and a hundred after it, in which PrivateSVI records by itself,
are separate.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import subprocess
from collections.abc import Callable
from importlib.metadata import version
from statistics import median
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import numpy as np
from clock import seconds
from printed import command

RECORDS, BATCH, CLIP, NOISE, LR = 10_000, 256, 1.0, 2.0, 0.01
WARM, RUNS, HIDDEN = 100, 20, 16


def table(features: int, seed: int) -> tuple[Any, Any]:
    """Return features and labels; the weights are the same for every seed."""
    weights = np.random.default_rng(0).normal(size=features) * 2 / np.sqrt(features)
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(RECORDS, features)).astype(np.float32)
    y = generator.random(RECORDS) < 1 / (1 + np.exp(-x @ weights))
    return x, y.astype(np.float32)


def accuracy(features: int, weights: Any, top: Any = None) -> float:
    """Return how many new records have the label on their side."""
    x, y = table(features, 2)
    score = x @ np.asarray(weights)
    score = score if top is None else np.tanh(score) @ np.asarray(top)
    return float(((score > 0) == (y > 0.5)).mean())


class Timed:
    """Steps whose time is taken."""

    def __init__(self, step: Callable[[], object], device: str = "cpu") -> None:
        self.step, self.device, self.runs = step, device, list[float]()
        self.first = self._of(1)
        self.warm = self._of(WARM)

    def take(self, steps: int) -> None:
        """Take some steps."""
        self.runs.append(self._of(steps))

    def seconds(self) -> dict[str, float]:
        """Return the seconds of the first step, one of the next hundred, and a later one."""
        return {"first": self.first, "warm": self.warm, "step": median(self.runs)}

    def _of(self, steps: int) -> float:
        start = seconds(self.device)
        for _ in range(steps):
            self.step()
        return (seconds(self.device) - start) / steps


def ours(features: int, hidden: int, steps: int, device: str) -> dict[str, dict[str, float]]:
    """Train by PrivateSVI, and by plain SVI with a plate that subsamples, by turns."""
    import pyro
    import pyro.distributions as dist
    import torch
    from pyro.infer import SVI, JitTrace_ELBO, Trace_ELBO
    from pyro.infer.autoguide import AutoNormal
    from pyro.optim import Adam

    from bdpvi import PrivateSVI

    torch.set_num_threads(1)
    x, y = (torch.from_numpy(one).to(device) for one in table(features, 1))

    def model(x: torch.Tensor, y: torch.Tensor) -> None:
        shape = (features, hidden) if hidden else (features,)
        w = pyro.sample("w", dist.Normal(x.new_zeros(shape), 1.0).to_event(len(shape)))
        top = x.new_zeros(hidden)
        if hidden:
            top = pyro.sample("top", dist.Normal(top, 1.0).to_event(1))
        with pyro.plate("records", len(x), subsample_size=BATCH, device=x.device) as at:
            score = x[at] @ w
            logits = torch.tanh(score) @ top if hidden else score
            pyro.sample("y", dist.Bernoulli(logits=logits), obs=y[at])

    store = pyro.get_param_store()
    noisy: Any = {"clip": CLIP, "noise_multiplier": NOISE, "rate": BATCH / RECORDS}
    made: dict[str, Any] = {}
    kinds: Any = ((SVI, Trace_ELBO, {}), (SVI, JitTrace_ELBO, {}), (PrivateSVI, Trace_ELBO, noisy))
    for kind, loss, settings in kinds:
        guide = AutoNormal(model)
        with store.scope() as state:
            svi: Any = kind(model, guide, Adam({"lr": LR}), loss(), **settings)
            run = Timed(functools.partial(svi.step, x, y), device)
        made[f"{kind.__name__}, {loss.__name__}"] = guide, state, run
    for _ in range(RUNS):
        for _, state, run in made.values():
            with store.scope(state):
                run.take(steps // RUNS)
    result = {}
    for name, (guide, state, run) in made.items():
        with store.scope(state):
            means = [one.detach().cpu().numpy() for one in guide.median().values()]
        result[name] = {"accuracy": accuracy(features, *means), **run.seconds()}
    return result


def peer(features: int, steps: int) -> dict[str, float]:
    """Train by d3p."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from d3p.minibatch import subsample_batchify_data
    from d3p.svi import DPSVI
    from numpyro.infer import Trace_ELBO
    from numpyro.infer.autoguide import AutoDiagonalNormal
    from numpyro.optim import Adam

    x, y = (jnp.asarray(one) for one in table(features, 1))

    def model(x: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(jnp.zeros(features), 1.0).to_event(1))
        with numpyro.plate("records", RECORDS, len(x)):
            numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    import d3p.random as strong

    guide = AutoDiagonalNormal(model)
    svi = DPSVI(model, guide, Adam(LR), Trace_ELBO(), clipping_threshold=CLIP, dp_scale=NOISE)
    init, batch_of = subsample_batchify_data((x, y), batch_size=BATCH, rng_suite=strong)
    _, batches = init(strong.PRNGKey(0))
    state = svi.init(strong.PRNGKey(1), *batch_of(0, batches))

    @jax.jit  # type: ignore[untyped-decorator]
    def update(state: Any, at: Any) -> Any:
        return svi.update(state, *batch_of(at, batches))[0]

    held = {"state": state, "at": 0}

    def step() -> None:
        held["state"] = jax.block_until_ready(update(held["state"], held["at"]))
        held["at"] += 1

    run = Timed(step)
    for _ in range(RUNS):
        run.take(steps // RUNS)
    means = guide.median(svi.get_params(held["state"]))["w"]
    return {"accuracy": accuracy(features, means), **run.seconds()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="interpreter with d3p")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--features", type=int, nargs="*", default=(10, 100))
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--only-peer", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only_peer:
        print(json.dumps([peer(d, given.steps) for d in given.features]))
        return
    print("command:", command())
    print(f"machine: {platform.platform()}, {os.cpu_count()} cores")
    names = ("torch", "pyro-ppl", "numpy")
    print("versions: python", platform.python_version(), *(f"{n} {version(n)}" for n in names))
    cases = [(d, 0) for d in given.features] + [(10, HIDDEN)]
    rows = [(d, hidden, ours(d, hidden, given.steps, given.device)) for d, hidden in cases]
    if given.peer:
        options = ["--only-peer", "--steps", str(given.steps), "--features"]
        ask = [given.peer, __file__, *options, *map(str, given.features)]
        answer = subprocess.run(ask, check=True, capture_output=True, text=True).stdout
        for (_, _, found), theirs in zip(rows, json.loads(answer), strict=False):
            found["d3p DPSVI"] = theirs
    print("\n| d | | accuracy | first step, s | next 100, ms | a step, ms | over plain SVI |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for d, hidden, found in rows:
        plain = found["SVI, Trace_ELBO"]["step"]
        for name, one in found.items():
            times = f"{one['first']:.2f} | {1e3 * one['warm']:.2f} | {1e3 * one['step']:.2f}"
            print(
                f"| {f'{d} × {hidden}' if hidden else d} | {name} | {one['accuracy']:.4f} | "
                f"{times} | {one['step'] / plain:.2f} |"
            )


if __name__ == "__main__":
    main()
