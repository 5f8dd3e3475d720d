"""What a notebook prints of an object is short, and says nothing secret."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import pyro.optim
import pytest
import torch
from pyro.infer import Trace_ELBO

import bdpvi
from bdpvi import datasets, guides, sklearn
from bdpvi.datasets import ColumnType, Schema

N, D = 1237, 20
VALUE = 0.87654321
SECRET = (str(N), f"{N:,}", str(VALUE)[:6])
LONGEST = 1000
OWNERS = {"Cost"}
"""Its words are for the owner alone."""
BY_THE_USER = {"ColumnType", "Encoding", "Schema", "Split"}
"""Declarations: they are as long as their user wrote them, and keys of works follow from them."""
NAMES = tuple(f"a long name of column {at}" for at in range(D))
TYPES = {name: ColumnType(kind="number", low=-1, high=1) for name in NAMES[:6]}
TYPES["job"] = ColumnType(kind="category", levels=tuple(f"level {at}" for at in range(60)))
TYPES["sick"] = ColumnType(kind="category", levels=("no", "yes"))


def data() -> bdpvi.Dataset:
    """Return records of one value."""
    y = torch.arange(N) % 2
    return bdpvi.Dataset(torch.full((N, D), VALUE).double(), y.double(), feature_names=NAMES)


def frame() -> pd.DataFrame:
    """Return a table with a column of levels."""
    numbers = pd.DataFrame(VALUE, index=range(N), columns=NAMES[:6])
    levels = [f"level {at % 60}" for at in range(N)]
    return numbers.assign(job=levels, sick=np.where(np.arange(N) % 2, "yes", "no"))


MODEL = bdpvi.BayesianLogisticRegression()
KNOWN: dict[str, Any] = {"unit": bdpvi.tables.Unit(), "epsilon": 1.0}


@lru_cache
def fit() -> bdpvi.Fit:
    return bdpvi.fit(MODEL, guides.Laplace(MODEL), data(), progress=False)


@lru_cache
def private() -> bdpvi.Release:
    public = bdpvi.tables.Public(types=Schema(TYPES, "By law."))
    asked: dict[str, Any] = {"target": "sick", "positive": "yes", "public": public, **KNOWN}
    return bdpvi.private(frame(), intervals=True, **{**asked, "epsilon": 20.0})


def described() -> Any:
    return bdpvi.describe(frame(), Schema(TYPES, "By law."), by="sick", **KNOWN)


def compared() -> Any:
    return bdpvi.compare_models(private(), private(), frame(), **KNOWN)


MADE: dict[str, Callable[[], Any]] = {
    "BayesianAccountant": bdpvi.BayesianAccountant,
    "BayesianDP": bdpvi.BayesianDP,
    "BayesianLinearRegression": lambda: bdpvi.BayesianLinearRegression(largest=1.0),
    "BayesianLogisticRegression": lambda: MODEL,
    "BayesianMultinomialRegression": lambda: bdpvi.BayesianMultinomialRegression(classes=3),
    "BayesianNegativeBinomialRegression": lambda: bdpvi.BayesianNegativeBinomialRegression(
        largest=9
    ),
    "BayesianOrdinalRegression": lambda: bdpvi.BayesianOrdinalRegression(classes=3),
    "BayesianPoissonRegression": lambda: bdpvi.BayesianPoissonRegression(largest=9),
    "BayesianSurvivalRegression": lambda: bdpvi.BayesianSurvivalRegression(cuts=(1.0, 2.0)),
    "Bound": lambda: bdpvi.cost(fit(), planned=bdpvi.privacy.Charge(1, 1.0)).bayesian,
    "Budget": lambda: bdpvi.Budget(1.0),
    "Cost": lambda: bdpvi.cost(fit(), planned=bdpvi.privacy.Charge(1, 1.0)),
    "Coupled": bdpvi.Coupled,
    "DPVI": bdpvi.DPVI,
    "Dataset": data,
    "Fit": fit,
    "Ledger": lambda: fit().ledger,
    "Optimum": bdpvi.Optimum,
    "PosteriorDraws": bdpvi.PosteriorDraws,
    "PrivateLinearRegression": sklearn.PrivateLinearRegression,
    "PrivateLogisticRegression": sklearn.PrivateLogisticRegression,
    "PrivatePoissonRegressor": sklearn.PrivatePoissonRegressor,
    "PrivateSVI": lambda: bdpvi.PrivateSVI(
        MODEL,
        guides.FullRank(MODEL),
        pyro.optim.Adam({"lr": 0.1}),
        Trace_ELBO(),
        rate=0.1,
        noise_multiplier=2.0,
        clip=1.0,
    ),
    "Release": private,
    "Table": lambda: bdpvi.Table.of(frame(), Schema(TYPES, "By law.")),
    "Training": bdpvi.Training,
    "TypicalRecord": bdpvi.TypicalRecord,
    "WorstCaseDP": bdpvi.WorstCaseDP,
    "comparison": compared,
    "draws of a fit": lambda: bdpvi.release(fit(), guarantee=bdpvi.BayesianDP()),
    "estimate": lambda: private().estimate,
    "receipt": lambda: private().receipt,
    "summary": lambda: private().summary(),
    "synthetic rows": lambda: described().counts,
    "Table 1": described,
    "Table 1's receipt": lambda: described().receipt,
}


def test_all_public_classes_are_here() -> None:
    packages: tuple[Any, ...] = (bdpvi, sklearn, datasets)
    every = {name: getattr(one, name) for one in packages for name in one.__all__}
    known = {
        n for n, one in every.items() if inspect.isclass(one) and not issubclass(one, Exception)
    }
    assert known - BY_THE_USER == known & {*MADE}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MADE)
def test_a_repr_is_short_and_says_nothing_secret(name: str) -> None:
    shown = repr(MADE[name]())
    assert len(shown) <= LONGEST
    assert name in OWNERS or not [one for one in SECRET if one in shown]


def test_a_release_says_model_weights_draws_and_guarantee() -> None:
    made = private()
    assert repr(made) == (
        "Release(BayesianLogisticRegression, 75 weights, 1000 draws; worst-case DP ε = 20 "
        "(target) at δ = 1e-05, to add or remove one record)"
    )
