"""The table of coefficients of a release, from its posterior, its guide or its draws."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi.datasets.columns import Numeric, distinct_names
from bdpvi.datasets.encoding import Encoding
from bdpvi.datasets.terms import Plain, Power
from bdpvi.models.mixed import effects_of
from bdpvi.releases.content import Published
from bdpvi.releases.estimate import BASE, HIDDEN, LEFT_OUT, POOLED, Estimate
from bdpvi.releases.references import Compared, compared, contrasts
from bdpvi.releases.summary import Coefficient, Summary
from bdpvi.releases.trained import reliability

FEWEST = 20
"""The fewest draws whose quantiles are shown."""
_BESIDE = {"log_scale", "log_dispersion", "log_gaps", "log_spread"}
"""Latent variables that are not coefficients."""
_DRAWN = (
    "draws of a private posterior: these intervals do not include the public-scale noise that "
    "moves all draws together, nor the bias of a clip, of record weights or of a strong prior, "
    "so their coverage may be far below their level. fit_private(..., route=NoisyScores()) gives "
    "intervals that account for sampling and privacy noise"
)
_POINTS = (
    "the estimates include privacy noise and shrinkage, and too few draws were released for "
    "intervals. bdpvi private --for intervals, or fit_private(..., route=NoisyScores()), gives "
    "intervals that account for sampling and privacy noise"
)
_MINIMA = (
    "draws of perturbed minima: their spread is privacy noise alone, so these intervals do not "
    "include sampling error. fit_private(..., route=NoisyScores()) gives intervals that account "
    "for both"
)
_LEVELS = ". Levels of a category are compared with its base level, {}"
_INTERCEPT = ", and the intercept is for base levels"
_HAZARDS = (
    ". Log hazards are for base levels and the columns' means; their exponentials are hazards per "
    "unit of time, not ratios"
)
_EMPTY = (
    ". The coefficient of a level that no record has is privacy noise alone, and the receipt "
    "says of what size"
)
_CENTRES = ". In products and powers numbers are measured from their centres: {}"
_CLASSES = ". Classes are compared with the first"


def as_wide_as_intervals(release: Published) -> Published:
    """Return a release whose draws all vary by the variances, those too that noise hides."""
    if (guide := release.guide) is None or guide.moved is None:
        return release
    samples = guide.whole(release.samples)
    latents = guide.latents(release.model, samples, len(release.feature_names))
    return replace(release, samples=samples, latents=latents)


def summarised(
    release: Published,
    level: float,
    odds: bool,
    reference: Mapping[str, str] | None = None,
    per: Mapping[str, float] | None = None,
) -> Summary:
    """Return the summary; see :meth:`bdpvi.Release.summary`."""
    validate.probability("level", level)
    release = as_wide_as_intervals(release)
    names, scales = _names(release, per or {})
    chosen: tuple[Compared, ...] = ()
    encoding = release.encoding if _of_features(release) else None
    stated = encoding.references if encoding else {}
    for name, level_ in stated.items():
        if reference and reference.get(name, level_) != level_:
            raise ValueError(
                f"reference={name!r}: the formula compares its levels with {level_!r}; fit again "
                f"with C({name}, Treatment('level'))"
            )
    if reference := {**stated, **(reference or {})}:
        chosen = compared(encoding, _columns(release) if encoding else (), reference)
    made = _of_estimate if release.estimate is not None else _of_draws
    rows = [
        row.times(amount / scale, amount)
        for row, (scale, amount) in zip(made(release, level, names, chosen), scales, strict=True)
    ]
    given_levels = "".join(f". {one.column!r} is compared with {one.level!r}" for one in chosen)
    if encoding is not None and (centres := _centres(encoding)):
        given_levels += _CENTRES.format(centres)
    ratio = getattr(release.model, "ratio", "")
    given: dict[str, Any] = {"level": level, "ratio": ratio, "odds": odds}
    given |= {"coefficients": tuple(rows), "guarantee": str(release.receipt)}
    reliable: bool | None = None
    if (known := release.estimate) is None:
        reason = _MINIMA if _minima(release) else _DRAWN
        reason = reason if len(release.samples) >= FEWEST else _POINTS
        if release.guide is not None:
            reliable, reason = reliability(release, rows, _of_features(release))
            if spread := release.guide.scale("log_spread", _quantile(level)):
                given["spread"] = (getattr(release.model, "column", ""), *spread)
        if _of_features(release):
            which = "its first" if _minima(release) else "the one with the smallest variance"
            several = len(_baselines(release)) > 1
            if len(_groups(release)) > len(chosen):
                reason += _LEVELS.format(which) + _INTERCEPT * (not several)
            reason += _HAZARDS * several
            reason += _EMPTY * (_minima(release) and bool(_groups(release)))
            reason += _CLASSES * bool(_classes(release))
        return Summary(**given, reliable=reliable, reason=reason + given_levels)
    if known.log_scale is not None:
        mean, sd = known.log_scale
        half = sd * _quantile(level)
        ends = (mean, mean - half, mean + half)
        given["noise"] = tuple(math.exp(min(end, 700.0)) for end in ends)
    reason = (known.reason + given_levels).removeprefix(". ")
    return Summary(**given, reliable=known.reliable, reason=reason)


def _centres(encoding: Encoding) -> str:
    """Return the centres of the numbers in a formula's products and powers, in words."""
    used = {
        factor.column
        for term in encoding.terms
        for factor in term
        if isinstance(factor, Power) or (isinstance(factor, Plain) and len(term) > 1)
    }
    numbers = (c for c in encoding.columns if c.name in used and isinstance(c, Numeric))
    return ", ".join(f"{column.name} {column.mean:.4g}" for column in numbers)


