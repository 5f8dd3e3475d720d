"""Self-contained pages, and their figures: the extra ``bdpvi[report]``."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bdpvi._ground.outputs import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FRAME = Path(__file__).parent


def render(template: Path, **content: Any) -> str:
    """Return a page: a template that extends ``page.html.j2``, with text and control
    characters escaped.

    Args:
        template: file of the template.
        content: its variables, and functions as its filters.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    page = Environment(
        loader=FileSystemLoader([template.parent, _FRAME]),
        autoescape=True,
        undefined=StrictUndefined,
    )
    page.filters.update({name: one for name, one in content.items() if callable(one)})
    return visible(page.get_template(template.name).render(content))


def png(figure: Figure) -> str:
    """Return a figure as PNG in base 64."""
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return base64.b64encode(content.getvalue()).decode("ascii")
