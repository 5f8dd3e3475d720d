"""Runs of a model and a guide on made-up records, and what must not change between them."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer import TraceEnum_ELBO
from torch import Tensor

from bdpvi._ground.host import drawing, on
from bdpvi._ground.undropped import Undropped
from bdpvi.models.misfits import LastSite, Misfit, MisfitError, Site, split
from bdpvi.models.traces import Improper
from bdpvi.programs.arguments import Arguments
from bdpvi.programs.effects import in_plate, plates
from bdpvi.programs.failures import program_error, words_of_site
from bdpvi.programs.program import copied
from bdpvi.programs.sources import Rows

_REPEATS = 6
"""Further runs, which must have the same sites: half of the runs' coins are missed in 1 of 64."""
_OTHER = 0x5EED_0F_57A275
"""Seed that nobody simulates records by."""
_AGAIN = 20
"""Runs that are alike if a program has no coins of its own."""
_TRIED = (0.0, 1.0, 0.5, 3.0)
"""Values of made-up records, one of which most supports contain."""
_ROW = "let each entry follow from its own row alone, without means, sorts or counts of records"


class Runs:
    """Runs of a model and a guide on made-up records.

    Attributes:
        sizes: sizes of the plates, as written in the program.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        arguments: Arguments,
        plate: str | None,
    ) -> None:
        self.model, self.guide, self.arguments, self.plate = model, guide, arguments, plate
        self.sizes: dict[str, Any] = {}
        self.by_size = False
        self._fresh, self._coins = copied(guide, model), torch.random.get_rng_state()
        self.zeros = arguments.stand_in
        self.ones = tuple(map(torch.ones_like, self.zeros))

    def alone(self) -> poutine.Trace:
        """Return the trace of the model on a record of zeros, its latents from the prior."""
        return self._run("model", Improper()(self.model), self.zeros)

    def first(self) -> tuple[poutine.Trace, poutine.Trace, dict[str, Tensor]]:
        """Return both traces on a record of zeros, and the unconstrained parameters.

        Raises:
            ValueError: if a parameter existed before.
        """
        before = set(pyro.get_param_store().keys())
        self._coins = torch.random.get_rng_state()
        modelled, guided, nodes = self._first(self.guide, self.zeros)
        found = {name: _unconstrained(site["value"]) for name, site in nodes.items()}
        once = {id(value): name for name, value in reversed(found.items())}
        found = {n: v for n, v in found.items() if v.requires_grad and once[id(v)] == n}
        if old := sorted(before & set(found)):
            raise ValueError(
                f"parameter {old[0]!r} is in Pyro's store already: if it was trained on these "
                "records, no ε covers it. Call pyro.clear_param_store() first, and create the "
                "guide and its modules again. Nothing was charged"
            )
        return modelled, guided, found

    def _first(self, guide: Any, rows: Rows) -> tuple[poutine.Trace, poutine.Trace, Any]:
        """Return both traces of a first run, and its parameters."""
        with poutine.trace(param_only=True) as captured:
            guided = self._run("guide", guide, rows)
            modelled = self._run("model", poutine.replay(self.model, guided), rows)
        return modelled, guided, captured.trace.nodes

    def first_run(self, rows: Rows | None = None, coins: Tensor | None = None) -> dict[str, Tensor]:
        """Return the parameters' values after a copy's first run.

        Args:
            rows: made-up records; of zeros by default.
            coins: torch's random state; by default that of another seed, as simulated records may
                have the numbers of a start's.
        """
        guide = copied(self._fresh, self.model)
        with pyro.get_param_store().scope() as store, drawing(self.arguments.device, _OTHER):
            store.clear()
            if coins is not None:
                torch.random.set_rng_state(coins)
            nodes = self._first(guide, self.zeros if rows is None else rows)[2]
            return {name: site["value"] for name, site in nodes.items()}

    def starts(self, parameters: Mapping[str, Tensor]) -> Iterator[Misfit]:
        """Yield a parameter that starts elsewhere on other made-up records."""
        starts = [self.first_run(rows, self._coins) for rows in (self.zeros, self.ones)]
        for name, value in parameters.items():
            zeros, ones = (_unconstrained(start[name]).detach() for start in starts)
            if value.shape == zeros.shape and _equal(value, zeros) and not _equal(zeros, ones):
                remedy = "start it at a public value: no record can be read there"
                yield Misfit(f"parameter {name!r}", "starts at values of the records", remedy)
                return

    def unsteady(self, modelled: poutine.Trace, guided: poutine.Trace) -> Iterator[Misfit]:
        """Yield the first site or parameter that another run lacks, adds or gives another shape."""
        for site in split(modelled)[0]:
            shape, own = site["fn"].shape(), site["value"].shape
            if len(shape) != len(own) or any(a != b != 1 for a, b in zip(shape, own, strict=True)):
                wrong = f"has the shape {tuple(own)} in the guide and {tuple(shape)} in the model"
                yield Misfit(words_of_site(site), wrong, "give it one shape, in every run")
                return
        expected = {"guide": _shapes(guided), "model": _shapes(modelled)}
        with drawing(self.arguments.device), torch.no_grad():
            for _ in range(_REPEATS):
                again = self._run("guide", self.guide, self.zeros)
                runs = {"guide": again}
                if _shapes(guided).keys() <= _shapes(again).keys():
                    model = poutine.replay(self.model, again)
                    runs["model"] = self._run("model", model, self.zeros)
                for name, run in runs.items():
                    if found := _difference(name, expected[name], _shapes(run)):
                        yield found
                        return

    def differing(self, modelled: poutine.Trace, guided: poutine.Trace, plate: str) -> list[Misfit]:
        """Return the sites that wrongly depend, or wrongly do not depend, on the records."""
        misfits = []
        zeros, ones = (self._still("guide", self.guide, one, 0) for one in (self.zeros, self.ones))
        for site in split(zeros)[0]:
            if not in_plate(site, plate) and not _alike(site, ones.nodes[site["name"]]):
                remedy = "give it parameters of its own; one guide is for all records"
                misfits.append(
                    Misfit(words_of_site(site), "of the guide follows from records", remedy)
                )
        model = poutine.replay(self.model, guided)
        runs = ((self.zeros, 0), (self.zeros, 1), (self.ones, 0))
        modelled, twice, again = (self._still("model", model, *run) for run in runs)
        for site in (one for kind in split(modelled) for one in kind if not in_plate(one, plate)):
            if _alike(site, again.nodes[site["name"]]):
                continue
            if site["is_observed"] and not _alike(site, twice.nodes[site["name"]]):
                wrong = "is drawn by the model itself, as by ConjugateReparam"
                misfits.append(
                    Misfit(words_of_site(site), wrong, "leave that out: the guide draws it")
                )
            elif site["is_observed"]:
                remedy = "observe it inside the plate over the records"
                misfits.append(Misfit(words_of_site(site), f"is not in plate {plate!r}", remedy))
            else:
                remedy = "give it constants that come neither from the records nor their number"
                misfits.append(Misfit(words_of_site(site), "has a prior of the records", remedy))
        seen = [s for s in split(modelled)[1] if in_plate(s, plate)]
        if seen and all(_alike(site, again.nodes[site["name"]]) for site in seen):
            misfits.append(
                Misfit(
                    words_of_site(seen[0]),
                    "does not follow from the arguments",
                    "hand the records over as arguments of step, and read none from elsewhere",
                )
            )
        return misfits or [*self._undefined_densities(guided), *self._elsewhere(modelled, seen)]

    def _undefined_densities(self, guided: poutine.Trace) -> Iterator[Misfit]:
        """Yield the sites whose log-density is not a number, whatever the record."""
        remedy = "keep its constants, and what it is computed from, finite and within range"
        for site in split(guided)[0]:
            if _is_nan(site):
                yield Misfit(
                    words_of_site(site), "has a log-density that is NaN in the guide", remedy
                )
                return
        model = poutine.replay(self.model, guided)
        left: set[str] | None = None
        for value in _TRIED:
            rows = tuple(torch.full_like(zero, value) for zero in self.zeros)
            with torch.no_grad():
                run = self._run("model", model, rows)
            none = {s["name"] for kind in split(run) for s in kind if _is_nan(s)}
            left = none if left is None else left & none
            if not left:
                return
        for site in (one for kind in split(run) for one in kind if one["name"] in (left or ())):
            yield Misfit(words_of_site(site), "has a log-density that is NaN", remedy)

    def _elsewhere(self, modelled: poutine.Trace, seen: list[Site]) -> Iterator[Misfit]:
        """Yield an observed site that reads, by the plate's indices, what is no argument.

        The arguments have a single row, which −1 finds as 0 does.
        """
        given = {site["name"]: site["value"] for site in split(modelled)[0]}
        try:
            still = functools.partial(self._still, "model", self.model, self.zeros, 0)
            first, again, last = (still((index,), given) for index in (0, 0, -1))
        except ValueError:  # an operation that takes no negative index
            return
        for site in seen:
            if site["name"] not in last.nodes:  # named by the index of a sequential plate
                return
            one, two, three = (run.nodes[site["name"]] for run in (first, again, last))
            if _alike(one, two) and not _alike(one, three):
                yield Misfit(
                    words_of_site(site),
                    "reads other tensors by the indices of its plate",
                    "hand every tensor that has a row for each record over as an argument of step",
                )
                return

    def mixing(self, guided: poutine.Trace, plate: str) -> Iterator[Misfit]:
        """Yield a site of which one record's part depends on other records, or on their number.

        Two records are run together and one by one, at three draws of the latents: at one a
        log-density may differ by too little. Dropout drops nothing. A program that draws otherwise
        by itself, or cannot run on two, is left out.
        """
        with contextlib.suppress(ValueError), drawing(self.arguments.device), torch.no_grad():
            if sized := list(self._growing_latents(plate)):
                yield sized[0]
                return
        with drawing(self.arguments.device), torch.no_grad():
            draws = [guided, *(self._run("guide", self.guide, self.zeros) for _ in range(2))]
        programs = (("guide", self.guide), ("model", self.model))
        for drawn, (name, program) in itertools.product(draws, programs):
            run = functools.partial(self._run, name, poutine.replay(program, drawn))
            try:
                with drawing(self.arguments.device), torch.no_grad(), Undropped():
                    found = list(self._mixing(run, plate))
            except (ValueError, KeyError):
                continue
            if found:
                yield found[0]
                return

    def _mixing(self, run: Callable[..., poutine.Trace], plate: str) -> Iterator[Misfit]:
        rows, both = self._both(), run(self._both(), (0, 1))
        given = {s["name"]: s["value"] for s in split(both)[0]}
        for place, one in enumerate((self.ones, self.zeros)):
            own = {s["name"]: _part(s, s["value"], plate, place) for s in split(both)[0]}
            single = run(one, (0,), own)
            if (wrong := _differs(both, single, plate, place)) is None:
                continue
            again = (run(rows, (0, 1), given) for _ in range(_AGAIN))
            if all(_differs(both, one, plate, None) is None for one in again):
                yield Misfit(
                    words_of_site(wrong), "mixes records", _ROW
                )  # it draws nothing by itself
                return

    def _both(self) -> Rows:
        return tuple(torch.cat(two) for two in zip(self.ones, self.zeros, strict=True))

    def _growing_latents(self, plate: str) -> Iterator[Misfit]:
        """Yield a latent site outside the plate that is larger for two records than for one."""
        model = Improper()(self.model)
        both, one = self._run("model", model, self._both(), (0, 1)), self.alone()
        for site in split(both)[0]:
            other = one.nodes.get(site["name"])
            if not in_plate(site, plate) and other and site["value"].shape != other["value"].shape:
                remedy = "put a record's own latent into their plate, and give others a fixed size"
                yield Misfit(
                    words_of_site(site), "has a size that is the number of records", remedy
                )

    def _still(
        self, name: str, program: Callable[..., Any], rows: Rows, seed: int, *given: Any
    ) -> poutine.Trace:
        """Return a run in which dropout drops nothing; two with one seed draw the same."""
        with drawing(self.arguments.device, seed), torch.no_grad(), Undropped():
            return self._run(name, program, rows, *given)

    def _run(
        self,
        name: str,
        program: Callable[..., Any],
        rows: Rows,
        indices: tuple[int, ...] = (0,),
        given: Mapping[str, Tensor] | None = None,
    ) -> poutine.Trace:
        args, kwargs = self.arguments.call(tuple(row.clone() for row in rows))
        if given:
            program = poutine.condition(program, data=dict(given))
        last = LastSite()
        try:
            with (
                on(self.arguments.device),
                pyro.validation_enabled(False),
                plates(self._is_records, indices),
                last,
            ):
                return poutine.trace(program).get_trace(*args, **kwargs)
        except MisfitError:
            raise
        except Exception as error:  # whatever a program of the user's raises
            raise program_error(name, "one record", last, error) from error

    def nesting(self, loss: TraceEnum_ELBO, plate: str) -> None:
        """Let the loss determine how deeply plates are nested."""
        args, kwargs = self.arguments.call(self.arguments.stand_in)
        here = on(self.arguments.device)
        with here, pyro.validation_enabled(False), plates(lambda name, *_: name == plate):
            loss._guess_max_plate_nesting(self.model, self.guide, args, kwargs)

    def _is_records(self, name: str, size: Any, part: bool) -> bool:
        self.sizes.setdefault(name, size)
        if self.plate is not None:
            return name == self.plate
        return part or (self.by_size and size == self.arguments.length)


def _unconstrained(value: Tensor) -> Tensor:
    made = getattr(value, "unconstrained", None)
    return value if made is None else made()


def _alike(one: Site, other: Site) -> bool:
    """Whether two sites have the same value and log-density."""
    values = [(site["value"], site["fn"].log_prob(site["value"])) for site in (one, other)]
    return all(a.shape == b.shape and _equal(a, b) for a, b in zip(*values, strict=True))


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal, where NaN equals NaN."""
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _is_nan(site: Site) -> bool:
    return bool(site["fn"].log_prob(site["value"]).isnan().any())


