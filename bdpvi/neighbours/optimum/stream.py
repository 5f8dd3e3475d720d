"""The optimum route over tables that do not fit in memory: fit, neighbours and ε by passes.

The guide is fitted by passes over the file. One more pass leaves every record out in turn, turns it
into what it costs and folds the costs up, order by order
(:mod:`bdpvi.accounting.streaming_moments`): neither the records nor the panel is ever in memory as
a whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from bdpvi._runtime import log, progress, secure, validate
from bdpvi._runtime.progress import Track
from bdpvi.accounting.composition import ByPanel
from bdpvi.accounting.estimators import student_t, student_t_of
from bdpvi.accounting.ledger import Charge
from bdpvi.accounting.record_costs import posterior_draws_cost
from bdpvi.accounting.settling import Terms, settle
from bdpvi.accounting.streaming_moments import Folded
from bdpvi.inference.guide import Guide
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.neighbours.optimum.blocks import ROWS, ModelTable, Table
from bdpvi.neighbours.optimum.displacements import Moves
from bdpvi.neighbours.optimum.elbo import Objective, Point, Records, climb, start
from bdpvi.neighbours.optimum.expansion import Expansion
from bdpvi.neighbours.optimum.route import Optimum, pairs, scale_name
from bdpvi.neighbours.optimum.sizes import parameters_of
from bdpvi.neighbours.optimum.stream_orders import (
    DIRECTIONS,
    Known,
    NotKnownError,
    StreamAccounting,
    expected_orders,
)
from bdpvi.neighbours.optimum.stream_state import State
from bdpvi.neighbours.rounding import Reach, rounding_error
from bdpvi.types import Spent

_REACH = Reach(ratio=4.0, shift=16.0)
"""How far a neighbour may be from the fit for the draws' rounding to be priced."""
_FEW = 256
_PILOT = 2048
_ENTRIES = 1 << 22
_HELD = 1 << 14
"""Records that wait for more than the polynomial, so that they share the passes."""


@dataclass(frozen=True, eq=False)
class StreamFit:
    """A guide fitted to a table on disk, and what draws from it cost. All but ``spent`` is secret.

    Attributes:
        guide: as given, with ``parameters`` set.
        parameters: the guide's, constrained.
        spent: what the planned draws cost together; no others are paid for.
        draws, temperature: the planned ones.
        records: their number N.
        feature_names: the columns, in order.
        gradient_norm: where the fit ended, in units of the guide's standard deviations.
    """

    guide: Guide
    parameters: Mapping[str, Tensor]
    spent: Spent
    draws: int
    temperature: float
    records: int
    feature_names: tuple[str, ...]
    gradient_norm: float

    @property
    def posterior(self) -> Distribution:
        """The fitted Gaussian over the flat vector of latents."""
        return self.guide.posterior(self.parameters)

    def draw(self) -> Tensor:
        """Return the planned samples, (draws, d), from the secure source. ``spent`` pays for once.

        They may be shared; samples drawn in any other way are not rounded, and their low bits
        betray the posterior's mean.
        """
        lattice = self.guide.lattice(self.temperature)
        released = self.guide.released(self.parameters)
        return secure.sample(released, self.draws, self.temperature, lattice=lattice)


@dataclass(frozen=True, eq=False)
class Streaming:
    """How a table is streamed: numerics, progress, and what is kept.

    Attributes:
        tolerance, precision: see :class:`Optimum`; the proven errors are added to the costs. Here
            records that are not proven to this precision by a polynomial are held back and cost
            further passes over the file, which they share.
        rows: of a block.
        state: file that finished blocks are kept in, and that a job that was cut off goes on from;
            secret, and deleted by nobody. By default nothing is kept.
        save_every: seconds between two writes of it.
        track: progress of every pass, in blocks.
    """

    tolerance: float = 1e-12
    precision: float = 1e-4
    rows: int = ROWS
    state: str | Path | None = None
    save_every: float = 60.0
    track: Track[Any] = progress.bar


