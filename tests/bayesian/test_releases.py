"""Releases: charged before they are drawn, added up per record, and never beyond a budget."""

from __future__ import annotations

import copy
import json
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accounts import bayes, evidence_of, typical_of
from simulated import logistic_data

import bdpvi
from bdpvi.bayesian import drawing
from bdpvi.bayesian.fit import Kept
from bdpvi.bayesian.storage import load_fit, save_fit
from bdpvi.datasets.dataset import People
from bdpvi.guides import FullRank
from bdpvi.noise import secure
from bdpvi.noise.keys import Key
from bdpvi.privacy.entry import Charge, Entry
from bdpvi.privacy.ledger import Ledger
from bdpvi.releases.shared_file import load_release, save_release


@pytest.fixture(scope="module")
def trained() -> bdpvi.Fit:
    model = bdpvi.BayesianLogisticRegression(clip=0.3)
    return bdpvi.fit(
        model,
        FullRank(model),
        logistic_data(80, 3),
        training=bdpvi.Training(steps=200, rate=0.5, seed=Key(bytes(32))),
        progress=False,
    )


@pytest.fixture
def fit(trained: bdpvi.Fit) -> bdpvi.Fit:
    """Return the fit with a ledger of its own."""
    return replace(trained, kept=Kept(People()))


def test_draws_in_one_release_cost_what_they_cost_one_by_one(fit: bdpvi.Fit) -> None:
    together = bdpvi.cost(fit, planned=Charge(5, 3.0))
    for _ in range(5):
        last = bdpvi.release(fit, 1, temperature=3.0)
    assert bayes(last.cost).epsilon == pytest.approx(bayes(together).epsilon, rel=1e-9)
    assert fit.ledger.charges() == (Charge(1, 3.0),) * 5


def test_a_second_release_costs_the_sum_per_record(fit: bdpvi.Fit) -> None:
    bdpvi.release(fit, 2, temperature=3.0)
    by_order = bdpvi.bayesian.Accounting(conversion="cks", failure_probability=1e-15)
    second = bdpvi.release(fit, 4, temperature=8.0, accounting=by_order)
    order = torch.tensor([evidence_of(bayes(second.cost)).order], dtype=torch.float64)
    pairs = fit.panels[0].pairs
    if "D′‖D" in evidence_of(bayes(second.cost)).direction:
        pairs = pairs.reverse()
    per_record = 2 * pairs.log_moment(order, 3.0) + 4 * pairs.log_moment(order, 8.0)
    bound = bdpvi.bayesian.accounting.estimators.student_t(per_record, 1e-15).log_bound
    beta = 1e-5 - evidence_of(bayes(second.cost)).estimates * 1e-15 - bayes(second.cost).rounding
    expected = bdpvi.privacy.conversions.epsilon(bound, order, beta)
    assert bayes(second.cost).epsilon == pytest.approx(float(expected), rel=1e-9)


def test_samples_have_the_mean_and_covariance_of_the_tempered_guide(fit: bdpvi.Fit) -> None:
    generator = torch.Generator().manual_seed(1)
    n = 40_000
    samples = bdpvi.bayesian.preview(fit, n, temperature=2.0, generator=generator)["w"]
    posterior = fit.posterior
    covariance = 2.0 * posterior.covariance_matrix  # type: ignore[attr-defined]
    error = (covariance.diagonal() / n).sqrt()
    assert bool(((samples.mean(0) - posterior.mean).abs() < 5 * error).all())
    spread = torch.outer(covariance.diagonal(), covariance.diagonal()).sqrt() * (2 / n) ** 0.5
    assert bool(((samples.T.cov() - covariance).abs() < 5 * spread).all())


def test_released_draws_do_not_follow_a_seed(fit: bdpvi.Fit) -> None:
    torch.manual_seed(0)
    one = bdpvi.release(fit, 1)
    torch.manual_seed(0)
    assert not torch.equal(one.samples, bdpvi.release(fit, 1).samples)


def test_probability_is_the_average_over_samples(fit: bdpvi.Fit) -> None:
    released = bdpvi.release(fit, 7, temperature=4.0)
    x = logistic_data(20, 3, seed=5).x
    by_hand = sum(1 / (1 + torch.exp(-(x @ w))) for w in released.samples) / 7
    torch.testing.assert_close(released.predict_proba(x)[:, 1], by_hand)
    torch.testing.assert_close(released.predict_proba(x).sum(1), torch.ones(20).double())
    assert torch.equal(released.predict(x), (torch.as_tensor(by_hand) > 0.5).long())


