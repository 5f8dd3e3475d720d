"""The route of ``guides.Laplace``: mode and curvature of the fit and of every neighbour."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bdpvi._ground import log
from bdpvi._ground.host import HOST
from bdpvi._ground.progress import Track
from bdpvi.bayesian.accounting.panel import Panel
from bdpvi.bayesian.inference.guide import Guide
from bdpvi.bayesian.inference.svi import Convergence, Problem, isolated
from bdpvi.bayesian.mode.classes import weigh
from bdpvi.bayesian.mode.expansion import FAR, ModeExpansion, first_steps, neighbours
from bdpvi.bayesian.mode.influence import of_any_table, of_mode
from bdpvi.bayesian.mode.objective import EXACT, LogPosterior, Peak, search_mode
from bdpvi.bayesian.neighbours.route import Add, Neighbours, Remove, TrainedNeighbours, removed
from bdpvi.bayesian.neighbours.rows import RowFits
from bdpvi.datasets.dataset import BlockData, Data, Dataset
from bdpvi.datasets.records import Spread
from bdpvi.guides.laplace import Laplace
from bdpvi.models.contract import Model
from bdpvi.models.family import Family, weighing

MOST = 200_000
"""Default size of a panel: a larger panel hardly lowers ε."""


_THIN, _ROUGH, _CLOSE = 16, 0.1, 1e-11
"""The mode of every 16th block of a table is a start. The others are distances from a mode, in
standard deviations, at which a search ends: for that start, and for the fit, where the distance
adds to each neighbour's error."""


class Mode(Neighbours):
    """The posterior mode and the inverse Hessian there, for the fit and for every neighbour.

    It is for :class:`~bdpvi.guides.Laplace` of regressions with a bounded loss
    (:mod:`bdpvi.models.losses`): :class:`~bdpvi.BayesianLogisticRegression` without clipped scores,
    others made by ``bounded``, and :class:`~bdpvi.models.own.OwnRegression`. Newton steps on all
    records go on until the decrement proves that the mode is reached; the settings of ``Training``
    are not used. Besides the panel, the influence of any conceivable record is bounded
    (:mod:`bdpvi.bayesian.mode.influence`), so that the cost of draws is certified.

    Args:
        kinds: :class:`Remove` or :class:`Add` or both; by default every record is left out once,
            or 200,000 of them.
        table: records in blocks, instead of those of the problem.
    """

    def __init__(self, *kinds: Remove | Add, table: BlockData | None = None) -> None:
        self.kinds, self.table = kinds, table

    def over(self, table: BlockData) -> Mode:  # noqa: D102
        return Mode(*removed(self.kinds, "Mode(Remove())"), table=table)

    @staticmethod
    def takes(model: Model, guide: object) -> bool:
        """Return whether this route is the one of the model and the guide."""
        return type(guide) is Laplace and weighing(model) is not None  # not of a subclass's law

    @classmethod
    def bounds(cls, model: Model, guide: Guide, features: int = 1) -> bool:  # noqa: D102
        known = weighing(model)
        if known is None or not cls.takes(model, guide):
            return False
        # The condition for adding is weaker.
        return of_any_table(known, known.weights(features), added=False) is not None

    @classmethod
    def certifies(cls, model: Model, guide: Guide, features: int = 1) -> bool:  # noqa: D102
        return True

    def train(self, problem: Problem, track: Track[Any]) -> TrainedNeighbours:
        """Fit the guide, then find every neighbour's.

        Raises:
            ValueError: if the model or the guide is another one.
            FloatingPointError: if rounding keeps the fit from the mode.
        """
        model, guide, data = weighing(problem.model), problem.guide, problem.data
        if model is None or not isinstance(guide, Laplace):
            raise ValueError(
                "neighbours=Mode() is for guides.Laplace of BayesianLogisticRegression without "
                "clip, of a regression made by its bounded() or of an OwnRegression, got "
                f"{type(guide).__name__} of "
                f"{problem.model!r:.80}; use Coupled() or Optimum()"
            )
        with isolated(data.x):
            some = data.x.new_zeros(1, data.x.shape[1])  # a table may be empty
            guide.setup(some, some.new_zeros(1))
        with log.step("fit"):
            n, every_class = model.design(some).shape[1], model.loss.basis
            centre = -model.departure(torch.zeros(n * every_class.shape[1], dtype=torch.float64))
            every: Data = data if self.table is None else self.table
            records = every.parts.map(weigh, model)
            posterior = LogPosterior(records, len(every), model.precision(n), centre)
            path = _search_mode(posterior, centre)
            peak = path[-1]
        if not peak.error <= EXACT:
            raise FloatingPointError(
                f"the fit is only known to within {peak.error:.3g} standard deviations of the "
                f"mode, more than {EXACT:g}, because of rounding: a smaller prior_scale helps"
            )
        kinds = self.kinds or (Remove(MOST if len(every) > MOST else None),)
        panels = tuple(
            self._panel(model, peak, _rows(kind, every, problem.model)) for kind in kinds
        )
        factor = torch.linalg.cholesky(_covariance(peak, n, every_class))
        parameters = {
            "loc": (peak.point.view(n, -1) @ every_class.T).flatten(),
            "scale_tril": factor,
        }
        return TrainedNeighbours(
            {name: value.to(data.x.device) for name, value in parameters.items()},
            Convergence.of((one.value, one.gradient_norm) for one in path),
            panels,
        )

    def _panel(self, model: Family, peak: Peak, rows: RowFits) -> Panel:
        """Return the panel of one kind."""
        added = rows.sign > 0
        own = weigh((rows.records.x, rows.records.y), model)
        with log.step(f"neighbours ({rows.kind})"):
            far = first_steps(peak, own, rows.sign)
            expansion = ModeExpansion.around(peak, FAR * far)
            moved = neighbours(peak, expansion, own, rows.sign)
            third = expansion.bends[0] if math.isinf(own.loss.kink) else None
        panel = Panel(
            rows.kind,
            rows.records.ids.cpu(),
            moved.pairs(),
            influence=of_mode(model, peak, third, added=added),
            error=(moved.error + peak.error).clamp(max=1.0),
        )
        if self.table is None:  # the caller has all records
            return panel
        return panel.with_marks(rows.records.ids, rows.records.x, rows.records.y)


