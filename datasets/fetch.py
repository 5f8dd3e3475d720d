"""Find the raw file of a public table, and accept it only if its SHA-256 is known.

A file is searched for in the caller's path, then in ``$BDPVI_DATA``, then in the user's cache.
Last, it is downloaded from its archive and cached.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import platformdirs
import pooch

ARCHIVE = "https://archive.ics.uci.edu/ml/machine-learning-databases"


class DigestError(ValueError):
    """A file is not the published one: it was truncated, edited or replaced.

    Attributes:
        file: path or address of the refused file.
        expected: the accepted SHA-256 digests, in hexadecimal.
        found: the digest of the file.
    """

    def __init__(self, file: str, expected: tuple[str, ...], found: str, size: int) -> None:
        self.file, self.expected, self.found = file, expected, found
        super().__init__(
            f"{file} is not the expected file: expected sha256 {' or '.join(expected)}, "
            f"found {found} ({size} bytes)"
        )


@dataclass(frozen=True)
class RawFile:
    """A file of a public archive, identified by its content.

    Attributes:
        name: file name, in folders and in the cache.
        url: where it is published.
        sha256: digest of the published file, in hexadecimal; for .gz files, of their uncompressed
            content, because the same content can be compressed in many ways.
        also: digests of other editions with the same records; a download is never one of them.
    """

    name: str
    url: str
    sha256: str
    also: tuple[str, ...] = ()

    def check(self, content: bytes, where: str) -> bytes:
        """Return ``content``, unpacked if it is a .gz, if its digest is known.

        Raises:
            DigestError: naming ``where``, the digests expected and the one found.

        >>> empty = hashlib.sha256(b"").hexdigest()
        >>> RawFile("t.data", "https://example.org/t.data", empty).check(b"", "t.data")
        b''
        """
        if self.name.endswith(".gz"):
            with contextlib.suppress(OSError, EOFError, zlib.error):  # its digest is then refused
                content = gzip.decompress(content)
        found = hashlib.sha256(content).hexdigest()
        expected = (self.sha256, *self.also)
        if found not in expected:
            raise DigestError(where, expected, found, len(content))
        return content


def cache_folder() -> Path:
    """Return the folder of downloaded files; it may not exist yet."""
    return Path(platformdirs.user_cache_dir("bdpvi"))


def fetch(file: RawFile, path: str | os.PathLike[str] | None = None) -> bytes:
    """Return the content of ``file``, unpacked, from the first of these locations that has it.

    The file is read once, so the returned bytes are the checked bytes.

    Args:
        file: the file to find.
        path: the file itself, or a folder that holds it. When given, nothing else is searched.

    Raises:
        DigestError: if a file is found but its digest is not known.
        FileNotFoundError: if ``path`` or ``$BDPVI_DATA`` does not exist.
        OSError: if the file cannot be read, or is not found and cannot be downloaded.
    """
    found = _file_at(file, Path(path)) if path is not None else _find_file(file)
    if found is None:
        found = _download(file, cache_folder())
    return file.check(found.read_bytes(), str(found))


def _file_at(file: RawFile, path: Path) -> Path:
    if path.is_file():
        return path
    if not path.is_dir():
        raise FileNotFoundError(f"path={str(path)!r} is neither a file nor a folder")
    if not (path / file.name).is_file():
        raise FileNotFoundError(f"path={str(path)!r} has no file {file.name}")
    return path / file.name


def _find_file(file: RawFile) -> Path | None:
    folders = [cache_folder()]
    if shared := os.environ.get("BDPVI_DATA"):
        if not Path(shared).is_dir():
            raise FileNotFoundError(f"BDPVI_DATA={shared!r} is not a folder")
        folders.insert(0, Path(shared))
    return next((f / file.name for f in folders if (f / file.name).is_file()), None)


def _download(file: RawFile, folder: Path) -> Path:
    published = replace(file, also=())

    def download(url: str, output: str, dog: Any) -> None:
        pooch.HTTPDownloader(timeout=60)(url, output, dog)
        published.check(Path(output).read_bytes(), url)

    # pooch writes beside the target and renames at the end, so that an interrupted or refused
    # download leaves nothing under the file's name.
    try:
        target = pooch.retrieve(
            file.url,
            known_hash=None if file.name.endswith(".gz") else f"sha256:{file.sha256}",
            fname=file.name,
            path=folder,
            downloader=download,
        )
    except OSError as error:
        raise OSError(
            f"{file.name} is neither in $BDPVI_DATA nor in {folder}, and {file.url} could not be "
            f"downloaded ({error}); get the file by other means and name its folder by path= "
            "or $BDPVI_DATA"
        ) from error
    return Path(target)