def _quantile(level: float) -> float:
    """Return half the width of a standard normal's central interval."""
    from scipy.special import ndtri

    return float(ndtri((1 + level) / 2))


def _of_estimate(
    release: Published,
    level: float,
    names: Sequence[str],
    chosen: Sequence[Compared] = (),
) -> list[Coefficient]:
    known = release.estimate
    assert known is not None
    from scipy.special import ndtr  # late: draws without an estimate need none of scipy

    quantile = _quantile(level)
    pairs = [(one.places, one.base) for one in chosen]
    turn = contrasts(len(known.mean), len(_baselines(release)), pairs)
    means = (turn @ torch.tensor(known.mean, dtype=torch.float64)).tolist()
    out = torch.tensor([note == LEFT_OUT for note in known.notes])
    unknown = (turn[:, out] != 0).any(1)  # whose spread is that of their column's mean
    sds = (turn @ known.spread @ turn.T).diagonal().masked_fill(unknown, 0).clamp(min=0).sqrt()
    rows = []
    parts = zip(
        names, means, sds.tolist(), _sampling(known, turn), _notes(known, turn), strict=True
    )
    for name, mean, sd, sampling, note in parts:
        row = Coefficient(name=name, mean=mean, note=note)
        if sd:
            row = replace(
                row,
                sd=sd,
                low=mean - quantile * sd,
                high=mean + quantile * sd,
                positive=float(ndtr(mean / sd)),
                privacy=None if sampling is None else max(0.0, 1 - sampling / sd),
            )
        rows.append(row)
    return rows


def _sampling(known: Estimate, turn: Tensor) -> list[float | None]:
    """Return each contrast's standard deviation without privacy noise; None for one of several."""
    there = known.spread.diagonal() > 0
    result: list[float | None] = []
    for row in turn:
        used = torch.nonzero((row != 0) & there).flatten().tolist()
        result.append(known.sampling[used[0]] if len(used) == 1 else 0.0 if not used else None)
    return result


def _notes(known: Estimate, turn: Tensor) -> list[str]:
    """Return the contrasts' notes: of a hidden weight, or of one left out, if one is in it."""
    result = []
    for place, row in enumerate(turn):
        used = [known.notes[at] for at in torch.nonzero(row != 0).flatten().tolist()]
        hidden = [note for note in used if note.startswith(HIDDEN)]
        hidden += [HIDDEN] * (LEFT_OUT in used)
        same = len(used) == 1 or known.notes[place] == POOLED
        plain = BASE if not used else known.notes[place] if same else ""
        own = known.notes[place] if known.notes[place] in (*hidden, LEFT_OUT) else ""
        result.append((own if used else "") or (hidden[0] if hidden else plain))
    return result


def _of_draws(
    release: Published,
    level: float,
    names: Sequence[str],
    chosen: Sequence[Compared] = (),
) -> list[Coefficient]:
    weights, measured = _weights(release), torch.tensor(_measured_coefficients(release))
    rows_of = _contrasts(release, weights, measured, chosen)
    values = weights @ rows_of.T
    notes = [
        HIDDEN if bool(((row != 0) & ~measured).any()) else "" if bool(row.any()) else BASE
        for row in rows_of
    ]
    points = [
        Coefficient(name=name, mean=mean, note=note)
        for name, mean, note in zip(names, values.mean(0).tolist(), notes, strict=True)
    ]
    if len(values) < FEWEST:
        return points
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = values.quantile(ends.to(values), dim=0).tolist()
    above = (values > 0).double().mean(0).tolist()
    rows = zip(points, values.std(0).tolist(), low, high, above, strict=True)
    return [
        point if point.note == BASE else replace(point, sd=sd, low=lo, high=hi, positive=positive)
        for point, sd, lo, hi, positive in rows
    ]


