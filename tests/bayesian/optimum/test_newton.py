"""Newton's method for points side by side, against roots in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from bdpvi.bayesian.optimum.newton import Steps, climb, settle


@dataclass(frozen=True)
class Rounded:
    """A point near a maximum whose values and gradients alternate by rounding."""

    value: float = 1.0
    gradient_norm: float = 1e-15

    def step(self, size: float) -> Rounded:
        """Return the other point."""
        return Rounded(3.0 - self.value, 2.5e-15 - self.gradient_norm)


def test_points_that_alternate_by_rounding_end_the_search() -> None:
    path = climb(Rounded(), 0.0, enough=lambda _: True, smallest=1.0)
    assert len(path) <= 3
    with pytest.raises(FloatingPointError, match="tolerance=0 is out of reach"):
        climb(Rounded(), 0.0)


@pytest.mark.parametrize("axis", [0, 1])
def test_points_settle_at_their_roots_and_do_not_depend_on_others(axis: int) -> None:
    """The roots of x³ + x = t³ + t are t; a slope of one, right at 0 alone, makes slow steps."""
    roots = torch.tensor([[0.0, 1e-3], [0.05, -0.1], [0.3, 0.2], [2.0, -3.0]]).double()
    roots = roots if axis == 1 else roots.T
    targets, sizes = roots**3 + roots, list[int]()

    def problem(at: Tensor) -> Steps:
        mine = targets.index_select(1 - axis, at)
        sizes.append(len(at))
        return lambda x: x**3 + x - mine, lambda gradient: gradient

    enough = torch.full((4,), 1e-14).double()
    found, left = settle(problem, torch.zeros_like(roots), enough, axis)
    near = torch.arange(3)
    ours, exact = (every.index_select(1 - axis, near) for every in (found, roots))
    torch.testing.assert_close(ours, exact, rtol=0, atol=1e-13)
    assert float(left[:3].max()) <= 1e-13
    assert float(left[3]) > 1  # full steps diverge there, and the best point stands
    assert sizes[0] == 4 > sizes[-1]
    for one in range(4):
        index = torch.tensor([one])

        def alone(at: Tensor, index: Tensor = index) -> Steps:
            return problem(index[at])

        start = torch.zeros_like(roots.index_select(1 - axis, index))
        again, _ = settle(alone, start, enough[:1], axis)
        assert torch.equal(again, found.index_select(1 - axis, index))
