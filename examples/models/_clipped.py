"""Any Pyro model with every record's score clipped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import biject_to, constraints
from torch.distributions.constraints import Constraint

from bdpvi._ground import validate
from bdpvi.datasets.dataset import Dataset
from bdpvi.models.contract import Model
from bdpvi.models.traces import log_likelihood


@dataclass(frozen=True)
class Clipped:
    """A model whose records' scores are clipped, for training by gradients.

    The score of a record is the gradient g of its log-likelihood in the flat vector z of the
    *unconstrained* latents. Where ‖g‖ exceeds C = ``clip``, the gradient that training sees is
    C·g/‖g‖ in its place, and nothing where g is not finite; the value stays the unclipped
    log-likelihood's. Found for each record by ``torch.func``. As a model of records it goes
    wherever its model goes: latents, predictions and a ``check`` of its own are that model's.

    What it bounds: in every step, one record's part in the gradient at the sampled latents has a
    norm of at most C divided by the sampling rate, whatever its features and target. With
    :class:`~bdpvi.Coupled` neighbours, records that would tear at a posterior cost less.

    What it does not bound:

    - *The fit.* Steps add up, and adaptive ones as Adam's rescale gradients, so no constant bounds
      how far a record moves the parameters in the end: there is no worst-case guarantee, and the
      ε of a release stays Bayesian, from the panel.
    - *A prior.* It must not depend on the records.
    - *The gradient in the guide's scales*, which is the score times the base noise.

    Clipped scores are the gradient of a likelihood where all scores of a record have one direction:
    a linear predictor, for whatever distribution. The likelihood is then continued by its tangents,
    for logistic regression as :class:`~bdpvi.models.clipped.ClippedBernoulli` has it, and training
    maximises its ELBO. With several predictors, or an unknown noise, they are in general no
    gradient of anything: training ends where clipped scores and prior balance on average, and the
    ELBO that it reports is the unclipped model's. The mechanism, and what is accounted for, is that
    training either way.

    Args:
        model: a Pyro model of records, see :mod:`bdpvi.models.contract`.
        clip: C, public: chosen without the data.

    >>> from bdpvi import BayesianLogisticRegression, Training, datasets, fit, guides
    >>> model = Clipped(BayesianLogisticRegression.unweighted(), clip=0.5)
    >>> data = datasets.load_breast_cancer().train.select(torch.arange(20))
    >>> training = Training(steps=5)
    >>> result = fit(model, guides.MeanField(model), data, training=training, progress=False)
    >>> result.posterior.mean.shape
    torch.Size([30])
    """

    model: Model
    clip: float

    def __post_init__(self) -> None:
        validate.positive("clip", self.clip)

    def __call__(self, x: Tensor, y: Tensor | None = None) -> None:
        """Sample the model's latents and observe the records, each by its clipped score."""
        if y is None:
            self.model(x)
            return
        hidden: set[str] = set()

        def observed(site: Mapping[str, Any]) -> bool:
            if site["type"] == "sample" and site["is_observed"]:
                hidden.add(site["name"])
            return site["name"] in hidden

        with poutine.trace() as traced, poutine.block(hide_fn=observed):
            self.model(x, y)
        latents = {
            name: site
            for name, site in traced.trace.nodes.items()
            if site["type"] == "sample" and type(site["fn"]).__name__ != "_Subsample"
        }
        with pyro.plate("_clipped", len(x)):
            pyro.sample("_score", ClippedScores(self, latents, x), obs=y)

    def check(self, data: Dataset) -> None:
        """Raise what the model's own check of its data raises."""
        own = getattr(self.model, "check", None)
        if own is not None:
            own(data)


class ClippedScores(dist.TorchDistribution):  # type: ignore[misc]
    """A model's log-likelihood of each record, whose gradient in the latents is clipped.

    Args:
        clipped: model and bound.
        latents: the model's latent sites, traced.
        x: features of N records, (N, d).
    """

    arg_constraints: ClassVar[Mapping[str, Constraint]] = {}
    support = constraints.real

    def __init__(
        self, clipped: Clipped, latents: Mapping[str, Mapping[str, Any]], x: Tensor
    ) -> None:
        self.clipped, self.x = clipped, x
        self.transforms = {name: biject_to(site["fn"].support) for name, site in latents.items()}
        self.free = {
            name: transform.inv(latents[name]["value"])
            for name, transform in self.transforms.items()
        }
        super().__init__(torch.Size([len(x)]), validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-likelihood of each record, (N,); its gradient is clipped.

        It is ℓ + ḡ·(z − z₀) at z = z₀, where ℓ, the clipped score ḡ and z₀ are constants.
        """
        fixed = {name: z.detach() for name, z in self.free.items()}
        with poutine.block(), pyro.validation_enabled(False):
            both = torch.func.grad_and_value(self._log_likelihood)
            scores, total = torch.vmap(both, in_dims=(None, 0, 0))(fixed, self.x, value)
        score = torch.cat([g.reshape(len(total), -1) for g in scores.values()], 1)
        norm = torch.linalg.vector_norm(score, dim=1, keepdim=True)
        kept = torch.where(norm.isfinite(), score * (self.clipped.clip / norm).clamp(max=1), 0.0)
        move = torch.cat([(z - fixed[name]).reshape(-1) for name, z in self.free.items()])
        return total + kept @ move  # type: ignore[no-any-return]

    def _log_likelihood(self, free: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        latents = {name: self.transforms[name](z) for name, z in free.items()}
        return log_likelihood(self.clipped.model, latents, x[None], y[None]).sum()
