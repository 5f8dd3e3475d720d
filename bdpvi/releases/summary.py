"""A release as a table of coefficients: estimates, intervals, ratios, and what they omit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi._ground.outputs import one_line, several
from bdpvi.models.contract import Model
from bdpvi.releases.estimate import BASE, Estimate, Gaussian
from bdpvi.releases.receipt import Receipt

if TYPE_CHECKING:
    import pandas as pd

    from bdpvi.datasets.encoding import Encoding

FEWEST = 20
"""The fewest draws whose quantiles are shown."""
_RATIOS = {
    "linear": "",
    "poisson": "rate ratio",
    "negative binomial": "rate ratio",
    "multinomial": "",
}
_BESIDE = {"log_scale", "log_dispersion", "log_gaps"}
"""Latent variables of the library's models that are not coefficients."""
_DRAWN = (
    "draws of a private posterior: these intervals do not include the public-scale noise that "
    "moves all draws together, nor the bias of a clip, of record weights or of a strong prior, "
    "so their coverage may be far below their level. fit_private(..., route=NoisyScores()) gives "
    "intervals that account for sampling and privacy noise"
)
_MINIMA = (
    "draws of perturbed minima: their spread is privacy noise alone, so these intervals do not "
    "include sampling error. fit_private(..., route=NoisyScores()) gives intervals that account "
    "for both"
)
_TRAINED = (
    "the guide accounts for the records, privacy noise and batch sampling; its intervals assume "
    "that the model is correct and that the posterior has the guide's shape: a guide of "
    "independent normals gives intervals that are too narrow for correlated latents, such as an "
    "intercept and group effects"
)
_LEVELS = (
    ". Levels of a category are compared with its base level, the one with the smallest "
    "variance, and the intercept is for base levels"
)
_CLASSES = ". Classes are compared with the first"
_HIDDEN = "dominated by privacy noise"
_LARGEST = 700.0


