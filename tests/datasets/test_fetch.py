"""Raw files: where they are found, that only the right ones are accepted, and downloads."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from bdpvi.datasets.fetch import DigestError, RawFile, fetch

CONTENT = b"1,2\n3,4\n"
OTHER = b"1,2\n3,5\n"
NOWHERE = RawFile("t.data", "http://127.0.0.1:9/t.data", hashlib.sha256(CONTENT).hexdigest())


class Archive(BaseHTTPRequestHandler):
    """Serves the file whole, edited, cut short, or not at all."""

    def do_GET(self) -> None:
        body = {"/whole": CONTENT, "/edited": OTHER, "/cut": CONTENT[:5]}.get(self.path)
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(CONTENT) if body else 0))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def archive() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Archive)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache" / "bdpvi"
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / "cache" / name))
    monkeypatch.delenv("BDPVI_DATA", raising=False)
    return folder


def put(folder: Path, content: bytes = CONTENT) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "t.data").write_bytes(content)
    return folder


def served(address: str) -> RawFile:
    return RawFile("t.data", address, NOWHERE.sha256)


def test_a_path_is_a_file_of_any_name_or_a_folder(tmp_path: Path) -> None:
    put(tmp_path)
    (tmp_path / "renamed.csv").write_bytes(CONTENT)
    assert fetch(NOWHERE, tmp_path) == CONTENT
    assert fetch(NOWHERE, str(tmp_path / "renamed.csv")) == CONTENT


def test_each_place_hides_the_later_ones(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A wrong file shows which place was read: its name is in the refusal.
    named, shared = put(tmp_path / "named", OTHER), put(tmp_path / "shared", OTHER)
    put(cache, OTHER)
    with pytest.raises(DigestError) as refused:
        fetch(NOWHERE)
    assert refused.value.file == str(cache / "t.data")
    monkeypatch.setenv("BDPVI_DATA", str(shared))
    with pytest.raises(DigestError) as refused:
        fetch(NOWHERE)
    assert refused.value.file == str(shared / "t.data")
    with pytest.raises(DigestError) as refused:
        fetch(NOWHERE, named)
    assert refused.value.file == str(named / "t.data")


@pytest.mark.parametrize("content", [OTHER, CONTENT[:-1], b"", CONTENT + b"\n"])
def test_a_refusal_names_file_expected_and_found(tmp_path: Path, content: bytes) -> None:
    put(tmp_path, content)
    with pytest.raises(DigestError) as refused:
        fetch(NOWHERE, tmp_path)
    found = hashlib.sha256(content).hexdigest()
    for part in (str(tmp_path / "t.data"), NOWHERE.sha256, found, f"{len(content)} bytes"):
        assert part in str(refused.value)
    assert refused.value.expected == (NOWHERE.sha256,)
    assert refused.value.found == found


def test_how_a_file_was_packed_does_not_matter(tmp_path: Path) -> None:
    packed = RawFile("t.gz", NOWHERE.url, NOWHERE.sha256)
    for level in (1, 9):
        (tmp_path / "t.gz").write_bytes(gzip.compress(CONTENT, level))
        assert fetch(packed, tmp_path) == CONTENT
    for content in (b"", b"not gzip", gzip.compress(OTHER), gzip.compress(CONTENT)[:-3]):
        (tmp_path / "t.gz").write_bytes(content)
        with pytest.raises(DigestError, match=r"t\.gz is not the expected file"):
            fetch(packed, tmp_path)


def test_another_edition_is_accepted_from_a_folder_only(
    tmp_path: Path, archive: str, cache: Path
) -> None:
    put(tmp_path / "named", OTHER)
    both = RawFile(
        "t.data", f"{archive}/edited", NOWHERE.sha256, also=(hashlib.sha256(OTHER).hexdigest(),)
    )
    assert fetch(both, tmp_path / "named") == OTHER
    with pytest.raises(DigestError):
        fetch(both)
    assert list(cache.iterdir()) == []


def test_a_download_is_kept(archive: str, cache: Path) -> None:
    assert fetch(served(f"{archive}/whole")) == CONTENT
    assert [p.name for p in cache.iterdir()] == ["t.data"]
    assert fetch(NOWHERE) == CONTENT  # from the cache: nothing listens at its address


def test_a_download_of_another_file_is_refused_and_leaves_nothing(
    archive: str, cache: Path
) -> None:
    with pytest.raises(DigestError, match=hashlib.sha256(OTHER).hexdigest()) as refused:
        fetch(served(f"{archive}/edited"))
    assert refused.value.file == f"{archive}/edited"
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("route", ["cut", "absent"])
def test_a_failed_download_says_what_to_do_and_leaves_nothing(
    archive: str, cache: Path, route: str
) -> None:
    with pytest.raises(OSError, match=r"t\.data is neither in \$BDPVI_DATA nor in .*path="):
        fetch(served(f"{archive}/{route}"))
    assert list(cache.iterdir()) == []
