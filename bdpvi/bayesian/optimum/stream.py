"""The optimum route over a table on disk: passes over the files, and a counted panel.

The guide is fitted by passes. One more pass leaves every record out in turn. How far each record
moves the posterior is counted on a public grid
(:meth:`bdpvi.bayesian.accounting.panel.Panel.of_counts`), or kept for a random panel: neither the
records nor the panel is ever in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bdpvi._ground import log
from bdpvi._ground.progress import Track
from bdpvi.bayesian.accounting.panel import LEVELS, Panel, on_levels
from bdpvi.bayesian.inference.svi import Problem
from bdpvi.bayesian.neighbours.route import removed
from bdpvi.bayesian.optimum import tables
from bdpvi.bayesian.optimum.displacements import Moves
from bdpvi.bayesian.optimum.elbo import Objective, Point, start
from bdpvi.bayesian.optimum.newton import climb
from bdpvi.bayesian.optimum.panels import Job
from bdpvi.bayesian.optimum.route import Optimum
from bdpvi.bayesian.optimum.sizes import parameters_of
from bdpvi.bayesian.optimum.tables import ModelTable
from bdpvi.bayesian.optimum.weighted import Source, Weighted
from bdpvi.datasets.dataset import BlockData
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.noise.keys import Key

PANEL = 100_000
"""Expected size of the random panel where records are not counted."""
_HELD = 1 << 14
"""Number of records that wait for passes together, because the polynomial is not enough."""
_ROUGHLY = 1e-3
"""Norm of the gradient at which the search on the first block of records stops."""


class Streamed(Optimum):
    """:class:`Optimum` for a table on disk; ``problem`` has its first records.

    With a public noise scale every record is counted. With the guide's own covariance a random
    panel of about :data:`PANEL` records is used instead: a secret coin for each record decides
    whether it is in the panel, so that no record affects another's membership. ``Remove(records)``
    sets another expected size.

    Args:
        table: the records.
        route: gives kinds, numerics and checkpoint.

    Raises:
        ValueError: if ``route`` adds records, or they are read by index.
    """

    source: ModelTable

    def __init__(self, table: BlockData, route: Optimum) -> None:
        if table.items is not None:
            raise ValueError("data: records by index have no table; give tensors, or from_blocks")
        super().__init__(
            *removed(route.kinds, "Optimum(Remove(...))"),
            tolerance=route.tolerance,
            precision=route.precision,
            checkpoint=route.checkpoint,
        )
        self.table = table

    def _source(self, problem: Problem, track: Track[Any]) -> Source:
        if not isinstance(problem.model, BayesianLogisticRegression):
            raise ValueError(
                f"model={problem.model!r:.80}: a table in blocks has targets 0 and 1, for "
                "BayesianLogisticRegression; give a Dataset for another model"
            )
        self.source = ModelTable(self.table, problem.model, problem.data.x.device, track)
        return self.source

    def _neighbours(self, problem: Problem) -> list[Any]:
        return list(self.kinds)

    def _check_size(
        self, problem: Problem, neighbours: Sequence[Any], weights: int, *, diagonal: bool
    ) -> None:
        parameters_of(weights, diagonal=diagonal)

    def _settings(self, neighbours: Sequence[Any]) -> dict[str, str]:
        kinds = ", ".join(map(repr, neighbours))
        return {"data": self.table.fingerprint(), "rows": str(tables.ROWS), "kinds": kinds}

    def _start(self, objective: Objective) -> Point:
        """Return the maximum for the first block, with its curvature scaled to the table."""
        first = next(self.source.read())
        more = len(self.table) / max(1, len(first))
        point = start(replace(objective, records=first))
        with suppress(FloatingPointError):
            point = climb(point, _ROUGHLY)[-1]
        prior = objective.precision * torch.eye(len(point.mean)).to(point.metric)
        return objective.at(point.mean, prior + more * (point.metric - prior))

    def _panel(self, job: Job, rows: Any) -> Panel:
        if job.bounded and (rows.records == 0 or not len(self.table)):
            return job.panel("remove", job.nobody)
        with log.step("neighbours (remove)"):
            found = job.kept.once("remove", lambda: self._count_levels(job, rows.records))
        if "counts" in found:
            return Panel.of_counts("remove", found["counts"], job.most)
        rank = found["ids"].argsort()  # those held back came last
        return job.panel("remove", {name: values[rank] for name, values in found.items()})

    def _count_levels(self, job: Job, wanted: int | None) -> dict[str, Tensor]:
        """Return the number of records on each level; or ids, r and b² of a random panel.

        Records that remain rough after the polynomial are deferred, to share further passes.
        """
        expansion, guide = job.expansion, job.problem.guide
        counted = wanted is None and guide.noise_scale is not None
        begun = job.kept.unfinished_part("remove")
        state = begun.state() or _begin(job, counted)
        result: dict[str, Tensor] = state["found"]
        for name, like in _nobody(job).items():
            state[name] = state[name].to(like)

        def add(ids: Tensor, moves: Moves) -> None:
            some = job.pairs(moves)
            if counted:
                result["counts"] += on_levels(some["b2"].sum(1))
                return
            for name, more in {"ids": ids.cpu(), **some}.items():
                result[name] = torch.cat([result[name], more])

        def add_held() -> None:
            ids, held = state.pop("ids"), Weighted(*map(state.pop, ("x", "mark", "weight")))
            if len(ids):
                bounded = job.most is not None
                add(
                    ids,
                    self.moves(
                        expansion, held, -1.0, job.track, "held back", ids.tolist(), bounded=bounded
                    ),
                )
            state.update(_nobody(job))

        turns = job.track(range(state["blocks"], self.source.blocks), "neighbours")
        for block, records in zip(turns, self.source.read(state["blocks"]), strict=False):
            chosen = self._panel_rows(job, wanted, block, len(records)).to(records.x.device)
            ids, some = block * tables.ROWS + chosen, records.select(chosen)
            if len(ids):
                moves = expansion.solve_all(expansion.terms(some), -1.0)
                rough = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
                rough[expansion.rough(moves, self.precision)] = True
                add(ids[~rough], moves.select(~rough))
                rest = {"ids": ids, "x": some.x, "mark": some.mark, "weight": some.weight}
                for name, more in rest.items():
                    state[name] = torch.cat([state[name], more[rough]])
            if len(state["ids"]) >= _HELD:
                add_held()
            state["blocks"] = block + 1
            begun.save_if_due(lambda: state)
        add_held()
        return result

    def _panel_rows(self, job: Job, wanted: int | None, block: int, size: int) -> Tensor:
        """Return the rows of a block that are in the panel."""
        if wanted is None and job.problem.guide.noise_scale is not None:
            return torch.arange(size)
        expected = PANEL if wanted is None else wanted
        if expected >= len(self.table):
            return torch.arange(size)
        plan = job.problem.plan
        key = Key.of_int(plan.seed) if plan.secret else Key.of_seed(plan.seed)
        coins = torch.from_numpy(key.child("panel", block).coins(size))
        return (coins < expected / len(self.table)).nonzero()[:, 0]


def _begin(job: Job, counted: bool) -> dict[str, Any]:
    """Return the state before the first block."""
    found = {"counts": torch.zeros(LEVELS, dtype=torch.int64)} if counted else job.nobody
    return {"blocks": 0, "found": found, **_nobody(job)}


def _nobody(job: Job) -> dict[str, Tensor]:
    """Return an empty set of deferred records."""
    like = job.point.mean
    x = like.new_empty(0, len(like))
    return {"ids": x[:, 0].long(), "x": x, "mark": x[:, 0], "weight": x[:, 0]}
