"""Time of a federated round in Flower: measured with 100 clients, and extrapolated to 10⁶.

    FLWR_TELEMETRY_ENABLED=0 RAY_USAGE_STATS_ENABLED=0 \\
        python benchmarks/federated_round.py --data FOLDER OF MNIST

Rounds are those of examples/federated, in Flower's simulation with one Ray actor a core. The table
at the end multiplies the server's measured constants; time in the network is not in it.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import sys
import time
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from flwr.supercore.task_identity import TaskIdentity

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "federated"))

from federated_mnist import client_app as example
from federated_mnist.task import network

from bdpvi.federated.federated import Federation
from bdpvi.federated.flower import BayesianFedAvg, client_mod
from bdpvi.federated.rounds import Rounds

CLIENTS, ROUNDS, DELTA = 100, 4, 1e-3
SIZE = sum(weight.numel() for weight in network().parameters())


class Timed(BayesianFedAvg):
    """Adds up the seconds of a round that are not the clients'."""

    seconds = 0.0

    def configure_train(self, *given: Any) -> Iterable[Message]:
        """Time the charge, the coins and the messages."""
        begun = time.perf_counter()
        messages = super().configure_train(*given)
        self.seconds += time.perf_counter() - begun
        return messages

    def aggregate_train(self, *given: Any) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Time clipping, summing, noise and counting."""
        begun = time.perf_counter()
        result = super().aggregate_train(*given)
        self.seconds += time.perf_counter() - begun
        return result


def simulate(data: str | None) -> None:
    """Print the seconds of rounds in Flower's simulation, and the server's and ε's part of them."""
    settings = Rounds(clients=CLIENTS, size=SIZE, clip=1.0, noise_multiplier=3.725)
    config = {
        "data": data or "", "split": "iid", "clients": CLIENTS, "local-epochs": 1,
        "local-batch": 50, "learning-rate": 0.05,
    }  # fmt: skip

    def configured(message: Message, context: Context, call: ClientAppCallable) -> Message:
        own = Context(0, context.node_id, context.node_config, context.state, config)
        return call(message, own)

    client, server = ClientApp(mods=[configured, client_mod(settings)]), ServerApp()
    client.train()(example.train)

    @server.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, context: Context) -> None:
        strategy = Timed(FedAvg(min_available_nodes=CLIENTS), Federation(settings))
        last = [time.perf_counter()]

        def evaluate(number: int, arrays: ArrayRecord) -> None:
            if number:
                assert not strategy.refused, strategy.refused
                whole = time.perf_counter() - last[0]
                begun = time.perf_counter()
                strategy.cost(DELTA)  # with the worst case
                pricing = time.perf_counter() - begun
                note = "  (with Ray's start)" if number == 1 else ""
                print(
                    f"round {number}: {whole:6.1f} s; server {strategy.seconds:5.2f} s "
                    f"({strategy.seconds / whole:.1%}), both ε {pricing:5.2f} s "
                    f"({pricing / whole:.1%}){note}",
                    flush=True,
                )
            strategy.seconds, last[0] = 0.0, time.perf_counter()

        first = ArrayRecord(network().state_dict())
        strategy.start(grid, first, num_rounds=ROUNDS, evaluate_fn=evaluate)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, CLIENTS, backend_config=resources)


class Ids(Grid):  # type: ignore[misc]
    """Knows ids of nodes, and nothing else."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes

    def get_node_ids(self) -> Iterable[int]:
        """Return them."""
        return range(1, self.nodes + 1)

    run = set_run = create_message = push_messages = pull_messages = send_and_receive = None


def constants(nodes: int, asked: int) -> tuple[float, float, int, int]:
    """Return the server's seconds, and the bytes it took, before and after a round's messages."""
    empty = _peak()
    settings = Rounds(
        clients=nodes, size=SIZE, clip=1.0, noise_multiplier=1.0, client_rate=asked / nodes
    )
    strategy = BayesianFedAvg(FedAvg(), Federation(settings), watch=False)
    arrays, grid = ArrayRecord(network().state_dict()), Ids(nodes)
    strategy.configure_train(1, arrays, ConfigRecord(), grid)  # numbers the nodes
    begun = time.perf_counter()
    messages = list(strategy.configure_train(2, arrays, ConfigRecord(), grid))
    before, ids = time.perf_counter() - begun, _peak() - empty
    replies = []
    for message in messages:
        moved = {
            name: Array(w.numpy() + np.float32(1e-3 * np.random.default_rng().normal()))
            for name, w in arrays.items()
        }
        replies.append(Message(RecordDict({"arrays": ArrayRecord(moved)}), reply_to=message))
    held = _peak()
    begun = time.perf_counter()
    strategy.aggregate_train(2, replies)
    return before, time.perf_counter() - begun, ids, _peak() - held


def _peak() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def scale() -> None:
    """Print the server's constants, and what a round takes with up to 10⁶ clients."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    few, fixed, _, _ = constants(1_000, 1)
    _, long, _, grown = constants(2_000, 1_000)
    many, _, ids, _ = constants(101_000, 1)
    node, reply, size = (many - few) / 100_000, (long - fixed) / 1_000, ids / 101_000
    wire = sum(len(one.data) for one in ArrayRecord(network().state_dict()).values())
    took = grown / 1_000 + wire
    print(f"\n{SIZE:,} weights, {wire / 1e6:.2f} MB a message each way. What the server takes:")
    print(f"  a connected node  {node * 1e6:6.1f} µs, {size / 1e3:.1f} kB")
    print(f"  a reply           {reply * 1e3:6.2f} ms, {took / 1e6:.2f} MB")
    print(f"  noise and rest    {fixed * 1e3:6.1f} ms\n")
    print("clients    rate   messages  each way, GB  server, s  server, GB  counts (watch), GB")
    for clients, rate in (
        (100, 1.0), (1_000, 0.1), (10_000, 0.1), (100_000, 0.01), (1_000_000, 0.001),
        (1_000_000, 0.01),
    ):  # fmt: skip
        asked = clients * rate
        seconds = node * clients + reply * asked + fixed
        memory, counts = asked * took + clients * size, clients * 64 * 8
        print(
            f"{clients:<9,}  {rate:<5g}  {2 * asked:>8,.0f}  {asked * wire / 1e9:>12.3f}  "
            f"{seconds:>9.1f}  {memory / 1e9:>10.2f}  {counts / 1e9:>18.3f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of the four gzipped IDX files")
    given = parser.parse_args()
    print(f"machine: {platform.platform()}, {os.cpu_count()} cores")
    print(
        f"versions: python {platform.python_version()} torch {torch.__version__} "
        f"flwr {version('flwr')} ray {version('ray')}\n"
    )
    simulate(given.data)
    scale()


if __name__ == "__main__":
    main()
