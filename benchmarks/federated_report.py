"""The tables of benchmarks/federated.py from its finished runs.

    python benchmarks/federated_report.py RUNS

Accuracies are means over runs, with the smallest and the largest. Costs are those of the first run:
a worst-case ε follows from the settings alone, and one of a path belongs to its run.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from published import RenyiAccountant

from bdpvi.privacy import worst_case
from bdpvi.privacy.events import SampledGaussian
from bdpvi.privacy.groups import group

Run = dict[str, Any]
PUBLISHED = {
    (100, "i.i.d."): ("0.97", "0.86 (8)", "0.92 (2.0)"),
    (100, "shards"): ("0.97", "0.78 (8)", "0.88 (4.0)"),
    (1000, "i.i.d."): ("0.98", "0.97 (3)", "0.97 (1.0)"),
    (1000, "shards"): ("0.98", "0.95 (3)", "0.96 (1.5)"),
    (10_000, "i.i.d."): ("0.99", "0.97 (1)", "0.98 (0.5)"),
    (10_000, "shards"): ("0.99", "0.96 (1)", "0.97 (0.6)"),
}
"""Accuracy without privacy; at DP ε; at the ε called Bayesian."""
JOINT = {"i.i.d.": "0.97, 0.15, 0.74", "shards": "0.97, 0.12, 0.62"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", type=Path)
    found: dict[str, list[Run]] = {}
    for path in sorted(parser.parse_args().runs.glob("*.json")):
        run = json.loads(path.read_text(encoding="utf-8"))
        found.setdefault(path.stem.rpartition("-")[0], []).append(run)
    cases = sorted(found.values(), key=lambda runs: (runs[0]["case"]["clients"], key(runs)))

    def named(start: str) -> list[list[Run]]:
        return [runs for runs in cases if runs[0]["case"]["name"].startswith(start)]

    print(f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}")
    for title, head, start, row in (
        ("Accuracy at a client's ε", ROWS, "row", of_row),
        ("The same with networks", ROWS, "cnn", of_row),
        ("Settings", SETTINGS, "", of_settings),
        ("What clients paid, by relation", PAID, "", of_paid),
        ("Joint: clients and their records", JOINTLY, "joint", of_joint),
        ("Split, joint, client only, none: 1,000 clients", JOINTLY, "figure", of_joint),
        ("Without noise, same settings", "clients | split | accuracy", "no noise", of_plain),
    ):
        lines = [one for runs in named(start) if (one := row(runs))]
        print(f"\n{title}\n\n| {head} |\n|{' --- |' * (head.count('|') + 1)}")
        print("\n".join(f"| {line} |" for line in lines))


def key(runs: Sequence[Run]) -> str:
    """Return what puts cases of as many clients in order."""
    case = runs[0]["case"]
    return f"{case['name']} {case['split']} {-case['clip']:g}"


def accuracy(runs: Sequence[Run]) -> str:
    """Return the mean and the range of the runs' accuracies."""
    values = [run["accuracy"] for run in runs]
    mean = sum(values) / len(values)
    if len(values) == 1:
        return f"{mean:.3f} (1 run)"
    return f"{mean:.3f} ({min(values):.3f} to {max(values):.3f}, {len(values)} runs)"


ROWS = (
    "clients | split | published: base | DP (ε) | Bayesian (ε) | ours, worst case | ε, add or "
    "remove | δ"
)


def of_row(runs: Sequence[Run]) -> str:
    case = runs[0]["case"]
    published = " | ".join(PUBLISHED[case["clients"], case["split"]])
    return (
        f"{case['clients']:,} | {case['split']} | {published} | {accuracy(runs)} | "
        f"{runs[0]['worst case']:.2f} | {case['delta']:g}"
    )


SETTINGS = (
    "run | clients | split | weights | rounds | client rate | clip | noise multiplier | local "
    "steps, rate | server's rate, momentum | seconds a round"
)


def of_settings(runs: Sequence[Run]) -> str:
    case = runs[0]["case"]
    seconds = min(run["seconds a round"] for run in runs)
    return (
        f"{case['name']} | {case['clients']:,} | {case['split']} | {runs[0]['weights']:,} | "
        f"{case['rounds']} | {case['client_rate']:g} | {case['clip']:g} | {runs[0]['z']:.3f} | "
        f"{case['local_steps']}, {case['local_rate']:g} | {case['rate']:.3g}, "
        f"{case['momentum']:g} | {seconds:.2f}"
    )


PAID = (
    "run | clients | split | clip | relation | worst case: exact | by moments | path: "
    "hockey-stick | by moments | plain mean | median client | norm or distance over C, first → "
    "last"
)


def of_paid(runs: Sequence[Run]) -> str:
    """Return a line for each relation. No ε of a path is above the worst case of its conversion."""
    run, case, lines = runs[0], runs[0]["case"], []
    start = f"{case['name']} | {case['clients']:,} | {case['split']} | {case['clip']:g}"
    # All clients taking part, a replacement is an addition at half the noise.
    for relation, size, noise in (
        ("add or remove", "norms", run["z"]),
        ("replace", "apart", run["z"] / 2),
    ):
        if relation not in run:
            if "add or remove" in run:
                lines.append(f"{start} | replace, as two changes | {by_two(run)}{' | —' * 6}")
            continue
        paid = run[relation]
        most = RenyiAccountant().epsilon(noise, case["client_rate"], case["rounds"], case["delta"])
        lines.append(
            f"{start} | {relation} | {paid['worst case']:.3g} | {most:.3g} | "
            f"{paid['path, hockey-stick']:.3g} | {capped(paid['path, moments'], most)} | "
            f"{capped(paid['path, moments, plain mean'], most)} | {paid['median client']:.3g} | "
            f"{run[size][0]:.2f} → {run[size][1]:.2f}"
        )
    return " |\n| ".join(lines)


def capped(epsilon: float, most: float) -> str:
    return f"{epsilon:.3g}" if epsilon < most else f"{most:.3g} (none gained)"


def by_two(run: Run) -> str:
    """Return ε and δ of a replacement, which is a removal and an addition."""
    case = run["case"]
    rounds = SampledGaussian(
        noise_multiplier=run["z"], rate=case["client_rate"], steps=case["rounds"]
    )
    one = worst_case.epsilon([rounds], case["delta"])
    two = None if one is None else group(one, 2)
    return "—" if two is None else f"{two.epsilon:.3g} at δ = {two.delta:.1g}"


JOINTLY = (
    "scheme | clients | split | published: base, DP, Bayesian | ours | client: ε, δ | record: ε at "
    "δ = 1e-5 | who may see what"
)
SEEN: dict[str, str] = {
    "figure: split": "the server may see single updates",
    "figure: no noise": "nobody is protected",
}


def of_joint(runs: Sequence[Run]) -> str:
    run, case = runs[0], runs[0]["case"]
    published = JOINT[case["split"]] if case["name"] == "joint" else "—"
    client = f"{run['worst case']:.2f}, {case['delta']:g}" if "worst case" in run else "none"
    record = case["own_epsilon"] or run.get("record")
    seen = SEEN.get(case["name"], "sums, from a trusted server")
    return (
        f"{case['name'].removeprefix('figure: ')} | {case['clients']:,} | {case['split']} | "
        f"{published} | {accuracy(runs)} | {client} | "
        f"{'none' if record is None else f'{record:.2g}'} | {seen}"
    )


def of_plain(runs: Sequence[Run]) -> str:
    case = runs[0]["case"]
    return f"{case['clients']:,} | {case['split']} | {accuracy(runs)}"


if __name__ == "__main__":
    main()