def _search_mode(posterior: LogPosterior, start: Tensor) -> list[Peak]:
    """Return the points of the search; of many blocks it starts at the mode of some of them."""
    records = posterior.records
    if not isinstance(records, Spread):
        return search_mode(posterior, start)
    if records.blocks >= _THIN:
        some = records.thinned(_THIN)
        few = LogPosterior(some, posterior.count, posterior.precision / _THIN, posterior.centre)
        start = search_mode(few, start, enough=_ROUGH)[-1].point
    return search_mode(posterior, start, enough=_CLOSE)


def _covariance(peak: Peak, rows: int, basis: torch.Tensor) -> torch.Tensor:
    """Return the covariance of the weights of all K predictors.

    What the basis leaves out is the same for every table: the prior's.
    """
    lift = torch.kron(torch.eye(rows, dtype=basis.dtype), basis)
    inside = lift @ (peak.root @ peak.root.T) @ lift.T
    if basis.shape[0] == basis.shape[1]:
        return inside
    rest = torch.eye(len(lift), dtype=basis.dtype) - lift @ lift.T
    return inside + rest / peak.posterior.precision


def _rows(kind: Remove | Add, data: Data, model: Model) -> RowFits:
    """Return the neighbours of one kind."""
    if isinstance(data, Dataset):
        return kind.rows(data, model)
    assert isinstance(kind, Remove)
    wanted = len(data) if kind.records is None else kind.records
    some = data.parts.sum(_some, min(1.0, wanted / max(len(data), 1)), kind.seed)
    x, y = map(torch.cat, some)
    return RowFits("remove", Dataset(x, y, feature_names=data.feature_names), -1.0)


def _some(
    part: tuple[Tensor, Tensor], share: float, seed: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Return a share of the records, at random positions that depend on their number alone."""
    x, y = part
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(x), generator=generator, device=HOST)
    chosen = order[: math.ceil(share * len(x))].sort().values
    return [x[chosen]], [y[chosen]]
