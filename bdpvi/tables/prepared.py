"""Charged and released in one go: data and an ε in, a release out, and no secret fit between.

The noise of a mechanism is part of the fit, so each release solves from the rows again. Its cost
follows from the settings only, and is charged before any draw.
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bdpvi._ground import log, validate
from bdpvi._ground.host import HOST, on_host
from bdpvi.bayesian.accounting.accountant import cost_of
from bdpvi.bayesian.guarantees import Guarantee, WorstCaseDP
from bdpvi.bayesian.inference.guide import check_unused
from bdpvi.datasets.dataset import BlockData, Data, Dataset, in_arrays
from bdpvi.datasets.items import by_index, pair
from bdpvi.datasets.named import by_argument, has_arguments
from bdpvi.datasets.origin import declared
from bdpvi.datasets.weights import refuse_weights
from bdpvi.models.contract import Model
from bdpvi.models.linear import BayesianLinearRegression
from bdpvi.models.logistic import BayesianLogisticRegression
from bdpvi.noise.keys import Key
from bdpvi.privacy.assumptions import sentences
from bdpvi.privacy.book import ROW, Book
from bdpvi.privacy.cost import Cost
from bdpvi.privacy.entry import Entry
from bdpvi.privacy.ledger import Ledger
from bdpvi.programs.dpvi import DPVI
from bdpvi.programs.settings import Settings
from bdpvi.regression.noisy_scores import NoisyScores
from bdpvi.regression.objective import ObjectivePerturbation
from bdpvi.releases import basis, persons
from bdpvi.releases.account import with_history
from bdpvi.releases.mechanisms import CountRows, Solve
from bdpvi.releases.receipt import AIMED, Receipt
from bdpvi.releases.received import release_of
from bdpvi.releases.released import Release, flat
from bdpvi.releases.route import Route, Suited
from bdpvi.releases.row_counts import MOST
from bdpvi.releases.shared_file import release_bytes
from bdpvi.releases.transaction import Before, Transaction


@dataclass(frozen=True, eq=False)
class Prepared:
    """Encoded rows and the mechanism of their releases, of :func:`bdpvi.private`.

    All of it is secret; :meth:`release` solves once for each draw.

    Attributes:
        model: the model.
        data: the rows.
        route: the mechanism.
    """

    model: Model
    data: Data
    route: Suited[Any]

    @classmethod
    @on_host
    def of(
        cls,
        model: Model,
        data: Data,
        route: Route[Any],
        *,
        guide: object = None,
        ledger: Ledger | None = None,
    ) -> Prepared:
        """Return prepared rows; ``ledger`` as for :func:`bdpvi.fit`.

        Raises:
            ValueError: if model, data or guide do not suit the route; nothing is charged. This does
                not depend on records: invalid ones are left out.
        """
        if not getattr(route, "weighs", False):
            refuse_weights(data, f"route={type(route).__name__}()")
        data = data.taking(getattr(model, "takes", None))
        model = getattr(model, "plain", model)
        check_unused(guide)
        shown = in_arrays(data)
        basis.check_programs(data, shown, model=model, guide=guide, route=route)
        data.people.share(ledger, parts=data.some)
        basis.given_assumptions(data, **shown)
        return cls(model, data, route.adapt(model, data, guide))

    def rehearse(self) -> None:
        """Release from made-up records, write, read and use it: what can fail, fails uncharged.

        Raises:
            ValueError: naming what failed.
        """
        short = getattr(self.route, "rehearsal", None)
        if short is None:
            return
        data = self.data.made_up
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tried = replace(self, data=data, route=short)
                made = tried.release(epsilon=1.0, work=Transaction(data.ledger, Key(bytes(32))))
            assert made.guide is not None
            mean = torch.tensor([made.guide.mean] * 2).to(made.samples)  # draws may overflow
            latents = made.guide.latents(made.model, mean, len(data.feature_names))
            content = release_bytes(replace(made, samples=mean, latents=latents))
            release_of(content, self.model).with_draws(2)
        except Exception as error:  # whatever a model or guide of the user's raises
            raise ValueError(
                f"a release fails on made-up records, by {type(error).__name__}: {error!s:.200}. "
                "Nothing was charged"
            ) from error
        finally:
            short.reset(self.model)

    @property
    def ledger(self) -> Ledger:
        """The ledger of everything spent on the table."""
        result: Ledger = self.data.people.ledger
        return result

    @property
    def what(self) -> str:
        """A release in words, for the ledger."""
        kind = getattr(self.model, "kind", type(self.model).__name__)
        return f"fit_private: {kind} of {self.data.name!r}"

    def release(
        self,
        *,
        epsilon: float,
        delta: float = 1e-5,
        work: Transaction | None = None,
    ) -> Release:
        """Charge, then solve once for each draw.

        ``epsilon`` limits everything spent on the table, this release included. The settings
        follow from that whole ε and the number of draws.

        Args:
            epsilon, delta: as for :func:`bdpvi.fit_private`.
            work: the transaction of which this is the last step; by default a new one.
        """
        validate.epsilon(epsilon)
        validate.probability("delta", delta)
        if work is None:
            self.rehearse()
            work = Transaction(self.ledger, Key.fresh(), what=self.what)
        route = self.route
        what = work.reserve(epsilon, delta, f"ε = {epsilon:g}") if route.count else nullcontext()
        with what:
            if route.count:
                price = (route.count, epsilon, delta, self.data.people.are_records)
                counted = CountRows(len(self.data), *price)
                self._check_any(counted, work.before())
                route = route.of_rows(work.perform(counted))
            solve = Solve(self.model, self.data, route, epsilon, delta)
            plan, key, _ = work.charge(solve, last=True)
        output = work.draw_charged(solve, plan, key)
        total = Cost(worst_case=work.total(delta).assuming(*plan.assumptions))
        if output.rounds:
            total = replace(total, path=cost_of(output.rounds, delta).path)
        latents = {name: value.to(HOST) for name, value in output.latents.items()}
        noted = basis.published(self.data.preprocessing, work.counting_charges().entries)
        assert total.worst_case is not None  # a release without one is not planned
        worst = total.worst_case.public(epsilon)
        receipt = Receipt(
            worst_case=worst.seeded() if work.secret.experiment else worst,
            about=sentences(basis.about(noted), route.words(plan.settings), output.words),
            source=AIMED,
            draws=route.draws,
            temperature=None,
            noise_scale=None,
            step=None,
        )
        return Release(
            samples=flat(latents) if output.flat is None else output.flat.to(HOST),
            latents=latents,
            receipt=with_history(receipt, self.ledger),
            model=route.predicting(self.model, plan.settings),
            feature_names=self.data.feature_names,
            preprocessing=noted,
            estimate=output.estimate,
            guide=output.guide,
            parameters=output.parameters,
            secret=total,
        )

    def _check_any(self, counted: CountRows, book: Book) -> None:
        """Refuse before a count what would be refused after it, whatever it says."""
        price = counted.plan(Before(book))
        spent = Entry(kind=price.kind, events=price.events)
        route = self.route.of_rows(MOST)
        most = Solve(self.model, self.data, route, counted.epsilon, counted.delta)
        most.plan(Before(book.of_entries((*book.entries, spent))))


@log.step("private fit")
@on_host
def fit_private(
    model: Model,
    data: Dataset | BlockData | tuple[object, object] | Any,
    *,
    epsilon: float,
    delta: float = 1e-5,
    route: Route[Any] | None = None,
    guide: object = None,
    guarantee: Guarantee | None = None,
    ledger: Ledger | None = None,
    unit: Any = None,
) -> Release:
    """Charge, fit with noise, and release: in one go, as there is no secret fit to draw from.

    The guarantee is worst-case, to add or remove one record, unless another is asked for: then the
    release is a draw from the posterior, as of :func:`bdpvi.fit` and :func:`bdpvi.release`, and the
    fit is forgotten.

    Args:
        model: what is fitted; all its hyper-parameters are public. Routes bound what a record does
            on their own, so logistic regression has no weights of records here, unless it is for a
            Bayesian guarantee.
        data: the records, encoded with public or private preprocessing; or a pair (x, y) of which
            :meth:`Dataset.of` makes them. One that the model cannot have, such as a label that is
            no class, is left out, and the owner is told how many. They need not fit in memory:
            :func:`bdpvi.datasets.from_blocks` returns records in blocks, and a torch ``Dataset``,
            or any other sequence of pairs of features (d,) and a target, is read by index. A model
            of several arguments, handed to :class:`bdpvi.DPVI`, gets a tuple of tensors or arrays
            by position, or a mapping or a frame by name; a torch ``Dataset`` may hold these, too.
            Those that are None by default are its targets; predictions take the others.
        epsilon: ε that everything spent on the table may reach, this included.
        delta: δ.
        route: how, such as :class:`ObjectivePerturbation`; None takes the best that the model has.
        guide: for routes that need one; by default of a draw :class:`bdpvi.guides.Laplace`. Its
            starting values, as by ``init_loc_fn``, count as public.
        guarantee: :class:`~bdpvi.bayesian.guarantees.BayesianDP` for a draw whose ε is certified,
            by :class:`bdpvi.guides.Laplace` of :class:`BayesianLogisticRegression`.
        ledger: what is charged; by default the one that came with ``data``.
        unit: the person of each row, (N,), or the name of their column in a frame or a mapping, if
            the guarantee is for all rows of a person; or :class:`bdpvi.tables.Unit` of either, with
            the most rows of each to use. ``Unit()`` says that everybody has one row.

    Returns:
        The release, with its receipt; :func:`bdpvi.save_release` writes it.

    Warns:
        PrivacyUtilityWarning: if neither ``unit`` nor ``data`` say whether a person has several
            rows.

    Raises:
        BudgetExceededError: if the ledger's budget does not suffice; nothing is charged or drawn.
        ValueError: if the route is not for this model, a route was given for a guarantee that is
            not worst-case, or what was spent before leaves nothing of ``epsilon``; nothing is
            charged or drawn.

    >>> from bdpvi import datasets
    >>> data = datasets.load_breast_cancer().train
    >>> model = BayesianLogisticRegression.unweighted(intercept=True, limit=2.0)
    >>> release = fit_private(model, data, epsilon=1.0, route=ObjectivePerturbation(rows=500))
    >>> print(release.receipt)  # the loader standardised by means of the table
    worst-case DP ε = 1 (target) at δ = 1e-05, to add or remove one record, conditional on \
