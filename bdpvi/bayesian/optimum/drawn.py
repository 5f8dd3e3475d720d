r"""The optimum of an ELBO over fixed, public base draws, for losses of several predictors.

For w = μ + Lz a convex loss has no integral in closed form where several predictors enter it. Here
z has finitely many values z₁ … z_S instead, the same for every table: the mechanism is the
minimiser θ* = (μ, L) of

    F(θ) = Σ_i S⁻¹ Σ_s ℓ_i(μ + L z_s) + (λ/2)(‖μ‖² + ‖L‖²) - ln det L,

prior and entropy in closed form. F is convex, and λ-strongly so by the prior. With Σz = 0 and
Σzzᵀ = S·I, 1 and the coordinates of z are orthonormal in the mean over the draws, so by Bessel's
inequality the gradient of a record's term in θ is at most the largest ‖ℓ_i′‖ ≤ C, and any record
moves θ* by at most C/λ (:func:`bdpvi.bayesian.optimum.sensitivity.largest`). A fit θ is within
‖F′(θ)‖/λ of θ*; with g_i the gradient of record i's term at θ, θ* with that record added or removed
is within (‖F′(θ)‖ + ‖g_i‖)/λ of θ. So one pass bounds the cost of every record.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pyro
import torch
from torch import Tensor

from bdpvi._ground import log, validate
from bdpvi._ground.host import HOST
from bdpvi._ground.progress import Track
from bdpvi._ground.threads import slices
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bayesian.accounting.panel import Panel
from bdpvi.bayesian.inference.guide import Guide
from bdpvi.bayesian.inference.svi import Convergence, Problem, isolated
from bdpvi.bayesian.neighbours.route import Add, Neighbours, Remove, TrainedNeighbours, check_rate
from bdpvi.bayesian.neighbours.rows import RowFits
from bdpvi.bayesian.optimum.sensitivity import largest, room
from bdpvi.guides.full_rank import FullRank
from bdpvi.guides.gaussian import GaussianGuide
from bdpvi.guides.mean_field import MeanField
from bdpvi.models.contract import Model, unpack
from bdpvi.models.multinomial import BayesianMultinomialRegression
from bdpvi.models.traces import log_likelihood

SHARE = 1e-3
"""Largest distance of a fit from the optimum, as a fraction of a record's largest effect. Rounding
keeps this search farther away than Newton steps where records are many."""
_ROUNDS, _STEPS, _BLOCK = 40, 50, 1024
_PREDICTED = 2**20
"""Predictions of each class at a time: draws times records."""


class FixedDraws(Neighbours):
    """The optimum over fixed base draws, and a bound on what every record moves it.

    It is for :class:`~bdpvi.BayesianMultinomialRegression` made by its ``bounded``, with a
    full-rank or mean-field guide that has a ``noise_scale``. The search uses all records and goes
    on until the gradient proves that the optimum is reached; the settings of ``Training`` are not
    used.

    Args:
        kinds: :class:`Remove` or :class:`Add` or both; by default every record is left out once.
        rotations: of the 2d base draws ±√d e_j, by public random rotations.
    """

    def __init__(self, *kinds: Remove | Add, rotations: int = 2) -> None:
        self.kinds = kinds or (Remove(),)
        self.rotations = validate.positive_int("rotations", rotations)

    @staticmethod
    def takes(model: Model, guide: object) -> bool:
        """Return whether this route is one for the model and the guide."""
        known = type(model) is BayesianMultinomialRegression and model.loss is not None
        gaussian = isinstance(guide, FullRank | MeanField) and guide.noise_scale is not None
        return known and gaussian

    @classmethod
    def bounds(cls, model: Model, guide: Guide, features: int = 1) -> bool:  # noqa: D102
        return True

    def train(self, problem: Problem, track: Track[Any]) -> TrainedNeighbours:
        """Fit the guide, then bound every neighbour's distance.

        Raises:
            ValueError: if the model or the guide is another one, or the rate is not 1.
            FloatingPointError: if the fit is not proven to be near enough to the optimum.
        """
        model: Any = problem.model
        guide: Any = problem.guide
        data = problem.data
        if not self.takes(model, guide):
            raise ValueError(
                "neighbours=FixedDraws() is for BayesianMultinomialRegression.bounded with a "
                f"FullRank or MeanField guide that has a noise_scale, got {model!r:.80} with "
                f"{type(guide).__name__}; use Coupled()"
            )
        check_rate(problem)
        with isolated(data.x):
            some = data.x.new_zeros(1, data.x.shape[1])  # a table may be empty
            guide.setup(some, some.new_zeros(1))
            weights = model.design(some).shape[1]
            most = largest(model, guide, weights, SHARE)
            assert most is not None
            allowed = room(model, weights, SHARE)
            elbo = DrawnElbo(model, guide, model.precision(weights), self.rotations)
            with log.step("fit"):
                start = self._start(elbo, data.x)
                mean, root, course = elbo.minimum(data.x.double(), data.y.double(), start, allowed)
            panels = []
            for kind in self.kinds:
                rows = kind.rows(data, problem.model)
                with log.step(f"neighbours ({rows.kind})"):
                    panels.append(self._panel(elbo, rows, mean, root, allowed, most))
        name, scale = elbo.parameter(root)
        convergence = Convergence.of(course)
        return TrainedNeighbours({"loc": mean, name: scale}, convergence, tuple(panels))

    @staticmethod
    def _start(elbo: DrawnElbo, like: Tensor) -> Tensor:
        """Return the start: the prior."""
        eye = torch.eye(elbo.guide.dim, dtype=torch.float64, device=like.device)
        return elbo.packed(0 * eye[0], elbo.precision**-0.5 * eye)

    def _panel(
        self, elbo: DrawnElbo, rows: RowFits, mean: Tensor, root: Tensor, near: float, most: float
    ) -> Panel:
        """Return the panel of one kind: each record's distance, at most that of any record."""
        x, y = rows.records.x.double(), rows.records.y.double()
        moved = elbo.norms(x, y, mean, root) / elbo.precision + 2 * near
        noise = elbo.guide.noise_scale
        assert noise is not None
        b2 = (moved / noise).square().clamp(max=most).unsqueeze(1).cpu()
        return Panel(
            rows.kind, rows.records.ids.cpu(), GaussianPairs(torch.ones_like(b2), b2), most
        )


