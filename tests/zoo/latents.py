"""Programs of the zoo with latents of single records, or with tables of latents."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.contrib.easyguide import easy_guide
from pyro.infer import TraceEnum_ELBO, config_enumerate
from pyro.infer.autoguide import (
    AutoDelta,
    AutoGuideList,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
    AutoNormalMessenger,
    AutoStructured,
)
from torch import Tensor
from torch.distributions import constraints

from .entry import RECORDS, Program, Refused, counts, normal, whole

N = RECORDS
enumerated = partial(TraceEnum_ELBO, max_plate_nesting=1)


def shown(guide: Callable[..., Any], *hidden: str) -> Callable[[Any], Any]:
    """Return a maker of a guide for all but these latents."""
    return lambda model: guide(poutine.block(model, hide=list(hidden)))


@config_enumerate  # type: ignore[untyped-decorator]
def mixture(data: Tensor) -> None:
    weights = pyro.sample("weights", dist.Dirichlet(0.5 * torch.ones(2)))
    scale = pyro.sample("scale", dist.LogNormal(0.0, 2.0))
    with pyro.plate("components", 2):
        locs = pyro.sample("locs", dist.Normal(0.0, 10.0))
    with pyro.plate("data", len(data)):
        assignment = pyro.sample("assignment", dist.Categorical(weights))
        pyro.sample("obs", dist.Normal(locs[assignment], scale), obs=data)


@config_enumerate  # type: ignore[untyped-decorator]
def regressions(x: Tensor, y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(2, 3), 1.0).to_event(2))
    share = pyro.sample("share", dist.Dirichlet(torch.ones(2)))
    with pyro.plate("data", len(x)):
        kind = pyro.sample("kind", dist.Categorical(share))
        mean = torch.where(kind == 0, x @ w[0], x @ w[1])
        pyro.sample("y", dist.Normal(mean, 0.5), obs=y)


@config_enumerate  # type: ignore[untyped-decorator]
def hidden_markov(sequences: Tensor) -> None:
    """Three states, five steps; a record is a sequence."""
    rows = pyro.sample("rows", dist.Dirichlet(torch.eye(3) + 0.5).to_event(1))
    locs = pyro.sample("locs", dist.Normal(torch.tensor([-1.0, 0.0, 1.0]), 1.0).to_event(1))
    with pyro.plate("sequences", len(sequences), dim=-1):
        state: Any = 0
        for t in pyro.markov(range(sequences.shape[1])):
            state = pyro.sample(f"state_{t}", dist.Categorical(rows[state]))
            pyro.sample(f"y_{t}", dist.Normal(locs[state], 0.5), obs=sequences[:, t])


@config_enumerate  # type: ignore[untyped-decorator]
def drifting_markov(sequences: Tensor) -> None:
    """A global level of each step, drawn inside the loop, as of a season."""
    rows = pyro.sample("rows", dist.Dirichlet(torch.eye(2) + 0.5).to_event(1))
    locs = pyro.sample("locs", dist.Normal(torch.tensor([-1.0, 1.0]), 1.0).to_event(1))
    plate = pyro.plate("sequences", len(sequences), dim=-1)
    state: Any = 0
    for t in pyro.markov(range(sequences.shape[1])):
        level = pyro.sample(f"level_{t}", dist.Normal(0.0, 1.0))
        with plate:
            state = pyro.sample(f"state_{t}", dist.Categorical(rows[state]))
            pyro.sample(f"y_{t}", dist.Normal(level + locs[state], 0.5), obs=sequences[:, t])


@config_enumerate  # type: ignore[untyped-decorator]
def recaptured(history: Tensor) -> None:
    """Cormack, Jolly and Seber: an animal is alive or not, and seen or not."""
    survival = pyro.sample("survival", dist.Uniform(0.0, 1.0))
    seen = pyro.sample("seen", dist.Uniform(0.0, 1.0))
    with pyro.plate("animals", history.shape[0], dim=-1):
        alive: Any = torch.ones(history.shape[0])
        first = torch.zeros(history.shape[0]).bool()
        for t in pyro.markov(range(history.shape[1])):
            with poutine.mask(mask=first):
                alive = pyro.sample(f"alive_{t}", dist.Bernoulli(alive * survival))
                pyro.sample(f"y_{t}", dist.Bernoulli(alive * seen), obs=history[:, t])
            first = first | (history[:, t] > 0)


@config_enumerate  # type: ignore[untyped-decorator]
def occupied(visits: Tensor, x: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    found = pyro.sample("found", dist.Beta(torch.tensor(2.0), torch.tensor(2.0)))
    with pyro.plate("sites", len(visits)):
        there = pyro.sample("there", dist.Bernoulli(logits=x @ w))
        pyro.sample("visits", dist.Binomial(4, there * found), obs=visits)


@config_enumerate  # type: ignore[untyped-decorator]
def annotators(labels: Tensor) -> None:
    """Dawid and Skene: three annotators with their own errors."""
    share = pyro.sample("share", dist.Dirichlet(torch.ones(2)))
    errors = pyro.sample("errors", dist.Dirichlet(torch.eye(2).expand(3, 2, 2) + 0.5).to_event(2))
    with pyro.plate("items", labels.shape[0]):
        truth = pyro.sample("truth", dist.Categorical(share))
        for who in range(3):
            pyro.sample(f"label_{who}", dist.Categorical(errors[who][truth]), obs=labels[:, who])


@config_enumerate  # type: ignore[untyped-decorator]
def topics(words: Tensor) -> None:
    """Documents of six words; a document's topic shares are integrated to those of the corpus."""
    topic = pyro.sample("topic", dist.Dirichlet(torch.ones(2, 7)).to_event(1))
    share = pyro.sample("share", dist.Dirichlet(torch.ones(3, 2)).to_event(1))
    mix = pyro.sample("mix", dist.Dirichlet(torch.ones(3)))
    with pyro.plate("documents", len(words), dim=-2):
        kind = pyro.sample("kind", dist.Categorical(mix))
        with pyro.plate("words", words.shape[1], dim=-1):
            z = pyro.sample("z", dist.Categorical(share[kind]))
            pyro.sample("word", dist.Categorical(topic[z]), obs=words)


