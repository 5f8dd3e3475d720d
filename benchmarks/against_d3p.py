"""PrivateSVI compared with d3p's DPSVI and pyro.infer.SVI: same model, table, steps and noise.

    python benchmarks/against_d3p.py [--peer PYTHON] [--steps 1000] [--features 10 100]

``--peer`` is the interpreter of an environment with d3p (``pip install jax==0.4.30 jaxlib==0.4.30
d3p``). Logistic regression, N = 10,000, batches of 256 in expectation, C = 1, z = 2, mean-field
guides, Adam at 0.01. Accuracy is on 10,000 new records at the guide's mean. Times per step are
means after the first ten, on one thread, with libraries in turn within one run; the time of the
first step, which compiles, is separate.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import time
from importlib.metadata import version
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import numpy as np
from printed import command

RECORDS, BATCH, CLIP, NOISE, LR, WARM = 10_000, 256, 1.0, 2.0, 0.01, 10


def table(features: int, seed: int) -> tuple[Any, Any]:
    """Return features and labels; the weights are the same for every seed."""
    weights = np.random.default_rng(0).normal(size=features) * 2 / np.sqrt(features)
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(RECORDS, features)).astype(np.float32)
    y = generator.random(RECORDS) < 1 / (1 + np.exp(-x @ weights))
    return x, y.astype(np.float32)


def accuracy(weights: Any, features: int) -> float:
    """Return how many new records have the label on their side."""
    x, y = table(features, 2)
    return float(((x @ np.asarray(weights) > 0) == (y > 0.5)).mean())


def timed(step: Any, steps: int) -> tuple[float, float]:
    """Return the seconds of the first step, and of a later one on average."""
    start = time.perf_counter()
    step()
    first = time.perf_counter() - start
    for _ in range(WARM):
        step()
    start = time.perf_counter()
    for _ in range(steps - WARM - 1):
        step()
    return first, (time.perf_counter() - start) / (steps - WARM - 1)


def ours(features: int, steps: int, private: bool) -> dict[str, float]:
    """Train by PrivateSVI, or by plain SVI with a plate that subsamples."""
    import pyro
    import pyro.distributions as dist
    import torch
    from pyro.infer import SVI, Trace_ELBO
    from pyro.infer.autoguide import AutoNormal
    from pyro.optim import Adam

    from bdpvi import PrivateSVI

    torch.set_num_threads(1)
    x, y = (torch.from_numpy(one) for one in table(features, 1))

    def model(x: torch.Tensor, y: torch.Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(features), 1.0).to_event(1))
        with pyro.plate("records", len(x), subsample_size=BATCH) as at:
            pyro.sample("y", dist.Bernoulli(logits=x[at] @ w), obs=y[at])

    pyro.clear_param_store()
    guide = AutoNormal(model)
    settings: dict[str, Any] = {}
    if private:
        settings = {"clip": CLIP, "noise_multiplier": NOISE, "rate": BATCH / RECORDS}
    make: Any = PrivateSVI if private else SVI
    svi = make(model, guide, Adam({"lr": LR}), Trace_ELBO(), **settings)
    first, each = timed(lambda: svi.step(x, y), steps)
    found = accuracy(guide.median()["w"].detach().numpy(), features)
    return {"accuracy": found, "first": first, "step": each}


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

    first, each = timed(step, steps)
    median = guide.median(svi.get_params(held["state"]))["w"]
    return {"accuracy": accuracy(median, features), "first": first, "step": each}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="interpreter with d3p")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--features", type=int, nargs="*", default=(10, 100))
    parser.add_argument("--only-peer", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only_peer:
        print(json.dumps([peer(d, given.steps) for d in given.features]))
        return
    print("command:", command())
    print(f"machine: {platform.platform()}, {os.cpu_count()} cores")
    names = ("torch", "pyro-ppl", "numpy")
    print("versions: python", platform.python_version(), *(f"{n} {version(n)}" for n in names))
    rows = {
        "pyro.infer.SVI": [ours(d, given.steps, False) for d in given.features],
        "PrivateSVI": [ours(d, given.steps, True) for d in given.features],
    }
    if given.peer:
        options = ["--only-peer", "--steps", str(given.steps), "--features"]
        ask = [given.peer, __file__, *options, *map(str, given.features)]
        rows["d3p DPSVI"] = json.loads(
            subprocess.run(ask, check=True, capture_output=True, text=True).stdout
        )
    print("\n| | d | accuracy | first step, s | a step, ms | over plain SVI |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, found in rows.items():
        plain = rows["pyro.infer.SVI"]
        for d, one, base in zip(given.features, found, plain, strict=True):
            print(
                f"| {name} | {d} | {one['accuracy']:.4f} | {one['first']:.2f} | "
                f"{1e3 * one['step']:.2f} | {one['step'] / base['step']:.2f} |"
            )


if __name__ == "__main__":
    main()
