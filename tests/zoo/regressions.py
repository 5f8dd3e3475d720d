"""Regressions of the zoo: one target, and what it follows from."""

from __future__ import annotations

from functools import partial

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import TraceMeanField_ELBO
from pyro.infer.autoguide import (
    AutoDelta,
    AutoDiagonalNormal,
    AutoIAFNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
)
from pyro.infer.reparam import LocScaleReparam
from pyro.nn import PyroModule, PyroSample
from torch import Tensor, nn
from torch.nn.functional import softplus

from .entry import RECORDS, Program, Refused, counts, normal, uniform, whole

N = RECORDS


class Linear(PyroModule):  # type: ignore[misc]
    """Pyro's first tutorial: a layer whose weights have priors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = PyroModule[nn.Linear](3, 1)
        self.linear.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, 3]).to_event(2))
        self.linear.bias = PyroSample(dist.Normal(0.0, 10.0).expand([1]).to_event(1))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        sigma = pyro.sample("sigma", dist.Uniform(0.0, 10.0))
        mean: Tensor = self.linear(x).squeeze(-1)
        with pyro.plate("data", x.shape[0]):
            pyro.sample("obs", dist.Normal(mean, sigma), obs=y)
        return mean


class Network(PyroModule):  # type: ignore[misc]
    """A neural network whose weights have priors."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = PyroModule[nn.Linear](3, 4)
        self.out = PyroModule[nn.Linear](4, 1)
        for layer in (self.hidden, self.out):
            for name, value in list(layer.named_parameters()):
                prior = dist.Normal(0.0, 1.0).expand(value.shape).to_event(value.dim())
                setattr(layer, name, PyroSample(prior))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        mean: Tensor = self.out(torch.tanh(self.hidden(x))).squeeze(-1)
        with pyro.plate("data", x.size(0)):
            pyro.sample("obs", dist.Normal(mean, 0.5), obs=y)
        return mean


def logistic(x: Tensor, y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(3), torch.ones(3)).to_event(1))
    b = pyro.sample("b", dist.Normal(0.0, 10.0))
    with pyro.plate("data", x.shape[0]) as index:
        pyro.sample("y", dist.Bernoulli(logits=x[index] @ w + b), obs=y[index])


def horseshoe(x: Tensor, y: Tensor) -> None:
    tau = pyro.sample("tau", dist.HalfCauchy(torch.tensor(1.0)))
    with pyro.plate("features", x.shape[-1]):
        local = pyro.sample("lambda", dist.HalfCauchy(torch.tensor(1.0)))
        beta = pyro.sample("beta", dist.Normal(0.0, tau * local))
    sigma = pyro.sample("sigma", dist.HalfNormal(torch.tensor(1.0)))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)


def robust(x: Tensor, y: Tensor) -> None:
    nu = pyro.sample("nu", dist.Gamma(torch.tensor(2.0), torch.tensor(0.1)))
    w = pyro.sample("w", dist.Laplace(torch.zeros(3), 1.0).to_event(1))
    sigma = pyro.sample("sigma", dist.HalfCauchy(torch.tensor(2.5)))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.StudentT(nu + 1, x @ w, sigma), obs=y)


def poisson(x: Tensor, exposure: Tensor, y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    rate = torch.exp(x @ w) * exposure
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Poisson(rate), obs=y)


