"""A step as a fixed list of tensor operations, replayed without running model and guide.

Model and guide must do the same operations in every step. Parameters, draws, records and float
arguments are inputs; whatever else they use keeps the value that it had when they were recorded,
and :mod:`bdpvi.programs.replays` sees to it that it is still the same. Operations are recorded on
made-up records. A record's gradient is still that of a function of its row alone, and is clipped
outside, so the guarantee does not depend on this module.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial, reduce
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from bdpvi._ground.host import drawing, onto
from bdpvi.programs.failures import line_of
from bdpvi.programs.program import Draw, Program, keep_parameters
from bdpvi.programs.sources import Rows, at

Replay = Callable[..., tuple[Tensor, ...]]
P = TypeVar("P", bound=Program)


class NotAlikeError(Exception):
    """A step that cannot be recorded, or is not the same when it is replayed, and why."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Recorded(Program):
    """A program whose draws and gradients are replayed.

    Attributes:
        rows: number of rows of a recorded batch; fewer are filled up with zeros.
        numbers: places of the arguments that are inputs: floats, and tensors without dimensions.
        names: of the global sites with a value.
        drawn: from parameters and numbers: latents, public part, values of sites, what ``pulled``
            takes.
        pulled: from a sum of gradients and what ``drawn`` returned: the parameters' gradients.
        each: from latents, parameters, numbers, values of sites and rows: the records' gradients.
        each_draws: whether ``each`` draws random numbers.
    """

    rows: int
    numbers: tuple[int, ...]
    names: tuple[str, ...]
    drawn: Replay = field(repr=False)
    pulled: Replay = field(repr=False)
    each: Replay = field(repr=False)
    each_draws: bool

    @property
    def records_draw(self) -> bool:
        """Whether random numbers may be drawn for a record; what reads one may, in a Dataset."""
        return self.each_draws or not self.arguments.source.in_memory

    def draw(self) -> Draw:
        """Return a draw, as :meth:`Program.draw`."""
        with torch.no_grad():
            latents, public, *rest = self.drawn(*self._inputs)
        values = dict(zip(self.names, rest, strict=False))
        return Draw(latents, values, public, tuple(rest[len(values) :]))

    def gradients(self, draw: Draw, rows: Rows) -> Tensor:
        """Return each record's gradient, as :meth:`Program.gradients`."""
        given = (draw.latents, *self._inputs, *draw.fixed.values())
        lacking = -len(rows[0]) % self.rows
        if lacking:
            rows = tuple(torch.cat([v, v.new_zeros(lacking, *v.shape[1:])]) for v in rows)
        with torch.no_grad():
            batches = zip(*(row.split(self.rows) for row in rows), strict=True)
            found = [self.each(*given, *batch)[0] for batch in batches]
        every = torch.cat(found) if len(found) > 1 else found[0]
        return every[: len(every) - lacking]

    @property
    def _inputs(self) -> tuple[Tensor, ...]:
        return (*self.parameters.values(), *_values(self, self.numbers))

    def pull_back(self, draw: Draw, total: Tensor) -> Sequence[Tensor]:
        """Return the parameters' gradients, as :meth:`Program.pull_back`."""
        with torch.no_grad():
            return self.pulled(onto(total, self.device), *draw.saved)


def recorded(program: Program, rows: int) -> Recorded:
    """Return the program with its steps recorded, which leaves it as it is.

    Args:
        program: a program that was tried.
        rows: number of rows of a recorded batch.

    Raises:
        NotAlikeError: if it cannot be recorded, or a replay differs from the program.
    """
    floats = tuple(
        place
        for place, (one, of_records) in enumerate(
            zip(program.arguments.leaves, program.arguments.sampled, strict=True)
        )
        if not of_records and _is_float(one)
    )
    try:
        return _tried(program, rows, floats)
    except NotAlikeError:
        if not floats:
            raise
    return _tried(program, rows, ())  # a number by which the program branches is a constant


def _tried(program: Program, rows: int, numbers: tuple[int, ...]) -> Recorded:
    try:
        with drawing(program.device, seed=0):
            made = _record_steps(program, rows, numbers)
    except Exception as error:  # whatever a program of the user's raises
        where = f"{type(error).__name__}{line_of(error)}"
        raise NotAlikeError(f"cannot be recorded ({where})") from error
    with keep_parameters(program):
        check_alike(program, made, 0)
        with torch.no_grad():  # again with other values of parameters and numbers
            torch._foreach_add_([*program.parameters.values()], 0.01)
        others = [0.99 * program.arguments.leaves[at] for at in numbers]
        check_alike(_with(program, numbers, others), _with(made, numbers, others), 1)
    return made


def _is_float(one: Any) -> bool:
    if isinstance(one, Tensor):
        return one.is_floating_point()
    return isinstance(one, float)


def _with(program: P, numbers: Sequence[int], values: Sequence[Any]) -> P:
    """Return the program with other values of some arguments."""
    leaves = [*program.arguments.leaves]
    for place, value in zip(numbers, values, strict=True):
        leaves[place] = value
    return replace(program, arguments=replace(program.arguments, leaves=tuple(leaves)))


def _values(program: Program, numbers: Sequence[int]) -> list[Tensor]:
    """Return arguments that are numbers as tensors of the program's widest type."""
    found = [program.arguments.leaves[place] for place in numbers]
    if all(isinstance(one, Tensor) for one in found):
        return found
    every = (*program.arguments.tables, *program.parameters.values())
    kinds = [one.dtype for one in every if one.is_floating_point()]
    kind, there = reduce(torch.promote_types, kinds, torch.get_default_dtype()), program.device
    return [
        one if isinstance(one, Tensor) else torch.tensor(one, dtype=kind, device=there)
        for one in found
    ]


