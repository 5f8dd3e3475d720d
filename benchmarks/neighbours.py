"""Time of all neighbours of a table of Adult's shape, by route and guide.

    python benchmarks/neighbours.py [--records 39073] [--features 14]

Each line is one fit, which leaves every record out in turn: seconds of a processor, of one thread.
"""

from __future__ import annotations

import argparse
import platform
import time

import torch
from printed import command

import bdpvi
from bdpvi import BayesianLogisticRegression, Dataset
from bdpvi.guides import FullRank, GaussianGuide, Laplace, MeanField


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=39_073)
    parser.add_argument("--features", type=int, default=14)
    options = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(options.records, options.features, generator=generator, dtype=torch.float64)
    weights = torch.randn(options.features, generator=generator, dtype=torch.float64)
    chance = torch.sigmoid(x @ weights / options.features**0.5)
    y = (torch.rand(options.records, generator=generator, dtype=torch.float64) < chance).double()
    print("$", command())
    print(f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}")
    guides: list[tuple[type[GaussianGuide], float | None]]
    guides = [(Laplace, None), (MeanField, 0.5), (FullRank, 0.5)]
    for guide, clip in guides:
        model = BayesianLogisticRegression(clip=clip)
        begun = time.process_time()
        bdpvi.fit(
            model,
            guide(model),
            Dataset(x, y),
            training=bdpvi.Training(device="cpu"),
            progress=False,
        )
        print(f"{guide.__name__:>10} {time.process_time() - begun:6.1f} s", flush=True)


if __name__ == "__main__":
    main()