def answers(person: Tensor, item: Tensor, right: Tensor) -> None:
    """Rasch's model (1PL): an answer is a record, of 4 persons that are public, and 5 items."""
    with pyro.plate("persons", 4):
        ability = pyro.sample("ability", dist.Normal(0.0, 1.0))
    with pyro.plate("items", 5):
        difficulty = pyro.sample("difficulty", dist.Normal(0.0, 1.0))
    with pyro.plate("answers", len(right)):
        logits = ability[person] - difficulty[item]
        pyro.sample("right", dist.Bernoulli(logits=logits), obs=right)


def examinees(right: Tensor) -> None:
    """The 2PL model: a record is a person with 5 answers, and has an ability."""
    difficulty = pyro.sample("difficulty", dist.Normal(torch.zeros(5), 1.0).to_event(1))
    slope = pyro.sample("slope", dist.LogNormal(torch.zeros(5), 0.5).to_event(1))
    with pyro.plate("persons", len(right)):
        ability = pyro.sample("ability", dist.Normal(0.0, 1.0))
        logits = slope * (ability.unsqueeze(-1) - difficulty)
        pyro.sample("right", dist.Bernoulli(logits=logits).to_event(1), obs=right)


def of_examinees(_: Any) -> Callable[..., None]:
    """Return a guide that computes an ability from the answers."""

    def guide(right: Tensor) -> None:
        for name, law in (("difficulty", dist.Normal), ("slope", dist.LogNormal)):
            loc = pyro.param(f"{name}_loc", torch.zeros(5))
            scale = pyro.param(
                f"{name}_scale", torch.ones(5) * 0.1, constraint=constraints.positive
            )
            pyro.sample(name, law(loc, scale).to_event(1))
        by = pyro.param("by", torch.zeros(5))
        spread = pyro.param("spread", torch.tensor(1.0), constraint=constraints.positive)
        with pyro.plate("persons", len(right)):
            pyro.sample("ability", dist.Normal(right @ by, spread))

    return guide


def ratings(user: Tensor, film: Tensor, rating: Tensor) -> None:
    """Probabilistic matrix factorisation with codes of users and films."""
    u = pyro.sample("u", dist.Normal(torch.zeros(4, 2), 1.0).to_event(2))
    v = pyro.sample("v", dist.Normal(torch.zeros(5, 2), 1.0).to_event(2))
    with pyro.plate("ratings", rating.shape[0]):
        mean = (u[user] * v[film]).sum(-1)
        pyro.sample("rating", dist.Normal(mean, 0.5), obs=rating)


