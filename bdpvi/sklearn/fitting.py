"""A fit of an estimator: its work, its records, its release, and the rehearsal before a charge."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bdpvi._ground.host import HOST, on
from bdpvi._ground.types import PrivacyUtilityWarning
from bdpvi.bayesian.drawing import Asked, DrawSamples, release_draws
from bdpvi.bayesian.fit import fit as fit_guide
from bdpvi.bayesian.guarantees import WORST_CASE
from bdpvi.datasets.dataset import Dataset, People
from bdpvi.datasets.encoding import Encoding
from bdpvi.datasets.made_up import ROWS
from bdpvi.datasets.origin import DECLARED, GIVEN
from bdpvi.guides import Laplace
from bdpvi.privacy.ledger import Ledger
from bdpvi.releases.released import Release
from bdpvi.releases.transaction import Transaction, trial_work
from bdpvi.sklearn.inputs import Inputs
from bdpvi.tables.prepared import Prepared
from bdpvi.tables.reading import MANY, try_file
from bdpvi.tables.request import Request
from bdpvi.tables.rows import Floats
from bdpvi.tables.setup import Setup
from bdpvi.tables.work import release_groups


def fit(
    estimator: Any,
    inputs: Inputs,
    y: Floats,
    people: Mapping[str, Any],
    few: Sequence[float],
    **noted: bool,
) -> None:
    """Fit and release; the estimator keeps only the release.

    Args:
        estimator: its arguments, and what becomes of it.
        inputs, y: the rows and their targets.
        people: the unit of privacy.
        few: targets of made-up rows.
        noted: assumptions that a guarantee has to name.
    """
    columns = estimator._columns(inputs, y)
    asked = estimator._request(columns)
    given = columns.public_constants(asked)
    estimator._setup(asked, given)  # refused before a charge
    estimator._check(columns, asked, given, people["rows_per_unit"])
    rehearse(estimator, inputs, people, few, noted)
    with _work(estimator, people, inputs, y) as work:
        found, target = given, None
        if found is None:
            left = asked.whole(work.ledger.rows_per_unit)
            found, target = columns.estimate_constants(asked, work.perform, left)
            if caution := found.caution(estimator.epsilon):
                warnings.warn(caution, PrivacyUtilityWarning, stacklevel=4)
        data = _dataset(estimator, inputs, y, found.encoding, people, **noted)
        chosen = estimator._setup(asked, found, target)
        release = _release(estimator, chosen, data, work, asked, inputs.groups)
    estimator._keep(replace(release, secret=None), found.encoding)


def rehearse(
    estimator: Any,
    inputs: Inputs,
    people: Mapping[str, Any],
    few: Sequence[float],
    noted: Mapping[str, bool],
) -> None:
    """Fit made-up rows by a copy, and read its release, before anything is charged.

    Of ``inputs`` the columns alone are used; arguments as for :func:`fit`.

    Raises:
        ValueError: if anything fails.
    """
    if estimator._trial is not None or estimator._guarantee().name != WORST_CASE:
        return
    twin = copy(estimator)
    with trial_work(people) as trial:
        twin._trial, twin.ledger = trial, None
        rows = inputs.made_up()
        if inputs.groups is None:  # of which a number is not asked
            twin.expected_rows = estimator.expected_rows or MANY
        if inputs.weights is not None:
            rows = replace(rows, weights=np.ones(ROWS))
        fit(twin, rows, np.resize(few, ROWS), people, few, **noted)
        try_file(twin.release_, rows.features(twin._encoding([*rows.columns])))


@contextmanager
def _work(
    estimator: Any, people: Mapping[str, Any], inputs: Inputs, y: NDArray[Any]
) -> Iterator[Transaction]:
    """Yield the transaction of a fit, with all of ε reserved for it.

    Args:
        estimator: its arguments.
        people: the unit of privacy.
        inputs, y: the rows and their targets, by which they are known again without a ledger.
    """
    all_of_it = (estimator.epsilon, estimator.delta, "fit")
    if estimator._trial is not None:
        with on(HOST), estimator._trial.reserve(*all_of_it):
            yield estimator._trial
        return
    secret = estimator._secret()
    public = estimator._guarantee().name == WORST_CASE
    durable = estimator.ledger is not None and not secret.experiment
    if durable and not public:
        raise ValueError(f"ledger={estimator.ledger!r} accepts worst-case guarantees only")
    ledger = (
        Ledger.at(str(estimator.ledger), **people) if durable
        else Ledger.of(*inputs.some(), y, **people)
    )  # fmt: skip
    work = Transaction(ledger, secret, alone=True, what=f"fit of {type(estimator).__name__}")
    aside = work.reserve(*all_of_it) if public else nullcontext()
    with on(HOST), aside:
        yield work


def _dataset(
    estimator: Any,
    inputs: Inputs,
    y: Floats,
    encoding: Encoding,
    people: Mapping[str, Any],
    **noted: bool,
) -> Dataset:
    """Return the standardised records, with the assumptions that a guarantee has to name."""
    declared = estimator._declarations(inputs.kinds)
    noted[GIVEN] = not estimator._declares_features
    return Dataset(
        torch.from_numpy(inputs.features(encoding)),
        torch.from_numpy(y),
        weights=None if inputs.weights is None else torch.from_numpy(inputs.weights),
        feature_names=encoding.feature_names,
        preprocessing={"encoding": encoding.to_dict(), DECLARED: declared, **noted},
        people=People(**people),
    ).to(inputs.device)


def _release(
    estimator: Any, chosen: Setup, data: Dataset, work: Transaction, asked: Request, groups: Any
) -> Release:
    """Fit, charge and release; ``groups`` has the group of each row, if they are records."""
    short = {} if estimator._trial is None else {"steps": 2}
    chosen = chosen.training(progress=False, **short)
    if chosen.route is None:
        return _draws(estimator, chosen.model, data, work)
    if groups is not None:
        return release_groups(chosen, data, groups, asked, work)
    prepared = Prepared.of(chosen.model, data, chosen.route, ledger=work.ledger)
    return prepared.release(epsilon=estimator.epsilon, delta=estimator.delta, work=work)


def _draws(estimator: Any, model: Any, data: Dataset, work: Transaction) -> Release:
    """Return draws from the posterior, using a ledger with this transaction only."""
    kind, secret = estimator._guarantee(), work.secret
    own = Ledger()
    own.stand_for(work.ledger)
    fitted = fit_guide(model, Laplace(model), data, ledger=own, progress=False)
    fitted.kept.name = work.name
    generator = None
    if secret.experiment:
        generator = torch.Generator().manual_seed(int(secret) % 2**63)
    asked = Asked(
        draws=estimator.draws,
        epsilon=estimator.epsilon,
        delta=estimator.delta,
        guarantee=kind,
        generator=generator,
    )
    draws = DrawSamples(fitted, asked, kind, "release")
    plan, key, _ = work.charge(draws, last=True)
    return release_draws(draws, plan, key, work.ledger)
