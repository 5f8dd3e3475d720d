"""Damage everything that bdpvi reads, at random: it must be read, or refused with a clear error.

    python benchmarks/damage.py [--inputs 100000]

Bytes are flipped, cut, left out and put in; values of JSON files and of states, and words of
commands, are exchanged for others. A fault is any exception but ValueError and OSError, which the
command line shows as one line; more than 10 seconds, or 1 GiB; a command that ends without a word,
or by another status than 0 to 2; and what is accepted where a digest must tell of a change.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import nn
from torch.nn import functional as F

import bdpvi
from bdpvi import (
    BayesianLogisticRegression,
    BayesianPoissonRegression,
    Coupled,
    Dataset,
    Fit,
    Optimum,
    datasets,
)
from bdpvi._ground.schema import to_json
from bdpvi.bayesian import storage
from bdpvi.bayesian.inference.svi import Problem, default_optimiser
from bdpvi.bench import hyperparameters
from bdpvi.datasets import ColumnType, Schema
from bdpvi.datasets.constants import constants_of, read_constants
from bdpvi.datasets.records import Held
from bdpvi.datasets.table import Table
from bdpvi.guides import MeanField
from bdpvi.networks import DPSGDSettings
from bdpvi.networks.opacus import BDPAccountant
from bdpvi.networks.private import Private
from bdpvi.noise.batches import BatchPlan
from bdpvi.noise.keys import Key
from bdpvi.releases import intent
from bdpvi.releases.shared_file import release_bytes
from bdpvi.synthesis import Counts, load, synthesize
from bdpvi.tables import Public, Request
from bdpvi.tables.encoded import encode, rows_of, unpaid

WRONG: tuple[Any, ...] = (
    None, True, -1, 0.5, "x", "", "\ud800", [], [[]], {}, {"x": {}}, 10**400, 2**70, -1e308,
    float("nan"), float("inf"), "DEEP",
)  # fmt: skip
DEEP = "[" * 100_000
SECONDS, KINDS = 10, 20
Change = Callable[[Any, random.Random], Any]


@dataclass(frozen=True)
class Reader:
    """Something that is read.

    Attributes:
        name: what it is.
        whole: its content: bytes, or a state.
        read: takes a content.
        changes: damage it.
        sealed: whether a digest must tell of every change.
    """

    name: str
    whole: Any
    read: Callable[[Any], object]
    changes: tuple[Change, ...]
    sealed: bool = False


def damaged(content: bytes, chance: random.Random) -> bytes:
    """Return bytes with some of them changed, left out or put in."""
    kind, at = chance.randrange(5), chance.randrange(len(content))
    if kind == 0:
        return content[:at]
    if kind == 1:
        return content[:at] + content[at + chance.randint(1, 9) :]
    if kind == 2:
        return content[:at] + chance.randbytes(chance.randint(1, 9)) + content[at:]
    flipped = bytearray(content)
    for _ in range(chance.randint(1, 3)):
        flipped[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    return bytes(flipped)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return every dictionary or list within a value, with each of its keys."""
    result = []
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        result.append((value, key))
        if isinstance(value[key], dict | list) and not isinstance(value[key], torch.Tensor):
            result += places(value[key])
    return result


def exchanged(state: Any, chance: random.Random) -> Any:
    """Return a state with one value left out, put in, or another one."""
    state = deepcopy(state)
    inside, key = chance.choice(places(state))
    kind = chance.randrange(8)
    if kind == 0:
        del inside[key]
    elif kind == 1 and isinstance(inside, dict):
        inside["another"] = chance.choice(WRONG)
    elif isinstance(inside[key], int | float) and kind < 5:
        inside[key] = type(inside[key])(inside[key] + chance.choice([-1, 1, 1000]))
    elif isinstance(inside[key], torch.Tensor) and inside[key].numel() and kind < 6:
        inside[key].view(-1)[chance.randrange(inside[key].numel())] += 1
    else:
        inside[key] = chance.choice(WRONG)
    return state