def factors(data: Tensor) -> None:
    """Factor analysis, with the factors integrated out."""
    loadings = pyro.sample("loadings", dist.Normal(torch.zeros(4, 2), 1.0).to_event(2))
    noise = pyro.sample("noise", dist.LogNormal(torch.zeros(4), 0.5).to_event(1))
    with pyro.plate("data", data.shape[0]):
        law = dist.LowRankMultivariateNormal(torch.zeros(4), loadings, noise)
        pyro.sample("obs", law, obs=data)


def ecological(data: Tensor) -> None:
    """Counts of species with a shared trend."""
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    spread = pyro.sample("spread", dist.HalfNormal(torch.tensor(1.0)))
    with pyro.plate("species", 3):
        level = pyro.sample("level", dist.Normal(mean, spread))
    with pyro.plate("sites", data.size(0)):
        pyro.sample("obs", dist.Poisson(level.exp()).to_event(1), obs=data)


def in_two(model: Any) -> Any:
    """Return a guide of two parts."""
    guide = AutoGuideList(model)
    guide.append(AutoNormal(poutine.block(model, hide=["u"])))
    guide.append(AutoMultivariateNormal(poutine.block(model, expose=["u"])))
    return guide


def structured(model: Any) -> Any:
    """Return a guide whose loadings depend on the noise."""
    kinds = {"loadings": "normal", "noise": "normal"}
    return AutoStructured(model, conditionals=kinds, dependencies={"loadings": {"noise": "linear"}})


def easy(model: Any) -> Any:
    """Return an easy guide: two latents together, in one multivariate normal."""

    @easy_guide(model)  # type: ignore[untyped-decorator]
    def guide(self: Any, data: Tensor) -> None:
        group = self.group(match="mean|spread|level")
        loc = pyro.param("loc", torch.zeros(group.event_shape))
        scale = pyro.param("scale", torch.eye(5) * 0.1, constraint=constraints.lower_cholesky)
        group.sample("joint", dist.MultivariateNormal(loc, scale_tril=scale))

    return guide


def entries() -> dict[str, Program | Refused]:
    """Return the programs by name."""
    yes = counts(2, N)
    topics_of = shown(AutoNormal, "z", "kind")
    states = [f"state_{t}" for t in range(3)]
    local = Program(examinees, (counts(2, N, 5),))
    return {
        "Gaussian mixture": Program(
            mixture, (normal(N),), shown(AutoDelta, "assignment"), enumerated
        ),
        "mixture of regressions": Program(
            regressions, (normal(N, 3), normal(N)), shown(AutoNormal, "kind"), enumerated
        ),
        "hidden Markov model": Program(
            hidden_markov, (normal(N, 3),), shown(AutoDelta, *states), enumerated
        ),
        "hidden Markov model with seasons": Program(
            drifting_markov, (normal(N, 3),), shown(AutoNormal, *states), enumerated
        ),
        "Cormack-Jolly-Seber": Program(
            recaptured,
            (counts(2, N, 3),),
            shown(AutoDelta, *(f"alive_{t}" for t in range(3))),
            enumerated,
        ),
        "occupancy": Program(
            occupied, (yes * 2, normal(N, 3)), shown(AutoNormal, "there"), enumerated
        ),
        "annotators": Program(
            annotators, (whole(2, N, 3),), shown(AutoNormal, "truth"), enumerated
        ),
        "topics": Program(
            topics,
            (whole(7, N, 6),),
            topics_of,
            partial(TraceEnum_ELBO, max_plate_nesting=2),
        ),
        "items, 1PL": Program(
            answers,
            (whole(4, N), whole(5, N), yes),
            partial(AutoLowRankMultivariateNormal, rank=2),
        ),
        "items, 2PL": Refused(
            local,
            "write a guide that computes",
            Program(examinees, local.data, of_examinees),
        ),
        "matrix factorisation": Program(ratings, (whole(4, N), whole(5, N), normal(N)), in_two),
        "factor analysis": Program(factors, (normal(N, 4),), structured),
        "species": Program(ecological, (counts(4, N, 3),), easy),
        "species, by messengers": Program(ecological, (counts(4, N, 3),), AutoNormalMessenger),
    }
