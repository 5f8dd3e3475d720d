"""Private linear and Poisson regression as scikit-learn regressors."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.metrics import d2_tweedie_score
from sklearn.utils.validation import check_is_fitted

from bdpvi.sklearn.base import Floats, PrivateEstimator

if TYPE_CHECKING:
    from typing_extensions import Self

    from bdpvi import Release
    from bdpvi.datasets import Encoding
    from bdpvi.models.kinds import OfNumbers
    from bdpvi.sklearn.inputs import Inputs
    from bdpvi.tables.request import Request
    from bdpvi.tables.rows import Encoded
    from bdpvi.tables.setup import Setup

_DEVIATIONS = 4.0
"""Private bounds on the target are its private centre ± this many of its private scales."""
_FEW = (0.0, 1.0, 2.0, 5.0)
"""Targets of made-up rows."""
_HIGHEST = 10**6
"""Largest private bound on counts: with few records it is dominated by noise of any size."""


@dataclass(eq=False, repr=False, kw_only=True)
class _PrivateRegressor(RegressorMixin, PrivateEstimator):  # type: ignore[misc]
    """A regression by noisy scores.

    Missing bounds on the target are estimated privately, like a column's centre and scale.
    """

    draws: int = 1000
    prior_scale: float = 5.0

    _least: ClassVar[float] = -math.inf
    """The smallest target that the model can have."""

    def fit(
        self, X: ArrayLike, y: ArrayLike, unit: ArrayLike | None = None, **options: Any
    ) -> Self:
        """Fit and release.

        Args:
            X: features, (N, d), or a data frame, as in
                :meth:`bdpvi.sklearn.PrivateLogisticRegression.fit`.
            y: targets, (N,); counts are rounded to whole numbers. Records with a target that the
                model cannot have, or any value that is not a finite number, are left out.
            unit: the person of each row, (N,), as in
                :meth:`bdpvi.sklearn.PrivateLogisticRegression.fit`.
            options: ``sample_weight``, (N,): sampling weights, with a public ``largest_weight``.

        Returns:
            The estimator itself.

        Raises:
            ValueError: naming the argument and its value.

        Warns:
            PrivacyUtilityWarning: if there are too few records; also how many records were left
                out or rounded, for the owner only.
            PrivacyLeakWarning: if a seed is given.
        """
        weights = self._weights(options)
        people = self._people(unit)
        rows, targets = self._read(X, y, unit, weights)
        self._fit(rows, self._targets(targets), people, _FEW)
        return self

    def _targets(self, y: Floats) -> Floats:
        """Return the targets that are fitted."""
        return y

    def _model(self, center: float, scale: float) -> OfNumbers:
        """Return the model for targets with this private centre and scale."""
        raise NotImplementedError

    def _public_model(self) -> OfNumbers | None:
        """Return the model if public bounds on the target are given."""
        raise NotImplementedError

    def _read(
        self, X: ArrayLike, y: ArrayLike, unit: ArrayLike | None, weights: Any
    ) -> tuple[Inputs, Floats]:
        """Return the complete records with finite targets that are not too small."""
        from bdpvi._ground.types import tell_owner
        from bdpvi.datasets.cells import read_cells
        from bdpvi.sklearn.inputs import AS_NUMBER, read

        inputs, given = read(self, X, y, unit, weights)
        targets = read_cells(given, AS_NUMBER).numbers
        good = inputs.complete & np.isfinite(targets) & (targets >= self._least)
        why = "a value is not a finite number, or a target is outside the range of the model"
        tell_owner(int((~good).sum()), "record", why, 4)
        return inputs.select(good), targets[good]

    def _columns(self, inputs: Inputs, y: Floats) -> Inputs:
        return inputs if self._public_model() else inputs.beside(y)

    def _request(self, inputs: Inputs, **asked: Any) -> Request:
        if self.group is not None:
            asked["model"] = self._public_model() or self._model(0.0, 1.0)
        return super()._request(inputs, intervals=self.group is None, **asked)

    def _setup(
        self, asked: Request, found: Encoded | None, target: tuple[float, float] | None = None
    ) -> Setup:
        """Return model and route; with few records the route continues and warns."""
        from bdpvi.regression import NoisyScores
        from bdpvi.tables.setup import Setup, setup

        model: Any = self._model(*target) if target else self._public_model()
        model = model or self._model(0.0, 1.0)
        if self.group is not None:
            return setup(replace(asked, model=model), found)
        route = NoisyScores(rows=self.expected_rows, draws=self.draws, least=0.0)
        if found is None:
            return Setup(model, route)
        if self.expected_rows is None and found.records is not None:
            route = route.of_rows(found.records)
        return Setup(replace(model, levels=found.encoding.one_hot), route)

    def _keep(self, release: Release, encoding: Encoding) -> None:
        if release.estimate is not None and not release.estimate.reliable:
            from bdpvi import PrivacyUtilityWarning

            warnings.warn(release.estimate.reason, PrivacyUtilityWarning, stacklevel=5)
        super()._keep(release, encoding)
        self.coef_ = self._set_estimates()
        last = self.summary_.coefficients[-1].mean
        self.intercept_ = float(last - self.coef_ @ self.center_)

    def predict(self, X: ArrayLike) -> Floats:
        """Return the expected target of each record, (N,), averaged over the release's draws."""
        check_is_fitted(self)
        result: Floats = self.release_.predict_mean(self._features(X)).numpy()
        return result

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # noise hides the law of very small tables
        return tags


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateLinearRegression(_PrivateRegressor):
    """Bayesian linear regression, released with a known ε and with valid intervals.

    Every call of ``fit`` is a separate release. The costs of several fits compose: give them one
    ``ledger``. The estimator keeps only the release, so it may be pickled and shared. It uses
    :class:`bdpvi.regression.NoisyScores`: intervals account for sampling and for privacy noise; the
    error variance is estimated too. The guarantee is worst-case, for adding or removing one record.

    Centres and scales of the columns and of the target are estimated privately for a fifth of the
    budget unless public ones are given, so that ε covers everything that ``fit`` returns. With few
    records a :class:`bdpvi.PrivacyUtilityWarning` and the summary say that it is not reliable.

    Args:
        epsilon: ε of preprocessing and release together.
        delta: δ of everything.
        target_bounds: (low, high), public: targets beyond are clipped to them. By default bounds
            are estimated privately: the target's private centre ± 4 scales.
        draws: number of posterior draws that predictions average over; it does not affect the cost.
        prior_scale: standard deviation of the weights' prior, on standardised features and in
            quarters of the target's range.
        limit: standardised features are clipped at ±limit; None does not clip.
        bounds, scales, from_data, types, formula, largest_weight: as in
            :class:`bdpvi.sklearn.PrivateLogisticRegression`.
        expected_rows, rows_per_unit, group, ledger, random_state: as there.

    All arguments count as public: choose them without looking at the data.

    Attributes:
        coef_: (d,), posterior means on the scale of X.
        intercept_: number.
        coef_interval_: (d, 2), 95 % intervals of ``coef_``.
        tau_, tau_interval_, tau_measured_, effects_: with ``group``, as there.
        summary_: the :class:`bdpvi.releases.summary.Summary`, for standardised features.
        center_, scale_, encoding_: as in :class:`bdpvi.sklearn.PrivateLogisticRegression`.
        bound_: the :class:`bdpvi.Bound` of preprocessing and release together.
        guarantee_: the guarantee in words.
        release_: the :class:`bdpvi.Release` that may be shared, for standardised features.
        n_features_in_: number of columns of X.
        feature_names_in_: their names, if X has any.

    >>> X = np.random.default_rng(0).normal(size=(4000, 2))
    >>> y = 5 + X @ [1.0, -2.0]
    >>> model = PrivateLinearRegression(bounds=(-2, 2), target_bounds=(-5, 15)).fit(X, y)
    >>> bool((abs(model.coef_ - [1.0, -2.0]) < 0.2).all()), model.coef_interval_.shape
    (True, (2, 2))

    A mixed model, of 10 wards that are features:

    >>> rows = np.column_stack([X[:, 0], np.arange(4000) % 10])
    >>> mixed = PrivateLinearRegression(bounds=(-2, 2), target_bounds=(-5, 15), group="x1")
    >>> mixed.fit(rows, y + rows[:, 1]).effects_.columns.tolist()
    ['mean', 'sd', 'low', 'high', 'note']
    >>> bool(mixed.tau_interval_[0] < mixed.tau_ < mixed.tau_interval_[1])
    True
    """

    target_bounds: tuple[float, float] | None = None

    def _public_model(self) -> OfNumbers | None:
        if self.target_bounds is None:
            return None
        try:
            low, high = self.target_bounds
        except (TypeError, ValueError):
            raise ValueError(
                f"target_bounds must be a pair of numbers, got {self.target_bounds!r}"
            ) from None
        return self._of_bounds(low, high)

    def _model(self, center: float, scale: float) -> OfNumbers:
        half = _DEVIATIONS * max(
            scale, 1e-12 * abs(center)
        )  # both are noisy, and may have any size
        return self._of_bounds(center - half, center + half)

    def _of_bounds(self, low: float, high: float) -> OfNumbers:
        from bdpvi import BayesianLinearRegression

        return BayesianLinearRegression.of_bounds(
            low, high, prior_scale=self.prior_scale, limit=self.limit
        )