def _record_steps(program: Program, rows: int, numbers: tuple[int, ...]) -> Recorded:
    given, values = _values(program, numbers), tuple(program.parameters.values())
    plain = tuple(value.detach() for value in values)
    total = torch.zeros(program.size, dtype=torch.float64, device=program.device)
    first = program.draw()
    names, batch = tuple(first.fixed), _made_up(program, rows)

    def step(total: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        own = _with(program, numbers, inputs[len(values) :])
        draw = own.draw()
        found = own.pull_back(draw, total)
        return (draw.latents, draw.public, *draw.fixed.values(), *found)

    def each(latents: Tensor, *given: Tensor) -> tuple[Tensor]:
        left = iter(given)
        parameters = {name: next(left) for name in program.parameters}
        own = _with(program, numbers, [next(left) for _ in numbers])
        known = {name: next(left) for name in names}
        return (own.gradients_at(latents, parameters, known, tuple(left)),)

    ahead, behind = _halves(make_fx(step)(total, *values, *given), 2 + len(names))
    with torch.no_grad():
        inputs = (*plain, *given)
        drawn = _scripted(ahead, inputs)
        pulled = _scripted(behind, (total, *drawn(*inputs)[2 + len(names) :]))
        taken = (first.latents.detach(), *inputs, *first.fixed.values(), *batch)
        of_records = make_fx(each)(*taken)
        found = _scripted(of_records, taken)
    own = {one.name: getattr(program, one.name) for one in fields(Program)}
    draws = any(map(_draws, of_records.graph.nodes))
    return Recorded(
        **own,
        rows=rows,
        numbers=numbers,
        names=names,
        drawn=drawn,
        pulled=pulled,
        each=found,
        each_draws=draws,
    )


def _draws(node: Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _scripted(graph: GraphModule, given: tuple[Tensor, ...]) -> Replay:
    """Return the operations as TorchScript, as Pyro's own losses do: it runs without Python.

    TorchScript's optimiser is off. On CUDA it makes new kernels in a third run, after the trials,
    and some do not compile. What nothing needs is left out: tracing an operation that failed, and
    was done again in another type, can end the process.
    """
    graph.graph.eliminate_dead_code(lambda node: node.is_impure() or _draws(node))
    graph.recompile()
    with warnings.catch_warnings(), torch._C.DisableTorchFunction():
        for kind in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", kind)
        made = torch.jit.trace(graph, given, check_trace=False)

    def replay(*inputs: Tensor) -> tuple[Tensor, ...]:
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            return made(*inputs)  # type: ignore[no-any-return]

    return replay


def _halves(joint: GraphModule, early: int) -> tuple[GraphModule, GraphModule]:
    """Split operations into those that do not depend on the first input, and the others.

    The first part returns as many outputs as are early, and what the second takes beside its input.
    """
    total, *nodes, end = joint.graph.nodes
    (outputs,) = end.args
    late = {total: None}  # in order
    for node in nodes:
        if not late.keys().isdisjoint(node.all_input_nodes):
            late[node] = None
    needed = {*outputs[early:], *(one for node in late for one in node.all_input_nodes)}
    needed.update(filter(_draws, nodes))  # TorchScript would leave draws out that nothing takes
    first = [node for node in nodes if node not in late]
    saved = [node for node in first if node in needed]
    inputs = [node for node in first if node.op == "placeholder"]
    return (
        _part(joint, inputs, first, [*outputs[:early], *saved]),
        _part(joint, [total, *saved], [*late], outputs[early:]),
    )


def _part(
    whole: GraphModule, inputs: Sequence[Node], nodes: Sequence[Node], outputs: Sequence[Node]
) -> GraphModule:
    """Return these operations of a graph."""
    graph = Graph()
    copies = {node: graph.placeholder(node.name) for node in inputs}
    for node in nodes:
        if node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in outputs))
    return GraphModule(whole, graph)


def _made_up(program: Program, rows: int) -> Rows:
    """Return records of zeros and ones in turn."""
    turns = torch.arange(rows) % 2
    zeros = program.arguments.stand_in
    return at(tuple(torch.cat([zero, torch.ones_like(zero)]) for zero in zeros), turns)


def check_alike(program: Program, other: Program, seed: int) -> None:
    """Compare a step of a program with its recording's, or with another of its own.

    Args:
        program, other: the programs. One that runs twice must agree with itself to the last digits,
            as a counter of steps may change little.
        seed: of the draws; the records are made up.

    Raises:
        NotAlikeError: naming what differs.
    """
    rows = _made_up(program, getattr(other, "rows", 2))
    total = torch.linspace(-1, 1, program.size, dtype=torch.float64, device=program.device)

    def step(one: Program) -> dict[str, Sequence[Tensor]]:
        with drawing(program.device, seed):
            draw = one.draw()
            return {
                "draw": (draw.latents, draw.public, *draw.fixed.values()),
                "gradient of a record": (one.gradients(draw, rows),),
                "gradient of a parameter": one.pull_back(draw, total),
            }

    try:
        wanted, found = step(program), step(other)
    except Exception as error:  # whatever a program of the user's raises
        raise NotAlikeError(f"fails ({type(error).__name__}{line_of(error)})") from error
    twice = other is program
    alike = partial(_alike, near=0.03 if twice else 1.0)
    for name in wanted:
        if not all(map(alike, wanted[name], found[name])):
            again = "in a second run" if twice else "when it is replayed"
            raise NotAlikeError(f"has another {name} {again}")


def _alike(one: Tensor, other: Tensor, near: float) -> bool:
    same = one.shape == other.shape and one.dtype == other.dtype
    return same and torch.allclose(one, other, near * 1e-5, near * 1e-6, equal_nan=True)
