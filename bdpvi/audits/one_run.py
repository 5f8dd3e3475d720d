"""Audits of training by one run: many canaries, each there by a coin, and guesses of the coins.

Each canary has a column of its own, along which its gradient is clipped in every step. An attacker
who sees the last weights alone guesses "there" of the canaries whose weights moved most, "not
there" of those whose weights moved least, and says nothing of the others. Under (ε, δ) no more
guesses are right than the paper allows, however the canaries depend on one another.

Source: Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run", 2023, Theorem 5.2
and the program in its appendix D.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import binom
from torch import nn

from bdpvi._ground.host import HOST
from bdpvi.audits.claims import Claim
from bdpvi.audits.found import CERTAIN, LEVEL, Audit
from bdpvi.datasets.dataset import Dataset
from bdpvi.networks.deep import DPSGDSettings, make_private
from bdpvi.privacy.gaussian_dp import gaussian_distance
from bdpvi.privacy.ledger import Ledger
from bdpvi.privacy.solve import root
from bdpvi.synthesis.counts import Floats

_CANARIES, _GUESSES = 5000, 500
_STEPS, _LONG, _MOST = 10, 1e6, 50.0


def dp_sgd(data: Dataset, epsilon: float, delta: float) -> Audit:
    """Return the audit of DP-SGD, all records in each step, with the canaries among them.

    Args:
        data: features and labels 0 and 1; of fewer rows than canaries, so that training is cheap.
        epsilon, delta: what the training may cost.
    """
    begun, ledger, features = time.monotonic(), Ledger(), data.x.shape[1]
    there = torch.rand(_CANARIES, device=HOST) < 0.5
    canaries = torch.zeros(int(there.sum()), features + _CANARIES, dtype=torch.float64)
    canaries[range(len(canaries)), features + there.nonzero()[:, 0]] = _LONG
    rows = nn.functional.pad(data.x.double(), (0, _CANARIES))
    y = torch.cat([data.y.double(), canaries.new_ones(len(canaries))])
    module = nn.Linear(rows.shape[1], 1, bias=False).double()
    nn.init.zeros_(module.weight)
    made = make_private(
        module, torch.optim.SGD(module.parameters(), lr=1.0),
        loss=lambda out, y: out[:, 0] * (1 - 2 * y), data=(torch.cat([rows, canaries]), y),
        rate=1.0, max_grad_norm=1.0,
        noise_multiplier=math.sqrt(_STEPS) / gaussian_distance(epsilon, delta),
        settings=DPSGDSettings(ledger=ledger, records=len(data)),
    )  # fmt: skip
    for _ in range(_STEPS):
        made.step()
    order, half = module.weight[0, features:].argsort(), _GUESSES // 2
    right = int(there[order[-half:]].sum()) + int((~there[order[:half]]).sum())
    claim = Claim.of(ledger)
    low, certain = (
        claim.audited(Guesses(right, _GUESSES, _CANARIES, level), delta)
        for level in (LEVEL, CERTAIN)
    )
    return Audit(
        door="DP-SGD, one run", claim=claim.epsilon(delta), low=low, certain=certain, delta=delta,
        runs=1, canaries=_CANARIES, seconds=time.monotonic() - begun,
    )  # fmt: skip


@dataclass(frozen=True)
class Guesses:
    """Guesses of canaries' coins in one run.

    Attributes:
        right: how many are right.
        guesses: of coins; nothing is said of the others.
        canaries: each there with probability a half.
        level: probability that the guesses do not refute what holds.
    """

    right: int
    guesses: int
    canaries: int
    level: float

    def refute(self, epsilons: Floats, deltas: Floats) -> bool:
        """Return whether no mechanism with these δ(ε) allows so many right guesses."""
        return bool((self.chances(epsilons, deltas) < 1 - self.level).any())

    def epsilon(self, delta: float) -> float:
        """Return the ε that so many right guesses need at ``delta``, whatever the mechanism is.

        >>> round(Guesses(90, 100, 1000, 0.95).epsilon(1e-5), 2)
        1.63
        """

        def beyond(epsilon: float) -> float:
            return float(self.chances(np.array([epsilon]), np.array([delta]))[0]) - 1 + self.level

        return 0.0 if beyond(0.0) >= 0 else root(beyond, 0.0, _MOST)

    def chances(self, epsilons: Floats, deltas: Floats) -> Floats:
        """Return bounds of the probability of so many right guesses under each (ε, δ)."""
        q, short = 1 / (1 + np.exp(-epsilons)), np.arange(1, self.right + 1)
        just_below = np.asarray(binom.pmf(self.right - short, self.guesses, q[:, None])).cumsum(1)
        most = (just_below / short).max(1, initial=0.0)
        chance = binom.sf(self.right - 1, self.guesses, q)
        return np.asarray(chance + 2 * self.canaries * deltas * most)
