"""The server: rounds under a budget, accuracy on public test images, and ε."""

from __future__ import annotations

from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from bdpvi import Ledger
from bdpvi.federated.federated import Federation
from bdpvi.federated.flower import BayesianFedAvg
from federated_mnist.task import accuracy, load, network, rounds

app = ServerApp()


@app.main()  # type: ignore[untyped-decorator]
def main(grid: Grid, context: Context) -> None:
    """Train, and print a row a round."""
    given = context.run_config
    state = Path(str(given["state"])) if given["state"] else None
    delta, clients = float(given["delta"]), int(given["clients"])
    ledger = Ledger() if state is None else Ledger.at(state / "ledger.jsonl")
    federation = Federation(rounds(context), ledger)
    strategy = BayesianFedAvg(FedAvg(min_available_nodes=clients), federation)
    weights = state and state / "weights.pt"
    first = network().state_dict()
    if weights is not None and weights.exists():
        first = torch.load(weights, weights_only=True)
    _, test = load(str(given["data"]) or None)

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord | None:
        if number == 0:
            return None
        if weights is not None:
            torch.save(arrays.to_torch_state_dict(), weights.with_suffix(".new"))
            weights.with_suffix(".new").replace(weights)  # never half written
        found, epsilon = accuracy(arrays, *test), strategy.worst_case(delta).epsilon
        print(f"{federation.charged:<5}  {found:<8.4f}  {epsilon:.3f}", flush=True)
        return None

    print(f"round  accuracy  worst-case ε of a client at δ = {delta:g}", flush=True)
    strategy.start(
        grid, ArrayRecord(first), num_rounds=int(given["num-rounds"]), evaluate_fn=evaluate
    )
    print("to publish with the weights:", strategy.worst_case(delta))
    print("for the owner only:", strategy.cost(delta))
    refused = len(strategy.refused)
    print(f"for the owner only: {refused} replies refused in the last round", flush=True)