def negative_binomial(x: Tensor, y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    r = pyro.sample("r", dist.LogNormal(torch.tensor(0.0), torch.tensor(1.0)))
    with pyro.plate("data", len(y)):
        mean = (x @ w).exp()
        pyro.sample("y", dist.NegativeBinomial(r, logits=(mean / r).log()), obs=y)


def hurdle(x: Tensor, y: Tensor) -> None:
    gate = pyro.sample("gate", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    rate, some = (x @ w).exp(), y > 0
    with pyro.plate("data", len(x)):
        pyro.sample("some", dist.Bernoulli(logits=x @ gate), obs=some.double())
        with poutine.mask(mask=some):
            pyro.sample("y", dist.Poisson(rate), obs=y)
            pyro.factor("truncated", -torch.log(-torch.expm1(-rate)))


def zero_inflated(x: Tensor, y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    gate = pyro.sample("gate", dist.Beta(torch.tensor(1.0), torch.tensor(1.0)))
    with pyro.plate("data", len(x)):
        law = dist.ZeroInflatedPoisson((x @ w).exp(), gate=gate)
        pyro.sample("y", law, obs=y)


def ordinal(x: Tensor, y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    base = dist.Normal(torch.tensor([-1.0, 0.0, 1.0]), 1.0).to_event(1)
    ordered = dist.TransformedDistribution(base, [dist.transforms.OrderedTransform()])
    cuts = pyro.sample("cuts", ordered)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.OrderedLogistic(x @ w, cuts), obs=y)


def beta_binomial(trials: Tensor, y: Tensor) -> None:
    a = pyro.sample("a", dist.Gamma(torch.tensor(2.0), torch.tensor(1.0)))
    b = pyro.sample("b", dist.Gamma(torch.tensor(2.0), torch.tensor(1.0)))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.BetaBinomial(a, b, trials), obs=y)


def dirichlet_multinomial(y: Tensor) -> None:
    alpha = pyro.sample("alpha", dist.Gamma(torch.ones(4) * 2, torch.ones(4)).to_event(1))
    with pyro.plate("documents", y.shape[0]):
        pyro.sample("y", dist.DirichletMultinomial(alpha, y.sum(-1)), obs=y)


def weibull(x: Tensor, time: Tensor, event: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    k = pyro.sample("k", dist.LogNormal(torch.tensor(0.0), torch.tensor(0.5)))
    scale = torch.exp(x @ w)
    law = dist.Weibull(scale, k)
    with pyro.plate("data", len(time)):
        with poutine.mask(mask=event):
            pyro.sample("seen", law, obs=time)
        with poutine.mask(mask=~event):
            pyro.factor("censored", -((time / scale) ** k))


def survival(x: Tensor, time: Tensor, event: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    log_hazard = x @ w
    with pyro.plate("data", len(time)):
        pyro.factor("y", event * log_hazard - time * log_hazard.exp())


def missing_targets(x: Tensor, y: Tensor, seen: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y, obs_mask=seen)


def missing_masked(x: Tensor, y: Tensor, seen: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0).mask(seen), obs=y)


def wards(x: Tensor, ward: Tensor, y: Tensor) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    tau = pyro.sample("tau", dist.HalfNormal(torch.tensor(1.0)))
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with pyro.plate("wards", 4):
        effect = pyro.sample("effect", dist.Normal(mu, tau))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Bernoulli(logits=effect[ward] + x @ w), obs=y)


def spline(basis: Tensor, y: Tensor) -> None:
    smooth = pyro.sample("smooth", dist.HalfNormal(torch.tensor(1.0)))
    first = pyro.sample("first", dist.Normal(0.0, 1.0))
    steps = pyro.sample("steps", dist.Normal(0.0, 1.0).expand([basis.shape[-1] - 1]).to_event(1))
    knots = torch.cat([first.unsqueeze(0), first + smooth * steps.cumsum(0)])
    with pyro.plate("data", basis.shape[0]):
        pyro.sample("y", dist.Normal(basis @ knots, 0.5), obs=y)


def media_mix(spend: Tensor, y: Tensor) -> None:
    """Weeks with the spend of four weeks before, which carries over and saturates."""
    decay = pyro.sample("decay", dist.Beta(torch.ones(2) * 3, torch.ones(2) * 3).to_event(1))
    half = pyro.sample("middle", dist.Gamma(torch.ones(2) * 3, torch.ones(2) * 3).to_event(1))
    beta = pyro.sample("beta", dist.HalfNormal(torch.ones(2)).to_event(1))
    base = pyro.sample("base", dist.Normal(0.0, 1.0))
    carried = (spend * decay ** torch.arange(4.0).unsqueeze(-1)).sum(-2)
    mean = base + (beta * carried / (carried + half)).sum(-1)
    with pyro.plate("weeks", len(y)):
        pyro.sample("sales", dist.Normal(mean, 0.5), obs=y)


def quantile(x: Tensor, y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.AsymmetricLaplace(x @ w, 1.0, 3.0), obs=y)


def tobit(x: Tensor, y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    law = dist.Normal(x @ w, 1.0)
    with pyro.plate("data", len(x)):
        below = law.cdf(torch.zeros(())).clamp(min=1e-12).log()
        pyro.factor("y", torch.where(y > 0, law.log_prob(y), below))


def players(one: Tensor, other: Tensor, won: Tensor) -> None:
    """Bradley and Terry's matches."""
    spread = pyro.sample("spread", dist.HalfNormal(torch.tensor(1.0)))
    with pyro.plate("players", 5):
        skill = pyro.sample("skill", dist.Normal(0.0, spread))
    with pyro.plate("matches", won.size(0)):
        pyro.sample("won", dist.Bernoulli(logits=skill[one] - skill[other]), obs=won)


def random_features(x: Tensor, y: Tensor) -> None:
    """A Gaussian process by random Fourier features."""
    scale = pyro.sample("scale", dist.LogNormal(torch.tensor(0.0), torch.tensor(0.5)))
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([6]).to_event(1))
    waves = torch.linspace(-2.0, 2.0, 9).reshape(3, 3)
    angles = x @ waves / scale
    features = torch.cat([angles.cos(), angles.sin()], -1) / 3**0.5
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(features @ w, 0.3), obs=y)


def inducing_points(x: Tensor, y: Tensor) -> None:
    """A Gaussian process at five points, and its conditional variance at the records."""
    at = torch.linspace(-2.0, 2.0, 5).unsqueeze(-1)
    length = pyro.sample("length", dist.LogNormal(torch.tensor(0.0), torch.tensor(0.3)))

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return torch.exp(-0.5 * ((a - b.transpose(-1, -2)) / length) ** 2)

    root = torch.linalg.cholesky(kernel(at, at) + 1e-3 * torch.eye(5))
    u = pyro.sample("u", dist.Normal(torch.zeros(5), 1.0).to_event(1))
    share = torch.linalg.solve_triangular(root, kernel(at, x[:, :1]), upper=False)
    variance = (1 - share.square().sum(0)).clamp(min=0) + 0.1
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(u @ share, variance.sqrt()), obs=y)


