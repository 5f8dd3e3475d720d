"""An entry of the zoo: a program, and what its owner would do if it is refused."""

from __future__ import annotations

import difflib
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor

RECORDS = 12
PLAIN = """
from pyro.infer import SVI

svi = SVI(model, guide, optim, loss)
for _ in range(3):
    svi.step(*data)
"""
PRIVATE = """
from bdpvi import PrivateSVI

svi = PrivateSVI(model, guide, optim, loss, clip=1.0, noise_multiplier=1.0, rate=0.5)
for _ in range(3):
    svi.step(*data)
"""


@dataclass(frozen=True)
class Program:
    """What a script hands to SVI.

    Attributes:
        model: the model.
        data: its arguments.
        guide: makes the guide of the model.
        loss: makes the loss.
    """

    model: Callable[..., Any]
    data: tuple[Any, ...]
    guide: Callable[[Any], Any] = AutoNormal
    loss: Callable[[], Any] = Trace_ELBO


@dataclass(frozen=True)
class Refused:
    """A program that is refused, and the same as the refusal has it.

    Attributes:
        plain: what SVI trains.
        says: words of the refusal's remedy.
        mended: what PrivateSVI trains.
    """

    plain: Program
    says: str
    mended: Program


def changed_lines(one: str, other: str) -> int:
    """Return how many lines of the other text are not in the first one."""
    before, after = (textwrap.dedent(text).splitlines() for text in (one, other))
    return sum(line.startswith("+ ") for line in difflib.ndiff(before, after))


def changes(plain: Program, private: Program) -> int:
    """Return how many lines differ in the private script, its model and its guide."""
    pairs = ((plain.model, private.model), (plain.guide, private.guide))
    own = (changed_lines(*map(_source, pair)) for pair in pairs if pair[0] is not pair[1])
    return changed_lines(PLAIN, PRIVATE) + sum(own)


def _source(one: Any) -> str:
    return inspect.getsource(one if inspect.isroutine(one) else type(one))


def chance() -> torch.Generator:
    """Return the source of made-up records."""
    return torch.Generator().manual_seed(3)


def normal(*shape: int) -> Tensor:
    """Return standard normals."""
    return torch.randn(*shape, generator=chance(), dtype=torch.float64)


def uniform(*shape: int) -> Tensor:
    """Return numbers from .1 to .9."""
    return 0.1 + 0.8 * torch.rand(*shape, generator=chance(), dtype=torch.float64)


def whole(below: int, *shape: int) -> Tensor:
    """Return whole numbers from 0."""
    return torch.randint(below, shape, generator=chance())


def counts(below: int, *shape: int) -> Tensor:
    """Return whole numbers from 0, as floats."""
    return whole(below, *shape).double()
