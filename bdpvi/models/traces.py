"""Pyro models, run: their sites, log-likelihoods, and the distributions of their targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions import ImproperUniform, Unit
from pyro.poutine.messenger import Messenger
from pyro.poutine.subsample_messenger import SubsampleMessenger
from torch import Tensor
from torch.distributions import Categorical, Independent, Transform, biject_to

from bdpvi._ground.host import drawing
from bdpvi._ground.isolation import isolated
from bdpvi.datasets.named import Argument, blank
from bdpvi.models.contract import Model, Site, with_features
from bdpvi.models.misfits import MisfitError, follows, misfits, per_record, split
from bdpvi.models.parameters import TrainedModel


class RecordWeights(Messenger):  # type: ignore[misc]
    """Multiply the log-likelihood of each record by its weight: 1/q in a batch of rate q."""

    def __init__(self, weights: Tensor | float) -> None:
        super().__init__()
        self.weights = weights

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if msg["is_observed"]:
            msg["scale"] = msg["scale"] * self.weights


class GlobalLatents(Messenger):  # type: ignore[misc]
    """Take latent variables out of their plates: each is one site with one log-density.

    The prior of a plate of groups is then that of ``.to_event``, as guides without plates have it.
    """

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if not msg["is_observed"] and type(msg["fn"]).__name__ != "_Subsample":
            msg["fn"] = msg["fn"].to_event(len(msg["fn"].batch_shape))
            msg["cond_indep_stack"] = ()


class Improper(Messenger):  # type: ignore[misc]
    """Give a latent with an improper prior a value, as ``SplitReparam`` has them."""

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        fn = msg["fn"]
        if msg["value"] is None and isinstance(fn, ImproperUniform):
            onto, shape = biject_to(fn.support), fn.batch_shape + fn.event_shape
            msg["value"] = onto(torch.zeros(onto.inverse_shape(shape)))


@contextmanager
def subsampling(by: Callable[..., Any]) -> Iterator[None]:
    """Let this choose the entries of every plate; its first argument is Pyro's own function.

    Pyro has no handler for a plate's size, which is read before any message is sent.
    """
    plain = SubsampleMessenger._subsample
    SubsampleMessenger._subsample = staticmethod(partial(by, plain))
    try:
        yield
    finally:
        SubsampleMessenger._subsample = staticmethod(plain)


def every_entry() -> AbstractContextManager[None]:
    """Let plates that subsample have all their entries, as predictions are of each record."""

    def whole(plain: Any, name: str, size: Any = None, *part: Any, **more: Any) -> Any:
        if size is None:
            return plain(name, size, *part, **more)
        device = more.get("device", part[3] if len(part) > 3 else None)
        return plain(name, size, None, None, None, device)

    return subsampling(whole)


def log_likelihood(model: Model, latents: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Return the log-likelihood of each record given the latent values, times its weight, (N,)."""
    trace = poutine.trace(poutine.condition(model, data=dict(latents))).get_trace(x, y)
    sites = [trace.nodes[name] for name in trace.observation_nodes if name not in latents]
    return torch.stack([log_density(site) for site in sites if not follows(site)]).sum(0)


def log_density(site: Mapping[str, Any]) -> Tensor:
    """Return the log-density of a traced site's value, times its ``poutine.scale``."""
    return site["fn"].log_prob(site["value"]) * site["scale"]  # type: ignore[no-any-return]


class _Means(Messenger):  # type: ignore[misc]
    """Replace a target's sample by its mean, or by the first class, as classes have none.

    torch.vmap cannot sample from every distribution.
    """

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if msg["value"] is None and type(msg["fn"]).__name__ != "_Subsample":
            law, mean = msg["fn"], msg["fn"].mean
            while isinstance(law, Independent):
                law = law.base_dist
            classes = isinstance(law, Categorical)
            msg["value"] = torch.zeros_like(mean, dtype=torch.long) if classes else mean


