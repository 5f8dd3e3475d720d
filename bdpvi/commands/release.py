"""``bdpvi release`` and ``bdpvi cost``."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdpvi._ground import outputs, store, validate
from bdpvi._ground.outputs import several
from bdpvi.commands import options
from bdpvi.commands.options import (
    Delta,
    Folder,
    Json,
    Settings,
)

if TYPE_CHECKING:
    from bdpvi import Fit, Release
    from bdpvi.bayesian.guarantees import Guarantee as Promise

GUARANTEES = {"worst-case": "WorstCaseDP", "bayesian": "BayesianDP", "typical": "TypicalRecord"}
USELESS = 10.0
"""Weights are dominated by privacy noise beyond this many of the prior's standard deviations."""
CONVERSIONS = ("cks", "chernoff", "hockey-stick")

Temperature = Annotated[
    float | None,
    typer.Option(
        help="Temperature of the noise, chosen without looking at the data. By default "
        "calibrated to --epsilon. Four times the temperature halves ε."
    ),
]
Guarantee = Annotated[
    str,
    typer.Option(
        help=f"Kind of guarantee: {', '.join(GUARANTEES)}. By default worst-case if the fit "
        "supports it (the optimum of a clipped model with a noise scale); else bayesian if "
        "it is certified; else typical, a statement about most records only."
    ),
]
LargeDelta = Annotated[
    bool,
    typer.Option(
        "--large-delta",
        help="Accept a δ of 1/N or more for a Bayesian guarantee without a warning.",
    ),
]
Conversion = Annotated[
    str,
    typer.Option(
        help=f"Conversion of the cost to a Bayesian ε: {', '.join(CONVERSIONS)}. By default the "
        "conversion of the fit."
    ),
]
Draws = Annotated[
    int | None,
    typer.Option(
        help="Number of posterior samples; k of them cost as much as one at 1/k of the "
        "temperature. By default from the settings, or 1."
    ),
]
Epsilon = Annotated[
    float | None,
    typer.Option(
        help="Limit on the total ε spent on the table. 0.1 is strong, 1 is usual, above 3 is "
        "weak. By default no limit."
    ),
]
GROUPS = "every group of at least this share of the population, such as 0.1"
GroupShares = Annotated[
    list[float] | None,
    typer.Option(
        help=f"Also the ε of {GROUPS}; once for every share. By default only of the mean over "
        "everybody."
    ),
]
GroupShare = Annotated[
    float | None,
    typer.Option(
        help=f"The guarantee is for {GROUPS}: a Bayesian one, but for each group and not only for "
        "the mean over everybody."
    ),
]


def release(
    folder: Folder,
    out: Annotated[Path, typer.Option(help="New JSON file that may be shared.")],
    draws: Draws = None,
    settings: Settings = "",
    temperature: Temperature = None,
    epsilon: Epsilon = None,
    delta: Delta = 1e-5,
    guarantee: Guarantee = "",
    for_groups_of: GroupShare = None,
    large_delta: LargeDelta = False,
    conversion: Conversion = "",
    as_json: Json = False,
) -> None:
    """Release posterior samples from a fit, charged before they are drawn.

    Give --epsilon to release at the smallest temperature that keeps within it, --temperature to
    choose that yourself, or both to be refused beyond ε. From a clipped fit at the optimum with a
    noise scale, ε is a worst-case one and the temperature follows from public settings; a
    certified Bayesian ε stands beside it. With --guarantee bayesian the temperature is 1 or public,
    and with --for-groups-of the same holds for every group.

    The file holds what may be shared. What the command prints is for the owner: it is computed
    from the records. After an interruption the same command makes the same draws and nothing is
    charged twice; so it does where OUT was lost.
    """
    import bdpvi
    from bdpvi.bayesian import releases
    from bdpvi.bayesian.drawing import Asked
    from bdpvi.privacy.places import Places
    from bdpvi.releases import shared_file
    from bdpvi.releases.intent import begun
    from bdpvi.releases.received import release_of
    from bdpvi.tables import files

    if temperature is None and epsilon is None:
        raise ValueError("temperature or epsilon must be given")
    kind = guarantee_of(guarantee, for_groups_of)
    accounting = bdpvi.bayesian.Accounting(conversion=conversion) if conversion else None
    fitted = files.load(folder)
    if settings:
        chosen = options.settings_of(
            settings, fitted.data_name, 1.0 if epsilon is None else epsilon
        )
        draws = chosen.draws if draws is None else draws
        accounting = accounting or chosen.accounting
    if large_delta:
        warnings.filterwarnings("ignore", "delta=")
    store.make_folder(out.parent)
    where = Places.of(out=out, secret=folder, ledger=fitted.ledger.path, shared=out)
    asked = (draws, temperature, epsilon, delta, guarantee, conversion, str(where.out))
    asked_all = asked if for_groups_of is None else (*asked, for_groups_of)
    options_ = hashlib.sha256(repr(asked_all).encode()).hexdigest()
    price = {} if epsilon is None else {"epsilon": epsilon, "delta": delta}
    released: list[Release] = []
    with _charged(fitted, folder, where.out):
        with store.claimed(where.out, room=shared_file.ROOM) as temporary:
            file = where.secret / f"draws-{options_[:16]}.json"
            work = begun(
                file,
                table=fitted.kept.name,
                options=options_,
                charge=price,
                ledger=where.ledger,
                alone=False,
            )

            def content() -> bytes:
                wanted = Asked(
                    draws=draws,
                    temperature=temperature,
                    epsilon=epsilon,
                    guarantee=kind,
                    delta=delta,
                    accounting=accounting,
                    work=releases.work_of(fitted, work.secret, work.facts),
                )
                released.append(releases.carried_out(fitted, wanted))
                return shared_file.release_bytes(released[0])

            store.fill(temporary, work.output(content))
        if not released:
            outputs.say(f"{out} is a copy of an earlier release, and nothing was charged")
            copied = release_of(where.out.read_bytes(), fitted.model)
            spent = bdpvi.cost(fitted, delta=delta, for_groups_of=for_groups_of)
            released.append(replace(copied, secret=spent))
        if as_json:
            public = {"out": out, "receipt": released[0].receipt.to_dict()}
            secret = {"cost": released[0].cost.to_dict()}
            outputs.say(store.json_text({"public": public, "secret": secret}))
            return
        _report(fitted, released[0], out)


