"""The optimum route over tables that do not fit in memory: fit, neighbours and ε by passes.

The guide is fitted by passes over the file. One more pass leaves every record out in turn, turns it
into what it costs and folds the costs up, order by order
(:mod:`bdpvi.accounting.streaming_moments`): neither the records nor the panel is ever in memory as
a whole.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from bdpvi import _validate
from bdpvi._runtime import progress, secure
from bdpvi._runtime.checkpoint import alike, read_tensors, write_tensors
from bdpvi._runtime.progress import Track
from bdpvi._runtime.store import make_folder
from bdpvi.accounting.bayesian import Solution, settle, solve_by_order, with_rounding
from bdpvi.accounting.composition import ByPanel
from bdpvi.accounting.conversions import REAL_ORDERS, Orders, minimise_epsilon, split_delta
from bdpvi.accounting.estimators import Estimate, log_student_t_bound, student_t, student_t_of
from bdpvi.accounting.events import WITH, WITHOUT
from bdpvi.accounting.gaussian_pairs import GaussianPairs
from bdpvi.accounting.record_costs import posterior_draws_cost as close_draws_cost
from bdpvi.accounting.streaming_moments import Folded
from bdpvi.inference.svi import Guide
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.neighbours.optimum.blocks import ROWS, ModelTable, Table
from bdpvi.neighbours.optimum.elbo import Objective, Point, Records, climb, start
from bdpvi.neighbours.optimum.expansion import Expansion, Moves
from bdpvi.neighbours.optimum.route import KeptMoves, Optimum, pairs, scale_name
from bdpvi.neighbours.rounding import Reach, rounding_error
from bdpvi.types import Spent

DIRECTIONS = (f"remove {WITH}", f"remove {WITHOUT}")
_REACH = Reach(ratio=4.0, shift=16.0)
"""How far a neighbour may be from the fit for the draws' rounding to be priced."""
_FEW = 256
_COARSE, _MIDDLE, _NEAR, _FAR = 64, 8, 24, 128
"""The search looks at every 64th order, then at every 8th near the best, then at each."""
_PILOT = 2048
_ENTRIES = 1 << 22
_COLUMNS = 1024
_MOVES = ("m", "y", "error")
_HELD = 1 << 14
"""Records that wait for more than the polynomial of degree 2, so that they share the passes."""