def rewritten(content: bytes, chance: random.Random) -> bytes:
    """Return a JSON file with one value left out, put in, or another one."""
    changed = json.dumps(exchanged(json.loads(content), chance))
    return changed.replace('"DEEP"', DEEP).encode()


def cell(content: bytes, chance: random.Random) -> bytes:
    """Return a CSV file with one cell that is something else."""
    lines = content.decode().splitlines()
    row = chance.randrange(len(lines))
    cells = lines[row].split(",")
    odd = ("", "?", "1e300", "-1e-300", "9" * 400, '"a\nb"', "=1+1", "\x07", "é", "nan", "inf", '"')
    cells[chance.randrange(len(cells))] = chance.choice(odd)
    lines[row] = ",".join(cells)
    return "\n".join(lines).encode()


@contextmanager
def one_gigabyte() -> Iterator[None]:
    """Let this process take 1 GiB more than it has: more is a MemoryError."""
    if not sys.platform.startswith("linux"):
        yield
        return
    import resource

    now = next(
        splitline
        for splitline in Path("/proc/self/status").read_text().splitlines()
        if "VmData" in splitline
    )
    before = resource.getrlimit(resource.RLIMIT_DATA)
    most = int(now.split()[1]) * 1024 + 2**30
    resource.setrlimit(resource.RLIMIT_DATA, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


@contextmanager
def ten_seconds() -> Iterator[None]:
    """End what takes longer by a RuntimeError, where the system has timers."""

    def late(*_: object) -> None:
        raise RuntimeError(f"takes more than {SECONDS} seconds")

    if not hasattr(signal, "SIGALRM"):
        yield
        return
    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def readers(folder: Path) -> Iterator[Reader]:
    """Return everything that is read, with a place for its files."""
    rng = np.random.default_rng(0)
    age = rng.normal(58, 14, 60)
    frame = pd.DataFrame(
        {
            "age": age,
            "sex": rng.choice(["f", "m"], 60),
            "visits": rng.integers(0, 9, 60),
            "sick": np.where(rng.random(60) < 1 / (1 + np.exp((58 - age) / 10)), "yes", "no"),
        }
    )
    asked = Request(target="sick", positive="yes", epsilon=1.0)

    def at(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
        def put(content: bytes) -> object:
            (folder / name).write_bytes(content)
            return read(folder / name)

        return put

    def table(path: Path) -> None:
        read = Table.of(path).frame(text=path.suffix == ".csv", least=0)
        if list(read) == list(frame):  # then nothing is refused, whatever the rows hold
            try:
                rows = Held(rows_of(read, asked))
                encode(rows, list(map(str, read)), asked, unpaid(Key.of_seed(0)), feasible=False)
            except ValueError as error:
                raise AssertionError("refused by its rows") from error
        datasets.dataset_from_frame(Table.of(path).frame(), "sick", positive="yes", unknown="base")

    yield Reader("CSV", frame.to_csv(index=False).encode(), at("t.csv", table), (damaged, cell))
    frame.to_parquet(folder / "made.parquet")
    content = (folder / "made.parquet").read_bytes()
    yield Reader("Parquet", content, at("t.parquet", table), (damaged,))
    columns = {"age": [0, 110], "sex": ["f", "m"], "visits": {"mean": 4, "sd": 2.5}}
    constants = json.dumps({"source": "the law", **columns}).encode()
    both = (damaged, rewritten)
    yield Reader("constants", constants, at("c.json", read_constants), both)
    found = json.loads(hyperparameters.FILE.read_bytes())["abalone"]
    settings = json.dumps({"abalone": found}).encode()
    yield Reader(
        "settings", settings, at("h.json", lambda p: hyperparameters.load("abalone", p)), both
    )

    model = BayesianLogisticRegression(clip=0.5, prior_scale=0.5)
    data = datasets.dataset_from_frame(frame, "sick", positive="yes")

    def fitted() -> Fit:
        guide = MeanField(model, noise_scale=0.5)
        return bdpvi.fit(model, guide, data, neighbours=Optimum(), progress=False)

    fit = fitted()
    storage.save_fit(fit, folder / "fit")
    released = bdpvi.release(fit, temperature=9.0)
    bdpvi.save_release(released, folder / "made.json")
    content = (folder / "made.json").read_bytes()

    def predicted(path: Path) -> None:
        bdpvi.load_release(path).predict_proba(data.x[:3])

    yield Reader("release", content, at("r.json", predicted), both)
    for name in ("fit.json", "fit.safetensors", "ledger.jsonl"):
        whole = (folder / "fit" / name).read_bytes()

        def opened(path: Path, whole: bytes = whole) -> None:
            guide = MeanField(model, noise_scale=0.5)
            charges = storage.load_fit(path.parent, model, guide).ledger.charges()
            content = path.read_bytes()
            if len(charges) != 1:
                raise AssertionError(f"{len(charges)} charges")
            if content in (whole, whole[:-1]):  # a last line counts without its end
                raise Unchanged

        yield Reader(name, whole, at(f"fit/{name}", opened), (damaged,), sealed=True)
        (folder / "fit" / name).write_bytes(whole)

    work = folder / "work"
    work.mkdir()
    price = {"epsilon": 1.0, "delta": 1e-5}
    facts: Any = {"table": "a", "options": "b", "charge": price, "ledger": None}
    intent.begin_work(work / intent.NAME, **facts)
    yield Reader(
        "intent", (work / "intent.json").read_bytes(),
        at("work/intent.json", lambda file: intent.begin_work(file, **facts)), both, sealed=True,
    )  # fmt: skip
    yield from checkpoints(folder, model, data)
    yield from states(data)
    yield from shared(frame, at)
    yield Reader("message of a client", sent(), received, (exchanged, lying))
    yield Reader("command", COMMANDS, command_in(folder, frame), (reworded,))


class Unchanged(Exception):
    """What was read says the same."""


def checkpoints(folder: Path, model: BayesianLogisticRegression, data: Dataset) -> Iterator[Reader]:
    """Return the parts of an interrupted run."""
    kept = folder / "kept"
    problem = Problem(
        model, MeanField(model), data,
        BatchPlan(steps=3, seed=0), default_optimiser(3),
    )  # fmt: skip
    route = Coupled(chunk=30, checkpoint=kept)

    def go_on(_: object = None) -> None:
        route.train(problem, lambda items, _: items)

    go_on()
    for file in sorted(kept.glob("*.safetensors")):
        whole = file.read_bytes()

        def resumed(content: bytes, file: Path = file) -> None:
            file.write_bytes(content)
            go_on()

        yield Reader(f"checkpoint {file.name}", whole, resumed, (damaged,), sealed=True)
        file.write_bytes(whole)


def states(data: Dataset) -> Iterator[Reader]:
    """Return states of trainings that keep count of what they cost."""

    def network() -> Private:
        torch.manual_seed(0)
        module = nn.Linear(data.x.shape[1], 2)
        return bdpvi.make_private(
            module, torch.optim.SGD(module.parameters(), lr=0.1),
            loss=F.cross_entropy, data=(data.x.float(), data.y.long()),
            noise_multiplier=1.0, max_grad_norm=1.0, rate=0.2,
            settings=DPSGDSettings(seed=0),
        )  # fmt: skip

    def steps() -> tuple[bdpvi.PrivateSVI, tuple[torch.Tensor, ...]]:
        def model(x: torch.Tensor, y: torch.Tensor) -> None:
            w = pyro.sample("w", dist.Normal(torch.zeros(x.shape[1]), 1.0).to_event(1))
            with pyro.plate("records", len(x), subsample_size=6) as at:
                pyro.sample("y", dist.Bernoulli(logits=x[at] @ w), obs=y[at])

        pyro.clear_param_store()
        made = bdpvi.PrivateSVI(
            model, AutoNormal(model), pyro.optim.Adam({"lr": 0.1}), Trace_ELBO(),
            clip=1.0, noise_multiplier=1.0, rate=0.1,
        )  # fmt: skip
        return made, (data.x.float(), data.y.float())

    begun, given = steps()
    begun.step(*given)
    state = begun.state_dict()

    def go_on(state: dict[str, Any]) -> None:
        fresh, given = steps()
        fresh.load_state_dict(state, *given)

    yield Reader("state of PrivateSVI", state, go_on, (exchanged,), True)

    run = network()
    for _ in range(2):
        run.step()
    whole = run.state_dict()
    yield Reader(
        "state of a network", whole, lambda s: network().load_state_dict(s), (exchanged,), True
    )
    accountant = BDPAccountant()
    accountant.step(noise_multiplier=1.0, sample_rate=0.1)
    yield Reader(
        "state for Opacus", dict(accountant.state_dict()),
        lambda s: BDPAccountant().load_state_dict(s), (exchanged,), True,
    )  # fmt: skip


def shared(
    frame: pd.DataFrame, at: Callable[[str, Callable[[Path], object]], Callable[[bytes], object]]
) -> Iterator[Reader]:
    """Return a schema, synthetic data and a release for inference."""
    schema = Schema(
        {
            "age": ColumnType(low=0, high=110),
            "sex": ColumnType(levels=("f", "m")),
            "visits": ColumnType(kind="integer", low=0, high=9),
            "sick": ColumnType(levels=("no", "yes")),
        },
        source="the law",
    )
    both = (damaged, rewritten)
    content = json.dumps(to_json(schema)).encode()
    yield Reader("schema", content, at("s.json", lambda p: Schema.load(p).encode(frame)), both)
    counts = Counts(also=(("age", "sex", "sick"),))
    made = synthesize(frame, schema, epsilon=1.0, settings=counts)
    read = at("y.json", lambda p: load(p).sample(3, seed=0))
    yield Reader("synthetic", made.to_bytes(), read, both)
    public = constants_of({"source": "the law", "age": [0, 110], "sex": ["f", "m"]})
    released = bdpvi.private(
        frame.drop(columns="sick"), target="visits", model=BayesianPoissonRegression(largest=9),
        epsilon=99.0, public=Public(rows=60, constants=public),
    )  # fmt: skip

    def summarised(path: Path) -> None:
        found = bdpvi.load_release(path)
        found.predict_mean(frame)
        found.summary()

    content = release_bytes(released)
    yield Reader("release of counts", content, at("i.json", summarised), both)


def sent() -> dict[str, Any]:
    """Return a client's reply: arrays by name, each with type, shape and bytes."""
    from flwr.app import Array

    arrays = {"w": Array(np.zeros((3, 2))), "b": Array(np.zeros(2, np.float32))}
    return {name: [one.dtype, list(one.shape), one.stype, one.data] for name, one in arrays.items()}


def lying(content: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """Return a reply with the bytes of one array damaged."""
    name = chance.choice(list(content))
    *about, whole = content[name]
    return {**content, name: [*about, damaged(whole, chance)]}


def received(content: dict[str, Any]) -> None:
    """Take a reply as a server does."""
    from flwr.app import Array, ArrayRecord, RecordDict

    from bdpvi.federated.flower import _update

    def record(arrays: dict[str, Any]) -> ArrayRecord:
        return ArrayRecord({name: Array(*one) for name, one in arrays.items()})

    try:
        arrays = record(content)
    except Exception as error:  # Flower's own
        raise Unchanged from error
    _update(RecordDict({"arrays": arrays}), record(sent()))


COMMANDS: tuple[tuple[str, ...], ...] = (
    ("check", "--data", "t.csv", "--target", "sick", "--positive", "yes"),
    ("private", "--data", "t.csv", "--target", "sick", "--positive", "yes", "--epsilon", "1",
     "--one-row-per-person", "--out", "out", "--quiet", "--yes", "--no-scores"),
    ("synthesize", "--data", "t.csv", "--epsilon", "1", "--one-row-per-person", "--out", "made",
     "--quiet"),
    ("predict", "made.json", "--data", "t.csv", "--out", "p.csv"),
    ("summary", "i.json"),
    ("show", "made.json"),
    ("table", "t.csv", "--table", "drafted.json"),
    ("sample", "y.json", "--rows", "5", "--out", "more.csv"),
    ("account", "fit/ledger.jsonl"),
)  # fmt: skip
WORDS = (
    "", "-1", "0", "nan", "inf", "1e-300", "1e300", "9" * 40, "x", "age", "sick", "yes", ".", "/",
    "t.csv", "\x1b[2J", "a,b", "--", "-x", "é", "None", "3.5", "2", ".5", "missing.csv",
)  # fmt: skip


def reworded(commands: Any, chance: random.Random) -> tuple[str, ...]:
    """Return a command with one to three words left out, put in, or others."""
    words = list(chance.choice(commands))
    for _ in range(chance.randint(1, 3)):
        at, kind = chance.randrange(1, len(words) + 1), chance.randrange(4)
        if kind == 0:
            words[at : at + 1] = [chance.choice(WORDS)]
        elif kind == 1:
            del words[at : at + 1]
        elif kind == 2:
            words.insert(at, chance.choice(WORDS))
        else:
            options = [word for words in commands for word in words if word.startswith("--")]
            words[at:at] = [chance.choice(options), chance.choice(WORDS)]
    return tuple(words)


def command_in(folder: Path, frame: pd.DataFrame) -> Callable[[tuple[str, ...]], None]:
    """Return what runs a command in a copy of the folder, and takes its status for its answer."""
    from bdpvi.cli import main

    place = folder / "commands"

    def run(words: tuple[str, ...]) -> None:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(folder / "fit", place / "fit")
        for name in ("made.json", "y.json", "i.json"):
            shutil.copy(folder / name, place)
        frame.to_csv(place / "t.csv", index=False)
        old, here, said, status = sys.argv, Path.cwd(), io.StringIO(), 0
        os.chdir(place)
        sys.argv = ["bdpvi", *words]
        try:
            with redirect_stdout(said), redirect_stderr(said):
                main()
        except SystemExit as leaving:
            status = leaving.code  # type: ignore[assignment]
        finally:
            sys.argv = old
            os.chdir(here)
        if status not in (0, 1, 2, None) or (status and not said.getvalue().strip()):
            raise AssertionError(f"{words}: status {status}: {said.getvalue()[-300:]}")
        if "Traceback" in said.getvalue():
            raise AssertionError(f"{words}: {said.getvalue()[-300:]}")
        if status:
            raise ValueError(said.getvalue())

    return run


def alike(one: Any, other: Any) -> bool:
    """Return whether two contents say the same."""
    with suppress(TypeError, ValueError, RecursionError):
        one, other = json.loads(one), json.loads(other)
    return repr(one) == repr(other)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"python benchmarks/damage.py --inputs {given.inputs}")
    print(f"Python {sys.version.split()[0]}, torch {torch.__version__}, pandas {pd.__version__}\n")
    print("| what is read | damaged | refused | read | faults | slowest, s |\n|" + " --- |" * 6)
    faults, tried = Counter[str](), 0
    with tempfile.TemporaryDirectory() as place:
        for reader in readers(Path(place)):
            chance = random.Random(reader.name)
            refused = read = wrong = 0
            slowest = 0.0
            while refused + read + wrong < given.inputs / KINDS:
                content = chance.choice(reader.changes)(reader.whole, chance)
                if alike(content, reader.whole):
                    continue
                tried += 1
                begun = time.perf_counter()
                try:
                    with one_gigabyte(), ten_seconds():
                        reader.read(content)
                except (ValueError, OSError):
                    refused += 1
                except Unchanged:
                    read += 1
                except Exception as error:
                    wrong += 1
                    faults[f"{reader.name}: {type(error).__name__}: {error!s:.150}"] += 1
                else:
                    read += 1
                    if reader.sealed:
                        wrong += 1
                        faults[f"{reader.name}: accepted: {content!r:.2000}"] += 1
                slowest = max(slowest, time.perf_counter() - begun)
            row = (reader.name, refused + read + wrong, refused, read, wrong, f"{slowest:.2f}")
            print("| " + " | ".join(map(str, row)) + " |", flush=True)
    print(f"\n{tried} inputs; faults: {sum(faults.values()) or 'none'}")
    for fault, number in faults.most_common(20):
        print(f"{number} × {fault}")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
