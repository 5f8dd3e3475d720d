"""Rows and a mechanism whose noise is part of the fit: each release solves from the rows again.

There is no posterior to draw from. A release's cost follows from the settings only, and is charged
before any draw.
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from bdpvi._ground import validate
from bdpvi._ground.host import HOST, on_host
from bdpvi._ground.types import PrivacyUtilityWarning
from bdpvi.bayesian.accounting.accountant import cost_of
from bdpvi.bayesian.inference.guide import check_unused
from bdpvi.datasets.dataset import Data, Dataset, in_arrays
from bdpvi.models.contract import Model, fitting
from bdpvi.noise.keys import Key
from bdpvi.privacy.assumptions import sentences
from bdpvi.privacy.cost import Cost
from bdpvi.privacy.ledger import Ledger
from bdpvi.releases import basis
from bdpvi.releases.account import with_history
from bdpvi.releases.mechanisms import CountRows, Solve
from bdpvi.releases.receipt import AIMED, Receipt
from bdpvi.releases.received import release_of
from bdpvi.releases.released import Release, flat
from bdpvi.releases.route import Route, Suited
from bdpvi.releases.shared_file import release_bytes
from bdpvi.releases.transaction import Transaction


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
        if isinstance(data, Dataset):
            data = fitting(model, data)
        else:
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
                counted = CountRows(len(self.data), route.count, epsilon, delta)
                route = route.of_rows(work.perform(counted))
            solve = Solve(self.model, self.data, route, epsilon, delta)
            plan, key, _ = work.charge(solve, last=True)
        if few := route.caution(plan.settings, delta):
            warnings.warn(few, PrivacyUtilityWarning, stacklevel=5)
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
        model = output.model
        if model is None:
            model = route.predicting(self.model, plan.settings)
        return Release(
            samples=flat(latents) if output.flat is None else output.flat.to(HOST),
            latents=latents,
            receipt=with_history(receipt, self.ledger),
            model=model,
            feature_names=self.data.feature_names,
            preprocessing=noted,
            estimate=output.estimate,
            guide=output.guide,
            parameters=output.parameters,
            secret=total,
        )