preprocessing bounds read from this table
    >>> release.predict_proba(data.x[:2]).shape
    torch.Size([2, 2])
    """
    validate.epsilon(epsilon)
    validate.probability("delta", delta)
    if isinstance(guarantee, WorstCaseDP) and guarantee.epsilon is not None:
        raise ValueError(
            f"guarantee={guarantee!r} is for bdpvi.release of a fit; route=PosteriorDraws() gives "
            "draws behind a gate here"
        )
    data, people, said = with_people(data, unit, ledger)
    data = _records(model, data, route, guarantee)
    if unit is not None:
        noted = declared(data.preprocessing, said)
        data = replace(data, people=people or data.people, preprocessing=noted)
    if guarantee is not None and not isinstance(guarantee, WorstCaseDP):
        if route is not None:
            raise ValueError(
                f"route={type(route).__name__} has a worst-case guarantee, not {guarantee.name}; "
                "leave route or guarantee out"
            )
        if data.items is not None:
            raise ValueError(
                f"data={type(data.items.source).__name__} is read by index, and a guarantee that "
                "is not worst-case needs tensors, or records of from_blocks"
            )
        from bdpvi.bayesian.fit import fit  # late: they load Pyro
        from bdpvi.bayesian.releases import release
        from bdpvi.guides import Laplace

        guide = Laplace(model) if guide is None else guide
        fitted = fit(model, guide, data, ledger=ledger, progress=False)
        return release(fitted, epsilon=epsilon, delta=delta, guarantee=guarantee)
    persons.warn_of_unsaid(data.people, data.preprocessing, 5)
    route = _usual(model) if route is None else route
    prepared = Prepared.of(model, data, route, guide=guide, ledger=ledger)
    found: Any = prepared.route
    work = None
    if (checkpoint := getattr(found, "checkpoint", None)) is not None:
        if prepared.ledger.path is None:
            raise ValueError(
                f"checkpoint={str(checkpoint)!r} needs a ledger in a file, which outlives "
                "this process as well: ledger=bdpvi.Ledger.at(path)"
            )
        prepared.rehearse()
        secret = found.secret(prepared.model, data, epsilon, delta)
        work = Transaction(prepared.ledger, secret, kept=True, what=prepared.what)
    return prepared.release(epsilon=epsilon, delta=delta, work=work)


def with_people(data: Any, unit: Any, ledger: Ledger | None) -> Any:
    """Return :func:`bdpvi.datasets.units.of_people`, unless the ledger is for others."""
    from bdpvi.datasets.units import of_people  # late: they load pandas

    known = data.people.unit if isinstance(data, Dataset | BlockData) else ROW
    if unit is not None and (isinstance(data, BlockData) or known != ROW):
        raise ValueError(
            "unit: these records have it where they were made; give it there, as to "
            "bdpvi.datasets.from_blocks"
        )
    data, people, said = (data, None, {}) if unit is None else of_people(data, unit)
    if ledger is not None and people is None:
        ledger.check_unit(known)
    return data, people, said


def _records(
    model: Model, data: Any, route: Route[Any] | None, guarantee: Guarantee | None
) -> Data:
    """Return the records that were given in any form."""
    if isinstance(data, Dataset | BlockData):
        return data
    if has_arguments(data):
        others = {
            "guarantee": None if isinstance(guarantee, WorstCaseDP) else guarantee,
            "route": None if isinstance(route, Settings) else route,
            "model": model if hasattr(model, "check") else None,
        }
        for name, one in others.items():
            if one is not None:
                raise ValueError(
                    f"{name}={type(one).__name__} needs a pair (x, y), and data has a tensor for "
                    "each argument, which DPVI takes for a model of your own"
                )
        return by_argument(model, data)
    if by_index(data):
        return BlockData.of_items(data)
    x, y = pair(data)
    both = isinstance(x, Tensor) and isinstance(y, Tensor)
    return Dataset(x, y) if both else Dataset.of(x, y)


def _usual(model: Model) -> Route[Any]:
    """Return the best route that a model has."""
    if isinstance(model, BayesianLogisticRegression):
        return ObjectivePerturbation()
    if isinstance(model, BayesianLinearRegression):
        return NoisyScores()
    return DPVI()
