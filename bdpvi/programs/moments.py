"""Mean and covariance of a program's Gaussian guide, and its priors where noise hides latents."""

from __future__ import annotations

import math
from typing import Any

import torch
from pyro import poutine
from pyro.distributions import ImproperUniform
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import (
    LowRankMultivariateNormal,
    MultivariateNormal,
    Normal,
    TransformedDistribution,
)

from bdpvi._ground.host import HOST, drawing
from bdpvi.datasets.dataset import Data
from bdpvi.models.contract import Model, Site
from bdpvi.models.misfits import split
from bdpvi.programs.effects import base, in_plate
from bdpvi.programs.program import Program
from bdpvi.regression.objective import seldom_of

_RUNS = 200
"""Runs of the model over which a prior that depends on other latents is averaged."""
FLAT = 100.0
"""Standard deviation in place of an improper prior's: latents should have about unit size."""


def moments(program: Program) -> tuple[Tensor, Tensor]:
    """Return mean and covariance of the unconstrained global latents, float64, on the host.

    Returns:
        (d,), and (d, d); (d,) for the covariance where no two coordinates are correlated.

    Raises:
        ValueError: if they are not Gaussian, or one site's draw depends on another's.
    """
    with program.alone(), torch.no_grad():
        run, other = (program.traced(program.guide) for _ in range(2))
    parts, again = (
        [
            _normal(site["fn"], site["value"])
            for site in split(trace)[0]
            if not in_plate(site, program.plate) and type(base(site["fn"])).__name__ != "Delta"
        ]
        for trace in (run, other)
    )
    values = torch.cat([value for value, _, _ in parts]) if parts else torch.zeros(0)
    drawn = [s.transform.inv(run.nodes[s.name]["value"]).flatten() for s in program.sites]
    latents = torch.cat(drawn) if drawn else torch.zeros(0)
    same = all(
        torch.equal(a[1], b[1]) and torch.equal(a[2], b[2])
        for a, b in zip(parts, again, strict=True)
    )
    if not same or len(values) != len(latents) or not torch.allclose(values, latents, 1e-3, 1e-4):
        raise ValueError(
            "guide: its latents are not Gaussian on the unconstrained scale, one independent site "
            "after the other; use bdpvi.guides, an AutoNormal or its kin, or Normal sites (of a "
            "positive latent a LogNormal)"
        )
    means = [mean.double().to(HOST) for _, mean, _ in parts]
    spreads = [spread.double().to(HOST) for _, _, spread in parts]
    mean = torch.cat(means) if means else torch.zeros(0, dtype=torch.float64)
    if all(one.ndim == 1 for one in spreads):
        return mean, torch.cat(spreads) if spreads else torch.zeros(0, dtype=torch.float64)
    whole = [one if one.ndim == 2 else one.diag() for one in spreads]
    return mean, torch.block_diag(*whole)


def is_gaussian(program: Program) -> bool:
    """Whether the guide's global latents are Gaussian, as :func:`moments` needs them."""
    try:
        moments(program)
    except ValueError:
        return False
    return True


def drawn(program: Program, number: int) -> Tensor:
    """Return draws of the unconstrained global latents, (k, d) float64, on the host.

    The same random numbers are behind those of other values of the parameters.
    """
    with drawing(program.device, seed=0), torch.no_grad():
        found = [program.draw().latents.double().to(HOST) for _ in range(number)]
    return torch.stack(found)


def standardised(draws: Tensor, measured: Tensor) -> Tensor:
    """Return draws less their mean, divided by their standard deviation, (k, d).

    A coordinate that is not measured, or is the same in every draw, has normals.

    >>> draws = torch.tensor([[1.0, 5.0], [3.0, 5.0]]).double()
    >>> standardised(draws, torch.tensor([True, True]))[:, 0].tolist()
    [-1.0, 1.0]
    """
    normals = torch.randn_like(draws)
    if len(draws) < 2:
        return normals
    kept = measured & (draws.std(0) > 1e-12 * draws.abs().amax(0))
    found = torch.where(kept, draws, normals)
    return (found - found.mean(0)) / found.std(0, correction=0)


def prior_deviations(program: Program) -> Tensor:
    """Return standard deviations of the unconstrained latents' priors, (d,) float64, on the host.

    They are infinite where a prior is not normal on that scale, or depends on other latents.
    """
    runs = []
    with program.alone(), torch.no_grad():
        for _ in range(2):
            guided = program.traced(program.guide)
            trace = program.traced(poutine.replay(program.model, guided))
            parts = [_deviation(trace.nodes[site.name]["fn"], site) for site in program.sites]
            runs.append(torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64))
    one, other = runs
    return torch.where(one == other, one, math.inf)


def _deviation(fn: Any, site: Site) -> Tensor:
    """Return the standard deviations of a site's prior, flat; infinite if it is not normal."""
    known = _normal_prior(fn, site)
    found = torch.full((site.shape.numel(),), math.inf) if known is None else known[1].sqrt()
    return found.double().to(HOST)


