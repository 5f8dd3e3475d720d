"""The repository's pages are short, name no folder of one machine, and agree on versions."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.metadata import metadata, requires
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
NAMES = ("README.md", "CONTRIBUTING.md", "RELEASING.md", "SECURITY.md")
PAGES = [*(ROOT / name for name in NAMES), *sorted((ROOT / "docs").rglob("*.md"))]
ROOMS = ("bdpvi", "datasets", "guides")
READ = ("tutorial", "how-to", "explanation", "studies")
LOOKED_UP = ("terms.md", "errata.md", "from-other-libraries.md")
"""Folders whose pages are read from top to bottom, and pages in them that are not."""


def test_pages_that_are_read_are_short() -> None:
    """One question a page: a longer one answers two, or says something twice."""
    pages = [one for one in PAGES if one.parent.name in READ]
    some = [one for one in pages if one.name not in LOOKED_UP]
    assert len(some) > 25
    words = {str(one): len(one.read_text(encoding="utf-8").split()) for one in some}
    assert {page: count for page, count in words.items() if count >= 1200} == {}


def test_the_wheel_has_every_package() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")  # Python 3.10 has no tomllib
    listed = re.findall(r'"([\w.]+)"', text.partition("\npackages = [")[2].partition("]")[0])
    files = [file for name in ROOMS for file in (ROOT / name).rglob("__init__.py")]
    names = [".".join(file.parent.relative_to(ROOT).parts) for file in files]
    assert sorted(listed) == sorted(n if n.startswith("bdpvi") else f"bdpvi.{n}" for n in names)


def test_make_help_lists_every_target() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert set(re.findall(r"^([a-z-]+):.*## \S", text, re.MULTILINE)) == set(phony.split())
    if shutil.which("make") and shutil.which("awk"):
        done = subprocess.run(
            ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, check=True
        )
        assert {line.split()[1] for line in done.stdout.decode().splitlines()} == set(phony.split())


def test_citation_and_changelog_are_of_this_version() -> None:
    files = {
        "pyproject.toml": r'^version = "([\d.]+)"$',
        "CITATION.cff": r"^version: ([\d.]+)$",
        "CHANGELOG.md": r"^## ([\d.]+) \(",
    }
    found = {}
    for name, pattern in files.items():
        one = re.search(pattern, (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
        assert one is not None, name
        found[name] = one[1]
    assert len({*found.values()}) == 1, found


def test_locked_versions_are_those_of_the_constraints() -> None:
    """``make lock`` writes them, each with the hashes of its files."""
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    entries = re.split(r"\n(?=\w)", text.split("\n", 2)[2])
    assert all("--hash=sha256:" in entry for entry in entries)
    locked = [entry.split(" ")[0] for entry in entries]
    assert len(locked) > 100
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    wanted = {line.partition(";")[0].strip() for line in lines if line[0] != "#"}
    assert wanted - set(locked) == set()


def needed(name: str, found: dict[str, str]) -> dict[str, str]:
    """Return the licence of every distribution that one needs, by name."""
    for line in requires(name) or []:
        one = Requirement(line)
        if one.name not in found and (one.marker is None or one.marker.evaluate({"extra": ""})):
            about = metadata(one.name)
            classes = [c for c in about.get_all("Classifier") or [] if c.startswith("License ::")]
            by_key = {key: about[key] for key in {*about}}
            keys = "License-Expression", "Classifier", "License"
            by_key["Classifier"] = " ".join(classes)
            found[one.name] = next(filter(None, map(by_key.get, keys)), "")
            needed(one.name, found)
    return found


def test_what_is_installed_with_the_library_has_a_permissive_licence() -> None:
    found = needed("bdpvi", {})
    of_cuda = re.compile("nvidia|cuda")  # with CUDA builds of torch alone, under NVIDIA's licence
    licences = {name: one for name, one in found.items() if not of_cuda.match(name)}
    assert len(licences) > 30
    known = re.compile("Apache|MIT|BSD|PSF|Python Software|MPL|Mozilla|ISC|Unlicense")
    assert {name: one for name, one in licences.items() if not known.search(one)} == {}
    assert [name for name, one in licences.items() if re.search(r"\bA?GPL", one)] == []
