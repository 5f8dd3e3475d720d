"""Doors that are audited by runs, each with the record that its claim must cover at its dearest.

Tables get one more column, which is 0 for everybody but that record: it alone moves what is
released in that direction, and nothing else hides it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from bdpvi.audits.found import Door
from bdpvi.audits.games import likelihood_ratio
from bdpvi.datasets.cells import Cells
from bdpvi.datasets.columns import Numeric
from bdpvi.datasets.dataset import Dataset
from bdpvi.datasets.estimates import Purchase
from bdpvi.datasets.grid import Codes
from bdpvi.datasets.records import Held
from bdpvi.datasets.schema import Schema
from bdpvi.datasets.types import ColumnType
from bdpvi.federated.federated import Federation, Message
from bdpvi.federated.rounds import Rounds
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.networks.deep import DPSGDSettings, make_private
from bdpvi.noise.keys import Key
from bdpvi.privacy.entry import Entry
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.gaussian_dp import gaussian_distance
from bdpvi.privacy.ledger import Ledger
from bdpvi.privacy.sampled_steps import PrivacyLossAccountant, calibrate
from bdpvi.programs.dpvi import DPVI
from bdpvi.regression.noisy_scores import NoisyScores
from bdpvi.regression.objective import ObjectivePerturbation
from bdpvi.releases.transaction import Transaction
from bdpvi.synthesis.counts import Counts, Floats, MeasurementPlan, count
from bdpvi.tables.encoded import EstimateConstants
from bdpvi.tables.prepared import fit_private
from bdpvi.tables.rows import Rows

_RATE, _STEPS = 0.25, 10
_FAR = 2.0
"""The record's feature, in units of public scales: where the model clamps it."""
_LONG = 1e6
"""Its feature or target where gradients are clipped."""
_COLUMNS = 6
"""Most columns that are counted or measured."""
_MODEL = BayesianLogisticRegression.unweighted(limit=_FAR, intercept=True)


def doors(data: Dataset, epsilon: float, delta: float) -> list[Door]:
    """Return all doors, each at about ε.

    Args:
        data: encoded features of about unit size, and labels 0 and 1.
        epsilon, delta: what each release may cost.
    """
    size = float(len(data))
    scores = NoisyScores(rows=size, least=0.0, draws=1)
    return [
        minimum(data, epsilon, delta),
        _route("noisy scores", scores, _MODEL, neighbours(data, _FAR), epsilon, delta),
        dpvi(data, epsilon, delta),
        dp_sgd(data, epsilon, delta),
        federation(epsilon, delta),
        counts(data, epsilon, delta),
        preprocessing(data, epsilon, delta),
    ]


def minimum(data: Dataset, epsilon: float, delta: float) -> Door:
    """Return objective perturbation."""
    route = ObjectivePerturbation(rows=float(len(data)))
    tables = neighbours(data, _FAR)
    return _route("objective perturbation", route, _MODEL, tables, epsilon, delta)