def prior_given(program: Program, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of the unconstrained latents' priors, (d,) float64, on the host.

    The priors of the latents that are not kept, given those that are, which follow the guide: each
    is drawn after those it depends on. By the law of total variance this is exact for normal priors
    that depend on no other latent.

    Args:
        kept: whether each latent follows the guide, (d,).
    """
    found = []
    with program.alone(), torch.no_grad():
        for _ in range(_RUNS):
            run = _GivenKept(program.sites, program.traced(program.guide), kept)
            program.traced(run(program.model))
            found.append(torch.cat([run.found[site.name] for site in program.sites], dim=1))
    means, variances = torch.stack(found, dim=1)
    return means.mean(0), variances.mean(0) + means.var(0, correction=0)


class _GivenKept(Messenger):  # type: ignore[misc]
    """Give kept latents the guide's values, and draw the others from their priors."""

    def __init__(self, sites: tuple[Site, ...], guided: poutine.Trace, kept: Tensor) -> None:
        super().__init__()
        pieces = kept.split([site.shape.numel() for site in sites])
        self.sites = {site.name: (site, one) for site, one in zip(sites, pieces, strict=True)}
        self.guided = guided
        self.found: dict[str, Tensor] = {}

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if msg["name"] not in self.sites:
            return
        (site, kept), fn = self.sites[msg["name"]], msg["fn"]
        guided = site.transform.inv(self.guided.nodes[site.name]["value"]).flatten()
        if isinstance(base(fn), ImproperUniform):
            drawn, (mean, variance) = guided, (0 * guided, torch.full_like(guided, FLAT**2))
        else:
            drawn = site.transform.inv(fn.sample()).flatten()
            mean, variance = _normal_prior(fn, site) or (drawn, 0 * drawn)
        value = torch.where(kept.to(drawn.device), guided, drawn).reshape(site.shape)
        msg["value"] = site.transform(value)
        self.found[site.name] = torch.stack([mean.double(), variance.double()]).to(HOST)


def identified(program: Program, model: Model, features: int) -> Tensor | None:
    """Return the linear combinations of latents that records identify, if the model knows them."""
    sums: Any = getattr(model, "identified", None)
    if sums is None:
        return None

    def of_site(site: Site) -> Tensor:
        if site.name == "w":
            result: Tensor = sums(features)
            return result
        return torch.eye(site.shape.numel(), dtype=torch.float64)

    found: Tensor = torch.block_diag(*map(of_site, program.sites))
    return found


def near_listed(mean: Tensor, measured: Tensor, program: Program, model: Any, data: Data) -> Tensor:
    """Return the mean, free of the noise that moved weights of blanks and of unlisted levels.

    One that is not measured becomes the mean of its column's listed levels, of the measured ones if
    there are any, or 0 for a number: predictions of such a cell are then near its column's mean.
    """
    from bdpvi.datasets.encoding import Encoding  # late: programs need no table

    written = data.preprocessing.get("encoding")
    known = None if written is None else Encoding.from_dict(written)
    shapes = {site.name: site.shape for site in program.sites}
    own = hasattr(model, "design") and not getattr(model, "correlation", 0.0) and "w" in shapes
    if known is None or not own or known.feature_names != data.feature_names:
        return mean
    columns = [*range(len(data.feature_names))]
    if (exposure := getattr(model, "exposure", None)) is not None:
        del columns[exposure]
    sizes, at = [shape.numel() for shape in shapes.values()], [*shapes].index("w")
    pieces = [one.clone() for one in mean.split(sizes)]
    w, seen = (one[at].view(shapes["w"][0], -1) for one in (pieces, measured.split(sizes)))
    for place, listed in seldom_of(known):
        row = columns.index(place)
        levels = torch.tensor([columns.index(one) for one in listed], dtype=torch.long)
        some = seen[levels] | ~seen[levels].any(0)
        usual = (w[levels] * some).sum(0) / some.sum(0).clamp(min=1)
        w[row] = torch.where(seen[row], w[row], usual)
    return torch.cat(pieces)


def _normal_prior(fn: Any, site: Site) -> tuple[Tensor, Tensor] | None:
    """Return mean and variance of a site's prior, each flat; None if it is not normal."""
    fn = base(fn)
    if isinstance(fn, TransformedDistribution) and _onto(fn, site):
        fn = base(fn.base_dist)
    if not isinstance(fn, (Normal, MultivariateNormal)) or fn.mean.numel() != site.shape.numel():
        return None
    return fn.mean.flatten(), fn.variance.flatten()


def _onto(fn: TransformedDistribution, site: Site) -> bool:
    """Whether a prior's transforms are the map from the unconstrained values, at three points."""
    for point in (-1.0, 0.0, 1.0):
        value = there = torch.full(site.shape, point)
        for transform in fn.transforms:
            value = transform(value)
        there = site.transform(there)
        if value.shape != there.shape or not torch.allclose(value, there, rtol=1e-5):
            return False
    return True


def _normal(fn: Any, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a site's value on the normal's own scale, its mean and (co)variance, flat."""
    fn = base(fn)
    while isinstance(fn, TransformedDistribution):
        for transform in reversed(fn.transforms):
            value = transform.inv(value)
        fn = base(fn.base_dist)
    if isinstance(fn, (MultivariateNormal, LowRankMultivariateNormal)):
        return value, fn.mean, fn.covariance_matrix
    shape = value.shape
    return value.flatten(), fn.mean.expand(shape).flatten(), fn.variance.expand(shape).flatten()
