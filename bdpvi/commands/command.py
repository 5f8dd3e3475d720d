"""What every command does alike."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from bdpvi._runtime import outputs

NOTHING = "nothing was finished; the same command starts again"


class Command(TyperCommand):
    """A command that ends in one line when it is interrupted.

    The line is the message of the KeyboardInterrupt, by default that nothing was finished. Of
    several workers the first one prints it.
    """

    def get_help(self, ctx: Any) -> str:
        """Return the help text, in which typer escapes brackets for a renderer that is not used."""
        return str(super().get_help(ctx)).replace("\\[", "[")

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            if ctx.obj is None or ctx.obj.rank == 0:
                outputs.complain(f"interrupted: {str(error) or NOTHING}")
            raise
