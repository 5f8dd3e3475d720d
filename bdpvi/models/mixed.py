"""Mixed models: a regression whose intercept differs from group to group, normally."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi.datasets.dataset import Dataset
from bdpvi.models.contract import Prior
from bdpvi.models.family import Family
from bdpvi.models.linear import BayesianLinearRegression
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.models.poisson import REACH, BayesianPoissonRegression

Inner = BayesianLogisticRegression | BayesianLinearRegression | BayesianPoissonRegression
"""What may differ from group to group."""
SPREAD = 0.5
"""The prior median of τ, in units of the predictor, or for numbers of half their bound."""
FEWEST_GROUPS = 3
"""With fewer groups nothing is known of τ."""


@dataclass(frozen=True, kw_only=True)
class MixedRegression(Family):
    """A logistic, linear or Poisson regression with normal effects of groups on its predictor.

    Effects have the law N(0, τ²), and log τ the prior N(log ½, 1), of numbers N(log largest/4, 1).
    The latent variables are those of the regression, and ``log_spread``, log τ. Groups are either
    features, whose effects are weights with the prior N(0, τ²); or nothing is known of a record's
    group, which then has the effect 0 in predictions.

    Args:
        of: the regression, whose records have no weights.
        column: the column of groups, for reports.
        groups: numbers of the columns that say to which group a record belongs.

    Raises:
        ValueError: if records have weights, or a column is there twice.

    >>> model = MixedRegression(of=BayesianPoissonRegression(largest=9), groups=(1, 2, 3))
    >>> [(name, tuple(prior.mean.shape)) for name, prior in model.priors(torch.ones(2, 4)).items()]
    [('w', (5,)), ('log_spread', ())]
    """

    kind: ClassVar[str] = "mixed"

    of: Inner
    column: str = ""
    groups: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.of.weighs or getattr(self.of, "exposure", None) is not None:
            raise ValueError(f"of={self.of!r:.80}: a mixed model has no weights, and no exposure")
        (groups,) = validate.disjoint("groups", (self.groups,)) if self.groups else ((),)
        object.__setattr__(self, "groups", groups)

    @property
    def target(self) -> str:  # type: ignore[override]
        """What a target is."""
        return self.of.target

    @property
    def ratio(self) -> str:  # type: ignore[override]
        """What the exponential of a coefficient is."""
        return self.of.ratio

    @property
    def rule(self) -> str:  # type: ignore[override]
        """What targets must do, in words."""
        return self.of.rule

    @property
    def levels(self) -> tuple[tuple[int, ...], ...]:  # type: ignore[override]
        """Column numbers of the levels of each category, none of which are groups."""
        return self.of.levels

    @property
    def intercept(self) -> bool:  # type: ignore[override]
        """Whether there is an intercept."""
        return bool(self.of.intercept)

    @property
    def weighs(self) -> bool:
        """Whether records have weights."""
        return False

    @property
    def spread(self) -> float:
        """The prior median of τ."""
        return SPREAD * (self.of.largest / 2 if self.of.target == "number" else 1.0)

    def priors(self, x: Tensor) -> dict[str, Prior]:
        """Return the priors of the latent variables, but for groups' weights, which follow τ's."""
        own = Prior(x.new_tensor(math.log(self.spread)), x.new_tensor(1.0))
        return {**self.of.priors(x), "log_spread": own}

    def __call__(self, x: Tensor, y: Tensor | None = None) -> None:
        """Sample the latent variables, with groups' weights by τ, and observe the records."""
        import pyro
        import pyro.distributions as dist

        latents: dict[str, Tensor] = {}
        for name, (mean, sd) in sorted(self.priors(x).items()):  # log_spread before w
            sds = sd.expand(mean.shape)
            if name == "w" and self.groups:
                at = torch.tensor(self.groups, device=x.device)
                sds = sds.index_fill(0, at, 0.0).index_add(
                    0, at, latents["log_spread"].exp().expand(len(at))
                )
            law = dist.Normal(mean, sds).to_event(mean.ndim)
            latents[name] = pyro.sample(name, law)
        with pyro.plate("records", len(x)):
            target = None if y is None else self.cut(y)
            pyro.sample("y", self.likelihood(latents, x), obs=target)

    def design(self, x: Tensor) -> Tensor:
        """Return the design of the regression, (N, n)."""
        return self.of.design(x)

    def means(self, latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the expected targets, (N,); of an unknown group, of the effect 0."""
        return self.of.means(latents, x)

    def probabilities(self, latents: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the probability of each class, (N, K)."""
        return self.of.probabilities(latents, x)

    def likelihood(self, latents: Mapping[str, Tensor], x: Tensor) -> Any:
        """Return the Pyro distribution of the targets."""
        return self.of.observed(latents, x, None)[0]

    def cut(self, y: Tensor) -> Tensor:
        """Return the targets within their bounds."""
        return self.of.cut(y)

    def fits(self, y: Tensor) -> Tensor:
        """Return a mask of the valid targets."""
        return self.of.fits(y)

    def check(self, data: Dataset) -> None:
        """Raise ValueError as the regression does, or unless the groups are columns."""
        self.of.check(data)
        if self.groups and max(self.groups) >= data.x.shape[1]:
            raise ValueError(f"groups={self.groups!r:.80}: x has {data.x.shape[1]} columns")


def effects_of(model: object) -> set[int]:
    """Return the column numbers of a mixed model's groups; none of another model."""
    return {*model.groups} if isinstance(model, MixedRegression) else set()


@dataclass(frozen=True)
class MixedRecords:
    """A mixed model whose records are whole groups: the effect is integrated out.

    A record's features are those of its R rows, each with a last one that is 1 if there is such a
    row and 0 if it is padding, (G, R (d + 1)); targets are (G, R).

    Args:
        mixed: the model of a row.
        rows: R.

    >>> model = MixedRecords(MixedRegression(of=BayesianPoissonRegression(largest=9)), 5)
    >>> x, y = torch.randn(4, 5, 2), torch.ones(4, 5)
    >>> model.records(x, torch.ones(4, 5)).shape
    torch.Size([4, 15])
    """

    mixed: MixedRegression
    rows: int

    @staticmethod
    def records(x: Tensor, present: Tensor) -> Tensor:
        """Return the features of groups' records from those of their rows, (G, R, d)."""
        return torch.cat([x, present.unsqueeze(-1).to(x)], -1).flatten(1)

    def identified(self, features: int) -> Tensor:
        """Return the identified sums of weights, as :meth:`.Family.identified`."""
        return self.mixed.of.identified(features // self.rows - 1)

    def __call__(self, x: Tensor, y: Tensor | None = None) -> None:
        """Sample the latent variables, and observe the groups."""
        import pyro
        import pyro.distributions as dist

        from bdpvi.models.grouped import RandomIntercept  # loads Pyro

        of, parts = self.mixed.of, x.reshape(len(x), self.rows, -1)
        rows, present = parts[..., :-1].flatten(0, 1), parts[..., -1] > 0.5
        latents = {
            name: pyro.sample(name, dist.Normal(mean, sd).to_event(mean.ndim))
            for name, (mean, sd) in self.mixed.priors(rows).items()
        }
        eta = of.predictors(latents, rows).reshape(present.shape)
        spread = latents["log_spread"].exp()
        law = RandomIntercept(_law_of(of, latents), eta, spread, present)
        with pyro.plate("records", len(x)):
            pyro.sample("y", law, obs=None if y is None else of.cut(y))


def _law_of(of: Inner, latents: Mapping[str, Tensor]) -> Callable[[Tensor], Any]:
    """Return the law of a row by its predictor."""
    import pyro.distributions as dist

    match of.target:
        case "label":
            return lambda a: dist.Bernoulli(logits=a)
        case "number":
            return lambda a: dist.Normal(a, latents["log_scale"].exp())
        case _:
            return lambda a: dist.Poisson(a.clamp(-REACH, REACH).exp())