@dataclass(frozen=True, kw_only=True)
class Coefficient:
    """One row of a summary; ratios are exponentials, (estimate, low, high).

    Attributes:
        name: name of the feature.
        mean, sd, low, high: of the coefficient, per public scale of the feature.
        positive: P(coefficient > 0). All these are 0 if a note says that there is no estimate.
        privacy: share of the sd due to privacy noise, None if unknown.
        scale: units of the raw column in one public scale; 1 if there is none.
        note: such as that it is the base level, or dominated by privacy noise; or "".
    """

    name: str
    mean: float
    sd: float
    low: float
    high: float
    positive: float
    privacy: float | None = None
    scale: float = 1.0
    note: str = ""

    def ratio(self, per_unit: bool = False) -> tuple[float, float, float]:
        """Return the ratio of odds or rates, per public scale or per unit of the raw column."""
        by = self.scale if per_unit else 1.0
        ends = (self.mean, self.low, self.high)
        low, middle, high = sorted(math.exp(min(one / by, _LARGEST)) for one in ends)
        return middle, low, high


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A table of coefficients; ``str`` prints it. See :meth:`bdpvi.Release.summary`.

    Attributes:
        coefficients: in the order of the weights.
        level: coverage of the intervals.
        ratio: the meaning of exponentials of coefficients: "odds ratio", "rate ratio" or "".
        reliable: whether the intervals are reliable; None if unknown.
        reason: why not, and what they omit or assume.
        guarantee: the receipt in words.
        noise: standard deviation of the target's noise: estimate, low, high; or None.
        odds: whether ``str`` shows ratios.
    """

    coefficients: tuple[Coefficient, ...]
    level: float
    ratio: str
    reliable: bool | None
    reason: str
    guarantee: str
    noise: tuple[float, float, float] | None = None
    odds: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON types, ratios included."""
        rows = []
        for one in self.coefficients:
            row = asdict(one)
            if self.ratio:
                row |= {"ratio": one.ratio(), "ratio_per_unit": one.ratio(per_unit=True)}
            rows.append(row)
        return asdict(self) | {"coefficients": rows}

    def to_frame(self) -> pd.DataFrame:
        """Return the coefficients as a frame, one row for each name."""
        import pandas as pd

        rows = []
        for one in self.coefficients:
            row = asdict(one)
            for per, unit in (("", False), ("_per_unit", True)) if self.ratio else ():
                kinds = ("ratio", "ratio_low", "ratio_high")
                values = one.ratio(per_unit=unit)
                row |= {f"{kind}{per}": v for kind, v in zip(kinds, values, strict=True)}
            rows.append(row)
        return pd.DataFrame(rows).set_index("name")

    def plot(self, path: str | Path) -> Path:
        """Draw a forest plot: estimates and intervals; needs the extra ``bdpvi[report]``."""
        from bdpvi.releases.forest import forest

        rows = [one for one in self.coefficients if one.sd]
        ratios = self.odds and bool(self.ratio)
        trust = {None: "", True: ", reliable", False: ", NOT reliable"}[self.reliable]
        what = self.ratio if ratios else "coefficient"
        return forest(
            [one.name for one in rows],
            [one.ratio() if ratios else (one.mean, one.low, one.high) for one in rows],
            Path(path),
            label=f"{what}, {100 * self.level:g} % intervals{trust}",
            ratios=ratios,
        )

    def __str__(self) -> str:
        units = any(one.scale != 1 for one in self.coefficients)
        head = ["", "mean", "sd", "from", "to", "P(> 0)", "privacy"]
        if self.odds and self.ratio:
            head += [self.ratio, "from", "to"]
            head += ["per unit", "from", "to"] if units else []
        head.append("")
        lines = [head]
        for one in self.coefficients:
            cells = self._cells(one, units) if one.sd else [""] * (len(head) - 2)
            lines.append([one_line(one.name), *cells, one_line(one.note)])
        widths = [max(len(line[i]) for line in lines if i < len(line)) for i in range(len(head))]
        table = [
            "  ".join(
                cell.ljust(width) if place in (0, len(head) - 1) else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(line, widths, strict=False))
            ).rstrip()
            for line in lines
        ]
        trust = {None: "", True: "; reliable: yes", False: "; reliable: no"}[self.reliable]
        said = [f"{100 * self.level:g} % intervals{trust}", *table]
        if self.noise is not None:
            middle, low, high = self.noise
            said.append(f"sd of the target's noise: {middle:.3g}, from {low:.3g} to {high:.3g}")
        if self.reason:
            said.append(one_line(self.reason[0].upper() + self.reason[1:]))
        return "\n".join([*said, one_line(self.guarantee)])

    def _cells(self, one: Coefficient, units: bool) -> list[str]:
        privacy = "" if one.privacy is None else f"{100 * one.privacy:.0f} %"
        cells = [f"{v:.3g}" for v in (one.mean, one.sd, one.low, one.high)]
        cells += [f"{one.positive:.3f}", privacy]
        if self.odds and self.ratio:
            cells += [f"{v:.3g}" for v in one.ratio()]
            cells += [f"{v:.4g}" for v in one.ratio(per_unit=True)] if units else []
        return cells


class Draws(Protocol):
    """The attributes of :class:`bdpvi.Release` that a summary reads."""

    @property
    def samples(self) -> Tensor:
        """Draws, (k, d)."""

    @property
    def latents(self) -> Mapping[str, Tensor]:
        """The draws as the model's latent variables."""

    @property
    def receipt(self) -> Receipt:
        """The guarantee."""

    @property
    def model(self) -> Model:
        """The model for predictions."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The columns, in order."""

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        """The preprocessing of the features."""

    @property
    def estimate(self) -> Estimate | None:
        """The posterior, if it is public."""

    @property
    def guide(self) -> Gaussian | None:
        """The trained guide, if it is public."""

    @property
    def encoding(self) -> Encoding | None:
        """The encoding of raw columns, if there is one."""


