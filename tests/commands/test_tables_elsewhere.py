"""Every command that reads a table does so at a URL, by processes, and by Dask, with one result."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flat
import pytest
from doors import people
from test_cli import run
from watch import same_secrets

import bdpvi
from bdpvi import Ledger
from bdpvi.datasets import constants_of

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # for the owner
ROWS = 1_200
BOTH = ("--target", "sick", "--one-row-per-person", "--epsilon", 2)
COMMANDS: dict[str, tuple[object, ...]] = {
    "private": (*BOTH, "--positive", "yes", "--quiet"),
    "synthesize": (*BOTH, "--quiet"),
    "check": (*BOTH, "--positive", "yes", "--json"),
    "table": (),
    "predict": ("--id", "dose", "--quiet"),
}
FILES = {"private": "release.json", "synthesize": "synthetic.csv"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a table of three files, and a release."""
    made = tmp_path_factory.mktemp("elsewhere")
    frame = people(ROWS)[["age", "dose", "sick"]]
    (made / "parts").mkdir()
    for at in range(3):
        part = frame[400 * at : 400 * (at + 1)]
        part.to_parquet(made / "parts" / f"{at}.parquet", index=False, row_group_size=200)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        release = flat.private(
            frame, target="sick", positive="yes", epsilon=2.0, ledger=Ledger(), progress=False,
            constants=constants_of({"source": "By law.", "age": [18, 98], "dose": [-2, 2]}),
        )  # fmt: skip
    bdpvi.save_release(release, made / "release.json")
    return made


def result(
    name: str, folder: Path, turn: Path, table: object, capsys: Any, *more: object
) -> tuple[str, bytes]:
    """Return what a command shows, without paths, and the file that it writes."""
    out = turn / "out"
    given: tuple[object, ...] = ("--data", table) if name not in ("check", "table") else (table,)
    if name == "predict":
        given = (folder / "release.json", *given)
    if name in FILES:
        given = (*given, "--ledger", turn / "book.jsonl")
    if name != "check":
        out = {"predict": turn / "out.csv", "table": turn / "out.json"}.get(name, out)
        given = (*given, "--table" if name == "table" else "--out", out)
    turn.mkdir()
    capsys.readouterr()
    with same_secrets():
        assert run(name, *given, *COMMANDS[name], *more) == 0, capsys.readouterr().err
    shown = capsys.readouterr().out.replace(str(turn), "")
    if name == "check":
        return shown.split('"rows"', 1)[1], b""  # not the place of the ledger
    return shown, (out / FILES[name] if name in FILES else out).read_bytes()


@pytest.fixture(scope="module")
def dask() -> Iterator[str]:
    """Give the address of a scheduler of two workers, threads of this process."""
    distributed = pytest.importorskip("distributed")
    given: dict[str, Any] = {"n_workers": 2, "threads_per_worker": 1, "processes": False}
    with distributed.LocalCluster(**given, protocol="tcp", dashboard_address=None) as local:
        yield local.scheduler_address


@pytest.mark.parametrize("name", COMMANDS)
def test_a_table_at_a_url_and_by_dask_has_the_result_of_the_folder(
    name: str, folder: Path, tmp_path: Path, dask: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("fsspec")
    here = result(name, folder, tmp_path / "here", folder / "parts", capsys)
    url = f"file://{folder}/parts/*.parquet"
    ways = [(url, ()), (url, ("--dask", dask))] if name != "table" else [(url, ())]
    for at, (table, more) in enumerate(ways):
        assert result(name, folder, tmp_path / str(at), table, capsys, *more) == here


@pytest.mark.slow
@pytest.mark.parametrize("name", [one for one in COMMANDS if one != "table"])
def test_a_table_at_a_url_by_processes_has_the_result_of_the_folder(
    name: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("fsspec")
    here = result(name, folder, tmp_path / "here", folder / "parts", capsys)
    url = f"file://{folder}/parts/*.parquet"
    assert result(name, folder, tmp_path / "there", url, capsys, "--workers", 2) == here


@pytest.mark.parametrize("name", COMMANDS)
def test_a_table_in_a_store_of_memory_has_the_result_of_the_folder(
    name: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    for one in sorted((folder / "parts").iterdir()):
        store.pipe(f"/elsewhere/{one.name}", one.read_bytes())
    here = result(name, folder, tmp_path / "here", folder / "parts", capsys)
    assert result(name, folder, tmp_path / "there", "memory://elsewhere", capsys) == here


def test_a_look_at_a_url_says_that_a_release_needs_a_ledger(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("fsspec")
    assert run("check", f"file://{folder}/parts/*.parquet", "--one-row-per-person") == 0
    assert "a release needs --ledger FILE" in capsys.readouterr().out
