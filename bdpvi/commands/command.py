"""The common base of all commands."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from bdpvi._ground import outputs

NOTHING = "nothing was finished; the same command starts again"


class Command(TyperCommand):
    """A command that prints one line when it is interrupted.

    The line is the message of the KeyboardInterrupt; the default says that nothing was finished.
    """

    def get_help(self, ctx: Any) -> str:
        """Return the help text; typer escapes its brackets for a renderer that is not used."""
        return str(super().get_help(ctx)).replace("\\[", "[")

    def get_short_help_str(self, limit: int = 0) -> str:
        """Return the first sentence, whole."""
        return " ".join((self.help or "").split("\n\n")[0].split())

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write options in the panels of :func:`.options.of_fields`, if there are several."""
        panels: dict[str, list[Any]] = {}
        of_option = getattr(self.callback, "panels", {})
        for option in self.get_params(ctx):
            if (words := option.get_help_record(ctx)) is not None:
                panels.setdefault(of_option.get(option.name, "Options"), []).append(words)
        for name, records in panels.items():
            with formatter.section(name):
                formatter.write_dl(records)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            outputs.complain(f"interrupted: {str(error) or NOTHING}")
            raise
