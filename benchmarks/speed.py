"""The goals of speed and memory, each beside what it is compared with, in processes of their own.

    OMP_NUM_THREADS=1 python benchmarks/speed.py [--peer PYTHON] [--only NAME ...]

Seconds are those of the processor, of commands and first calls with their imports; modules are
compiled before, as pip does. Both sides of a ratio take turns. ``--peer`` is an interpreter with
d3p (see ``against_d3p.py``). What misses its goal runs once more under the profiler, which prints
where the most time is spent.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import cProfile
import io
import json
import multiprocessing
import os
import platform
import pstats
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from statistics import median
from time import process_time
from typing import Any

import numpy as np
from printed import command

COMMANDS = {
    "private": "private --data t.csv --one-row-per-person --target y --positive 1 --epsilon 1 "
    "--constants k.json --out",
    "predict": "predict private/release.json --data t.csv --out",
}
GOALS: dict[str, tuple[str, float]] = {
    "private": ("bdpvi private, 1,000 × 20, public bounds: s", 3.0),
    "predict": ("bdpvi predict, 1,000 × 20: s", 1.0),
    "first": ("first release of a Laplace fit, N = 400: s", 0.8),
    "release": ("release of 40,000 × 10 over its fit", 2.0),
    "large": ("release of 10⁶ × 20: s", 25.0),
    "large MB": ("fit and release of 10⁶ × 20: MB added", 1000.0),
    "fit 1e5": ("private of 10⁵ × 20 over scikit-learn's fit", 4.0),
    "fit 1e6": ("private of 10⁶ × 20 over scikit-learn's fit", 3.0),
    "fit MB": ("private of 10⁶ × 20: MB added", 400.0),
    "proba": ("predict_proba of 10⁶ × 20 over scikit-learn's", 2.0),
    "step": ("recorded step of PrivateSVI over SVI, d = 10", 1.05),
    "d3p 10": ("recorded step of PrivateSVI over d3p, d = 10", 3.0),
    "d3p 100": ("recorded step of PrivateSVI over d3p, d = 100", 2.0),
    "noise 1e5": ("noise of 10⁵ numbers over torch.normal", 3.0),
    "noise 1e6": ("noise of 10⁶ numbers over torch.normal", 3.0),
}


def taken(run: Callable[[], object]) -> float:
    start = process_time()
    run()
    return process_time() - start


def ratio(own: Callable[[], object], other: Callable[[], object], turns: int) -> float:
    both = np.array([(taken(own), taken(other)) for _ in range(turns)])
    return float(median(both[:, 0]) / median(both[:, 1]))


def held() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def most() -> float:
    return getrusage(RUSAGE_SELF).ru_maxrss / 1024


def arrays(rows: int, columns: int = 20) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, columns)).clip(-4, 4)
    return x, (x[:, 0] + x[:, 1] / 2 + random.logistic(size=rows) > 0).astype(int)


def of_command(name: str, out: str) -> float:
    from bdpvi.__main__ import main

    sys.argv = ["bdpvi", *COMMANDS[name].split(), out]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main()
    return process_time()


def of_release(name: str) -> float:
    import torch

    import bdpvi
    from bdpvi.guides import Laplace

    sizes = {"first": (400, 10), "release": (40_000, 10)}
    x, y = (torch.from_numpy(one).double() for one in arrays(*sizes.get(name, (1_000_000, 20))))
    model, made, before = bdpvi.BayesianLogisticRegression(intercept=False), [], held()
    data = bdpvi.Dataset(x, y)
    fit = taken(lambda: made.append(bdpvi.fit(model, Laplace(model), data, progress=False)))
    release = taken(lambda: bdpvi.release(made[0], draws=1))
    return {"release": release / fit, "large MB": most() - before}.get(name, release)


def of_private(name: str) -> float:
    import pandas as pd
    from sklearn.linear_model import LogisticRegression

    import bdpvi
    from bdpvi.sklearn import PrivateLogisticRegression

    def private(frame: pd.DataFrame) -> object:
        quiet = bdpvi.tables.Machine(progress=False)
        return bdpvi.private(frame, target="y", positive=1, epsilon=1.0, machine=quiet)

    x, y = arrays(100_000 if name == "fit 1e5" else 1_000_000)
    other = LogisticRegression()
    if name == "proba":
        own = PrivateLogisticRegression(bounds=(-4, 4), classes=(0, 1)).fit(x[:10_000], y[:10_000])
        other.fit(x[:10_000], y[:10_000])
        return ratio(lambda: own.predict_proba(x), lambda: other.predict_proba(x), 5)
    frame = pd.DataFrame(x).add_prefix("x").assign(y=y)
    private(frame[:5000])  # loads what is loaded late
    if name != "fit MB":
        return ratio(lambda: private(frame), lambda: other.fit(x, y), 3)
    before = held()
    private(frame)
    return most() - before


def of_step(name: str, peer: str) -> float:
    import against_d3p

    found = against_d3p.ours(d := 100 if name == "d3p 100" else 10, 0, 1000, "cpu")
    own = found["PrivateSVI, Trace_ELBO"]["step"]
    if name == "step":
        return own / found["SVI, Trace_ELBO"]["step"]
    ask = [peer, against_d3p.__file__, "--only-peer", "--features", str(d)]
    return float(own / json.loads(subprocess.check_output(ask))[0]["step"])


def measured(name: str, peer: str, profiled: bool = False) -> tuple[float, str]:
    """Return what a row's goal is about, and the profile if asked for."""
    warnings.simplefilter("ignore")
    kind, shown, profile = name.split()[0], io.StringIO(), cProfile.Profile()
    with profile if profiled else contextlib.nullcontext():
        if kind == "noise":
            import noise

            found = float(np.divide(*noise.measured(int(float(name.split()[1])), "cpu")))
        elif kind in COMMANDS:
            found = of_command(name, name + profiled * " again")
        elif kind in ("step", "d3p"):
            found = of_step(name, peer)
        else:
            found = (of_private if kind in ("fit", "proba") else of_release)(name)
    if profiled:
        pstats.Stats(profile, stream=shown).strip_dirs().sort_stats("tottime").print_stats(6)
    lines = [one for one in shown.getvalue().splitlines() if one.endswith((")", "}"))]
    return found, "\n".join(lines[1:])


