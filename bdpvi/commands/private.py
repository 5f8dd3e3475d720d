"""``bdpvi private``: from a table to a model that may be shared, in one command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdpvi.commands import options
from bdpvi.commands.fit import made_of
from bdpvi.commands.options import (
    BaseRate,
    Delta,
    Json,
    Quiet,
    Settings,
    Table,
    reads_table,
)
from bdpvi.commands.release import Draws, Guarantee, guarantee_of

if TYPE_CHECKING:
    import pandas as pd

    from bdpvi import Release, Split

MODEL = "release.json"
"""The file in the public folder."""
SCORES = {"auc": "AUC", "log_score": "log score", "accuracy": "accuracy"}


@reads_table
def private(
    table: Table,
    epsilon: Annotated[
        float,
        typer.Option(help="ε of the model. 0.1 is strong, 1 is usual, above 3 promises little."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the model that may be shared.")],
    secret: Annotated[
        Path | None,
        typer.Option(
            help="New folder for the fit and its ledger; OUT.secret if not given. Never share it.",
            show_default=False,
        ),
    ] = None,
    settings: Settings = "",
    base_rate: BaseRate = None,
    guarantee: Guarantee = "",
    draws: Draws = 0,
    delta: Delta = 1e-5,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Turn a table into a private model: fit, charge, draw, write what may be shared.

    The settings follow from ε alone, not from the table, unless --settings names others. ε is a
    worst-case one if they allow it. It is stored as the budget of the secret folder: all later
    releases from there count.

    Example: bdpvi private --data patients.csv --target sick --epsilon 1 --out shared
    """
    import bdpvi
    from bdpvi._runtime import store
    from bdpvi.releasing import storage

    kind = guarantee_of(guarantee)
    secret = secret or out.with_name(f"{out.name}.secret")
    for name, path in (("out", out / MODEL), ("secret", secret)):
        if path.exists():
            raise ValueError(f"{name}: {path} exists already; choose another, nothing is replaced")
    split = table.split()
    chosen = options.settings_of(
        settings, split.train.name, epsilon, delta=delta, draws=draws or 1, base_rate=base_rate
    )
    fitted = chosen.fit(
        split.train, budget=bdpvi.Budget(epsilon, delta), progress=not quiet and not as_json
    )
    for folder in (secret.parent, out):
        store.make_folder(folder)
    storage.save_fit(fitted, secret, extra=made_of(chosen))
    try:
        with store.claimed(out / MODEL) as temporary:
            released = bdpvi.release(
                fitted, draws or chosen.draws, epsilon=epsilon, delta=delta, guarantee=kind
            )
            storage.write_release(released, temporary)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"the fit is kept in {secret}/ (secret); `bdpvi spent {secret}` says whether a release "
            f"was charged, and `bdpvi release {secret} --epsilon {epsilon:g} --out {out / MODEL}` "
            "goes on"
        ) from None
    where = {"out": out / MODEL, "secret": secret}
    _report(split, released, scores(split, released), where, as_json)


def _report(
    split: Split, released: Release, scored: pd.DataFrame, where: dict[str, Path], as_json: bool
) -> None:
    if as_json:
        receipt, spent = released.receipt.to_dict(), released.spent.to_dict()
        rows = scored.to_dict("index")
        options.print_json({**where, "receipt": receipt, "spent": spent, "scores": rows})
        return
    print(f"{len(split.train)} records of {split.train.name}, {len(split.test)} held out")
    print(f"Public: {released.receipt}")
    print(f"For the owner only: {released.spent}\n{released.spent.exposure}")
    if len(scored):
        print(f"On the rows held out, for the owner only:\n{scored.round(4).to_string()}")
    if worthless := no_better(scored):
        print(f"WARNING: {worthless}")
    print(f"Wrote {where['out']}, which may be shared. Keep {where['secret']}/ secret")


def scores(split: Split, released: Release) -> pd.DataFrame:
    """Score a release on held-out rows, beside the base rate and a fit without privacy."""
    import pandas as pd
    import torch
    from sklearn.linear_model import LogisticRegression

    from bdpvi.compare.metrics import metrics

    train, test = split.train, split.test
    usual = LogisticRegression(max_iter=10_000).fit(train.x.numpy(), train.y.numpy())
    probabilities = {
        "always the base rate": torch.full_like(test.y, float(train.y.mean())),
        "this release": released.predict_proba(test.x)[:, 1],
        "without privacy": torch.from_numpy(usual.predict_proba(test.x.numpy())[:, 1]),
    }
    if len(torch.unique(test.y)) < 2:
        return pd.DataFrame()  # nothing can be ranked
    found = {name: metrics(value, test.y) for name, value in probabilities.items()}
    return pd.DataFrame(found).T[list(SCORES)].rename(columns=SCORES)


def no_better(table: pd.DataFrame) -> str:
    """Say what of a release is no better than the base rate, "" if its AUC and log score are."""
    if not len(table):
        return "the rows held out have one class only, so nothing was scored"
    better = table.loc["this release"] > table.loc["always the base rate"]
    help_ = "more records, fewer columns or a larger ε would help"
    if not better["AUC"]:
        return f"this release predicts no better than the base rate; {help_}"
    if not better["log score"]:
        return (
            "this release ranks rows better than chance, but its probabilities score no better "
            f"than the base rate: use the ranking only; {help_}, and where one class is rare a "
            "public --base-rate"
        )
    return ""
