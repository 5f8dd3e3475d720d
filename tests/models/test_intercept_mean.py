"""A prior mean of the intercept: a base rate is its logit."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from bdpvi import BayesianLogisticRegression
from bdpvi.tables import setup


def test_a_base_rate_of_ones_own_is_taken_as_its_logit() -> None:
    for made in (setup.logistic(0.05), setup.posterior(0.05)):
        assert made.intercept_mean == pytest.approx(math.log(0.05 / 0.95))
    assert replace(setup.logistic(0.05), intercept_mean=0.0) == setup.logistic()
    with pytest.raises(ValueError, match="base_rate must"):
        setup.logistic(1.0)


@pytest.mark.parametrize(
    ("given", "words"),
    [({"intercept_mean": -2.0}, "needs intercept=True"), ({"intercept_mean": math.nan}, "finite")],
)
def test_bad_means(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"intercept_mean.*{words}"):
        BayesianLogisticRegression.unweighted(**given)
