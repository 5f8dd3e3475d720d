"""What a streamed fit has finished, in a file, so that a job that was cut off goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bdpvi._runtime import validate
from bdpvi._runtime.checkpoint import alike, read_tensors, write_tensors
from bdpvi._runtime.store import make_folder
from bdpvi.accounting.streaming_moments import Folded
from bdpvi.neighbours.optimum.displacements import Moves
from bdpvi.neighbours.optimum.elbo import Point, Records
from bdpvi.neighbours.optimum.route import KeptMoves

_MOVES = ("m", "y", "error")


class State(KeptMoves):
    """What a job has finished, in a file of its own, written whole or not at all.

    Args:
        path: the file; None keeps nothing.
        settings: all that the result depends on, as JSON has it.
        every: seconds between two writes.
        directions: in which neighbours are compared, each with moments of its own.
    """

    def __init__(
        self, path: Path | None, settings: Mapping[str, Any], every: float, directions: int = 2
    ) -> None:
        self.directions = directions
        self.path, self.every = path, validate.non_negative("save_every", every)
        self.settings = {name: json.dumps(value) for name, value in settings.items()}
        self.tensors: dict[str, Tensor] = {}
        self.written = time.monotonic()
        if path is None or not path.exists():
            return
        self.tensors, about = read_tensors("state", path)
        for name, now in self.settings.items():
            if about.get(name) != now:
                raise ValueError(
                    f"state={str(path)!r} was begun with {name}={about.get(name)}, not {now}; use "
                    "another file, or delete this one"
                )

    def check(self, d: int, *, diagonal: bool, choices: int, blocks: int, records: int) -> None:
        """Raise ValueError unless what was read is what such a job writes, in names and shapes."""
        if self.path is None or not self.tensors:
            return
        like = {"mean": _empty(d), "metric": _empty(d, d)}
        found = self.tensors
        if "blocks" in found:
            held = len(found["held"]) if "held" in found else 0
            like |= {"blocks": _empty(dtype=torch.int64)}
            like |= {"held": _empty(held, d), "bound": _empty(held)}
            for place in range(self.directions):
                looked = found.get(f"{place}.looked", _empty(0, dtype=torch.int64))
                tail = found.get(f"{place}.tail", _empty(0, 0))
                count = looked.numel()
                like |= {
                    f"{place}.looked": _empty(count, dtype=torch.int64),
                    f"{place}.size": _empty(dtype=torch.int64),
                    f"{place}.moments": _empty(4, count),
                    f"{place}.tail": _empty(count, tail.shape[-1] if tail.ndim else 0),
                }
            if "stage" in found:
                free = d if diagonal else d * (d + 1) // 2
                like |= {"stage": _empty(dtype=torch.int64), "error": _empty(held)}
                like |= {"m": _empty(d, held), "y": _empty(free, held)}
        alike("state", self.path, found, like)
        if "blocks" in found:
            most = {"blocks": blocks}
            for place in range(self.directions):
                most |= {f"{place}.looked": choices - 1, f"{place}.size": records}
            for name, top in most.items():
                good = (found[name] >= 0) & (found[name] <= top)
                rule = f"lie between 0 and {top}"
                validate.every(f"state: {self.path}: {name}", found[name], good, rule)

    def point(self) -> tuple[Tensor, Tensor] | None:
        """Return mean and metric of the last point that the fit reached."""
        return (self.tensors["mean"], self.tensors["metric"]) if "mean" in self.tensors else None

    def reached(self, point: Point) -> None:
        """Keep a point of the fit."""
        self.tensors = {"mean": point.mean, "metric": point.metric}
        self._write()

    def orders(self) -> list[Tensor] | None:
        """Return the positions of the orders that the finished blocks were looked at."""
        names = [f"{place}.looked" for place in range(self.directions)]
        return [self.tensors[name] for name in names] if names[0] in self.tensors else None

    def restore(self, folded: Sequence[Folded]) -> tuple[int, Records | None]:
        """Set the moments to those of the finished blocks.

        Returns:
            How many blocks there are, and those of their records that are still held back.
        """
        if "blocks" not in self.tensors:
            return 0, None
        for place, fold in enumerate(folded):
            start = f"{place}."
            fold.restore(
                {k[len(start) :]: v for k, v in self.tensors.items() if k.startswith(start)}
            )
        held = Records(self.tensors["held"], self.tensors["bound"])
        return int(self.tensors["blocks"]), held

    def blocks(
        self,
        count: int,
        looked: Sequence[Tensor],
        folded: Sequence[Folded],
        held: Records,
        *,
        final: bool,
    ) -> None:
        """Keep that ``count`` blocks are finished but for records held back, if it is time to."""
        if self.path is None or not (final or self._due()):
            return
        self.tensors |= {"blocks": torch.tensor(count), "held": held.x, "bound": held.bound}
        for place, (index, fold) in enumerate(zip(looked, folded, strict=True)):
            state = {"looked": index, **fold.state()}
            self.tensors |= {f"{place}.{name}": value for name, value in state.items()}
        self._write()

    def moves(self) -> tuple[int, Moves] | None:
        """Return how far the records were that are held back to the end."""
        if "stage" not in self.tensors:
            return None
        return int(self.tensors["stage"]), Moves(*(self.tensors[name] for name in _MOVES))

    def moved(self, stages: int, moves: Moves) -> None:
        """Keep how far these records are, if it is time to."""
        if self._due():
            parts = zip(_MOVES, (moves.m, moves.y, moves.error), strict=True)
            self.tensors |= {"stage": torch.tensor(stages), **dict(parts)}
            self._write()

    def _due(self) -> bool:
        return self.path is not None and time.monotonic() - self.written >= self.every

    def forget(self) -> None:
        """Forget the finished blocks; the fit stays."""
        self.tensors = {k: v for k, v in self.tensors.items() if k in ("mean", "metric")}

    def _write(self) -> None:
        if self.path is None:
            return
        make_folder(self.path.parent)
        write_tensors(self.path, self.tensors, self.settings)
        self.written = time.monotonic()


def _empty(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
