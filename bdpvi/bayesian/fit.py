"""The main entry point: train a guide and its neighbours."""

from __future__ import annotations

import hashlib
import secrets
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from pyro.infer.autoguide import AutoGuide
from pyro.optim import PyroOptim
from torch import Tensor
from torch.distributions import Distribution

from bdpvi import guides
from bdpvi._ground import progress as bars
from bdpvi._ground.host import device_of, on_host
from bdpvi._ground.outputs import several
from bdpvi._ground.types import NotCertifiedWarning
from bdpvi.bayesian.accounting.panel import Panel
from bdpvi.bayesian.accounting.settings import Accounting
from bdpvi.bayesian.inference.guide import Guide
from bdpvi.bayesian.inference.svi import Convergence, Problem, default_optimiser
from bdpvi.bayesian.mode.route import Mode
from bdpvi.bayesian.neighbours.coupled import Coupled
from bdpvi.bayesian.neighbours.route import Neighbours
from bdpvi.bayesian.optimum.drawn import FixedDraws
from bdpvi.bayesian.optimum.route import Optimum
from bdpvi.bayesian.optimum.stream import Streamed
from bdpvi.datasets.dataset import BlockData, Dataset, People, in_arrays
from bdpvi.datasets.items import pair
from bdpvi.datasets.sketch import tell_of_copies
from bdpvi.datasets.weights import refuse_weights
from bdpvi.guides.checks import require
from bdpvi.models.contract import Model, name_of
from bdpvi.models.logistic import with_categories
from bdpvi.noise.batches import BatchPlan
from bdpvi.noise.keys import EXPERIMENT, Key
from bdpvi.privacy.ledger import Ledger
from bdpvi.releases import basis

_TYPICAL = (
    "draws from this fit will have no worst-case ε and no certified Bayesian ε, but a guarantee "
    "for typical records: the influence of a single record is not bounded. guides.Laplace of "
    "logistic regression has a certified ε, so has guides.FullRank at the ELBO's optimum, "
    "neighbours=Optimum(); and bdpvi.fit_private a worst-case ε"
)


@dataclass(eq=False)
class Kept:
    """A fit's ledger and storage.

    Attributes:
        people: the people in the training data; their ledger is the fit's.
        name: id of the fit in the ledger.
        folder: folder where it was last saved, or loaded from.
        generators: digests of the used states of seeded generators.
    """

    people: People
    name: str = field(default_factory=lambda: secrets.token_hex(8))
    folder: Path | None = None
    generators: set[str] = field(default_factory=set)

    def use_once(self, generator: torch.Generator) -> Key:
        """Return the key from a generator's state.

        Raises:
            ValueError: if this state was used before: the noise of two samples would cancel.
        """
        state = hashlib.sha256(generator.get_state().numpy().tobytes()).hexdigest()
        if state in self.generators:
            raise ValueError(
                "generator is in a state already used for samples of this fit: both would have "
                "the same noise, and their difference would reveal the mean"
            )
        self.generators.add(state)
        return Key.of_seed(int(state, 16))


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted guide with everything needed to account for draws from it. All of it is secret.

    Attributes:
        model, guide: the arguments of :func:`fit`; a weighted logistic regression also knows which
            columns belong to one category. ``guide.parameters`` are this fit's until the guide is
            fitted again.
        parameters: θ, constrained and detached.
        panels: each reference record's pair of posteriors, with and without the record.
        convergence: the ELBO and its gradient's norm before every step of training.
        plan: batches and noise of the training.
        data_name, feature_names, preprocessing: those of the training data, see
            :class:`~bdpvi.datasets.dataset.Dataset`.
        fingerprint: digest of the training data.
        records: N, the size of the training data.
        accounting: how a Bayesian ε of its releases is computed.
        kept: its ledger and storage, which :func:`dataclasses.replace` shares.
    """

    model: Model
    guide: Guide
    parameters: Mapping[str, Tensor]
    panels: tuple[Panel, ...]
    convergence: Convergence
    plan: BatchPlan
    data_name: str
    feature_names: tuple[str, ...]
    preprocessing: Mapping[str, Any]
    fingerprint: str
    records: int
    accounting: Accounting = field(default_factory=Accounting)
    kept: Kept = field(default_factory=lambda: Kept(People()), repr=False)

    def __repr__(self) -> str:
        guide, model = type(self.guide).__name__, name_of(self.model)
        return f"Fit({guide} of {model}, {several(len(self.feature_names), 'feature')}; secret)"

    @property
    def ledger(self) -> Ledger:
        """The ledger of everything spent on the table."""
        result: Ledger = self.kept.people.ledger
        return result

    @property
    def experiment(self) -> bool:
        """Whether a public seed determined split or batches, so that nothing may be released."""
        return self.plan.experiment or bool(self.preprocessing.get(EXPERIMENT))

    @property
    def posterior(self) -> Distribution:
        """The fitted Gaussian over the flat vector of latents, detached."""
        return self.guide.posterior(self.parameters)

    @property
    def released(self) -> Distribution:
        """The Gaussian of released samples at temperature 1: the posterior, unless the guide has a
        ridge or a noise scale."""
        return self.guide.released(self.parameters)


@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of a guide's training.

    Args:
        steps: optimiser steps.
        rate: Poisson sampling rate q of the batches; 1 is full batch.
        seed: seed of batches and base noise. None uses a secret key, stored with the fit, so that
            batches are independent secret coins per record and step. A number makes an
            experiment, which repeats bit for bit on the CPU; with ``rate`` below 1 nothing may
            be released from it.
        optim: a Pyro optimiser, by default Adam with a decaying learning rate.
        device: "auto" (CUDA when there is one), "cpu", "cuda" or any torch device.
        dtype: of the training; accounting is always in float64.

    >>> Training(steps=200, rate=0.1).plan.rate
    0.1
    """

    steps: int = 1000
    rate: float = 1.0
    seed: int | Key | None = None
    optim: PyroOptim | None = None
    device: str = "auto"
    dtype: torch.dtype = torch.float64

    def __post_init__(self) -> None:
        _ = self.plan  # refuse invalid settings

    @property
    def plan(self) -> BatchPlan:
        """The plan of the batches, without a key."""
        seed = 0 if not isinstance(self.seed, int) else self.seed
        return BatchPlan(steps=self.steps, rate=self.rate, seed=seed)