def dpvi(data: Dataset, epsilon: float, delta: float) -> Door:
    """Return DPVI; the record's gradient is clipped in every step."""
    route = DPVI(rows=float(len(data)), draws=1, steps=_STEPS, batch=max(1, len(data) // 4))
    return _route("DPVI", route, line, neighbours(data, 1.0, _LONG), epsilon, delta)


def line(x: Tensor, y: Tensor | None = None) -> None:
    """Run a model on which a record's gradient is as long as its target is far out."""
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def neighbours(data: Dataset, far: float, target: float = 1.0) -> tuple[Dataset, Dataset]:
    """Return the table with one more column, and the same with the record that is not 0 there."""
    x = torch.cat([data.x.double(), data.x.new_zeros(len(data), 1).double()], 1)
    row = torch.zeros(1, x.shape[1], dtype=x.dtype)
    row[0, -1] = far
    y = data.y.double()
    return Dataset(x, y), Dataset(torch.cat([x, row]), torch.cat([y, y.new_tensor([target])]))


def _route(
    name: str, route: Any, model: Any, tables: tuple[Dataset, Dataset], epsilon: float, delta: float
) -> Door:
    """Return a route of :func:`bdpvi.fit_private`; the score is the record's own coefficient."""
    own = tables[0].x.shape[1] - 1

    def once(table: Dataset) -> tuple[float, Ledger]:
        ledger = Ledger()
        made = fit_private(
            model, (table.x, table.y), epsilon=epsilon, delta=delta, route=route, ledger=ledger
        )
        known = made.estimate or made.guide
        weights = made.samples[0].tolist() if known is None else known.mean
        return float(weights[own]), ledger

    return Door(name, *tables, once, record=len(tables[0]))


def dp_sgd(data: Dataset, epsilon: float, delta: float, outputs: int = 1) -> Door:
    """Return DP-SGD of which every step is seen, as its accountant assumes.

    The loss is linear, so that the record's gradient is clipped to C in every step. Of many outputs
    it has as many numbers, all alike and in single precision: rounding errors of its norm add up.
    """
    noise = calibrate(
        PrivacyLossAccountant(), epsilon=epsilon, delta=delta, rate=_RATE, steps=_STEPS
    )
    rate, size, kind = 0.1, len(data), torch.float64 if outputs == 1 else torch.float32

    def once(table: Dataset) -> tuple[float, Ledger]:
        ledger, module = Ledger(), nn.Linear(table.x.shape[1], outputs, bias=False)
        module.to(kind)
        made = make_private(
            module, torch.optim.SGD(module.parameters(), lr=rate),
            loss=lambda out, y: out.sum(1) * (1 - 2 * y), rate=_RATE,
            data=(table.x.to(kind), table.y.to(kind)),
            max_grad_norm=1.0, noise_multiplier=noise,
            settings=DPSGDSettings(ledger=ledger, records=size),
        )  # fmt: skip
        seen = [float(module.weight[0, -1])]
        for _ in range(_STEPS):
            made.step()
            seen.append(float(module.weight[0, -1]))
        steps = np.diff(seen) / rate * _RATE * size * math.sqrt(outputs)
        return _seen_steps(steps, noise, _RATE), ledger

    return Door("DP-SGD", *neighbours(data, _LONG), once, record=len(data))


def federation(epsilon: float, delta: float) -> Door:
    """Return rounds with a client whose update is as long as it may be; all others send 0."""
    clients, rate, most = 10, 0.5, 10
    noise = calibrate(PrivacyLossAccountant(), epsilon=epsilon, delta=delta, rate=rate, steps=most)
    rounds = Rounds(clients=clients, size=2, clip=1.0, noise_multiplier=noise, client_rate=rate)

    def once(sent: float) -> tuple[float, Ledger]:
        ledger, seen = Ledger(unit="client"), []
        made = Federation(rounds, ledger)
        for _ in range(most):
            number = made.next_round
            sums = [
                Message(one, number, torch.tensor([0.0, sent if one == 0 else 0.0]))
                for one in made.sampled(number)
            ]
            update = made.aggregate(number, sums).update
            assert update is not None
            seen.append(float(update[1]) * rate * clients)
        return _seen_steps(seen, noise, rate), ledger

    return Door("federation", 0.0, 2.0, once)


def _seen_steps(sums: Iterable[float], noise: float, rate: float) -> float:
    """Return the log-likelihood ratio of noisy sums to which the record adds 1 with a coin.

    Args:
        sums: along the record's direction, in units of the clip.
        noise: z.
        rate: q of the coin.
    """
    gained = (np.asarray(list(sums)) - 0.5) / noise**2
    return float(np.logaddexp(math.log1p(-rate), math.log(rate) + gained).sum())


def counts(data: Dataset, epsilon: float, delta: float) -> Door:
    """Return the counts behind synthetic rows, of the features' signs and the label."""
    codes, plan, canary = counting_inputs(data, epsilon, delta)
    score = likelihood_ratio(codes, canary)

    def once(rows: Codes) -> tuple[float, Ledger]:
        ledger = Ledger()
        event = SampledGaussian(noise_multiplier=1 / gaussian_distance(epsilon, delta))
        ledger.charge(Entry(kind="release", events=(event,)))
        return score(count(Held(rows), plan, Key.fresh())), ledger

    return Door("synthetic counts", codes, np.concatenate([codes, canary]), once)


def preprocessing(data: Dataset, epsilon: float, delta: float) -> Door:
    """Return private centres and scales; the record is far above the others in every column."""
    cells = data.x[:, :_COLUMNS].double().numpy()
    names = [f"c{at}" for at in range(cells.shape[1])]
    asked = Purchase.of([*names, "y"], target="y", numeric=names)
    price = {"distance": gaussian_distance(epsilon, delta), "delta": 0.0, "rows": 1}

    def once(table: Floats) -> tuple[float, Ledger]:
        columns = {name: Cells(one) for name, one in zip(names, table.T, strict=True)}
        rows, ledger = Held(Rows(columns, np.zeros(len(table)))), Ledger()
        made = Transaction(ledger).perform(EstimateConstants(rows, asked, asked, price))
        numbers = [column for column in made.columns if isinstance(column, Numeric)]
        return sum(number.mean + number.sd for number in numbers), ledger

    more = np.concatenate([cells, np.full((1, cells.shape[1]), _LONG)])
    return Door("private preprocessing", cells, more, once)


def counting_inputs(
    data: Dataset, epsilon: float, delta: float
) -> tuple[Codes, MeasurementPlan, Codes]:
    """Return codes of a table, (N, d), the plan of their counts, and one more row, (1, d)."""
    signs = torch.cat([data.x[:, :_COLUMNS] > 0, data.y[:, None] > 0], 1).long().numpy()
    names = [f"c{at}" for at in range(signs.shape[1])]
    schema = Schema({name: ColumnType(levels=("0", "1")) for name in names}, "signs")
    distance = gaussian_distance(epsilon, delta)
    plan = MeasurementPlan.of(schema, len(names) - 1, distance, Counts())
    return signs, plan, np.ones((1, len(names)), dtype=np.int64)
