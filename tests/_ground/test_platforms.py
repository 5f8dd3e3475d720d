"""The way from a table to shared files where the system has less than Linux has."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

WITHOUT = """
import os, sys, types
import filelock

whole = types.ModuleType("os")  # for filelock, which has a way of its own on each system
whole.__dict__.update(vars(os))
for name, module in list(sys.modules.items()):
    if name.startswith("filelock") and hasattr(module, "os"):
        module.os = whole
sys.modules["fcntl"] = sys.modules["resource"] = None
for name in (
    "posix_fallocate", "fork", "symlink", "fchmod", "geteuid", "sched_getaffinity", "mkfifo",
    "O_NOFOLLOW", "O_NONBLOCK", "O_DIRECTORY",
):
    if hasattr(os, name):
        delattr(os, name)
"""

WORK = """
import warnings

import numpy as np
import pandas as pd

import bdpvi
from bdpvi import Budget, Ledger

for name in bdpvi.__all__:
    getattr(bdpvi, name)
warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
age = rng.normal(58.0, 14.0, 1500)
sick = np.where(rng.random(1500) < 1 / (1 + np.exp((58 - age) / 10)), "yes", "no")
table = pd.DataFrame({"age": age, "sick": sick})

ledger = Ledger.at("people.jsonl", budget=Budget(10.0))
given = {"target": "sick", "positive": "yes", "ledger": ledger}
found = bdpvi.private(table, epsilon=1.0, out="shared", secret="secret", **given)
assert bdpvi.load_release("shared/release.json").samples.equal(found.samples)
kinds = ["reserved", "constants", "constants", "release", "ended"]
assert [one.kind for one in Ledger("people.jsonl").entries()] == kinds

model = bdpvi.BayesianLogisticRegression.unweighted(intercept=True)
again = bdpvi.fit_private(model, bdpvi.datasets.load_breast_cancer().train, epsilon=1.0)
bdpvi.save_release(again, "again.json")
assert bdpvi.load_release("again.json").samples.equal(again.samples)

made = bdpvi.synthesize(table, epsilon=1.0, ledger=ledger)
made.save("synthetic.json")
assert len(made.sample(10)) == 10
assert [one.kind for one in Ledger("people.jsonl").entries()] == [*kinds, "release"]
"""


def test_nothing_is_needed_that_another_system_lacks(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT + WORK],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} - {"people.jsonl.lock", ".accounts.lock"} == {
        "people.jsonl", "people.jsonl.head", "people.jsonl.identity", "shared", "secret",
        "again.json", "synthetic.json",
    }  # fmt: skip
    assert {path.name for path in tmp_path.rglob(".*")} <= {".accounts.lock"}


def test_class_variables_say_their_type() -> None:
    """Without it Python 3.10 reads no hint of the class, so that it is refused in a file."""
    root, bare = Path(__file__).parents[2], re.compile(r": ClassVar\b(?!\[)")
    files = [one for part in ("bdpvi", "datasets", "guides") for one in (root / part).rglob("*.py")]
    assert not [str(one) for one in files if bare.search(one.read_text(encoding="utf-8"))]
