"""The Bernoulli likelihood with a bound on its derivative."""

from __future__ import annotations

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints
from torch.nn.functional import logsigmoid


class ClippedBernoulli(dist.TorchDistribution):  # type: ignore[misc]
    """Bernoulli likelihood whose derivative in the logit is at most ``bound`` in absolute value.

    With a = (2y − 1)·logit, log σ(a) has the derivative σ(−a). Below a_c = log((1 − c)/c) that
    exceeds c = ``bound``, so log σ is replaced by its tangent at a_c. The score is then the
    norm-clipped score of the Bernoulli likelihood, and the result is concave: an ordinary
    (unnormalised) likelihood. With ``bound`` ≥ 1 nothing is clipped.

    Args:
        logits: any shape.
        bound: largest |d log p / d logit|, positive, broadcastable to ``logits``.

    >>> ClippedBernoulli(torch.tensor([-5.0, 5.0]), torch.tensor(0.5)).log_prob(torch.ones(2))
    tensor([-3.1931, -0.0067])
    """

    arg_constraints = {"logits": constraints.real, "bound": constraints.positive}  # noqa: RUF012
    support = constraints.boolean

    def __init__(self, logits: Tensor, bound: Tensor, validate_args: bool | None = None) -> None:
        self.logits, self.bound = torch.broadcast_tensors(logits, bound)
        super().__init__(self.logits.shape, validate_args=validate_args)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-likelihood of ``value`` in {0, 1}."""
        signed = (2 * value - 1) * self.logits
        slope = self.bound.clamp(max=1)
        knee = torch.log1p(-slope) - torch.log(slope)
        tangent: Tensor = slope * (signed - knee).clamp(max=0)
        return logsigmoid(torch.maximum(signed, knee)) + tangent

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """Draw from the unclipped Bernoulli: clipping only concerns the fit."""
        return torch.bernoulli(self.mean.expand(self._extended_shape(sample_shape)))

    @property
    def predictive(self) -> dist.Bernoulli:
        """The law of a target that is predicted: the clip is no part of it."""
        return dist.Bernoulli(logits=self.logits)

    @property
    def mean(self) -> Tensor:
        """Probability of 1."""
        return torch.sigmoid(self.logits)


def likelihood_slope(signed: Tensor, bound: Tensor) -> Tensor:
    """Return the derivative of :class:`ClippedBernoulli`'s log-likelihood in a = (2y − 1)·logit."""
    return likelihood_slope_(torch.neg(signed), bound)


def likelihood_slope_(negative: Tensor, bound: Tensor) -> Tensor:
    """Return :func:`likelihood_slope` at a = −``negative``, which it overwrites."""
    return torch.minimum(negative.sigmoid_(), bound, out=negative)
