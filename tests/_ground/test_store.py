"""Files are on disk under their names, and shared ones are read within their limit."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from bdpvi._ground import store


def test_a_new_name_is_on_the_disk_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power failure may lose a name that only the file's own content was forced to disk for."""
    file, synced = tmp_path / "a.json", []
    fsync = os.fsync

    def syncing(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, file.exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", syncing)
    store.write(file, b"{}")
    assert synced == [(file.stat().st_ino, False), (tmp_path.stat().st_ino, True)]


def test_no_more_of_a_shared_file_is_read_than_it_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MOST_BYTES", 1000)
    (tmp_path / "large.json").write_bytes(b" " * 10**7)
    tracemalloc.start()
    with pytest.raises(ValueError, match="bytes of the file"):
        store.read_shared(tmp_path / "large.json")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 10**6
