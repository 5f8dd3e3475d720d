"""Write docs/reliability.md: what was tried to refute the guarantees, and what was found.

    bdpvi audit --simulated --runs 1000 --out build/audit
    python benchmarks/reliability.py --audit build/audit/audit.json --out docs/reliability.md

Figures of other commands are read from the files that these wrote. The audit of a simulated table
is no secret.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import resource
import tempfile
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
from fresh_records import DELTA, FEW, MORE, SHIFTED, drawn_shifts, shifted
from matplotlib.figure import Figure

from bdpvi._ground.checkpoint import Checkpoint
from bdpvi.audits.found import Audit
from bdpvi.datasets.schema import Schema
from bdpvi.datasets.types import ColumnType
from bdpvi.privacy.entry import Entry
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.ledger import Ledger
from bdpvi.synthesis import synthesize
from bdpvi.tables import Machine, Unit

ROOT = Path(__file__).parents[1]
FULL = {"runs": 1000, "charges": 10_000, "inputs": 100_000}
"""Sizes of the design; smaller ones are called so."""
RELEASES = 500
OWN = (
    (
        "worst-case draws",
        "the whole release against quadrature, and the most that one record moves",
        "bayesian/gated",
    ),
    (
        "mixed models",
        "sums against brute force, coverage, the price of a group",
        "regression/test_group_moments.py regression/test_group_scores.py",
    ),
    (
        "a Table 1",
        "errors and coverage against what was asked, each statistic's price",
        "synthesis/test_table_one.py",
    ),
    ("formulas", "the functions that formulaic's matrices span", "datasets/test_formula.py"),
    (
        "a statement",
        "no word changes when any record is left out",
        "bayesian/test_statements.py",
    ),
    (
        "numbers far out",
        "σ from 1e-8 to 1e8, δ from 1e-300, orders to 1e6, 500 dimensions, 0 to 3 records",
        "privacy/test_extremes.py",
    ),
)
"""Parts with tests of their own: what these try, and where they are."""


def growth(charges: int) -> tuple[float, float]:
    """Return CPU seconds of a charge and a total, of the first tenth and of the last tenth."""
    ledger, taken = Ledger(), []
    for at in range(charges):
        begun = time.process_time()
        event = SampledGaussian(noise_multiplier=1e5 * (1 + at / charges))
        ledger.charge(Entry(kind="release", events=(event,)))
        ledger.worst_case(DELTA)
        taken.append(time.process_time() - begun)
    part = max(1, charges // 10)
    return sum(taken[1 : part + 1]) / part, sum(taken[-part:]) / part


def releases(number: int) -> tuple[float, float, float]:
    """Return CPU seconds of a release, of the first and of the last tenth, and added peak memory.

    Each is of synthetic rows at another price, and all are on one ledger in a file. Times are
    medians; memory is in MiB, from the end of the first tenth on.
    """
    frame = pd.DataFrame({name: ["0", "1"] * 250 for name in "abc"})
    schema = Schema({name: ColumnType(levels=("0", "1")) for name in "abc"}, "coins")
    taken, part, before = [], max(1, number // 10), 0
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few rows
        ledger = Ledger.at(Path(folder) / "ledger.jsonl")
        for at in range(number + 1):
            begun = time.process_time()
            synthesize(
                frame, schema, epsilon=0.01 * (1 + at / number), delta=1e-9, ledger=ledger,
                unit=Unit(), machine=Machine(progress=False),
            )  # fmt: skip
            taken.append(time.process_time() - begun)
            if at == part:
                before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return median(taken[1 : part + 1]), median(taken[-part:]), more


def drawn(audits: list[Audit]) -> Figure:
    """Return a figure of claimed and audited ε."""
    figure = Figure(figsize=(7.0, 0.42 * len(audits) + 1.2), layout="constrained")
    axes = figure.subplots()
    for at, one in enumerate(reversed(audits)):
        axes.plot([0, one.claim], [at, at], color="#dddddd", lw=6, solid_capstyle="butt", zorder=1)
        axes.plot([one.certain, one.low], [at, at], color="#1f77b4", lw=2, zorder=2)
        axes.plot(one.low, at, "o" if one.runs else "D", color="#1f77b4", ms=7, zorder=3)
        axes.plot(one.claim, at, "|", color="#d62728", ms=16, mew=2.5, zorder=4)
    names = [audit.door for audit in reversed(audits)]
    axes.set_yticks(range(len(names)), names)
    axes.plot([], [], "|", color="#d62728", ms=12, mew=2.5, ls="", label="claimed")
    axes.plot([], [], "D", color="#1f77b4", ls="", label="audited, exact")
    axes.plot([], [], "o-", color="#1f77b4", label="audited, 95 % and 99.9 %")
    axes.set(xlim=(0, None), ylim=(-0.6, len(names) - 0.4), xlabel="ε")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper right", ncols=3, frameon=False, fontsize=9)
    return figure


def printed(name: str) -> str:
    """Return what a benchmark printed."""
    return (ROOT / "docs" / "benchmarks" / f"{name}.txt").read_text(encoding="utf-8")


def tests_in(*paths: str) -> int:
    """Return the number of test functions in files and folders of ``tests``."""
    given = [ROOT / "tests" / path for path in paths]
    files = [one for path in given for one in (path.rglob("*.py") if path.is_dir() else [path])]
    return sum(len(re.findall("^def test_", one.read_text("utf-8"), re.MULTILINE)) for one in files)


def short(name: str, size: int) -> str:
    """Return a note on a part that was not run at its full size."""
    return "" if size >= FULL[name] else f" **Not at full size**: {size:,} of {FULL[name]:,}."


def audited(audits: list[Audit]) -> str:
    runs = max(audit.runs for audit in audits)
    rows = [
        f"| {audit.door}{'' if audit.worst is None else ' (Bayesian, a mean)'} "
        f"| {audit.claim:.3f} | {audit.low:.3f} | {audit.certain:.3f} "
        f"| {audit.tightness:.0%} "
        f"| {f'one, {audit.canaries:,} canaries' if audit.canaries else audit.runs or 'exact'} "
        f"| {audit.seconds:.0f} |"
        for audit in audits
    ]
    bayesian = [audit for audit in audits if audit.worst is not None]
    worst_case = [audit for audit in audits if audit.worst is None]
    wrong = sum(audit.refuted for audit in worst_case)
    named = "".join(
        f" {one.door} are tried with random records, as their ε is a mean; a search finds one with "
        f"ε = {one.worst:.3f}, and of single records a Bayesian ε says nothing."
        for one in bayesian
    )
    return f"""## Audits of the whole way

