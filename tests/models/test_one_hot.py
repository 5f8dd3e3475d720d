"""Categories of a table as groups of columns that count as one: told, bounded, saved."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

import bdpvi
from bdpvi import BayesianLogisticRegression, Dataset, datasets, guides
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bayesian.mode.influence import of_any_table
from bdpvi.privacy.event import WITH, WITHOUT

PLACES = ((1, 2, 3), (5, 6))
"""Of the columns age, job=a, job=b, job=c, height, sex=f, sex=m."""
D, ROW = 4, math.sqrt(4 * 4 + 4)
"""Columns with categories counted as one, and the longest (2, 2, 2, 2) with 2 beside it."""
C, PRECISION = math.sqrt(4 + 4) / 2, 4 * math.sqrt(4 + 4) / 2 * ROW


def frame(rows: int = 60) -> pd.DataFrame:
    random = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": random.integers(20, 80, rows),
            "job": random.choice(["a", "b", "c"], rows),
            "height": random.normal(170, 10, rows),
            "sex": random.choice(["f", "m"], rows),
            "y": random.integers(0, 2, rows),
        }
    )


def table() -> Dataset:
    return datasets.dataset_from_frame(frame(), "y", missing="refuse")


def fitted(model: BayesianLogisticRegression, data: Dataset) -> bdpvi.Fit:
    return bdpvi.fit(model, guides.Laplace(model), data, progress=False)


def seen(x: Tensor) -> Tensor:
    """Return z, written out."""
    rows = []
    for row in x.clamp(-2, 2).tolist():
        for places in PLACES:
            length = math.hypot(*(row[at] for at in places))
            for at in places:
                row[at] *= min(1.0, 2 / length) if length else 1.0
        rows.append([*row, 2.0])
    return torch.tensor(rows, dtype=torch.float64)


def test_the_encoding_tells_a_model_with_weights_and_no_other() -> None:
    data = table()
    model = BayesianLogisticRegression()
    fit = fitted(model, data)
    assert fit.model == replace(model, one_hot=PLACES)
    assert model.one_hot is None
    own = BayesianLogisticRegression(one_hot=())
    assert fitted(own, data).model == own
    assert fitted(model, Dataset(data.x, data.y)).model == model
    plain = BayesianLogisticRegression.unweighted()
    guide = guides.FullRank(plain)
    assert bdpvi.fit(plain, guide, data, progress=False).model == plain


def test_a_category_counts_once_in_score_row_and_prior() -> None:
    model = BayesianLogisticRegression(one_hot=PLACES)
    assert model.score_bound(8) == pytest.approx(C, rel=1e-12)
    assert model.longest(8) == pytest.approx(ROW, rel=1e-12)
    assert model.precision(8) == pytest.approx(PRECISION, rel=1e-12)
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 1.0])] * 7).double()
    x = torch.cat([signs * size for size in (0.0, 0.7, 1.3, 1e9)])
    design = model.design(x)
    torch.testing.assert_close(design, seen(x), rtol=1e-12, atol=0)
    lengths = torch.linalg.vector_norm(design, dim=1)
    assert float(lengths.max()) == pytest.approx(ROW, rel=1e-12)
    scores = model.record_weights(design) * lengths
    assert float(scores.max()) == pytest.approx(C, rel=1e-12)
    unlimited = BayesianLogisticRegression.unweighted(one_hot=PLACES, prior_scale=1.0)
    assert torch.equal(unlimited.design(x), x)


def test_the_fit_is_the_mode_and_keeps_all_columns() -> None:
    data = table()
    fit = fitted(BayesianLogisticRegression(), data)
    z, w = seen(data.x), fit.parameters["loc"].clone().requires_grad_()
    weight = (C / z.norm(dim=1)).clamp(max=1)
    joint = weight @ logsigmoid((2 * data.y - 1) * (z @ w)) - PRECISION / 2 * w @ w
    (slope,) = torch.autograd.grad(joint, w)
    assert float(slope.norm()) < 1e-6
    assert [panel.influence.columns for panel in fit.panels if panel.influence] == [8]


def test_no_record_costs_more_than_any_record_is_said_to() -> None:
    """Rows that no encoding makes too: far out in every column of a category."""
    model, data = BayesianLogisticRegression(one_hot=PLACES), table()
    added = of_any_table(model, 8, added=True)
    assert added is not None
    generator = torch.Generator().manual_seed(0)
    far = 9 * torch.randn(6, 7, generator=generator).sign().double()
    for rows in (9, 60):
        some = data.select(torch.arange(rows))
        one = fitted(model, some)
        for x in far:
            more = Dataset(
                torch.cat([some.x, x[None]]), torch.cat([some.y, torch.ones(1).double()])
            )
            other, factor = fitted(model, more), one.parameters["scale_tril"]
            lower = torch.linalg.inv(other.parameters["scale_tril"]) @ factor
            r, axes = torch.linalg.eigh(lower.T @ lower)
            shift = torch.linalg.solve(factor, other.parameters["loc"] - one.parameters["loc"])
            pairs = GaussianPairs(r[None], (r * (axes.T @ shift).square())[None])
            assert float(shift.norm()) <= added.shift
            for epsilon in (0.3, 2.0):
                assert float(pairs.hockey_stick(epsilon)) <= added.delta(epsilon, WITH)
                back = float(pairs.reverse().hockey_stick(epsilon))
                assert back <= added.delta(epsilon, WITHOUT)


@pytest.mark.parametrize("value", [((0, 1), (1, 2)), ((),), ((-1, 2),), ((0.5, 1),)])
def test_bad_categories(value: Any) -> None:
    with pytest.raises(ValueError, match="one_hot must hold column numbers"):
        BayesianLogisticRegression(one_hot=value)


def test_a_category_with_a_column_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="one_hot has column 7 of 7 features"):
        BayesianLogisticRegression(one_hot=((6, 7),)).design(torch.zeros(1, 7))