def _contrasts(
    release: Published, weights: Tensor, measured: Tensor, chosen: Sequence[Compared]
) -> Tensor:
    """Return the displayed contrasts of p weights: their linear combinations, (rows, p).

    The records identify only differences between a category's levels, and between classes. A
    guide of independent normals has the right spread for differences of levels that all have
    weights; with a rare base level without a weight it is far too narrow. So the base level is
    chosen from the draws, unless it is given: the one that varies least. Of perturbed minima, which
    vary by noise alone, it is the first: of levels with noisy counts the most frequent. Classes are
    compared with the first.

    Args:
        release: a release of a model with p weights.
        weights: its draws, (k, p).
        measured: whether each weight is not dominated by privacy noise, (p,).
        chosen: categories with a given reference level.
    """
    if not _of_features(release):
        return torch.eye(weights.shape[1]).to(weights)
    names, classes = _columns(release), max(1, len(_classes(release)))
    of_classes = torch.eye(classes).to(weights)
    if classes > 1:
        of_classes = of_classes[1:] - of_classes[0]
    hidden = ~measured.view(-1, classes)
    varying = weights.var(0, correction=0).view(-1, classes).masked_fill(hidden, math.inf).sum(1)
    pairs = {one.places: one.base for one in chosen}
    for levels in _groups(release):
        places = tuple(names.index(release.feature_names[level]) for level in levels)
        least = 0 if _minima(release) else int(varying[list(places)].argmin())
        pairs.setdefault(places, places[least])
    of_features = contrasts(len(names), len(_baselines(release)), [*pairs.items()]).to(weights)
    return torch.kron(of_features, of_classes)


def _groups(release: Published) -> tuple[tuple[int, ...], ...]:
    """Return the column numbers of each category's levels, by the model or else the encoding."""
    encoding = release.encoding
    same = encoding is not None and encoding.feature_names == release.feature_names
    of_table = encoding.one_hot if encoding is not None and same else ()
    own = tuple(getattr(release.model, "levels", ())) or of_table
    return tuple(one for one in own if not effects_of(release.model).issuperset(one))


def _minima(release: Published) -> bool:
    """Return whether the draws are perturbed minima."""
    return release.guide is None and release.receipt.temperature is None


def _baselines(release: Published) -> tuple[str, ...]:
    """Return the names of the last weights, which belong to no feature."""
    return getattr(release.model, "baselines", ())


def _measured_coefficients(release: Published) -> list[bool]:
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


def _of_features(release: Published) -> bool:
    """Whether the weights ``w`` belong to the features, in order."""
    return hasattr(release.model, "design") and not set(release.latents) - {"w", *_BESIDE}


def _weights(release: Published) -> Tensor:
    """Return draws of the features' coefficients, or of all latent variables, (k, d).

    The last weight times its column is the intercept.
    """
    model = release.model
    if not _of_features(release):
        return torch.cat(
            [latent.reshape(len(latent), -1) for latent in release.latents.values()], 1
        )
    w = release.latents["w"].flatten(1)
    if (constant := getattr(model, "constant", 1.0)) != 1 and getattr(model, "intercept", False):
        w = torch.cat([w[:, :-1], w[:, -1:] * constant], 1)
    if not getattr(model, "correlation", 0.0):
        return w
    plain: Any = replace(model, limit=None)  # type: ignore[type-var]
    basis = torch.eye(len(release.feature_names), dtype=w.dtype)
    slopes = plain.design(basis)[:, : len(basis)] @ w[:, : len(basis)].T
    return torch.cat([slopes.T, w[:, len(basis) :]], 1)


def _names(
    release: Published, per: Mapping[str, float]
) -> tuple[list[str], list[tuple[float, float]]]:
    """Return the names of the coefficients; for each the units in one of its features, and shown.

    Raises:
        ValueError: if ``per`` names anything but a number of the table.
    """
    encoding = release.encoding if _of_features(release) else None
    numbers = [c.name for c in encoding.columns if c.scaled and not c.named] if encoding else []
    for name, amount in per.items():
        if name not in numbers:
            raise ValueError(f"per={name!r} must be a column of numbers: {numbers}")
        validate.positive(f"per[{name!r}]", amount)
    if not _of_features(release):
        names = [
            name if value.ndim == 1 else f"{name}[{at}]"
            for name, value in release.latents.items()
            for at in range(value[0].numel())
        ]
        return names, [(1.0, 1.0)] * len(names)
    names = _columns(release)
    known: dict[str, tuple[float, float]] = {}
    if encoding is not None:
        features = encoding.feature_names
        for block, places in encoding.groups:
            amount = block.units(per)
            for place, (_, scale) in zip(places, block.scales, strict=True):
                shown = amount if block.term or place == places[0] else 1.0
                known[features[place]] = (scale, shown)
    each = _classes(release)[1:]
    labels = [f"{name}[{label}]" for name in names for label in each] or names
    return labels, [known.get(name, (1.0, 1.0)) for name in names for _ in each or (0,)]


def _columns(release: Published) -> list[str]:
    """Return the names of the columns that have weights."""
    names = list(release.feature_names)
    if (exposure := getattr(release.model, "exposure", None)) is not None:
        del names[exposure]
    return [*distinct_names([*names, *_baselines(release)])]


def _classes(release: Published) -> Sequence[object]:
    """Return the classes' labels, or their numbers; none if weights are for all classes."""
    if release.latents["w"].ndim < 3:
        return ()
    target = release.preprocessing.get("target")
    labels = target.get("classes") if isinstance(target, dict) else None
    return labels or range(getattr(release.model, "classes", 0))
