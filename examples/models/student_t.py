"""Robust regression: Student-t noise of unknown scale, trained by SVI and released unchanged.

    python examples/models/student_t.py --out student_t.png

The score of a record is bounded by the likelihood itself: by ‖x‖(ν + 1)/(2√ν·scale) in the weights
and between -1 and ν in log scale, however far off its target is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyro
import pyro.distributions as dist
import torch
from _regression import run
from torch import Tensor

from bdpvi import Dataset

FREEDOM, LIMIT = 4.0, 2.0
TRUE = (0.6, -0.4, 0.2, 0.0)


def model(x: Tensor, y: Tensor | None = None) -> None:
    """Weights, an intercept and the scale of the noise; features within ± LIMIT."""
    x = x.clamp(-LIMIT, LIMIT)
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    intercept = pyro.sample("intercept", dist.Normal(x.new_zeros(()), 1.0))
    scale = pyro.sample("scale", dist.LogNormal(x.new_zeros(()), 1.0))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.StudentT(FREEDOM, intercept + x @ w, scale), obs=y)


def predicted(latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return each record's expected target, averaged over k samples of the latents, (N,)."""
    means = latents["w"] @ x.clamp(-LIMIT, LIMIT).T + latents["intercept"][:, None]
    return means.mean(0)


def simulated(records: int, seed: int = 0) -> Dataset:
    """Return records of four features, whose noise has two outliers in a hundred."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(records, 4, generator=generator, dtype=torch.float64)
    noise = 0.5 * torch.randn(records, generator=generator, dtype=torch.float64)
    noise[::50] *= 20
    weights = torch.tensor(TRUE, dtype=torch.float64)
    return Dataset(x, 0.3 + x.clamp(-LIMIT, LIMIT) @ weights + noise)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the example."""
    run(arguments, "student_t", model, simulated, predicted, torch.median, TRUE)


if __name__ == "__main__":
    main()