def repeated_measures(times: Tensor, y: Tensor) -> None:
    """A record is a person: three measurements, whose intercept is integrated out."""
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    tau = pyro.sample("tau", dist.HalfNormal(torch.tensor(1.0)))
    sigma = pyro.sample("sigma", dist.HalfNormal(torch.tensor(1.0)))
    mean = w[0] + w[1] * times
    factor = tau * torch.ones(3, 1)
    law = dist.LowRankMultivariateNormal(mean, factor, sigma.square() * torch.ones(3) + 1e-3)
    with pyro.plate("persons", len(y)):
        pyro.sample("y", law, obs=y)


def gamma(x: Tensor, y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        mean = torch.nn.functional.relu(x) @ softplus(w)
        pyro.sample("y", dist.Gamma(2.0, 2.0 / (mean + 0.1)), obs=y)


def entries() -> dict[str, Program | Refused]:
    """Return the regressions by name."""
    x, y, some = normal(N, 3), normal(N), counts(5, N)
    yes, event = (y > 0).double(), y > 0
    low_rank = partial(AutoLowRankMultivariateNormal, rank=2)
    scaled = poutine.reparam(wards, {"effect": LocScaleReparam(0.0)})
    times = torch.arange(3.0).double().expand(N, 3)
    return {
        "linear regression, a PyroModule": Program(Linear(), (x, y), AutoDiagonalNormal),
        "neural network, PyroSample": Program(Network(), (x, y)),
        "logistic regression": Program(logistic, (x, yes), AutoDiagonalNormal),
        "horseshoe": Program(horseshoe, (x, y)),
        "robust regression": Program(robust, (x, y)),
        "Poisson with exposure": Program(
            poisson, (x, 1 + uniform(N), some), AutoMultivariateNormal
        ),
        "negative binomial": Program(negative_binomial, (x, some)),
        "hurdle Poisson": Program(hurdle, (x, some)),
        "zero-inflated Poisson": Program(zero_inflated, (x, some), low_rank),
        "ordinal": Program(ordinal, (x, whole(4, N))),
        "beta-binomial": Program(beta_binomial, (some + 2, some), AutoDelta),
        "Dirichlet-multinomial": Program(dirichlet_multinomial, (counts(5, N, 4) + 1,)),
        "Weibull survival, censored": Program(weibull, (x, uniform(N), event)),
        "exponential survival by a factor": Program(survival, (x, uniform(N), yes)),
        "missing targets": Refused(
            Program(missing_targets, (x, y, event)),
            "mask the distribution",
            Program(missing_masked, (x, y, event)),
        ),
        "group effects, LocScaleReparam": Program(scaled, (x, whole(4, N), yes)),
        "spline": Program(spline, (uniform(N, 5), y)),
        "media mix": Program(media_mix, (uniform(N, 4, 2), y)),
        "quantile regression": Program(quantile, (x, y), AutoIAFNormal),
        "tobit by a factor": Program(tobit, (x, y)),
        "Bradley-Terry": Program(players, (whole(5, N), (whole(5, N) + 1) % 5, yes)),
        "Gaussian process, random features": Program(random_features, (x, y)),
        "Gaussian process, inducing points": Program(inducing_points, (x, y), low_rank),
        "repeated measures": Program(repeated_measures, (times, normal(N, 3))),
        "gamma regression": Program(gamma, (x, uniform(N)), loss=TraceMeanField_ELBO),
    }
