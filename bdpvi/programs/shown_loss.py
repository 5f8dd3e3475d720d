"""What a private step shows of its loss: nothing, or a noisy sum that is charged with the step."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from bdpvi._ground import validate
from bdpvi.programs.descent import GradientClip
from bdpvi.releases.clipping import clip_of


class Undisclosed(float):
    """A loss that is not shown: a NaN that prints as ``undisclosed`` in every format.

    Scripts written for ``pyro.infer.SVI`` may print, add and average it. With a number it makes
    another; it is compared, and converted by ``int``, as NaN is. Of ``"%.3f" % loss`` Python makes
    ``nan``.

    >>> losses = [Undisclosed(), Undisclosed()]
    >>> print(f"{losses[0]:.4f}", sum(losses) / 2, round(-losses[1], 2), losses[0] < 3)
    undisclosed undisclosed undisclosed False
    """

    def __new__(cls, *_: object) -> Undisclosed:
        """Return one; what a copy is made of is ignored."""
        return super().__new__(cls, math.nan)

    def __repr__(self) -> str:
        return "undisclosed"

    __str__ = __repr__

    def __format__(self, form: str) -> str:
        return repr(self)

    def _same(self, *others: Any) -> Any:
        numbers = all(other is None or isinstance(other, int | float) for other in others)
        return self if numbers else NotImplemented

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _same
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _same
    __neg__ = __pos__ = __abs__ = __round__ = _same


UNDISCLOSED = Undisclosed()


def joint_multiplier(gradients: float, losses: float) -> float:
    r"""Return the noise multiplier z of one step that releases gradients and losses.

    A record adds g to the gradients, ‖g‖ ≤ C, and l to the losses, \|l\| ≤ B, in the same Poisson
    batch. The noise has the standard deviations z₁C and z₂B. Divide the two parts by these: the
    noise is standard normal in each coordinate, and a record moves the mean by a vector of length
    √(‖g‖²/(z₁C)² + l²/(z₂B)²) ≤ √(z₁⁻² + z₂⁻²) = 1/z. So a step is the sampled Gaussian mechanism
    of noise multiplier z, for a bijection costs nothing (Dong, Roth and Su, "Gaussian Differential
    Privacy", JRSS B 2022, Corollary 3.3, for rate 1).

    Args:
        gradients, losses: z₁ and z₂.

    >>> joint_multiplier(3.0, 4.0)
    2.4
    """
    return gradients * losses / math.hypot(gradients, losses)


def with_loss(clip: GradientClip, noise_multiplier: float, noisy_loss: Any) -> Any:
    """Return the clipping rule and the noise multiplier of steps that may show a noisy loss.

    Args:
        clip: the rule for gradients.
        noise_multiplier: z of the gradients.
        noisy_loss: None, or the bound B on the size of a record's loss and its noise multiplier.

    Raises:
        ValueError: naming what is out of range.
    """
    if noisy_loss is None:
        return clip, noise_multiplier
    if not isinstance(noisy_loss, tuple | list) or len(noisy_loss) != 2:
        raise ValueError(
            f"noisy_loss={noisy_loss!r}: give a pair, the bound on the size of a record's loss and "
            "the noise multiplier of their sum, as noisy_loss=(10.0, 20.0)"
        )
    bound = clip_of("noisy_loss[0]", noisy_loss[0])
    its = validate.positive("noisy_loss[1]", noisy_loss[1])
    both = joint_multiplier(validate.positive("noise_multiplier", noise_multiplier), its)
    return replace(clip, share=both / its, loss=bound), both
