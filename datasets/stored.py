"""Files of tables: where they lie, what they are, and whether they have changed."""

from __future__ import annotations

import bz2
import glob
import gzip
import io
import os
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from bdpvi.datasets.formats import FileFormat

EXCEL = (".excel", ".xlsx", ".xlsm", ".xlsb", ".xls", ".ods")


class Format(NamedTuple):
    """A format of files.

    Attributes:
        words: what a file of it is.
        reader: the class that reads it, with its module.
        suffixes: of names, for what no first bytes tell, and for damaged files.
        signs: first bytes.
    """

    words: str
    reader: str
    suffixes: tuple[str, ...]
    signs: tuple[bytes, ...] = ()


KINDS = {
    "text": Format("CSV file", "lines.Text", (".text", ".csv", ".tsv")),
    "gzip": Format("CSV file", "lines.Text", (".gzip",), (b"\x1f\x8b",)),
    "bz2": Format("CSV file", "lines.Text", (".bz2",), (b"BZh",)),
    "zstd": Format("CSV file", "lines.Text", (".zstd",), (b"\x28\xb5\x2f\xfd",)),
    "zip": Format("CSV file", "lines.Text", (".zip",)),
    "parquet": Format("Parquet file", "openers.Grouped", (".parquet", ".pq")),
    "feather": Format("Feather file", "openers.Grouped", (".feather", ".arrow"), (b"ARROW1\0\0",)),
    "orc": Format("ORC file", "openers.Grouped", (".orc",)),
    "excel": Format("Excel workbook", "sheets.Sheet", EXCEL, (b"\xd0\xcf\x11\xe0",)),
    "sav": Format(
        "SPSS file", "sheets.Observations", (".sav", ".zsav"), (b"$FL2@(#)", b"$FL3@(#)")
    ),
    "por": Format("SPSS file", "sheets.Observations", (".por",)),
    "dta": Format("Stata file", "sheets.Observations", (".dta",), (b"<stata_dta>",)),
    "sas7bdat": Format("SAS file", "sheets.Observations", (".sas7bdat",)),
    "xpt": Format("SAS file", "sheets.Observations", (".xpt",), (b"HEADER RECORD***",)),
}
"""All formats. A new one is a line here, and a :class:`Reader`."""
TEXT = tuple(kind for kind, one in KINDS.items() if one.reader == "lines.Text")
"""Text, and compressed text."""
_SUFFIXES = {suffix: kind for kind, one in KINDS.items() for suffix in one.suffixes}
_BZIP2 = (b"1AY&SY", b"\x17rE8P\x90")
_OTHERS = {
    b"%PDF": "a PDF document",
    b"SQLite format 3\0": "an SQLite database",
    b"\x89HDF": "an HDF5 file",
    b"\xfd7zXZ": "an xz archive; unpack it",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive; unpack it",
    b"Rar!\x1a": "a RAR archive; unpack it",
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
}
"""What is refused, by first bytes."""
_UNPACKED = (".gz", ".bz2", ".zst")
_HEAD = 16


@dataclass(frozen=True)
class Stored:
    """A file, local or at a URL, as it was when the table was opened.

    Attributes:
        path: its path or URL.
        size: its size in bytes.
        stamp: changes with its content: a time, or what its store says.
    """

    path: str
    size: int
    stamp: str

    @classmethod
    def of(cls, path: str) -> Stored:
        """Return the file as it is now.

        Raises:
            OSError: if it cannot be opened.
        """
        if "://" in path:
            files, inner = _store(path)
            return cls(path, int(files.size(inner)), str(files.ukey(inner)))
        found = os.stat(path)
        return cls(path, found.st_size, str(found.st_mtime_ns))

    def open(self) -> Any:
        """Return the opened file.

        Raises:
            ValueError: if it has changed.
        """
        self.check()
        return _store(self.path)[0].open(self.path) if "://" in self.path else open(self.path, "rb")

    def check(self) -> None:
        """Raise ValueError if it has changed."""
        if Stored.of(self.path) != self:
            raise ValueError("the file has changed since the table was opened")

    def kind(self) -> str:
        """Return what the file is, by its first bytes, else by its name.

        Raises:
            ValueError: if it is no table, saying what it is.
        """
        with self.open() as opened:
            head = opened.read(_HEAD)
            opened.seek(max(self.size - 4, 0))
            tail = opened.read(4)
            for sign, words in _OTHERS.items():
                if head.startswith(sign):
                    raise ValueError(f"{self.path} is {words}")
            if head.startswith(b"PK\x03\x04") and zipfile.is_zipfile(opened):
                names = _names(zipfile.ZipFile(opened))
                office = any(name.startswith(("xl/", "content.xml")) for name in names)
                return "excel" if office else "zip"
        if head.startswith(b"PAR1") and tail == b"PAR1":
            return "parquet"
        if head.startswith(b"ORC") and tail.startswith(b"ORC"):
            return "orc"
        found = next((kind for kind, one in KINDS.items() if head.startswith(one.signs)), "")
        if found == "bz2" and not head[4:].startswith(_BZIP2):
            found = ""
        by_name = _SUFFIXES.get(Path(self.path).suffix.lower(), "text")
        return found or ("text" if by_name in TEXT else by_name)


