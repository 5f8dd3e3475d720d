"""Releases, which may be shared: posterior samples, their receipt, and their predictions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi._ground.host import on_host
from bdpvi._ground.outputs import several
from bdpvi.datasets.named import features_of
from bdpvi.models.contract import Model, name_of, with_features
from bdpvi.models.kinds import Known, is_regression
from bdpvi.models.predictions import class_probabilities, predictive_means, survival_draws
from bdpvi.privacy.cost import Cost
from bdpvi.releases.content import Published
from bdpvi.releases.summarised import FEWEST, summarised
from bdpvi.releases.summary import Summary

if TYPE_CHECKING:
    from bdpvi.datasets.encoding import Encoding


@dataclass(frozen=True, eq=False)
class Release(Published):
    """Posterior samples and their guarantee. All except ``cost`` may be shared.

    To share it, write it with :func:`bdpvi.save_release`; that file, a pickle and
    ``repr`` do not contain ``cost``.

    Attributes:
        samples: posterior samples over the flat vector of unconstrained latents, (k, d).
        latents: the same samples as the model's latent variables, each (k, ...), for
            ``pyro.infer.Predictive(release.model, posterior_samples=release.latents)``.
        receipt: the guarantee, in public words and numbers.
        model: the model, for predictions.
        feature_names: the columns that predictions expect, in order.
        preprocessing: how raw columns become those columns; see :attr:`encoding`.
        estimate: the posterior in numbers, if its route separates sampling and privacy noise.
        guide: the posterior of the unconstrained latents, if it is private itself.
        parameters: the model's parameters, by name, if any; ``model`` has them already.
        secret: see :attr:`cost`.
    """

    secret: Cost | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.parameters or not isinstance(self.model, Known):
            from bdpvi.models.parameters import TrainedModel  # late: it loads Pyro

            object.__setattr__(self, "model", TrainedModel.of(self.model, self.parameters))

    def __getstate__(self) -> dict[str, Any]:
        # A pickle or a copy for another process may be shared like the release.
        return {**self.__dict__, "secret": None}

    def __str__(self) -> str:
        return f"{several(len(self.samples), 'draw')}; {self.receipt}"

    def __repr__(self) -> str:
        weights = several(self.samples[0].numel(), "weight")
        return f"Release({name_of(self.model)}, {weights}, {self})"

    @property
    def cost(self) -> Cost:
        """The joint cost of all releases from the fit, this one included. Secret.

        Raises:
            ValueError: if the release was read from its file or a pickle, which do not contain it.
        """
        if self.secret is None:
            raise ValueError(
                "cost is secret and not stored in a release file; see the folder of the fit"
            )
        return self.secret

    @on_host
    def summary(
        self,
        level: float = 0.95,
        *,
        odds: bool = False,
        reference: Mapping[str, str] | None = None,
        per: Mapping[str, float] | None = None,
    ) -> Summary:
        """Return a table of the coefficients: estimates, intervals, P(coefficient > 0).

        Coefficients of a table's numbers are per unit of their columns; those of features that come
        as they are, per unit of the feature. ``str`` prints the table, notebooks show it, and
        :meth:`~bdpvi.releases.summary.Summary.save` writes HTML, LaTeX, CSV or a forest plot.

        With an :attr:`estimate` intervals have coverage ``level``, and the table has privacy's
        share of each standard deviation. Without one they are quantiles of the draws, and the
        table states what they omit; fewer than 20 draws have estimates but no intervals. Wide
        intervals have a note that they are dominated by privacy noise.

        Args:
            level: coverage of the intervals.
            odds: whether ``str`` shows odds ratios, or rate ratios for counts; ``to_dict`` and
                ``to_frame`` always have them.
            reference: the level that the others are compared with, by column, such as
                ``{"smokes": "never"}``: the same release, expressed otherwise, at no price. By
                default the first level of a category, which is the most frequent by noisy counts
                if its levels were estimated privately; for draws of a guide the one that varies
                least. Privacy's share of a difference of two weights is unknown.
            per: units of a column that its coefficient is for, such as ``{"age": 10}``.

        Raises:
            ValueError: if ``level`` is not a probability, or a column has no such level or is no
                number.
        """
        return summarised(self, level, odds, reference, per)

    @on_host
    def with_draws(self, draws: int) -> Release:
        """Return the release with ``draws`` fresh draws from its posterior, at no price.

        Raises:
            ValueError: if it has no private posterior: each draw is then charged.
        """
        receipt = replace(self.receipt, draws=draws)
        if self.guide is not None:
            samples = self.guide.draws(draws).to(self.samples)
            latents = self.guide.latents(self.model, samples, len(self.feature_names))
            return replace(self, samples=samples, latents=latents, receipt=receipt)
        if self.estimate is None:
            raise ValueError(
                f"draws={draws}: each draw of this release costs ε, and {len(self.samples)} were "
                "charged; bdpvi.release draws more from its fit"
            )
        latents = self.estimate.draws(draws)
        return replace(self, samples=flat(latents), latents=latents, receipt=receipt)

    @on_host
    def predict_draws(self, x: object) -> Tensor:
        """Return each record's expected target by every sample, (k, N).

        Args:
            x: a pandas frame: :attr:`encoding` encodes its raw columns, or, without one,
                ``feature_names`` selects columns, in any order; other columns are ignored. Or a
                tensor, an array or lists of features, (N, d), as in training. For a model of
                several arguments: a mapping or a frame, or a tuple, of all but its targets.

        Raises:
            ValueError: if a value, which it names, is not numeric, has a wrong shape, is missing or
                is unknown to the encoding.
        """
        return self._of_rows(x, predictive_means)

    def _of_rows(self, x: Any, of: Callable[..., Tensor]) -> Tensor:
        """Return a prediction of every record by every sample, (k, N, ...)."""
        known = self.encoding if hasattr(x, "columns") and self.guide is None else None
        alone = is_regression(self.model) and getattr(self.model, "exposure", None) is None
        if known is None or known.unknown != "other" or not alone:
            model, features = self._on(x)
            return of(model, self.latents, features)
        rows = _encoded(x, known)
        each = (rows[some].to(self.samples) for some in rows.slices())  # a few in memory
        return torch.cat([of(self.model, self.latents, some) for some in each], 1)

    def _on(self, x: Any) -> tuple[Model, Tensor]:
        """Return the model of features, and these, (N, d), for predictions."""
        if self.guide is None or not self.guide.arguments:
            return self.model, self._features(x)
        found = features_of(self.guide.arguments, x, self.samples)
        first = next(iter(found.values()))
        return with_features(self.model, found), self.samples.new_zeros(len(first), 0)

    def _features(self, x: Any) -> Tensor:
        """Return checked features of the samples' type, (N, d)."""
        if hasattr(x, "columns"):
            known = self.encoding
            x = _encoded(x, known)[:] if known else _select_columns(x, self.feature_names)
        features = validate.numbers("x", x)
        if features.ndim != 2 or features.shape[1] != len(self.feature_names):
            raise ValueError(
                f"x must have shape (records, {len(self.feature_names)}), "
                f"got {tuple(features.shape)}"
            )
        validate.finite("x", features)
        features = features.to(self.samples)
        return features if self.guide is None else self.guide.typed(features)

    @on_host
    def to_inference_data(self, x: Any = None) -> Any:
        """Return the samples for ArviZ, with the receipt as attributes of each group.

        The draws are independent: one chain. Those of ``posterior`` are as wide as the intervals of
        :meth:`summary`; :attr:`latents` of classes, of which predictions are made, may be narrower.
        It contains nothing of :attr:`cost`, and no ``log_likelihood``: of the records behind the
        release it would be secret, and :func:`bdpvi.compare_models` asks people held out at a
        charge. In the attributes booleans are 0 and 1, and None is left out, so that it can be
        saved.

        Args:
            x: features of records, (N, d), or for a model of several arguments as for
                :meth:`predict_draws`: every sample draws a target for each, in the group
                ``posterior_predictive``, which is as secret as these features.

        Returns:
            An ``arviz.InferenceData``, with ArviZ 1 an ``xarray.DataTree``.

        Raises:
            ImportError: if ArviZ is not installed.
            ValueError: if ``x`` has another shape or a value that is not finite.
        """
        from bdpvi.releases.arviz import to_inference_data

        return to_inference_data(self, None if x is None else self._on(x))

    @on_host
    def predict_mean(self, x: Any) -> Any:
        """Return each record's expected target, averaged over the samples, (N,).

        Args:
            x: as for :meth:`predict_draws`.

        Returns:
            A tensor for a tensor, a series with the same index for a frame, otherwise an array.

        Raises:
            ValueError: as :meth:`predict_draws`.
        """
        return _like(x, self.predict_draws(x).mean(0))

    @on_host
    def predict_proba(self, x: Any) -> Any:
        """Return the probabilities of the classes 0 to K − 1, averaged over the samples, (N, K).

        Args:
            x: as for :meth:`predict_draws`.

        Returns:
            A tensor for a tensor, a frame with columns 0 to K − 1 for a frame, otherwise an array.

        Raises:
            ValueError: as :meth:`predict_draws`, or if the model's target is not a class.
        """
        return _like(x, self._probabilities(x))

    @on_host
    def predict_survival(self, x: Any, times: Sequence[float], level: float = 0.95) -> Curves:
        """Return each record's survival curve at some times, with a band.

        Args:
            x: as for :meth:`predict_draws`.
            times: between 0 and the model's last cut, (T,).
            level: probability, over the samples, that a band holds a curve at one time.

        Raises:
            ValueError: as :meth:`predict_draws`, or if the model has no survival curve, or there
                are too few samples for a band: fewer than 20.

        >>> import bdpvi, torch
        >>> years = torch.rand(2000) * 4 + 0.1  # everybody has an event
        >>> model = bdpvi.BayesianSurvivalRegression(cuts=(1, 5))
        >>> data = torch.zeros(2000, 1), years.double()
        >>> fitted = bdpvi.fit_private(model, data, epsilon=1, route=bdpvi.DPVI(rows=2000, steps=9))
        >>> curves = fitted.predict_survival(torch.zeros(3, 1), [0, 1, 2.5])
        >>> curves.mean.shape, curves.mean[:, 0].tolist()
        (torch.Size([3, 3]), [1.0, 1.0, 1.0])
        """
        validate.probability("level", level)
        at = validate.numbers("times", times).double()
        model, features = self._on(x)
        draws = survival_draws(model, self.latents, features, at)
        if len(draws) < FEWEST:
            raise ValueError(f"a band needs {FEWEST} draws, there are {len(draws)}: with_draws()")
        ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64).to(draws)
        mean, low, high = (_like(x, one) for one in (draws.mean(0), *draws.quantile(ends, 0)))
        return Curves(mean, low, high)

    @on_host
    def predict(self, x: Any) -> Any:
        """Return the likeliest class, 0 to K − 1, (N,); containers as for :meth:`predict_mean`.

        Raises:
            ValueError: as :meth:`predict_proba`.
        """
        return _like(x, self._probabilities(x).argmax(1))

    def _probabilities(self, x: Any) -> Tensor:
        return self._of_rows(x, class_probabilities).mean(0)


