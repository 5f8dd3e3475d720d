r"""Regressions with a likelihood of one's own, and bounds on it that its author states.

The likelihood ℓ(a; y) = −log p(y | a) depends on a record through one linear predictor a and the
target y. Draws from ``guides.Laplace`` then have a certificate like those of the library's
regressions, by the same proof (:mod:`bdpvi.bayesian.mode.influence`), if :class:`.LossBound` holds
at every predictor and target: |ℓ′| ≤ s, 0 ≤ ℓ″ ≤ κ, and |ℓ⁽ᵏ⁾| ≤ M^{k−2} ℓ″ for k from 3 to 6. The
first two and k = 3 and 4 bound any record; k up to 6 bounds the error of neighbours' expansions.

No computation proves this of a program, so it is an assumption, which every receipt names. It is
tested at public points: random targets within the stated ones, and predictors of every size from
a tenth to a hundred times 1/M, the distance over which a curvature changes; and at pairs of them,
as derivatives do not show jumps. They follow from the arguments alone, so whether a model is
refused does not depend on any record.

*Where to get bounds.* ln(1 + e^{c(a − t)}) has s = |c|, κ = c²/4 and M = |c|. In a sum of losses s
and κ add up, and M is the largest one; a multiple of a loss has multiples of s and κ; a linear term
changes s alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi.models.family import LIMIT, Regression
from bdpvi.models.losses import LossBound, PredictorLoss

HIGHEST = 6
"""The highest derivative that :class:`.LossBound` is stated for."""
_POINTS = 4096
_SMALL, _LARGE = 0.1, 100.0
"""Sizes of the predictors of public points, in units of 1/M."""
_ROUNDING = 1e-8
"""Error of a derivative, relative to its largest stated value: softplus of torch has 2e-9."""


@dataclass(frozen=True)
class StatedLoss(PredictorLoss):
    """The loss of a likelihood of one's own, with bounds that are stated and not proved.

    Derivatives are by automatic differentiation.

    Args:
        family: the Pyro distribution of N targets for predictors (N,).
        bound: as stated.

    >>> from torch.distributions import Bernoulli
    >>> loss = StatedLoss(lambda a: Bernoulli(logits=a), LossBound(1.0, 0.25, 1.0))
    >>> [round(float(one), 4) for one in loss.slopes(torch.tensor([1.0]), torch.ones(1), 3)]
    [-0.2689, 0.1966, -0.0909]
    """

    family: Callable[[Tensor], Any]
    bound: LossBound

    stated: ClassVar[bool] = True

    def value(self, a: Tensor, y: Tensor) -> Tensor:
        """Return ℓ; shapes are broadcast."""
        a, y = torch.broadcast_tensors(a, y)
        each: Tensor = -self.family(a.flatten()).log_prob(y.flatten())
        return each.reshape(a.shape)

    def slopes(self, a: Tensor, y: Tensor, degree: int) -> list[Tensor]:
        """Return the derivatives from the first to that of ``degree``."""
        slopes: list[Tensor] = []
        with torch.enable_grad():
            at = torch.broadcast_tensors(a, y)[0].detach().clone().requires_grad_()
            last = self.value(at, y)
            for k in range(degree):
                if not last.requires_grad:  # it is constant
                    last = at * 0
                (last,) = torch.autograd.grad(last.sum(), at, create_graph=k + 1 < degree)
                slopes.append(last.detach())
        return slopes


@dataclass(frozen=True, kw_only=True)
class OwnRegression(Regression):
    """A regression with a likelihood of your own in a linear predictor, and stated bounds on it.

    Records are weighted and the prior is set as by :meth:`.Regression.bounded`. Targets beyond the
    public ``targets`` are clipped to them.

    Args:
        family: returns the Pyro distribution of N targets for N linear predictors, (N,) float64.
            Each target depends on its own predictor alone, and the distribution on nothing else:
            other parameters are public numbers.
        bound: s, κ and M of −log p in the predictor, for every target within ``targets``. It is not
            proved: receipts say that its author states it.
        targets: smallest and largest target, public.
        whole: whether targets are whole numbers.
        middle: public prior mean of the intercept.
        prior_scale, limit, levels, weight_norm: as in :class:`.Regression`.

    Raises:
        ValueError: if a random public point contradicts ``bound``, with its kind; or an argument is
            invalid.

    >>> import pyro.distributions as dist
    >>> model = OwnRegression(
    ...     family=lambda a: dist.Binomial(5, logits=a), targets=(0, 5), whole=True,
    ...     bound=LossBound(score=5.0, curvature=5 / 4, concordance=1.0))
    >>> model.loss.bound == model.bound
    True
    >>> OwnRegression(family=lambda a: dist.Binomial(5, logits=a), targets=(0, 5), whole=True,
    ...     bound=LossBound(score=5.0, curvature=1.2, concordance=1.0))
    Traceback (most recent call last):
        ...
    ValueError: bound: the curvature at a random public point is not within curvature=1.2; state \