@on_host
def fit(
    model: Model,
    guide: Guide | AutoGuide,
    data: Dataset | BlockData | tuple[object, object],
    *,
    training: Training | None = None,
    neighbours: Neighbours | None = None,
    accounting: Accounting | None = None,
    ledger: Ledger | None = None,
    progress: bool = True,
) -> Fit:
    """Fit ``guide`` to the posterior of ``model`` by SVI, and train the neighbours of ``data``.

    Args:
        model: a Pyro model ``model(x, y=None)`` of records, see :mod:`bdpvi.models.contract`.
        guide: a Gaussian guide for it, see :mod:`bdpvi.guides`; or a Pyro guide that has not run,
            which :func:`bdpvi.guides.of` converts.
        data: N ≥ 3 records, or any number if a worst case is known; records that are invalid for
            the model are left out. Or a pair (x, y) of arrays, frames, tensors or lists
            for :meth:`Dataset.of`; or records of a table in blocks, of :meth:`bdpvi.Table.numbers`
            or :func:`bdpvi.datasets.from_blocks`, which ``Optimum()`` and ``guides.Laplace`` read
            in passes.
        training: steps, batches, optimiser and device of SVI; :class:`Training` by default.
        neighbours: how the leave-one-out fits are computed. The default is ``Optimum()`` if it
            applies: all leave-one-out fits with proven errors, for a full-rank or mean-field
            guide of logistic regression, rate 1 and no custom optimiser. It computes the maximum of
            the ELBO directly, so steps and seed do not matter. Otherwise ``Coupled()``: all
            leave-one-out fits, trained with the fit by SVI; ``Coupled(checkpoint=folder)``
            resumes after an interruption.
        accounting: how the Bayesian ε of releases is computed; it is stored with the fit.
        ledger: the table's ledger, possibly with a budget, ``Ledger(budget=Budget(1.0))``; by
            default the ledger of ``data``, so that fits of one data set
            share it.
        progress: whether to show progress bars on standard error.

    The guarantee of its draws is known before training. It is the first of these that applies: a
    worst-case ε with ``Optimum()``, a clip and a public noise scale; a certified Bayesian ε with
    :class:`bdpvi.guides.Laplace` or, by ``Optimum()``, :class:`bdpvi.guides.FullRank` of logistic
    regression (with :class:`bdpvi.guides.MeanField` too, without a worst case for all tables); and
    for all other models and guides, your own included, the typical-record guarantee,
    :class:`bdpvi.TypicalRecord`. That one certifies nothing for other records; a
    :class:`bdpvi.NotCertifiedWarning` says so before training, once per process, and with every
    release.

    Returns:
        The fit. Nothing stays in Pyro's parameter store.

    Raises:
        ValueError: if data cannot be accounted for, with the argument; or if model or guide are
            invalid, with all their faults, as by :func:`bdpvi.check`.

    >>> from bdpvi import BayesianLogisticRegression, datasets, guides
    >>> model = BayesianLogisticRegression(clip=0.5)
    >>> data = datasets.load_breast_cancer().train
    >>> result = fit(model, guides.MeanField(model), data, progress=False)
    >>> result.posterior.mean.shape
    torch.Size([30])
    """
    training = training or Training()
    if not isinstance(data, Dataset | BlockData):
        data = Dataset.of(*pair(data))
    refuse_weights(data, "bdpvi.fit")
    model = with_categories(model, _one_hot(data.preprocessing))
    if isinstance(data, Dataset):
        data = data.taking(getattr(model, "takes", None))
    data.people.share(ledger, parts=data.some)
    shown = in_arrays(data)
    basis.given_assumptions(data, **shown)
    there, some = _move_records(data, guide, training)
    require(model, guide, some if len(some) else _blank(some))
    basis.check_programs(data, shown, model=model, guide=guide, optim=training.optim)
    if isinstance(guide, AutoGuide):
        guide = guides.of(guide, model, some)
    route = _route(model, guide, there, training, neighbours)
    bounded = route.bounds(model, guide, some.x.shape[1])
    if len(there) < 3 and not bounded:
        # With a worst case, whether there is an answer must not depend on the records.
        raise ValueError(f"data has {several(len(there), 'record')}; at least 3 are needed")
    if not route.certifies(model, guide, some.x.shape[1]):
        warnings.warn(_TYPICAL, NotCertifiedWarning, stacklevel=1)  # one place: shown once
    plan, key = training.plan, route.key() if training.seed is None else training.seed
    if isinstance(key, Key):
        plan = replace(plan, seed=int(key), secret=not key.experiment)
    optim = training.optim or default_optimiser(plan.steps)
    problem = Problem(model, guide, some, plan, optim)
    trained = route.train(problem, bars.bar if progress else bars.silent)
    guide.parameters = dict(trained.parameters)
    panels = trained.panels
    if isinstance(data, Dataset):
        panels = tuple(panel.with_marks(data.ids, data.x, data.y) for panel in panels)
        if any(len(panel.ids) for panel in panels):
            tell_of_copies(data.some())
    return Fit(
        model=model,
        guide=guide,
        parameters=trained.parameters,
        panels=panels,
        convergence=trained.convergence,
        plan=plan,
        data_name=data.name,
        feature_names=data.feature_names,
        preprocessing=data.preprocessing,
        fingerprint=data.fingerprint(),
        records=len(there),
        accounting=accounting or Accounting(),
        kept=Kept(data.people),
    )


