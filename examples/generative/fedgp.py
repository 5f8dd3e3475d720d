"""A generator trained in federated rounds, with a judge at each client.

    python examples/generative/fedgp.py --data FOLDER OF THE FOUR .gz FILES --shards 2

After Triastcyn and Faltings, Federated Generative Privacy, 2019; thesis of Triastcyn (EPFL 2020),
chapter 4. Clients judge a common generator's images by their own, and send only an update of the
generator; the judge, here the distance of mean embeddings instead of a critic, stays with them. The
paper added no noise. Here each update is clipped, the server adds noise to their sum and divides by
the expected number of clients. ε is worst-case, for adding or removing a client with all its
images, towards anyone who sees the generator of every round. With 10 clients, as in the paper, the
sum is dominated by privacy noise; by default there are 1,000.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from _images import (
    CODES,
    DELTA,
    DIGITS,
    Generator,
    Images,
    drawn,
    load,
    one_hot,
    options,
    students,
    timed,
)  # fmt: skip
from embedding import features, frequencies
from torch import Tensor, nn

from bdpvi.federated.federated import Federation, Message
from bdpvi.federated.rounds import Rounds

EACH = 10
"""Images of each digit that are drawn to be judged."""
CLIP = 0.1


def owned(y: Tensor, clients: int, shards: int) -> list[Tensor]:
    """Return each client's places: at random, or some shards of the images sorted by digit."""
    order = torch.randperm(len(y))
    if shards:
        order = order[y[order].argsort(stable=True)]
    parts = order.tensor_split(clients * max(1, shards))
    mixed = torch.randperm(len(parts)).view(clients, -1)
    return [torch.cat([parts[at] for at in some]) for some in mixed.tolist()]


def judge(data: Images, w: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the squared distance of drawn images, ten of each digit, to these, digit by digit."""
    digits = one_hot(data[1]) / len(data[1])
    own, shares = digits.T @ features(data[0], w), digits.sum(0)[:, None]

    def distance(made: Tensor) -> Tensor:
        return (shares * features(made, w).view(EACH, DIGITS, -1).mean(0) - own).square().sum()

    return distance


def draw(generator: nn.Module) -> Tensor:
    """Return ten images of each digit, (100, 784)."""
    digits = one_hot(torch.arange(DIGITS).repeat(EACH))
    made: Tensor = generator(torch.randn(len(digits), CODES), digits)
    return made


def federated(generator: nn.Module, judges: Sequence[Callable[[Tensor], Tensor]], epsilon: float,
              steps: int) -> Federation:  # fmt: skip
    """Return the server of so many rounds that cost a client ε."""
    size = sum(weight.numel() for weight in generator.parameters())
    rounds = Rounds.calibrated(
        epsilon=epsilon, delta=DELTA, rounds=steps, clients=len(judges), size=size, clip=CLIP
    )
    return Federation(rounds)


def step(
    federation: Federation,
    generator: nn.Module,
    optimizer: torch.optim.Optimizer,
    judges: Sequence[Callable[[Tensor], Tensor]],
) -> None:
    """Take a round: charge, ask clients, sum with noise, and let the server's optimiser use it."""
    weights, number = list(generator.parameters()), federation.next_round
    answers = []
    for client in federation.sampled(number):
        gradient = torch.autograd.grad(judges[client](draw(generator)), weights)
        answers.append(Message(client, number, torch.cat([one.flatten() for one in gradient])))
    released = federation.aggregate(number, answers).update
    assert released is not None
    parts = released.split([weight.numel() for weight in weights])
    for weight, part in zip(weights, parts, strict=True):
        weight.grad = part.view_as(weight).to(weight)
    optimizer.step()


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and score the generator's images."""
    parser = options(__doc__.splitlines()[0], steps=40)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--shards", type=int, default=0, help="of one digit, to a client; 0: mixed")
    given = parser.parse_args(arguments)
    (x, y), real = load(given)
    w = frequencies()[:, :250]
    judges = [judge((x[at], y[at]), w) for at in owned(y, given.clients, given.shards)]
    public = judge(real, w)
    with timed():
        generator = Generator(width=50)
        optimizer = torch.optim.Adam(generator.parameters(), lr=1e-2)
        federation = federated(generator, judges, given.epsilon, given.steps)
        for done in range(given.steps + 1):
            if done % max(1, given.steps // 10) == 0:
                loss = public(draw(generator)).item()
                print(f"{done} rounds: loss {loss:.4f} on images to score on", flush=True)
            if done < given.steps:
                step(federation, generator, optimizer, judges)
        print(federation.worst_case(DELTA))
        print(students(drawn(generator, given.each), real))


if __name__ == "__main__":
    main()
