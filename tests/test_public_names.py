"""The public names: few, importable, on a page of the reference, and typed for whoever imports."""

from __future__ import annotations

import inspect
import pkgutil
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from program import missing

import bdpvi
from bdpvi.tables import Request

ROOT = Path(__file__).parents[1]
PACKAGES = ["bayesian", "datasets", "federated", "guides", "networks", "privacy", "regression"]
PACKAGES += ["score", "sklearn", "synthesis", "tables"]
MOST = {"bdpvi": 43, **{f"bdpvi.{name}": 12 for name in PACKAGES}, "bdpvi.datasets": 14}
DIRECTIVE = re.compile(r"^\.\. auto(\w+):: ([\w.]+)\n((?:   .*\n)*)", re.MULTILINE)


def on_pages() -> set[str]:
    """Return the dotted names that the reference's directives document."""
    result = set()
    for page in (ROOT / "docs" / "reference").glob("*.rst"):
        text = page.read_text(encoding="utf-8") + "\n"
        current = "".join(re.findall(r"currentmodule:: ([\w.]+)", text)[:1])
        for kind, name, options in DIRECTIVE.findall(text):
            if kind != "module":
                result.add(f"{current}.{name}" if current else name)
            elif ":members:" in options:
                shown, _, hidden = options.partition(":exclude-members:")
                some = re.findall(r"\w+", shown.partition(":members:")[2])
                if not some:
                    try:
                        module = import_module(name)
                    except ImportError:
                        if missing(name):
                            raise
                        continue  # it needs an extra that is not installed
                    some = getattr(module, "__all__", None) or [*vars(module)]
                result |= {f"{name}.{one}" for one in some if one not in re.findall(r"\w+", hidden)}
    return result


@pytest.mark.parametrize("package", MOST)
def test_public_names_are_few_and_on_a_page_of_the_reference(package: str) -> None:
    module, pages = import_module(package), on_pages()
    assert 0 < len(module.__all__) <= MOST[package]
    assert len({*module.__all__}) == len(module.__all__)
    assert {*module.__all__} <= {*dir(module)}  # which is all that the reference's pages show
    for name in module.__all__:
        home = getattr(getattr(module, name), "__module__", package)
        assert {f"{package}.{name}", f"{home}.{name}"} & pages, name


def test_sub_packages_need_no_import_of_their_own() -> None:
    code = "import bdpvi; " + "; ".join(f"bdpvi.{name}.__all__" for name in PACKAGES)
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_field_of_a_request_is_a_typed_argument_of_private() -> None:
    fields = inspect.signature(Request).parameters
    given = inspect.signature(bdpvi.private).parameters
    assert not {one.name for one in given.values() if one.kind is one.VAR_KEYWORD}
    assert len(given) <= 16
    for name in {*fields} - {"name", "formula", "terms"}:
        if name not in ("public", "unit"):  # which may be left out, or named in short
            assert given[name].annotation == fields[name].annotation, name
            assert given[name].default == fields[name].default, name


def test_types_are_installed_with_the_package() -> None:
    assert (Path(bdpvi.__file__).parent / "py.typed").is_file()
    assert '\nbdpvi = ["py.typed"]\n' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


PAGE = ROOT / "docs" / "how-to" / "from-other-libraries.md"


def test_names_of_ours_and_of_theirs_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    calls = re.findall(r"`(bdpvi(?:\.\w+)+)(?:\((\w+)=\))?`", text)
    assert len(calls) > 50
    for name, argument in calls:
        called = pkgutil.resolve_name(name)
        assert not argument or argument in inspect.signature(called).parameters, (name, argument)
    for name in set(re.findall(r"`((?:opacus|dp_accounting)(?:\.\w+)+)", text)):
        pkgutil.resolve_name(name)
