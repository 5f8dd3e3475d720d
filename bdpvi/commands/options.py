"""Options of several commands; how a command reads its table and prints its result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bdpvi._runtime.store import json_text

if TYPE_CHECKING:
    from bdpvi.compare.methods.posterior import PosteriorRelease
    from bdpvi.types import Split

TABLES = (
    "breast-cancer", "abalone", "abalone-onehot", "adult", "adult-onehot", "magic", "spambase",
)  # fmt: skip
"""The names of ``bdpvi.datasets.LOADERS``, which need not be imported for a help text."""

HELP = {"help_option_names": ["-h", "--help"]}
"""Settings of every program, whose commands inherit them."""

Data = Annotated[str, typer.Option(help=f"A CSV file, or one of {', '.join(TABLES)}.")]
Target = Annotated[str, typer.Option(help="Yes/no column of a CSV file.")]
Positive = Annotated[str, typer.Option(help="Value of the target that counts as 1.")]
Drop = Annotated[
    list[str] | None,
    typer.Option(
        help="Column of a CSV file to leave out, such as an identifier; once for every column.",
        show_default=False,
    ),
]
TestFraction = Annotated[
    float, typer.Option(help="Fraction of a CSV file's rows that is kept out of training.")
]
Settings = Annotated[
    str,
    typer.Option(
        metavar="FILE[:METHOD]",
        help="Settings that `bdpvi tune` found, of the method bdp-vi-mean-field or another release "
        "of this library. Without it those that follow from ε alone.",
        show_default=False,
    ),
]
Folder = Annotated[Path, typer.Argument(help="Folder that `bdpvi fit` wrote. It is secret.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]
Seed = Annotated[int, typer.Option(help="Seed of batches and base noise.")]
Delta = Annotated[float, typer.Option(help="δ of the guarantee.")]


def read_split(
    data: str, target: str, positive: str, test_fraction: float, drop: list[str] | None
) -> Split:
    """Return the training and test records of a known table or of a CSV file."""
    from bdpvi import datasets

    if data in datasets.LOADERS:
        return datasets.LOADERS[data]()
    if not target:
        raise ValueError(f"target is needed for data={data!r}: the name of the yes/no column")
    return datasets.from_csv(
        data, target, positive=positive or None, drop=drop or (), test_fraction=test_fraction
    )


def settings_of(settings: str, data: str, epsilon: float) -> PosteriorRelease:
    """Return the settings that ``--settings`` names, or the recommended ones."""
    import bdpvi
    from bdpvi.compare import hyperparameters

    if not settings:
        return bdpvi.recommended(epsilon)
    path, _, method = settings.partition(":")
    return hyperparameters.releases(
        epsilon, Path(path), data=data, method=method or "bdp-vi-mean-field"
    )


@contextmanager
def resumable(folder: Path, out: Path | None = None) -> Iterator[None]:
    """Let an interruption say what the command has kept.

    Args:
        folder: where finished parts are kept.
        out: what the command makes in one go at the end, if that is where it ends.
    """
    try:
        yield
    except KeyboardInterrupt:
        if out is not None and out.exists():
            raise KeyboardInterrupt(f"{out}/ is finished and whole (secret)") from None
        files = (one for one in folder.rglob("*") if one.is_file())
        if any(not one.name.startswith(".") for one in files):
            raise KeyboardInterrupt(
                f"what is finished is kept in {folder}/ (secret); the same command goes on there"
            ) from None
        raise


def print_json(value: Any) -> None:
    """Print one JSON object on a line, paths as text."""
    print(json_text(value))