def summarised(release: Draws, level: float, odds: bool) -> Summary:
    """Return the summary; see :meth:`bdpvi.Release.summary`."""
    validate.probability("level", level)
    names, scales = _names(release)
    made = _of_estimate if release.estimate is not None else _of_draws
    rows = made(release, level, names, scales)
    ratio = _RATIOS.get(getattr(release.model, "kind", ""), "odds ratio")
    ratio = ratio if hasattr(release.model, "design") else ""
    given: dict[str, Any] = {"level": level, "ratio": ratio, "odds": odds}
    given |= {"coefficients": tuple(rows), "guarantee": str(release.receipt)}
    if (known := release.estimate) is None:
        reason = _MINIMA if release.receipt.temperature is None else _DRAWN
        reason = reason if release.guide is None else _TRAINED
        if _of_features(release):
            reason += _LEVELS * bool(getattr(release.model, "levels", ()))
            reason += _CLASSES * bool(_classes(release))
        return Summary(**given, reliable=None, reason=reason)
    if known.log_scale is not None:
        mean, sd = known.log_scale
        half = sd * _quantile(level)
        ends = (mean, mean - half, mean + half)
        given["noise"] = tuple(math.exp(min(one, _LARGEST)) for one in ends)
    return Summary(**given, reliable=known.reliable, reason=known.reason)


def _quantile(level: float) -> float:
    """Return half the width of a standard normal's central interval."""
    from scipy.special import ndtri  # late: draws without an estimate need none of scipy

    return float(ndtri((1 + level) / 2))


def _of_estimate(
    release: Draws, level: float, names: Sequence[str], scales: Sequence[float]
) -> list[Coefficient]:
    from scipy.special import ndtr

    known = release.estimate
    assert known is not None
    quantile = _quantile(level)
    rows = []
    sds = known.spread.diagonal().clamp(min=0).sqrt().tolist()
    parts = zip(names, known.mean, sds, known.sampling, scales, known.notes, strict=True)
    for name, mean, sd, sampling, scale, note in parts:
        row = Coefficient(
            name=name,
            mean=mean,
            sd=sd,
            low=mean - quantile * sd,
            high=mean + quantile * sd,
            positive=float(ndtr(mean / sd)) if sd else 0.5,
            privacy=max(0.0, 1 - sampling / sd) if sd else None,
            scale=scale,
            note=note,
        )
        rows.append(row)
    return rows


def _of_draws(
    release: Draws, level: float, names: Sequence[str], scales: Sequence[float]
) -> list[Coefficient]:
    if len(release.samples) < FEWEST:
        raise ValueError(
            f"a release of {several(len(release.samples), 'draw')} has no intervals: at least "
            f"{FEWEST} draws are needed, and their intervals ignore privacy noise. "
            "fit_private(..., route=NoisyScores()), or bdpvi private --for intervals, gives "
            "intervals with correct coverage"
        )
    weights, measured = _weights(release), torch.tensor(_measured(release))
    contrasts = _contrasts(release, weights, measured)
    values = weights @ contrasts.T
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = values.quantile(ends.to(values), dim=0).tolist()
    rows = zip(
        names,
        values.mean(0).tolist(),
        values.std(0).tolist(),
        low,
        high,
        (values > 0).double().mean(0).tolist(),
        scales,
        strict=True,
    )
    found = [
        Coefficient(name=n, mean=m, sd=s, low=lo, high=hi, positive=p, scale=u)
        for n, m, s, lo, hi, p, u in rows
    ]
    none = {"mean": 0.0, "sd": 0.0, "low": 0.0, "high": 0.0, "positive": 0.0}
    notes = [
        _HIDDEN if bool(((row != 0) & ~measured).any()) else "" if bool(row.any()) else BASE
        for row in contrasts
    ]
    return [
        Coefficient(name=one.name, **none, scale=one.scale, note=note) if note else one
        for one, note in zip(found, notes, strict=True)
    ]


