"""The Bayesian ε of all releases from a table.

The same record x′ is followed through all fits, so the mean is E_x′ of δ of the product of its
pairs: with fixed settings and independent noise that is exact. A product of the fits' own means is
never used: it is too small if the same records are costly each time.

*Which records.* The mean is over records that were in all tables. A record in fewer tables loses no
more than a similar one in more tables, so zeros for absent records are not needed, and are left out
because they would dilute the mean. If no record was in all tables, as with disjoint parts, each
maximal set of tables with shared records has its own mean and the largest ε counts. Later records,
with ids beyond all of an earlier table, may differ in kind: they have a separate mean, unless they
are fewer than :data:`LEAST` of all.

*Worst-case mechanisms* whose outputs no later fit uses. A Gaussian one, or one that a Gaussian
dominates, is one more pair N(0, 1) against N(μ, 1) in every record's product. Others, such as
objective perturbation and sampled steps, have (ε₁, δ₁) for every record. With E_x′ δ_x′(ε₀) ≤ δ₀
for the remaining releases the total is ε₀ + ε₁ at δ₀ + δ₁, with half of δ for each.

*Outputs that later fits use*: private preprocessing. It depends on the record, and the record's
cost of a fit depends on it. Such a fit counts by its worst case, which composes even if later steps
depend on earlier outputs; without a worst case there is no total. A smaller cost would hold only if
for every outcome of the preprocessing the fit were certified at an ε fixed before, or not released.
Here ε is computed at the actual outcome, from records that influenced it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bdpvi._ground.outputs import several
from bdpvi._ground.types import Relation
from bdpvi.bayesian.accounting.accountant import Account
from bdpvi.bayesian.accounting.answer import implied
from bdpvi.bayesian.accounting.charges import Charged
from bdpvi.bayesian.accounting.draws import GuideDraws
from bdpvi.bayesian.accounting.every_group import every_group
from bdpvi.bayesian.accounting.gaussian_pairs import GaussianPairs
from bdpvi.bayesian.accounting.panel import Panel
from bdpvi.bayesian.accounting.record_losses import RecordLosses, losses_of_fit
from bdpvi.bayesian.accounting.settings import Accounting
from bdpvi.bayesian.accounting.typical import typical
from bdpvi.privacy import worst_case
from bdpvi.privacy.book import merged
from bdpvi.privacy.cost import Bound, Cost, Exposure
from bdpvi.privacy.entry import RESERVED, Charge, Entry
from bdpvi.privacy.event import Event, neighbours_of
from bdpvi.privacy.gaussian_dp import worst
from bdpvi.privacy.ledger import Ledger

LEAST = 0.01
"""From this share of all records on, later records have a separate mean."""
_NONE = "no Bayesian total is known: "


@dataclass(frozen=True, eq=False)
class ChargedDraws:
    """Draws from one fit.

    Attributes:
        name: id of the fit.
        losses: each record's losses.
        charges: draws and temperature, with the number of such charges.
    """

    name: str
    losses: RecordLosses
    charges: Counter[Charge]

    def events(self, panels: tuple[Panel, ...]) -> Iterator[Charged]:
        """Yield the draws, priced by these panels."""
        for charge, count in self.charges.items():
            rounding = charge.draws * self.losses.roundings[charge.temperature]
            yield (
                GuideDraws(panels, charge.draws, charge.temperature, rounding=rounding),
                count,
            )


@dataclass(frozen=True, eq=False)
class TableCost:
    """All releases from a table, as a Bayesian ε counts them.

    Attributes:
        accounts: accounts of records in the same tables, those in the most tables first; none if
            nothing is known about single records.
        rest: worst-case mechanisms that no Gaussian one dominates.
        why: why draws count by their worst case, in words; "" if none do.
    """

    accounts: tuple[Account, ...]
    rest: tuple[Event, ...] = ()
    why: str = ""

    @classmethod
    def of(
        cls,
        ledger: Ledger,
        accounting: Accounting | None = None,
        planned: Entry | None = None,
        own: Mapping[str, RecordLosses] | None = None,
    ) -> TableCost:
        """Return all releases in a ledger, and ``planned``.

        Args:
            ledger: ledger of the table.
            accounting: how the Bayesian ε is computed.
            planned: planned draws.
            own: losses of fits in memory; those of other fits are read from storage.

        Raises:
            ValueError: if no Bayesian total is known; it says why.
        """
        book = ledger.book()
        if book.rows > 1:
            raise ValueError(
                f"{_NONE}it would cover one row, and a unit of this table has up to {book.rows} "
                "rows"
            )
        entries = [e for e in book.entries if (e.kind == RESERVED) == (e.of in book.opened)]
        entries += [planned] if planned else []
        fits, others, why = _sorted(entries, ledger, own or {})
        _check_neighbours(others)
        variance = math.fsum(n * (one.squared_distance or 0.0) for one, n in others.items())
        gaussian = {one: n for one, n in others.items() if one.squared_distance}
        rounding = math.fsum(n * one.rounding for one, n in gaussian.items())
        rest = merged(one for one, n in (others - Counter(gaussian)).items() for _ in range(n))
        accounts = []
        for group in _groups(fits) if fits else ():
            events = [event for fit, panels in group for event in fit.events(panels)]
            if variance:
                joined = tuple(_constant(one, variance) for one in group[0][1])
                events.append((GuideDraws(joined, rounding=rounding), 1))
            accounts.append(Account(events, accounting))
        return cls(tuple(accounts), rest, why)

    def bayesian(self, delta: float) -> Bound | None:
        """Return the Bayesian ε at ``delta``; None if nothing is known about single records.

        Raises:
            ValueError: if there is none at ``delta``.
        """
        share, spent = self._rest(delta)
        found = [account.cost(share).bayesian for account in self.accounts]
        known = [one for one in found if one is not None]
        if len(known) < len(found) or not known:
            return None
        largest = max(known, key=lambda one: one.epsilon)
        if not self.rest:
            return largest
        by = f"{largest.by}; and the worst case of other charges"
        return _both(replace(largest, by=by, distance=None), spent, delta)

    def typical(self, delta: float) -> Bound:
        """Return a bound on most records' own ε; see :func:`.typical.typical`.

        Raises:
            ValueError: if nothing is known about single records, or there is none at ``delta``.
        """
        share, spent = self._rest(delta)
        if not self.accounts:
            raise ValueError(self.why or f"{_NONE}nothing is known of single records")
        largest = max(
            (typical(account, share) for account in self.accounts), key=lambda b: b.epsilon
        )
        return _both(largest, spent, delta)

    def groups(self, delta: float, shares: Sequence[float]) -> tuple[Bound, ...]:
        """Return the ε of every group of at least each share; see :func:`.every_group`.

        A later cohort is a part of the same population: groups may spread over all of them.

        Raises:
            ValueError: if nothing is known about single records, or as there.
        """
        share, spent = self._rest(delta)
        if not self.accounts:
            raise ValueError(self.why or f"{_NONE}nothing is known of single records")
        found = every_group(self.accounts, share, shares)
        return tuple(_both(one, spent, delta) for one in found)

    def exposure(self, delta: float) -> Exposure | None:
        """Return the exposure of records in the most tables; None if it would omit some charges."""
        if self.rest or not self.accounts or not self.accounts[0].sample_size:
            return None
        return self.accounts[0].exposure(delta)

    def _rest(self, delta: float) -> tuple[float, Bound]:
        """Return the part of δ for single records, and the bound of the other mechanisms."""
        if not self.rest:
            return delta, worst(0.0, delta, worst_case.NOTHING)
        found = worst_case.epsilon(self.rest, delta / 2)
        if found is None:
            raise ValueError(f"{_NONE}half of delta={delta:g} does not cover the worst case")
        return delta / 2, found


def _both(one: Bound, other: Bound, delta: float) -> Bound:
    """Return a bound with a worst case, by basic composition."""
    epsilon, more = one.epsilon + other.epsilon, other.assumptions
    return replace(one, epsilon=epsilon, delta=delta).assuming(*more)


def total(
    ledger: Ledger,
    delta: float,
    worst: Bound | None,
    accounting: Accounting | None = None,
    planned: Entry | None = None,
    own: Mapping[str, RecordLosses] | None = None,
) -> Cost:
    """Return the joint cost of everything in a ledger.

    Args:
        ledger, accounting, planned, own: as for :meth:`TableCost.of`.
        delta: δ.
        worst: the joint worst case.

    Raises:
        ValueError: if there is neither a worst case nor a Bayesian ε.
    """
    try:
        table = TableCost.of(ledger, accounting, planned, own)
        found = table.bayesian(delta)
    except ValueError as error:
        if worst is None:
            raise
        # With a worst case, whether there is an answer must not depend on the records.
        return Cost(worst_case=worst, why=str(error))
    if found is None or worst is None:
        return Cost(worst_case=worst, bayesian=found, why="" if table.accounts else table.why)
    return Cost(worst_case=worst, bayesian=implied(found, worst, found.relation))


def _check_neighbours(others: Iterable[Event]) -> None:
    """Raise ValueError unless events are for one record added or removed."""
    found = neighbours_of(others)
    if found["relation"] != Relation.ADD_OR_REMOVE.value or found["unit"] != "one record":
        raise ValueError(
            f"{_NONE}a worst-case guarantee is to {found['relation']} {found['unit']}, and losses "
            "of records are for one record added or removed"
        )


def _sorted(
    entries: Sequence[Entry], ledger: Ledger, own: Mapping[str, RecordLosses]
) -> tuple[list[ChargedDraws], Counter[Event], str]:
    """Return fits whose records count one by one, the worst case of other charges, and why."""
    by_fit: dict[str, list[Entry]] = {}
    others: Counter[Event] = Counter()
    for entry in entries:
        if entry.charge is None:
            others += _worst(entry, "it has no worst case, and nothing is known of single records")
        else:
            by_fit.setdefault(entry.of, []).append(entry)
    fits: list[ChargedDraws] = []
    by_worst: list[tuple[Entry, str]] = []
    for name, drawn in by_fit.items():
        taus = {e.charge.temperature for e in drawn if e.charge}
        losses = own[name] if name in own else losses_of_fit(ledger, name, *taus)
        estimates = [e for e in entries if e.charge is None and e.events != ()]
        if any(e.of == name or e.purchase in losses.purchases for e in estimates):
            why = (
                "its cost to each record depends on preprocessing bounds estimated privately from "
                "this table"
            )
            by_worst += [(entry, why) for entry in drawn]
            continue
        same = next((one.losses for one in fits if one.losses.same(losses)), losses)
        charges: Counter[Charge] = Counter()
        for entry in drawn:
            charges[entry.charge] += entry.count  # type: ignore[index]
        fits.append(ChargedDraws(name, replace(losses, panels=same.panels), charges))
    known = [one for one in fits if all(len(p.ids) or p.influence for p in one.losses.panels)]
    if len(known) > 1:
        known = [one for one in known if all(p.counts is None for p in one.losses.panels)]
    why = "its costs per record cannot be matched with those of other fits"
    by_worst += [(entry, why) for fit in fits if fit not in known for entry in by_fit[fit.name]]
    for entry, why in by_worst:
        others += _worst(entry, why)
    return known, others, _of(*by_worst[0]) if by_worst else ""


def _groups(fits: Sequence[ChargedDraws]) -> list[list[tuple[ChargedDraws, tuple[Panel, ...]]]]:
    """Return sets of fits with their panels of the same records, those in the most fits first.

    Raises:
        ValueError: if nothing is known about the records that fits share.
    """
    every = [{panel.kind: panel for panel in fit.losses.panels} for fit in fits]
    if any(panels.keys() != every[0].keys() for panels in every):
        raise ValueError(
            f"{_NONE}some fits have neighbours with a record removed, others with a record added"
        )
    if all(torch.equal(p[kind].ids, every[0][kind].ids) for p in every for kind in p):
        for kind in every[0]:
            _check_same(fits, [panels[kind] for panels in every])
        return [[(fit, fit.losses.panels) for fit in fits]]
    found: list[list[tuple[ChargedDraws, tuple[Panel, ...]]]] = []
    for kind in every[0]:
        panels = [one[kind] for one in every]
        _check_same(fits, panels)
        sizes = [fit.losses.records if kind == "remove" else math.inf for fit in fits]
        whole = [panel.records == size for panel, size in zip(panels, sizes, strict=True)]
        for ids, members in _together([panel.ids for panel in panels], whole):
            if len(ids) < 3:
                raise ValueError(
                    f"{_NONE}the fits share {several(len(ids), 'reference record')}; an estimate "
                    "needs at least 3"
                )
            some = {id(panels[at]): panels[at].select(ids) for at in members}  # once for equal fits
            found.append([(fits[at], (some[id(panels[at])],)) for at in members])
    return sorted(found, key=lambda group: (-len(group), -len(group[0][1][0].ids)))


def _together(each: Sequence[Tensor], whole: Sequence[bool]) -> Iterator[tuple[Tensor, list[int]]]:
    """Yield sorted ids of records with a mean of their own, and the fits they were in.

    Args:
        each: ids in the panel of each fit.
        whole: whether the panel has all records of the fit, so that others were not in it.
    """
    every = torch.cat(list(each)).unique()
    last = torch.tensor([int(ids.max()) for ids in each])
    start = -1
    for end in last.unique().tolist():
        cohort = every[(every > start) & (every <= end)]
        reaching = (last > start).nonzero()[:, 0].tolist()
        late, start = start >= 0, end
        if late and len(cohort) < max(3, LEAST * len(every)):
            continue
        member = torch.stack([torch.isin(cohort, each[at]) for at in reaching])
        patterns, which = member.unique(dim=1, return_inverse=True)
        if not all(whole[at] for at in reaching):
            yield cohort[member.all(0)], reaching
            continue
        for at, pattern in enumerate(patterns.T):
            within = (patterns >= pattern[:, None]).all(0)
            if int(within.sum()) == 1:  # only itself: no record was in these and others
                own = [fit for fit, there in zip(reaching, pattern.tolist(), strict=True) if there]
                yield cohort[which == at], own


def _check_same(fits: Sequence[ChargedDraws], panels: Sequence[Panel]) -> None:
    """Raise ValueError if both features and targets of shared ids differ between fits."""
    for at, (fit, panel) in enumerate(zip(fits, panels, strict=True)):
        for other, before in zip(fits[:at], panels[:at], strict=True):
            if panel is before or panel.marks is None or before.marks is None:
                continue
            ids = panel.ids[torch.isin(panel.ids, before.ids)].sort().values
            one, two = panel.select(ids).marks, before.select(ids).marks
            assert one is not None
            assert two is not None
            if not bool((one == two).all(0).any()):
                raise ValueError(
                    f"{_NONE}fits {other.name} and {fit.name} have different records under the "
                    "same ids, so records in both fits cannot be identified"
                )


def _constant(panel: Panel, variance: float) -> Panel:
    """Return the panel of a Gaussian mechanism, with the same cost for every record."""
    b2 = torch.full((len(panel.ids), 1), variance, dtype=torch.float64)
    pairs = GaussianPairs(torch.ones_like(b2), b2)
    return Panel(panel.kind, panel.ids, pairs, largest=variance, counts=panel.counts)


def _worst(entry: Entry, why: str) -> Counter[Event]:
    """Return the worst case of a charge.

    Raises:
        ValueError: if it has none.
    """
    if entry.events is None:
        raise ValueError(_of(entry, why))
    return Counter({one: n * entry.count for one, n in Counter(entry.events).items()})


def _of(entry: Entry, why: str) -> str:
    return f"{_NONE}of {entry}, {why}"