@dataclass(frozen=True, eq=False)
class StreamFit:
    """A guide fitted to a table on disk, and what draws from it cost. All but ``spent`` is secret.

    Attributes:
        guide: as given, with ``parameters`` set.
        parameters: the guide's, constrained.
        spent: what the planned draws cost together; no others are paid for.
        draws, temperature: the planned ones.
        records: N.
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


def fit_stream(
    path: str | Path,
    model: BayesianLogisticRegression,
    guide: Guide,
    *,
    target: str,
    features: Sequence[str] | None = None,
    draws: int = 1,
    temperature: float = 1.0,
    delta: float = 1e-5,
    failure_probability: float = 1e-15,
    orders: Orders = REAL_ORDERS,
    conversion: str = "cks",
    tolerance: float = 1e-12,
    precision: float = 1e-4,
    rows: int = ROWS,
    state: str | Path | None = None,
    save_every: float = 60.0,
    track: Track[Any] = progress.bar,
    large_delta: bool = False,
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
        draws: number k of samples that will be released.
        temperature: τ that they will be released at.
        delta: δ.
        failure_probability: γ of each estimate, which is by Student's t.
        orders: λ that ε is minimised over; all of them count as estimates.
        conversion: "cks" or "chernoff".
        tolerance, precision: see :class:`Optimum`; the proven errors are added to the costs. Here
            records that are not proven to this precision by a polynomial of degree 2 are held back
            and cost further passes over the file, which they share.
        rows: of a block.
        state: file that finished blocks are kept in, and that a job that was cut off goes on from;
            secret, and deleted by nobody. By default nothing is kept.
        save_every: seconds between two writes of it.
        track: progress of every pass, in blocks.
        large_delta: take a δ of 1/N or more, see :func:`bdpvi.release`.

    Raises:
        ValueError: on data that cannot be accounted for, or a ``state`` of another job or of files
            that have changed since, naming the argument.
        FloatingPointError: if rounding keeps the gradient above the tolerance.
    """
    if conversion not in ("cks", "chernoff"):
        raise ValueError(f"conversion must be 'cks' or 'chernoff', got {conversion!r}")
    _validate.positive_int("draws", draws)
    _validate.positive("temperature", temperature)
    _validate.probability("delta", delta)
    gamma = _validate.probability("failure_probability", failure_probability)
    optimum = Optimum(tolerance=tolerance, precision=precision)
    scale = scale_name(model, guide)
    table = Table(path, target, features, rows=rows, track=track)
    _validate.mean_delta(delta, len(table), large_delta)
    like = torch.zeros(3, len(table.features), dtype=torch.float64)
    guide.setup(like, like[:, 0])
    settings = {
        "files": table.fingerprint(),
        "columns": [table.target, *table.features],
        "model": repr(model),
        "guide": type(guide).__name__,
        "released": [guide.ridge, guide.noise_scale],
        "release": [draws, temperature],
        "orders": hashlib.sha256(orders.values.numpy().tobytes()).hexdigest(),
        "search": [conversion, delta, gamma],
        "numerics": [tolerance, precision, rows],
    }
    kept = _Kept(None if state is None else Path(state), settings, save_every)
    kept.check(
        guide.initial(like)["loc"].shape[0],
        diagonal=scale == "scale",
        choices=len(orders),
        blocks=table.blocks,
        records=len(table),
    )
    source = ModelTable(table, model)
    point = _fit(Objective(source, model.prior_scale**-2, scale == "scale"), tolerance, kept)
    expansion = Expansion(point, tolerance)
    parameters = {"loc": point.mean, scale: point.scale}
    choices = len(orders)
    beta = split_delta(delta, gamma, len(DIRECTIONS) * choices)

    def add(folded: Sequence[Folded], moves: Moves, looked: Sequence[Tensor]) -> None:
        pair = pairs(expansion, moves, guide)
        _REACH.check(pair)
        for fold, one, index in zip(folded, (pair, pair.reverse()), looked, strict=True):
            _add_costs(fold, one, orders.values[index], draws, temperature)

    nobody = Records(point.mean.new_empty(0, len(point.mean)), point.mean.new_empty(0))
    every = torch.arange(choices)
    looked = kept.orders()
    if looked is None and choices <= _FEW:
        looked = [every, every]
    elif looked is None:
        few = next(source.read()).select(slice(_PILOT))
        folds = [Folded(choices, len(few)) for _ in DIRECTIONS]
        add(folds, optimum.moves(expansion, few, -1.0), (every, every))
        looked = _pilot(folds, orders, len(table), beta, gamma, conversion)
    while True:
        folded = [Folded(len(index), len(table)) for index in looked]
        begin, held = kept.restore(folded)
        held = nobody if held is None else held
        turns = track(range(begin, table.blocks), "neighbours")
        for block, records in zip(turns, source.read(begin), strict=False):
            moves = _near(expansion, records)
            rough = expansion.rough(moves, precision, cheap=True)
            proven = torch.ones(len(records), dtype=torch.bool).index_fill_(0, rough, False)
            held = held.joined(records.select(rough))
            if bool(proven.any()):
                add(folded, moves.select(proven), looked)
            if len(held) >= _HELD:
                add(folded, optimum.moves(expansion, held, -1.0), looked)
                held = nobody
            final = block + 1 == table.blocks
            kept.blocks(block + 1, looked, folded, held, final=final)
        if len(held):
            last = optimum.moves(expansion, held, -1.0, track, "held back", kept=kept)
            add(folded, last, looked)
        known = _Known(orders, looked, [student_t_of(fold, gamma) for fold in folded])
        try:
            spent = with_rounding(
                partial(
                    settle,
                    partial(known.solve, rule=conversion),
                    DIRECTIONS,
                    delta,
                    orders=orders,
                    choices=choices,
                    failure_probability=gamma,
                    composition=ByPanel.name,
                    conversion=conversion,
                    estimator=student_t.__name__,
                ),
                rounding_error(guide, guide.released(parameters), _REACH, draws, temperature),
                delta,
            )
            break
        except _NotKnownError as missing:
            looked = [torch.cat([index, missing.index]).unique() for index in looked]
            kept.forget()
    guide.parameters = dict(parameters)
    return StreamFit(
        guide=guide,
        parameters=parameters,
        spent=spent,
        draws=draws,
        temperature=temperature,
        records=len(table),
        feature_names=table.features,
        gradient_norm=point.gradient_norm,
    )


