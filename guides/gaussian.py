"""Base class of the Gaussian guides over one flat vector of latents."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions.util import sum_rightmost
from torch import Tensor
from torch.distributions import Distribution
from torch.distributions.constraints import Constraint

from bdpvi._ground.validate import non_negative, positive
from bdpvi.models.contract import Model, Site, dimension, parts, unpack
from bdpvi.models.traces import sites
from bdpvi.noise.secure import Lattice

Pullback = Callable[[Tensor], dict[str, Tensor]]
"""Maps a loss's gradient in the latents to its gradient in a guide's parameters."""


class GaussianGuide(ABC):
    """A Pyro guide that is Gaussian in the model's unconstrained latents, as one vector.

    It has no plates, so it can never replace a model's batch by another one.

    Args:
        model: the Pyro model.
        init_scale: initial standard deviation of every latent.
        start: initial values of some or all parameters, constrained, instead of the default ones.
            They count as public: training starts there with and without a record, so ε does not
            cover what they reveal about the records from which they were computed.
        ridge: κ of the covariance Σ + κΣ² of released samples, see :meth:`released`.
        noise_scale: public standard deviation of every latent in released samples, instead of the
            guide's own covariance. No record can change it, so covariances leak nothing and ε has
            no floor; the samples then do not show the guide's uncertainty. None releases the
            guide's own covariance.
        grid: samples at temperature 1 are rounded to multiples of this public number (the power of
            two at or below it), so that their low bits leak nothing; at temperature τ it is √τ
            times as large. A coarse grid costs accuracy and no privacy, a very fine one costs δ
            (:mod:`bdpvi.noise.secure`). The default 2⁻¹⁰ suits standardised features: it should
            be well below the posterior's standard deviations, but must not be chosen by looking at
            them. A ``noise_scale`` determines it.

    Attributes:
        sites: the latent variables in the order of the flat vector; set by :meth:`setup`.
        parameters: constrained values after the last fit, detached; empty before.
    """

    constraints: ClassVar[Mapping[str, Constraint]]

    def __init__(
        self,
        model: Model,
        *,
        init_scale: float = 0.1,
        start: Mapping[str, Tensor] | None = None,
        ridge: float = 0.0,
        noise_scale: float | None = None,
        grid: float = 2.0**-10,
    ) -> None:
        self.model = model
        self.init_scale = positive("init_scale", init_scale)
        self.start = {name: value.detach().clone() for name, value in (start or {}).items()}
        if unknown := set(self.start) - set(self.constraints):
            raise ValueError(
                f"start has {sorted(unknown)}; {type(self).__name__} has the parameters "
                f"{sorted(self.constraints)}"
            )
        self._ridge = non_negative("ridge", ridge)
        self._noise_scale = None if noise_scale is None else positive("noise_scale", noise_scale)
        self._grid = positive("grid", grid)
        if ridge and noise_scale is not None:
            raise ValueError(f"ridge={ridge} shapes a covariance that noise_scale replaces")
        self.sites: tuple[Site, ...] = ()
        self.parameters: dict[str, Tensor] = {}

    @abstractmethod
    def usual_start(self, like: Tensor) -> dict[str, Tensor]:
        """Return the default initial parameters, used by :meth:`initial` without a ``start``."""

    @abstractmethod
    def distribution(self, parameters: Mapping[str, Tensor]) -> Distribution:
        """Return the Gaussian over the flat vector; leading dimensions are a batch."""

    @abstractmethod
    def widened(self, parameters: Mapping[str, Tensor]) -> Distribution:
        """Return the Gaussian with covariance Σ + ridge·Σ² instead of Σ."""

    @property
    def ridge(self) -> float:
        """κ; fixed, because the neighbours' costs were computed for it."""
        return self._ridge

    @property
    def noise_scale(self) -> float | None:
        """Standard deviation of released samples, if it is public; fixed like the ridge."""
        return self._noise_scale

    @property
    def grid(self) -> float:
        """Rounding step of samples at temperature 1, if there is no noise scale."""
        return self._grid

    def lattice(self, temperature: float) -> Lattice:
        """Return the rounding lattice of samples at a temperature: a function of public numbers."""
        root = math.sqrt(temperature)
        if self.noise_scale is not None:
            return Lattice.beside(root * self.noise_scale)
        return Lattice.of(root * self.grid)

    @property
    def dim(self) -> int:
        """Length of the flat vector of latents."""
        return dimension(self.sites)

    def setup(self, x: Tensor, y: Tensor) -> None:
        """Find the model's latent variables by running it once on a batch of records."""
        self.sites = sites(self.model, x, y)

    def initial(self, like: Tensor) -> dict[str, Tensor]:
        """Return the initial value of every parameter, with the dtype and device of ``like``.

        Raises:
            ValueError: if ``start`` does not fit the model's latent variables.
        """
        first = self.usual_start(like)
        for name, value in self.start.items():
            support = self.constraints[name]
            if value.shape != first[name].shape or not bool(support.check(value).all()):
                raise ValueError(
                    f"start[{name!r}] must be {support} {tuple(first[name].shape)}, got "
                    f"{tuple(value.shape)}: {value.flatten()[:3].tolist()}"
                )
            first[name] = value.to(like, copy=True)  # Pyro trains its arguments in place
        return first

    def __call__(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Run as a Pyro guide: one sample site per latent variable of the model.

        Raises:
            ValueError: if a latent variable has the name of one of the guide's parameters.
        """
        if not self.sites:
            self.setup(x, y)
        for site in self.sites:
            if site.name in self.constraints:
                raise ValueError(
                    f"model: latent site {site.name!r} has the name of a parameter of "
                    f"{type(self).__name__}; rename it"
                )
        initial = self.initial(x)
        parameters = {
            name: pyro.param(name, initial[name], constraint=constraint)
            for name, constraint in self.constraints.items()
        }
        gaussian = self.distribution(parameters)
        flat = pyro.sample("_latent", gaussian, infer={"is_auxiliary": True})
        latents = {}
        for site, part in zip(self.sites, parts(self.sites, flat), strict=True):
            value = site.transform(part)
            log_density = site.transform.inv.log_abs_det_jacobian(value, part)
            log_density = sum_rightmost(log_density, log_density.dim())
            point = dist.Delta(value, log_density=log_density, event_dim=value.dim())
            latents[site.name] = pyro.sample(site.name, point)
        return latents

    def unpack(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the model's latent variables for one flat unconstrained vector, (dim,)."""
        return unpack(self.sites, flat)

    def posterior(self, parameters: Mapping[str, Tensor] | None = None) -> Distribution:
        """Return the posterior over the flat vector as a detached torch distribution.

        Args:
            parameters: constrained values, with any leading batch shape; by default those of the
                last fit.

        Raises:
            RuntimeError: without ``parameters`` before any fit.
        """
        return self.distribution(self._values_of(parameters))

    def released(self, parameters: Mapping[str, Tensor] | None = None) -> Distribution:
        """Return the Gaussian of released samples at temperature 1.

        It is N(μ, Σ + κΣ²), or N(μ, noise_scale²·I) with a noise scale.

        A record with score g moves μ by about Σg. Relative to noise of covariance Σ this is the
        distance (gᵀΣg)^½, which is largest in directions with little information. Relative to
        Σ + κΣ² = Σ(Σ⁻¹ + κI)Σ it is (gᵀ(Σ⁻¹ + κI)⁻¹g)^½ ≤ ‖g‖/√κ: directions weigh more evenly, and
        clipped scores bound it for every record. (Σ² has the shape of a sandwich covariance, Huber
        1967, for scores of equal size in all directions.)

        Arguments and errors are as for :meth:`posterior`, the case κ = 0.
        """
        chosen = self._values_of(parameters)
        if self.noise_scale is not None:
            location = chosen["loc"]
            return dist.Normal(location, torch.full_like(location, self.noise_scale)).to_event(1)  # type: ignore[no-any-return]
        return self.widened(chosen) if self.ridge else self.distribution(chosen)

    def _values_of(self, parameters: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        chosen = self.parameters if parameters is None else parameters
        if not chosen:
            raise RuntimeError(f"this {type(self).__name__} guide has not been fitted yet")
        return {name: chosen[name].detach().clone() for name in self.constraints}