Two tables that differ in one record go through each way of releasing (*door*), at
δ = {audits[0].delta:g}. Where what is shared is Gaussian, or has a density, no test is better
than the ratio of both densities, and the audited ε is exact for the pair tried: the worst record
that a search finds, a record that is clipped, or random records. Of steps and rounds an attacker
sees every noisy sum; of objective perturbation the exact minimum, for which δ is a mean over
minima with its error. Elsewhere an attacker who knows all other rows guesses, and the audited ε is
the largest that the guesses refute; of DP-SGD also by one run, in which every planted record
(*canary*) is there by a coin (Steinke, Nasr and Jagielski 2023).{short("runs", runs)}
Worst-case claims refuted at 99.9 %: **{wrong} of {len(worst_case)}**.{named}

| door | claimed ε | audited, 95 % | 99.9 % | tightness | pairs of runs | seconds |
| --- | --- | --- | --- | --- | --- | --- |
{chr(10).join(rows)}

![Claimed and audited ε of each door](figures/audited.svg)

A low tightness proves nothing either way; 0 says that this attack is weak. Of noisy scores and
DPVI a guesser sees the last answer only, while their accountants assume that all rounds are seen,
as the rows on rounds and steps do. The record that is tried moves the answer of objective
perturbation by little of its noise, except far out, where guesses rarely get and the row on minima
looks.

    bdpvi audit --simulated --runs {runs} --out build/audit"""


def promised() -> str:
    command, *lines = printed("fresh-records").strip().splitlines()
    cells = [[cell.strip() for cell in line.split("|")] for line in lines[2:]]
    tables, missed = (sum(int(row[at]) for row in cells) for at in (3, 6))
    return f"""## Does a Bayesian ε hold for fresh records?

A draw from `guides.Laplace`; {SHIFTED:,} fresh records of the same population are each added, and
the posterior is fitted again. Their ε is where the mean of their δ is {DELTA:g}: it should stay
below the claim. Misses: **{missed} of {tables}** (`{command.removeprefix("$ ")}`).

{chr(10).join(lines)}

The estimators behind such an ε have [a study of their own](studies/coverage.md)."""


def by_size(found: pd.DataFrame) -> str:
    same = found[(found["shift"] == 1) & ~found["other"]]
    lines = []
    for size, part in same.groupby("rows"):
        most = part.iloc[int(part["delta"].argmax())]
        lines.append(
            f"| {size:,} | {part['claim'].median():.3f} | {part['ratio'].median():.2f} "
            f"| {most['delta']:.2f} ± {most['error']:.2f} |"
        )
    largest = found.groupby("rows")["ratio"].max()
    unlike = ", ".join(f"{one:.1f} times that of {rows:,} records" for rows, one in largest.items())
    return f"""### Larger tables, and records of another population

The more records, the nearer is the claim to what it bounds, and the less room is left for records
that are unlike the table: {FEW} tables of each population, with {MORE:,} fresh records each, of
which {SHIFTED:,} give an ε. The last column is the mean of their δ at the claimed ε, over the δ of
the claim: the largest of a table, with its standard error.