def _contrasts(release: Draws, weights: Tensor, measured: Tensor) -> Tensor:
    """Return the displayed contrasts of p weights: their linear combinations, (rows, p).

    The records identify only differences between a category's levels, and between classes. A
    guide of independent normals has the right spread for differences of levels that all have
    weights; with a rare base level without a weight it is far too narrow. So the base level is
    chosen from the draws: the one that varies least. Classes are compared with the first.

    Args:
        release: a release of a model with p weights.
        weights: its draws, (k, p).
        measured: whether each weight is not dominated by privacy noise, (p,).
    """
    if not _of_features(release):
        return torch.eye(weights.shape[1]).to(weights)
    names, classes = _columns(release), max(1, len(_classes(release)))
    of_features, of_classes = (torch.eye(n).to(weights) for n in (len(names), classes))
    if classes > 1:
        of_classes = of_classes[1:] - of_classes[0]
    hidden = ~measured.view(-1, classes)
    varying = weights.var(0).view(-1, classes).masked_fill(hidden, math.inf).sum(1)
    for levels in getattr(release.model, "levels", ()):
        places = [names.index(release.feature_names[level]) for level in levels]
        base = places[int(varying[places].argmin())]
        of_features[places, base] -= 1
        of_features[-1, base] += 1
    return torch.kron(of_features, of_classes)


def _measured(release: Draws) -> list[bool]:
    """Return whether each coefficient is not dominated by privacy noise, if a guide knows."""
    guide = release.guide
    if guide is None:
        return [True] * _weights(release).shape[1]
    sizes = [math.prod(shape) for shape in guide.sites.values()]
    pieces = torch.tensor(guide.measured, dtype=torch.bool).split(sizes)
    of_sites = dict(zip(guide.sites, pieces, strict=True))
    if _of_features(release):
        return list(of_sites["w"].tolist())
    wanted = {name: value[0].numel() for name, value in release.latents.items()}
    same = ((of_sites[name], number) for name, number in wanted.items())
    each = (one if len(one) == number else one.all().expand(number) for one, number in same)
    return list(torch.cat(list(each)).tolist())


def _of_features(release: Draws) -> bool:
    """Whether the weights ``w`` belong to the features, in order."""
    return hasattr(release.model, "design") and not set(release.latents) - {"w", *_BESIDE}


def _weights(release: Draws) -> Tensor:
    """Return draws of the features' coefficients, or of all latent variables, (k, d).

    The last weight times its column is the intercept.
    """
    model = release.model
    if not _of_features(release):
        return torch.cat([one.reshape(len(one), -1) for one in release.latents.values()], 1)
    w = release.latents["w"].flatten(1)
    if (constant := getattr(model, "constant", 1.0)) != 1 and getattr(model, "intercept", False):
        w = torch.cat([w[:, :-1], w[:, -1:] * constant], 1)
    if not getattr(model, "correlation", 0.0):
        return w
    plain: Any = replace(model, limit=None)  # type: ignore[type-var]
    basis = torch.eye(len(release.feature_names), dtype=w.dtype)
    slopes = plain.design(basis)[:, : len(basis)] @ w[:, : len(basis)].T
    return torch.cat([slopes.T, w[:, len(basis) :]], 1)


def _names(release: Draws) -> tuple[list[str], list[float]]:
    """Return the names of the coefficients, and the units of the raw columns in one of theirs."""
    if not _of_features(release):
        names = [
            name if value.ndim == 1 else f"{name}[{at}]"
            for name, value in release.latents.items()
            for at in range(value[0].numel())
        ]
        return names, [1.0] * len(names)
    names = _columns(release)
    encoding = release.encoding
    known: dict[str, float] = {}
    for column in encoding.columns if encoding else ():
        if hasattr(column, "sd"):
            known[column.features[0]] = column.sd
    each = _classes(release)[1:]
    labels = [f"{name}[{label}]" for name in names for label in each] or names
    repeated = [known.get(name, 1.0) for name in names for _ in each or (0,)]
    return labels, repeated


def _columns(release: Draws) -> list[str]:
    """Return the names of the columns that have weights."""
    names = list(release.feature_names)
    if (exposure := getattr(release.model, "exposure", None)) is not None:
        del names[exposure]
    return names + ["intercept"] * bool(getattr(release.model, "intercept", False))


def _classes(release: Draws) -> Sequence[object]:
    """Return the classes' labels, or their numbers; none if weights are for all classes."""
    if release.latents["w"].ndim < 3:
        return ()
    target = release.preprocessing.get("target")
    labels = target.get("classes") if isinstance(target, dict) else None
    return labels or range(getattr(release.model, "classes", 0))
