"""The rooms: drawn as they import each other, and no public name of the package hides a module."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import bdpvi

HOME = Path(bdpvi.__file__).parents[1]


def test_the_drawing_is_the_contract() -> None:
    """``make lint`` holds the imports against the contract."""
    contract = (HOME / "pyproject.toml").read_text(encoding="utf-8")
    layers = re.findall(r'"([^"]+)"', contract.partition("layers = [")[2].partition("]")[0])
    page = (HOME / "CONTRIBUTING.md").read_text(encoding="utf-8")
    drawn = re.findall(r"^\| (`[^|]+) \|", page, re.MULTILINE)
    rooms = [re.findall(r"`(\w+)`", line) for line in drawn]
    assert rooms == [re.findall(r"\w+", layer) for layer in layers if "__main__" not in layer]


def test_the_page_for_newcomers_names_files_that_are_there() -> None:
    page = HOME / "docs" / "explanation" / "how-a-release-is-made.md"
    text = page.read_text(encoding="utf-8")
    steps = re.findall(r"^\| (\d+)\. [^|]+ \| `([^`]+)` \|", text, re.MULTILINE)
    assert [int(number) for number, _ in steps] == [*range(1, 11)]
    named = {*re.findall(r"`((?:bdpvi|datasets)/\S+\.py)`", text)}
    assert {file for _, file in steps} < named
    assert not [file for file in sorted(named) if not (HOME / file).exists()]


def test_the_package_shows_public_names_only() -> None:
    assert set(dir(bdpvi)) == set(bdpvi.__all__)
    assert not {name for name in bdpvi.__all__ if (HOME / "bdpvi" / f"{name}.py").exists()}


def test_a_checkout_finds_the_rooms_at_its_root(tmp_path: Path) -> None:
    """Without an editable install: after ``pip install .`` the folder where Python starts wins."""
    (tmp_path / "bdpvi").mkdir()
    (tmp_path / "bdpvi" / "__init__.py").write_text("raise ImportError('the installed one')")
    packages = [str(tmp_path), *(path for path in sys.path if "site-packages" in path)]
    code = "import bdpvi.guides, bdpvi.datasets; print(bdpvi.guides.__file__); bdpvi.Table"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],  # -S: .pth files, which name an editable install
        cwd=HOME, env={**os.environ, "PYTHONPATH": os.pathsep.join(packages)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert Path(done.stdout.strip()) == HOME / "guides" / "__init__.py"


UNUSED = {"sklearn", "scipy.stats"}
"""What neither a release nor a fit loads."""
if [*map(int, version("torch").split(".")[:2])] >= [2, 13]:  # torch.func of 2.7 loads it itself
    UNUSED.add("sympy")


def loaded(code: str) -> set[str]:
    """Return the modules that Python has loaded after this code."""
    code = f"import sys, bdpvi; {code}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def ours(modules: set[str]) -> set[str]:
    """Return those of the library."""
    return {name for name in modules if name.split(".")[0] == "bdpvi"}


def test_settings_are_known_before_what_fits_is_loaded() -> None:
    own = ours(loaded("bdpvi.tables.Request(target='sick', positive='yes', epsilon=1.0)"))
    assert "bdpvi.tables.request" in own
    assert len(own) <= 12


PREDICTED = """
import contextlib, io
from bdpvi.__main__ import main
sys.argv = ["bdpvi", *{words!r}]
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main()
"""


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_new_rows_are_predicted_without_torch(tmp_path: Path, more: list[str]) -> None:
    """Its import takes longer than all else of a small table."""
    release = HOME / "tests" / "golden" / "release.json"
    names = bdpvi.load_release(release).preprocessing["encoding"]["columns"]  # type: ignore[index]
    header = ",".join(one["name"] for one in names)
    (tmp_path / "new.csv").write_text(f"{header}\n{',' * header.count(',')}\n", encoding="utf-8")
    out = [] if more else ["--out", str(tmp_path / "out.csv")]
    words = ["predict", str(release), "--data", str(tmp_path / "new.csv"), *out, *more]
    found = loaded(f"exec({PREDICTED.format(words=words)!r})")
    assert {"bdpvi.tables.predictions", "pandas"} <= found
    assert not found & {"torch", "pyro", "sklearn", "scipy"}
    assert more or len((tmp_path / "out.csv").read_text(encoding="utf-8").splitlines()) == 2


USED = """
release = bdpvi.load_release({path!r})
names = release.feature_names
release.predict_proba([[0.0] * len(names)])
try:
    print(release.summary())
except ValueError as error:
    print(error)
"""


@pytest.mark.parametrize("file", ["release.json", "certified.json"])
def test_a_release_is_used_without_pyro_and_pandas(file: str) -> None:
    """Read, predict and summarise with the core alone; few draws have no intervals."""
    path = str(HOME / "tests" / "golden" / file)
    found = loaded(f"exec({USED.format(path=path)!r})")
    own = ours(found)
    assert "bdpvi.releases.summary" in own
    assert len(own) <= 58
    assert not found & {"pyro", "pandas", "sklearn", "scipy"}
    rooms = {name.split(".")[1] for name in own if "." in name}
    assert rooms == {"_ground", "datasets", "models", "noise", "privacy", "releases", "score"}