@dataclass(frozen=True)
class Reader:
    """A file of some format, of which each place is read by itself.

    Attributes:
        file: the file.
        kind: its format.
        names: the names of its columns.
    """

    file: Stored
    kind: str
    names: tuple[str, ...]

    @classmethod
    def of(cls, file: Stored, kind: str, format: FileFormat) -> Reader:
        """Open a file; only its header is read."""
        raise NotImplementedError

    def places(self, size: int) -> Sequence[Any]:
        """Return at least one place, None where no row is. Text is cut into so many bytes."""
        raise NotImplementedError

    def words(self, place: Any) -> str:
        """Return a place in words."""
        raise NotImplementedError

    def rows(self, place: Any) -> Iterator[tuple[Any, int, int]]:
        """Yield rows, the number of lines left out, and a digest, 0 if the file is watched.

        Rows are tables of pyarrow or pandas frames, at least one of them.
        """
        raise NotImplementedError


def unpacked(opened: Any, kind: str) -> Any:
    """Return the content of an opened file of text, which may be compressed, as a stream.

    Raises:
        ValueError: if it is an archive of several files.
    """
    if kind == "gzip":
        return gzip.open(opened)
    if kind == "bz2":
        return bz2.open(opened)
    if kind == "zstd":
        from pyarrow import CompressedInputStream

        return io.BufferedReader(CompressedInputStream(opened, "zstd"))
    if kind == "zip":
        archive = zipfile.ZipFile(opened)
        names = _names(archive)
        if len(names) != 1:
            raise ValueError(f"an archive of {len(names)} files; unpack it and name one")
        return archive.open(names[0])
    return opened


def _names(archive: zipfile.ZipFile) -> list[str]:
    found = [one for one in archive.namelist() if not one.endswith("/")]
    return [one for one in found if not one.startswith("__MACOSX")]


def without_pattern(path: str) -> str:
    """Return the path of a table without the pattern of a glob.

    >>> without_pattern("claims/2024-*.parquet"), without_pattern("claims/a.csv")
    ('claims', 'claims/a.csv')
    """
    while glob.has_magic(path) and not os.path.exists(path):
        path = os.path.dirname(path) or "."
    return path


def files_of(path: str) -> list[str]:
    """Return the files of a table in order: itself, those in a folder, or those of a glob.

    Raises:
        ValueError: if there are none.
    """
    if "://" in path:
        files, inner = _store(path)
        found = files.glob(inner) if glob.has_magic(inner) else [inner]
        if len(found) == 1 and files.isdir(found[0]):
            found = files.ls(found[0], detail=False)
        names = [files.unstrip_protocol(one) for one in found]
    elif os.path.isdir(path):
        names = [entry.path for entry in os.scandir(path) if entry.is_file()]
    else:
        names = [path] if os.path.isfile(path) else glob.glob(path)
    if len(names) > 1 or os.path.isdir(path):
        names = sorted(name for name in names if _is_table(Path(name)))
    if not names:
        raise ValueError(
            f"{path!r} is neither a file nor a folder or glob of tables, such as .csv or .parquet"
        )
    return names


def _is_table(path: Path) -> bool:
    name = path.with_suffix("") if path.suffix.lower() in _UNPACKED else path
    return name.suffix.lower() in _SUFFIXES and not path.name.startswith((".", "_"))


def _store(path: str) -> tuple[Any, str]:
    """Return the store of a URL and the path in it."""
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise ValueError(f"{path!r} is a URL, which needs: pip install 'bdpvi[dask]'") from error
    files, inner = url_to_fs(path)
    return files, str(inner)
