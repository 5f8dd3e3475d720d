"""Bad input to fit: the argument is named, and nothing happens."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from simulated import logistic_data

from bdpvi import BayesianLogisticRegression, Coupled, Dataset, Training, fit
from bdpvi.bayesian import Add, Remove
from bdpvi.guides import MeanField

TRAINED = [field.name for field in dataclasses.fields(Training)]
x, y = logistic_data(20, 2).x, logistic_data(20, 2).y


def run(data: Dataset | None = None, **options: Any) -> None:
    model = options.pop("model", BayesianLogisticRegression.unweighted())
    given = logistic_data(20, 2) if data is None else data
    training = {name: options.pop(name) for name in TRAINED if name in options}
    made = Training(**{"steps": 3, **training})
    fit(model, MeanField(model), given, training=made, progress=False, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Dataset(x, y[:-1]), "y has 19 entries, x has 20"),
        (lambda: Dataset(x, y, torch.zeros(20, dtype=torch.int64)), "ids must be unique"),
        (lambda: run(Dataset(x[:2], y[:2])), "data has 2 records"),
        (
            lambda: run(neighbours=Coupled(Remove(2))),
            "records=2 must be between 3 and",
        ),
        (lambda: run(neighbours=Coupled(Remove(21))), "records=21"),
        (lambda: run(neighbours=Coupled(Add(logistic_data(5, 2)))), "heldout has record id 0"),
        (lambda: run(rate=0.0), "rate must lie in .* got 0.0"),
        (lambda: run(rate=1e-4), "rate=0.0001 left the Poisson batch of step 0 empty"),
        (
            lambda: Dataset(x, y, torch.arange(20) + 2**40),
            f"ids must be below 268435456, got {2**40 + 19}",
        ),
        (lambda: run(steps=0), "steps must be .* got 0"),
        (lambda: run(seed=-1), "seed must be .* got -1"),
        (lambda: run(device="cuda:99"), "device='cuda:99'"),
        (lambda: BayesianLogisticRegression(clip=-0.5), "clip must be .* -0.5"),
        (
            lambda: BayesianLogisticRegression.unweighted(prior_scale=0.0),
            "prior_scale must be .* 0.0",
        ),
        (lambda: logistic_data(20, 2).without(99), "record_id=99"),
    ],
)
def test_bad_input_names_the_argument(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_the_callers_state_is_untouched() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    run()
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_default_dtype() == torch.float32