class Curves(NamedTuple):
    """Survival curves of N records at T times, in containers as of :meth:`Release.predict_proba`.

    Attributes:
        mean: the probability of no event until then, averaged over the samples, (N, T).
        low, high: the ends of the band, (N, T).
    """

    mean: Any
    low: Any
    high: Any


def flat(latents: Mapping[str, Tensor]) -> Tensor:
    """Return draws of unbounded latent variables as vectors, (k, d)."""
    sides = [latent.reshape(len(latent), -1) for latent in latents.values()]
    return torch.cat(sides, 1) if sides else torch.zeros(0, 0)


def _select_columns(frame: Any, names: tuple[str, ...]) -> Any:
    """Return the columns with these names, in this order."""
    frame = frame.set_axis([str(c).strip() for c in frame.columns], axis=1)
    found = Counter(frame.columns)
    for name in names:
        if found[name] != 1:
            raise ValueError(f"x must have the column {name!r} once, it has {found[name]} of them")
    return frame[list(names)]


def _encoded(frame: Any, encoding: Encoding) -> Any:
    """Return the features of raw rows; tell the owner of cells that say nothing."""
    from bdpvi.datasets.cells import read_columns
    from bdpvi.datasets.encoding import with_text_names
    from bdpvi.datasets.looks import tell_of_unclear, unclear

    table = read_columns(with_text_names(frame), encoding.types)
    other = encoding.unknown == "other"
    features = encoding.rows_of(table) if other else encoding.encode_and_count(frame)[0]
    tell_of_unclear(unclear(encoding, table), encoding, 8)
    return features


def _like(x: Any, values: Tensor) -> Any:
    """Return values for the records of ``x`` in a container like ``x``."""
    parts = x.values() if isinstance(x, Mapping) else x if isinstance(x, tuple) else (x,)
    if isinstance(next(iter(parts), x), Tensor):
        return values
    array = values.cpu().numpy()
    if not hasattr(x, "columns"):
        return array
    import pandas as pd

    return (pd.Series if values.ndim == 1 else pd.DataFrame)(array, index=x.index)
