"""Deep Markov model, its guide a recurrent network that reads a sequence from its end.

python examples/tutorials/dmm.py
"""

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

import bdpvi

LENGTH, SETTINGS = 4, {"clip": 5.0, "noise_multiplier": 3.0, "rate": 0.2}


class DMM(nn.Module):
    """One latent and one measurement at each step; a record is a sequence."""

    def __init__(self, reader: nn.Module) -> None:
        super().__init__()
        self.move, self.emit, self.reader = nn.Linear(1, 1), nn.Linear(1, 1), reader

    def model(self, y: Tensor) -> None:
        """A latent that moves, and what it emits, with noise."""
        pyro.module("dmm", self)
        with pyro.plate("sequences", len(y)):
            z = torch.zeros(len(y), 1)
            for t in pyro.markov(range(LENGTH)):
                z = pyro.sample(f"z {t}", dist.Normal(self.move(z), 0.5).to_event(1))
                pyro.sample(f"y {t}", dist.Normal(self.emit(z).squeeze(-1), 0.3), obs=y[:, t])

    def guide(self, y: Tensor) -> None:
        """Normals about what the reader makes of the sequence, from its end."""
        found = self.reader(y.flip(1).unsqueeze(-1))[0].flip(1)
        with pyro.plate("sequences", len(y)):
            for t in range(LENGTH):
                pyro.sample(f"z {t}", dist.Normal(found[:, t], 0.3).to_event(1))


def main() -> None:
    """Train, and print the guarantee and what was learned."""
    torch.manual_seed(0)
    y = (0.5 * torch.randn(800, LENGTH)).cumsum(1) + 0.3 * torch.randn(800, LENGTH)
    pyro.clear_param_store()
    dmm, optim = DMM(nn.RNN(1, 1, batch_first=True)), pyro.optim.ClippedAdam({"lr": 0.05})
    svi = bdpvi.PrivateSVI(dmm.model, dmm.guide, optim, pyro.infer.Trace_ELBO(), **SETTINGS)  # type: ignore[arg-type]
    before = svi.evaluate_loss(y)
    for _ in range(60):
        svi.step(y)
    print(svi.worst_case(delta=1e-5))
    print(f"loss, for the owner alone: {before:.0f}, then {svi.evaluate_loss(y):.0f}")


if __name__ == "__main__":
    main()
