r"""Noisy moments of groups: a linear mixed model from one Gaussian mechanism, with intervals.

With z a row's clipped-weight features and 1, e_g the indicator of its group and y its target in
units of its bound, a row adds ω vvᵀ to a matrix, v = (z, ce_g, uy). With ω = min(1, R²/|z|²) and
c² = u² = R²/2 its Frobenius norm is ω|v|² ≤ R² + c² + u² = 2R²: as a row touches one group, many
groups cost what few do. The entries for pairs of groups are 0 for any table, and are not released.
:mod:`bdpvi.regression.group_posterior` has the posterior.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from bdpvi.datasets.dataset import Data
from bdpvi.models.contract import Prior
from bdpvi.models.mixed import MixedRegression
from bdpvi.models.scores import row_weights
from bdpvi.privacy.events import SampledGaussian
from bdpvi.regression.group_posterior import GroupMoments, MixedPosterior, mixed_posterior
from bdpvi.releases.exact_sums import exact_sum, symmetric, triangle_weights
from bdpvi.releases.noisy_sum import noisy_total

if TYPE_CHECKING:
    from typing_extensions import Self

    from bdpvi.noise.keys import Key


class GroupedRows(NamedTuple):
    """Some rows, split.

    Attributes:
        x: features and 1, (n, p).
        groups: whether a row is of a group, at most one, (n, G).
        y: targets, those of numbers around their middle, (n,).
    """

    x: Tensor
    groups: Tensor
    y: Tensor

    @classmethod
    def of(cls, records: tuple[Tensor, ...], model: MixedRegression) -> GroupedRows:
        """Return records whose groups are features."""
        x, y, *_ = (record.detach().cpu().double() for record in records)
        design, of = model.of.design(x), list(model.groups)
        there = design[:, of] > 0.5
        there &= there.cumsum(1) == 1  # one group, whatever the features are
        others = torch.ones(design.shape[1], dtype=torch.bool)
        others[of] = False
        return cls(design[:, others], there, model.cut(y) - getattr(model.of, "middle", 0.0))


@dataclass(frozen=True, kw_only=True)
class GroupPlan:
    """Public settings of noisy sums of rows and of each group's rows.

    Attributes:
        event: the mechanism.
        columns: p, features of a row and 1, without groups.
        groups: G.
        radius: R.
    """

    event: SampledGaussian
    columns: int
    groups: int
    radius: float

    @property
    def events(self) -> tuple[SampledGaussian]:
        """The events to charge."""
        return (self.event,)

    def with_noise(self, noise_multiplier: float) -> Self:
        """Return the settings with another noise multiplier."""
        return replace(self, event=replace(self.event, noise_multiplier=noise_multiplier))

    @property
    def size(self) -> int:
        """The number of released numbers, of a round."""
        return sizes(self.columns, self.groups)

    @property
    def part(self) -> float:
        """c, the length of a group's indicator: R/√2."""
        return self.radius / math.sqrt(2)

    def posterior(self, data: Data, model: MixedRegression, key: Key) -> MixedPosterior:
        """Release the sums with noise, and return the posterior that follows from them."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class MomentPlan(GroupPlan):
    """Public settings of noisy moments of groups; u is c.

    Attributes:
        largest: the bound of targets.
    """

    largest: float

    def sums(self, x: Tensor, groups: Tensor, y: Tensor) -> Tensor:
        """Return the sums over some rows, (size,), without noise.

        Args:
            x: features and 1, (n, p).
            groups: whether a row is of a group, at most one, (n, G).
            y: targets around their middle, (n,).
        """
        above, root, part = torch.triu_indices(x.shape[1], x.shape[1]), math.sqrt(2), self.part
        w = row_weights(x, self.radius)[:, None]
        cut = (y.clamp(-self.largest, self.largest) / self.largest * part)[:, None]
        inner = exact_sum(w * x, torch.cat([x, cut], 1))
        of_groups = exact_sum(groups.to(x) * part, torch.cat([w * x, w * cut], 1))
        own = exact_sum(groups.to(x) * part**2, w)
        return torch.cat(
            [
                triangle_weights(above) * inner[above[0], above[1]],
                root * inner[:, -1],
                root * of_groups.flatten(),
                own[:, 0],
                exact_sum(w * cut, cut).flatten(),
            ]
        )

    def released(self, flat: Tensor, key: Key) -> GroupMoments:
        """Return the moments of sums, (size,), with noise."""
        bound = 2 * self.radius**2
        return self.moments(*noisy_total(flat, bound, self.event.noise_multiplier, key))

    def posterior(self, data: Data, model: MixedRegression, key: Key) -> MixedPosterior:
        """Release the moments, and return the posterior that follows from them."""
        made = self.released(data.parts.sum(_sums, model, self), key.child("moments"))
        priors = model.priors(torch.zeros(1, len(data.feature_names), dtype=torch.float64))
        prior = Prior(torch.zeros(self.columns, dtype=torch.float64), priors["w"].sd)
        return mixed_posterior(made, prior, priors["log_spread"], self.largest)

    def moments(self, flat: Tensor, noise: float) -> GroupMoments:
        """Return the moments of noisy sums, (size,), whose noise has this standard deviation."""
        p, part, root, unit = self.columns, self.part, math.sqrt(2), self.largest / self.part
        above = torch.triu_indices(p, p)
        lengths = [above.shape[1], p, self.groups * (p + 1), self.groups, 1]
        upper, products, of_groups, own, square = flat.split(lengths)
        sums = of_groups.view(self.groups, p + 1) / (root * part)
        first, second = noise / (root * part), noise / part**2  # of the number of rows, twice
        share = first**-2 / (first**-2 + second**-2)
        sums[:, -2] = share * sums[:, -2] + (1 - share) * own / part**2
        return GroupMoments(
            features=symmetric(upper / triangle_weights(above), p),
            sums=sums[:, :-1],
            products=products / root * unit,
            by_group=sums[:, -1] * unit,
            square=float(square) * unit**2,
            feature_noise=noise,
            sum_noise=first,
            count_noise=math.hypot(share * first, (1 - share) * second),
            product_noise=noise / root * unit,
            group_noise=first * unit,
            square_noise=noise * unit**2,
        )


def sizes(columns: int, groups: int) -> int:
    """Return the number of released numbers."""
    return columns * (columns + 1) // 2 + columns + groups * (columns + 2) + 1


def _sums(records: tuple[Tensor, ...], model: MixedRegression, plan: MomentPlan) -> Tensor:
    """Return the sums over some records."""
    return plan.sums(*GroupedRows.of(records, model))
