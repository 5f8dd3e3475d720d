"""Accountants as those of other libraries are used: step by step, with a state to keep."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_bayesian import ACCOUNTANTS, CASES, DELTA, EVENTS, steps

from bdpvi import BayesianAccountant
from bdpvi.accounting.events import Event
from bdpvi.types import Scope


def kept(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state after it was in a file that holds tensors and plain values alone."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return dict(torch.load(file, weights_only=True))


@pytest.mark.parametrize(("make", "event"), CASES)
def test_a_kept_accountant_goes_on_to_the_same_bits(
    make: Callable[[], BayesianAccountant], event: Callable[[], Event]
) -> None:
    one, other = event(), event()
    before, after = make(), make()
    before.step(one, count=2)
    after.step(other)
    after.load_state_dict(kept(before.state_dict()))
    assert len(after) == len(before) == 2
    for accountant in (before, after):
        accountant.step(other, count=3)
    assert after.spent(DELTA) == before.spent(DELTA)


def test_a_kept_path_stays_a_path() -> None:
    before, after = BayesianAccountant(), BayesianAccountant()
    before.step(replace(steps(), scope=Scope.PATH))
    after.load_state_dict(kept(before.state_dict()))
    assert after.spent(DELTA).scope is Scope.PATH
    assert after.spent(DELTA) == before.spent(DELTA)
    assert after.exposure(DELTA) == before.exposure(DELTA)


def test_settings_and_damage_are_refused_and_change_nothing() -> None:
    accountant = BayesianAccountant()
    state = accountant.state_dict()
    with pytest.raises(ValueError, match="only_reliable=False, not True"):
        BayesianAccountant(only_reliable=True).load_state_dict(state)
    for name in ("panel, chernoff", "panel, streamed", "Hölder", "panel, known population"):
        with pytest.raises(ValueError, match="state is of an accountant with"):
            ACCOUNTANTS[name]().load_state_dict(state)
    accountant.step(EVENTS["draws"]())
    epsilon, whole = accountant.get_epsilon(delta=DELTA), accountant.state_dict()
    events: list[Any] = [3, [3], [[{"kind of": "Panel"}, 1]], [[{"kind of": "os"}, 1]]]
    for damaged in (
        *({**whole, "events": one} for one in events),
        {name: value for name, value in whole.items() if name != "taken"},
        {**whole, "settings": 3},
        {},
    ):
        with pytest.raises(ValueError, match="state"):
            accountant.load_state_dict(damaged)
        assert accountant.get_epsilon(delta=DELTA) == epsilon


def test_an_event_of_a_type_of_your_own_is_refused() -> None:
    class Own:
        records = {"remove D‖D′": torch.arange(3)}  # noqa: RUF012
        orders, rounding, from_data = None, 0.0, False

    accountant = BayesianAccountant()
    accountant.step(Own())
    with pytest.raises(ValueError, match="a Own cannot be kept"):
        accountant.state_dict()
