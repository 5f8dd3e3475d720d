"""What of Pyro's own features PrivateSVI trains as SVI does: one row a feature.

    python benchmarks/pyro_features.py [--steps 20] [--recorded] [--device cuda]

Each row is a small model with a guide, trained by SVI and by PrivateSVI with noise and clip off, at
rate 1 and with the same random numbers for the guide's draws, in float64. "as SVI" means that all
parameters are equal to within 1e-6 after the steps. A row that SVI itself does not train does not
count. With ``--recorded`` private steps are recorded from the first on, and the last column says
which could not be, and why.
"""

from __future__ import annotations

import argparse
import functools
import logging
import platform
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any
from unittest.mock import patch

import pyro
import pyro.distributions as dist
import torch
from printed import command
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO, TraceEnum_ELBO, config_enumerate
from pyro.infer import autoguide as auto
from pyro.infer import reparam as rp
from torch import Tensor, nn
from torch.distributions import transforms as maps
from torch.nn.functional import normalize, softplus

import bdpvi
from bdpvi._ground.host import on
from bdpvi._ground.log import LOGGER
from bdpvi.releases.noisy_sum import NoisySum

RECORDS, STEPS, NEAR = 12, 20, 1e-6
Model = Callable[..., Any]
AS_SVI, OTHER, REFUSED, NOT_BY_SVI = "as SVI", "differs", "refused", "SVI does not train it"


@dataclass(frozen=True)
class Row:
    """A feature, and a program that uses it.

    Attributes:
        kind: the kind of feature.
        name: its name in Pyro.
        model: the model.
        data: its arguments, with a row for each record.
        guide: makes the guide of a model.
        loss: the loss.
    """

    kind: str
    name: str
    model: Model
    data: tuple[Tensor, ...]
    guide: Callable[[Model], Any] = auto.AutoNormal
    loss: Callable[[], Any] = Trace_ELBO


def trained(row: Row, guide: Any, steps: int) -> dict[str, Tensor]:
    """Return the unconstrained parameters after training by SVI, and before it as "0 NAME"."""
    made = SVI(row.model, guide, _optimiser(), row.loss())
    made.loss_and_grads(made.model, made.guide, *row.data)  # makes all parameters
    store = pyro.get_param_store()
    first = {f"0 {name}": value.detach().clone() for name, value in _unconstrained(store)}
    for _, value in _unconstrained(store):
        value.grad = None
    for number in range(steps):
        torch.manual_seed(number)
        made.step(*row.data)
    return {**first, **{name: value.detach().clone() for name, value in _unconstrained(store)}}


def trained_privately(
    row: Row, plain: Any, first: Mapping[str, Tensor], steps: int
) -> dict[str, Tensor]:
    """Return all unconstrained parameters after training by PrivateSVI from the first ones.

    Args:
        row: the row.
        plain: the guide that SVI has trained, for what it drew when it was made.
        first: the first parameters.
        steps: the number of steps.

    Raises:
        MadeOtherwiseError: if one record makes another guide than several.
    """
    off: dict[str, Any] = {"clip": 1e9, "noise_multiplier": 1e-6, "rate": 1.0}
    guide = row.guide(row.model)
    made = bdpvi.PrivateSVI(row.model, guide, _optimiser(), row.loss(), **off)
    found = made._prepare(row.data, {})[0].program.parameters
    if any(value.shape != first[f"0 {name}"].shape for name, value in found.items()):
        raise MadeOtherwiseError("its parameters have other shapes for one record than for several")
    with torch.no_grad():
        for name, value in found.items():
            value.copy_(first[f"0 {name}"])
        if isinstance(guide, nn.Module):
            for own, other in zip(guide.buffers(), plain.buffers(), strict=True):
                own.copy_(other)
    for _ in range(steps):
        made.step(*row.data)
    return {name: value.detach().clone() for name, value in found.items()}


class MadeOtherwiseError(Exception):
    """A guide whose parameters depend on the number of records."""


