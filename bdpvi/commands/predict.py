"""``bdpvi predict``: predictions for the rows of a table by a release."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bdpvi._ground import outputs, schema, store
from bdpvi._ground.outputs import several
from bdpvi.commands.engine import WorkerOptions
from bdpvi.commands.options import Json, Quiet, TableOption, Unknown, of_fields, table_file_of


@of_fields
def predict(
    released: Annotated[Path, typer.Argument(help="File of a release: OUT/release.json.")],
    data: Annotated[
        str,
        typer.Option(
            help="File with the raw columns of the training data, such as CSV, Parquet or Excel; "
            "or a folder, a glob or a URL of files of one kind."
        ),
    ],
    workers: WorkerOptions,
    ids: Annotated[
        list[str] | None,
        typer.Option(
            "--id",
            help="Column that the predictions begin with, as it is in the file; once for every "
            "column.",
        ),
    ] = None,
    unknown: Unknown = "",
    table: TableOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="CSV or Parquet file for the predictions, by its suffix; default standard output."
        ),
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Predict the likelier class of each row of a file, and the probability of the positive class.

    Of several classes each has a column with its probability, and of a model of numbers or counts
    it is the expected target; of a survival regression the expected time until the event or the
    last cut, whichever is first, beside the probability of no event until each cut. The spread is
    the standard deviation of the positive class's or the likeliest class's probability, or of the
    expectation, over the released samples: how far the model, its privacy noise included, is
    unsure. It is blank if there is one sample.

    With --out the table need not fit in memory: each block is read, predicted and written in turn,
    in order. The predictions are the same to the bit for any number of workers.
    """
    from bdpvi import score  # not load_release, which needs torch
    from bdpvi.tables.predictions import Predictions

    file = table_file_of(data, table, release=False).file
    if out is not None and not as_json and not store.nothing_at(out):
        raise ValueError(f"{str(out)!r} exists already; nothing is overwritten")
    loaded = score.load(released)
    with workers.machine() as machine:
        made = Predictions.of(
            loaded, data, ids=ids or (), unknown=unknown, file=file, executor=machine.executor,
            progress=out is not None and not quiet and not as_json,
        )  # fmt: skip
        if as_json:
            from bdpvi.releases.receipt import Receipt

            receipt = schema.from_json(Receipt, loaded.receipt).to_dict()
            frame = made.frame()
            columns = frame.astype(object).where(frame.notna(), None).to_dict("list")
            outputs.show(store.json_text({**columns, "receipt": receipt}))
        elif out is None:
            outputs.show(*made.text().splitlines())
        else:
            outputs.say(f"Wrote {several(made.write(out), 'prediction')} to {out}")
