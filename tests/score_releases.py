"""Releases of every likelihood, with draws at random: what is tested is how they predict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import bdpvi
from bdpvi import Release
from bdpvi.datasets.columns import Column, Hashed, Numeric, OneHot, Ordinal
from bdpvi.datasets.encoding import Encoding
from bdpvi.datasets.terms import Log, Plain, Power, Spline, Term
from bdpvi.datasets.types import ColumnType
from bdpvi.models.kinds import shapes
from bdpvi.models.mixed import MixedRegression
from bdpvi.releases.released import flat

GOLDEN = Path(__file__).parent / "golden" / "release.json"
NAMES = ("low", "mid", "high")
SEXES = ("F", "M")
MODELS: dict[str, Any] = {
    "logistic": bdpvi.BayesianLogisticRegression(one_hot=((2, 3, 4, 5),)),
    "unclipped": bdpvi.BayesianLogisticRegression.unweighted(intercept=True),
    "short": bdpvi.BayesianLogisticRegression.unweighted(limit=0.4, one_hot=((2, 3, 4, 5),)),
    "correlated": bdpvi.BayesianLogisticRegression.unweighted(
        intercept=True, limit=2.0, correlation=0.3, groups=((0, 2, 3), (1, 4))
    ),
    "bounded score": bdpvi.BayesianLogisticRegression.unweighted(clip=1.0, limit=3.0),
    "linear": bdpvi.BayesianLinearRegression.of_bounds(-2, 5, limit=2.0),
    "bounded linear": bdpvi.BayesianLinearRegression.bounded(largest=2.0, levels=((2, 3, 4, 5),)),
    "poisson": bdpvi.BayesianPoissonRegression(largest=9),
    "bounded poisson": bdpvi.BayesianPoissonRegression.bounded(largest=9),
    "poisson of years": bdpvi.BayesianPoissonRegression(largest=9, exposure=0, limit=2.0),
    "negative binomial": bdpvi.BayesianNegativeBinomialRegression(largest=9, limit=1.0),
    "bounded negative binomial": bdpvi.BayesianNegativeBinomialRegression.bounded(
        largest=9, dispersion=0.5
    ),
    "multinomial": bdpvi.BayesianMultinomialRegression(classes=3, limit=2.0),
    "bounded multinomial": bdpvi.BayesianMultinomialRegression.bounded(classes=3),
    "ordinal": bdpvi.BayesianOrdinalRegression(classes=3, limit=2.0),
    "mixed linear": MixedRegression(
        of=bdpvi.BayesianLinearRegression.of_bounds(-2, 5, limit=2.0), groups=(2, 3)
    ),
    "mixed logistic": MixedRegression(
        of=bdpvi.BayesianLogisticRegression.unweighted(intercept=True, limit=2.0), groups=(2, 3)
    ),
    "survival": bdpvi.BayesianSurvivalRegression(cuts=(0.5, 2, 50), limit=2.0),
}


def encoding(columns: tuple[Column, ...], unknown: str = "other") -> Encoding:
    """Return an encoding whose origin the golden release's receipt names."""
    given = bdpvi.load_release(GOLDEN).encoding
    assert given is not None
    return replace(given, columns=columns, unknown=unknown)


def columns(unknown: str = "other") -> tuple[Column, ...]:
    """Return numbers and levels, declared and guessed; of "other" ones with 10 features."""
    sex = ColumnType(kind="category", levels=SEXES, spellings={"F": ("female",)})
    paid = ColumnType(kind="number", thousands=",", symbol="$", missing={"9999": "not asked"})
    last: Column = OneHot("smokes", ("False", "True"))
    if unknown != "other":
        last = Ordinal("smokes", mean=0.3, sd=0.5, categories=("False", "True"))
    return (
        Numeric("years", 0.0, 1.0),
        OneHot("sex", SEXES, type=sex),
        Numeric("paid", 1000.0, 500.0, type=paid, missing=True),
        last,
    )


def release_of(model: Any, encoding: Encoding, draws: int = 5, size: float = 0.7) -> Release:
    """Return a release of a model with draws of N(0, size²)."""
    generator = torch.Generator().manual_seed(7)
    features = len(encoding.feature_names)
    latents = {
        name: size * torch.randn((draws, *shape), generator=generator, dtype=torch.float64)
        for name, shape in shapes(model, features).items()
    }
    target: dict[str, Any] = {"column": "sick"}
    if hasattr(model, "classes"):
        target["classes"] = list(NAMES)
    elif model.target == "label":
        target |= {"positive": "yes", "negative": "not yes"}
    return replace(
        bdpvi.load_release(GOLDEN),
        samples=flat(latents), latents=latents, model=model, estimate=None, guide=None,
        feature_names=encoding.feature_names,
        preprocessing={"encoding": encoding.to_dict(), "target": target},
    )  # fmt: skip


def saved(path: Path, model: Any, unknown: str = "other", **more: Any) -> Path:
    """Write a release of a model and the usual columns."""
    bdpvi.save_release(release_of(model, encoding(columns(unknown), unknown), **more), path)
    return path


TERMS: tuple[Term, ...] = (
    (Plain("sex"),),
    (Plain("years"),),
    (Plain("years"), Plain("sex", reference="M")),
    (Power("years", 3),),
    (Spline("paid", 5), Plain("smokes", every=True)),
    (Plain("sex"), Plain("smokes"), Power("paid", 2), Plain("years")),
    (Spline("years", 4, 2, (-1.0, 0.25)),),
    (Log("paid"),),
)
"""Terms of the usual columns, in which ``paid`` is no term by itself: it has a sign of a blank."""


def with_terms(unknown: str = "other") -> Encoding:
    """Return the encoding of a formula."""
    made = [one for one in columns("other") if unknown == "other" or one.name != "smokes"]
    if unknown != "other":
        made.append(OneHot("smokes", ("False", "True"), missing=True))
    return replace(encoding(tuple(made), unknown), terms=TERMS)


HASHED = Hashed("job", buckets=4)
