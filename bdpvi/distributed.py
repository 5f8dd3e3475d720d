"""``bdpvi fit`` by several processes or machines, started by torchrun.

    torchrun --nproc-per-node 4 -m bdpvi.distributed --data patients.csv --target sick --out fit

The options are those of ``bdpvi fit``. Every process reads the data; rank 0 trains the fit,
while the others begin with the neighbours, which are shared out in blocks to whoever is free and
joined once at the end. Only rank 0 writes. If a process dies, or the joined records are not exactly
those asked for, the job ends with an error and writes no fit. The same command then goes on from
the finished neighbours, those of other machines being trained again.

Processes talk by gloo on the CPU and by NCCL on CUDA, where each takes the device LOCAL_RANK.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
import typer
from safetensors.torch import load, save
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from bdpvi import cli
from bdpvi._runtime.workers import Tensors
from bdpvi.commands import fit

PATIENCE = timedelta(hours=24)
"""How long a process waits for the slowest. Dead ones are noticed at once, by torchrun."""


class Workers:
    """The processes of this job, by torch.distributed; see ``workers.Reduction``.

    Args:
        store: this job's, of torch.distributed.
    """

    def __init__(self, store: Any) -> None:
        self.store, self.calls = store, 0

    @property
    def rank(self) -> int:
        """This process's number."""
        return dist.get_rank()

    @property
    def size(self) -> int:
        """How many processes there are."""
        return dist.get_world_size()

    def sum(self, value: Tensor) -> Tensor:
        """Return the sum of all processes' tensors of one shape."""
        return self._reduce(value, dist.ReduceOp.SUM)

    def max(self, value: Tensor) -> Tensor:
        """Return the largest of all processes' tensors of one shape, entry by entry."""
        return self._reduce(value, dist.ReduceOp.MAX)

    def join(self, value: Tensor) -> Tensor:
        """Return all processes' tensors, one after the other along the first dimension."""
        length = torch.tensor([len(value)], device=value.device)
        lengths = [int(one) for one in self._gather(length)]
        padded = value.new_zeros(max(lengths), *value.shape[1:])
        padded[: len(value)] = value
        gathered = zip(self._gather(padded), lengths, strict=True)
        return torch.cat([one[:length] for one, length in gathered])

    def first(self, make: Callable[[], Tensors]) -> Callable[[], Tensors]:
        """Return what gives the tensors that the first process makes, at once."""
        key = self._key("first")
        if self.rank > 0:
            return lambda: load(bytes(self.store.get(key)))
        made = make()
        self.store.set(key, save({name: value.contiguous() for name, value in made.items()}))
        return lambda: made

    def turns(self, count: int) -> Iterator[int]:
        """Yield the numbers below ``count``, each to one process only: whoever asks next."""
        key = self._key("turns")
        while (turn := self.store.add(key, 1) - 1) < count:
            yield turn

    def _key(self, purpose: str) -> str:
        """Return a key that is new: every process makes the same calls in order."""
        self.calls += 1
        return f"bdpvi-{purpose}-{self.calls}"

    def _reduce(self, value: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
        total = value.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, operation)
        return total

    def _gather(self, value: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(value) for _ in range(self.size)]
        dist.all_gather(parts, value.contiguous())
        return parts


@contextmanager
def joined() -> Iterator[Workers]:
    """Join the job that torchrun started; leave it at the end."""
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl"
    else:
        backend = "gloo"
    store, rank, size = next(rendezvous("env://", timeout=PATIENCE))
    store.set_timeout(PATIENCE)
    dist.init_process_group(backend, timeout=PATIENCE, store=store, rank=rank, world_size=size)
    try:
        yield Workers(store)
    finally:
        dist.destroy_process_group()


app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, help=__doc__
)
app.command()(fit.fit)


def main() -> NoReturn:
    """Run ``bdpvi fit`` as one of torchrun's processes."""
    if "LOCAL_RANK" not in os.environ:
        raise SystemExit("bdpvi.distributed: start it by torchrun --nproc-per-node N -m ...")
    with joined() as workers:
        cli.main(app, workers)


if __name__ == "__main__":
    main()