def fit_stream(
    path: str | Path,
    model: BayesianLogisticRegression,
    guide: Guide,
    *,
    target: str,
    features: Sequence[str] | None = None,
    planned: Charge = Charge(1, 1.0),  # noqa: B008
    accounting: StreamAccounting = StreamAccounting(),  # noqa: B008
    streaming: Streaming = Streaming(),
) -> StreamFit:
    """Fit a guide to a table on disk, and account for draws from it, every record left out once.

    The same as :func:`bdpvi.fit` with :class:`Optimum`, and ``spent`` of these draws by a
    :class:`BayesianAccountant`, in the memory of a few blocks. Needs pyarrow.

    Args:
        path: a Parquet or CSV file, or a folder of such files.
        model: the model; its features are the columns ``features``.
        guide: a full-rank or mean-field guide for it.
        target: name of the column of targets, 0 or 1.
        features: names of the columns of features; by default all but the target.
        planned: number of samples that will be released, and their temperature τ.
        accounting: δ, and how ε is found.
        streaming: numerics, progress, and where finished blocks are kept.

    Raises:
        ValueError: on data that cannot be accounted for, a guide with too many parameters, or a
            ``state`` of another job or of files that have changed since, naming the argument.
        FloatingPointError: if rounding keeps the gradient above the tolerance.
    """
    scale = scale_name(model, guide)
    track = streaming.track
    table = Table(path, target, features, rows=streaming.rows, track=track)
    validate.mean_delta(accounting.delta, len(table), accounting.large_delta)
    like = torch.zeros(3, len(table.features), dtype=torch.float64)
    guide.setup(like, like[:, 0])
    settings = _settings(table, model, guide, planned, accounting, streaming)
    d = guide.initial(like)["loc"].shape[0]
    parameters_of(d, diagonal=scale == "scale")
    state = State(
        None if streaming.state is None else Path(streaming.state), settings, streaming.save_every
    )
    state.check(
        d,
        diagonal=scale == "scale",
        choices=len(accounting.orders),
        blocks=table.blocks,
        records=len(table),
    )
    source = ModelTable(table, model)
    objective = Objective(
        source, model.prior_scale**-2, scale == "scale", last=model.intercept_mean
    )
    with log.step("fit"):
        point = _fit(objective, streaming.tolerance, state)
    expansion = Expansion(point, streaming.tolerance)
    job = _Job(source, guide, planned, accounting, streaming, expansion, state)
    parameters = {"loc": point.mean, scale: point.scale}
    looked = job.expected_orders()
    while True:
        with log.step("neighbours (remove)"):
            known = job.known(looked)
        try:
            spent = job.settled(known, parameters)
            break
        except NotKnownError as missing:
            looked = [torch.cat([index, missing.index]).unique() for index in looked]
            state.forget()
    guide.parameters = dict(parameters)
    return StreamFit(
        guide=guide,
        parameters=parameters,
        spent=spent,
        draws=planned.draws,
        temperature=planned.temperature,
        records=len(table),
        feature_names=table.features,
        gradient_norm=point.gradient_norm,
    )


def _settings(
    table: Table,
    model: BayesianLogisticRegression,
    guide: Guide,
    planned: Charge,
    accounting: StreamAccounting,
    streaming: Streaming,
) -> dict[str, Any]:
    """Return all that the result depends on."""
    return {
        "files": table.fingerprint(),
        "columns": [table.target, *table.features],
        "model": repr(model),
        "guide": type(guide).__name__,
        "released": [guide.ridge, guide.noise_scale],
        "release": [planned.draws, planned.temperature],
        "orders": hashlib.sha256(accounting.orders.values.numpy().tobytes()).hexdigest(),
        "search": [accounting.conversion, accounting.delta, accounting.failure_probability],
        "numerics": [streaming.tolerance, streaming.precision, streaming.rows],
    }