def predicted(
    model: Model, latents: Mapping[str, Tensor], x: Tensor, of: Callable[[str, Any], Tensor]
) -> Tensor:
    """Return a function of each record's target distribution, for each of k values of the latents.

    Args:
        model: the model.
        latents: their values, each (k, ...).
        x: features, (N, d).
        of: the function of a target's name and distribution of N records.

    Raises:
        ValueError: if records have latents of their own.
    """
    model = TrainedModel.of(model)

    def one(latent: dict[str, Tensor]) -> Tensor:
        trace = poutine.trace(poutine.condition(model, data=latent)).get_trace(x)
        sites = {n: site for n, site in trace.nodes.items() if site["type"] == "sample"}
        own = [site for n, site in sites.items() if n not in latent and per_record(site, x)]
        own = [s for s in own if not (follows(s) or isinstance(s["fn"], Unit))]
        if not own:
            raise ValueError(
                "model has no target that is sampled in one plate over the records, at dim=-1, so "
                "no expected target; compute what you need from release.latents"
            )
        target, *others = own
        if others:
            raise ValueError(
                f"model: sites {target['name']!r} and {others[0]['name']!r} are drawn for each "
                "record, and a release has no latents of single records, so no expected target; "
                "compute what you need from release.latents"
            )
        return of(target["name"], target["fn"])

    with pyro.validation_enabled(False), torch.no_grad(), every_entry(), _Means():
        if not latents:  # a model with parameters only
            return one({}).unsqueeze(0)
        try:
            return torch.vmap(one, randomness="different", chunk_size=256)(dict(latents))
        except RuntimeError:  # torch has no batches of some means, as of Student's t
            draws = range(len(next(iter(latents.values()))))
            return torch.stack([one({n: value[k] for n, value in latents.items()}) for k in draws])


def latent_sites(model: Model, x: Tensor, y: Tensor) -> dict[str, dict[str, Any]]:
    """Return the model's latent sites, after checking that bdpvi can account for the model.

    Raises:
        MisfitError: a ValueError, see :func:`bdpvi.models.misfits.misfits`.
    """
    with poutine.block(), torch.no_grad(), drawing(x.device):
        trace = poutine.trace(model).get_trace(x, y)
    if found := misfits(trace, x):
        raise MisfitError(found)
    return {site["name"]: dict(site) for site in split(trace)[0]}


def sites(model: Model, x: Tensor, y: Tensor) -> tuple[Site, ...]:
    """Return the model's latent variables in the order of the flat unconstrained vector.

    Raises:
        ValueError: as in :func:`latent_sites`.
    """
    found = []
    for name, site in latent_sites(model, x, y).items():
        transform = biject_to(site["fn"].support)
        found.append(Site(name, transform.inverse_shape(site["value"].shape), transform))
    return tuple(found)


def transforms(model: Model, x: Tensor) -> dict[str, Transform]:
    """Return the maps from unconstrained values to the support of every sample site but targets.

    Args:
        model: the model, which is run once, without targets.
        x: features of one record, (1, d).
    """
    quiet = pyro.validation_enabled(False)
    with isolated(x), poutine.block(), torch.no_grad(), quiet, every_entry():
        trace = poutine.trace(Improper()(TrainedModel.of(model))).get_trace(x)
    found = {site["name"]: site["fn"].support for site in split(trace)[0]}
    return {n: biject_to(support) for n, support in found.items() if not support.is_discrete}


def check_without_targets(
    model: Model, arguments: tuple[Argument, ...], x: Tensor, sites: Iterable[Site]
) -> None:
    """Run a model on zeros, without its targets, as predictions do.

    Args:
        model: the model.
        arguments: the features, if it takes them by name; () for a single x.
        x: features of one record, (1, d); of the type of the latents, if there are arguments.
        sites: the latents of its training.

    Raises:
        ValueError: if it fails, or has other latents.
    """
    try:
        if arguments:
            found = transforms(with_features(model, blank(arguments, x)), x.new_zeros(1, 0))
        else:
            found = transforms(model, x)
    except Exception as error:
        raise ValueError(
            f"model raised {type(error).__name__} without its targets ({error!s:.80}); they are "
            "for obs= alone, as predictions have none: write model(x, y=None)"
        ) from error
    if missing := sorted({site.name for site in sites} - set(found)):
        raise ValueError(
            f"model: without its targets it has no latent site {missing[0]!r}; sample it whether "
            "or not there are targets, which are for obs= alone"
        )
