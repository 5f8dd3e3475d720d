"""The expected targets of the library's regressions for draws of their weights, in NumPy.

Each formula is that of the file in :mod:`bdpvi.models` which is named like the law;
``tests/score`` holds both against each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
REACH = 20.0
"""Log means and log gaps are clipped at ± this."""


class ScoreLaw:
    """A regression with one predictor, and k draws of its weights.

    Args:
        model: the model's entry in a release's file.
        latents: draws of the latent variables, each (k, ...).
        width: number of features d.

    Raises:
        ValueError: if the model has a field that this version does not know, or shapes disagree.

    Attributes:
        weights: of each feature, (k, d) or (k, d, K); 0 for the exposure.
        constant: the intercept in the predictor, (k,) or (k, K).
        limit: features are clipped at ± this; inf if they are not.
        labels: of the classes, if there are any.
        groups: numbers of the features that are scaled together to at most that length.
        exposure: number of the feature that holds exposures, or None.
    """

    fields: ClassVar[tuple[str, ...]] = ()
    labels: tuple[str, ...] = ()

    def __init__(self, model: Mapping[str, Any], latents: Mapping[str, Floats], width: int) -> None:
        common = {"kind", "prior_scale", "limit", "levels", "weight_norm"}
        if more := sorted(model.keys() - {*common, *self.fields}):
            raise ValueError(f"the model has {more[0]!r}: a later version made it")
        self.model, self.latents = model, latents
        self.weighs = self._weighs()
        self.limit = math.inf if model["limit"] is None else float(model["limit"])
        self.groups = self._groups() if self.limit < math.inf else ()
        exposure = model.get("exposure")
        self.exposure = None if exposure is None else int(exposure)
        kept = [at for at in range(width) if at != self.exposure]
        w, intercept = latents["w"], self._intercept()
        if w.ndim != 2 + self._classes() or w.shape[1] != len(kept) + intercept:
            raise ValueError(f"latents.w has the shape {w.shape} for {width} features")
        self.weights = np.zeros((len(w), width, *w.shape[2:]))
        self.weights[:, kept] = w[:, : len(kept)]
        scale = 2.0 if self.weighs else 1.0  # the intercept's column
        self.constant = scale * w[:, -1] if intercept else np.zeros((len(w), *w.shape[2:]))

    def _weighs(self) -> bool:
        """Whether records were weighted; without an entry they were not."""
        return bool(self.model.get("weight_norm", math.inf) != math.inf)

    def _groups(self) -> Sequence[Sequence[int]]:
        return self.model["levels"] if self.weighs else ()

    def _intercept(self) -> bool:
        return True

    def _classes(self) -> bool:
        """Whether each class has its own predictor."""
        return False

    @cached_property
    def _columns(self) -> Floats:
        """The weights as one matrix, (d, k·K)."""
        return np.ascontiguousarray(self.weights.swapaxes(0, 1).reshape(self.weights.shape[1], -1))

    def known(self, x: Floats) -> NDArray[np.bool_]:
        """Return which rows have a positive exposure, (N,)."""
        if self.exposure is None:
            return np.full(len(x), True)
        return np.asarray(x[:, self.exposure] > 0)

    def predictions(self, x: Floats) -> dict[str, Any]:
        """Return what is predicted, averaged over the draws, (N,) each, by name.

        Args:
            x: features, (N, d).

        Returns:
            As :meth:`.scorer.Scorer.predict`; NaN for what is None there.
        """
        known = self.known(x)
        if not known.all():
            x = x.copy()
            x[~known, self.exposure] = 1.0
        draws = self.targets(x)
        means, labels = draws.mean(0), np.array(self.labels, dtype=str)
        made: dict[str, Any]
        if means.ndim == 2:
            chosen = means.argmax(1)
            draws = np.take_along_axis(draws, chosen[None, :, None], 2)[..., 0]
            names = (f"probability of {label}" for label in self.labels)
            made = {"class": labels[chosen], **dict(zip(names, means.T, strict=True))}
        elif self.labels:
            made = {"class": labels[(means > 0.5).astype(np.int64)], "probability": means}
        else:
            made = {"expected": means, **self.beside(x)}
        made["spread"] = draws.std(0, ddof=1) if len(draws) > 1 else np.full(len(x), math.nan)
        if not known.all():
            made = {name: np.where(known, one, math.nan) for name, one in made.items()}
        return made

    def targets(self, x: Floats) -> Floats:
        """Return the expected target, or the probability of each class, by each draw.

        Args:
            x: features, (N, d).

        Returns:
            (k, N), or (k, N, K) of several classes.
        """
        with np.errstate(over="ignore"):
            return self.expected(self._predictor(x))

    def beside(self, x: Floats) -> dict[str, Floats]:
        """Return what else is predicted, averaged over the draws, (N,) each, by name."""
        return {}

    def _predictor(self, x: Floats) -> Floats:
        """Return η, (k, N, ...)."""
        design = np.clip(x, -self.limit, self.limit)
        for group in self.groups:
            length = np.linalg.norm(design[:, group], axis=1)
            design[:, group] *= (self.limit / np.maximum(length, self.limit))[:, None]
        eta = (design @ self._columns).reshape(len(x), *self.constant.shape).swapaxes(0, 1)
        eta = eta + self.constant[:, None]
        if self.exposure is not None:
            eta = eta + np.log(np.maximum(x[:, self.exposure], math.exp(-REACH)))
        return eta

    def expected(self, eta: Floats) -> Floats:
        """Return the expected target by its predictor, (k, N, ...)."""
        raise NotImplementedError


class LogisticLaw(ScoreLaw):
    """The probability of 1, σ(η)."""

    fields = ("intercept", "clip", "correlation", "groups", "intercept_mean", "one_hot")

    def __init__(self, model: Mapping[str, Any], latents: Mapping[str, Floats], width: int) -> None:
        super().__init__(model, latents, width)
        if rho := float(model["correlation"]):
            groups = [range(width)] if model["groups"] is None else model["groups"]
            for group in groups:
                self.weights[:, group] = self._apart(self.weights[:, group], rho)

    @staticmethod
    def _apart(w: Floats, rho: float) -> Any:
        """Return M^-½ w, so that it needs not be applied to the features: M is symmetric."""
        mean = w.mean(1, keepdims=True)
        together = 1 - rho + rho * w.shape[1]
        return (w - mean) / math.sqrt(1 - rho) + mean / math.sqrt(together)

    def _weighs(self) -> bool:
        return self.model["clip"] is None and super()._weighs()

    def _groups(self) -> Sequence[Sequence[int]]:
        return self.model.get("one_hot") or ()

    def _intercept(self) -> bool:
        return bool(self.model["intercept"])

    def expected(self, eta: Floats) -> Floats:
        """Return σ(η)."""
        return 1 / (1 + np.exp(-eta))


class LinearLaw(ScoreLaw):
    """The mean, within the public bounds of targets."""

    fields = ("largest", "middle", "error_scale")

    def expected(self, eta: Floats) -> Floats:
        """Return η within the bounds."""
        middle, largest = float(self.model["middle"]), float(self.model["largest"])
        return np.clip(eta - middle, -largest, largest) + middle


class CountLaw(ScoreLaw):
    """The mean count, e^η times the exposure, at most the public bound."""

    fields: ClassVar[tuple[str, ...]] = ("largest", "exposure", "dispersion")

    def expected(self, eta: Floats) -> Floats:
        """Return e^η within the bounds."""
        return np.clip(np.exp(np.clip(eta, -REACH, REACH)), 0, float(self.model["largest"]))


class PoissonLaw(CountLaw):
    """The mean count; where records are weighted it is continued beyond half of its bound."""

    fields = ("largest", "exposure")

    def expected(self, eta: Floats) -> Floats:
        """Return e^η, beyond the kink at R = ``largest``/2 continued by R(2 − e^−(η − ln R))."""
        if not self.weighs:
            return super().expected(eta)
        half = float(self.model["largest"]) / 2
        away = eta - math.log(half)
        rate = half * (np.exp(np.minimum(away, 0)) + (1 - np.exp(-np.maximum(away, 0))))
        return np.asarray(np.clip(rate, 0, 2 * half))


class ClassLaw(ScoreLaw):
    """The probability of each of several classes, the softmax of their predictors."""

    fields = ("classes", "class_weights")

    def _classes(self) -> bool:
        return True

    def expected(self, eta: Floats) -> Floats:
        """Return the softmax over the last dimension."""
        raised = np.exp(eta - eta.max(-1, keepdims=True))
        return raised / raised.sum(-1, keepdims=True)  # type: ignore[no-any-return]


class OrdinalLaw(ScoreLaw):
    """The probability of each of several ordered classes, with proportional odds.

    P(y > k) = σ(η − c_k), so P(y = k) = σ(b)σ(−a)(1 − e^(a − b)) with b = c_k − η, a = c_{k−1} − η.
    """

    fields = ("classes",)

    @property
    def cuts(self) -> tuple[Floats, Floats]:
        """The cut points, (k, K − 1), the first 0; and 1 − e^−gap of their gaps, (k, K − 2)."""
        gaps = np.exp(np.clip(self.latents["log_gaps"], -REACH, REACH))
        cuts = np.concatenate([np.zeros((len(gaps), 1)), np.cumsum(gaps, 1)], 1)
        return cuts, -np.expm1(-gaps)

    def expected(self, eta: Floats) -> Floats:
        """Return the probabilities, (k, N, K)."""
        cuts, shares = self.cuts
        below = 1 / (1 + np.exp(eta[..., None] - cuts[:, None]))  # P(y ≤ k)
        above = 1 / (1 + np.exp(cuts[:, None] - eta[..., None]))
        ones = np.ones_like(eta)[..., None]
        made = np.concatenate([below, ones], -1) * np.concatenate([ones, above], -1)
        made[..., 1:-1] *= shares[:, None]
        return made / made.sum(-1, keepdims=True)  # type: ignore[no-any-return]


class SurvivalLaw(ScoreLaw):
    """The mean time to the event or the last cut, of hazards that are constant between cuts."""

    fields = ("cuts",)

    def __init__(self, model: Mapping[str, Any], latents: Mapping[str, Floats], width: int) -> None:
        w, self.cuts = latents["w"], np.array(model["cuts"], dtype=np.float64)
        if w.shape[1:] != (width + len(self.cuts),):
            raise ValueError(f"latents.w has the shape {w.shape} for {width} features")
        super().__init__(model, {"w": w[:, : width + 1]}, width)
        self.steps = w[:, width:] - w[:, width : width + 1]
        """Log hazards less the first one, (k, J)."""

    @property
    def shares(self) -> Floats:
        """The lengths of the intervals, in those of the whole, (J,)."""
        return np.asarray(np.diff(self.cuts, prepend=0) / self.cuts[-1])

    def _until(self, eta: Floats) -> tuple[Floats, Floats]:
        """Return the integral of the hazard over each interval, and until its end, (k, N, J)."""
        logs = eta[..., None] + self.steps[:, None] + math.log(self.cuts[-1])
        each = np.exp(np.clip(logs, -REACH, REACH)) * self.shares
        return each, np.cumsum(each, -1)

    def expected(self, eta: Floats) -> Floats:
        """Return ∫ S(t) dt until the last cut."""
        each, until = self._until(eta)
        parts = np.exp(each - until) * -np.expm1(-each) / each * self.shares
        return np.asarray(np.minimum(parts.sum(-1), 1.0) * self.cuts[-1])

    def beside(self, x: Floats) -> dict[str, Floats]:
        """Return the probability of no event until each cut."""
        curve = np.exp(-self._until(self._predictor(x))[1]).mean(0)
        return {f"survival at {cut:.9g}": curve[:, at] for at, cut in enumerate(self.cuts)}


LAWS: dict[str | None, type[ScoreLaw]] = {
    None: LogisticLaw,
    "linear": LinearLaw,
    "poisson": PoissonLaw,
    "negative binomial": CountLaw,
    "multinomial": ClassLaw,
    "ordinal": OrdinalLaw,
    "survival": SurvivalLaw,
}
"""Laws by the kinds that files name; the logistic one has no kind."""


def law_of(
    model: Mapping[str, Any], latents: Mapping[str, Floats], target: Mapping[str, Any], width: int
) -> ScoreLaw:
    """Return the law of a release's model.

    Args:
        model: its entry in a release's file.
        latents, width: as for :class:`ScoreLaw`.
        target: the entry of the target, which names classes.

    Raises:
        ValueError: if the model is unknown, or shapes disagree.
    """
    if model.get("kind") == "mixed":  # groups' effects are weights
        model = model["of"]
    if model.get("kind") not in LAWS:
        raise ValueError(f"the model is of the unknown kind {model['kind']!r}")
    law = LAWS[model.get("kind")](model, latents, width)
    found = law.targets(np.zeros((1, width))).shape[2:]
    if model.get("kind") is None:
        law.labels = (str(target.get("negative", "0")), str(target.get("positive", "1")))
    elif found:
        if found[0] != model["classes"]:
            raise ValueError(f"the model has {model['classes']} classes, latents {found[0]}")
        law.labels = tuple(map(str, target.get("classes", range(found[0]))))
        if len(law.labels) != found[0]:
            raise ValueError(f"the target has {len(law.labels)} classes, latents {found[0]}")
    return law