def _shapes(trace: poutine.Trace) -> dict[str, torch.Size]:
    """Return the shape of each site and parameter of a run."""
    return {
        name: site["fn"].shape() if site["type"] == "sample" else site["value"].shape
        for name, site in trace.nodes.items()
        if site["type"] in ("sample", "param") and type(site.get("fn")).__name__ != "_Subsample"
    }


def _difference(of: str, one: dict[str, torch.Size], other: dict[str, torch.Size]) -> Misfit | None:
    """Return what another run of a program has otherwise."""
    if gone := sorted(set(one) ^ set(other)):
        remedy = "let every run have the same sites and parameters, whatever is drawn in it"
        return Misfit(f"{gone[0]!r} of the {of}", "is in some runs and not in others", remedy)
    for name, shape in one.items():
        if shape != other[name]:
            wrong = f"has the shape {tuple(shape)} in one run and {tuple(other[name])} in another"
            return Misfit(f"{name!r} of the {of}", wrong, "give it one shape, in every run")
    return None


def _differs(
    both: poutine.Trace, other: poutine.Trace, plate: str, place: int | None
) -> Site | None:
    """Return a site in the plate whose log-density, of the record at a place, is another."""
    for trace in (both, other):
        trace.compute_log_prob()
    for name, site in both.nodes.items():
        if site["type"] != "sample" or not in_plate(site, plate):
            continue
        here, there = site["log_prob"], other.nodes[name]["log_prob"]
        if place is not None:
            here = _narrow(here, _dim(site, plate), place)
        if here.shape != there.shape or not torch.allclose(here, there, 1e-3, 1e-4, equal_nan=True):
            return site  # type: ignore[no-any-return]
    return None


def _part(site: Site, value: Tensor, plate: str, place: int) -> Tensor:
    """Return a latent's value for the record at a place; all of it, if it is in no plate."""
    if not in_plate(site, plate):
        return value
    return _narrow(value, _dim(site, plate) - site["fn"].event_dim, place)


def _dim(site: Site, plate: str) -> int:
    """Return the dimension of a plate, from the right."""
    (frame,) = (one for one in site["cond_indep_stack"] if one.name == plate)
    return int(frame.dim or 0)


def _narrow(value: Tensor, dim: int, place: int) -> Tensor:
    there = dim < 0 and value.ndim >= -dim and value.shape[dim] == 2
    return value.narrow(dim, place, 1) if there else value