def _fit(objective: Objective, tolerance: float, kept: _Kept) -> Point:
    """Return the maximum, found from what was kept or from that of the first block."""
    begun = kept.point()
    if begun is not None:
        point = objective.at(*begun)
    else:
        assert isinstance(objective.records, ModelTable)
        first = next(objective.records.read())
        point = start(Objective(first, objective.precision, objective.diagonal))
        more = len(objective.records.table) / len(first)
        with suppress(FloatingPointError):
            point = climb(point, 1e-3)[-1]
        prior = objective.precision * torch.eye(len(point.mean)).to(point.metric)
        point = objective.at(point.mean, prior + more * (point.metric - prior))
    return climb(point, tolerance, kept.reached)[-1]


def _near(expansion: Expansion, records: Records) -> Moves:
    """Return what the polynomial of degree 2 says, nothing where it is not worth a try."""
    terms = expansion.terms(records)
    moves = Moves.none(len(expansion.jacobian), terms)
    if expansion.degrees[0] > 2:
        return moves
    for part in torch.arange(len(terms)).split(_COLUMNS):
        moves.put(part, expansion.solve(terms.select(part), -1.0))
    return moves


def _add_costs(
    fold: Folded, pair: GaussianPairs, orders: Tensor, draws: int, temperature: float
) -> None:
    """Add the costs of these neighbours, in parts that leave the memory small."""
    for records in torch.arange(len(pair)).split(max(1, _ENTRIES // len(orders))):
        fold.add(close_draws_cost(pair.select(records), orders, draws, temperature))


class _NotKnownError(Exception):
    """The search asked for orders that were not looked at."""

    def __init__(self, index: Tensor) -> None:
        super().__init__()
        self.index = index


@dataclass(frozen=True, eq=False)
class _Known:
    """The cost at the orders that were looked at: for each direction their positions, and bounds.

    Attributes:
        orders: all that an answer could have.
        looked: positions, ascending.
        estimates: there.
    """

    orders: Orders
    looked: Sequence[Tensor]
    estimates: Sequence[Estimate]

    def solve(self, direction: str, beta: float, enough: float, *, rule: str) -> Solution:
        """Return the smallest ε of one direction."""
        place = DIRECTIONS.index(direction)

        def cost(order: Tensor) -> Estimate:
            asked, looked = self.orders.index(order), self.looked[place]
            at = torch.searchsorted(looked, asked).clamp(max=len(looked) - 1)
            if not torch.equal(looked[at], asked):
                raise _NotKnownError(torch.arange(int(asked.min()), int(asked.max()) + 1))
            return self.estimates[place].at(at)

        return solve_by_order(cost, beta, self.orders, rule)


def _pilot(
    folds: Sequence[Folded], orders: Orders, records: int, beta: float, gamma: float, rule: str
) -> list[Tensor]:
    """Return the positions of the orders that the search is expected to look at, by direction.

    They follow from a few records' costs at all orders. Which ones they are changes no result: if
    the search asks for others there is another pass.
    """
    last, looked = len(orders) - 1, []
    for fold in folds:
        bound = log_student_t_bound(fold.expected(records), gamma)
        best = minimise_epsilon(lambda order: bound[orders.index(order)], beta, orders, rule).order  # noqa: B023
        (at,) = orders.index(torch.tensor([best], dtype=torch.float64)).tolist()
        eighth = at // _MIDDLE * _MIDDLE
        index = {*range(0, last, _COARSE), last, *range(at - _NEAR, at + _NEAR + 1)}
        index |= set(range(eighth - _FAR, eighth + _FAR + 1, _MIDDLE))
        looked.append(torch.tensor(sorted(i for i in index if 0 <= i <= last)))
    return looked


class _Kept(KeptMoves):
    """What a job has finished, in a file of its own, written whole or not at all.

    Args:
        path: the file; None keeps nothing.
        settings: all that the result depends on, as JSON has it.
        every: seconds between two writes.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any], every: float) -> None:
        self.path, self.every = path, _validate.non_negative("save_every", every)
        self.settings = {name: json.dumps(value) for name, value in settings.items()}
        self.tensors: dict[str, Tensor] = {}
        self.written = time.monotonic()
        if path is None or not path.exists():
            return
        self.tensors, about = read_tensors("state", path)
        for name, now in self.settings.items():
            if about.get(name) != now:
                raise ValueError(
                    f"state={str(path)!r} was begun with {name}={about.get(name)}, not {now}; use "
                    "another file, or delete this one"
                )

    def check(self, d: int, *, diagonal: bool, choices: int, blocks: int, records: int) -> None:
        """Raise ValueError unless what was read is what such a job writes, in names and shapes."""
        if self.path is None or not self.tensors:
            return
        like = {"mean": _empty(d), "metric": _empty(d, d)}
        found = self.tensors
        if "blocks" in found:
            held = len(found["held"]) if "held" in found else 0
            like |= {"blocks": _empty(dtype=torch.int64)}
            like |= {"held": _empty(held, d), "bound": _empty(held)}
            for place in range(len(DIRECTIONS)):
                looked = found.get(f"{place}.looked", _empty(0, dtype=torch.int64))
                tail = found.get(f"{place}.tail", _empty(0, 0))
                count = looked.numel()
                like |= {
                    f"{place}.looked": _empty(count, dtype=torch.int64),
                    f"{place}.size": _empty(dtype=torch.int64),
                    f"{place}.moments": _empty(4, count),
                    f"{place}.tail": _empty(count, tail.shape[-1] if tail.ndim else 0),
                }
            if "stage" in found:
                free = d if diagonal else d * (d + 1) // 2
                like |= {"stage": _empty(dtype=torch.int64), "error": _empty(held)}
                like |= {"m": _empty(d, held), "y": _empty(free, held)}
        alike("state", self.path, found, like)
        if "blocks" in found:
            most = {"blocks": blocks}
            for place in range(len(DIRECTIONS)):
                most |= {f"{place}.looked": choices - 1, f"{place}.size": records}
            for name, top in most.items():
                good = (found[name] >= 0) & (found[name] <= top)
                rule = f"lie between 0 and {top}"
                _validate.every(f"state: {self.path}: {name}", found[name], good, rule)

    def point(self) -> tuple[Tensor, Tensor] | None:
        """Return mean and metric of the last point that the fit reached."""
        return (self.tensors["mean"], self.tensors["metric"]) if "mean" in self.tensors else None

    def reached(self, point: Point) -> None:
        """Keep a point of the fit."""
        self.tensors = {"mean": point.mean, "metric": point.metric}
        self._write()

    def orders(self) -> list[Tensor] | None:
        """Return the positions of the orders that the finished blocks were looked at."""
        names = [f"{place}.looked" for place in range(len(DIRECTIONS))]
        return [self.tensors[name] for name in names] if names[0] in self.tensors else None

    def restore(self, folded: Sequence[Folded]) -> tuple[int, Records | None]:
        """Set the moments to those of the finished blocks.

        Returns:
            How many blocks there are, and those of their records that are still held back.
        """
        if "blocks" not in self.tensors:
            return 0, None
        for place, fold in enumerate(folded):
            start = f"{place}."
            fold.restore(
                {k[len(start) :]: v for k, v in self.tensors.items() if k.startswith(start)}
            )
        held = Records(self.tensors["held"], self.tensors["bound"])
        return int(self.tensors["blocks"]), held

    def blocks(
        self,
        count: int,
        looked: Sequence[Tensor],
        folded: Sequence[Folded],
        held: Records,
        *,
        final: bool,
    ) -> None:
        """Keep that ``count`` blocks are finished but for records held back, if it is time to."""
        if self.path is None or not (final or self._due()):
            return
        self.tensors |= {"blocks": torch.tensor(count), "held": held.x, "bound": held.bound}
        for place, (index, fold) in enumerate(zip(looked, folded, strict=True)):
            state = {"looked": index, **fold.state()}
            self.tensors |= {f"{place}.{name}": value for name, value in state.items()}
        self._write()

    def moves(self) -> tuple[int, Moves] | None:
        """Return how far the records were that are held back to the end."""
        if "stage" not in self.tensors:
            return None
        return int(self.tensors["stage"]), Moves(*(self.tensors[name] for name in _MOVES))

    def moved(self, stages: int, moves: Moves) -> None:
        """Keep how far these records are, if it is time to."""
        if self._due():
            parts = zip(_MOVES, (moves.m, moves.y, moves.error), strict=True)
            self.tensors |= {"stage": torch.tensor(stages), **dict(parts)}
            self._write()

    def _due(self) -> bool:
        return self.path is not None and time.monotonic() - self.written >= self.every

    def forget(self) -> None:
        """Forget the finished blocks; the fit stays."""
        self.tensors = {k: v for k, v in self.tensors.items() if k in ("mean", "metric")}

    def _write(self) -> None:
        if self.path is None:
            return
        make_folder(self.path.parent)
        write_tensors(self.path, self.tensors, self.settings)
        self.written = time.monotonic()


def _empty(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