def _report(fitted: Fit, released: Release, out: Path) -> None:
    tau = released.receipt.temperature
    outputs.say(
        f"{several(released.receipt.draws, 'draw')}"
        + ("" if tau is None else f" at temperature {tau:.4g}"),
        f"Public: {released.receipt}",
        f"  {released.receipt.meaning}",
        *f"For the owner only: {released.cost}".split("\n"),
    )
    if released.cost.exposure is not None:
        outputs.say(*str(released.cost.exposure).split("\n"))
    noise, prior = released.receipt.noise_scale, getattr(released.model, "prior_scale", None)
    if (precision := getattr(released.model, "precision", None)) is not None:
        prior = precision(released.samples.shape[1]) ** -0.5
    if noise and prior and noise > USELESS * prior:
        outputs.say(
            f"WARNING: noise of standard deviation {noise:.3g} in every weight, whose prior has "
            f"{prior:g}: privacy noise dominates this sample. Little of the budget was left"
        )
    if fitted.ledger.budget is None:
        outputs.say("The ledger of this table has no budget: nothing limits further releases")
    outputs.say(f"Wrote {out}")


@contextmanager
def _charged(fitted: Fit, folder: Path, out: Path) -> Iterator[None]:
    """Make an interruption report whether the release was charged, and what exists of it."""
    before = len(fitted.ledger.entries())
    try:
        yield
    except KeyboardInterrupt:
        if len(fitted.ledger.entries()) == before:
            raise
        again = f"{out} was not written: the same command writes it without a further charge"
        raise KeyboardInterrupt(
            f"the release was charged (see `bdpvi cost {folder}`); "
            + (f"{out} is whole" if out.exists() else again)
        ) from None


def guarantee_of(name: str, share: float | None = None) -> Promise | None:
    """Return the guarantee with this name, or for groups of a share; None without either."""
    import bdpvi

    if share is not None:
        if name not in ("", "bayesian"):
            raise ValueError(
                f"for_groups_of={share:g}: guarantee={name} is no mean over a group; leave one of "
                "the two out"
            )
        return bdpvi.BayesianDP(for_groups_of=share)
    if not name:
        return None
    found: Promise = getattr(bdpvi, GUARANTEES[validate.choice("guarantee", name, GUARANTEES)])()
    return found


def cost(
    folder: Folder,
    delta: Delta = 1e-5,
    for_groups_of: GroupShares = None,
    as_json: Json = False,
) -> None:
    """Say what everything spent on the table of a fit or of a work has cost. For the owner only."""
    from bdpvi.tables import files

    total = files.cost(folder, delta, for_groups_of)
    if as_json:
        outputs.show(store.json_text(total.to_dict()))
        return
    outputs.show(*str(total).split("\n"))
    if total.exposure is not None:
        outputs.show(*str(total.exposure).split("\n"))
