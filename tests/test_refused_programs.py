"""Programs that PrivateSVI refuses, and what becomes of them by what the refusal says."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoLaplaceApproximation, AutoNormal
from pyro.infer.reparam import ConjugateReparam
from pyro.nn import PyroModule
from torch import Tensor, nn

from bdpvi import PrivateSVI

W = "w = sample('w', Normal(x.new_zeros(3), x.new_ones(())).to_event(1))\n"
OUTSIDE = torch.randn(60)


def seen(
    mean: str = "x @ w", *, size: str = "len(x)", obs: str = "y", kind: str = "Normal(m, 1.0)"
) -> str:
    """Return the lines of a model that observe a target."""
    return f"with plate('records', {size}) as i:\n m = {mean}\n sample('y', {kind}, obs={obs})\n"


GOOD = W + seen()


def program(body: str, head: str = "x, y=None") -> Callable[..., None]:
    """Return the model or guide with this body."""
    names = {"sample": pyro.sample, "plate": pyro.plate, "param": pyro.param, **vars(dist)}
    names |= {"torch": torch, "OUTSIDE": OUTSIDE, "TABLE": TABLE[0], "scale": pyro.poutine.scale}
    names |= {"COUNT": itertools.count(), "factor": pyro.factor}
    exec(f"def made({head}):\n{textwrap.indent(body, ' ')}", names)
    made: Callable[..., None] = names["made"]
    return made


TABLE = torch.randn(60, 3), torch.randn(60)
GUIDE = "sample('w', Normal(param('m', torch.zeros(3)), 1.0).to_event(1))\n"
LOCAL = W + seen("x @ w + sample('z', Normal(0.0, 1.0))")
ENCODER = (
    GUIDE + "a = param('a', torch.ones(()))\n"
    "with plate('records', len(x)): sample('z', Normal(a * x[:, 0], 1.0))"
)


class Normed(PyroModule):  # type: ignore[misc]
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.model = program(GOOD)

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        self.model(self.norm(x), y)


class Hidden:
    """A module where nobody looks for one."""

    __slots__ = ("model", "net")

    def __init__(self) -> None:
        self.net = nn.Linear(3, 3)
        self.model = program(GOOD)

    def __call__(self, x: Tensor, y: Tensor | None = None) -> None:
        net = pyro.module("net", self.net)
        self.model(net(x), y)


def conjugate(model: Any) -> Any:
    by = ConjugateReparam(lambda x, y=None: dist.Beta(2.0 + x[0, 0].abs(), 1.0))
    return pyro.poutine.reparam(model, {"w": by})


def hiding(found: Any) -> Any:
    return lambda x, y=None: found(x, y)


def svi(
    model: Any = GOOD, guide: Any = AutoNormal, loss: Any = None, lr: float = 0.05, **more: Any
) -> PrivateSVI:
    model = program(model) if isinstance(model, str) else model
    guide = (
        program(guide)
        if isinstance(guide, str)
        else guide(model)
        if isinstance(guide, type)
        else guide
    )
    settings = {"clip": 1.0, "noise_multiplier": 2.0, "rate": 0.5, **more}
    optim = settings.pop("optim", None) or pyro.optim.SGD({"lr": lr})
    return PrivateSVI(model, guide, optim, loss or Trace_ELBO(), **settings)


def stepped(*args: Any, **options: Any) -> PrivateSVI:
    made = svi(**options)
    made.step(*(args or TABLE))
    return made


BATCHED, LAYERED = Normed(nn.BatchNorm1d(3)), Normed(nn.LayerNorm(3))
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # by the sites of a single run
    "hand the targets over, inside": ({"model": W + seen(obs="None")}, {}),
    "give it the name of a latent": (
        {"guide": GUIDE + "sample('v', Normal(0.0, 1.0))"},
        {"guide": GUIDE},
    ),
    "make it continuous": (
        {"model": "k = sample('k', Bernoulli(0.5))\n" + GOOD, "guide": GUIDE},
        {"model": "k = sample('k', Beta(0.5, 0.5))\n" + GOOD},
    ),
    "hand the records over as arguments of step, and let": (
        {"model": W + seen("w[0]", obs="OUTSIDE")},
        {},
    ),
    "use GroupNorm": ({"model": BATCHED}, {"model": LAYERED}),
    "write a guide that computes": ({"model": LOCAL}, {"model": LOCAL, "guide": ENCODER}),
    "let model and guide be modules": ({"model": hiding(Hidden())}, {"model": LAYERED}),
    "use a Normal": (
        {"model": LOCAL, "guide": ENCODER.replace("Normal(a * x[:, 0], 1.0)", "Laplace(a, 1.0)")},
        {"model": LOCAL, "guide": ENCODER},
    ),
    "write its locations and scales": (
        {"guide": GUIDE.replace("param('m', torch.zeros(3))", "torch.zeros(3)")},
        {},
    ),
    "sample it there too": ({"guide": "param('m', torch.zeros(3))"}, {"guide": GUIDE}),
    "sample it in the guide": (
        {"model": LOCAL, "guide": GUIDE},
        {"model": LOCAL, "guide": ENCODER},
    ),
    # by what can be reached, and by several runs on made-up records
    "Take records from the arguments alone": (
        {"model": W + seen("TABLE[: len(x)] @ w")},
        {"model": GOOD},
    ),
    "start it at a public value": (
        {"guide": GUIDE.replace("torch.zeros(3)", "x.mean(0).clone()")},
        {"guide": GUIDE},
    ),
    "write it so that it runs": (
        {"model": W + seen("x @ w if x[0, 0] > 0 else -x @ w")},
        {},
    ),
    "give it parameters of its own": (
        {"guide": GUIDE.replace("param('m', torch.zeros(3))", "x.mean(0)")},
        {"guide": GUIDE},
    ),
    "give it constants that": (
        {"model": W.replace("x.new_zeros(3)", "x.mean(0)") + seen()},
        {},
    ),
    "hand the records over as arguments of step, and read": (
        {"model": W + seen("w[0]", size="60", obs="OUTSIDE[i]")},
        {},
    ),
    "leave that out": (
        {"model": conjugate(program("w = sample('w', Beta(1.0, 1.0))\n" + seen("w + x[:, 0]")))},
        {"model": "w = sample('w', Beta(1.0, 1.0))\n" + seen("w + x[:, 0]")},
    ),
    "keep its constants": (
        {"model": W + "factor('f', (-1 - w[0] ** 2).log())\n" + seen()},
        {"model": W + "factor('f', -(1 + w[0] ** 2).log())\n" + seen()},
    ),
    "hand every tensor": (
        {"model": W + seen("x @ w + OUTSIDE[i]", obs="None if y is None else y[i]")},
        {},
    ),
    "let every run have": (
        {"model": W + "if next(COUNT) % 3 == 0: sample('v', Normal(0.0, 1.0))\n" + seen()},
        {},
    ),
    "give it one shape": (
        {"model": W.replace("3", "3 + next(COUNT)") + seen("x[:, 0] * w[0]")},
        {"model": W + seen("x[:, 0] * w[0]")},
    ),
    "give guide and model tensors": (
        {"guide": GUIDE.replace("zeros(3)", "zeros(2)")},
        {"guide": GUIDE},
    ),
    "let each entry": (
        {"model": W + seen("(x - x.mean(0)) @ w")},
        {},
    ),
    "put a record's own": (
        {"model": W.replace("3", "len(x)") + seen("x[:, 0] * w[0]")},
        {"model": LOCAL, "guide": ENCODER},
    ),
    "let the guide's draws": (
        {"guide": GUIDE.replace("zeros(3))", "zeros(3)).detach()")},
        {"guide": GUIDE},
    ),
    "write it out of place": (
        {"model": W + "w[0] = 0.0\n" + seen()},
        {"model": W + "w = torch.cat([torch.zeros(1), w[1:]])\n" + seen()},
    ),
}
"""Remedies, what is refused with each, and the same as the refusal has it."""


@pytest.mark.parametrize("remedy", CASES)
def test_a_program_that_cannot_be_trained_is_helped(remedy: str) -> None:
    bad, good = CASES[remedy]
    with pytest.raises(ValueError, match=re.escape(remedy)):
        stepped(**bad)
    pyro.clear_param_store()
    stepped(**good)
    pyro.clear_param_store()


def test_the_mode_is_trained_and_its_curvature_is_not_read() -> None:
    guide: Any = stepped(guide=AutoLaplaceApproximation).guide
    with pytest.raises(ValueError, match="use AutoMultivariateNormal"):
        guide.laplace_approximation(*TABLE)
    pyro.clear_param_store()
