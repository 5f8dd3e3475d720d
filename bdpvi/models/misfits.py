"""Finds properties of a Pyro model that rule out accounting for it, from a trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pyro import poutine
from pyro.distributions import Delta, MaskedDistribution
from pyro.poutine.messenger import Messenger
from torch import Tensor

from bdpvi._ground.outputs import several

Site = Mapping[str, Any]
"""A node of a trace: its name, its distribution ``fn``, its value, its plates and more."""


@dataclass(frozen=True)
class Misfit:
    """One problem with a model or guide.

    Attributes:
        site: the site or parameter; "model" or "guide" for the whole.
        wrong: what is wrong with it.
        remedy: how to fix it.

    >>> print(Misfit("latent site 'k'", "is discrete", "sum it out"))
    latent site 'k' is discrete: sum it out
    """

    site: str
    wrong: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.site} {self.wrong}: {self.remedy}"


class MisfitError(ValueError):
    """A model or guide that cannot be accounted for.

    Attributes:
        misfits: all problems found.
    """

    def __init__(self, misfits: Sequence[Misfit]) -> None:
        super().__init__("model: " + "\n".join(map(str, misfits)))
        self.misfits = tuple(misfits)


class LastSite(Messenger):  # type: ignore[misc]
    """Remember the last site."""

    def __init__(self) -> None:
        super().__init__()
        self.name = ""

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if type(msg["fn"]).__name__ != "_Subsample":
            self.name = msg["name"]


def misfits(trace: poutine.Trace, x: Tensor) -> list[Misfit]:
    """Return the problems with the sites of a model that was run on the records ``x``.

    Each of them would silently invalidate the privacy accounting.
    """
    latent, observed = split(trace)
    plates = {frame.name for site in observed for frame in site["cond_indep_stack"]}
    result = [one for site in observed for one in _in_observed(site, x)]
    for site in latent:
        result += _in_latent(site, x, plates)
    for name, site in trace.nodes.items():
        if site["type"] == "param":
            result.append(parameter(name))
    if not observed:
        result.append(Misfit("model", "observes no site", _OBSERVE))
    if not latent:
        remedy = 'give the unknowns a prior: w = pyro.sample("w", ...)'
        result.append(Misfit("model", "has no latent site", remedy))
    return result


def split(trace: poutine.Trace) -> tuple[list[Site], list[Site]]:
    """Return the latent and the observed sites of a trace.

    Plates' own sites are left out, and so are values that follow from other sites.
    """
    latent: list[Site] = []
    observed: list[Site] = []
    for site in trace.nodes.values():
        if site["type"] != "sample" or type(site["fn"]).__name__ == "_Subsample":
            continue
        if not follows(site):
            (observed if site["is_observed"] else latent).append(site)
    return latent, observed


def follows(site: Site) -> bool:
    """Whether a sample site observes the value that it has by definition.

    So does ``pyro.deterministic``, and a site that ``poutine.reparam`` has replaced.
    """
    fn = site["fn"]
    while isinstance(fn, MaskedDistribution):
        fn = fn.base_dist
    if not (site["is_observed"] and isinstance(fn, Delta) and fn.v is site["value"]):
        return False
    return not bool(fn.log_density.any())  # a reparametrisation may weigh its value


def parameter(name: str) -> Misfit:
    """Return the misfit for a parameter of the model."""
    return Misfit(
        f"parameter {name!r}",
        "would be trained for the data and not for its neighbours",
        "give it a prior (pyro.sample, or PyroSample in a PyroModule), or make it a constant "
        "(register_buffer in a module)",
    )


def missing_from_guide(site: Site, enumerates: bool) -> Iterator[Misfit]:
    """Yield the problem with a record's own latent that is missing from the guide.

    There is none if the loss enumerates and the site is marked for it, as by config_enumerate.
    """
    marked = site["infer"].get("enumerate") == "parallel" and site["fn"].has_enumerate_support
    if not (enumerates and marked):
        wrong = "is not in the guide, and the loss does not sum it out"
        yield Misfit(f"latent site {site['name']!r}", wrong, summing_out(site))


def summing_out(site: Site) -> str:
    """Return the remedy for a record's own latent that neither guide nor loss handles."""
    if site["fn"].has_enumerate_support:
        return (
            "mark the model with @pyro.infer.config_enumerate and train it by fit_private(..., "
            "route=DPVI(loss=TraceEnum_ELBO())) or PrivateSVI with TraceEnum_ELBO"
        )
    if site["fn"].support.is_discrete:
        return "sum it out of the likelihood, as dist.ZeroInflatedPoisson does for its zeros"
    return (
        "integrate it out of the likelihood: an effect of a group, such as a person or a hospital, "
        "by bdpvi.models.grouped.RandomIntercept with the group's rows as one record "
        "(bdpvi.datasets.groups.padded), others by a closed form or by quadrature; or, though it "
        "may bias the other latents, sample it in the guide, from parameters that it computes from "
        "the record's own row"
    )


