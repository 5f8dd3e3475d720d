"""Run a study from a checkout: ``PYTHONPATH=benchmarks python -m studies NAME``."""

from __future__ import annotations

import argparse
from pathlib import Path

from bdpvi._ground import progress, store
from studies.catalogue import STUDIES

parser = argparse.ArgumentParser(
    prog="studies",
    description="Write a study's numbers (CSV), figures and findings.",
)
parser.add_argument("name", choices=STUDIES)
parser.add_argument("--out", type=Path, default=Path("studies"), help="folder for what it writes")
parser.add_argument("--scale", type=float, default=1.0, help="fraction of the full size, in (0, 1]")
parser.add_argument("--seed", type=int, default=0, help="of everything random")
given = parser.parse_args()
store.check_writable(given.out)
finding = STUDIES[given.name](given.out, seed=given.seed, track=progress.bar, scale=given.scale)
print(finding.text)
print("Wrote " + ", ".join(str(path) for path in finding.files))
