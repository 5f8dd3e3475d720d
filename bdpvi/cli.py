"""The command line."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, NoReturn

import typer

from bdpvi._ground import log, outputs, validate
from bdpvi._ground.version import __version__
from bdpvi.commands import (
    account,
    check,
    describe,
    options,
    partition,
    predict,
    private,
    show,
    summary,
    synthesize,
    table,
)
from bdpvi.commands.command import Command

_IN_PYTHON = "a fit that stays secret is made in Python, by bdpvi.fit, bdpvi.release and bdpvi.cost"
GONE = {
    "fit": _IN_PYTHON,
    "release": _IN_PYTHON,
    "cost": "`bdpvi account PLACE` shows what was spent",
    "ledger": "`bdpvi account PLACE` shows it, and `bdpvi account PLACE --repair` repairs it",
}
"""Former commands, and what takes their place."""

app = typer.Typer(
    help="Private variational inference with Bayesian differential privacy accounting.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=options.HELP,
)
for command in (
    table.table,
    check.check,
    private.private,
    predict.predict,
    summary.summary,
    show.show,
    partition.partition,
    describe.describe,
    synthesize.synthesize,
    synthesize.sample,
    account.account,
):
    app.command(cls=Command)(command)
for name in ("demo", "compare", "tune"):  # by name: nothing else depends on this room
    app.command(cls=Command)(getattr(import_module("bdpvi.bench.commands"), name))
app.command(cls=Command)(import_module("bdpvi.audits.commands").audit)


def _gone(context: typer.Context) -> None:
    raise ValueError(f"bdpvi {context.info_name} is gone: {GONE[str(context.info_name)]}")


for name in GONE:
    any_words = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command(name, cls=Command, hidden=True, context_settings=any_words)(_gone)


def _version(wanted: bool) -> None:
    if wanted:
        outputs.show(f"bdpvi {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Log steps and their duration on standard error."),
    ] = False,
    shown: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    if verbose:
        context.with_resource(log.shown())


def main() -> NoReturn:
    """Run the command line; bad input gives exit code 2 and a line on standard error
    for each fault.

    An interruption or SIGTERM gives exit code 130.
    """
    with outputs.screens():
        try:
            with _stoppable(), _one_line_warnings():
                app(standalone_mode=True)
        except (ValueError, OSError, ArithmeticError) as error:
            said = validate.why(error)
            if isinstance(error, OSError) and error.filename is not None:
                said = f"{error.filename}: {said}"
            outputs.complain(said)
            raise SystemExit(2) from None
        raise SystemExit(0)


@contextmanager
def _one_line_warnings() -> Iterator[None]:
    """Show warnings like errors, without a code location."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: outputs.complain(str(message))
        yield


@contextmanager
def _stoppable() -> Iterator[None]:
    """Treat SIGTERM as an interruption."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    main()