def test_threads_cannot_spend_a_budget_twice(fit: bdpvi.Fit) -> None:
    budget = bdpvi.Budget(epsilon=typical_of(bdpvi.cost(fit, planned=Charge(2, 5.0))).epsilon)
    fit.ledger.settle(budget=budget)

    def attempt(_: int) -> bool:
        try:
            bdpvi.release(fit, 1, temperature=5.0)
        except bdpvi.BudgetExceededError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(8))) == 2
    assert fit.ledger.charges() == (Charge(1, 5.0),) * 2


def test_nobody_charges_between_check_and_charge(
    fit: bdpvi.Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, came = threading.Event(), []

    def charge() -> None:
        fit.ledger.charge(Entry(kind="steps"))
        done.set()

    thread = threading.Thread(target=charge)

    def checked(*_: object) -> None:
        thread.start()
        came.append(done.wait(0.2))

    monkeypatch.setattr(drawing, "_check", checked)
    fit.ledger.settle(budget=bdpvi.Budget(1.0))
    bdpvi.release(fit, 1)
    thread.join()
    assert came == [False]
    assert [entry.kind for entry in fit.ledger.entries()] == ["draws", "steps"]


def test_fit_and_release_come_back_from_disk(fit: bdpvi.Fit, tmp_path: Path) -> None:
    save_fit(fit, tmp_path / "fit")
    model = bdpvi.BayesianLogisticRegression(clip=0.3)
    loaded = load_fit(tmp_path / "fit", model, FullRank(model))
    assert torch.equal(loaded.posterior.mean, fit.posterior.mean)
    first = bdpvi.release(loaded, 2, temperature=3.0)
    again = load_fit(tmp_path / "fit", model, FullRank(model))
    assert again.ledger.charges() == (Charge(2, 3.0),)

    save_release(first, tmp_path / "release.json")
    text = (tmp_path / "release.json").read_text(encoding="utf-8")
    assert not {"loc", "scale_tril", "elbo", "b2", "fingerprint"} & set(_keys(json.loads(text)))
    back = load_release(tmp_path / "release.json")
    assert torch.equal(back.samples, first.samples)
    assert back.receipt == first.receipt
    with pytest.raises(ValueError, match="cost is secret"):
        _ = back.cost
    secret = json.loads((tmp_path / "fit" / "release-1.json").read_text(encoding="utf-8"))
    assert secret["cost"]["bayesian"]["epsilon"] == bayes(first.cost).epsilon


def _keys(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _keys(inner)


def test_a_ledger_that_cannot_be_written_draws_nothing(
    fit: bdpvi.Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Ledger, charge: Charge) -> None:
        raise OSError("no space left on device")

    drawn = []
    monkeypatch.setattr(Ledger, "charge", full)
    monkeypatch.setattr(secure, "standard_normal", lambda shape: drawn.append(shape))
    with pytest.raises(OSError, match="no space"):
        bdpvi.release(fit, 1)
    assert drawn == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda fit: bdpvi.release(fit, 0), "draws must be .* got 0"),
        (lambda fit: bdpvi.release(fit, 1, temperature=-1.0), "temperature must be .* -1.0"),
        (lambda fit: bdpvi.release(fit, 1, delta=1e-14), "delta=1e-14 does not cover"),
        (lambda fit: bdpvi.release(fit, 1, epsilon=-1.0), "epsilon must be .* -1.0"),
        (
            lambda fit: bdpvi.release(fit, temperature=1e-9, epsilon=1.0),
            "missed by the price|finite",
        ),
    ],
)
def test_bad_input_is_named_and_nothing_is_charged(
    fit: bdpvi.Fit, call: object, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        call(fit)  # type: ignore[operator]
    assert fit.ledger.charges() == ()


def test_a_pickle_a_copy_and_a_repr_hold_nothing_secret(fit: bdpvi.Fit) -> None:
    released = bdpvi.release(fit, temperature=50.0)
    assert bayes(released.cost).epsilon > 0
    stored = pickle.dumps(released)
    assert b"Evidence" not in stored
    assert "evidence=Evidence" not in repr(released)
    for again in (pickle.loads(stored), copy.copy(released), copy.deepcopy(released)):
        assert torch.equal(again.samples, released.samples)
        with pytest.raises(ValueError, match="cost is secret"):
            _ = again.cost