bounds that hold at every predictor and target
    """

    family: Callable[[Tensor], Any]
    bound: LossBound
    targets: tuple[float, float]
    whole: bool = False
    middle: float = 0.0
    prior_scale: float | None = None
    limit: float | None = LIMIT
    weight_norm: float | None = None

    kind: ClassVar[str] = "own"
    target = "number"

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = (validate.finite_number("targets", target) for target in self.targets)
        if not low < high:
            raise ValueError(f"targets must be a smaller and a larger number, got {self.targets!r}")
        if self.whole and not (low.is_integer() and high.is_integer()):
            raise ValueError(f"targets must be whole numbers with whole=True, got {self.targets!r}")
        validate.finite_number("middle", self.middle)
        for name in ("score", "curvature", "concordance"):
            validate.positive(f"bound.{name}", getattr(self.bound, name))
        if self.weighs:
            with torch.device("cpu"):
                self._check_at_public_points()

    @property
    def loss(self) -> StatedLoss | None:
        """The loss of a weighted record."""
        return StatedLoss(self.family, self.bound) if self.weighs else None

    def _check_at_public_points(self) -> None:
        """Raise ValueError if a random public point contradicts the bounds."""
        assert self.loss is not None
        a, y, step = self._public_points()
        try:
            value, alone = self.loss.value(a, y), self.loss.value(a.flip(0)[::3], y.flip(0)[::3])
            here = [value, *self.loss.slopes(a, y, HIGHEST)]
            there = [self.loss.value(a + step, y), *self.loss.slopes(a + step, y, HIGHEST - 1)]
        except Exception as error:
            raise ValueError(
                f"family raised {type(error).__name__} at random public points ({error!s:.80}); it "
                "must take predictors (N,) and return a distribution of N targets within "
                f"targets={self.targets!r}"
            ) from error
        if not all(bool(one.isfinite().all()) for one in (*here, *there)):
            raise ValueError(
                "family: the log-density or a derivative at a random public point is not finite; "
                "write it without overflow, as by torch.nn.functional.logsigmoid"
            )
        if not torch.allclose(alone, value.flip(0)[::3]):
            raise ValueError(
                "family: the log-density of a target changes with other predictors or between "
                "calls; let it follow from the target's own predictor and fixed numbers"
            )
        found = _contradiction(self.bound, here) or _pair_contradiction(
            self.bound, here, there, step
        )
        if found:
            name, which = found
            raise ValueError(
                f"bound: {name} is not within {which}={getattr(self.bound, which):g}; state bounds "
                "that hold at every predictor and target"
            )

    def _public_points(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return predictors, targets and steps, (N,) each; they follow from the arguments alone."""
        (low, high), g = self.targets, torch.Generator().manual_seed(0)

        def uniform() -> Tensor:
            return torch.rand(_POINTS, generator=g, dtype=torch.float64, device="cpu")

        y = low + (high - low) * uniform()
        if self.whole:
            y = y.round()
        y[::4], y[1::4] = low, high
        near_targets, middle = uniform() < 0.5, y.new_tensor(float(self.middle))
        centre = torch.where(near_targets, low + (high - low) * uniform(), middle)
        unit = 1 / self.bound.concordance
        sizes = _SMALL * (_LARGE / _SMALL) ** uniform() * unit
        a = centre + sizes * torch.randn(_POINTS, generator=g, dtype=torch.float64, device="cpu")
        return a, y, 2 * uniform() * unit

    @property
    def centre(self) -> float:
        """The intercept's prior mean."""
        return self.middle

    @property
    def rule(self) -> str:  # type: ignore[override]
        """What targets must do, in words."""
        return "be whole numbers" if self.whole else "be finite"

    def likelihood(self, latents: Mapping[str, Tensor], x: Tensor) -> Any:
        """Return the Pyro distribution of the targets."""
        return self.family(self.predictors(latents, x))

    def cut(self, y: Tensor) -> Tensor:
        """Return the targets within their public bounds."""
        return y.clamp(*self.targets)

    def fits(self, y: Tensor) -> Tensor:
        """Return a mask of the valid targets, (N,)."""
        return y.isfinite() & ((y == y.round()) if self.whole else True)


def _contradiction(bound: LossBound, here: Sequence[Tensor]) -> tuple[str, str] | None:
    """Return the kind of a point that contradicts the bounds, and the constant; None without any.

    Args:
        bound: the bounds.
        here: the loss and its derivatives at the points, in order, (N,) each.
    """
    _, first, second, *higher = here
    room = _ROUNDING * bound.curvature
    found = {
        ("the score", "score"): first.abs() - bound.score * (1 + _ROUNDING),
        ("the curvature", "curvature"): second - bound.curvature - room,
        ("a negative curvature", "curvature"): -second - room,
    }
    for k, one in enumerate(higher, 1):
        excess = one.abs() - bound.concordance**k * (second + room)
        found[f"the derivative of order {k + 2}", "concordance"] = excess
    for (name, which), excess in found.items():
        if bool((excess > 0).any()):
            return f"{name} at a random public point", which
    return None


def _pair_contradiction(
    bound: LossBound, here: Sequence[Tensor], there: Sequence[Tensor], step: Tensor
) -> tuple[str, str] | None:
    """Return as :func:`_contradiction` the kind of a pair of points that does.

    Over a step h ℓ″ changes at most by the factor e^{Mh}, so ℓ⁽ᵏ⁾ changes at most by M^{k−1} times
    its integral, ℓ″(e^{Mh} − 1)/M. That excludes jumps, which derivatives do not show.
    """
    size, second = bound.concordance, here[2] + _ROUNDING * bound.curvature
    grown = torch.expm1(size * step) / size
    for k in range(1, HIGHEST):
        most = size ** (k - 1) * second * grown
        rounding = _ROUNDING * (bound.score if k == 1 else bound.curvature * size ** (k - 2))
        if bool(((there[k] - here[k]).abs() > most + rounding).any()):
            name = {1: "the score", 2: "the curvature"}.get(k, f"the derivative of order {k}")
            return f"the change of {name} between two random public points", "concordance"
    rise = there[0] - here[0] - step * here[1]
    most = second * (grown - step) / size
    of_sum = _ROUNDING * (here[0].abs() + there[0].abs() + bound.score / size)
    if bool(((rise < -of_sum) | (rise > most + of_sum)).any()):
        return "the change of the loss between two random public points", "concordance"
    return None
