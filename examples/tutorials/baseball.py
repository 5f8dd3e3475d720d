"""Partial pooling: the chances of hits of 18 players with one prior, whose spread is learned.

    python examples/tutorials/baseball.py

Changed: a record is a player's turn at bat, not a player, so that ε protects each turn; players
are public groups in a plate of their own. ``fit_private`` does the rest.
"""

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

import bdpvi

PLAYERS = 18


def model(player: Tensor, hit: Tensor | None = None) -> None:
    """Chances about a common one, in log odds."""
    centre = pyro.sample("centre", dist.Normal(-1.0, 1.0))
    spread = pyro.sample("spread", dist.HalfNormal(1.0))
    with pyro.plate("players", PLAYERS):
        place = pyro.sample("place", dist.Normal(0.0, 1.0))
    logits = (centre + spread * place)[player.squeeze(-1)]
    with pyro.plate("turns", len(player)):
        pyro.sample("hit", dist.Bernoulli(logits=logits), obs=hit)


def main() -> None:
    """Train, and print the guarantee and what was learned."""
    torch.manual_seed(0)
    chance = torch.sigmoid(-1.0 + 0.5 * torch.linspace(-1.5, 1.5, PLAYERS))
    player = torch.randint(PLAYERS, (9000, 1))
    hit = torch.bernoulli(chance[player[:, 0]])
    route = bdpvi.DPVI(rows=9000, steps=300, lr=0.1, progress=False)
    release = bdpvi.fit_private(model, (player, hit), epsilon=2.0, route=route)
    print(release)
    found = release.predict_mean(torch.arange(PLAYERS)[:, None])
    ends = [[round(v, 2) for v in one[[0, -1]].tolist()] for one in (found, chance)]
    print(f"chances of the weakest and the strongest player: {ends[0]} of {ends[1]}")
    noted = [coefficient.name for coefficient in release.summary().coefficients if coefficient.note]
    print(f"coefficients with the note that privacy noise dominates: {len(noted)} of {PLAYERS + 2}")


if __name__ == "__main__":
    main()