@dataclass(frozen=True, eq=False)
class _Job:
    """The passes that turn every record into what it costs, after the fit."""

    source: ModelTable
    guide: Guide
    planned: Charge
    accounting: StreamAccounting
    streaming: Streaming
    expansion: Expansion
    state: State

    @property
    def optimum(self) -> Optimum:
        """The route to neighbours that the polynomial leaves rough."""
        return Optimum(tolerance=self.streaming.tolerance, precision=self.streaming.precision)

    def add(self, folded: Sequence[Folded], moves: Moves, looked: Sequence[Tensor]) -> None:
        """Add what these neighbours cost, at the orders looked at, in either direction."""
        pair = pairs(self.expansion, moves, self.guide)
        _REACH.check(pair)
        for fold, one, index in zip(folded, (pair, pair.reverse()), looked, strict=True):
            orders = self.accounting.orders.values[index]
            for records in torch.arange(len(one)).split(max(1, _ENTRIES // len(orders))):
                part = one.select(records)
                cost = posterior_draws_cost(
                    part, orders, self.planned.draws, self.planned.temperature
                )
                fold.add(cost)

    def expected_orders(self) -> list[Tensor]:
        """Return the positions of the orders that the search will look at, by direction."""
        choices = len(self.accounting.orders)
        every = [torch.arange(choices) for _ in DIRECTIONS]
        looked = self.state.orders()
        if looked is not None or choices <= _FEW:
            return looked or every
        few = next(self.source.read()).select(slice(_PILOT))
        folds = [Folded(choices, len(few)) for _ in DIRECTIONS]
        self.add(folds, self.optimum.moves(self.expansion, few, -1.0), every)
        return expected_orders(folds, self.accounting, len(self.source.table))

    def known(self, looked: Sequence[Tensor]) -> Known:
        """Return what is known of the cost after a pass that leaves out every record in turn.

        Records that the polynomial leaves rough are held back, so that they share further passes.
        """
        table, streaming, expansion = self.source.table, self.streaming, self.expansion
        nobody = Records(expansion.fixed.new_empty(0, len(expansion.point.mean)), torch.empty(0))
        folded = [Folded(len(index), len(table)) for index in looked]
        begin, held = self.state.restore(folded)
        held = held or nobody
        turns = streaming.track(range(begin, table.blocks), "neighbours")
        for block, records in zip(turns, self.source.read(begin), strict=False):
            moves = expansion.solve_all(expansion.terms(records), -1.0)
            rough = expansion.rough(moves, streaming.precision)
            proven = torch.ones(len(records), dtype=torch.bool).index_fill_(0, rough, False)
            held = held.joined(records.select(rough))
            if bool(proven.any()):
                self.add(folded, moves.select(proven), looked)
            if len(held) >= _HELD:
                self.add(folded, self.optimum.moves(expansion, held, -1.0), looked)
                held = nobody
            final = block + 1 == table.blocks
            self.state.blocks(block + 1, looked, folded, held, final=final)
        if len(held):
            last = self.optimum.moves(
                expansion, held, -1.0, streaming.track, "held back", kept=self.state
            )
            self.add(folded, last, looked)
        gamma = self.accounting.failure_probability
        return Known(
            self.accounting.orders, looked, [student_t_of(f.moments(), gamma) for f in folded]
        )

    def settled(self, known: Known, parameters: Mapping[str, Tensor]) -> Spent:
        """Return what the planned draws cost, rounding included.

        Raises:
            NotKnownError: if the search asks for other orders.
        """
        accounting, guide, planned = self.accounting, self.guide, self.planned
        released = guide.released(parameters)
        rounding = rounding_error(guide, released, _REACH, planned.draws, planned.temperature)
        terms = Terms(
            orders=accounting.orders,
            choices=len(accounting.orders),
            failure_probability=accounting.failure_probability,
            composition=ByPanel.name,
            conversion=accounting.conversion,
            estimator=student_t.__name__,
        )
        solve = partial(known.solve, rule=accounting.conversion)
        return settle(solve, DIRECTIONS, accounting.delta, terms, rounding)


def _fit(objective: Objective, tolerance: float, state: State) -> Point:
    """Return the maximum, found from what was kept or from that of the first block."""
    begun = state.point()
    if begun is not None:
        point = objective.at(*begun)
    else:
        assert isinstance(objective.records, ModelTable)
        first = next(objective.records.read())
        point = start(replace(objective, records=first))
        more = len(objective.records.table) / len(first)
        with suppress(FloatingPointError):
            point = climb(point, 1e-3)[-1]
        prior = objective.precision * torch.eye(len(point.mean)).to(point.metric)
        point = objective.at(point.mean, prior + more * (point.metric - prior))
    return climb(point, tolerance, state.reached)[-1]