class DrawnElbo:
    """The negative ELBO over fixed base draws, of a model whose prior is N(0, I/precision).

    Args:
        model: has a log-likelihood that is concave in its flat vector of latents, (d,).
        guide: set up; its type decides whether L is lower triangular or diagonal.
        precision: λ.
        rotations: S is 2d times that.
    """

    def __init__(
        self, model: Model, guide: GaussianGuide, precision: float, rotations: int
    ) -> None:
        self.model, self.guide, self.precision = model, guide, precision
        self.diagonal = "scale" in guide.constraints
        self.draws = base_draws(guide.dim, rotations)

    def parameter(self, root: Tensor) -> tuple[str, Tensor]:
        """Return the name and the value of the guide's scale parameter."""
        return ("scale", root.diagonal()) if self.diagonal else ("scale_tril", root)

    def packed(self, mean: Tensor, root: Tensor) -> Tensor:
        """Return μ, the logarithms of L's diagonal, and what is below it, as one vector."""
        below = root.new_zeros(0) if self.diagonal else root[self._below(len(mean))]
        return torch.cat([mean, root.diagonal().log(), below])

    def unpacked(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Return μ and L."""
        d = self.guide.dim
        root = torch.diag(flat[d : 2 * d].exp())
        if not self.diagonal:
            root = root.index_put(self._below(d), flat[2 * d :])
        return flat[:d], root

    @staticmethod
    def _below(d: int) -> tuple[Tensor, Tensor]:
        row, column = torch.tril_indices(d, d, -1)
        return row, column

    def _losses(self, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return each record's loss at weights (d,)."""
        with pyro.validation_enabled(False):
            return -log_likelihood(self.model, unpack(self.guide.sites, w), x, y)

    def _parts(self, mean: Tensor, root: Tensor, x: Tensor, y: Tensor) -> Iterator[Tensor]:
        """Yield the parts of F, up to a constant: the prior's, and that of each block of records.

        A block has all draws of its records, so that memory does not grow with N.
        """
        draws = self.draws.to(x)
        ridge = self.precision / 2 * (mean.square().sum() + root.square().sum())
        yield ridge - root.diagonal().log().sum()
        for part in slices(len(x), max(1, _PREDICTED // len(draws)))[: len(x)]:
            some = x[part], y[part]
            total = torch.vmap(lambda z, some=some: self._losses(mean + root @ z, *some).sum())
            yield total(draws).mean()

    def both(
        self, mean: Tensor, root: Tensor, x: Tensor, y: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return F, up to a constant, and F′ in μ, (d,), and in the free entries of L, (d, d)."""
        mean, root = mean.detach().requires_grad_(), root.detach().requires_grad_()
        value, in_mean, in_root = mean.new_zeros(()), torch.zeros_like(mean), torch.zeros_like(root)
        for part in self._parts(mean, root, x, y):
            by_mean, by_root = torch.autograd.grad(part, (mean, root))
            value, in_mean, in_root = value + part.detach(), in_mean + by_mean, in_root + by_root
        return value, (in_mean, in_root.diagonal().diag() if self.diagonal else in_root.tril())

    def minimum(
        self, x: Tensor, y: Tensor, start: Tensor, allowed: float
    ) -> tuple[Tensor, Tensor, list[tuple[float, float]]]:
        """Return μ and L within ``allowed`` of the minimiser, and the course of the search.

        The search is L-BFGS with the logarithms of L's diagonal; where rounding of F misleads line
        searches, without them. The proof is the gradient in (μ, L) itself.

        Raises:
            FloatingPointError: if the gradient stays too large.
        """
        best, least, careful = start, math.inf, True
        course: list[tuple[float, float]] = []
        flat = start
        for _ in range(_ROUNDS):
            mean, root = self.unpacked(flat)
            value, pull = self.both(mean, root, x, y)
            norm = math.hypot(*(float(part.norm()) for part in pull))
            if norm / self.precision <= allowed:
                course.append((-float(value), norm))
                return mean, root, course
            if not norm < least / 10:
                careful = not careful
            if norm < least:
                course.append((-float(value), norm))
                best, least = flat, norm
            flat = self._searched(best, x, y, careful=careful)
        raise FloatingPointError(
            f"the fit is only known to within {least / self.precision:.3g} of the optimum, more "
            f"than the {allowed:.3g} that its sensitivity allows for: a larger weight_norm helps"
        )

    def _searched(self, start: Tensor, x: Tensor, y: Tensor, *, careful: bool) -> Tensor:
        """Return the end of a search of some steps, with line searches if ``careful``."""
        flat = start.clone().requires_grad_()
        search = torch.optim.LBFGS(
            [flat],
            max_iter=_STEPS,
            history_size=_STEPS,
            tolerance_grad=0.0,
            tolerance_change=0.0,
            line_search_fn="strong_wolfe" if careful else None,
        )

        def closure() -> Tensor:
            search.zero_grad()
            place = self.unpacked(flat)
            value, pull = self.both(*place, x, y)
            torch.autograd.backward(place, pull)
            return value

        search.step(closure)
        return flat.detach()

    def norms(self, x: Tensor, y: Tensor, mean: Tensor, root: Tensor) -> Tensor:
        """Return the norm of each record's gradient in (μ, L), (N,)."""
        draws, found = self.draws.to(x), [x.new_zeros(0)]

        def one(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
            return self._losses(w, x[None], y[None]).sum()

        of_records = torch.vmap(torch.func.grad(one), in_dims=(None, 0, 0))
        for part in slices(len(x), _BLOCK):
            in_mean = x.new_zeros(len(x[part]), len(mean))
            in_root = torch.zeros_like(in_mean if self.diagonal else in_mean.unsqueeze(2) * mean)
            for z in draws:
                pull = of_records(mean + root @ z, x[part], y[part]) / len(draws)
                in_mean += pull
                in_root += pull * z if self.diagonal else (pull.unsqueeze(2) * z).tril()
            found.append(torch.hypot(in_mean.norm(dim=1), in_root.flatten(1).norm(dim=1)))
        return torch.cat(found)


def base_draws(d: int, rotations: int) -> Tensor:
    """Return z, (S, d), with Σz = 0 and Σzzᵀ = S·I: ±√d times the rows of rotations.

    >>> z = base_draws(3, 2)
    >>> z.shape, bool(torch.allclose(z.T @ z / 12, torch.eye(3).double()))
    (torch.Size([12, 3]), True)
    """
    g = torch.Generator().manual_seed(0)
    random = torch.randn(rotations, d, d, generator=g, dtype=torch.float64, device=HOST)
    rows = math.sqrt(d) * torch.linalg.qr(random).Q.reshape(-1, d)
    return torch.cat([rows, -rows])
