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

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            outputs.complain(f"interrupted: {str(error) or NOTHING}")
            raise