def per_record(site: Site, x: Tensor) -> bool:
    """Whether a traced sample site lies in one plate over exactly the records of ``x``."""
    frames = [frame for frame in site["cond_indep_stack"] if frame.vectorized]
    return len(frames) == 1 and frames[0].dim == -1 and frames[0].size == len(x)


_PLATE = 'observe it inside one `with pyro.plate("records", len(x)):`'
_OBSERVE = 'hand the targets over: pyro.sample("y", ..., obs=y)'
_CAST = "make its constants from x, as in x.new_zeros(()), or convert them to the type of x"


def _in_observed(site: Site, x: Tensor) -> Iterator[Misfit]:
    name, frames = f"observed site {site['name']!r}", site["cond_indep_stack"]
    parts = [frame for frame in frames if frame.full_size not in (None, frame.size)]
    for frame in parts:
        yield Misfit(
            f"plate {frame.name!r}",
            f"has {several(frame.size, 'entry', 'entries')} for {several(len(x), 'record')}",
            "a model sees one batch and must not subsample by itself; leave out subsample_size",
        )
    loops = [frame.name for frame in frames if not frame.vectorized]
    if not frames or loops:
        where = f"is in a loop over plate {loops[0]!r} and " if loops else "is "
        yield Misfit(name, f"{where}not inside one pyro.plate over the records", _PLATE)
    elif len(frames) > 1:
        names = " and ".join(repr(frame.name) for frame in frames)
        yield Misfit(
            name,
            f"lies in the plates {names}",
            "keep the one over the records, and make the other a .to_event(1) of the distribution",
        )
    elif parts:
        return
    elif not per_record(site, x):
        (frame,) = frames
        yield Misfit(
            f"plate {frame.name!r}",
            f"has {several(frame.size, 'entry', 'entries')} at dim={frame.dim} for "
            f"{several(len(x), 'record')}",
            'write pyro.plate("records", len(x)), with the records in the last dimension',
        )
    elif site["fn"].batch_shape != (len(x),):
        yield Misfit(
            name,
            f"has the batch shape {tuple(site['fn'].batch_shape)} for {several(len(x), 'record')}",
            "every record needs one log-density; use .to_event(1) for a target of several numbers",
        )
    if not parts:
        yield from _weighted(name, site, torch.Size([len(x)]))


def _in_latent(site: Site, x: Tensor, plates: set[str]) -> Iterator[Misfit]:
    name = f"latent site {site['name']!r}"
    for frame in site["cond_indep_stack"]:
        if frame.name in plates or (not plates and frame.size == len(x)):
            yield Misfit(
                name,
                f"lies in a plate over the records, {frame.name!r}",
                f"sum a record's own variable out of its likelihood, or {summing_out(site)}; if it "
                f"is the target, {_OBSERVE}",
            )
        elif frame.full_size not in (None, frame.size):
            yield Misfit(
                name,
                f"lies in a plate, {frame.name!r}, with {frame.size} of {frame.full_size} entries",
                "take all of them in every step, without subsample_size",
            )
            return
    if site["fn"].support.is_discrete:
        yield Misfit(
            name,
            "is discrete",
            "sum it out of the likelihood (as in dist.MixtureSameFamily), or make it continuous",
        )
    yield from _weighted(name, site)


def _weighted(name: str, site: Site, own: torch.Size | None = None) -> Iterator[Misfit]:
    """Return the problems with weights, which may have shape ``own``, one for each record."""
    scale = torch.as_tensor(site["scale"])
    if scale.shape != own and bool((scale != 1).any()):
        yield Misfit(
            name,
            f"is scaled by {site['scale']}",
            "leave out poutine.scale; weights come from the training plan, or one of each record, "
            "(records,), from its own row",
        )
    if site["mask"] is not None:
        yield Misfit(
            name,
            "is masked by a handler",
            "leave out poutine.mask and obs_mask; mask the distribution: dist.Normal(...).mask(m)",
        )


def mistyped(trace: poutine.Trace, x: Tensor) -> list[Misfit]:
    """Return the latent sites whose values have another dtype than the records ``x``."""
    result = []
    for site in split(trace)[0]:
        value = site["value"]
        if value.is_floating_point() and value.dtype != x.dtype:
            wrong = f"is {value.dtype} where the records are {x.dtype}"
            result.append(Misfit(f"latent site {site['name']!r}", wrong, _CAST))
    return result
