"""The law of signed times with a hazard that is constant between cuts."""

from __future__ import annotations

from collections.abc import Sequence

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from bdpvi.models.hazards import exposures, log_likelihood, restricted_mean


class PiecewiseExponential(dist.TorchDistribution):  # type: ignore[misc]
    """Times to an event, and those of censored records with a minus sign.

    Draws are as if every record were followed until the last cut, H: those without an event by then
    are −H. The mean is that of the time under observation.

    Args:
        log_hazards: in each interval, (..., J).
        cuts: the ends of the intervals.

    >>> law = PiecewiseExponential(torch.zeros(2, 1), (3.0,))
    >>> law.log_prob(torch.tensor([2.0, -3.0]))
    tensor([-2., -3.])
    """

    arg_constraints = {"log_hazards": constraints.independent(constraints.real, 1)}  # noqa: RUF012
    support = constraints.real

    def __init__(
        self, log_hazards: Tensor, cuts: Sequence[float], validate_args: bool | None = None
    ) -> None:
        self.log_hazards, self.cuts = log_hazards, cuts
        super().__init__(log_hazards.shape[:-1], validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """The mean time under observation."""
        return restricted_mean(self.log_hazards, self.cuts)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-likelihood of signed times."""
        return log_likelihood(self.log_hazards, value, self.cuts)

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """Draw times whose cumulative hazard is a standard exponential."""
        rates = self.log_hazards.exp()
        ends = rates.new_tensor(self.cuts)
        starts = rates.new_tensor((0.0, *self.cuts[:-1]))
        shape = self._extended_shape(sample_shape)
        left = rates.new_empty(*shape, 1).exponential_()
        hazard = (rates.unsqueeze(-2) * exposures(starts, self.cuts)).sum(-1)  # until each start
        each = starts + (left - hazard).clamp(min=0) / rates
        times = torch.where(left >= hazard, each, 0.0).minimum(ends)
        last = times.max(-1).values
        return torch.where(last < self.cuts[-1], last, -last)
