"""Newton's method for a fit, and for its neighbours side by side, which start from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch
from torch import Tensor

from bdpvi._ground.outputs import several

if TYPE_CHECKING:
    from typing_extensions import Self

_STEPS, _TURNS = 500, 60
_LATE, _FLAT = 1e-3, 1e-12
"""Norm of a gradient below which the optimum is near; and changes of a value, relative to it, that
are rounding."""


class SearchPoint(Protocol):
    """A point of a search for the highest value."""

    @property
    def value(self) -> float:
        """The value here."""

    @property
    def gradient_norm(self) -> float:
        """Norm of the gradient, in units in which the Hessian is about the identity."""

    def step(self, size: float) -> Self:
        """Return the point after this share of a step."""


P = TypeVar("P", bound=SearchPoint)


def climb(
    point: P,
    tolerance: float,
    reached: Callable[[P], object] = lambda point: None,
    enough: Callable[[P], bool] = lambda point: False,
    smallest: float = 1e-6,
) -> list[P]:
    """Return the points of an ascent, the last within ``tolerance``.

    Steps are halved until the value rises (a full step overshoots where a tight clip leaves little
    curvature); near the maximum, where its change is below rounding, until the gradient falls.

    Args:
        point: the start.
        tolerance: stop when the norm of the gradient is below it.
        reached: called with every point but the first.
        enough: whether to accept a point if rounding keeps the gradient above ``tolerance``.
        smallest: share of a step near the maximum below which only rounding is left.

    Raises:
        FloatingPointError: if the gradient norm cannot be brought down to ``tolerance``.
    """
    path, size = [point], 1.0
    while path[-1].gradient_norm > tolerance:
        here, size = path[-1], min(1.0, 2 * size)
        least = smallest if here.gradient_norm < _LATE else 1e-6
        new = here.step(size)
        while len(path) > _STEPS or not _better(new, here):
            size /= 2
            if size < least or len(path) > _STEPS:
                if enough(here):
                    return path
                raise FloatingPointError(
                    f"tolerance={tolerance:g} is out of reach: the gradient norm stays at "
                    f"{here.gradient_norm:.3g} after {several(len(path), 'step')}; raise the "
                    "tolerance or rescale the features"
                )
            new = here.step(size)
        path.append(new)
        reached(new)
    return path


def _better(new: P, here: P) -> bool:
    falls = new.gradient_norm < here.gradient_norm
    if here.gradient_norm < _LATE:
        return falls  # values differ by rounding alone, which could rise and fall for ever
    return new.value > here.value or (falls and new.value >= here.value - _FLAT * abs(here.value))


Steps = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]
"""The gradients at some points, and what a gradient's Newton step subtracts from a point."""


def settle(
    problem: Callable[[Tensor], Steps], start: Tensor, enough: Tensor, axis: int
) -> tuple[Tensor, Tensor]:
    """Return points at which gradients are about 0, and the gradients' norms there.

    Each point stops when its gradient is small or no longer halves; those that still move are
    treated alone as soon as they are fewer than half.

    Args:
        problem: returns the functions of the points with these indices.
        start: the first points.
        enough: norm of a gradient from which on a point stays, of each.
        axis: the axis along which a point lies.
    """
    result, best = start.clone(), torch.full_like(enough, torch.inf)
    at, point = torch.arange(len(enough), device=start.device), start
    gradient, step = problem(at)
    for _ in range(_TURNS):
        pull = gradient(point)
        size, before = pull.square().sum(axis).sqrt(), best[at]
        better = (size < before).nonzero()[:, 0]
        result.index_copy_(1 - axis, at[better], point.index_select(1 - axis, better))
        best[at[better]] = size[better]
        moving = ((size < before / 2) & (size > enough[at])).unsqueeze(axis)
        if not bool(moving.any()):
            break
        point = torch.where(moving, point - step(pull), point)
        if 2 * int(moving.sum()) < len(at):
            rest = moving.flatten().nonzero()[:, 0]
            at, point = at[rest], point.index_select(1 - axis, rest)
            gradient, step = problem(at)
    return result, best
