"""The scikit-learn classifier: its conventions, its numbers, and what it may not give away."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import rehearsals
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, csr_matrix
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

import bdpvi
from bdpvi import PrivacyUtilityWarning, datasets
from bdpvi.privacy.assumptions import Assumption
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.gaussian_dp import gaussian_distance, gaussian_epsilon
from bdpvi.privacy.ledger import Ledger
from bdpvi.privacy.worst_case import epsilon
from bdpvi.sklearn import PrivacyLeakWarning, PrivateLogisticRegression
from bdpvi.sklearn import classes as of_classes

READ = ", conditional on preprocessing bounds read from this table"

CENTER = np.array([3.0, -1.0, 20.0])
SCALE = np.array([1.0, 0.1, 10.0])
PUBLIC: dict[str, Any] = {"scales": (CENTER, SCALE), "classes": ("no", "yes")}
few = pytest.mark.filterwarnings("ignore::bdpvi.PrivacyUtilityWarning")
leaking = pytest.mark.filterwarnings("ignore::bdpvi.sklearn.PrivacyLeakWarning")


def table(records: int, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.str_]]:
    """Return records of a logistic regression whose columns have different scales."""
    generator = np.random.default_rng(seed)
    z = generator.normal(size=(records, 3))
    positive = generator.random(records) < 1 / (1 + np.exp(-(z @ [1.0, -1.0, 0.5] + 0.5)))
    return z * SCALE + CENTER, np.where(positive, "yes", "no")


@leaking
@few
@parametrize_with_checks([PrivateLogisticRegression()])  # type: ignore[untyped-decorator]
def test_the_conventions_of_scikit_learn(
    estimator: Any, check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if check.func.__name__ != "check_class_weight_classifiers":
        monkeypatch.setattr(of_classes, "STEPS", 10)  # other conventions hold after few as well
    rehearsals.left_out(monkeypatch)
    check(estimator)


@few
@leaking
@pytest.mark.parametrize("make", [csr_matrix, csr_array])
def test_a_sparse_matrix_is_refused_with_a_remedy_that_works(make: Any) -> None:
    x, y = table(200)
    model = PrivateLogisticRegression(**PUBLIC, random_state=0).fit(x, y)
    sparse = make(x)
    for refused in (partial(model.fit, sparse, y), partial(model.predict, sparse)):
        with pytest.raises(TypeError, match=r"X, but dense data is required\. Use '\.toarray\(\)'"):
            refused()
    again = clone(model).fit(sparse.toarray(), y)
    assert again.coef_.tolist() == model.coef_.tolist()
    accessor: Any = pd.DataFrame.sparse
    columns = accessor.from_spmatrix(csr_matrix(x))  # has no toarray
    again = clone(model).fit(columns, y)
    assert again.coef_.tolist() == model.coef_.tolist()
    assert again.predict(columns).tolist() == model.predict(x).tolist()


def test_predictions_are_those_of_the_release() -> None:
    x, y = table(300)
    model = PrivateLogisticRegression(**PUBLIC, draws=7).fit(x, y)
    assert model.coef_samples_.shape == (7, 3)
    assert model.intercept_samples_.shape == (7,)
    np.testing.assert_allclose(model.coef_[0], model.coef_samples_.mean(0))
    features = torch.from_numpy((x - CENTER) / SCALE)
    expected = model.release_.predict_proba(features).numpy()
    np.testing.assert_allclose(model.predict_proba(x), expected, atol=1e-12)
    assert model.predict(x).tolist() == model.classes_[expected.argmax(1)].tolist()


@pytest.mark.parametrize("kind", ["float64", "float32", "int64"])
@few
def test_an_array_is_predicted_in_blocks_as_its_features_are(kind: str) -> None:
    x, y = table(500)
    model = PrivateLogisticRegression(50.0, **PUBLIC, draws=3, limit=1.5).fit(x, y)
    many = np.random.default_rng(0).normal(CENTER, 3 * SCALE, (2500, 3)).astype(kind)
    features = (many - CENTER) / SCALE
    expected = model.release_.predict_proba(features)
    np.testing.assert_allclose(model.predict_proba(many), expected, rtol=1e-12)
    if kind == "int64":
        return
    many[1700, 1], features[1700, 1] = np.nan, 0.0  # counts as the centre
    expected = model.release_.predict_proba(features)
    np.testing.assert_allclose(model.predict_proba(many), expected, rtol=1e-6)


def test_exact_constants_need_consent_and_are_named() -> None:
    x, y = table(200)
    model = PrivateLogisticRegression(from_data=True, classes=("no", "yes")).fit(x, y)
    np.testing.assert_allclose(model.center_, x.mean(0))
    np.testing.assert_allclose(model.scale_, x.std(0))
    assert f"to add or remove one record{READ}" in model.guarantee_
    with pytest.warns(PrivacyLeakWarning, match="does not cover the classes"):
        found = PrivateLogisticRegression(bounds=(-5, 30)).fit(x, y)
    assert Assumption.PUBLIC_CLASSES in found.bound_.assumptions
    assert Assumption.PUBLIC_CLASSES.value in found.guarantee_
    assert Assumption.PUBLIC_CLASSES not in model.bound_.assumptions


def test_constants_are_bought_by_default_and_the_total_is_epsilon(tmp_path: Path) -> None:
    x, y = table(5000)
    file = str(tmp_path / "people.jsonl")
    model = PrivateLogisticRegression(0.9, classes=("no", "yes"), ledger=file).fit(x, y)
    assert model.bound_.epsilon == 0.9
    assert READ not in model.guarantee_
    assert "were estimated privately: ε covers them" in model.guarantee_
    # Medians with noise: not the means, and within a few of the scales that they hide.
    assert (np.abs(model.center_ - x.mean(0)) < SCALE).all()
    assert ((model.scale_ > SCALE / 2) & (model.scale_ < 2 * SCALE)).all()
    assert not (model.center_ == x.mean(0)).any()
    again = clone(model).fit(x, y)
    assert (again.center_ != model.center_).any()
    # Constants have a fifth of μ², by nine tenths of δ, as names of categories take the tenth; the
    # minimum has what that leaves.
    book = Ledger.at(file).book()
    kinds = ["reserved", "constants", "constants", "release", "ended"]
    assert [entry.kind for entry in book.entries] == 2 * kinds
    first = [charge for charge in book.charges if charge.of == book.entries[0].of]
    events = [event for one in first for event in one.events or ()]
    noise = [e.noise_multiplier for e in events if isinstance(e, SampledGaussian)]
    paid = math.fsum(one**-2 for one in noise)
    assert paid == pytest.approx(0.2 * gaussian_distance(0.9, 9e-6) ** 2, rel=1e-6)
    total = epsilon(events, 1e-5)
    assert total is not None
    assert 0.995 * 0.9 < total.epsilon <= 0.9
    with pytest.raises(ValueError, match="needs public bounds"):
        PrivateLogisticRegression(guarantee=bdpvi.BayesianDP(), classes=("no", "yes")).fit(x, y)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epsilon": 0}, "epsilon must be"),
        ({"scales": (0, 0)}, "scales must have positive deviations"),
        ({"bounds": (-1, 1), "scales": (0, 1)}, "were both given"),
        ({"expected_rows": -3}, "rows must be"),
        ({"guarantee": bdpvi.BayesianDP()}, "needs public bounds"),
    ],
)
def test_what_is_refused_leaves_no_ledger(
    given: dict[str, Any], message: str, tmp_path: Path
) -> None:
    x, y = table(50)
    model = PrivateLogisticRegression(classes=("no", "yes"), ledger=str(tmp_path / "people.jsonl"))
    with pytest.raises(ValueError, match=message):
        model.set_params(**given).fit(x, y)
    assert list(tmp_path.iterdir()) == []


def test_a_ledger_adds_up_what_all_fits_cost(tmp_path: Path) -> None:
    x, y = table(3000)
    model = PrivateLogisticRegression(classes=("no", "yes"), ledger=str(tmp_path / "people.jsonl"))
    alone = PrivateLogisticRegression(classes=("no", "yes")).fit(x, y)
    assert ", this fit only. " in alone.guarantee_
    total = model.fit(x, y).guarantee_.partition("total of 1 fit in this ledger: ε = ")[2]
    assert 0.99 < float(total.partition(". ")[0]) <= 1
    scores = cross_val_score(clone(model), x, y, cv=2, n_jobs=2)
    assert len(scores) == 2
    last = clone(model).fit(x, y).guarantee_
    two = gaussian_epsilon(4 * gaussian_distance(1.0, 1e-5) ** 2, 1e-5)
    assert "total of 4 fits in this ledger" in last
    said = float(last.partition("in this ledger: ε = ")[2].partition(". ")[0])
    assert two <= said <= 1.25 * two  # what is no Gaussian mechanism composes worse


def test_a_seed_makes_an_experiment() -> None:
    x, y = table(200)
    with pytest.warns(PrivacyLeakWarning, match="random_state=3 makes an experiment"):
        model = PrivateLogisticRegression(**PUBLIC, random_state=3).fit(x, y)
    assert not model.bound_.reliable
    assert "EXPERIMENT" in model.guarantee_
    with pytest.warns(PrivacyLeakWarning):
        again = clone(model).fit(x, y)
    assert again.coef_.tolist() == model.coef_.tolist()


def test_the_guarantee_is_the_one_asked_for() -> None:
    x, y = table(500)
    worst = PrivateLogisticRegression(0.7, **PUBLIC, delta=1e-6).fit(x, y)
    assert worst.guarantee_.startswith("worst-case DP ε = 0.7 (target) at δ = 1e-06")
    assert worst.bound_.kind.value == "worst-case DP"
    assert (worst.bound_.epsilon, worst.bound_.delta) == (0.7, 1e-6)
    bayesian = PrivateLogisticRegression(2.0, **PUBLIC, guarantee=bdpvi.BayesianDP()).fit(x, y)
    assert bayesian.guarantee_.startswith("Bayesian DP ε = 2 ")
    assert bayesian.release_.receipt.temperature is not None


def test_a_pickle_holds_the_release_and_nothing_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = table(300)
    fits = []
    plain = bdpvi.fit

    def watched(*args: Any, **options: Any) -> bdpvi.Fit:
        fits.append(plain(*args, **options))
        return fits[-1]

    rehearsals.left_out(monkeypatch)
    monkeypatch.setattr("bdpvi.sklearn.fitting.fit_guide", watched)
    given: dict[str, Any] = {"guarantee": bdpvi.BayesianDP(), "draws": 2}
    model = PrivateLogisticRegression(9.0, **PUBLIC, **given).fit(x, y)
    (fit,) = fits
    assert model.release_.secret is None
    stored = pickle.dumps(model)
    private = [*fit.parameters.values(), fit.convergence.elbo, *(p.pairs.b2 for p in fit.panels)]
    for values in private:
        for number in values.flatten().tolist():
            assert not number or np.float64(number).tobytes() not in stored
    fitted = {"coef_", "coef_samples_", "intercept_", "intercept_samples_", "classes_", "center_"}
    fitted |= {"scale_", "bound_", "guarantee_", "release_", "encoding_", "unit_", "_fixed"}
    assert set(vars(model)) - set(model.get_params()) == fitted | {"n_features_in_"}
    for tensor in (model.release_.samples, *model.release_.latents.values()):
        assert tensor.untyped_storage().nbytes() == 2 * 4 * 8  # a view would bring all behind it
    same = pickle.loads(stored)
    assert same.predict_proba(x).tolist() == model.predict_proba(x).tolist()


def test_one_class_is_fitted_where_classes_are_public() -> None:
    for records in (1, 100):
        x, _ = table(records)
        model = PrivateLogisticRegression(10.0, **PUBLIC).fit(x, np.repeat("yes", records))
        assert model.classes_.tolist() == ["no", "yes"]


@leaking
@pytest.mark.parametrize("odd", [(np.nan, "no"), (np.inf, "yes"), (0.0, "perhaps"), ("x", "no")])
def test_a_record_that_is_no_number_or_of_no_class_is_left_out(odd: tuple[Any, str]) -> None:
    x, y = table(100)
    usual = PrivateLogisticRegression(**PUBLIC, random_state=0).fit(x, y)
    more = np.vstack([x.astype(object), [[odd[0], 0, 0]]]), np.append(y.astype(object), odd[1])
    with pytest.warns(PrivacyUtilityWarning, match="owner only: 1 record left out: a value"):
        found = PrivateLogisticRegression(**PUBLIC, random_state=0).fit(*more)
    np.testing.assert_array_equal(found.coef_, usual.coef_)


def test_the_release_can_be_saved_and_used_from_the_command_line(tmp_path: Path) -> None:
    x, y = table(100)
    frame = pd.DataFrame(x, columns=["age", "dose", "weight"])
    model = PrivateLogisticRegression(**PUBLIC).fit(frame, y)
    bdpvi.save_release(model.release_, tmp_path / "release.json")
    loaded = bdpvi.load_release(tmp_path / "release.json")
    constants: Any = loaded.preprocessing["encoding"]
    encoding = datasets.Encoding.from_dict(constants)
    expected = loaded.predict_proba(encoding.apply(frame)).numpy()
    np.testing.assert_allclose(model.predict_proba(frame), expected, atol=1e-12)


def test_pipelines_and_searches() -> None:
    x, y = table(150)
    scaler = FunctionTransformer(lambda raw: (raw - CENTER) / SCALE)
    private = PrivateLogisticRegression(scales=(0, 1), classes=("no", "yes"))
    pipeline = make_pipeline(scaler, private)
    assert cross_val_score(pipeline, x, y, cv=2).shape == (2,)
    search = GridSearchCV(pipeline, {"privatelogisticregression__epsilon": [1.0, 5.0]}, cv=2)
    assert set(search.fit(x, y).predict(x)) <= {"no", "yes"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epsilon": -1.0}, "epsilon must be finite and positive, got -1.0"),
        ({"delta": 2.0}, "delta must lie strictly between 0 and 1, got 2.0"),
        ({"prior_scale": 1.0}, "prior_scale=1.0: the default release has a ridge of its own"),
        ({"draws": 0}, "draws must be a whole number of at least 1"),
        ({"bounds": (0, 1)}, "bounds=.* and scales=.* were both given"),
        ({"scales": None, "bounds": (1, 0)}, "bounds must have low < high"),
        ({"scales": None, "bounds": (0, math.inf)}, "bounds must be finite"),
        ({"scales": 3.0}, "scales must be a pair"),
        ({"scales": (0, [1.0, 2.0])}, "scales must be a pair"),
        ({"scales": (0, 0)}, "scales must have positive deviations"),
        ({"classes": ("no",)}, "classes must have two classes"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    x, y = table(20)
    with pytest.raises(ValueError, match=message):
        PrivateLogisticRegression(**{**PUBLIC, **arguments}).fit(x, y)


def three(records: int, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.str_]]:
    """Return records of three classes."""
    generator = np.random.default_rng(seed)
    z = generator.normal(size=(records, 3))
    scores = z @ [[2.0, 0.0, -2.0], [0.0, 1.5, -1.5], [0.0, 0.0, 0.0]]
    chosen = (scores + generator.gumbel(size=scores.shape)).argmax(axis=1)
    return z * SCALE + CENTER, np.array(["a", "b", "c"])[chosen]


def test_three_classes_are_a_multinomial_regression_under_the_same_epsilon(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(of_classes, "STEPS", 200)
    x, y = three(5000)
    fresh, labels = three(3000, seed=1)
    file = tmp_path / "ledger.jsonl"
    of_three: dict[str, Any] = {"scales": (CENTER, SCALE), "classes": ("a", "b", "c"), "draws": 50}
    of_three["expected_rows"] = 5000
    private = PrivateLogisticRegression(8.0, **of_three, ledger=str(file)).fit(x, y)
    public = LogisticRegression().fit((x - CENTER) / SCALE, y)
    assert private.score(fresh, labels) > public.score((fresh - CENTER) / SCALE, labels) - 0.05
    spent = bdpvi.Ledger.at(file).worst_case(1e-5)
    assert spent is not None
    assert 0.98 * 8 < spent.epsilon <= 8.0 == private.bound_.epsilon
    assert "total of 1 fit in this ledger" in private.guarantee_
    assert private.coef_.shape == (3, 3)
    assert private.intercept_.shape == (3,)
    chances = private.predict_proba(fresh)
    assert np.allclose(chances.sum(axis=1), 1)
    assert np.allclose(private.predict_log_proba(fresh), np.log(chances))
    with pytest.raises(ValueError, match=r"base_rate=0.5 is for two classes, and there are 3"):
        PrivateLogisticRegression(**of_three, base_rate=0.5).fit(x, y)


def test_importing_loads_no_torch() -> None:
    code = "import sys, bdpvi.sklearn; sys.exit('torch' in sys.modules)"
    root = Path(bdpvi.__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", code], cwd=root).returncode == 0


def test_a_public_base_rate_is_what_the_intercept_is_drawn_to() -> None:
    x, _ = table(400)
    y = np.where(np.arange(400) < 8, "yes", "no")
    model = PrivateLogisticRegression(0.1, **PUBLIC, base_rate=0.02, expected_rows=400).fit(x, y)
    assert model.release_.model.intercept_mean == pytest.approx(math.log(0.02 / 0.98))
    assert model.predict_proba(x)[:, 1].mean() < 0.2
    with pytest.raises(ValueError, match=r"base_rate must lie strictly between 0 and 1, got 1\.5"):
        PrivateLogisticRegression(**PUBLIC, base_rate=1.5).fit(x, y)


def test_logarithms_stay_exact_where_probabilities_are_one() -> None:
    x, y = table(300)
    model = PrivateLogisticRegression(**PUBLIC, limit=1e6).fit(x, y)
    logs = model.predict_log_proba(x)
    np.testing.assert_allclose(logs, np.log(model.predict_proba(x)), rtol=1e-9)
    far = CENTER + np.sign(model.coef_[0]) * 1e4 * SCALE
    assert (model.predict_log_proba([far, 2 * CENTER - far]) <= 0).all()
    assert np.isfinite(model.predict_log_proba([far, 2 * CENTER - far])).all()


def test_weights_without_a_bound_are_refused_with_the_way_out() -> None:
    x, y = table(50)
    with pytest.raises(ValueError, match="sample_weight: weights of rows need a public bound"):
        PrivateLogisticRegression(**PUBLIC).fit(x, y, sample_weight=np.ones(50))