def _optimiser() -> Any:
    return pyro.optim.Adam({"lr": 0.01})


def _unconstrained(store: Any) -> Iterator[tuple[str, Tensor]]:
    return ((name, store._params[name]) for name in store)


@contextmanager
def without_privacy() -> Iterator[None]:
    """Take noise away, and draw a step with the seed that :func:`trained` gives it."""

    def noisy(_: NoisySum, totals: Any, __: Any) -> Any:
        return totals

    def number(_: NoisySum, step: int) -> int:
        return step

    with (
        patch.object(NoisySum, "noisy", noisy),
        patch.object(NoisySum, "seed_of", number),
        patch("bdpvi.programs.descent.stir", lambda _: None),
    ):
        yield


def compared(row: Row, steps: int, recorded: bool = False) -> tuple[str, str]:
    """Return how PrivateSVI trains a row, and the refusal, the difference or the error."""
    kept = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                pyro.clear_param_store()
                guide = row.guide(row.model)
                plain = trained(row, guide, steps)
            except Exception as error:  # whatever the feature raises
                return NOT_BY_SVI, _line(error)
            try:
                pyro.clear_param_store()
                with without_privacy(), said() as lines, begun(recorded):
                    private = trained_privately(row, guide, plain, steps)
            except MadeOtherwiseError as error:
                return OTHER, str(error)
            except Exception as error:
                return REFUSED, _line(error)
    finally:
        torch.set_default_dtype(kept)
        pyro.clear_param_store()
    far = max((float((plain[n] - value).abs().max()) for n, value in private.items()), default=0.0)
    return (AS_SVI, "; ".join(lines)) if far <= NEAR else (OTHER, f"by {far:.2g}")


