"""The client: trains on its own images, and sends nothing but a clipped update."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from bdpvi.federated.flower import client_mod
from federated_mnist.task import load, network, partition, rounds
from federated_mnist.task import train as fit

app = ClientApp(mods=[client_mod(rounds)])


@app.train()  # type: ignore[untyped-decorator]
def train(message: Message, context: Context) -> Message:
    """Return the weights after local training."""
    given = context.run_config
    torch.set_num_threads(1)  # one client, one core
    (x, y), _ = load(str(given["data"]) or None)
    own = partition(y, str(given["split"]), int(given["clients"]))
    mine = own[int(context.node_config["partition-id"]) % len(own)]
    module = network()
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    fit(
        module, x[mine], y[mine], int(given["local-epochs"]), int(given["local-batch"]),
        float(given["learning-rate"]),
    )  # fmt: skip
    return Message(RecordDict({"arrays": ArrayRecord(module.state_dict())}), reply_to=message)
