"""Time of a release, a network's steps and a total after many charges in a ledger.

    python benchmarks/ledger.py

Each number is CPU seconds, the median of five. ``equal`` charges all have the same cost,
``different`` ones all differ, as if each release had its own ε. ``anew`` reads the file, like
another process.
"""

from __future__ import annotations

import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from printed import command
from torch import nn

import bdpvi
from bdpvi._ground.chain import save, whole_file
from bdpvi.guides import MeanField
from bdpvi.privacy.entry import Charge, Entry
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.ledger import Ledger

COUNTS = (10, 1_000, 10_000)
DELTA = 1e-4
NOISE = 1e5
"""Of one charge: ten thousand cost little, so that a release still finds its ε."""


def entry(of: str, number: int, equal: bool) -> Entry:
    """Return a release before."""
    scale = 1.0 if equal else 1 + number / 20_000
    made = Charge(1, 1e8 * scale)
    return Entry(
        kind="draws", of=of, charge=made, events=(SampledGaussian(noise_multiplier=NOISE * scale),)
    )


def table() -> bdpvi.Dataset:
    """Return a simulated table of 2,000 records."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 5, generator=generator, dtype=torch.float64)
    return bdpvi.Dataset(x, (x[:, 0] > 0).double())


def median(work: Callable[[], object]) -> float:
    """Return the median CPU time of five."""
    took = []
    for _ in range(5):
        begun = time.process_time()
        work()
        took.append(time.process_time() - begun)
    return statistics.median(took)


def rows(path: Path, count: int, equal: bool, own: bool) -> dict[str, float]:
    """Return what takes how long after so many charges, by the fit itself or by another."""
    data = table()
    save(path, Ledger().content())
    model = bdpvi.BayesianLogisticRegression(clip=1.0, prior_scale=0.16, limit=2.0, intercept=True)
    guide = MeanField(model, noise_scale=0.1)
    fit = bdpvi.fit(model, guide, data, ledger=Ledger(path), progress=False)
    of = fit.kept.name if own else "another"
    lines = ({"charge": entry(of, number, equal).to_dict()} for number in range(count))
    save(path, whole_file(Ledger(path).book().header, *lines))
    module = nn.Linear(5, 1)
    private = bdpvi.make_private(
        module, torch.optim.SGD(module.parameters(), lr=0.1), data=data, rate=0.1,
        loss=lambda out, y: nn.functional.binary_cross_entropy_with_logits(out[:, 0], y),
        max_grad_norm=1.0, noise_multiplier=20.0,
    )  # fmt: skip

    def ten_steps() -> None:
        for _ in range(10):
            private.step()

    def anew() -> None:
        assert Ledger(path).worst_case(DELTA) is not None

    def at(**given: float) -> None:
        bdpvi.release(fit, 1, delta=DELTA, **given)  # type: ignore[arg-type]

    epsilon = iter(torch.linspace(0.6, 0.8, 5).tolist())
    return {
        "release at a temperature": median(lambda: at(temperature=1e8)),
        "release at an ε": median(lambda: at(epsilon=next(epsilon))),
        "a charge": median(lambda: fit.ledger.charge(entry(of, 1, equal=True))),
        "total": median(lambda: fit.ledger.worst_case(DELTA)),
        "10 steps of a network": median(ten_steps),
        "total, anew": median(anew),
    }


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print("command:", command())
    print("machine:", platform.platform(), platform.machine(), "one thread")
    print("versions: python", platform.python_version(), "torch", torch.__version__)
    print("CPU seconds after 10, 1,000 and 10,000 charges; what 1,000 take over what 10 take")
    with tempfile.TemporaryDirectory() as folder:
        for equal, own in ((True, True), (True, False), (False, True), (False, False)):
            found = [rows(Path(folder) / f"{n}.jsonl", n, equal, own) for n in COUNTS]
            whose = "this fit's" if own else "another's"
            print(f"\n{'equal' if equal else 'different'} charges, {whose}")
            for name in found[0]:
                each = [one[name] for one in found]
                numbers = " ".join(f"{one:9.4f}" for one in each)
                print(f"  {name:26} {numbers}   × {each[1] / each[0]:.2f}", flush=True)


if __name__ == "__main__":
    main()