@dataclass(eq=False, repr=False, kw_only=True)
class PrivatePoissonRegressor(_PrivateRegressor):
    """Bayesian Poisson regression of counts, released with a known ε and with valid intervals.

    Everything but the target's bound is as in :class:`PrivateLinearRegression`. The model accounts
    for clipping of large counts, so clipping causes no bias if counts are Poisson.

    Args:
        epsilon: ε of preprocessing and release together.
        delta: δ of everything.
        largest: whole number, public: larger counts are clipped to it. By default a bound is
            estimated privately: the target's private centre plus 4 scales, at most 10⁶.
        draws: number of posterior draws that predictions average over; it does not affect the cost.
        prior_scale: standard deviation of the weights' prior, on standardised features.
        limit: standardised features are clipped at ±limit; None does not clip.
        bounds, scales, from_data, types, formula, largest_weight: as in
            :class:`bdpvi.sklearn.PrivateLogisticRegression`.
        expected_rows, rows_per_unit, group, ledger, random_state: as there.

    Attributes: as in :class:`PrivateLinearRegression`; ``exp(X @ coef_ + intercept_)`` approximates
    the expected count.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(4000, 2))
    >>> y = rng.poisson(np.exp(X @ [0.5, -0.3]))
    >>> model = PrivatePoissonRegressor(bounds=(-2, 2), largest=8).fit(X, y)
    >>> bool((abs(model.coef_ - [0.5, -0.3]) < 0.2).all()), model.predict([[0.0, 0.0]]).shape
    (True, (1,))
    """

    largest: int | None = None

    _least: ClassVar[float] = 0.0

    def _targets(self, y: Floats) -> Floats:
        """Return the counts, rounded to whole numbers; the owner is told how many were not."""
        counts = np.rint(y)
        if odd := int((counts != y).sum()):
            from bdpvi import PrivacyUtilityWarning
            from bdpvi._ground.outputs import several

            said = f"for the owner only: {several(odd, 'count')} of y not an integer, and rounded"
            warnings.warn(said, PrivacyUtilityWarning, stacklevel=3)
        return np.asarray(counts)

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return D², the share of deviance explained, like scikit-learn's ``PoissonRegressor``.

        Args:
            X: features, (N, d).
            y: counts, (N,), whose mean is positive.
            sample_weight: weights of the records, (N,).
        """
        found = d2_tweedie_score(y, self.predict(X), power=1, sample_weight=sample_weight)
        return float(found)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags

    def _public_model(self) -> OfNumbers | None:
        return None if self.largest is None else self._of_largest(self.largest)

    def _model(self, center: float, scale: float) -> OfNumbers:
        bound = math.ceil(center + _DEVIATIONS * scale)
        return self._of_largest(min(max(1, bound), _HIGHEST))

    def _of_largest(self, largest: int) -> OfNumbers:
        from bdpvi import BayesianPoissonRegression

        return BayesianPoissonRegression(
            largest=largest, prior_scale=self.prior_scale, limit=self.limit
        )