| records | claimed ε, median | fresh ε over claimed, median | δ over claimed, largest |
| --- | --- | --- | --- |
{chr(10).join(lines)}

A record whose features are larger, or that has the other label, is of another population: nothing
is claimed of it. It costs more than the claimed ε of a large table: at most {unlike} (the figure:
medians over tables; {SHIFTED:,} records each; the model clips features at ±2, so the lines level
off).
`bdpvi.bayesian.Add` warns when records that it is given are unlike the table; if you expect
others, rely on the worst-case ε.

![Fresh ε over claimed, by shift](figures/shifted.svg)"""


def others(charges: int) -> str:
    early, late = growth(charges)
    first, last, memory = releases(RELEASES)
    grows = " **It grows.**" if last > 1.1 * first else ""
    faults = printed("interruptions")
    counts = [json.loads(line) for line in faults.splitlines() if line.startswith("{")]
    kills, full = (sum(count[name] for count in counts) for name in ("kills", "full disks"))
    found = re.findall(r"^faults: (.*)$", faults, re.MULTILINE)[0]
    ((inputs, wrong),) = re.findall(
        r"^(\d+) inputs; faults: (.*)$", printed("damage"), re.MULTILINE
    )
    ((caught, patches),) = re.findall(
        r"^(\d+) of (\d+) faults are caught$", printed("sabotage"), re.MULTILINE
    )
    ((cells, unlike),) = re.findall(
        r"^(\d+) cells, .*, (\d+) differences", printed("odd-cells"), re.MULTILINE
    )
    ((attacked, above),) = re.findall(
        r"^(\d+) tables of .* in (\d+) tables;", printed("membership"), re.MULTILINE
    )
    own = [
        f"| {part} | {tests_in(*paths.split())} tests | {what}; not run by this page | `pytest -m "
        f'"" {" ".join(f"tests/{path}" for path in paths.split())}` |'
        for part, what, paths in OWN
    ]
    return f"""## Sabotage, faults, numbers and growth

| part | tried | found | command |
| --- | --- | --- | --- |
| deliberate faults in the source | {patches} patches | {caught} caught, each by a test that it \
names | `python tests/sabotage/run.py` |
| kills and full disks | {kills} kills, {full} full disks | {found} \
| `python benchmarks/interruptions.py --kills 330` |
| tables, shared files, fits, ledgers, checkpoints, states, messages and commands, damaged or \
forged | {int(inputs):,} inputs, of 10 s and 1 GiB each | {wrong} | `python benchmarks/damage.py` |
| cells of a table, in every kind of table and file | {int(cells):,} cells \
| {unlike} read otherwise | `python benchmarks/odd_cells.py` |
| membership of fresh records | the best attack on {attacked} tables of 200 records | right more \
often than the certified average in {above} | `python benchmarks/guesses.py --small 200` |
{chr(10).join(own)}
| growth of a ledger | {charges:,} different charges, a total after each | \
{early * 1e3:.2f} ms at first, {late * 1e3:.2f} ms at the end (CPU) | this page's |
| growth of releases | {RELEASES} of synthetic rows at different prices on one ledger | \
{first * 1e3:.1f} ms at first, {last * 1e3:.1f} ms at the end (CPU), {memory:+.1f} MiB.{grows} \
| this page's |

{(short("charges", charges) + short("inputs", int(inputs))).strip()}"""


def main() -> None:
    """Write the page and its figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--audit", type=Path, default=ROOT / "build" / "audit" / "audit.json")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "reliability.md")
    parser.add_argument("--charges", type=int, default=FULL["charges"])
    given = parser.parse_args()
    content: list[dict[str, Any]] = json.loads(given.audit.read_text(encoding="utf-8"))["audits"]
    audits = [
        Audit(**{name: value for name, value in one.items() if name != "tightness"})
        for one in content
    ]
    (given.out.parent / "figures").mkdir(parents=True, exist_ok=True)
    drawn([audit for audit in audits if audit.worst is None]).savefig(
        given.out.parent / "figures" / "audited.svg"
    )
    kept = Checkpoint(given.audit.parent / "shifted", {})
    found = shifted(kept)
    drawn_shifts(found).savefig(given.out.parent / "figures" / "shifted.svg")
    parts = [
        audited(audits),
        promised(),
        by_size(found),
        others(given.charges),
    ]
    today = datetime.datetime.now(datetime.timezone.utc).date()
    page = f"""# Reliability

What was tried to refute the guarantees, how often, and what was found. `make reliability` writes
this page: {today}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python
{platform.python_version()}; the machine was shared with other work.

    python benchmarks/reliability.py --charges {given.charges}

{(chr(10) * 2).join(parts)}
"""
    given.out.write_text(re.sub(r"\n{3,}", "\n\n", page.rstrip()) + "\n", encoding="utf-8")
    print(f"Wrote {given.out}")


if __name__ == "__main__":
    main()
