"""Two releases compared by held-out people: densities, sums, intervals, and what is refused."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp
from torch import Tensor

import bdpvi
from bdpvi import Dataset, Ledger, compare_models
from bdpvi._ground.types import BudgetExceededError, PrivacyUtilityWarning
from bdpvi.datasets import constants_of
from bdpvi.models.densities import log_densities
from bdpvi.privacy.worst_case import epsilon as worst_case
from bdpvi.releases.clipping import shortened
from bdpvi.tables import Public, Unit, compared
from bdpvi.tables.compared import LENGTH, _estimate, contributions, differences
from bdpvi.tables.held_out import HeldOut

N = 400
ROUTE = bdpvi.DPVI(rows=N, steps=40, draws=30, progress=False)
LOGISTIC = bdpvi.BayesianLogisticRegression.unweighted(intercept=True, limit=2.0)


def normal(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    scale = pyro.sample("scale", dist.LogNormal(0.0, 0.5))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(x @ w, scale), obs=y)


def counts(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Poisson((x @ w).clamp(-3, 3).exp()), obs=y)


def mixing(x: Tensor, y: Tensor | None = None) -> None:
    """Read the mean of all records."""
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal((x - x.mean(0)) @ w, 1.0), obs=y)


def by_name(age: Tensor, ward: Tensor, y: Tensor | None = None) -> None:
    slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
    with pyro.plate("wards", 3):
        effect = pyro.sample("effect", dist.Normal(0.0, 1.0))
    with pyro.plate("records", len(age)):
        pyro.sample("y", dist.Normal(slope * age + effect[ward], 1.0), obs=y)


def by_age(age: Tensor, y: Tensor | None = None) -> None:
    slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
    with pyro.plate("records", len(age)):
        pyro.sample("y", dist.Normal(slope * age, 1.0), obs=y)


def table(seed: int, number: int = N) -> tuple[Tensor, Tensor]:
    random = np.random.default_rng(seed)
    x = random.normal(size=(number, 2))
    return torch.from_numpy(x), torch.from_numpy(x @ [1.0, -0.5] + random.normal(size=number))


def named(x: Tensor, y: Tensor, columns: int = 2) -> Dataset:
    names = ["a", "b"][:columns]
    return Dataset.of(x[:, :columns], y, feature_names=names, unit=Unit())


@lru_cache
def released(model: Callable[..., None] = normal, columns: int = 2) -> bdpvi.Release:
    x, y = table(0)
    y = y.clamp(min=0).floor() if model is counts else y
    return bdpvi.fit_private(model, named(x, y, columns), epsilon=8.0, route=ROUTE)


@lru_cache
def logistic(columns: int = 2, seed: int = 0) -> bdpvi.Release:
    x, y = table(seed, 5000)
    route = bdpvi.regression.ObjectivePerturbation(rows=5000, draws=20)
    return bdpvi.fit_private(
        LOGISTIC, named(x, (y > 0).double(), columns), epsilon=5.0, route=route
    )


@lru_cache
def wards() -> dict[str, Any]:
    x, y = table(4)
    return {"age": x[:, 0], "ward": torch.arange(N) % 3, "y": y}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyUtilityWarning)
        yield


def held(a: bdpvi.Release, b: bdpvi.Release, data: Any) -> HeldOut:
    return HeldOut.of(a, b, data, None, None)


# --- densities ------------------------------------------------------------------------------------


def mean_density(each: Any) -> np.ndarray[Any, Any]:
    """Return log of the mean over draws, by SciPy."""
    result: np.ndarray[Any, Any] = logsumexp(each, 0) - math.log(len(each))
    return result


def by_scipy(release: bdpvi.Release, x: np.ndarray[Any, Any], y: Any) -> np.ndarray[Any, Any]:
    w, scale = (release.latents[name].numpy() for name in ("w", "scale"))
    return mean_density(stats.norm.logpdf(y, w @ x.T, scale[:, None]))


def test_differences_are_those_of_scipy() -> None:
    x, y = table(1)
    a, b = released(), released(normal, 1)
    found = differences(held(a, b, named(x, y)))
    expected = by_scipy(a, x.numpy(), y.numpy()) - by_scipy(b, x[:, :1].numpy(), y.numpy())
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_a_regression_s_densities_are_those_of_its_probabilities() -> None:
    x, y = table(1)
    y = (y > 0).double()
    a, b = logistic(), logistic(1)
    each = [one.predict_proba(some)[range(N), y.long()] for one, some in ((a, x), (b, x[:, :1]))]
    found = differences(held(a, b, named(x, y)))
    torch.testing.assert_close(found, (each[0] / each[1]).log(), rtol=0, atol=1e-9)


def test_densities_of_arguments_by_name() -> None:
    data = wards()
    a, b = (
        bdpvi.fit_private(model, given, epsilon=8.0, route=ROUTE, unit=Unit())
        for model, given in ((by_name, data), (by_age, {n: data[n] for n in ("age", "y")}))
    )
    found = differences(held(a, b, data))
    means = [one.latents["slope"].numpy()[:, None] * data["age"].numpy() for one in (a, b)]
    means[0] = means[0] + a.latents["effect"].numpy()[:, data["ward"].numpy()]
    scores = [mean_density(stats.norm.logpdf(data["y"].numpy(), mean)) for mean in means]
    np.testing.assert_allclose(found, scores[0] - scores[1], atol=1e-9)
    frame = pd.DataFrame({name: value.numpy() for name, value in data.items()})
    torch.testing.assert_close(differences(held(a, b, frame)), found)


def test_a_record_does_not_move_another_s_density() -> None:
    """Not even where the model would have it."""
    x, y = table(2, 6)
    values = {"w": torch.ones(1, 2).double()}
    every = log_densities(mixing, values, (x, y), ())[0]
    for at in range(6):
        row = slice(at, at + 1)
        assert log_densities(mixing, values, (x[row], y[row]), ())[0, 0] == every[at]
    expected = stats.norm.logpdf(y.numpy(), 0.0)  # less its own mean a row is 0
    np.testing.assert_allclose(every, expected, atol=1e-12)


def test_what_bounds_a_record_in_a_fit_is_no_part_of_its_density() -> None:
    x, y = table(3, 50)
    w = {"w": torch.tensor([[3.0, -1.0, 0.5]]).double()}
    weighted = bdpvi.BayesianLogisticRegression(limit=2.0, intercept=True)
    clipped = bdpvi.BayesianLogisticRegression(clip=0.1, limit=2.0, intercept=True)
    for one in (weighted, clipped):
        found = log_densities(one, w, (x, (y > 0).double()), ())[0]
        expected = one.probabilities({"w": w["w"][0]}, x)[range(50), (y > 0).long()].log()
        torch.testing.assert_close(found, expected)


# --- sums -----------------------------------------------------------------------------------------


def test_no_record_moves_the_sums_by_more_than_is_priced() -> None:
    difference = torch.linspace(-5, 5, 100_001).double()
    lengths = contributions(difference, 2.0).norm(dim=1)
    assert float(lengths.max()) == pytest.approx(LENGTH, abs=1e-12)
    assert float(lengths.max()) * (1 - 2.0**-19) < shortened(LENGTH, 4)  # clipping moves nothing
    extremes = torch.tensor([math.inf, -math.inf, math.nan]).double()
    found = contributions(extremes, 2.0)
    assert found[:2].tolist() == [[1.0, 0.5, 0.5, 0.25], [-1.0, 0.5, 0.5, 0.25]]
    assert bool(found[2].isnan().any())  # counts as zero in a clipped sum


LAWS: dict[str, Callable[[np.random.Generator, tuple[int, int]], Any]] = {
    "equal": lambda random, size: np.zeros(size),
    "close": lambda random, size: random.normal(0.02, 0.1, size),
    "far": lambda random, size: random.normal(0.1, 0.5, size),
    "heavy": lambda random, size: 0.1 * random.standard_t(2, size),
    "skewed": lambda random, size: 0.05 - 0.05 * random.exponential(1, size),
    "rare": lambda random, size: np.where(random.random(size) < 0.02, -1.0, 0.02),
}


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("number", [300, 2000])
@pytest.mark.parametrize("multiplier", [1.0, 3.7, 7.3])
def test_intervals_cover_and_equal_models_are_rarely_told_apart(
    name: str, number: int, multiplier: float
) -> None:
    """By 1,000 tables each, whose coverage has a standard error of .7 %."""
    random, tables = np.random.default_rng(7), 1000
    truth = np.clip(LAWS[name](random, (4000, 1000)), -1, 1).mean()
    noise, deviation = random.normal(size=(tables, 4)), multiplier * LENGTH
    covers = better = 0
    for row, drawn in zip(LAWS[name](random, (tables, number)), noise, strict=True):
        sums = contributions(torch.from_numpy(row), 1.0).sum(0)
        found = _estimate(sums + deviation * torch.from_numpy(drawn), deviation, 1.0, 0.95)
        low, high = found["interval"]
        covers += low <= truth <= high
        better += not 0.025 < found["probability"] < 0.975
    assert covers >= 0.93 * tables
    if name == "equal":
        assert better <= 0.07 * tables


def test_a_record_on_which_a_model_fails_adds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = table(3, 50)
    y[7] = 99.0
    plain = compared._score

    def score(release: bdpvi.Release, some: Any) -> Tensor:
        if bool((some.tensors[1] > 90).any()):
            raise ValueError("a model of the user's raises anything")
        return plain(release, some)

    monkeypatch.setattr(compared, "_score", score)
    found = differences(held(released(), released(normal, 1), named(x, y)))
    assert found.isnan().nonzero().flatten().tolist() == [7]


def test_few_records_say_nothing() -> None:
    sums = torch.tensor([9.0, 3.0, 20.0, 0.0]).double()
    found = _estimate(sums, 10.0, 0.5, 0.95)
    assert (found["interval"], found["probability"]) == ((-0.5, 0.5), 0.5)


# --- releases compared ----------------------------------------------------------------------------


def test_a_dropped_covariate_is_found_and_nothing_where_none_was() -> None:
    x, y = table(5, 5092)
    y = (y > 0).double()
    found = compare_models(logistic(), logistic(1), named(x, y), epsilon=0.5)
    exact = differences(held(logistic(), logistic(1), named(x, y))).clamp(-1, 1)
    low, high = found.interval
    assert found.difference / (high - low) * 3.92 > 10
    assert found.difference == pytest.approx(float(exact.mean()), abs=(high - low))
    assert found.probability > 0.999
    assert found.records == pytest.approx(5092, rel=0.1)
    null = compare_models(logistic(), logistic(2, 9), named(x, y), epsilon=0.5)
    assert abs(null.difference) < 0.01  # five deviations of the noise


def test_what_is_charged_is_what_was_asked_and_no_fit() -> None:
    x, y = table(6, 2000)
    ledger = Ledger()
    data = named(x, y)
    found = compare_models(released(), released(normal, 1), data, epsilon=0.7, ledger=ledger)
    (entry,) = ledger.entries()
    assert entry.purpose == "comparison"
    bound = worst_case(entry.events or (), 1e-5)
    assert bound is not None
    assert bound.epsilon == pytest.approx(0.7, rel=0.003)
    assert found.receipt.bound.epsilon == 0.7
    assert str(found).count("\n") == 2
    assert "for the people held out: worst-case DP ε = 0.7 (target)" in str(found)
    again = compare_models(released(), released(normal, 1), data, epsilon=1.4, ledger=ledger)
    assert again.difference != found.difference
    assert ledger.worst_case(1e-5).epsilon == pytest.approx(1.4, rel=0.003)  # type: ignore[union-attr]


def test_rows_of_a_fit_are_known_again() -> None:
    """In this process, whatever columns a release takes."""
    x, y = table(11, 3000)
    fitted = bdpvi.fit_private(LOGISTIC, (x.clone(), (y > 0).double()), epsilon=1.0, unit=Unit())
    found = compare_models(
        logistic(1), logistic(), Dataset(x, (y > 0).double(), feature_names=("a", "b")), epsilon=0.5
    )
    assert not fitted.receipt.together
    assert "worst-case ε" in found.receipt.together


def test_noise_has_the_deviation_of_the_price() -> None:
    """Of a single record, whose sums are known."""
    x, y = table(8, 1)
    seen = []
    for _ in range(200):
        ledger, data = Ledger(), named(x, y)
        made = compare_models(released(), released(normal, 1), data, epsilon=1.0, ledger=ledger)
        seen.append(made.records)
        (event,) = ledger.entries()[0].events or ()
    # Half of the records' noisy number is cut at 1.
    deviation = event.noise_multiplier * LENGTH / 0.5  # type: ignore[attr-defined]
    above = np.array([one for one in seen if one > 1.0]) - 1.0
    assert np.sqrt((above**2).mean()) == pytest.approx(deviation, rel=0.25)


def test_rows_of_a_person_have_the_noise_of_all() -> None:
    x, y = table(6, 3000)
    persons, found = np.repeat(np.arange(1000), 3), {}
    for rows in (1, 3):
        ledger = Ledger(unit="who", rows_per_unit=rows)
        made = compare_models(
            released(),
            released(),
            (x, y),
            epsilon=1.0,
            unit=Unit(persons, rows=rows),
            ledger=ledger,
        )
        (event,) = ledger.entries()[0].events or ()
        found[rows] = event.noise_multiplier  # type: ignore[attr-defined]
        assert f"at most {rows}, of one person" in str(made)
    assert found[3] == pytest.approx(3 * found[1], rel=0.01)


def test_a_table_is_encoded_as_each_release_has_it() -> None:
    random = np.random.default_rng(0)

    def people(number: int) -> pd.DataFrame:
        age, dose = random.normal(50, 10, number), random.normal(size=number)
        chance = 1 / (1 + np.exp(-(age - 50) / 5 - dose))
        sick = np.where(random.random(number) < chance, "yes", "no")
        return pd.DataFrame({"age": age, "dose": dose, "sick": sick})

    old, new = people(4000), people(3000)
    public = Public(constants=constants_of({"source": "Law", "age": [20, 80], "dose": [-3, 3]}))
    less = Public(constants=constants_of({"source": "Law", "age": [20, 80]}), drop=("dose",))
    given: dict[str, Any] = {"target": "sick", "positive": "yes", "epsilon": 3.0}
    a, b = (bdpvi.private(old, public=one, **given) for one in (public, less))
    exact = differences(held(a, b, new))
    yes = (new["sick"] == "yes").to_numpy().astype(int)
    each = [one.predict_proba(new).to_numpy()[range(3000), yes] for one in (a, b)]
    np.testing.assert_allclose(exact, np.log(each[0] / each[1]), atol=1e-9)
    found = compare_models(a, b, new, epsilon=1.0)
    assert found.probability > 0.99
    pairs = differences(held(a, b, (new[["age", "dose"]], yes)))
    torch.testing.assert_close(pairs, exact)
    blank = new.assign(sick=new["sick"].where(new["age"] > 40))
    assert len(differences(held(a, b, blank))) == int((new["age"] > 40).sum())


# --- refused, before a charge ---------------------------------------------------------------------


def test_what_cannot_be_compared_is_refused_uncharged() -> None:
    x, y = table(1)
    good, ledger = (released(), released(normal, 1), named(x, y)), Ledger(budget=bdpvi.Budget(0.1))
    a, b, data = good
    nan = replace(a, latents={**a.latents, "w": a.latents["w"] * math.nan})
    labels = {"target": {"column": "sick", "positive": "yes"}}
    bounded = bdpvi.BayesianLinearRegression.of_bounds(0, 20)
    for given, options, words in (
        ((a, released(counts), data), {}, "a and b have different targets: a number, and a count"),
        ((a, replace(b, preprocessing=labels), data), {}, "different targets"),
        ((a, replace(b, model=bounded), data), {}, "different bounds"),
        ((a, b, named(x[:0], y[:0])), {}, "data has no held-out records"),
        ((nan, b, data), {}, r"a.latents\['w'\]"),
        ((a, b, named(x, y, 1)), {}, "data has the features a, and a takes a, b"),
        ((a, b, (x[:, :1], y)), {"unit": Unit()}, "data has the features x0"),
        ((a, "b", data), {}, "b must be a Release, got str"),
        (good, {"clip": 0.0}, "clip"),
        (good, {"clip": math.nan}, "clip"),
        (good, {"epsilon": math.nan}, "epsilon"),
        (good, {"level": 1.0}, "level"),
        (good, {"unit": np.zeros(3, int)}, "unit has 3 entries"),
    ):
        with pytest.raises(ValueError, match=words):
            compare_models(*given, **{"epsilon": 1.0, "ledger": ledger, **options})  # type: ignore[arg-type]
    with pytest.raises(BudgetExceededError):
        compare_models(*good, epsilon=1.0, ledger=ledger)
    assert not ledger.entries()


def test_a_record_that_is_not_a_number_is_left_out_by_itself() -> None:
    x, y = table(1)
    exact = differences(held(released(), released(normal, 1), named(x, y)))
    y[3], x[5, 1] = math.nan, math.inf
    found = differences(held(released(), released(normal, 1), named(x, y)))
    kept = [at for at in range(N) if at not in (3, 5)]
    torch.testing.assert_close(found, exact[kept])


def test_latents_of_single_records_are_refused() -> None:
    def amortised(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
        with pyro.plate("records", len(x)):
            z = pyro.sample("z", dist.Normal(x @ w, 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=y)

    x, y = table(1)
    ledger = Ledger()
    with pytest.raises(ValueError, match=r"a: it fails on made-up records.*site 'z' is drawn for"):
        compare_models(
            replace(released(), model=amortised),
            released(),
            named(x, y),
            epsilon=1.0,
            ledger=ledger,
        )
    assert not ledger.entries()


def test_a_model_that_holds_the_records_is_refused() -> None:
    x, y = table(1)
    data = named(x, y)

    def knowing(x: Tensor, y: Tensor | None = None) -> None:
        normal(x, y)
        assert len(data.x)

    with pytest.raises(ValueError, match="no ε covers"):
        compare_models(replace(released(), model=knowing), released(), data, epsilon=1.0)


# --- whole comparisons, many times ----------------------------------------------------------------


def test_whole_comparisons_cover_and_equal_models_are_rarely_told_apart() -> None:
    """By 400 tables of 1,000 people, whose coverage has a standard error of 1.1 %."""
    tables, covers, apart = 400, 0, 0
    a, b, c = logistic(), logistic(1), logistic(2, 9)
    x, y = table(99, 400_000)
    truth = differences(held(a, b, named(x, (y > 0).double()))).clamp(-0.5, 0.5).mean()
    same = float(differences(held(a, c, named(x, (y > 0).double()))).clamp(-0.5, 0.5).mean())
    for seed in range(tables):
        x, y = table(1000 + seed, 1000)
        data = named(x, (y > 0).double())
        found = compare_models(a, b, data, epsilon=1.0, clip=0.5, ledger=Ledger())
        covers += found.interval[0] <= float(truth) <= found.interval[1]
        data = named(x, (y > 0).double())
        null = compare_models(a, c, data, epsilon=1.0, clip=0.5, ledger=Ledger())
        apart += not null.interval[0] <= same <= null.interval[1]
    assert covers >= 0.92 * tables
    assert apart <= 0.08 * tables