@contextmanager
def said() -> Iterator[list[str]]:
    """Yield the lines of the library's log."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    level = LOGGER.level
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(level)


@contextmanager
def begun(recorded: bool) -> Iterator[None]:
    """Record from the first step on, or never."""
    with patch("bdpvi.programs.replays.PAYS", 0 if recorded else 10**9):
        yield


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def _normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=_generator(), dtype=torch.float64)


def _unit(*shape: int) -> Tensor:
    return 0.1 + 0.8 * torch.rand(*shape, generator=_generator(), dtype=torch.float64)


def _counts(most: int, *shape: int) -> Tensor:
    found = torch.randint(most + 1, shape, generator=_generator())
    return found.double()


X, Y = _normal(RECORDS, 2), _normal(RECORDS)
WHOLE = torch.arange(RECORDS) % 3


def observing(law: Callable[[Tensor], Any]) -> Model:
    """Return a model of two weights w whose records have this distribution."""

    def model(y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("records", len(y)):
            pyro.sample("y", law(w), obs=y)

    return model


def latent(law: Callable[[], Any]) -> Model:
    """Return a regression on the sum of a latent with this prior."""

    def model(x: Tensor, y: Tensor) -> None:
        z = pyro.sample("z", law())
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Normal(z.double().sum() * x[:, 0], 1.0), obs=y)

    return model


def targets() -> Iterator[Row]:
    """Yield a row for each distribution of a target."""
    one, row = torch.tensor(1.0, dtype=torch.float64), RECORDS
    eye = torch.eye(2, dtype=torch.float64)
    shares = torch.distributions.Dirichlet(torch.ones(2, dtype=torch.float64))

    def a(w: Tensor) -> Tensor:
        return softplus(w[0]) + 0.1

    def b(w: Tensor) -> Tensor:
        return softplus(w[1]) + 0.1

    laws: Mapping[str, tuple[Callable[[Tensor], Any], Tensor]] = {
        "AffineBeta": (lambda w: dist.AffineBeta(a(w), b(w), 0 * one, 2 * one), 1 + _unit(row)),
        "AsymmetricLaplace": (lambda w: dist.AsymmetricLaplace(w[0], a(w), b(w)), Y),
        "Bernoulli": (lambda w: dist.Bernoulli(logits=w[0]), _counts(1, row)),
        "Beta": (lambda w: dist.Beta(a(w), b(w)), _unit(row)),
        "BetaBinomial": (lambda w: dist.BetaBinomial(a(w), b(w), 5), _counts(5, row)),
        "Binomial": (lambda w: dist.Binomial(5, logits=w[0]), _counts(5, row)),
        "Categorical": (lambda w: dist.Categorical(logits=w), WHOLE % 2),
        "Cauchy": (lambda w: dist.Cauchy(w[0], b(w)), Y),
        "Chi2": (lambda w: dist.Chi2(a(w)), _unit(row)),
        "ContinuousBernoulli": (lambda w: dist.ContinuousBernoulli(logits=w[0]), _unit(row)),
        "Dirichlet": (lambda w: dist.Dirichlet(softplus(w) + 0.1), shares.sample((row,))),
        "DirichletMultinomial": (
            lambda w: dist.DirichletMultinomial(softplus(w) + 0.1, 4),
            torch.tensor([[1.0, 3.0]]).double().expand(row, 2),
        ),
        "Exponential": (lambda w: dist.Exponential(a(w)), _unit(row)),
        "ExtendedBetaBinomial": (
            lambda w: dist.ExtendedBetaBinomial(a(w), b(w), 5),
            _counts(5, row),
        ),
        "ExtendedBinomial": (lambda w: dist.ExtendedBinomial(5, logits=w[0]), _counts(5, row)),
        "FisherSnedecor": (lambda w: dist.FisherSnedecor(a(w), b(w)), _unit(row)),
        "FoldedDistribution": (
            lambda w: dist.FoldedDistribution(dist.Normal(w[0], b(w))),
            _unit(row),
        ),
        "Gamma": (lambda w: dist.Gamma(a(w), b(w)), _unit(row)),
        "GammaPoisson": (lambda w: dist.GammaPoisson(a(w), b(w)), _counts(5, row)),
        "GeneralizedPareto": (lambda w: dist.GeneralizedPareto(0 * one, a(w), b(w)), _unit(row)),
        "Geometric": (lambda w: dist.Geometric(logits=w[0]), _counts(5, row)),
        "Gumbel": (lambda w: dist.Gumbel(w[0], b(w)), Y),
        "HalfCauchy": (lambda w: dist.HalfCauchy(a(w)), _unit(row)),
        "HalfNormal": (lambda w: dist.HalfNormal(a(w)), _unit(row)),
        "InverseGamma": (lambda w: dist.InverseGamma(a(w), b(w)), _unit(row)),
        "Kumaraswamy": (lambda w: dist.Kumaraswamy(a(w), b(w)), _unit(row)),
        "LKJCholesky": (
            lambda w: dist.LKJCholesky(2, a(w)),
            torch.distributions.LKJCholesky(2, one).sample((row,)),
        ),
        "Laplace": (lambda w: dist.Laplace(w[0], b(w)), Y),
        "LogNormal": (lambda w: dist.LogNormal(w[0], b(w)), _unit(row)),
        "Logistic": (lambda w: dist.Logistic(w[0], b(w)), Y),
        "LowRankMultivariateNormal": (
            lambda w: dist.LowRankMultivariateNormal(w, a(w).expand(2, 1), b(w).expand(2)),
            X,
        ),
        "MaskedMixture": (
            lambda w: dist.MaskedMixture(
                torch.tensor(True), dist.Normal(w[0], one), dist.Normal(w[0], b(w))
            ),
            Y,
        ),
        "MixtureOfDiagNormals": (
            lambda w: dist.MixtureOfDiagNormals(
                torch.stack([w, -w]), b(w).expand(2, 2), torch.zeros(2)
            ),
            X,
        ),
        "MixtureOfDiagNormalsSharedCovariance": (
            lambda w: dist.MixtureOfDiagNormalsSharedCovariance(
                torch.stack([w, -w]), b(w).expand(2), torch.zeros(2)
            ),
            X,
        ),
        "MixtureSameFamily": (
            lambda w: dist.MixtureSameFamily(dist.Categorical(logits=w), dist.Normal(w, 1.0)),
            Y,
        ),
        "Multinomial": (
            lambda w: dist.Multinomial(4, logits=w),
            torch.tensor([[1.0, 3.0]]).double().expand(row, 2),
        ),
        "MultivariateNormal": (lambda w: dist.MultivariateNormal(w, eye * b(w)), X),
        "MultivariateStudentT": (
            lambda w: dist.MultivariateStudentT(a(w) + 2, w, eye * b(w)),
            X,
        ),
        "NegativeBinomial": (
            lambda w: dist.NegativeBinomial(a(w), logits=w[1]),
            _counts(5, row),
        ),
        "Normal": (lambda w: dist.Normal(w[0], b(w)), Y),
        "OneHotCategorical": (lambda w: dist.OneHotCategorical(logits=w), eye[WHOLE % 2]),
        "OrderedLogistic": (
            lambda w: dist.OrderedLogistic(w[0], torch.stack([0 * one, b(w)])),
            WHOLE,
        ),
        "Pareto": (lambda w: dist.Pareto(0.05 * one, a(w)), _unit(row)),
        "Poisson": (lambda w: dist.Poisson(a(w)), _counts(5, row)),
        "ProjectedNormal": (lambda w: dist.ProjectedNormal(w), normalize(X, dim=-1)),
        "RelaxedBernoulli": (
            lambda w: dist.RelaxedBernoulli(0.5 * one, logits=w[0]),
            _unit(row),
        ),
        "RelaxedOneHotCategorical": (
            lambda w: dist.RelaxedOneHotCategorical(0.5 * one, logits=w),
            shares.sample((row,)),
        ),
        "SineBivariateVonMises": (
            lambda w: dist.SineBivariateVonMises(w[0], w[1], one, one, 0.5 * one),
            _unit(row, 2),
        ),
        "SineSkewed": (
            lambda w: dist.SineSkewed(
                dist.VonMises(w, torch.ones(2)).to_event(1), torch.tensor([0.1, 0.1])
            ),
            _unit(row, 2),
        ),
        "SkewLogistic": (lambda w: dist.SkewLogistic(w[0], b(w)), Y),
        "SoftLaplace": (lambda w: dist.SoftLaplace(w[0], b(w)), Y),
        "StableWithLogProb": (
            lambda w: dist.StableWithLogProb(1.5 * one, 0 * one, b(w), w[0]),
            Y,
        ),
        "StudentT": (lambda w: dist.StudentT(a(w) + 1, w[0], b(w)), Y),
        "TransformedDistribution": (
            lambda w: dist.TransformedDistribution(
                dist.Normal(w[0], b(w)), [maps.SigmoidTransform()]
            ),
            _unit(row),
        ),
        "Uniform": (lambda w: dist.Uniform(-a(w) - 5, b(w) + 5), Y),
        "VonMises": (lambda w: dist.VonMises(w[0], b(w)), _unit(row)),
        "VonMises3D": (
            lambda w: dist.VonMises3D(concentration=torch.cat([w, w[:1]])),
            normalize(_normal(row, 3), dim=-1),
        ),
        "Weibull": (lambda w: dist.Weibull(a(w), b(w)), _unit(row)),
        "Wishart": (
            lambda w: dist.Wishart(a(w) + 2, eye * b(w)),
            (1 + _unit(row))[:, None, None] * eye,
        ),
        "ZeroInflatedDistribution": (
            lambda w: dist.ZeroInflatedDistribution(dist.Poisson(a(w)), gate_logits=w[1]),
            _counts(5, row),
        ),
        "ZeroInflatedNegativeBinomial": (
            lambda w: dist.ZeroInflatedNegativeBinomial(a(w), logits=w[1], gate=0.2 * one),
            _counts(5, row),
        ),
        "ZeroInflatedPoisson": (
            lambda w: dist.ZeroInflatedPoisson(a(w), gate=torch.sigmoid(w[1])),
            _counts(5, row),
        ),
    }
    for name, (law, y) in laws.items():
        yield Row("target", name, observing(law), (y,))


def latents() -> Iterator[Row]:
    """Yield a row for each continuous prior of a global latent."""
    one, two = torch.tensor(1.0, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    eye = torch.eye(2, dtype=torch.float64)
    laws: Mapping[str, Callable[[], Any]] = {
        "Beta": lambda: dist.Beta(2 * one, 2 * one),
        "Cauchy": lambda: dist.Cauchy(0 * one, one),
        "Chi2": lambda: dist.Chi2(3 * one),
        "Dirichlet": lambda: dist.Dirichlet(2 * two),
        "Exponential": lambda: dist.Exponential(one),
        "FoldedDistribution": lambda: dist.FoldedDistribution(dist.Normal(0 * one, one)),
        "Gamma": lambda: dist.Gamma(2 * one, one),
        "Gumbel": lambda: dist.Gumbel(0 * one, one),
        "HalfCauchy": lambda: dist.HalfCauchy(one),
        "HalfNormal": lambda: dist.HalfNormal(one),
        "ImproperUniform": lambda: dist.ImproperUniform(dist.constraints.real, (), ()),
        "InverseGamma": lambda: dist.InverseGamma(3 * one, one),
        "Kumaraswamy": lambda: dist.Kumaraswamy(2 * one, 2 * one),
        "LKJCholesky": lambda: dist.LKJCholesky(3, one),
        "Laplace": lambda: dist.Laplace(0 * one, one),
        "LogNormal": lambda: dist.LogNormal(0 * one, one),
        "Logistic": lambda: dist.Logistic(0 * one, one),
        "LowRankMultivariateNormal": lambda: dist.LowRankMultivariateNormal(
            0 * two, torch.ones(2, 1), two
        ),
        "MultivariateNormal": lambda: dist.MultivariateNormal(0 * two, eye),
        "MultivariateStudentT": lambda: dist.MultivariateStudentT(3 * one, 0 * two, eye),
        "Normal": lambda: dist.Normal(0 * one, one),
        "Pareto": lambda: dist.Pareto(one, 3 * one),
        "SoftLaplace": lambda: dist.SoftLaplace(0 * one, one),
        "StudentT": lambda: dist.StudentT(3 * one),
        "TransformedDistribution": lambda: dist.TransformedDistribution(
            dist.Normal(0 * one, one), [maps.ExpTransform()]
        ),
        "Uniform": lambda: dist.Uniform(-one, one),
        "Weibull": lambda: dist.Weibull(one, 2 * one),
        "Wishart": lambda: dist.Wishart(3 * one, eye),
    }
    for name, law in laws.items():
        yield Row("latent", name, latent(law), (X, Y))


def regression(x: Tensor, y: Tensor) -> None:
    """A regression with a scale, and with a value that follows from the weights."""
    w = pyro.sample("w", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
    scale = pyro.sample("scale", dist.HalfNormal(x.new_tensor(1.0)))
    pyro.deterministic("difference", w[0] - w[1])
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(x @ w, scale + 0.1), obs=y)


def groups(x: Tensor, y: Tensor | None = None) -> None:
    """Effects of groups around a mean."""
    mean = pyro.sample("mean", dist.Normal(x.new_tensor(0.0), 1.0))
    spread = pyro.sample("spread", dist.HalfNormal(x.new_tensor(1.0)))
    with pyro.plate("groups", 2):
        w = pyro.sample("w", dist.Normal(mean, spread))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def beside_conjugate(x: Tensor, y: Tensor) -> None:
    """A share that the model may draw itself, beside weights of the guide's."""
    z = pyro.sample("z", dist.Beta(x.new_tensor(1.0), x.new_tensor(1.0)))
    w = pyro.sample("w", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
    with pyro.plate("records", len(x)):
        pyro.sample("y", dist.Normal(z + x @ w, 1.0), obs=y)


def in_parts(model: Model) -> Any:
    """Return a guide of two parts."""
    guide = auto.AutoGuideList(model)
    guide.append(auto.AutoNormal(poutine.block(model, hide=["w"])))
    guide.append(auto.AutoMultivariateNormal(poutine.block(model, expose=["w"])))
    return guide


def own_part(model: Model) -> Any:
    """Return a guide of which one part is written by hand."""

    def scale(*_: Tensor) -> None:
        loc = pyro.param("loc", torch.zeros(()))
        pyro.sample("scale", dist.LogNormal(loc, torch.ones(()) * 0.1))

    guide = auto.AutoGuideList(model)
    guide.append(auto.AutoNormal(poutine.block(model, hide=["scale"])))
    guide.append(scale)
    return guide


def guides() -> Iterator[Row]:
    """Yield a row for each automatic guide."""
    for name in (
        "AutoDelta", "AutoDiagonalNormal", "AutoHierarchicalNormalMessenger", "AutoIAFNormal",
        "AutoLaplaceApproximation", "AutoMultivariateNormal", "AutoNormal", "AutoNormalMessenger",
        "AutoRegressiveMessenger",
    ):  # fmt: skip
        yield Row("guide", name, regression, (X, Y), getattr(auto, name))
    rank = functools.partial(auto.AutoLowRankMultivariateNormal, rank=1)
    yield Row("guide", "AutoLowRankMultivariateNormal", regression, (X, Y), rank)
    for backend in ("dense", "funsor"):
        made = functools.partial(auto.AutoGaussian, backend=backend)
        yield Row("guide", f"AutoGaussian, {backend}", regression, (X, Y), made)
    structured = functools.partial(
        auto.AutoStructured, conditionals={"w": "mvn", "scale": "normal"}, dependencies={}
    )
    yield Row("guide", "AutoStructured", regression, (X, Y), structured)
    yield Row("guide", "AutoGuideList", groups, (X, Y), in_parts)
    yield Row("guide", "AutoCallable", regression, (X, Y), own_part)


class Network(nn.Module):
    """A regression on a hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(2, 3, dtype=torch.float64)

    def forward(self, x: Tensor, y: Tensor) -> None:
        """Run the model."""
        pyro.module("network", self)
        w = pyro.sample("w", dist.Normal(x.new_zeros(3), 1.0).to_event(1))
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Normal(torch.tanh(self.hidden(x)) @ w, 1.0), obs=y)


def sites() -> Iterator[Row]:
    """Yield a row for each kind of site and plate, and each type of records."""

    def with_parameter(x: Tensor, y: Tensor) -> None:
        scale = pyro.param("scale", torch.ones(()), constraint=dist.constraints.positive)
        w = pyro.sample("w", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Normal(x @ w, scale), obs=y)

    def with_factor(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
        pyro.factor("small", -w.square().sum())
        with pyro.plate("records", len(x)):
            pyro.factor("also", -0.1 * (y - x @ w).abs())
            pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    def derived(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
        with pyro.plate("records", len(x)):
            mean = pyro.deterministic("mean", x @ w)
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    def subsampled(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
        with pyro.plate("records", len(x), subsample_size=len(x)):
            now = pyro.subsample(x, event_dim=1)
            pyro.sample("y", dist.Normal(now @ w, 1.0), obs=pyro.subsample(y, event_dim=0))

    def nested(x: Tensor, y: Tensor) -> None:
        with pyro.plate("rows", 2, dim=-2), pyro.plate("columns", 3, dim=-1):
            w = pyro.sample("w", dist.Normal(x.new_tensor(0.0), 1.0))
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Normal(x @ w.sum(1), 1.0), obs=y)

    def sequential(x: Tensor, y: Tensor) -> None:
        w = [pyro.sample(f"w{i}", dist.Normal(x.new_tensor(0.0), 1.0)) for i in range(2)]
        for i in pyro.plate("terms", 2):
            pyro.sample(f"v{i}", dist.Normal(w[i], 1.0))
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Normal(x @ torch.stack(w), 1.0), obs=y)

    def two_targets(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)
            pyro.sample("positive", dist.Bernoulli(logits=x @ w), obs=(y > 0).double())

    def of_vectors(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
        with pyro.plate("entries", 2, dim=-2), pyro.plate("records", len(x), dim=-1):
            pyro.sample("y", dist.Normal(w[:, None] * y, 1.0), obs=x.T)

    def with_dummies(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Normal(w[x], 1.0), obs=y)

    def with_flags(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Normal(torch.where(x, w[0], w[1]), 1.0), obs=y)

    def by_name(x: Tensor, group: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("records", len(x)):
            pyro.sample("y", dist.Normal(x[:, 0] + w[group], 1.0), obs=y)

    @config_enumerate  # type: ignore[untyped-decorator]
    def mixture(y: Tensor) -> None:
        locs = pyro.sample("locs", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("records", len(y)):
            z = pyro.sample("z", dist.Categorical(torch.tensor([0.4, 0.6])))
            pyro.sample("y", dist.Normal(locs[z], 1.0), obs=y)

    def hidden(model: Model) -> Any:
        return auto.AutoNormal(poutine.block(model, hide=["z"]))

    network = Network()
    enum = functools.partial(TraceEnum_ELBO, max_plate_nesting=1)
    yield Row("site", "sample", groups, (X, Y))
    yield Row("site", "param", with_parameter, (X, Y))
    yield Row("site", "module", network, (X, Y))
    yield Row("site", "deterministic", regression, (X, Y))
    yield Row("site", "deterministic of a record", derived, (X, Y))
    yield Row("site", "factor", with_factor, (X, Y))
    yield Row("site", "subsample", subsampled, (X, Y))
    yield Row("site", "nested plates", nested, (X, Y))
    yield Row("site", "plate in sequence", sequential, (X, Y))
    yield Row("site", "two targets", two_targets, (X, Y))
    yield Row("site", "plate inside that of records", of_vectors, (X, Y))
    yield Row("site", "enumerated latent", mixture, (Y,), hidden, enum)
    yield Row("records", "float32", regression, (X.float(), Y.float()))
    yield Row("records", "int64", with_dummies, (WHOLE, Y))
    yield Row("records", "bool", with_flags, (Y > 0, Y))
    yield Row("records", "three arguments", by_name, (X, WHOLE, Y))


def handlers() -> Iterator[Row]:
    """Yield a row for each effect handler around a model, and each reparametrisation."""
    zero = torch.zeros((), dtype=torch.float64)
    one = torch.ones((), dtype=torch.float64)
    for name, model in {
        "block": poutine.block(regression, hide=["difference"]),
        "condition": poutine.condition(regression, data={"scale": one}),
        "do": poutine.do(regression, data={"scale": one}),
        "infer_config": poutine.infer_config(regression, config_fn=lambda _: {}),
        "mask": poutine.mask(regression, mask=True),
        "scale": poutine.scale(regression, scale=0.5),
        "seed": poutine.seed(regression, 0),
        "substitute": poutine.substitute(regression, data={"unused": one}),
    }.items():
        yield Row("handler", name, model, (X, Y))

    def reparam(name: str, law: Callable[[], Any], by: Any) -> Row:
        return Row("reparam", name, poutine.reparam(latent(law), {"z": by}), (X, Y))

    two, stable = torch.ones(2, dtype=torch.float64), dist.Stable
    log_normal = functools.partial(
        dist.TransformedDistribution, dist.Normal(zero, one), [maps.ExpTransform()]
    )
    yield Row("reparam", "AutoReparam", poutine.reparam(groups, rp.AutoReparam()), (X, Y))
    yield Row("reparam", "MinimalReparam", poutine.reparam(groups, rp.MinimalReparam()), (X, Y))
    by = rp.ConjugateReparam(lambda *_: dist.Beta(2 * one, one))
    beside = poutine.reparam(beside_conjugate, {"z": by})
    yield Row("reparam", "ConjugateReparam", beside, (X, Y))
    yield reparam(
        "DiscreteCosineReparam",
        lambda: dist.Normal(torch.zeros(4), 1.0).to_event(1),
        rp.DiscreteCosineReparam(),
    )
    yield reparam(
        "HaarReparam", lambda: dist.Normal(torch.zeros(4), 1.0).to_event(1), rp.HaarReparam()
    )
    yield reparam(
        "GumbelSoftmaxReparam",
        lambda: dist.RelaxedOneHotCategorical(one, 2 * two),
        rp.GumbelSoftmaxReparam(),
    )
    yield reparam(
        "LatentStableReparam",
        lambda: stable(1.5 * one, zero, one, zero),
        rp.LatentStableReparam(),
    )
    yield reparam("LocScaleReparam", lambda: dist.Normal(zero, one), rp.LocScaleReparam(0.0))
    yield reparam("LocScaleReparam, learned", lambda: dist.Normal(zero, one), rp.LocScaleReparam())
    yield reparam(
        "ProjectedNormalReparam", lambda: dist.ProjectedNormal(two), rp.ProjectedNormalReparam()
    )
    yield reparam(
        "SplitReparam",
        lambda: dist.Normal(torch.zeros(4), 1.0).to_event(1),
        rp.SplitReparam([2, 2], -1),
    )
    yield reparam(
        "StudentTReparam", lambda: dist.StudentT(3 * one, zero, one), rp.StudentTReparam()
    )
    yield reparam(
        "SymmetricStableReparam",
        lambda: stable(1.5 * one, zero, one, zero),
        rp.SymmetricStableReparam(),
    )
    yield reparam("TransformReparam", log_normal, rp.TransformReparam())
    yield reparam(
        "UnitJacobianReparam",
        lambda: dist.Normal(torch.zeros(4), 1.0).to_event(1),
        rp.UnitJacobianReparam(maps.AffineTransform(0.0, 1.0)),
    )


def rows() -> list[Row]:
    """Return all rows."""
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        return [row for kind in (sites, targets, latents, guides, handlers) for row in kind()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--recorded", action="store_true", help="record private steps")
    parser.add_argument("--device", default="cpu", help="torch's default device for all of it")
    given = parser.parse_args()
    print(f"command: {command()}\nmachine: {platform.platform()}")
    print("versions:", *(f"{n} {version(n)}" for n in ("torch", "pyro-ppl")))
    print("\n| kind | feature | PrivateSVI | why |\n| --- | --- | --- | --- |")
    found, recorded = [], 0
    with on(torch.device(given.device)):
        for row in rows():
            row = replace(row, data=tuple(one.to(given.device) for one in row.data))
            how, why = compared(row, given.steps, given.recorded)
            found.append(how)
            recorded += how == AS_SVI and not why
            print(f"| {row.kind} | {row.name} | {how} | {why.replace('|', ',')} |", flush=True)
    able = [how for how in found if how != NOT_BY_SVI]
    print(
        f"\n{len(found)} features; SVI trains {len(able)}; PrivateSVI trains "
        f"{able.count(AS_SVI)} of them as SVI does ({able.count(AS_SVI) / len(able):.1%}), "
        f"refuses {able.count(REFUSED)}, and {able.count(OTHER)} differ"
    )
    if given.recorded:
        print(f"{recorded} of those that are trained are recorded")


if __name__ == "__main__":
    main()