def _move_records(
    data: Dataset | BlockData, guide: object, training: Training
) -> tuple[Dataset | BlockData, Dataset]:
    """Return the records where they are used, and all of them, or one of a table in blocks."""
    if isinstance(data, Dataset):
        moved = data.to(device_of(training.device), training.dtype)
        return moved, moved
    some = Dataset(torch.zeros(1, len(data.feature_names)), torch.zeros(1))
    if isinstance(guide, guides.Laplace):
        return data, some
    return data.to(training.dtype), some.to(device_of(training.device), training.dtype)


def _route(
    model: Model,
    guide: Guide,
    data: Dataset | BlockData,
    training: Training,
    neighbours: Neighbours | None,
) -> Neighbours:
    """Return the route, by default an optimum where there is one."""
    if isinstance(guide, guides.Laplace):
        if training.rate != 1 or training.optim is not None:
            raise ValueError(
                f"training: rate={training.rate!r} and optim={training.optim!r} do not matter for "
                "guides.Laplace, which is found by Newton steps on all records; leave both out"
            )
        route: Neighbours = neighbours or Mode()
        if not (isinstance(route, Mode) and Mode.takes(model, guide)):
            raise ValueError(
                "guide: Laplace, and no subclass of it, is the mode of "
                "BayesianLogisticRegression without clip, of a regression made by its "
                "bounded() or of an OwnRegression, by neighbours=Mode(), "
                f"not of {model!r:.80} by {type(route).__name__}; use guides.FullRank"
            )
    elif neighbours is not None:
        route = neighbours
    elif isinstance(data, BlockData):
        route = Optimum()
    elif training.optim is not None:
        route = Coupled()
    elif Optimum.takes(model, guide, training.rate):
        route = Optimum()
    else:
        route = FixedDraws() if FixedDraws.takes(model, guide) else Coupled()
    if isinstance(data, BlockData):
        return Streamed(data, route) if type(route) is Optimum else route.over(data)
    return route


def _blank(data: Dataset) -> Dataset:
    """Return one record of zeros, to test a model on an empty table."""
    return Dataset(data.x.new_zeros(1, data.x.shape[1]), data.y.new_zeros(1))


def _one_hot(preprocessing: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
    """Return which columns belong to one category, if an encoding has that."""
    from bdpvi.datasets.encoding import Encoding  # late: most tables have none

    written = preprocessing.get("encoding")
    return Encoding.from_dict(written).one_hot if written else ()
