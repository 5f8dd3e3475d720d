"""Rows and a mechanism whose noise is part of the fit: each release solves from the rows again.

There is no posterior to draw from. A release's cost follows from the settings only, and is charged
before any draw.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bdpvi._ground import validate
from bdpvi._ground.host import HOST, on_host
from bdpvi._ground.types import PrivacyUtilityWarning
from bdpvi.bayesian.accounting.accountant import cost_of
from bdpvi.bayesian.accounting.answer import implied, nothing
from bdpvi.bayesian.accounting.perturbed_records import bayesian_epsilon
from bdpvi.bayesian.accounting.table import total as of_table
from bdpvi.bayesian.fit import Kept
from bdpvi.bayesian.inference.guide import check_unused
from bdpvi.datasets.dataset import Data, Dataset, in_arrays
from bdpvi.datasets.sketch import tell_of_copies
from bdpvi.models.contract import Model, fitting
from bdpvi.noise.keys import EXPERIMENT, Key
from bdpvi.privacy.assumptions import Assumption, Evidence, sentences
from bdpvi.privacy.conversions import TESTS, least_failure
from bdpvi.privacy.cost import ADD_OR_REMOVE, Bound, Cost, Kind
from bdpvi.privacy.events import SampledGaussian, Threshold
from bdpvi.privacy.ledger import Ledger
from bdpvi.privacy.perturbed_objective import PerturbedObjective
from bdpvi.releases import basis, transaction
from bdpvi.releases.account import OTHERS, with_history
from bdpvi.releases.estimate import RouteResult
from bdpvi.releases.mechanisms import CountRows, Solve
from bdpvi.releases.receipt import AIMED, Receipt
from bdpvi.releases.received import release_of
from bdpvi.releases.released import Release, flat
from bdpvi.releases.route import Route, Suited, planned
from bdpvi.releases.shared_file import release_bytes
from bdpvi.releases.transaction import Before, Transaction


@dataclass(frozen=True, eq=False)
class Prepared:
    """Encoded rows and the mechanism of their releases, of :func:`bdpvi.private`.

    All of it is secret. :func:`bdpvi.release` solves once for each draw, :func:`bdpvi.cost` returns
    the cost.

    Attributes:
        model: the model.
        data: the rows.
        route: the mechanism.
        kept: its ledger and its storage.
    """

    model: Model
    data: Data
    route: Suited[Any]
    kept: Kept

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
        if isinstance(data, Dataset):
            data = fitting(model, data)
        else:
            data = data.taking(getattr(model, "takes", None))
        model = getattr(model, "plain", model)
        check_unused(guide)
        shown = in_arrays(data)
        basis.check_programs(data, shown, model=model, guide=guide, route=route)
        data.people.share(ledger, parts=data.some)
        basis.given(data, **shown)
        return cls(model, data, route.suited(model, data, guide), Kept(data.people))

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
                tried = replace(self, data=data, route=short, kept=Kept(data.people))
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
        found: Ledger = self.kept.people.ledger
        return found

    @property
    def records(self) -> int:
        """N."""
        return len(self.data)

    @property
    def data_name(self) -> str:
        """The data's name in reports."""
        return self.data.name

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The columns, in order."""
        return self.data.feature_names

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        """The preprocessing of the features."""
        return self.data.preprocessing

    @property
    def what(self) -> str:
        """A release in words, for the ledger."""
        kind = getattr(self.model, "kind", type(self.model).__name__)
        return f"fit_private: {kind} of {self.data_name!r}"

    @property
    def experiment(self) -> bool:
        """Whether a public seed chose the rows, so that nothing may be released."""
        return bool(self.data.preprocessing.get(EXPERIMENT))

    @on_host
    def cost(self, delta: float) -> Cost:
        """Return the worst-case cost of everything spent on the table."""
        if not self.ledger.entries():
            return nothing(delta)
        found = self.ledger.altogether(delta) or self.ledger.worst_case(delta)
        more = basis.assumptions_of(self.preprocessing, self.ledger.entries())
        return Cost(worst_case=found and found.assuming(*more))

    @on_host
    def of_records(self, delta: float) -> Cost:
        """Return :meth:`cost` with the cost of a random record in this fit's single release.

        If other calls of this process on the same rows count, it is the worst case alone. With
        public preprocessing and a declared number of rows that is a Bayesian ε, from each
        record's own length (:mod:`bdpvi.bayesian.accounting.perturbed_records`). Private
        preprocessing is another output that depends on the record: then it is a path's cost, which
        includes the preprocessing's worst case.
        """
        total = self.cost(delta)
        if self.ledger.others:
            return replace(total, why=OTHERS)
        if self.ledger.rows_per_unit > 1:
            return total  # a record's own cost says nothing of a person with several
        book, name = self.ledger.book(), self.kept.name
        worst, own = total.worst_case, [e for e in book.charges if e.of.split("-")[0] == name]
        if len(own) < len(book.charges):
            more = basis.assumptions_of(self.preprocessing, book.entries)
            return of_table(self.ledger, delta, worst).each(lambda one: one.assuming(*more))
        events = [event for entry in own for event in entry.events or ()]
        solved = [e for e in events if isinstance(e, PerturbedObjective)]
        rows, route = self.kept.rows, self.route
        if worst is None or len(solved) != 1 or not self.records or (route.count and rows is None):
            return total
        drawn = self.kept.drawn or (solved[0] if own[0] is book.charges[0] else None)
        if not isinstance(drawn, PerturbedObjective):  # only the releasing process knows the draw
            return total
        if route.count and rows is not None:
            route = route.of_rows(rows)
        shares = route.shares(self.model, self.data)
        if shares is None:
            return total
        paid = math.fsum(e.noise_multiplier**-2 for e in events if isinstance(e, SampledGaussian))
        rest = delta - math.fsum(e.delta for e in events if isinstance(e, Threshold))
        epsilon = bayesian_epsilon(drawn, *shares, rest, variance=paid)
        if isinstance(self.data, Dataset):
            tell_of_copies(self.data.some())
        found = Bound(
            kind=Kind.PATH if paid else Kind.BAYESIAN,
            epsilon=epsilon,
            delta=delta,
            by="objective perturbation, record by record",
            assumptions=basis.assumptions_of(self.preprocessing, own),
            rounding=solved[0].rounding,
            evidence=Evidence(
                order=None,
                direction=ADD_OR_REMOVE,
                conversion="privacy profile",
                estimator="betting",
                failure_probability=least_failure(delta),
                estimates=TESTS,
                sample_size=self.records,
                skewness=0.0,
            ),
        )
        if paid:
            return replace(total, path=replace(found, epsilon=min(epsilon, worst.epsilon)))
        found = found.assuming(Assumption.PANEL_REPRESENTS_POPULATION, Assumption.PUBLIC_SIZE)
        return replace(total, bayesian=implied(found, worst, ADD_OR_REMOVE))

    def release(
        self,
        draws: int | None = None,
        *,
        epsilon: float,
        delta: float = 1e-5,
        generator: torch.Generator | None = None,
        work: Transaction | None = None,
    ) -> Release:
        """Charge, then solve once for each draw; arguments and errors as for :func:`bdpvi.release`.

        ``epsilon`` limits everything spent on the table, this release included. The settings
        follow from that whole ε and the number of draws.

        Args:
            work: the transaction of which this is the last step; by default a new one.
        """
        validate.epsilon(epsilon)
        validate.probability("delta", delta)
        if work is None:
            self.rehearse()
            secret = Key.fresh() if generator is None else self.kept.use_once(generator)
            name = f"{self.kept.name}-{secret.work}"
            work = Transaction(self.ledger, secret, name=name, what=self.what)
        route = self.route if draws is None else self.route.with_draws(draws)
        what = work.reserved(epsilon, delta, f"ε = {epsilon:g}") if route.count else nullcontext()
        with what:
            if route.count:
                counted = CountRows(self.records, route.count, epsilon, delta)
                self.kept.rows = work.perform(counted)
                route = route.of_rows(self.kept.rows)
            solve = Solve(self.model, self.data, route, epsilon, delta)
            plan, key, _ = work.charge(solve, last=True)
        if few := route.caution(plan.settings, delta):
            warnings.warn(few, PrivacyUtilityWarning, stacklevel=5)
        solution = work.drawn(solve, plan, key)
        self.kept.drawn = getattr(plan.settings, "drawn", None)
        total = Cost(worst_case=work.total(delta).assuming(*plan.assumptions))
        if solution.rounds:
            total = replace(total, path=cost_of(solution.rounds, delta).path)
        noted = basis.published(self.preprocessing, work.counted().entries)
        return self._released(solution, route, plan, total, epsilon, noted, work.secret.experiment)

    @on_host
    def preview(self, draws: int, *, epsilon: float, delta: float, key: Key) -> dict[str, Tensor]:
        """Return draws of a simulated release for ε, without charging: for the owner only.

        Args:
            draws: number of draws.
            epsilon, delta: ε and δ of the release.
            key: source of all noise.
        """
        route, plan = self._exact(draws, epsilon, delta)
        return dict(route.draw(self.model, self.data, plan, key).latents)

    def previews(
        self, releases: int, *, epsilon: float, delta: float, key: Key
    ) -> dict[str, Tensor]:
        """Return the single draw of each of several simulated releases, as :meth:`preview`."""
        route, plan = self._exact(1, epsilon, delta)
        keys = [key.child(one) for one in range(releases)]
        each = [route.draw(self.model, self.data, plan, one).latents for one in keys]
        return {name: torch.cat([one[name] for one in each]) for name in each[0]}

    @on_host
    def predicting(self, epsilon: float, delta: float) -> Model:
        """Return the model for predictions from simulated releases for ε."""
        route, plan = self._exact(1, epsilon, delta)
        return route.predicting(self.model, plan)

    def _exact(self, draws: int, epsilon: float, delta: float) -> tuple[Suited[Any], Any]:
        """Return route and settings for the owner, with the exact N instead of a noisy one."""
        route = self.route.with_draws(draws)
        if route.count:
            route = route.of_rows(float(self.records))
        return route, planned(route, *self._shape, Before(self.ledger.book()), epsilon, delta)

    @property
    def _shape(self) -> tuple[Model, int]:
        return self.model, len(self.data.feature_names)

    def _released(
        self,
        solution: RouteResult,
        route: Suited[Any],
        plan: transaction.Plan[Any],
        total: Cost,
        epsilon: float,
        noted: Mapping[str, Any],
        seeded: bool,
    ) -> Release:
        assert total.worst_case is not None  # a release without one is not planned
        worst = total.worst_case.public(epsilon)
        latents = {name: value.to(HOST) for name, value in solution.latents.items()}
        made = Release(
            samples=flat(latents),
            latents=latents,
            receipt=with_history(
                Receipt(
                    worst_case=worst.seeded() if seeded else worst,
                    about=sentences(basis.about(noted), route.said(plan.settings), solution.said),
                    source=AIMED,
                    draws=route.draws,
                    temperature=None,
                    noise_scale=None,
                    step=None,
                ),
                self.ledger,
            ),
            model=route.predicting(self.model, plan.settings),
            feature_names=self.feature_names,
            preprocessing=noted,
            secret=total,
        )
        return replace(made, **solution.release)