def alone(*given: Any) -> tuple[float, str]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(measured, *given).result()


def main() -> None:
    """Print the table of goals."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peer", default="", help="interpreter with d3p")
    parser.add_argument("--only", nargs="*", choices=GOALS, default=[*GOALS])
    given = parser.parse_args()
    names = ("torch", "pyro-ppl", "numpy", "pandas", "scikit-learn")
    print("$", command())
    print(
        f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()},",
        end="",
    )
    print(*(f" {one} {version(one)}" for one in names), sep=",")
    print(f"\n{'what':<50} {'now':>7} {'goal':>7}")
    import bdpvi.datasets
    import bdpvi.guides

    for package in (bdpvi, bdpvi.datasets, bdpvi.guides):
        compileall.compile_dir(Path(str(package.__file__)).parent, quiet=1)
    os.chdir(tempfile.mkdtemp())
    head = [f"x{at}" for at in range(20)]
    table, names_of = np.column_stack(arrays(1000)), ",".join([*head, "y"])
    np.savetxt("t.csv", table, "%.3f", ",", header=names_of, comments="")
    Path("k.json").write_text(json.dumps({"source": "By law.", **{one: [-4, 4] for one in head}}))
    for name in given.only:
        if given.peer or not name.startswith("d3p"):
            (what, goal), (now, _) = GOALS[name], alone(name, given.peer)
            print(f"{what:<50} {now:7.2f} {goal:7.2f}", flush=True)
            if now > goal:
                for ledger in Path().glob("t.csv.ledger*"):
                    ledger.unlink()
                print(alone(name, given.peer, True)[1], flush=True)


if __name__ == "__main__":
    main()
