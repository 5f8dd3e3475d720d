"""The interface of a guide, for training, for releases, and for writing your own guide."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NoReturn, Protocol, runtime_checkable

from torch import Tensor
from torch.distributions import Distribution
from torch.distributions.constraints import Constraint

from bdpvi.noise.secure import Lattice

Free = dict[str, Tensor]
"""Unconstrained parameters of m guides, each (m, ...)."""


class Guide(Protocol):
    """A Pyro guide that is Gaussian over one flat vector of latents; see ``bdpvi.guides``."""

    parameters: dict[str, Tensor]

    @property
    def ridge(self) -> float:
        """Return κ of the covariance Σ + κΣ² of released samples; usually 0."""

    @property
    def noise_scale(self) -> float | None:
        """Return the public standard deviation of released samples, None if they use Σ."""

    @property
    def grid(self) -> float:
        """Return the rounding step of samples at temperature 1, if there is no noise scale."""

    def lattice(self, temperature: float) -> Lattice:
        """Return the lattice that samples at a temperature are rounded to."""

    @property
    def constraints(self) -> Mapping[str, Constraint]:
        """Return the support of every parameter."""

    def setup(self, x: Tensor, y: Tensor) -> None:
        """Run the model once to learn its latent variables."""

    def __call__(self, x: Tensor, y: Tensor) -> Any:
        """Run as a Pyro guide."""

    def distribution(self, parameters: Mapping[str, Tensor]) -> Distribution:
        """Return the Gaussian with these parameters; their leading dimensions are a batch."""

    def posterior(self, parameters: Mapping[str, Tensor] | None = None) -> Distribution:
        """Return the Gaussian, detached."""

    def released(self, parameters: Mapping[str, Tensor] | None = None) -> Distribution:
        """Return the Gaussian of released samples at temperature 1, detached."""

    def initial(self, like: Tensor) -> dict[str, Tensor]:
        """Return the initial value of every parameter."""

    def unpack(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the model's latent variables for one flat vector."""


@runtime_checkable
class Reparameterised(Guide, Protocol):
    """A guide that knows the derivative of its own draws: ``MeanField`` and ``FullRank`` do."""

    @property
    def dim(self) -> int:
        """Return d, the length of the flat vector."""

    def pushforward(
        self, free: Mapping[str, Tensor], noise: Tensor
    ) -> tuple[Tensor, Callable[[Tensor], Free]]:
        """Return the latents of m guides, (m, d), for one base noise, (d,), and the pullback.

        The pullback takes a loss's gradient in the latents, (m, d), to the gradient in ``free`` of
        that loss minus the guide's entropy.
        """


def check_steps(guide: object, seals: bool = False) -> None:
    """Raise ValueError if steps on batches cannot train the guide, or guides of its class.

    Args:
        guide: the guide.
        seals: whether Pyro's ``AutoLaplaceApproximation`` is taken, whose steps find the mode; it
            then refuses to read the records once more.
    """
    from pyro.infer.autoguide import AutoLaplaceApproximation  # late: settings need none

    for one in [guide] if isinstance(guide, type) else _within(guide):
        kind = one if isinstance(guide, type) else type(one)
        if one is guide and getattr(one, "is_mode", False):
            raise ValueError(
                f"guide: {kind.__name__} is the mode, which bdpvi.fit alone finds; use FullRank"
            )
        if hasattr(kind, "laplace_approximation"):
            refusal = partial(_refuse_curvature, kind.__name__)
            if not seals or type(one) is not AutoLaplaceApproximation:
                refusal()
            sealed: Any = one
            sealed.laplace_approximation = refusal


def _refuse_curvature(kind: str, *_: object, **__: object) -> NoReturn:
    raise ValueError(
        f"guide: {kind}.laplace_approximation reads the records once more, without noise; use "
        "AutoMultivariateNormal, whose covariance is trained within ε"
    )


def _within(guide: object) -> Iterator[Any]:
    """Yield a guide and what it can reach."""
    from bdpvi.models.reachable import reachable  # late: settings need none

    return (one for _, one in reachable(guide=guide))


def check_unused(guide: object) -> None:
    """Raise ValueError if a guide of Pyro's, or a part of one, has been run."""
    if guide is None:
        return
    from pyro.contrib.easyguide import EasyGuide  # late: settings need none
    from pyro.infer.autoguide import AutoGuide
    from pyro.infer.autoguide.effect import AutoMessenger

    for one in _within(guide):
        used = isinstance(one, AutoGuide | EasyGuide) and one.prototype_trace is not None
        if isinstance(one, AutoMessenger):
            used = "locs" in one._modules
        if used:
            raise ValueError(
                f"guide: this {type(one).__name__} has been run, and if it was trained on these "
                "records no ε covers its parameters. Call pyro.clear_param_store() and make a new "
                "one. Nothing was charged"
            )
