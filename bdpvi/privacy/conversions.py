"""From the cost of a mechanism to (ε, δ), and back.

A cost is a log-moment: c(λ) = log E exp(λ L), where L is the privacy loss of a draw for a random
record. The order λ > 0 belongs to the Rényi order α = λ + 1, and c(λ)/λ is the Rényi divergence
of the pair (draw, record).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bdpvi._ground import validate

Number = Tensor | float

_ROUNDING = 1e-9
"""A cost this far below 0, or a β this small a fraction of δ, is 0 up to rounding."""


def _tensor(value: Number) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64)


def _positive(name: str, value: Number) -> Tensor:
    tensor = _tensor(value)
    return validate.every(name, tensor, (tensor > 0) & tensor.isfinite(), "be finite and positive")


def _cost(value: Number) -> Tensor:
    """A log-moment is never negative; rounding below 0 counts as 0."""
    cost = _tensor(value)
    return validate.every("cost", cost, cost >= -_ROUNDING, "be at least 0").clamp(min=0)


def _offset(rule: str, order: Tensor) -> Tensor:
    """Each rule is log δ = c(λ) − λ ε + offset(λ), so one line gives ε from δ and one δ from ε."""
    if rule == "cks":
        return -order * torch.log1p(1 / order) - torch.log1p(order)
    if rule == "chernoff":
        return torch.zeros_like(order)
    raise ValueError(f"rule must be 'chernoff' or 'cks', got {rule!r}")


def epsilon(cost: Number, order: Number, delta: Number, rule: str = "cks") -> Tensor:
    """Return the ε that a cost at one order gives at ``delta``.

    Rule ``"cks"`` is Canonne, Kamath and Steinke (2020), Proposition 12:
    ε = c/λ + log((α−1)/α) − (log δ + log α)/(α−1) with α = λ + 1. It gives Bayesian DP,
    Pr[A(D) ∈ S] ≤ e^ε Pr[A(D′) ∈ S] + δ. Rule ``"chernoff"`` is Triastcyn and Faltings (2020),
    Corollary 1: ε = (c − log δ)/λ. It gives strong Bayesian DP, Pr[L ≥ ε] ≤ δ, and is the
    conversion of the moments accountant.

    Args:
        cost: c(λ), at least 0; +inf gives +inf.
        order: λ, positive, any shape that broadcasts with ``cost``.
        delta: the part of δ that the estimates do not use (see :func:`split_delta`).
        rule: ``"cks"`` or ``"chernoff"``.

    Returns:
        ε, at least 0, of the broadcast shape, float64.

    Raises:
        ValueError: if an argument is NaN or out of range, or the rule is unknown.

    >>> round(float(epsilon(0.5, order=10.0, delta=1e-5)), 4)
    0.8662
    >>> round(float(epsilon(0.5, order=10.0, delta=1e-5, rule="chernoff")), 4)
    1.2013
    """
    cost, order = _cost(cost), _positive("order", order)
    delta = _tensor(delta)
    validate.every("delta", delta, (delta > 0) & (delta < 1), "lie strictly between 0 and 1")
    # A negative ε is never needed: the same δ holds at every larger ε.
    return ((cost + _offset(rule, order) - torch.log(delta)) / order).clamp(min=0)


def delta(cost: Number, order: Number, epsilon: Number, rule: str = "cks") -> Tensor:
    """Return the δ that a cost at one order gives at ``epsilon``: the inverse of :func:`epsilon`.

    Args:
        cost: c(λ), at least 0; +inf gives 1.
        order: λ, positive, any shape that broadcasts with ``cost``.
        epsilon: at least 0.
        rule: ``"cks"`` or ``"chernoff"``.

    Returns:
        δ, at most 1, of the broadcast shape, float64.

    Raises:
        ValueError: if an argument is NaN or out of range, or the rule is unknown.

    >>> eps = epsilon(0.5, order=10.0, delta=1e-5)
    >>> round(float(delta(0.5, order=10.0, epsilon=eps)), 12)
    1e-05
    """
    return log_delta(cost, order, epsilon, rule).exp().clamp(max=1)


def log_delta(cost: Number, order: Number, epsilon: Number, rule: str = "cks") -> Tensor:
    """Return the logarithm of :func:`delta`, which may be above 0; its derivative in ε is −λ.

    >>> round(float(log_delta(0.5, order=10.0, epsilon=0.0) - 10.0 * 0.3), 4)
    -5.851
    """
    cost, order = _cost(cost), _positive("order", order)
    epsilon = _tensor(epsilon)
    validate.every(
        "epsilon", epsilon, (epsilon >= 0) & epsilon.isfinite(), "be finite and at least 0"
    )
    return cost + _offset(rule, order) - order * epsilon


def split_delta(delta: float, failure_probability: float, estimates: int) -> float:
    """Return β, the part of δ = β + estimates · γ that the conversion may use.

    Args:
        delta: the reported δ.
        failure_probability: γ, the probability that an estimate is below the truth; 0 for never.
        estimates: number of bounds behind the result: every order that *could* have been
            picked, in every direction, not only those evaluated.

    Raises:
        ValueError: if the estimates use up δ.

    >>> split_delta(1e-5, failure_probability=1e-8, estimates=100)
    9e-06
    """
    delta = validate.probability("delta", delta)
    estimates = validate.positive_int("estimates", estimates)
    if not 0 <= failure_probability < 1:
        raise ValueError(f"failure_probability must lie in [0, 1), got {failure_probability!r}")
    rest = delta - estimates * failure_probability
    if not rest > _ROUNDING * delta:
        raise ValueError(
            f"delta={delta!r} must exceed estimates * failure_probability = "
            f"{estimates} * {failure_probability!r} = {estimates * failure_probability!r}"
        )
    return rest


@dataclass(frozen=True, eq=False)
class Orders:
    """The candidate orders of a minimum, fixed before any record is seen.

    A search that picks its next order by the records' cost at the last one could have ended at
    any order of its grid. The union bound therefore counts them all, ``len(orders)``, however
    few the search evaluates; at γ = 1e-15 that is cheap.

    Attributes:
        values: λ, ascending, (n,) float64.

    Raises:
        ValueError: if ``values`` is empty, not positive and finite, or not ascending.

    >>> len(Orders(torch.arange(1, 100)))
    99
    """

    values: Tensor

    def __post_init__(self) -> None:
        values = _positive("values", self.values)
        if values.ndim != 1 or len(values) == 0:
            raise ValueError(f"values must have shape (n,), got {tuple(values.shape)}")
        if not bool((values.diff() > 0).all()):
            raise ValueError(f"values must be ascending, got {values.tolist()}")
        object.__setattr__(self, "values", values)

    def __len__(self) -> int:
        return len(self.values)

    def index(self, order: Tensor) -> Tensor:
        """Return the index in ``values`` of each of ``order`` (k,).

        Raises:
            ValueError: if one of them is missing.
        """
        place = torch.searchsorted(self.values, order).clamp(max=len(self) - 1)
        if not torch.equal(self.values[place], order):
            raise ValueError(f"order={order.tolist()} is not among {self.values.tolist()}")
        return place


REAL_ORDERS = Orders(torch.logspace(-1, 5, 2049, dtype=torch.float64, device="cpu"))
"""λ from 0.1 to 1e5 in steps of 0.7 %, which move the smallest ε by less than 1e-5."""

INTEGER_ORDERS = Orders(torch.arange(1, 257, device="cpu"))
"""λ = 1 … 256, for costs known at integer orders only."""

EPSILONS = torch.logspace(-6, 3, 4097, dtype=torch.float64, device="cpu")
"""The possible ε of an answer, fixed beforehand, in steps of 0.5 %."""


def position(epsilon: float) -> int:
    """Return the index of the largest of :data:`EPSILONS` that is at most ``epsilon``, or -1.

    >>> position(float(EPSILONS[7])), position(0.0)
    (7, -1)
    """
    return int(torch.searchsorted(EPSILONS, epsilon, right=True)) - 1


class Minimum(NamedTuple):
    """The smallest value of a search, and its order."""

    value: float
    order: float


def minimise_epsilon(
    cost: Callable[[Tensor], Tensor],
    delta: float,
    orders: Orders = REAL_ORDERS,
    rule: str = "cks",
) -> Minimum:
    """Return the smallest ε over ``orders`` and its order.

    λε is convex in λ for either rule because the log-moment c is, so ε has one valley: a coarse
    pass finds it, finer passes descend into it. If an estimate of c is not convex the search may
    miss the minimum; the result is still a valid ε.

    Args:
        cost: maps orders (k,) to costs (k,).
        delta: β from :func:`split_delta` with ``estimates=len(orders)`` (twice as many if two
            directions are estimated).
        orders: the candidates.
        rule: ``"cks"`` or ``"chernoff"``.

    Returns:
        (ε, λ); ε is +inf if every cost is.

    >>> gaussian = lambda order: order * (order + 1) * 0.01 / 2
    >>> minimum = minimise_epsilon(gaussian, delta=1e-5)
    >>> round(minimum.value, 4), round(minimum.order, 1)
    (0.3753, 39.4)
    """
    return _search(lambda order: epsilon(cost(order), order, delta, rule), orders)


def minimise_delta(
    cost: Callable[[Tensor], Tensor],
    epsilon: float,
    orders: Orders = REAL_ORDERS,
    rule: str = "cks",
) -> Minimum:
    """Return the smallest β over ``orders`` at ``epsilon`` and its order.

    Add the part used by the estimates, ``len(orders)`` · γ for each direction. Arguments as for
    :func:`minimise_epsilon`.

    >>> gaussian = lambda order: order * (order + 1) * 0.01 / 2
    >>> eps = minimise_epsilon(gaussian, delta=1e-5).value
    >>> round(minimise_delta(gaussian, eps).value, 9)
    1e-05
    """
    return _search(lambda order: delta(cost(order), order, epsilon, rule), orders)


_FIRST_STRIDE, _NARROWING = 256, 4


def _search(objective: Callable[[Tensor], Tensor], orders: Orders) -> Minimum:
    """Descend into the valley of ``objective`` by every 256th order, every 64th, … every order."""
    low, high, stride = 0, len(orders) - 1, _FIRST_STRIDE
    while len(orders) <= 2 * stride and stride > 1:
        stride //= _NARROWING
    found: dict[int, float] = {}
    while True:
        index = sorted({*range(low, high, stride), high} - set(found))
        values = objective(orders.values[torch.tensor(index)]).tolist()
        found.update(zip(index, values, strict=True))
        best = min(found, key=lambda i: (found[i], i))
        if stride == 1:
            return Minimum(found[best], float(orders.values[best]))
        low, high = max(best - stride, 0), min(best + stride, len(orders) - 1)
        stride //= _NARROWING


CKS, HOCKEY_STICK = "cks", "hockey-stick"
CONVERSIONS = (CKS, "chernoff", HOCKEY_STICK)
SMALL = 1e-30
"""γ of an estimate by Student's t."""


TESTS = 2 * len(EPSILONS).bit_length()
"""Tests of a bisection of :data:`EPSILONS`, which may also find that no ε suffices: two at each ε
that it tries."""


def least_failure(delta: float, estimates: int = TESTS) -> float:
    """Return γ of each estimate by betting, whose bound holds for every distribution of records.

    Together they use at most a thousandth of δ, however small δ is. A constant γ would use up
    every δ below about 1e-6.

    >>> least_failure(1e-2), least_failure(1.3e-8)
    (1e-09, 5e-13)
    """
    return min(1e-9, 1e-3 * delta / estimates)
