"""``bdpvi fit`` on several processes or machines, started by torchrun.

    torchrun --nproc-per-node 4 -m bdpvi.distributed --data patients.csv --target sick --out fit

The options are those of ``bdpvi fit``. Every process reads the data, trains the fit and an equal
part of the neighbours, which are joined once at the end. Only rank 0 writes the fit. If a process
dies, or the joined records are not exactly the requested ones, the job ends with an error and
writes no fit. The same command then resumes from the finished neighbours, each process from those
on its own machine.

Processes communicate by gloo on the CPU and by NCCL on CUDA, where each uses the device LOCAL_RANK.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as dist
import typer
from torch import Tensor

from bdpvi import cli
from bdpvi.commands import fit, options
from bdpvi.commands.command import Command

PATIENCE = timedelta(hours=24)
"""Time limit for the slowest process. Torchrun detects dead ones at once."""


class Workers:
    """Sums and joins over the processes of a torchrun job; see ``workers.Reduction``."""

    @property
    def rank(self) -> int:
        """Number of this process, from 0."""
        return dist.get_rank()

    @property
    def size(self) -> int:
        """Number of processes."""
        return dist.get_world_size()

    def sum(self, value: Tensor) -> Tensor:
        """Return the sum of all processes' tensors of one shape."""
        return self._reduce(value, dist.ReduceOp.SUM)

    def max(self, value: Tensor) -> Tensor:
        """Return the largest of all processes' tensors of one shape, entry by entry."""
        return self._reduce(value, dist.ReduceOp.MAX)

    def join(self, value: Tensor) -> Tensor:
        """Return all processes' tensors, concatenated along the first dimension."""
        length = torch.tensor([len(value)], device=value.device)
        lengths = [int(one) for one in self._gather(length)]
        padded = value.new_zeros(max(lengths), *value.shape[1:])
        padded[: len(value)] = value
        gathered = zip(self._gather(padded), lengths, strict=True)
        return torch.cat([one[:length] for one, length in gathered])

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
    if not dist.is_available() or (torch.cuda.is_available() and not dist.is_nccl_available()):
        raise SystemExit(
            "bdpvi.distributed: this torch has no torch.distributed, or no NCCL for CUDA, as on "
            "Windows: use bdpvi fit, or hide the devices (CUDA_VISIBLE_DEVICES=-1)"
        )
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl"
    else:
        backend = "gloo"
    dist.init_process_group(backend, timeout=PATIENCE)
    try:
        yield Workers()
    finally:
        dist.destroy_process_group()


app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=options.HELP,
    help=__doc__,
)
app.command(cls=Command)(fit.fit)


def main() -> NoReturn:
    """Run ``bdpvi fit`` as one of torchrun's processes."""
    if "LOCAL_RANK" not in os.environ:
        raise SystemExit("bdpvi.distributed: start it by torchrun --nproc-per-node N -m ...")
    with joined() as workers:
        cli.main(app, workers)


if __name__ == "__main__":
    main()
