"""Hidden classes in survey data: eight yes/no questions, some of them not answered.

    python examples/private/hidden_classes.py --out hidden_classes.png

Each person is in one of three classes, which is summed out; given the class, answers are
independent. An answer of −1 is missing. The guide's classes start at public values. The figure
shows how each class answers.
"""

from __future__ import annotations

import sys

import pyro
import pyro.distributions as dist
import torch
from _example import Draws, main, summed_out
from matplotlib.axes import Axes
from pyro import poutine
from pyro.infer import TraceEnum_ELBO, config_enumerate
from pyro.infer.autoguide import AutoNormal, init_to_value
from torch import Tensor

from bdpvi import Dataset
from bdpvi.models.contract import Model

CLASSES, QUESTIONS, MISSING = 3, 8, 0.1
SHARES = torch.tensor([0.5, 0.3, 0.2])
YES = torch.tensor([[0.9] * 8, [0.15] * 8, [0.85] * 4 + [0.1] * 4])
START = torch.tensor([[0.8] * 8, [0.2] * 8, [0.8] * 4 + [0.2] * 4])
LOSS = TraceEnum_ELBO(max_plate_nesting=1)


@config_enumerate  # type: ignore[untyped-decorator]
def model(x: Tensor, y: Tensor | None = None) -> None:
    """Draw shares of the classes and how each answers; observe answers, of a class not known."""
    shares = pyro.sample("shares", dist.Dirichlet(x.new_full((CLASSES,), 2.0)))
    with pyro.plate("classes", CLASSES):
        yes = pyro.sample("yes", dist.Beta(x.new_ones(QUESTIONS), 1.0).to_event(1))
    with pyro.plate("records", len(x)):
        member = pyro.sample("class", dist.Categorical(shares))
        for question in range(QUESTIONS):
            answer = None if y is None else y[:, question].clamp(min=0)
            with poutine.mask(mask=True if y is None else y[:, question] >= 0):
                likely = dist.Bernoulli(yes[member, question])
                pyro.sample(f"question {question}", likely, obs=answer)


def fresh() -> tuple[Model, AutoNormal]:
    """Return the model and an untrained guide of all but the records' classes."""
    start = init_to_value(values={"yes": START.to(torch.get_default_dtype())})
    return model, AutoNormal(poutine.block(model, hide=["class"]), init_loc_fn=start)


def simulated(records: int, seed: int) -> Dataset:
    """Return answers 0, 1, or −1 where one is missing; x has no columns."""
    generator = torch.Generator().manual_seed(seed)
    member = torch.multinomial(SHARES, records, replacement=True, generator=generator)
    answer = (torch.rand(records, QUESTIONS, generator=generator) < YES[member]).float()
    missing = torch.rand(records, QUESTIONS, generator=generator) < MISSING
    return Dataset(torch.zeros(records, 0), answer.masked_fill(missing, -1.0), name="survey")


def baseline(train: Dataset, test: Dataset) -> float:
    """Return the mean log density under independent answers."""
    answered = train.y >= 0
    yes = train.y.clamp(min=0).sum(0) / answered.sum(0)
    each = dist.Bernoulli(yes).log_prob(test.y.clamp(min=0))
    return float(each.where(test.y >= 0, 0.0).sum(1).mean())


log_density = summed_out


def figure(draws: Draws, axes: Axes) -> None:
    """Draw how often each class says yes: the truth, and what was learned."""
    learned, spread = draws.latents["yes"].mean(0), draws.latents["yes"].std(0)
    for member in range(CLASSES):
        at = torch.arange(QUESTIONS) + 0.1 * (member - 1)
        axes.errorbar(at, learned[member], 2 * spread[member], fmt="o", capsize=3)
        axes.plot(at, YES[member], "k_", markersize=12)
    axes.set(xlabel="question", ylabel="share of yes", title="true classes (lines) and learned")


if __name__ == "__main__":
    main(sys.modules[__name__])
