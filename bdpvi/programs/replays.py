"""Which steps are replayed from a recording, and which run model and guide.

Losses named Jit are recorded before the first charge, or refused. Others are recorded once that
pays, where it can be done: two steps from one seed are equal, a run changes no value that
the programs reach (:mod:`bdpvi.programs.watch`), and the replay agrees with them at two points.
Before each replay the watched values are compared, and in the steps 1, 2, 4, 8, … after a recording
the whole step, on made-up records. If a value has changed model and guide run again until it rests;
if a step differs they run to the end. So what changes without a trace between two such steps, like
a clock, can have an old value in the steps between them, of which a warning tells the log.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

from pyro.infer import JitTrace_ELBO, JitTraceEnum_ELBO, JitTraceMeanField_ELBO

from bdpvi._ground.log import LOGGER
from bdpvi.programs.program import Program
from bdpvi.programs.recording import NotAlikeError, Recorded, check_alike, recorded
from bdpvi.programs.watch import Watch, alike

JIT = (JitTrace_ELBO, JitTraceEnum_ELBO, JitTraceMeanField_ELBO)
"""Losses whose steps must be recorded."""
PAYS = 80
"""Steps that take about as long as recording one; later ones are three times as fast."""


class Replays:
    """The recording of a program's steps, if there is one.

    Args:
        program: a program that was tried.
        rows: number of rows of a recorded batch.
        steps: of the training, if that is known. If it is not, the first ones are not replayed.

    Attributes:
        made: the recording that is replayed; None if there is none now.

    Raises:
        ValueError: if the loss is one of :data:`JIT` and the program cannot be recorded.
    """

    def __init__(self, program: Program, rows: int, steps: int | None = None) -> None:
        self._rows, self._wait = rows, PAYS
        self.made: Recorded | None = None
        self._due: float = PAYS if steps is None else 0 if steps > PAYS else math.inf
        if isinstance(program.loss, JIT):
            try:
                self._record(program, 0)
            except NotAlikeError as error:
                raise _refusal(type(program.loss).__name__, error) from error

    def program(self, program: Program, number: int) -> Program:
        """Return what takes the step with this number: the program, or its recording."""
        if self.made is not None and not self._is_current(program, number):
            self.made = None
        if self.made is None and number >= self._due:
            try:
                self._record(program, number)
            except NotAlikeError as error:
                LOGGER.info("steps run model and guide, as one %s", error)
                self._due = math.inf
        if self.made is None:
            return program
        if self.made.arguments is not program.arguments:
            self.made = replace(self.made, arguments=program.arguments)
        return self.made

    def _record(self, program: Program, number: int) -> None:
        self.made, self._watch = record(program, self._rows)
        self._constants = self._fixed(program)
        self._began, self._next = number, 1

    def _fixed(self, program: Program) -> list[Any]:
        """Return the arguments that are neither records nor inputs of the recording."""
        own, inputs = program.arguments, () if self.made is None else self.made.numbers
        pairs = enumerate(zip(own.leaves, own.sampled, strict=True))
        return [one for at, (one, of_records) in pairs if not of_records and at not in inputs]

    def _is_current(self, program: Program, number: int) -> bool:
        """Whether the recording is still that of the program."""
        assert self.made is not None
        moved = self._watch.changed()
        if not all(map(alike, self._fixed(program), self._constants)):
            moved = "an argument"
        if moved:
            LOGGER.info("steps run model and guide until %s rests", moved)
            self._due, self._wait = number + self._wait, 2 * self._wait
            return False
        if number - self._began < self._next:
            return True
        self._next *= 2
        try:
            check_alike(program, replace(self.made, arguments=program.arguments), number)
        except NotAlikeError as error:
            LOGGER.warning(
                "steps run model and guide, as one %s. Some of the steps from %d to %d may have "
                "been by an old value", error, self._began + self._next // 4 + 1, number
            )  # fmt: skip
            self._due = math.inf
            return False
        return True


def record(program: Program, rows: int) -> tuple[Recorded, Watch]:
    """Return the recording of a program, and a watch on what it would freeze.

    Raises:
        NotAlikeError: if there is none, or a run of the program is not like the one before.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trained = program.parameters.values()
        watch = Watch(trained, model=program.model, guide=program.guide)
        if not watch.whole:
            raise NotAlikeError("can reach too much to be watched")
        if watch.iterator:
            raise NotAlikeError(f"can move the iterator {watch.iterator}")
        check_alike(program, program, 0)
        made = recorded(program, rows)
    if moved := watch.moved_by_run():
        raise NotAlikeError(f"changes {moved}")
    return made, watch


def _refusal(name: str, error: NotAlikeError) -> ValueError:
    return ValueError(
        f"loss={name}: a step {error}. Model and guide must do the same in every step, without "
        "counters, coins of their own, .item() or an if on a value; or use "
        f"{name.removeprefix('Jit')}(). Nothing was charged"
    )
