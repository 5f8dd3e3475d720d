"""A step as a fixed list of tensor operations, replayed without running model and guide.

The contract is that of Pyro's ``JitTrace_ELBO``: model and guide do the same operations in every
step, and whatever is no tensor argument, no parameter and no draw has the value of the first one.
Operations are recorded on made-up records. A record's gradient is still that of a function of its
row alone, and is clipped outside, so the guarantee does not depend on this module.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields

import torch
from pyro.infer import JitTrace_ELBO, JitTraceEnum_ELBO, JitTraceMeanField_ELBO
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from bdpvi._ground.host import drawing, onto
from bdpvi.programs.failures import line_of
from bdpvi.programs.program import Draw, Program, keep_parameters
from bdpvi.programs.sources import Rows, at

Replay = Callable[..., tuple[Tensor, ...]]
RECORDED = (JitTrace_ELBO, JitTraceEnum_ELBO, JitTraceMeanField_ELBO)
"""Losses whose steps are recorded."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Recorded(Program):
    """A program whose draws and gradients are replayed.

    Attributes:
        rows: number of rows of a recorded batch; fewer are filled up with zeros.
        names: of the global sites with a value.
        drawn: from the parameters: latents, public part, values of sites, what ``pulled`` takes.
        pulled: from a sum of gradients and what ``drawn`` returned: the parameters' gradients.
        each: from latents, parameters, values of sites and rows: the records' gradients.
        each_draws: whether ``each`` draws random numbers.
    """

    rows: int
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
            latents, public, *rest = self.drawn(*self.parameters.values())
        values = dict(zip(self.names, rest, strict=False))
        return Draw(latents, values, public, tuple(rest[len(values) :]))

    def gradients(self, draw: Draw, rows: Rows) -> Tensor:
        """Return each record's gradient, as :meth:`Program.gradients`."""
        given = (draw.latents, *self.parameters.values(), *draw.fixed.values())
        lacking = -len(rows[0]) % self.rows
        if lacking:
            rows = tuple(torch.cat([v, v.new_zeros(lacking, *v.shape[1:])]) for v in rows)
        with torch.no_grad():
            batches = zip(*(row.split(self.rows) for row in rows), strict=True)
            found = [self.each(*given, *batch)[0] for batch in batches]
        every = torch.cat(found) if len(found) > 1 else found[0]
        return every[: len(every) - lacking]

    def pull_back(self, draw: Draw, total: Tensor) -> Sequence[Tensor]:
        """Return the parameters' gradients, as :meth:`Program.pull_back`."""
        with torch.no_grad():
            return self.pulled(onto(total, self.device), *draw.saved)


def recorded(program: Program, rows: int) -> Program:
    """Return the program, with its steps recorded if its loss is one of :data:`RECORDED`.

    Args:
        program: a program that was tried.
        rows: number of rows of a recorded batch.

    Raises:
        ValueError: if it cannot be recorded, or a replay differs from the program.
    """
    if not isinstance(program.loss, RECORDED):
        return program
    try:
        with drawing(program.device, seed=0):
            made = _record_steps(program, rows)
    except Exception as error:  # whatever a program of the user's raises
        where = f"{type(error).__name__}{line_of(error)}"
        raise _refusal(program, f"cannot be recorded ({where})") from error
    with keep_parameters(program):
        for number in range(2):  # with other values of the parameters the second time
            if wrong := _differing(program, made, number):
                raise _refusal(program, f"has another {wrong} when it is replayed")
            with torch.no_grad():
                torch._foreach_add_([*program.parameters.values()], 0.01)
    return made


def _record_steps(program: Program, rows: int) -> Recorded:
    values = tuple(program.parameters.values())
    plain = tuple(value.detach() for value in values)
    total = torch.zeros(program.size, dtype=torch.float64, device=program.device)
    first = program.draw()
    names, batch = tuple(first.fixed), _made_up(program, rows)

    def step(total: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        draw = program.draw()
        found = program.pull_back(draw, total)
        return (draw.latents, draw.public, *draw.fixed.values(), *found)

    def each(latents: Tensor, *given: Tensor) -> tuple[Tensor]:
        left = iter(given)
        parameters = {name: next(left) for name in program.parameters}
        known = {name: next(left) for name in names}
        return (program.gradients_at(latents, parameters, known, tuple(left)),)

    ahead, behind = _halves(make_fx(step)(total, *values), 2 + len(names))
    with torch.no_grad():
        drawn = _scripted(ahead, plain)
        pulled = _scripted(behind, (total, *drawn(*plain)[2 + len(names) :]))
        given = (first.latents.detach(), *plain, *first.fixed.values(), *batch)
        of_records = make_fx(each)(*given)
        found = _scripted(of_records, given)
    own = {one.name: getattr(program, one.name) for one in fields(Program)}
    draws = any(map(_draws, of_records.graph.nodes))
    return Recorded(
        **own, rows=rows, names=names, drawn=drawn, pulled=pulled, each=found, each_draws=draws
    )


def _draws(node: Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _scripted(graph: GraphModule, given: tuple[Tensor, ...]) -> Replay:
    """Return the operations as TorchScript, as Pyro's own losses do: it runs without Python.

    TorchScript's optimiser is off. On CUDA it makes new kernels in a third run, after the trials,
    and some do not compile.
    """
    with warnings.catch_warnings():
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


def _differing(program: Program, made: Recorded, seed: int) -> str:
    """Return what is different in a replay of a program's step, or nothing."""
    rows = _made_up(program, made.rows)
    total = torch.linspace(-1, 1, program.size, dtype=torch.float64, device=program.device)

    def step(one: Program) -> dict[str, Sequence[Tensor]]:
        with drawing(program.device, seed):
            draw = one.draw()
            return {
                "draw": (draw.latents, draw.public, *draw.fixed.values()),
                "gradient of a record": (one.gradients(draw, rows),),
                "gradient of a parameter": one.pull_back(draw, total),
            }

    wanted, found = step(program), step(made)
    differing = (name for name in wanted if not all(map(_alike, wanted[name], found[name])))
    return next(differing, "")


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, 1e-5, 1e-6, equal_nan=True)


def _refusal(program: Program, wrong: str) -> ValueError:
    name = type(program.loss).__name__
    return ValueError(
        f"loss={name}: a step {wrong}. Model and guide must do the same in every step, without "
        "counters, coins of their own, .item() or an if on a value; or use "
        f"{name.removeprefix('Jit')}(). Nothing was charged"
    )
