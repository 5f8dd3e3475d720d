"""Neighbours that are watched while they train, against separate runs."""

from __future__ import annotations

import torch
from simulated import logistic_data
from torch import Tensor

import bdpvi
from bdpvi._ground.progress import silent
from bdpvi.bayesian import Remove
from bdpvi.bayesian.accounting.gaussian_pairs import summarise
from bdpvi.bayesian.inference.svi import Problem, default_optimiser, run_svi
from bdpvi.bayesian.neighbours.rows import train_rows
from bdpvi.guides import FullRank
from bdpvi.noise.batches import BatchPlan

STEPS = 12
ORDERS = torch.logspace(-1, 3, 97, dtype=torch.float64)


def test_rows_are_separate_runs_in_every_step() -> None:
    data, model = logistic_data(40, 2), bdpvi.BayesianLogisticRegression(clip=0.3)

    def trained(records: bdpvi.Dataset) -> tuple[Problem, list[torch.distributions.Distribution]]:
        guide = FullRank(model)
        plan = BatchPlan(steps=STEPS, rate=0.5, seed=0)
        problem = Problem(model, guide, records, plan, default_optimiser(STEPS))
        path: list[torch.distributions.Distribution] = []
        run_svi(problem, silent, lambda _, now: path.append(guide.posterior(now)))
        return problem, path

    problem, with_all = trained(data)
    _, without = trained(data.without(11))
    found: list[Tensor] = []

    def compare(step: int, now: dict[str, Tensor]) -> None:
        pairs = summarise(with_all[step], problem.guide.posterior(now))
        found.append(pairs.log_moment(ORDERS)[:, 11])

    train_rows(problem, Remove().rows(data, problem.model), observe=compare)
    expected = [
        summarise(p, q).log_moment(ORDERS)[:, 0] for p, q in zip(with_all, without, strict=True)
    ]
    torch.testing.assert_close(torch.stack(found), torch.stack(expected), rtol=1e-8, atol=1e-14)
