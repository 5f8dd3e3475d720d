"""Poisson regression whose likelihood bounds every record's score, trained by SVI.

python examples/models/poisson.py --out poisson.png
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyro
import pyro.distributions as dist
import torch
from _regression import run
from torch import Tensor
from torch.distributions import constraints

from bdpvi import Dataset

CLIP, LIMIT = 3.0, 2.0
TRUE = (0.4, -0.3, 0.2, 0.0)


class ClippedPoisson(dist.TorchDistribution):  # type: ignore[misc]
    """Poisson likelihood whose derivative in the log-rate is at most ``bound`` in absolute value.

    log p = y·η − e^η − log y! has the slope y − e^η, which falls with η. Where it is beyond ± bound
    the tangent line takes the place of log p: the score is the norm-clipped score of the Poisson
    likelihood, and the result is concave, so an ordinary (unnormalised) likelihood.

    Args:
        log_rate: η, any shape.
        bound: largest |d log p / dη|, positive, broadcastable to ``log_rate``.

    >>> ClippedPoisson(torch.tensor([0.0, 5.0]), torch.tensor(2.0)).log_prob(torch.ones(2))
    tensor([-1.0000, -9.7042])
    """

    arg_constraints = {"log_rate": constraints.real, "bound": constraints.positive}  # noqa: RUF012
    support = constraints.nonnegative_integer

    def __init__(self, log_rate: Tensor, bound: Tensor, validate_args: bool | None = None) -> None:
        self.log_rate, self.bound = torch.broadcast_tensors(log_rate, bound)
        super().__init__(self.log_rate.shape, validate_args=validate_args)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-likelihood of the count ``value``."""
        highest = torch.log(value + self.bound)  # the slope is −bound here, and +bound at lowest
        lowest = torch.log((value - self.bound).clamp(min=torch.finfo(value.dtype).tiny))
        within = self.log_rate.clamp(lowest, highest)
        beyond = (self.log_rate - within).abs()
        plain = value * within - within.exp() - torch.lgamma(value + 1)
        result: Tensor = plain - self.bound * beyond
        return result

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """Draw from the Poisson that is clipped (clipping only concerns the fit)."""
        return torch.poisson(self.mean.expand(self._extended_shape(sample_shape)))

    @property
    def mean(self) -> Tensor:
        """The rate."""
        rate: Tensor = self.log_rate.exp()
        return rate


def design(x: Tensor) -> Tensor:
    """Return the features within ± LIMIT, and a column of ones."""
    return torch.cat([x.clamp(-LIMIT, LIMIT), x.new_ones(len(x), 1)], dim=1)


def model(x: Tensor, y: Tensor | None = None) -> None:
    """Weights, the last of them an intercept; every record's score is within CLIP."""
    x = design(x)
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    with pyro.plate("records", len(x)):
        likelihood = ClippedPoisson(x @ w, CLIP / torch.linalg.vector_norm(x, dim=1))
        pyro.sample("y", likelihood, obs=y)


def predicted(latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return each record's expected count, averaged over k samples of the latents, (N,)."""
    return (latents["w"] @ design(x).T).exp().mean(0)


def simulated(records: int, seed: int = 0) -> Dataset:
    """Return records of four features and their counts."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(records, 4, generator=generator, dtype=torch.float64)
    weights = torch.tensor(TRUE, dtype=torch.float64)
    rate = (0.5 + x.clamp(-LIMIT, LIMIT) @ weights).exp()
    return Dataset(x, torch.poisson(rate, generator=generator))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the example."""
    run(arguments, "poisson", model, simulated, predicted, torch.mean, TRUE)


if __name__ == "__main__":
    main()
