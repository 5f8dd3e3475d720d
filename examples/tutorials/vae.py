"""VAE: a decoder, and an encoder that computes each record's latent from its own row.

    python examples/tutorials/vae.py

Changed: ``bdpvi.PrivateSVI`` instead of ``SVI``, and ``step`` takes all images, not a loader's.
"""

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

import bdpvi

PIXELS, CODES, SETTINGS = 16, 2, {"clip": 2.0, "noise_multiplier": 2.0, "rate": 0.05}


class VAE(nn.Module):
    """Pictures of 4 by 4 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(PIXELS, 16), nn.Tanh(), nn.Linear(16, 2 * CODES))
        self.decoder = nn.Sequential(nn.Linear(CODES, 16), nn.Tanh(), nn.Linear(16, PIXELS))

    def model(self, x: Tensor) -> None:
        """Codes, and the chance of each pixel."""
        pyro.module("decoder", self.decoder)
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(torch.zeros(len(x), CODES), 1.0).to_event(1))
            pyro.sample("x", dist.Bernoulli(logits=self.decoder(z)).to_event(1), obs=x)

    def guide(self, x: Tensor) -> None:
        """Normal codes, read off the picture."""
        pyro.module("encoder", self.encoder)
        with pyro.plate("data", len(x)):
            loc, log_scale = self.encoder(x).chunk(2, -1)
            pyro.sample("z", dist.Normal(loc, log_scale.exp()).to_event(1))


def main() -> None:
    """Train, and print the guarantee and what was learned."""
    pyro.clear_param_store()
    torch.manual_seed(0)
    kinds = torch.stack([torch.arange(PIXELS) // 4 % 2, torch.arange(PIXELS) % 2]).float()
    clean = kinds[torch.randint(2, (4000,))]
    x = torch.where(torch.rand(4000, PIXELS) < 0.05, 1 - clean, clean)
    vae, optim = VAE(), pyro.optim.Adam({"lr": 0.02})
    svi = bdpvi.PrivateSVI(vae.model, vae.guide, optim, pyro.infer.Trace_ELBO(), **SETTINGS)  # type: ignore[arg-type]
    for _ in range(200):
        svi.step(x)
    codes = vae.encoder(kinds)[:, :CODES]
    right = (vae.decoder(codes) > 0) == kinds.bool()
    print(svi.worst_case(delta=1e-5))
    print(f"pixels of two pictures that are rebuilt: {100 * right.float().mean():.0f} %")


if __name__ == "__main__":
    main()
