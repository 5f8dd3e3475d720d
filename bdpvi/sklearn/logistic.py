"""Private logistic regression as a scikit-learn classifier."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, log_expit, logsumexp
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from bdpvi._ground import validate
from bdpvi.sklearn import classes as of_classes
from bdpvi.sklearn.base import Floats, PrivacyLeakWarning, PrivateEstimator

if TYPE_CHECKING:  # torch is not loaded before a fit
    from bdpvi import Release
    from bdpvi.bayesian.guarantees import Guarantee
    from bdpvi.datasets import Encoding
    from bdpvi.sklearn.inputs import Inputs
    from bdpvi.tables.request import Request
    from bdpvi.tables.rows import Encoded
    from bdpvi.tables.setup import Setup


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateLogisticRegression(ClassifierMixin, PrivateEstimator):  # type: ignore[misc]
    """Bayesian logistic regression with two or more classes, released with a known ε.

    Every call of ``fit`` is a separate release. The costs of several fits compose: give them one
    ``ledger``. The estimator keeps only the release, so it may be pickled and shared: the
    posterior's parameters and single records' costs are dropped.

    Centres and scales of the columns are estimated privately, as noisy means of the columns and of
    the distances from them, for a fifth of the budget, so that ε covers everything that ``fit``
    returns. Public ``bounds`` or ``scales`` cost nothing.

    Args:
        epsilon: ε of preprocessing and release together.
        delta: δ of everything.
        guarantee: :class:`bdpvi.WorstCaseDP` or :class:`bdpvi.BayesianDP`, whose ε is about a
            random record. None means worst-case.
        draws: number of posterior samples k to release; predictions average over them.
        prior_scale: standard deviation of the weights' prior, on standardised features, for
            ``intervals``, more than two classes, or a Bayesian guarantee.
        limit: standardised features are clipped at ±limit.
        fit_intercept: whether a column of ones is added to the standardised features.
        bounds: (low, high), numbers or arrays with one for each column of numbers, their expected
            range. They are standardised by the middle and a quarter of the range, a rule of thumb
            for the standard deviation. Values outside are allowed.
        scales: instead of ``bounds``: (centres, standard deviations).
        types: declared types of columns, as for :func:`bdpvi.private`; they precede dtypes.
        from_data: consent to use exact means and deviations of the rows, which no ε covers;
            ``guarantee_`` then says so.
        classes: the labels. By default they are taken from y, with a
            :class:`PrivacyLeakWarning`, and ``guarantee_`` says that they count as public.
        base_rate: a public guess of the fraction of the second of the sorted ``classes``, for
            tables with a rare class: the intercept is shrunk towards its logit instead of 0.
            Never compute it from y.
        expected_rows: publicly known approximate number of rows, within a factor of 3. It is
            published, rounded. By default the number is estimated privately.
        intervals: whether to release coefficients with valid intervals, by
            :class:`bdpvi.regression.NoisyScores`; ``prior_scale`` is then the prior's, 5 by
            default. It needs ``expected_rows`` if the scaling is estimated privately: too few
            records are an error, which must be raised before anything is charged.
        formula: interactions, splines and other terms of the columns of X, such as
            ``"age * ward + bs(bmi, df=4)"``; see :func:`bdpvi.datasets.formula.read_formula`.
        largest_weight: public bound of ``sample_weight``; larger weights count as it.
        class_weight: None, or public weights {label: weight} of the classes in the default
            release; only their ratio matters. "balanced" is refused: it is computed from y.
        rows_per_unit: the most rows of one person to use, the first ones, if ``fit`` is given the
            persons as ``unit``. ε is then for all rows of a person.
        group: the column of X with groups, such as clinics, whose effects are normal: a mixed
            model. Groups are features; or records, by ``fit(X, y, unit=group)``. See
            :class:`bdpvi.tables.Public`.
        ledger: path of a file to which every ``fit`` is charged before anything is drawn;
            ``guarantee_`` then states the total cost. Keep it secret, and use one for each table of
            people. It is created if it does not exist.
        random_state: None draws from the operating system's secure randomness. A seed makes an
            experiment without a guarantee: whoever knows the seed can subtract the noise.

    By default a private minimum is released (:class:`bdpvi.regression.ObjectivePerturbation`),
    which converges to the minimum without privacy as rows are added. For Bayesian DP draws from
    :class:`bdpvi.guides.Laplace` are released instead. More than two classes use
    multinomial regression, trained with noise by :class:`bdpvi.DPVI`; ``guarantee``,
    ``base_rate`` and ``intervals`` are for two classes. All arguments
    count as public: choose them without looking at the data. Few records are not an error, but make
    private scaling inaccurate; a :class:`bdpvi.PrivacyUtilityWarning` says so.

    Attributes:
        coef_: (1, d), or (K, d) for more than two classes, mean over the draws, on the scale of X,
            for X clipped at ``center_`` ± limit · ``scale_``. Groups' effects are not among them.
        intercept_: (1,) or (K,), mean over the draws.
        coef_interval_: (d, 2), 95 % intervals of ``coef_``; only with ``intervals`` or ``group``.
        summary_: the :class:`bdpvi.releases.summary.Summary`, for standardised features; as those.
        tau_, tau_interval_, tau_measured_: with ``group``, the standard deviation τ of effects, its
            95 % interval (2,), and whether it is known better than by the prior.
        effects_: with ``group``, a data frame of the groups' effects by name, with mean, sd, low,
            high and a note; without rows if groups are records. Predictions for other groups have
            the effect 0.
        coef_samples_, intercept_samples_: (k, d) and (k,), or (k, K, d) and (k, K), for each draw.
        classes_: the labels, sorted.
        center_, scale_: (d,), centres and scales that standardise X; 0 and 1 where a feature is no
            number.
        encoding_: the :class:`bdpvi.datasets.Encoding` of a data frame's columns as d features,
            named by ``encoding_.feature_names``; None if each column is a feature.
        bound_: the :class:`bdpvi.Bound` of preprocessing and release together: ``bound_.kind``,
            ``bound_.epsilon``, ``bound_.reliable``. An experiment's bound is not reliable.
        guarantee_: the guarantee in words.
        release_: the :class:`bdpvi.Release` that may be shared, for standardised features.
        n_features_in_: number of columns of X.
        feature_names_in_: their names, if X has any.

    >>> X, y = np.random.default_rng(0).normal(size=(400, 2)), np.repeat(["no", "yes"], 200)
    >>> X[200:] += 2
    >>> model = PrivateLogisticRegression(bounds=(-3, 5), classes=("no", "yes")).fit(X, y)
    >>> model.coef_.shape, model.predict([[-1.0, -1.0], [3.0, 3.0]])
    ((1, 2), array(['no', 'yes'], dtype='<U3'))
    >>> model.guarantee_[:47]
    'worst-case DP ε = 1 (target) at δ = 1e-05, to a'
    """

    guarantee: Guarantee | None = None
    prior_scale: float | None = None
    fit_intercept: bool = True
    classes: ArrayLike | None = None
    base_rate: float | None = None
    intervals: bool = False
    class_weight: Mapping[Any, float] | None = None

    def fit(
        self, X: ArrayLike, y: ArrayLike, unit: ArrayLike | None = None, **options: Any
    ) -> PrivateLogisticRegression:
        """Fit and release.

        Args:
            X: features, (N, d): an array, a tensor, a list of rows, or a frame of pandas, Polars,
                pyarrow or DuckDB. Each column is one feature, and records with a cell that is not a
                finite number are left out. With ``types``, or categories or Booleans among a
                frame's dtypes, columns are encoded as by :func:`bdpvi.private`: a category dtype
                declares its levels, which count as public; blanks and unknown levels are levels
                too.
            y: labels, (N,), or a column of any frame. With ``classes``, records with other labels
                are left out, and a single class is accepted; without, at least two are required.
            unit: the person of each row, (N,), or the column of X with them, which is then no
                feature: ε is then for all rows of a person. With metadata
                routing, ``set_fit_request(unit=True)`` passes it through a pipeline or a search.
            options: ``sample_weight``, (N,): sampling weights, with a public ``largest_weight``.

        Returns:
            The estimator itself.

        Raises:
            ValueError: naming the argument and its value, or a column whose dtype declares no
                levels. With ``classes`` it never depends on a record.

        Warns:
            PrivacyUtilityWarning: if there are few records for private preprocessing; also how many
                records were left out, for the owner only.
            PrivacyLeakWarning: if classes are taken from y, or a seed is given.
        """
        from bdpvi._ground.types import tell_owner
        from bdpvi.releases.basis import LABELLED
        from bdpvi.sklearn.inputs import read

        weights = self._weights(options)
        people = self._people(unit)
        inputs, labels = read(self, X, y, unit, weights)
        classes = of_classes.labels(self.classes, labels)
        targets = of_classes.places(labels, classes)
        good = inputs.complete & np.isfinite(targets)
        why = "a value is not a finite number, or a label is not a class"
        tell_owner(int((~good).sum()), "record", why)
        inputs, targets = inputs.select(good), targets[good]
        noted = {LABELLED: True} if self.classes is None else {}
        if self.classes is None:
            warnings.warn(
                "the guarantee does not cover the classes, which fit took from y: give classes "
                "that are public",
                PrivacyLeakWarning,
                stacklevel=2,
            )
        self._classes = classes
        self._fit(inputs, targets, people, range(len(classes)), **noted)
        return self

    def _check(self, columns: Inputs, asked: Request, given: Encoded | None, rows: int) -> None:
        from bdpvi.datasets.estimates import SHARE
        from bdpvi.tables.encoded import promising

        if given is None and asked.bayesian:
            raise ValueError(
                f"guarantee={self.guarantee!r} needs public bounds (or scales): privately "
                "estimated ones are outputs too"
            )
        if not self.intervals:
            return
        if given is None and self.expected_rows is None:
            raise ValueError(
                "expected_rows=None: too few records for intervals would be noticed only "
                "after the private preprocessing was charged; give expected_rows, their "
                "approximate public number, or public bounds"
            )
        share = 0.0 if given else SHARE
        promising(asked, columns.fewest_features(asked), share, asked.whole(rows))

    def decision_function(self, X: ArrayLike) -> Floats:
        """Return the log-odds of the second class, (N,), from the probability averaged over draws.

        For more than two classes, return the logarithms of the probabilities, (N, K).
        """
        check_is_fitted(self)
        if len(self.classes_) > 2:
            return np.asarray(self.release_.predict_proba(self._features(X)).log().numpy())
        logits = self._logits(X)
        if logits.shape[1] == 1:
            return logits[:, 0]
        odds = logsumexp(log_expit(logits), axis=1) - logsumexp(log_expit(-logits), axis=1)
        return np.asarray(odds)

    def _logits(self, X: ArrayLike) -> Floats:
        """Return the log-odds by each draw, (N, k)."""
        from bdpvi.sklearn.arrays import predictor_of

        model, w = self.release_.model, self.release_.latents["w"]
        middle = w.new_zeros(1, len(self.release_.feature_names))
        found = predictor_of(self, X, (model.design(middle) @ w.T).numpy()[0])
        if found is None:
            found = (model.design(self._features(X)) @ w.T).numpy()
        return np.asarray(found)

    def predict_proba(self, X: ArrayLike) -> Floats:
        """Return the probabilities of ``classes_``, (N, K), averaged over the draws."""
        odds = self.decision_function(X)
        if len(self.classes_) > 2:
            return np.asarray(np.exp(odds))
        made = np.empty((len(odds), 2))
        expit(-odds, out=made[:, 0])
        expit(odds, out=made[:, 1])
        return made

    def predict_log_proba(self, X: ArrayLike) -> Floats:
        """Return the logarithms of the probabilities of ``classes_``, (N, K)."""
        odds = self.decision_function(X)
        if len(self.classes_) > 2:
            return odds
        return np.stack([log_expit(-odds), log_expit(odds)], axis=1)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the most likely class of each record, (N,)."""
        odds = self.decision_function(X)
        at = odds.argmax(axis=1) if len(self.classes_) > 2 else (odds > 0).astype(int)
        return np.asarray(self.classes_[at])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # noise hides the classes of very small tables
        return tags

    def _request(self, inputs: Inputs, **asked: Any) -> Request:
        return super()._request(
            inputs,
            intervals=self.intervals,
            guarantee=self.guarantee,
            base_rate=self.base_rate,
        )

    def _setup(
        self, asked: Request, found: Encoded | None, target: tuple[float, float] | None = None
    ) -> Setup:
        """Return model and route for the classes."""
        from bdpvi.regression import ObjectivePerturbation
        from bdpvi.tables.setup import setup

        weights = self._class_weights(self._classes)
        if len(self._classes) > 2:
            return of_classes.settings(self, len(self._classes), found, weights)
        chosen = setup(asked, found)
        free = asked.intervals or asked.bayesian or self.group is not None
        if self.prior_scale is not None and not free:
            raise ValueError(
                f"prior_scale={self.prior_scale!r}: the default release has a ridge of its own, "
                "which follows from epsilon; leave it out"
            )
        given = {name: getattr(self, name) for name in ("prior_scale", "limit")}
        given = {name: value for name, value in given.items() if value is not None}
        given["intercept"] = bool(self.fit_intercept)
        if self.group is not None:
            model = replace(chosen.model, of=replace(chosen.model.of, **given))
        else:
            model = replace(chosen.model, **given)
        chosen = chosen._replace(model=model)
        if weights is None:
            return chosen
        if not isinstance(chosen.route, ObjectivePerturbation):
            raise ValueError(
                f"class_weight={self.class_weight!r} is for the default release; "
                "leave it out, or intervals and guarantee"
            )
        return chosen._replace(route=replace(chosen.route, class_weights=weights))

    def _class_weights(self, classes: NDArray[Any]) -> Any:
        """Return the weight of each class; None if all are 1."""
        given = self.class_weight
        if given is None:
            return None
        if not isinstance(given, Mapping):
            raise ValueError(
                f"class_weight={given!r} must be None or public weights, such as {{'no': 1.0, "
                "'yes': 5.0}: what is computed from y is not covered by epsilon"
            )
        if unknown := [one for one in given if one not in classes.tolist()]:
            raise ValueError(f"class_weight: {unknown[0]!r} is not one of {classes.tolist()}")
        return tuple(
            validate.positive("class_weight", given.get(class_, 1.0)) for class_ in classes
        )

    def _guarantee(self) -> Guarantee:
        return self.guarantee or super()._guarantee()

    def _keep(self, release: Release, encoding: Encoding) -> None:
        """Set the attributes of a fit: functions of the release and public scaling."""
        import torch

        super()._keep(release, encoding)
        self.classes_ = self._classes
        del self._classes
        center, scale = self.center_, self.scale_
        if len(self.classes_) > 2:
            found = of_classes.coefficients(release, center, scale)
            self.coef_samples_, self.intercept_samples_ = found
            self.coef_ = self.coef_samples_.mean(axis=0)
            self.intercept_ = self.intercept_samples_.mean(axis=0)
            return
        weights = release.latents["w"]
        model: Any = release.model
        linear = replace(getattr(model, "of", model), limit=None)
        basis = torch.eye(len(release.feature_names), dtype=weights.dtype, device=weights.device)
        zero = (linear.design(0 * basis[:1]) @ weights.T).numpy()  # (1, k)
        slopes = (linear.design(basis) @ weights.T).numpy()[self._fixed] - zero  # (d, k)
        self.coef_samples_ = slopes.T / scale
        self.intercept_samples_ = zero[0] - self.coef_samples_ @ center
        self.coef_ = self.coef_samples_.mean(axis=0, keepdims=True)
        self.intercept_ = self.intercept_samples_.mean(keepdims=True)
        if release.estimate is not None or release.guide is not None:
            self.coef_ = self._set_estimates()[None]
