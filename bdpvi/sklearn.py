"""Private logistic regression as a scikit-learn classifier."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, log_expit, logsumexp
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted

try:
    from sklearn.utils.validation import validate_data
except ImportError:  # scikit-learn 1.5

    def validate_data(estimator: Any, *args: Any, **options: Any) -> Any:
        """Do as scikit-learn 1.6 does."""
        return estimator._validate_data(*args, **options)


if TYPE_CHECKING:  # torch is not loaded before a fit
    from bdpvi import BayesianLogisticRegression, Dataset, Release
    from bdpvi.compare.methods.posterior import PosteriorRelease
    from bdpvi.releasing.guarantees import Guarantee

__all__ = ["PrivacyLeakWarning", "PrivateLogisticRegression"]

Floats = NDArray[np.float64]
GUIDES = ("mean-field", "full-rank")


class PrivacyLeakWarning(UserWarning):
    """An estimator gives something away that its guarantee does not cover."""


class PrivateLogisticRegression(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Bayesian logistic regression of two classes, fitted in secret and released with a known ε.

    Every call of ``fit`` is a release of its own, and what several of them cost adds up; no budget
    is kept between them. Only the release stays on the estimator, which may be pickled and shared:
    the posterior's parameters and what single records cost are dropped.

    Args:
        epsilon: ε of the release.
        delta: δ of the release.
        guarantee: :class:`bdpvi.WorstCaseDP` or :class:`bdpvi.BayesianDP`, whose ε is about a
            record drawn at random. None is the former.
        draws: number of posterior samples k to release; predictions average over them.
        clip: norm bound C of each record's score.
        prior_scale: standard deviation of the weights' prior, on standardised features.
        limit: standardised features are cut off at ±limit.
        noise_scale: standard deviation of the released noise at temperature 1; with
            ``guarantee=None`` it does not matter, as the temperature follows from ``epsilon``.
        fit_intercept: whether a column of ones is added to the standardised features.
        bounds: (low, high), numbers or arrays of d, where the features are expected to lie. They
            are standardised by the middle and a quarter of the range, a rule of thumb for the
            standard deviation. Values outside are allowed.
        scales: instead of ``bounds``: (centres, standard deviations), numbers or arrays of d.
        classes: the two labels.
        guide: "mean-field" or "full-rank".
        random_state: None draws from the operating system's secure randomness. A seed makes an
            experiment: who knows it can subtract the noise, so nothing is promised.

    ``clip``, ``prior_scale``, ``limit`` and ``noise_scale`` are those of :func:`bdpvi.recommended`
    where they are None. All arguments count as public: choose them without looking at the data.
    Without ``bounds`` or ``scales``, and without ``classes``, ``fit`` takes these from the data and
    says so by a :class:`PrivacyLeakWarning`.

    Attributes:
        coef_: (1, d), mean over the draws, on the scale of X, for X cut off at
            ``center_`` ± limit · ``scale_``.
        intercept_: (1,), mean over the draws.
        coef_samples_, intercept_samples_: (k, d) and (k,), of each draw.
        classes_: the two labels, sorted.
        center_, scale_: (d,), what X was standardised by.
        epsilon_, delta_: of the release; ε is +inf for an experiment.
        guarantee_: what is promised, in words.
        reliable_: whether ε can be relied on.
        release_: the :class:`bdpvi.Release` that may be shared, of standardised features.
        n_features_in_: d.
        feature_names_in_: names of the d columns, if X has any.

    >>> X, y = np.random.default_rng(0).normal(size=(400, 2)), np.repeat(["no", "yes"], 200)
    >>> X[200:] += 2
    >>> model = PrivateLogisticRegression(bounds=(-3, 5), classes=("no", "yes")).fit(X, y)
    >>> model.coef_.shape, model.predict([[-1.0, -1.0], [3.0, 3.0]])
    ((1, 2), array(['no', 'yes'], dtype='<U3'))
    >>> model.guarantee_[:49]
    'worst-case DP ε = 1 (aimed at) at δ = 1e-05, to a'
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        delta: float = 1e-5,
        guarantee: Guarantee | None = None,
        draws: int = 1,
        clip: float | None = None,
        prior_scale: float | None = None,
        limit: float | None = None,
        noise_scale: float | None = None,
        fit_intercept: bool = True,
        bounds: tuple[ArrayLike, ArrayLike] | None = None,
        scales: tuple[ArrayLike, ArrayLike] | None = None,
        classes: ArrayLike | None = None,
        guide: str = GUIDES[0],
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.guarantee = guarantee
        self.draws = draws
        self.clip = clip
        self.prior_scale = prior_scale
        self.limit = limit
        self.noise_scale = noise_scale
        self.fit_intercept = fit_intercept
        self.bounds = bounds
        self.scales = scales
        self.classes = classes
        self.guide = guide
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> PrivateLogisticRegression:
        """Fit in secret and release.

        Args:
            X: features, (N, d), finite; N ≥ 3.
            y: labels, (N,), two different ones.

        Returns:
            The estimator itself.

        Raises:
            ValueError: naming the argument and its value.
        """
        settings = self._settings()
        rows, labels = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=3)
        classes = self._labels(labels)
        center, scale = self._standard(rows)
        data = self._dataset(rows, labels == classes[1], center, scale)
        if leaks := self._leaks():
            warnings.warn(
                f"the guarantee does not cover what fit took from the data ({leaks}): give "
                "bounds (or scales) and classes that are public",
                PrivacyLeakWarning,
                stacklevel=2,
            )
        release = self._release(settings, data)
        self._keep(release, settings.model, classes, center, scale)
        return self

    def decision_function(self, X: ArrayLike) -> Floats:
        """Return the log-odds of the second class, (N,), of the probability averaged over draws."""
        check_is_fitted(self)
        import torch

        rows: Floats = validate_data(self, X, dtype=np.float64, reset=False)
        features = torch.from_numpy((rows - self.center_) / self.scale_)
        design = self.release_.model.design(features)
        logits = (design @ self.release_.latents["w"].T).numpy()
        odds = logsumexp(log_expit(logits), axis=1) - logsumexp(log_expit(-logits), axis=1)
        return np.asarray(odds)

    def predict_proba(self, X: ArrayLike) -> Floats:
        """Return the probabilities of ``classes_``, (N, 2), averaged over the draws."""
        odds = self.decision_function(X)
        return np.stack([expit(-odds), expit(odds)], axis=1)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the likelier class of each record, (N,)."""
        odds = self.decision_function(X)
        return np.asarray(self.classes_[(odds > 0).astype(int)])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def _more_tags(self) -> Mapping[str, bool]:  # scikit-learn 1.5
        return {"binary_only": True}

    def _settings(self) -> PosteriorRelease:
        """Return the recommended settings, with the arguments in their place."""
        from bdpvi import recommended
        from bdpvi.compare.methods.posterior import FullRankRelease, MeanFieldRelease

        if self.guide not in GUIDES:
            raise ValueError(f"guide must be one of {GUIDES}, got {self.guide!r}")
        kind = MeanFieldRelease if self.guide == GUIDES[0] else FullRankRelease
        found = recommended(self.epsilon, delta=self.delta, draws=self.draws, kind=kind)
        names = ("clip", "prior_scale", "limit")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return replace(
            found,
            model=replace(found.model, intercept=bool(self.fit_intercept), **given),
            noise_scale=found.noise_scale if self.noise_scale is None else self.noise_scale,
        )

    def _leaks(self) -> str:
        """Return what ``fit`` takes from the data."""
        standard = self.bounds is None and self.scales is None
        leaks = ["centres", "scales"] * standard + ["classes"] * (self.classes is None)
        return ", ".join(leaks)

    def _labels(self, y: NDArray[Any]) -> NDArray[Any]:
        """Return the two classes."""
        check_classification_targets(y)
        kind = type_of_target(y, input_name="y")
        if kind != "binary":  # scikit-learn's words
            raise ValueError(
                f"Only binary classification is supported. The type of the target is {kind}."
            )
        classes = np.unique(y if self.classes is None else np.asarray(self.classes))
        if len(classes) != 2:
            name = "y" if self.classes is None else "classes"
            raise ValueError(
                f"{name} must have two classes, got {classes.tolist()}; give classes=(one, other) "
                "if a table may have one of them alone"
            )
        if unknown := set(y.tolist()) - set(classes.tolist()):
            raise ValueError(f"y has labels {unknown} that are not in classes={self.classes!r}")
        return classes

    def _standard(self, X: Floats) -> tuple[Floats, Floats]:
        """Return centres and scales of the columns, (d,) each."""
        if self.bounds is not None and self.scales is not None:
            raise ValueError(
                f"bounds={self.bounds!r} and scales={self.scales!r} were both given; give one"
            )
        if self.bounds is not None:
            low, high = _pair("bounds", self.bounds, X.shape[1])
            if not (low < high).all():
                raise ValueError(f"bounds must have low < high, got {self.bounds!r}")
            return (low + high) / 2, (high - low) / 4
        if self.scales is not None:
            center, scale = _pair("scales", self.scales, X.shape[1])
            if not (scale > 0).all():
                raise ValueError(f"scales must have positive deviations, got {self.scales!r}")
            return center, scale
        deviation = X.std(axis=0)
        return X.mean(axis=0), np.where(deviation > 0, deviation, 1.0)

    def _dataset(self, X: Floats, positive: NDArray[Any], center: Floats, scale: Floats) -> Dataset:
        """Return the standardised records."""
        import torch

        from bdpvi import Dataset
        from bdpvi.datasets import Encoding, Numeric

        names = getattr(self, "feature_names_in_", [f"x{j}" for j in range(X.shape[1])])
        constants = zip(names, center.tolist(), scale.tolist(), strict=True)
        leaks = self._leaks()
        source = (
            f"{leaks} taken from the data, which ε does not cover" if leaks else "given as public"
        )
        encoding = Encoding(tuple(Numeric(str(n), c, s) for n, c, s in constants), source)
        return Dataset(
            torch.from_numpy((X - center) / scale),
            torch.from_numpy(positive.astype(np.float64)),
            feature_names=encoding.feature_names,
            preprocessing={"encoding": encoding.to_dict()},
        )

    def _release(self, settings: PosteriorRelease, data: Dataset) -> Release:
        """Fit and release; what is secret ends here."""
        import torch

        import bdpvi

        generator = None
        if self.random_state is not None:
            warnings.warn(
                f"random_state={self.random_state!r} makes an experiment: who knows it can "
                "subtract the noise, so nothing is promised; a release needs random_state=None",
                PrivacyLeakWarning,
                stacklevel=3,
            )
            seed = check_random_state(self.random_state).randint(2**31 - 1)
            generator = torch.Generator().manual_seed(int(seed))
        guide = settings.guide(settings.model, noise_scale=settings.noise_scale)
        release = bdpvi.release(
            bdpvi.fit(settings.model, guide, data, progress=False),
            settings.draws,
            epsilon=self.epsilon,
            guarantee=self.guarantee or bdpvi.WorstCaseDP(),
            delta=self.delta,
            generator=generator,
        )
        return replace(release, secret=None)

    def _keep(
        self,
        release: Release,
        model: BayesianLogisticRegression,
        classes: NDArray[Any],
        center: Floats,
        scale: Floats,
    ) -> None:
        """Set the attributes that a fit leaves: functions of the release and public constants."""
        import torch

        receipt, weights = release.receipt, release.latents["w"]
        linear = replace(model, limit=None)
        origin = torch.zeros(1, len(center), dtype=weights.dtype)
        basis = torch.eye(len(center), dtype=weights.dtype)
        zero = (linear.design(origin) @ weights.T).numpy()  # (1, k)
        slopes = (linear.design(basis) @ weights.T).numpy() - zero  # (d, k)
        self.coef_samples_ = slopes.T / scale
        self.intercept_samples_ = zero[0] - self.coef_samples_ @ center
        self.coef_ = self.coef_samples_.mean(axis=0, keepdims=True)
        self.intercept_ = self.intercept_samples_.mean(keepdims=True)
        self.classes_ = classes
        self.center_, self.scale_ = center, scale
        self.epsilon_ = math.inf if receipt.experiment else receipt.epsilon
        self.delta_ = receipt.delta
        self.guarantee_ = str(receipt)
        if not receipt.experiment:
            self.guarantee_ += f". {receipt.meaning}"
        self.reliable_ = not receipt.experiment and receipt.reliable is not False
        self.release_: Any = release


def _pair(name: str, value: Any, width: int) -> tuple[Floats, Floats]:
    """Return two arrays of one number for each feature."""
    try:
        one, other = (np.broadcast_to(np.asarray(v, dtype=np.float64), width) for v in value)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} must be a pair of numbers or of arrays of {width}, got {value!r}"
        ) from error
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        raise ValueError(f"{name} must be finite, got {value!r}")
    return one.copy(), other.copy()
