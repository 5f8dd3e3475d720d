"""Ten clients with handwritten digits, a linear network, and Flower without its processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from sklearn.datasets import load_digits
from torch import Tensor, nn

from bdpvi.federated.flower import client_mod
from bdpvi.federated.rounds import Rounds

CLIENTS, SIZE, CLIP = 10, 650, 1.0
Wire = Callable[[Message, Message], list[Message]]
"""Takes a message and the client's reply; returns the replies that arrive."""


def rounds(**settings: Any) -> Rounds:
    """Return settings; all clients are asked unless said otherwise."""
    plain: dict[str, Any] = {"noise_multiplier": 0.5}
    return Rounds(clients=CLIENTS, size=SIZE, clip=CLIP, **(plain | settings))


def digits() -> tuple[Tensor, Tensor]:
    """Return (x, y); client k has the rows k, k + 11, …, and rows 10, 21, … are for test."""
    table = load_digits()
    return torch.tensor(table.data / 16, dtype=torch.float32), torch.tensor(table.target)


def first() -> ArrayRecord:
    """Return the first weights: zeros."""
    return ArrayRecord(
        {name: torch.zeros(one.shape) for name, one in module().state_dict().items()}
    )


def module() -> nn.Module:
    """Return the network."""
    return nn.Linear(64, 10)


def accuracy(arrays: ArrayRecord) -> float:
    """Return the fraction of test digits found."""
    x, y = digits()
    linear = module()
    linear.load_state_dict(arrays.to_torch_state_dict())
    return float((linear(x[10::11]).argmax(1) == y[10::11]).double().mean())


def client_app(settings: Rounds) -> ClientApp:
    """Return a client that trains, and tells its number of records, as Flower's examples do."""
    app = ClientApp(mods=[client_mod(settings)])

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Message, context: Context) -> Message:
        x, y = (part[int(context.node_config["partition-id"]) :: 11] for part in digits())
        linear = module()
        linear.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(linear.parameters(), lr=1.0)
        for _ in range(5):
            optimizer.zero_grad()
            nn.functional.cross_entropy(linear(x), y).backward()
            optimizer.step()
        metrics = MetricRecord({"num-examples": len(x), "train-loss": 0.5})
        content = {"arrays": ArrayRecord(linear.state_dict()), "metrics": metrics}
        return Message(RecordDict(content), reply_to=message)

    return app


class Nodes(Grid):  # type: ignore[misc]
    """Nodes 1000 to 1009 in this process; messages are copied, as on a wire.

    Attributes:
        sent: (message, replies that arrived) of all rounds.
        states: what nodes keep.
    """

    def __init__(
        self,
        app: ClientApp,
        wire: Wire = lambda message, reply: [reply],
        config: dict[str, Any] | None = None,
    ) -> None:
        self.app, self.wire, self.config = app, wire, config or {}
        self.sent: list[tuple[Message, list[Message]]] = []
        self.states: defaultdict[int, RecordDict] = defaultdict(RecordDict)

    def set_run(self, run: object) -> None: ...

    @property
    def run(self) -> None: ...

    def create_message(self, *args: object, **named: object) -> None: ...

    def push_messages(self, messages: object) -> None: ...

    def pull_messages(self, message_ids: object) -> None: ...

    def get_node_ids(self) -> Iterable[int]:
        return range(1000, 1000 + CLIENTS)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        arrived: list[Message] = []
        for message in messages:
            node = message.metadata.dst_node_id
            place = {"partition-id": node - 1000}
            context = Context(1, node, place, self.states[node], self.config)
            try:
                reply = self.app(deepcopy(message), context)
            except (RuntimeError, ValueError) as error:
                reply = Message(Error(0, str(error)), reply_to=message)
            replies = self.wire(message, deepcopy(reply))
            self.sent.append((message, replies))
            arrived += replies
        return arrived
