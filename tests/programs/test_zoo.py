"""Forty programs of Pyro's users: PrivateSVI follows SVI, or its refusal helps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pyro
import pytest
import torch
from pyro_features import AS_SVI, REFUSED, Row, compared
from torch import Tensor
from zoo import latents, networks, regressions
from zoo.entry import PLAIN, PRIVATE, Program, Refused, changes


def _entries() -> dict[str, Program | Refused]:
    torch.set_default_dtype(torch.float64)
    try:
        with torch.random.fork_rng([]):
            return {**regressions.entries(), **latents.entries(), **networks.entries()}
    finally:
        torch.set_default_dtype(torch.float32)
        pyro.clear_param_store()


ZOO = _entries()


@contextmanager
def one_draw() -> Iterator[None]:
    """Let every standard normal be .7: SVI and PrivateSVI draw a record's latents elsewhere."""

    def drawn(*shape: Any, dtype: Any = None, device: Any = None) -> Tensor:
        size = shape[0] if len(shape) and not isinstance(shape[0], int) else shape
        return torch.full(size, 0.7, dtype=dtype, device=device)

    with (
        patch("torch.distributions.normal._standard_normal", drawn),
        patch("bdpvi.programs.effects.torch.randn", drawn),
    ):
        yield


def as_row(name: str, one: Program) -> Row:
    return Row("zoo", name, one.model, one.data, one.guide, one.loss)


@pytest.mark.parametrize("name", ZOO)
def test_a_program_follows_svi_or_is_helped(name: str) -> None:
    entry = ZOO[name]
    if isinstance(entry, Refused):
        how, why = compared(as_row(name, entry.plain), steps=3)
        assert how == REFUSED
        assert entry.says in why
        entry = entry.mended
    with one_draw():
        assert compared(as_row(name, entry), steps=3) == (AS_SVI, "")


def test_two_lines_of_a_script_change() -> None:
    """Those that import and make SVI; model, guide, optimiser, loss and steps stay as they are."""
    plain = [one for one in ZOO.values() if isinstance(one, Program)]
    assert len(plain) >= 40
    assert {changes(one, one) for one in plain} == {2}
    helped = {
        n: changes(one.plain, one.mended) for n, one in ZOO.items() if isinstance(one, Refused)
    }
    assert helped["missing targets"] == 4  # the name of its model, and one line


@pytest.mark.parametrize("name", ["horseshoe", "hidden Markov model", "autoencoder"])
def test_both_scripts_run(name: str) -> None:
    entry = ZOO[name]
    assert isinstance(entry, Program)
    for script in (PLAIN, PRIVATE):
        pyro.clear_param_store()
        torch.set_default_dtype(torch.float64)
        try:
            names = {"model": entry.model, "guide": entry.guide(entry.model), "data": entry.data}
            names |= {"optim": pyro.optim.Adam({"lr": 0.01}), "loss": entry.loss()}
            exec(script, names)
        finally:
            torch.set_default_dtype(torch.float32)
            pyro.clear_param_store()
