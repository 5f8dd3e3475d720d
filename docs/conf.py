"""The site: Markdown pages and a reference made from the docstrings. ``make docs`` builds it.

Nothing on a page comes from another host, and formulas are MathML when the page arrives, so that a
page looks the same from a folder as from a server.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version as installed

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.addnodes import literal_strong
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

project = "bdpvi"
author = "The authors of bdpvi"
copyright = f"{author}, Apache-2.0"
release = installed("bdpvi")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["**/*.txt"]
html_theme = "furo"
html_title = "bdpvi"
html_favicon = "_static/favicon.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_math_renderer = "mathml"

# Headings get the anchors that GitHub gives them, so that a link works in both places.
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
add_module_names = False
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
toc_object_entries_show_parents = "hide"
maximum_signature_line_length = 88

PRIME = re.compile(r"<msup>(<mi>[^<]*</mi>)<mi>&#x02032;</mi></msup>")
SCRIPT = re.compile(
    r"(?<=[^\s_^])(?P<kind>[_^])"
    r"(?:\{(?P<braced>[^{}]+)\}|(?P<bare>-?[^\W_]′?(?![\w:])|\([^()]*\)|-?½))"
)
"""A subscript or superscript of a docstring's formula: D_{λ+1}, E_x, e^ε, D^(t)."""
LETTER = re.compile(r"(?<=: )([A-Za-z]\.)$")
"""An argument described by one letter, which reStructuredText would read as an item of a list."""


def formula(display: str) -> Callable[[HTML5Translator, nodes.Element], None]:
    """Return what writes a formula as MathML."""

    def visit(self: HTML5Translator, node: nodes.Element) -> None:
        mathml = convert(node.astext(), display=display)
        # A prime is a letter of its own size: fonts without mathematics shrink it to a dot.
        self.body.append(PRIME.sub(r"<mrow>\1<mo lspace='0' rspace='0'>′</mo></mrow>", mathml))
        raise nodes.SkipNode

    return visit


def tidy(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Let reStructuredText read our docstrings as they are meant."""
    example = False
    for number, line in enumerate(lines):
        example = line.lstrip().startswith(">>>") or (example and bool(line.strip()))
        if not example:
            parts = re.split(r"(`+[^`]*`+)", LETTER.sub(r"\\\1", line))
            parts[::2] = [SCRIPT.sub(_role, part.replace("|", r"\|")) for part in parts[::2]]
            lines[number] = "".join(parts)
    if what in {"attribute", "data", "property"}:
        lines.insert(0, "\\")  # otherwise words before a colon in the first line count as a type


def apart(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Keep names that share a line ("a, b: text") together; a space would make the first a type."""
    for number, line in enumerate(lines):
        if found := re.match(r":(?:param|ivar) (?:\w+, )+\w+:", line):
            lines[number] = found.group().replace(", ", ",") + line[found.end() :]


def unsaid(
    app: Sphinx, what: str, name: str, obj: object, skip: bool, options: object
) -> bool | None:
    """Leave out fields whose docstrings are made up, or another function's."""
    of_tuple = (getattr(obj, "__doc__", "") or "").startswith("Alias for field")
    default = what == "class" and inspect.isfunction(obj) and "." not in obj.__qualname__
    return True if of_tuple or default else None


def named(
    app: Sphinx,
    what: str,
    name: str,
    obj: object,
    options: object,
    signature: str | None,
    returned: str | None,
) -> tuple[str, str | None] | None:
    """Write defaults as Python would, so that Sphinx reads the signature and not only shows it."""
    if signature is None:
        return None
    return re.sub(r"<function (\w+)>", r"\1", signature).replace("<factory>", "..."), returned


def spaced(app: Sphinx, page: nodes.document) -> None:
    """Give names that share a line the space back that :func:`apart` took."""
    for node in page.findall(literal_strong):
        if "," in node.astext():
            node.children = [nodes.Text(node.astext().replace(",", ", "))]


def commands(app: Sphinx, page: str, source: list[str]) -> None:
    """Append what typer says of every command to the page of commands."""
    if page == "reference/command-line":
        order = [sys.executable, "-m", "typer", "bdpvi.cli", "utils", "docs", "--name", "bdpvi"]
        said = subprocess.run(order, check=True, capture_output=True, text=True).stdout
        said = re.sub("^(Example: )(.+)", r"\1`\2`", said, flags=re.MULTILINE)
        parts = re.split(r"(`[^`]*`)", said.partition("\n")[2])  # the page has a heading
        parts[::2] = [re.sub(r"--[a-z][a-z-]*", r"`\g<0>`", part) for part in parts[::2]]
        source[0] += "".join(parts)


def _role(found: re.Match[str]) -> str:
    role = "sub" if found["kind"] == "_" else "sup"
    return f"\\ :{role}:`{found['braced'] or found['bare']}`\\ "


def setup(app: Sphinx) -> None:
    """Register what the site adds to Sphinx."""
    app.add_html_math_renderer("mathml", (formula("inline"), None), (formula("block"), None))
    app.connect("autodoc-process-docstring", tidy, priority=400)  # before the Google style is read
    app.connect("autodoc-process-docstring", apart, priority=600)
    app.connect("autodoc-skip-member", unsaid)
    app.connect("autodoc-process-signature", named)
    app.connect("doctree-read", spaced)
    app.connect("source-read", commands)
